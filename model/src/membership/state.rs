//! What is so at one moment: each instance's lease, what it believes of itself and of the others. What must never live
//! here: a rule of how one moment follows another.

use super::{LEASE, OwnClock, PLACES_MAX, Rules, TIMELY_MAX};

/// One of the places where a process runs; also the index of its [`Member`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(pub u8);

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// It does what is due.
    Running,
    /// It stands still; its clock does not.
    Paused,
    /// It is gone for good.
    Crashed,
}

/// The renewal under way. Ages are ticks since it was sent, [`LEASE`] at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// None.
    None,
    /// The ledger has not carried it out.
    Sent {
        /// How long ago it was sent.
        age: u8,
        /// The sender's lease had run out by its own clock when it sent it ([`super::Calm::FromSending`] only).
        after_gap: bool,
    },
    /// The ledger has, and the sender has not heard.
    Executed {
        /// How long ago it was sent.
        age: u8,
        /// As in [`Statement::Sent`].
        after_gap: bool,
        /// Whether the lease was still the sender's.
        renewed: bool,
    },
}

/// What an instance knows of another, from its last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// So many of its own renewals in a row found the other's lease unmoved; no higher than is needed.
    pub unmoved: u8,
    /// The lease had run out, or was taken.
    pub ended: bool,
    /// Not knowledge, but what the next look will find: it moved since the last one.
    pub moved: bool,
}

impl View {
    /// Of somebody never heard of.
    pub(super) const UNKNOWN: Self = Self { unmoved: 0, ended: false, moved: true };
}

/// One instance: its process, its lease in the ledger, what it believes. Times are ticks left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Whether it runs.
    pub run: Run,
    /// In the ledger: until its lease runs out.
    pub lease_left: u8,
    /// In the ledger: a survivor has its `instance:` lease.
    pub life_taken: bool,
    /// In the ledger: survivors have its keys.
    pub keys_taken: bool,
    /// Until its lease has surely not run out, by its own clock.
    pub alive_left: u8,
    /// Until it may take anything.
    pub calm_left: u8,
    /// Until what it knows of others is too old to act on.
    pub evidence_left: u8,
    /// Until its next renewal is to be sent.
    pub due_in: u8,
    /// Ticks since its last good renewal was sent, one more than [`TIMELY_MAX`] at most.
    pub since_sent: u8,
    /// Its renewal under way.
    pub statement: Statement,
    /// What it knows of each place; its own is never used.
    pub views: [View; PLACES_MAX],
    /// It has not had its turn since the ledger healed.
    pub behind: bool,
    /// Its lease ran out, by its own clock, in a stall after which not everybody has had its turn.
    pub cut_off: bool,
    /// It stood still or died since it last renewed itself: to take it for dead is no mistake.
    pub excused: bool,
    /// Ticks since it died, as long as nothing but deaths disturbed the run; one more than [`LEASE`] at most.
    pub dead_for: u8,
}

impl Member {
    /// Just joined, `instance:` lease taken in this moment.
    pub(super) const fn joined() -> Self {
        Self {
            run: Run::Running,
            lease_left: LEASE,
            life_taken: false,
            keys_taken: false,
            alive_left: LEASE,
            calm_left: LEASE,
            evidence_left: 0,
            due_in: 1,
            since_sent: 0,
            statement: Statement::None,
            views: [View::UNKNOWN; PLACES_MAX],
            behind: false,
            cut_off: false,
            excused: false,
            dead_for: 0,
        }
    }

    /// Whether batches leave it.
    #[must_use]
    pub fn writes(&self, rules: &Rules) -> bool {
        self.run == Run::Running && (self.alive_left > 0 || rules.own_clock == OwnClock::Ignored)
    }

    /// Whether its lease is live and its own.
    #[must_use]
    pub const fn lives(&self) -> bool {
        self.lease_left > 0 && !self.life_taken
    }

    /// Whether it would take from the other: what `is_dead` answers.
    #[must_use]
    pub fn calls_dead(&self, rules: &Rules, other: Place) -> bool {
        let view = &self.views[usize::from(other.0)];
        let calm = self.calm_left == 0 && (self.evidence_left > 0 || !rules.evidence_expires);
        let ended = view.ended || rules.evidence == super::Evidence::Unmoved;
        self.run == Run::Running && self.alive_left > 0 && calm && ended && view.unmoved >= rules.unmoved_min
    }

    /// Whether keys of it have run out in the ledger that it may be about to renew.
    #[must_use]
    pub const fn lapsed(&self) -> bool {
        self.lease_left == 0 && !self.life_taken
    }

    /// Whether it acquires keys that have run out, also those of a live instance: what `may_take` answers.
    #[must_use]
    pub fn may_take(&self, rules: &Rules) -> bool {
        self.writes(rules) && (self.calm_left == 0 || !rules.lapsed_waits_for_calm)
    }

    /// One tick passes.
    pub(super) fn age(&mut self, undisturbed: bool) {
        let Self { lease_left, alive_left, calm_left, evidence_left, due_in, .. } = self;
        for left in [lease_left, alive_left, calm_left, evidence_left, due_in] {
            *left = left.saturating_sub(1);
        }
        self.since_sent = (self.since_sent + 1).min(TIMELY_MAX + 1);
        if let Statement::Sent { age, .. } | Statement::Executed { age, .. } = &mut self.statement {
            *age = (*age + 1).min(LEASE);
        }
        if self.run == Run::Crashed && undisturbed {
            self.dead_for = (self.dead_for + 1).min(LEASE + 1);
        }
    }
}

/// Marks for the properties. No step depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Somebody was taken for dead who had done all that was due.
    pub theft_from_the_living: bool,
    /// The same, of a key that had run out, and by one that had been cut off itself.
    pub lapsed_taken_from_the_living: bool,
    /// A lease was taken that was live, and that the thief had not seen run out.
    pub taken_before_its_end: bool,
    /// A stall outlasted everybody's lease.
    pub everybody_ran_out: bool,
    /// Somebody came back under a new id.
    pub new_id: bool,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The instances; a [`Place`] is an index here.
    pub members: Vec<Member>,
    /// The ledger answers nobody.
    pub stalled: bool,
    /// Stalls so far.
    pub stalls: u8,
    /// Pauses so far.
    pub pauses: u8,
    /// Deaths so far.
    pub crashes: u8,
    /// Marks for the properties.
    pub seen: Seen,
}

impl State {
    /// Everybody has just joined.
    #[must_use]
    pub fn new(instances: u8) -> Self {
        Self {
            members: vec![Member::joined(); usize::from(instances)],
            stalled: false,
            stalls: 0,
            pauses: 0,
            crashes: 0,
            seen: Seen::default(),
        }
    }

    /// An instance.
    #[must_use]
    pub fn member(&self, place: Place) -> &Member {
        &self.members[usize::from(place.0)]
    }

    /// The places where processes run.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.members.len() as u8).map(Place)
    }
}
