//! Who gives slots when, and what is evidence, one field for each condition. What must never live here: the steps
//! themselves, and the traps that open when a condition is left out.

/// The conditions of lending. [`Rules::sound`] is how they are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether a word that has the bus lend the slots ends what an earlier one vouched for.
    pub lending_ends_vouching: bool,
    /// Whether the holder gives nothing from the sending of a word that shares the slots.
    pub sharing_stops_giving: bool,
    /// Whether a word that shares the slots lists what the holder gave.
    pub sharing_lists: bool,
    /// Whether the next word that shares the slots lists them, too, if a list was sent of which the holder has not heard.
    pub unheard_lists_count: bool,
    /// Whether what was reserved at the bus is not sent while a list is on its way by which the bus gives the slots.
    pub sending_waits_for_lists: bool,
    /// Whether a word that lands after a later one changes nothing.
    pub late_words_are_ignored: bool,
    /// From when on a word vouches.
    pub vouched_from: VouchedFrom,
    /// Whether the holder sends nothing on a slot that it gave too long ago.
    pub given_slots_end: bool,
    /// How long an attempt must have been known when a list was made that lacks it, in ticks, to be taken for lost.
    pub known_for_min: u8,
    /// Whether an attempt that is known to be sent must have been sent when that list was made; it need not have been known for
    /// any time then.
    pub sent_before_the_list: bool,
    /// How long an attempt must have been known, in ticks, to be taken for lost where the bus gives the slots. Nothing here
    /// needs this time: it is for a bus that came back with an older record, which this model leaves out.
    pub shared_known_for_min: u8,
}

/// From when on a word vouches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VouchedFrom {
    /// From when it was sent, however late it lands.
    Sending,
    /// From when it lands.
    Landing,
}

impl Rules {
    /// The conditions as they are built.
    #[must_use]
    pub const fn sound() -> Self {
        Self {
            lending_ends_vouching: true,
            sharing_stops_giving: true,
            sharing_lists: true,
            unheard_lists_count: true,
            sending_waits_for_lists: true,
            late_words_are_ignored: true,
            vouched_from: VouchedFrom::Sending,
            given_slots_end: true,
            known_for_min: super::RESERVATION,
            sent_before_the_list: true,
            shared_known_for_min: super::VOUCHED,
        }
    }
}
