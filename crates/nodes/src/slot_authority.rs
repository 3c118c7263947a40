//! Who gives a node's slots out: the bus, or the holder of the node's connection while the bus is away. Never both.
//!
//! A holder vouches for a record with each word that it writes, for a while that is counted by the server
//! from when the word was sent. While that lasts, anybody may reserve at the bus, and the holder gives
//! nothing. When it is surely over, nobody reserves anything there, whether the bus is gone, frozen or cut
//! off from this holder alone; and the holder may give slots. The next write that reaches the bus lists
//! those, and vouches again.

use std::time::{Duration, Instant};

use crate::limits::VOUCHED_MARGIN_MS;

/// Of one connection. Pure: time comes in as an argument.
#[derive(Clone, Copy, Debug)]
pub struct SlotAuthority {
    /// How long a write vouches for the record.
    vouched: Duration,
    /// Until then others may reserve slots at the bus.
    until: Instant,
    /// Words on their way.
    under_way: u32,
    /// Slots were granted that the record does not list.
    is_ahead: bool,
}

impl SlotAuthority {
    /// Of a connection that has said nothing to the bus yet.
    #[must_use]
    pub const fn new(vouched: Duration, now: Instant) -> Self {
        Self { vouched, until: now, under_way: 0, is_ahead: false }
    }

    /// A write is sent to the bus.
    pub const fn said(&mut self) {
        self.under_way += 1;
    }

    /// The last word was answered now; or not, and may have been heard.
    pub fn heard(&mut self, now: Instant) {
        self.unheard();
        self.until = self.until.max(now + self.vouched + Duration::from_millis(VOUCHED_MARGIN_MS));
    }

    /// The last word was surely not heard.
    pub const fn unheard(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Whether the holder may give slots itself.
    #[must_use]
    pub fn may_give(&self, now: Instant) -> bool {
        self.under_way == 0 && now >= self.until
    }

    /// Whether slots are taken that the record does not list.
    #[must_use]
    pub const fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Slots are taken that the record does not list; or it lists all.
    pub const fn ahead(&mut self, is_ahead: bool) {
        self.is_ahead = is_ahead;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOUCHED: Duration = Duration::from_secs(6);
    const LONG: Duration = Duration::from_millis(6_000 + VOUCHED_MARGIN_MS);

    #[test]
    fn a_holder_gives_nothing_while_a_word_of_it_may_be_heard() {
        let now = Instant::now();
        let mut authority = SlotAuthority::new(VOUCHED, now);
        assert!(authority.may_give(now), "nothing was said yet");
        authority.said();
        assert!(!authority.may_give(now + LONG * 9), "it may be heard at any time");
        authority.unheard();
        assert!(authority.may_give(now));
        authority.said();
        authority.heard(now);
        assert!(!authority.may_give(now + LONG - Duration::from_millis(1)));
        assert!(authority.may_give(now + LONG));
        authority.said();
        authority.said();
        authority.unheard();
        assert!(!authority.may_give(now + LONG), "there is another one");
        authority.heard(now + LONG);
        assert!(!authority.may_give(now + LONG) && authority.may_give(now + LONG * 2));
    }
}
