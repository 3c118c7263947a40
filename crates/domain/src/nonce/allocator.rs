//! What the owner of a signer knows, and which nonces the next grant gets.
//!
//! The allocator is advanced as decisions are made, before they are committed. Its owner throws it
//! away when a commit was not made, or may not have been, and loads a new one from the ledger.

use std::collections::BTreeMap;

use super::{Change, Policy, PolicyPatch, Status};
use crate::id::{HoldId, Nonce};
use crate::limits::{HOLES_IN_MEMORY_MAX, NONCE_MAX};

/// A released nonce, and the hold it had last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The nonce.
    pub nonce: Nonce,
    /// Its last hold, which may still speak for it until it is granted again.
    pub hold: HoldId,
}

/// A signer as the ledger has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Its policy; `None` before the first grant or policy.
    pub policy: Option<Policy>,
    /// The highest nonce ever granted.
    pub last: Option<Nonce>,
    /// How many nonces are HELD or QUARANTINED; counted only where the policy has a window.
    pub in_flight: u64,
    /// The lowest holes, in order.
    pub holes: Vec<Hole>,
    /// Whether these are all the holes there are.
    pub holes_complete: bool,
    /// Whether its next nonce must be confirmed before any is granted.
    pub is_recovering: bool,
    /// Whether its next nonce was confirmed after a recovery: nonces below it may be on the chain, also where the ledger has
    /// none.
    pub is_confirmed: bool,
}

/// Why a grant is refused. Nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantRefusal {
    /// The signer's window has no room for that many.
    WindowFull {
        /// HELD and QUARANTINED now.
        in_flight: u64,
        /// The window.
        max_in_flight: u64,
        /// The nonces that the grant asks for.
        asked: u64,
    },
    /// Nonces beyond the highest there is.
    Exhausted {
        /// Those that may still be granted, holes among them.
        left: u64,
    },
    /// The ledger was recovered, and the signer's next nonce is not confirmed yet.
    Recovering,
}

/// Why a policy is refused: the first nonce is fixed once one was granted or confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyRefusal {
    /// Where this signer's nonces begin.
    pub first_nonce: Nonce,
}

/// One signer's nonces, as its owner decides on them.
#[derive(Clone, Debug)]
pub struct Allocator {
    known: bool,
    policy: Policy,
    /// Since the first grant or confirmation.
    is_first_fixed: bool,
    /// The lowest nonce never granted; may lie one past the highest there is.
    next: u64,
    in_flight: u64,
    /// The lowest ones, [`HOLES_IN_MEMORY_MAX`] at most.
    holes: BTreeMap<Nonce, HoldId>,
    holes_complete: bool,
    is_recovering: bool,
}

impl Allocator {
    /// Starts from what the ledger has.
    #[must_use]
    pub fn new(loaded: Loaded) -> Self {
        let known = loaded.policy.is_some();
        let policy = loaded.policy.unwrap_or_default();
        let next = loaded.last.map_or(policy.first_nonce.get(), |last| last.get() + 1);
        Self {
            known,
            is_first_fixed: loaded.last.is_some() || loaded.is_confirmed,
            next,
            in_flight: loaded.in_flight,
            holes: loaded.holes.into_iter().map(|hole| (hole.nonce, hole.hold)).collect(),
            holes_complete: loaded.holes_complete,
            is_recovering: loaded.is_recovering,
            policy,
        }
    }

