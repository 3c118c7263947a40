//! Who gives a node's slots out: the bus, or the holder of the node's connection. Never both.
//!
//! While nobody else wants the node, the bus lends its slots to the holder: the holder's words vouch for nothing, so nobody
//! reserves at the bus. An instance that wants a slot asks the holder, which then lists what is taken, and has the bus give
//! the slots until nobody else has wanted one for a while.
//!
//! While it shares them, a holder vouches for the record with each word that it writes, for a while that is counted by the
//! server from when the word was sent. While that lasts, anybody may reserve at the bus, and the holder gives
//! nothing. When it is surely over, or when the bus has lent the slots, nobody reserves anything there, whether the bus is
//! gone, frozen or cut off from this holder alone; and the holder may give slots. The next word that shares them lists
//! those.

use std::time::{Duration, Instant};

use crate::limits::{SHARED_MS, VOUCHED_MARGIN_MS};

/// Who gives the slots of one node's connection. Pure: time comes in as an argument.
#[derive(Clone, Copy, Debug)]
pub struct SlotAuthority {
    /// How long a word that shares the slots vouches for the record.
    vouched: Duration,
    /// Until then others may reserve slots at the bus.
    until: Instant,
    /// Until then a word may vouch of which nobody knows whether the bus has heard it, or when.
    unsure_until: Instant,
    /// Words on their way that share the slots.
    under_way: u32,
    /// Slots were given that the record does not list.
    is_ahead: bool,
    /// The slots are shared until then.
    shared_until: Option<Instant>,
}

impl SlotAuthority {
    /// The authority of a connection that has said nothing to the bus yet.
    #[must_use]
    pub const fn new(vouched: Duration, now: Instant) -> Self {
        let (until, unsure_until) = (now, now);
        Self { vouched, until, unsure_until, under_way: 0, is_ahead: false, shared_until: None }
    }

    /// Another instance wants slots.
    pub fn share(&mut self, now: Instant) {
        self.shared_until = Some(now + Duration::from_millis(SHARED_MS));
    }

    /// Whether the next word is to have the bus lend the slots. Not while another word may share them: until that is over,
    /// nobody could give any.
    #[must_use]
    pub fn wants_them_lent(&self, now: Instant) -> bool {
        now >= self.unsure_until && self.shared_until.is_none_or(|until| now >= until)
    }

    /// A word is sent to the bus.
    pub const fn said(&mut self, is_lent: bool) {
        if !is_lent {
            self.under_way += 1;
        }
    }

    /// The last word was heard.
    pub fn heard(&mut self, is_lent: bool, now: Instant) {
        if is_lent {
            self.until = self.unsure_until.max(now);
        } else {
            self.unheard(is_lent);
            self.until = self.until.max(self.vouched_from(now));
        }
    }

    /// The last word may have been heard, or may be later.
    pub fn may_be_heard(&mut self, is_lent: bool, now: Instant) {
        if !is_lent {
            self.unheard(is_lent);
            self.unsure_until = self.vouched_from(now);
            self.until = self.until.max(self.unsure_until);
        }
    }

    /// The last word was surely not heard.
    pub const fn unheard(&mut self, is_lent: bool) {
        if !is_lent {
            self.under_way = self.under_way.saturating_sub(1);
        }
    }

    /// From when on the holder gives slots itself; `None` while a word is under way.
    #[must_use]
    pub fn gives_from(&self) -> Option<Instant> {
        (self.under_way == 0).then_some(self.until)
    }

    /// Whether the holder gives slots itself.
    #[must_use]
    pub fn gives(&self, now: Instant) -> bool {
        self.gives_from().is_some_and(|from| now >= from)
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

    fn vouched_from(&self, now: Instant) -> Instant {
        now + self.vouched + Duration::from_millis(VOUCHED_MARGIN_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOUCHED: Duration = Duration::from_secs(6);
    const LONG: Duration = Duration::from_millis(6_000 + VOUCHED_MARGIN_MS);
    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn a_holder_gives_nothing_while_a_word_of_it_may_be_heard() {
        let now = Instant::now();
        let mut authority = SlotAuthority::new(VOUCHED, now);
        assert!(authority.gives(now), "nothing was said yet");
        authority.said(false);
        assert!(!authority.gives(now + LONG * 9), "it may be heard at any time");
        authority.unheard(false);
        assert!(authority.gives(now));
        authority.said(false);
        authority.heard(false, now);
        assert!(!authority.gives(now + LONG - SHORT));
        assert!(authority.gives(now + LONG));
        authority.said(false);
        authority.said(false);
        authority.unheard(false);
        assert!(!authority.gives(now + LONG), "there is another one");
        authority.may_be_heard(false, now + LONG);
        assert!(!authority.gives(now + LONG) && authority.gives(now + LONG * 2));
    }

    #[test]
    fn a_holder_gives_what_it_was_lent_at_once_unless_a_word_may_still_share_it() {
        let now = Instant::now();
        let mut authority = SlotAuthority::new(VOUCHED, now);
        authority.said(false);
        authority.heard(false, now);
        authority.said(true);
        assert!(!authority.gives(now), "it is not lent yet");
        authority.unheard(true);
        authority.may_be_heard(true, now);
        assert!(!authority.gives(now));
        authority.heard(true, now);
        assert!(authority.gives(now));
        authority.said(true);
        assert!(authority.gives(now), "a word that lends them again shares nothing");
        authority.said(false);
        assert!(!authority.gives(now));
        authority.may_be_heard(false, now);
        assert!(!authority.wants_them_lent(now) && authority.wants_them_lent(now + LONG));
        authority.heard(true, now);
        assert!(!authority.gives(now + LONG - SHORT), "the word before may come late");
        assert!(authority.gives(now + LONG));
    }

    #[test]
    fn slots_are_shared_for_a_while_after_anybody_wanted_them() {
        let (now, while_shared) = (Instant::now(), Duration::from_millis(SHARED_MS));
        let mut authority = SlotAuthority::new(VOUCHED, now);
        assert!(authority.wants_them_lent(now));
        authority.share(now);
        authority.share(now + SHORT);
        assert!(!authority.wants_them_lent(now + while_shared));
        assert!(authority.wants_them_lent(now + while_shared + SHORT));
    }
}
