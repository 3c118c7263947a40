//! Progress for people: a bar on a terminal, elsewhere a line for each thing begun.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinHandle;

use crate::load;

const STEPS: &str = "{elapsed_precise} {wide_bar} {pos}/{len} {msg}";
const TIME: &str = "{elapsed_precise} {wide_bar} {msg}";

/// A bar, lines, or nothing.
#[derive(Clone, Debug)]
pub struct Bar {
    bar: ProgressBar,
    lines: bool,
}

impl Bar {
    /// A bar if standard error is a terminal, else lines.
    #[must_use]
    pub fn new() -> Self {
        match std::io::stderr().is_terminal() {
            true => Self { bar: ProgressBar::new(0), lines: false },
            false => Self { lines: true, ..Self::hidden() },
        }
    }

    /// Nothing.
    #[must_use]
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), lines: false }
    }

    /// So many steps are ahead.
    pub fn steps(&self, count: u64) {
        self.restart(STEPS, count);
    }

    /// A step is done; `message` says which.
    pub fn step(&self, message: &str) {
        self.say(message);
        self.bar.inc(1);
    }

    /// What is under way.
    pub fn say(&self, message: &str) {
        if self.lines {
            eprintln!("{message}");
        }
        self.bar.set_message(message.to_owned());
    }

    /// Follows a load until the guard is dropped.
    #[must_use]
    pub fn follow(&self, name: &str, length: Duration, counts: &Arc<load::Progress>) -> Following {
        self.restart(TIME, length.as_millis() as u64);
        self.say(name);
        let (bar, name, counts, began) =
            (self.bar.clone(), name.to_owned(), Arc::clone(counts), Instant::now());
        let task = tokio::spawn(async move {
            loop {
                let (fine, not) = (counts.fine.load(Ordering::Relaxed), counts.not.load(Ordering::Relaxed));
                let rate = fine as f64 / began.elapsed().as_secs_f64().max(0.001);
                bar.set_position(began.elapsed().as_millis() as u64);
                bar.set_message(format!("{name}: {fine} ({rate:.0}/s), otherwise {not}"));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Following(task)
    }

    /// Takes the bar away.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }

    fn restart(&self, template: &str, length: u64) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_length(length);
        self.bar.set_position(0);
        self.bar.reset_elapsed();
    }
}

impl Default for Bar {
    fn default() -> Self {
        Self::new()
    }
}

/// A load being followed.
#[derive(Debug)]
pub struct Following(JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}
