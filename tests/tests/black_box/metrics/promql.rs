//! Reads as much of a PromQL expression as tells which metrics and labels it uses.

/// The functions and words that expressions may have.
const WORDS: [&str; 26] = [
    "absent",
    "abs",
    "and",
    "avg",
    "avg_over_time",
    "by",
    "changes",
    "count",
    "group_left",
    "histogram_quantile",
    "increase",
    "label",
    "max",
    "min",
    "offset",
    "on",
    "or",
    "present_over_time",
    "rate",
    "sum",
    "time",
    "topk",
    "unless",
    "vector",
    "without",
    "ignoring",
];
/// After these, labels follow in brackets.
const GROUPINGS: [&str; 5] = ["by", "on", "without", "ignoring", "group_left"];

/// A metric, and the labels by which it is selected.
#[derive(Debug)]
pub struct Selector {
    pub name: String,
    pub labels: Vec<String>,
}

/// What an expression uses.
#[derive(Debug, Default)]
pub struct Used {
    pub selectors: Vec<Selector>,
    /// The labels in `by (…)`, `on (…)` and the like.
    pub groupings: Vec<String>,
    /// Whether it joins metrics by labels, which leaves those of the left side.
    pub is_joined: bool,
}

const fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Cuts off a beginning of such characters.
fn cut(text: &str, is_part: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()))
}

/// What stands between an opening character at the beginning and its closing one, and what follows.
fn enclosed(text: &str, open: char, close: char) -> Result<Option<(&str, &str)>, String> {
    match text.trim_start().strip_prefix(open) {
        None => Ok(None),
        Some(rest) => rest.split_once(close).map(Some).ok_or_else(|| format!("{open} is not closed")),
    }
}

/// Reads an expression.
///
/// # Errors
/// It has an unknown word, or something that is not closed.
pub fn read(expression: &str) -> Result<Used, String> {
    let (mut used, mut rest) = (Used::default(), expression);
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            rest = enclosed(rest, '"', '"')?.expect("it begins so").1;
        } else if first == '[' {
            rest = enclosed(rest, '[', ']')?.expect("it begins so").1;
        } else if first.is_ascii_digit() || first == '.' {
            rest = cut(rest, |c| c.is_ascii_alphanumeric() || c == '.').1;
        } else if is_of_word(first) {
            let (word, after) = cut(rest, is_of_word);
            rest = if word.starts_with("fencepost_") || word.starts_with("process_") {
                let (labels, after) = match enclosed(after, '{', '}')? {
                    Some((labels, after)) => (matchers(labels)?, after),
                    None => (Vec::new(), after),
                };
                used.selectors.push(Selector { name: word.to_owned(), labels });
                after
            } else if !WORDS.contains(&word) {
                return Err(format!("unknown word {word}"));
            } else if GROUPINGS.contains(&word)
                && let Some((labels, after)) = enclosed(after, '(', ')')?
            {
                used.is_joined |= word == "on";
                let labels = labels.split(',').map(str::trim).filter(|label| !label.is_empty());
                used.groupings.extend(labels.map(str::to_owned));
                after
            } else {
                after
            };
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    Ok(used)
}

/// The names of the labels in `{…}`.
fn matchers(text: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = cut(rest, is_of_word);
        let value = after.trim_start_matches(['=', '!', '~']);
        let Some((_, after)) = enclosed(value, '"', '"')? else {
            return Err(format!("{name} is not compared with a text"));
        };
        names.push(name.to_owned());
        rest = after.trim_start_matches(',').trim();
    }
    Ok(names)
}
