//! The link to the bus: whether it is up now, and since when.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Whether the bus can be reached: it takes what is written *and* what is published is heard.
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

    /// Since when it has been up without a break; `None` while it is down.
    #[must_use]
    pub const fn up_since(&self) -> Option<Instant> {
        match self {
            Self::Up { since } => Some(*since),
            Self::Down { .. } => None,
        }
    }

    /// How long it has been up without a break; `None` while it is down.
    #[must_use]
    pub fn up_for(&self) -> Option<Duration> {
        self.up_since().map(|since| since.elapsed())
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
    parts: Mutex<Parts>,
    link: watch::Sender<Link>,
    /// Whether commands are answered as they should be, writes included. A doubt leaves it as it is: the next look says.
    commands: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Parts {
    up: [bool; 2],
    /// How often everything was doubted.
    doubts: u64,
}

/// How often everything had been doubted when a look began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look(u64);

impl Gauge {
    /// A link that is down.
    pub(crate) fn new() -> Self {
        let (link, _) = watch::channel(Link::Down { since: Instant::now() });
        Self { parts: Mutex::default(), link, commands: watch::Sender::new(false) }
    }

    /// Begins to look whether a part is up.
    pub(crate) fn look(&self) -> Look {
        Look(self.parts.lock().doubts)
    }

    /// What was looked at is up, unless everything was doubted since the look began.
    pub(crate) fn found_up(&self, part: Part, look: Look) {
        self.change(|parts| {
            if parts.doubts == look.0 {
                parts.up[part as usize] = true;
            }
        });
        self.tell_commands(part, true);
    }

    /// This part was made new and is up.
    pub(crate) fn up(&self, part: Part) {
        self.change(|parts| parts.up[part as usize] = true);
        self.tell_commands(part, true);
    }

    /// This part is down.
    pub(crate) fn down(&self, part: Part) {
        self.change(|parts| parts.up[part as usize] = false);
        self.tell_commands(part, false);
    }

    /// What took one part may have taken the other: both are down until they are found up.
    pub(crate) fn doubt(&self) {
        self.change(|parts| *parts = Parts { up: [false; 2], doubts: parts.doubts + 1 });
    }

    /// The bus is closed: both are down, for good.
    pub(crate) fn close(&self) {
        self.doubt();
        self.down(Part::Commands);
    }

    pub(crate) fn is_up(&self, part: Part) -> bool {
        self.parts.lock().up[part as usize]
    }

    /// Whether commands are answered, as was found last.
    pub(crate) fn answers(&self) -> bool {
        *self.commands.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    pub(crate) fn watch_commands(&self) -> watch::Receiver<bool> {
        self.commands.subscribe()
    }

    fn tell_commands(&self, part: Part, is_up: bool) {
        if matches!(part, Part::Commands) {
            self.commands.send_if_modified(|before| std::mem::replace(before, is_up) != is_up);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.parts.lock();
        change(&mut parts);
        let all_up = parts.up.iter().all(|up| *up);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_up_when_both_parts_are_and_remembers_since_when() {
        let gauge = Gauge::new();
        let seen = || *gauge.watch().borrow();
        let began = seen();
        gauge.up(Part::Commands);
        assert_eq!(seen(), began, "half a link is none");
        gauge.up(Part::Listener);
        let up = seen();
        assert!(up.is_up() && up.up_for().is_some());
        gauge.up(Part::Listener);
        assert_eq!(seen(), up, "no change, no new beginning");
        gauge.down(Part::Commands);
        assert!(!seen().is_up() && seen() != began && seen().up_for().is_none());
    }

    #[test]
    fn commands_are_answered_also_while_nothing_is_heard() {
        let gauge = Gauge::new();
        let answers = || *gauge.watch_commands().borrow();
        assert!(!answers());
        gauge.up(Part::Listener);
        assert!(!answers());
        gauge.found_up(Part::Commands, gauge.look());
        assert!(answers());
        let look = gauge.look();
        gauge.doubt();
        assert!(answers() && !gauge.watch().borrow().is_up(), "a doubt is no evidence");
        gauge.down(Part::Commands);
        assert!(!answers());
        gauge.found_up(Part::Commands, look);
        assert!(answers(), "they were answered, whatever is heard");
        gauge.close();
        assert!(!answers() && !gauge.watch().borrow().is_up());
    }

    #[test]
    fn a_look_that_began_before_a_doubt_shows_nothing() {
        let gauge = Gauge::new();
        gauge.up(Part::Commands);
        gauge.up(Part::Listener);
        let early = gauge.look();
        gauge.doubt();
        gauge.up(Part::Listener);
        gauge.found_up(Part::Commands, early);
        assert!(!gauge.watch().borrow().is_up());
        gauge.found_up(Part::Commands, gauge.look());
        assert!(gauge.watch().borrow().is_up());
    }
}