    /// Whether the ledger has a row for this signer.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.known
    }

    /// Whether nothing is granted until the next nonce is confirmed.
    #[must_use]
    pub const fn is_recovering(&self) -> bool {
        self.is_recovering
    }

    /// The policy in force.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether a grant of `count` must wait until more holes were read from the ledger: the lowest
    /// hole goes first, so new nonces are not touched while unread holes may exist.
    #[must_use]
    pub fn lacks_holes_for(&self, count: usize) -> bool {
        !self.holes_complete && self.holes.len() < count
    }

    /// Takes the lowest holes as they were just read from the ledger, in place of those known so far.
    pub fn refill(&mut self, holes: Vec<Hole>, holes_complete: bool) {
        self.holes = holes.into_iter().map(|hole| (hole.nonce, hole.hold)).collect();
        self.holes_complete = holes_complete;
    }

    /// Grants one nonce per hold: holes first, lowest first, then new ones.
    ///
    /// Call [`Self::lacks_holes_for`] first.
    ///
    /// # Errors
    /// [`GrantRefusal`]; nothing is granted then.
    pub fn grant(&mut self, holds: &[HoldId], hold_ms: u64) -> Result<Vec<Change>, GrantRefusal> {
        debug_assert!(!self.lacks_holes_for(holds.len()), "a grant before the holes were read");
        if self.is_recovering {
            return Err(GrantRefusal::Recovering);
        }
        let count = holds.len() as u64;
        if let Some(max_in_flight) = self.policy.max_in_flight
            && self.in_flight.saturating_add(count) > max_in_flight
        {
            return Err(GrantRefusal::WindowFull { in_flight: self.in_flight, max_in_flight, asked: count });
        }
        let new = holds.len().saturating_sub(self.holes.len()) as u64;
        if new > 0 && Nonce::new(self.next + (new - 1)).is_err() {
            let left = self.holes.len() as u64 + (NONCE_MAX + 1).saturating_sub(self.next);
            return Err(GrantRefusal::Exhausted { left });
        }
        let changes = holds
            .iter()
            .map(|&hold| {
                let (nonce, fills) = match self.holes.pop_first() {
                    Some((nonce, last_hold)) => (nonce, Some(last_hold)),
                    None => (self.take_next(), None),
                };
                Change::Grant { nonce, hold, hold_ms, fills }
            })
            .collect();
        self.in_flight += count;
        self.is_first_fixed = true;
        self.known = true;
        Ok(changes)
    }

    fn take_next(&mut self) -> Nonce {
        let nonce = Nonce::new(self.next).expect("checked before the first nonce was taken");
        self.next += 1;
        nonce
    }

    /// Keeps holes out of the next grants that changes not yet committed speak of. [`Self::note`] follows once
    /// they are.
    pub fn withhold(&mut self, changes: &[Change]) {
        for change in changes {
            if let Change::Move { nonce, from: Status::Released, .. } = change {
                self.holes.remove(nonce);
            }
        }
    }

    /// Takes note of changes decided elsewhere: settlements, resolutions, expiries.
    pub fn note(&mut self, changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Grant { .. } => unreachable!("grants are decided here"),
                Change::Move { nonce, hold, from, to, .. } => self.moved(nonce, hold, from, to),
                Change::Expire { nonce, hold, to, .. } => self.moved(nonce, hold, Status::Held, to),
            }
        }
    }

    fn moved(&mut self, nonce: Nonce, hold: HoldId, from: Status, to: Status) {
        match (from.is_in_flight(), to.is_in_flight()) {
            (true, false) => self.in_flight = self.in_flight.saturating_sub(1),
            (false, true) => self.in_flight += 1,
            _ => {}
        }
        if from == Status::Released {
            self.holes.remove(&nonce);
        }
        if to == Status::Released {
            // Beyond the holes that were read, order is known to the ledger alone.
            let in_reach = self.holes.last_key_value().is_some_and(|(&last, _)| nonce < last);
            if self.holes_complete || in_reach {
                self.holes.insert(nonce, hold);
            }
            // The ledger keeps what does not fit. It is read again when those before it are used up.
            if self.holes.len() > HOLES_IN_MEMORY_MAX {
                self.holes.pop_last();
                self.holes_complete = false;
            }
        }
    }

    /// Changes the policy; answers the one then in force.
    ///
    /// # Errors
    /// [`PolicyRefusal`] for another first nonce after the first grant; nothing changes then.
    pub fn set_policy(&mut self, patch: &PolicyPatch) -> Result<Policy, PolicyRefusal> {
        let first_nonce = patch.first_nonce.unwrap_or(self.policy.first_nonce);
        if self.is_first_fixed && first_nonce != self.policy.first_nonce {
            return Err(PolicyRefusal { first_nonce: self.policy.first_nonce });
        }
        if !self.is_first_fixed {
            self.next = first_nonce.get();
        }
        self.policy = Policy {
            first_nonce,
            hold_ms: patch.hold_ms.or(self.policy.hold_ms),
            on_expiry: patch.on_expiry.unwrap_or(self.policy.on_expiry),
            max_in_flight: patch.max_in_flight.unwrap_or(self.policy.max_in_flight),
            shared_keys: patch.shared_keys.unwrap_or(self.policy.shared_keys),
        };
        self.known = true;
        Ok(self.policy.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nonce::OnExpiry;

    fn nonce(number: u64) -> Nonce {
        Nonce::new(number).unwrap()
    }

    fn hole(number: u64) -> Hole {
        Hole { nonce: nonce(number), hold: HoldId::from_u128(u128::from(number) + 1_000) }
    }

    fn holds(count: u128) -> Vec<HoldId> {
        (0..count).map(HoldId::from_u128).collect()
    }

    fn granted(changes: &[Change]) -> Vec<u64> {
        changes.iter().map(|change| change.nonce().get()).collect()
    }

    #[test]
    fn holes_go_first_and_lowest_first() {
        let mut signer = Allocator::new(Loaded {
            policy: Some(Policy::default()),
            last: Some(nonce(9)),
            in_flight: 0,
            holes: vec![hole(2), hole(5)],
            holes_complete: true,
            is_recovering: false,
            is_confirmed: false,
        });
        let changes = signer.grant(&holds(4), 1_000).unwrap();
        assert_eq!(granted(&changes), [2, 5, 10, 11]);
        assert!(matches!(changes[0], Change::Grant { fills: Some(hold), .. } if hold == hole(2).hold));
        assert!(matches!(changes[2], Change::Grant { fills: None, .. }));
    }

    #[test]
    fn new_nonces_wait_while_unread_holes_may_exist() {
        let mut signer = Allocator::new(Loaded {
            policy: Some(Policy::default()),
            last: Some(nonce(9)),
            in_flight: 0,
            holes: vec![hole(2), hole(5)],
            holes_complete: false,
            is_recovering: false,
            is_confirmed: false,
        });
        assert!(signer.lacks_holes_for(3));
        assert!(!signer.lacks_holes_for(2));
        // A release beyond the holes that were read must not jump the queue; one below is known.
        let release = |number| Change::Expire {
            nonce: nonce(number),
            hold: HoldId::from_u128(0),
            early_ms: 0,
            to: Status::Released,
        };
        signer.note(&[release(8)]);
        assert!(signer.lacks_holes_for(3));
        signer.note(&[release(3)]);
        assert_eq!(granted(&signer.grant(&holds(3), 1).unwrap()), [2, 3, 5]);
        signer.note(&[release(1)]);
        assert!(signer.lacks_holes_for(1), "with none read, none can be placed");
        signer.refill(vec![hole(1), hole(8)], true);
        assert_eq!(granted(&signer.grant(&holds(3), 1).unwrap()), [1, 8, 10]);
    }

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) % end as u64) as usize
        }
    }

    /// Grants, releases and late words in any order, beside a ledger that keeps all holes.
    fn run_with_many_holes(seed: u64) -> usize {
        let mut random = Random(seed);
        let mut signer = Allocator::new(Loaded { holes_complete: true, ..Loaded::default() });
        let (mut held, mut all_holes, mut next, mut most) = (Vec::new(), BTreeMap::new(), 0, 0);
        for step in 0..200 {
            let count = 1 + random.below(1_000);
            match random.below(5) {
                0..2 => {
                    if signer.lacks_holes_for(count) {
                        let lowest = all_holes.iter().take(HOLES_IN_MEMORY_MAX);
                        let lowest = lowest.map(|(&nonce, &hold)| Hole { nonce, hold }).collect();
                        signer.refill(lowest, all_holes.len() <= HOLES_IN_MEMORY_MAX);
                    }
                    let holds: Vec<_> =
                        (0..count).map(|at| HoldId::from_u128((step << 32) + at as u128)).collect();
                    for change in signer.grant(&holds, 1).unwrap() {
                        let Change::Grant { nonce, hold, fills, .. } = change else { panic!("{change:?}") };
                        let lowest = all_holes.pop_first();
                        assert_eq!(fills, lowest.map(|(_, hold)| hold), "seed {seed}");
                        let expected = lowest.map_or(next, |(nonce, _)| nonce.get());
                        assert_eq!(
                            nonce.get(),
                            expected,
                            "seed {seed}: the lowest hole first, then the next new one"
                        );
                        next = next.max(nonce.get() + 1);
                        held.push((nonce, hold));
                    }
                }
                2..4 => {
                    let count = count.min(held.len());
                    let released = (0..count).map(|_| {
                        let (nonce, hold) = held.swap_remove(random.below(held.len()));
                        all_holes.insert(nonce, hold);
                        Change::Expire { nonce, hold, early_ms: 0, to: Status::Released }
                    });
                    let released: Vec<_> = released.collect();
                    signer.note(&released);
                }
                _ if !all_holes.is_empty() => {
                    let at = random.below(all_holes.len());
                    let (&nonce, &hold) = all_holes.iter().nth(at).unwrap();
                    all_holes.remove(&nonce);
                    let (from, to) = (Status::Released, Status::Consumed);
                    let late = [Change::Move { nonce, hold, from, to, tx_hash: None }];
                    signer.withhold(&late);
                    signer.note(&late);
                }
                _ => {}
            }
            assert!(
                signer.holes.len() <= HOLES_IN_MEMORY_MAX,
                "seed {seed}: {} holes in memory",
                signer.holes.len()
            );
            most = most.max(all_holes.len());
        }
        most
    }

    #[test]
    fn holes_in_memory_are_bounded_and_all_holes_are_granted_lowest_first() {
        let most = (0..30).map(run_with_many_holes).max();
        assert!(most > Some(HOLES_IN_MEMORY_MAX), "{most:?} holes at most: too few to test anything");
    }

    #[test]
    fn the_window_counts_held_and_quarantined_and_grants_all_or_nothing() {
        let policy = Policy { max_in_flight: Some(3), ..Policy::default() };
        let mut signer =
            Allocator::new(Loaded { policy: Some(policy), holes_complete: true, ..Loaded::default() });
        let first = signer.grant(&holds(2), 1).unwrap();
        let full = Err(GrantRefusal::WindowFull { in_flight: 2, max_in_flight: 3, asked: 2 });
        assert_eq!(signer.grant(&holds(2), 1), full);
        let quarantine = |change: &Change| Change::Move {
            nonce: change.nonce(),
            hold: HoldId::from_u128(0),
            from: Status::Held,
            to: Status::Quarantined,
            tx_hash: None,
        };
        signer.note(&[quarantine(&first[0])]);
        assert_eq!(signer.grant(&holds(2), 1), full);
        signer.note(&[Change::Expire {
            nonce: nonce(1),
            hold: HoldId::from_u128(1),
            early_ms: 0,
            to: Status::Released,
        }]);
        assert_eq!(granted(&signer.grant(&holds(2), 1).unwrap()), [1, 2]);
    }

    #[test]
    fn the_last_nonce_is_granted_and_none_after_it() {
        let policy = Policy { first_nonce: nonce(NONCE_MAX - 1), ..Policy::default() };
        let mut signer =
            Allocator::new(Loaded { policy: Some(policy), holes_complete: true, ..Loaded::default() });
        assert_eq!(signer.grant(&holds(3), 1), Err(GrantRefusal::Exhausted { left: 2 }));
        assert_eq!(granted(&signer.grant(&holds(2), 1).unwrap()), [NONCE_MAX - 1, NONCE_MAX]);
        assert_eq!(signer.grant(&holds(1), 1), Err(GrantRefusal::Exhausted { left: 0 }));
    }

    #[test]
    fn the_first_nonce_is_fixed_by_a_confirmation() {
        let policy = Policy { first_nonce: nonce(5), ..Policy::default() };
        let loaded =
            Loaded { policy: Some(policy), holes_complete: true, is_confirmed: true, ..Loaded::default() };
        let mut signer = Allocator::new(loaded);
        let older = PolicyPatch { first_nonce: Some(nonce(0)), ..PolicyPatch::default() };
        assert_eq!(signer.set_policy(&older), Err(PolicyRefusal { first_nonce: nonce(5) }));
        assert_eq!(granted(&signer.grant(&holds(1), 1).unwrap()), [5]);
    }

    #[test]
    fn the_first_nonce_is_fixed_by_the_first_grant_and_the_rest_of_the_policy_is_not() {
        let mut signer = Allocator::new(Loaded { holes_complete: true, ..Loaded::default() });
        let patch = PolicyPatch { first_nonce: Some(nonce(40)), ..PolicyPatch::default() };
        signer.set_policy(&patch).unwrap();
        assert_eq!(granted(&signer.grant(&holds(1), 1).unwrap()), [40]);
        signer.set_policy(&patch).expect("the same again is no change");
        let other = PolicyPatch { first_nonce: Some(nonce(0)), ..PolicyPatch::default() };
        assert_eq!(signer.set_policy(&other), Err(PolicyRefusal { first_nonce: nonce(40) }));
        let rest = PolicyPatch {
            on_expiry: Some(OnExpiry::Quarantine),
            max_in_flight: Some(Some(5)),
            ..PolicyPatch::default()
        };
        signer.set_policy(&rest).unwrap();
        let open = PolicyPatch { max_in_flight: Some(None), ..PolicyPatch::default() };
        let policy = signer.set_policy(&open).unwrap();
        assert_eq!((policy.on_expiry, policy.max_in_flight), (OnExpiry::Quarantine, None));
        assert_eq!(granted(&signer.grant(&holds(1), 1).unwrap()), [41]);
    }
}
