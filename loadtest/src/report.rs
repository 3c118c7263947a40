//! Tables for people.

/// Two columns, the second flush right.
#[must_use]
pub fn two_columns(lines: &[(String, String)]) -> String {
    table(&["", ""], &lines.iter().map(|(a, b)| vec![a.clone(), b.clone()]).collect::<Vec<_>>())
}

/// A Markdown table: the first column flush left, the others flush right.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let pad = |column: usize, cell: &str| match column {
        0 => format!("{cell:<0$}", widths[column]),
        _ => format!("{cell:>0$}", widths[column]),
    };
    let mut lines = vec![line(head.iter().enumerate().map(|(column, cell)| pad(column, cell)).collect())];
    let rule = |column: usize| match column {
        0 => "-".repeat(widths[column]),
        _ => format!("{}:", "-".repeat(widths[column] - 1)),
    };
    lines.push(line((0..head.len()).map(rule).collect()));
    for row in rows {
        lines.push(line(row.iter().enumerate().map(|(column, cell)| pad(column, cell)).collect()));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text = table(
            &["route", "per s"],
            &[vec!["empty".into(), "12".into()], vec!["x".into(), "123456".into()]],
        );
        assert_eq!(text, "| route |  per s |\n| ----- | -----: |\n| empty |     12 |\n| x     | 123456 |");
    }
}
