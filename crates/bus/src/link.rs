//! The link to the bus: whether it is up now, and since when.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Whether the bus can be reached: commands are answered *and* what is published is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It can, without a break since then.
    Up {
        /// This process's monotonic clock.
        since: Instant,
    },
    /// It cannot; tries go on.
    Down {
        /// This process's monotonic clock.
        since: Instant,
    },
}

impl Link {
    /// Whether it is up.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self, Self::Up { .. })
    }

    /// How long it has been up without a break; `None` while it is down.
    #[must_use]
    pub fn up_for(&self) -> Option<Duration> {
        match self {
            Self::Up { since } => Some(since.elapsed()),
            Self::Down { .. } => None,
        }
    }
}

/// The two connections that the link is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Commands,
    Listener,
}

/// Puts the link together from its parts.
#[derive(Debug)]
pub(crate) struct Gauge {
    parts: Mutex<[bool; 2]>,
    link: watch::Sender<Link>,
}

impl Gauge {
    /// A link that is down.
    pub(crate) fn new() -> Self {
        let (link, _) = watch::channel(Link::Down { since: Instant::now() });
        Self { parts: Mutex::new([false; 2]), link }
    }

    pub(crate) fn set(&self, part: Part, up: bool) {
        let mut parts = self.parts.lock().expect("no holder of this lock panics");
        parts[part as usize] = up;
        let all_up = parts.iter().all(|up| *up);
        // Told under the lock, so that the last word is the newest one.
        self.link.send_if_modified(|link| {
            if link.is_up() == all_up {
                return false;
            }
            let since = Instant::now();
            *link = if all_up { Link::Up { since } } else { Link::Down { since } };
            true
        });
    }

    pub(crate) fn is_up(&self, part: Part) -> bool {
        self.parts.lock().expect("no holder of this lock panics")[part as usize]
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_up_when_both_parts_are_and_remembers_since_when() {
        let gauge = Gauge::new();
        let seen = || *gauge.watch().borrow();
        let began = seen();
        gauge.set(Part::Commands, true);
        assert_eq!(seen(), began, "half a link is none");
        gauge.set(Part::Listener, true);
        let up = seen();
        assert!(up.is_up() && up.up_for().is_some());
        gauge.set(Part::Listener, true);
        assert_eq!(seen(), up, "no news, no new beginning");
        gauge.set(Part::Commands, false);
        assert!(!seen().is_up() && seen() != began && seen().up_for().is_none());
    }
}
