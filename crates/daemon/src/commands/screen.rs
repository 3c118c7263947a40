//! A text that is drawn again and again at the same place of a terminal.

use std::io::stdout;

use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthStr as _;

use super::shown;

/// The size of a terminal that does not tell it.
const DEFAULT: Size = Size { rows: 24, columns: 80 };

/// The place where the text is drawn.
#[derive(Debug, Default)]
pub struct Screen {
    /// The rows between where the text begins and the cursor.
    drawn: usize,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug)]
struct Size {
    rows: usize,
    columns: usize,
}

impl Screen {
    /// Draws the text over the one before; as much of it as the terminal has rows for. `false` if the terminal is gone.
    pub fn draw(&mut self, text: &str) -> bool {
        let size = Size::of_terminal();
        let text = fitting(text, size);
        let is_drawn = shown::print(&over(self.drawn, &text, size));
        self.drawn = text.lines().map(|line| rows(line, size)).sum();
        is_drawn
    }

    /// Draws all of the text over the one before, and leaves it. `false` if the terminal is gone.
    pub fn draw_whole(&mut self, text: &str) -> bool {
        let is_drawn = shown::print(&over(self.drawn, text, Size::of_terminal()));
        self.leave();
        is_drawn
    }

    /// Leaves what is drawn; the next text is drawn below.
    pub fn leave(&mut self) {
        self.drawn = 0;
    }
}

impl Size {
    fn of_terminal() -> Self {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                Self { rows: usize::from(size.ws_row), columns: usize::from(size.ws_col) }
            }
            _ => DEFAULT,
        }
    }
}

/// The first lines of a text, so many that they and the cursor fit.
fn fitting(text: &str, size: Size) -> String {
    let (mut fitting, mut taken) = (String::new(), 0);
    let total = text.lines().map(|line| rows(line, size)).sum::<usize>();
    let is_cut = total >= size.rows;
    // The cursor takes a row, and so does the line about those that are left out.
    let available = size.rows.saturating_sub(1 + usize::from(is_cut));
    let mut lines = text.lines();
    for line in lines.by_ref() {
        taken += rows(line, size);
        if taken > available {
            let left_out = 1 + lines.count();
            fitting += &format!("… {left_out} more lines\n");
            break;
        }
        fitting += line;
        fitting.push('\n');
    }
    fitting
}

/// The text over one that takes so many rows, in one write, so that nothing flickers. What is left of the other text is erased
/// behind each line and below the last one: a screen that is erased from its first row on, tmux keeps in its history.
fn over(drawn: usize, text: &str, size: Size) -> String {
    if drawn == 0 {
        return text.to_owned();
    }
    let mut over = format!("\u{1b}[{drawn}A");
    for line in text.lines() {
        over += line;
        let width = line.width();
        // Behind a full row the cursor is still on its last character, which would be erased.
        if width == 0 || !width.is_multiple_of(size.columns) {
            over += "\u{1b}[K";
        }
        over.push('\n');
    }
    over + "\u{1b}[J"
}

/// The rows that a line takes where the terminal wraps it.
fn rows(line: &str, size: Size) -> usize {
    line.width().div_ceil(size.columns).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_where_the_terminal_ends() {
        let size = Size { rows: 4, columns: 20 };
        assert_eq!(fitting("a\nb\nc\n", size), "a\nb\nc\n");
        assert_eq!(fitting("a\nb\nc\nd\n", size), "a\nb\n… 2 more lines\n");
        let wrapped = "x".repeat(21);
        assert_eq!(fitting(&format!("a\n{wrapped}\nc\n"), size), "a\n… 2 more lines\n");
        assert_eq!(fitting(&format!("{wrapped}\na\n"), size), format!("{wrapped}\na\n"));
        assert_eq!(fitting("a\nb\n", Size { rows: 1, columns: 1 }), "… 2 more lines\n");
    }

    #[test]
    fn a_text_is_erased_behind_each_line_of_the_next_one_and_below_it_and_never_from_its_first_row_on() {
        let size = Size { rows: 5, columns: 3 };
        assert_eq!(over(0, "a\nb\n", size), "a\nb\n", "nothing is drawn over");
        assert_eq!(
            over(4, "a\n\nfull\nrow\n", size),
            "\u{1b}[4Aa\u{1b}[K\n\u{1b}[K\nfull\u{1b}[K\nrow\n\u{1b}[J"
        );
        assert_eq!(over(1, "你好\n", Size { rows: 5, columns: 4 }), "\u{1b}[1A你好\n\u{1b}[J");
    }

    #[test]
    fn an_empty_line_takes_a_row() {
        let size = Size { rows: 3, columns: 80 };
        assert_eq!((rows("", size), rows("x", size), rows(&"x".repeat(161), size)), (1, 1, 3));
    }
}
