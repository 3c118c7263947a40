//! What is so at one moment: the record at the bus, what its holder gave, what is on its way. What must never live here: a
//! rule of how one moment follows another.

use super::RESERVATION;

/// An attempt; also the index of its [`Attempt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u8);

/// One attempt. Times are ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The holder gave it a slot, which still waits so long for its dispatch.
    pub given: Option<u8>,
    /// Its slot in the record.
    pub at_bus: AtBus,
    /// A slot was given or reserved for it.
    pub has_begun: bool,
    /// It was committed so long ago; [`RESERVATION`] at most, and always that once it is over.
    pub known_for: Option<u8>,
    /// Its dispatch was taken up.
    pub is_taken_up: bool,
    /// The node has it.
    pub is_with_node: bool,
    /// It was sent on a slot whose time was over.
    pub was_sent_late: bool,
    /// The node has run it.
    pub is_over: bool,
    /// The owner of its lane took it for lost.
    pub is_judged: bool,
}

/// A slot in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AtBus {
    /// None.
    #[default]
    None,
    /// Reserved, for so long.
    Reserved(u8),
    /// Sent, or listed by the holder.
    Sent,
}

impl Attempt {
    /// Whether it takes a slot, as the holder knows.
    #[must_use]
    pub const fn is_taken(&self) -> bool {
        self.given.is_some() || self.is_with_node
    }

    /// For how long a list that is made now says that it was known. What was sent counts as known for as long as is ever
    /// needed.
    pub(super) const fn known_when_listed(&self) -> Option<u8> {
        if self.is_with_node { Some(RESERVATION) } else { self.known_for }
    }

    /// One tick passes.
    pub(super) fn age(&mut self) {
        if let Some(left) = &mut self.given {
            *left = left.saturating_sub(1);
        }
        if let AtBus::Reserved(left) = &mut self.at_bus {
            *left -= 1;
            if *left == 0 {
                self.at_bus = AtBus::None;
            }
        }
        if let Some(ticks) = &mut self.known_for {
            *ticks = (*ticks + 1).min(RESERVATION);
        }
    }
}

/// The node's record at the bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Until nobody vouches for it, in ticks.
    pub vouched: u8,
    /// For how long each attempt had been known when the holder, while the slots are lent to it, listed them last; see
    /// `Attempt::known_when_listed`.
    pub listed: Option<Vec<Option<u8>>>,
    /// The number of the last word that landed.
    pub word: u8,
}

/// A word of the holder on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    /// Which.
    pub number: u8,
    /// Whether it has the bus lend the slots.
    pub lends: bool,
    /// What is taken, if it says so.
    pub taken: Option<Vec<bool>>,
    /// For how long each attempt had been known when this word was sent, in the same way.
    pub known_for: Vec<Option<u8>>,
    /// What it vouches for from now on, if it vouches from its sending.
    pub vouches: u8,
    /// Whether the bus has carried it out.
    pub has_landed: bool,
    /// Whether the holder still waits for it.
    pub is_awaited: bool,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The attempts; an [`Id`] is an index here.
    pub attempts: Vec<Attempt>,
    /// The record.
    pub record: Record,
    /// Words on their way.
    pub words: Vec<Word>,
    /// Until the holder gives slots, in ticks, unless a word that shares them is under way.
    pub until: u8,
    /// Another instance has wanted slots a short while ago.
    pub is_wanted: bool,
    /// The holder gave slots that the record does not list, or has sent a list and not heard of it.
    pub is_ahead: bool,
    /// Words sent.
    pub said: u8,
    /// Words that the holder did not hear of.
    pub unheard: u8,
    /// Another instance has reserved a slot after the holder gave some.
    pub was_shared: bool,
}

impl State {
    /// Connected, and nothing said yet: the bus knows of no slot, and nobody vouches.
    #[must_use]
    pub fn new(attempts: u8) -> Self {
        Self {
            attempts: vec![Attempt::default(); usize::from(attempts)],
            record: Record::default(),
            words: Vec::new(),
            until: 0,
            is_wanted: false,
            is_ahead: false,
            said: 0,
            unheard: 0,
            was_shared: false,
        }
    }

    /// All attempts.
    pub fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        (0..self.attempts.len() as u8).map(Id)
    }

    /// An attempt.
    #[must_use]
    pub fn attempt(&self, id: Id) -> &Attempt {
        &self.attempts[usize::from(id.0)]
    }

    /// Whether a lane may reserve slots at the bus.
    #[must_use]
    pub const fn bus_gives(&self) -> bool {
        self.record.vouched > 0
    }

    /// Whether the holder gives slots, if a word under way that shares them stops it.
    #[must_use]
    pub fn holder_gives(&self, sharing_stops: bool) -> bool {
        let is_sharing = self.words.iter().any(|word| word.is_awaited && !word.lends);
        self.until == 0 && !(sharing_stops && is_sharing)
    }
}
