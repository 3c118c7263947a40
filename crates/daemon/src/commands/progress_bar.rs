//! The bar on a terminal that shows how far a command is.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// A bar on stderr up to this length; nothing where that is no terminal. `counted` is the part of its template that says how far
/// it is. The message stands behind that, from the first draw on.
pub fn new(length: u64, counted: &str, message: String) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!("{{wide_bar}} {counted}, {{msg}}{{left}}"));
    let style = style.expect("the template is sound");
    let style = style.with_key("left", |state: &ProgressState, text: &mut dyn Write| {
        let _ = text.write_str(&left(state.pos(), state.eta()));
    });
    ProgressBar::new(length).with_style(style).with_message(message)
}

/// How long it still takes. Nothing says that before something is done.
fn left(done: u64, eta: Duration) -> String {
    if done == 0 { String::new() } else { format!(", {:#} left", HumanDuration(eta)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_is_shown_once_something_is_done() {
        assert_eq!(left(0, Duration::ZERO), "");
        assert_eq!(left(1, Duration::from_secs(5)), ", 5s left");
    }

    #[test]
    fn a_bar_has_its_message_from_the_first_draw_on() {
        assert_eq!(new(0, "{pos}/{len} jobs", "0 failed".to_owned()).message(), "0 failed");
    }
}
