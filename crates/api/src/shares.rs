//! What callers may take of an instance at once, all together and each: bytes of bodies that are being read and of jobs that are
//! retried, bytes of answers that wait for their readers, requests in flight, sockets, event streams, and requests to other
//! instances.
//!
//! These are counters: taking a share and giving it back are a few atomic operations. Without tokens all callers are one,
//! which may take everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actors::jobs::TokenSubmissions;
use ledger::LastTold;
use tokio::sync::Mutex;
use wire::Code;

use crate::keys_seen::KeysSeen;
use crate::limits::Limit;
use crate::refusal::Refusal;
use crate::signers_seen::SignersSeen;

/// What is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of request bodies, and of socket messages, from their reading to the request's end; of results of nodes until they
    /// are written; of attempts that nodes list when they connect, until they are known to be the nodes'; and of jobs that a
    /// retry of many has read, until they are retried.
    Reading,
    /// Bytes of answers, and of socket messages, that their receivers have not taken; and of pages that are being read: of what
    /// plans have, and of lists for tokens with patterns.
    Sending,
    /// Requests without an answer. Probes do not count, nor does what the listener for probes serves.
    Requests,
    /// Open WebSockets.
    Sockets,
    /// Event streams of one job each.
    JobStreams,
    /// Event streams of one plan each.
    PlanStreams,
    /// Event streams of all events.
    AllStreams,
    /// Requests that wait for another instance's answer.
    Forwards,
}

const KINDS: usize = 8;

/// How much of each kind is in use: by all callers, or by one token.
#[derive(Debug, Default)]
pub struct Used {
    amounts: [AtomicUsize; KINDS],
    /// The signers that the token uses.
    pub signers: SignersSeen,
    /// The idempotency keys that the token uses.
    pub keys: KeysSeen,
    /// The token's submissions that are on their way into the ledger.
    pub submissions: TokenSubmissions,
    /// The token's turn to count the jobs of a bulk operation that is to begin.
    pub bulk_count: Arc<Mutex<()>>,
    /// The token's turn for a dry run of a retry of a task.
    pub retry_dry_run: Arc<Mutex<()>>,
    /// When the log was told last that the token's requests get `overloaded`.
    pub overload_told: LastTold,
}

impl Used {
    fn take(&self, kind: Kind, amount: usize, max: usize) -> bool {
        let fits = |used: usize| used.checked_add(amount).filter(|sum| *sum <= max);
        self.amounts[kind as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give_back(&self, kind: Kind, amount: usize) {
        self.amounts[kind as usize].fetch_sub(amount, Ordering::Relaxed);
    }

    fn of(&self, kind: Kind) -> usize {
        self.amounts[kind as usize].load(Ordering::Relaxed)
    }
}

/// The limits of one instance, and what is in use.
#[derive(Debug)]
pub struct Shares {
    limits: [Limit; KINDS],
    in_all: Arc<Used>,
}

impl Shares {
    /// Nothing is in use.
    pub fn new(limit: impl Fn(Kind) -> Limit) -> Self {
        let kinds = [
            Kind::Reading,
            Kind::Sending,
            Kind::Requests,
            Kind::Sockets,
            Kind::JobStreams,
            Kind::PlanStreams,
            Kind::AllStreams,
            Kind::Forwards,
        ];
        Self { limits: kinds.map(limit), in_all: Arc::default() }
    }

    /// Takes a share for the token that has `of_token` in use; for nobody's token only the limit of all holds.
    ///
    /// # Errors
    /// The limit that is reached. Nothing is taken then.
    pub fn take(&self, kind: Kind, of_token: Option<&Arc<Used>>, amount: usize) -> Result<Share, Reached> {
        let mut share = self.none(kind, of_token);
        share.grow(amount)?;
        Ok(share)
    }

    /// A share of the same that is nothing yet.
    pub fn none(&self, kind: Kind, of_token: Option<&Arc<Used>>) -> Share {
        Share {
            kind,
            amount: 0,
            limit: self.limits[kind as usize],
            in_all: Arc::clone(&self.in_all),
            of_token: of_token.map(Arc::clone),
        }
    }

    /// How much all callers have in use.
    pub fn in_use(&self, kind: Kind) -> usize {
        self.in_all.of(kind)
    }
}

/// What one request, socket or stream has in use; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    kind: Kind,
    amount: usize,
    limit: Limit,
    in_all: Arc<Used>,
    of_token: Option<Arc<Used>>,
}

impl Share {
    /// How much it is.
    pub const fn amount(&self) -> usize {
        self.amount
    }

    /// Takes more.
    ///
    /// # Errors
    /// The limit that is reached. The share stays as it was.
    pub fn grow(&mut self, by: usize) -> Result<(), Reached> {
        let Self { kind, limit, .. } = *self;
        if let Some(used) = &self.of_token
            && !used.take(kind, by, limit.of_token)
        {
            return Err(Reached { kind, max: limit.of_token, is_of_token: true });
        }
        if !self.in_all.take(kind, by, limit.in_all) {
            if let Some(used) = &self.of_token {
                used.give_back(kind, by);
            }
            return Err(Reached { kind, max: limit.in_all, is_of_token: false });
        }
        self.amount += by;
        Ok(())
    }

    /// Takes more or gives a part back, so that it is so much.
    ///
    /// # Errors
    /// The limit that is reached. The share stays as it was.
    pub fn set(&mut self, amount: usize) -> Result<(), Reached> {
        match amount.checked_sub(self.amount) {
            Some(0) => Ok(()),
            Some(more) => self.grow(more),
            None => {
                self.shrink(self.amount - amount);
                Ok(())
            }
        }
    }

    /// Gives a part back.
    pub fn shrink(&mut self, by: usize) {
        let by = by.min(self.amount);
        self.amount -= by;
        self.in_all.give_back(self.kind, by);
        if let Some(used) = &self.of_token {
            used.give_back(self.kind, by);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    kind: Kind,
    max: usize,
    is_of_token: bool,
}

/// In at most 123 bytes, which are all that a close frame may have.
impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, max, is_of_token } = *self;
        let what = match kind {
            Kind::Reading => "bytes of bodies and retries may be in memory",
            Kind::Sending => "bytes of answers may wait for their readers",
            Kind::Requests => "requests may be in flight",
            Kind::Sockets => "sockets may be open",
            Kind::JobStreams => "event streams of jobs may be open",
            Kind::PlanStreams => "event streams of plans may be open",
            Kind::AllStreams => "streams of all events may be open",
            Kind::Forwards => "requests may wait for other instances",
        };
        let (whose, advice) = match is_of_token {
            true => ("of one token ", "send less at once"),
            false => ("", "try again, or ask another instance"),
        };
        write!(f, "{max} {what} {whose}on one instance, and they are; {advice}")
    }
}

impl From<Reached> for Refusal {
    fn from(reached: Reached) -> Self {
        Self::new(Code::Overloaded, reached.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> Shares {
        Shares::new(|_| Limit { in_all: 10, of_token: 6 })
    }

    #[test]
    fn one_token_leaves_room_for_others() {
        let (shares, one, other) = (shares(), Arc::default(), Arc::default());
        let take = |used, amount| shares.take(Kind::Reading, Some(used), amount);
        let first = take(&one, 6).unwrap();
        let refused = take(&one, 1).unwrap_err();
        assert!(refused.is_of_token && refused.to_string().contains("6 bytes"), "{refused}");
        let second = take(&other, 4).unwrap();
        assert!(!take(&other, 1).unwrap_err().is_of_token, "all of it is in use");
        drop(first);
        assert_eq!((shares.in_use(Kind::Reading), one.of(Kind::Reading)), (4, 0));
        drop((take(&other, 2).unwrap(), second));
        assert_eq!((shares.in_use(Kind::Reading), other.of(Kind::Reading)), (0, 0));
        assert!(shares.take(Kind::Sockets, Some(&one), 6).is_ok(), "each kind has a limit of its own");
    }

    #[test]
    fn a_limit_that_is_reached_is_told_in_a_close_frame() {
        use Kind::{AllStreams, Forwards, JobStreams, PlanStreams, Reading, Requests, Sending, Sockets};
        // The largest that may be configured.
        let max = 64 << 30;
        for kind in [Reading, Sending, Requests, Sockets, JobStreams, PlanStreams, AllStreams, Forwards] {
            for is_of_token in [false, true] {
                let told = Reached { kind, max, is_of_token }.to_string();
                assert!(told.len() <= 123, "{} bytes: {told}", told.len());
            }
        }
    }

    #[test]
    fn without_a_token_a_caller_may_have_everything() {
        let shares = shares();
        let all = shares.take(Kind::Sockets, None, 10).unwrap();
        assert!(shares.take(Kind::Sockets, None, 1).is_err());
        drop(all);
        assert_eq!(shares.in_use(Kind::Sockets), 0);
    }

    #[test]
    fn a_share_grows_and_shrinks_and_what_is_refused_changes_nothing() {
        let (shares, one) = (shares(), Arc::default());
        let mut share = shares.take(Kind::Sending, Some(&one), 2).unwrap();
        share.grow(4).unwrap();
        share.grow(1).unwrap_err();
        assert!(share.grow(usize::MAX).is_err(), "a sum that is no number is refused");
        assert_eq!((share.amount(), one.of(Kind::Sending)), (6, 6));
        let rest = shares.take(Kind::Sending, None, 4).unwrap();
        share.shrink(5);
        drop(rest);
        let rest = shares.take(Kind::Sending, None, 9).unwrap();
        assert!(!share.grow(1).unwrap_err().is_of_token);
        assert_eq!((one.of(Kind::Sending), shares.in_use(Kind::Sending)), (1, 10));
        drop((share, rest));
        assert_eq!((one.of(Kind::Sending), shares.in_use(Kind::Sending)), (0, 0));
    }

    #[test]
    fn a_share_is_set_to_what_is_in_use_now() {
        let (shares, one) = (shares(), Arc::default());
        let mut share = shares.none(Kind::Reading, Some(&one));
        for amount in [0, 4, 4, 6, 1] {
            share.set(amount).unwrap();
            assert_eq!((share.amount(), one.of(Kind::Reading)), (amount, amount));
        }
        share.set(7).unwrap_err();
        assert_eq!((share.amount(), shares.in_use(Kind::Reading)), (1, 1));
        share.set(0).unwrap();
        assert_eq!(shares.in_use(Kind::Reading), 0);
    }

    #[test]
    fn shares_are_never_more_than_the_limit_however_many_threads_take_them() {
        let (shares, one) = (shares(), Arc::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let share = shares.take(Kind::Requests, Some(&one), 4);
                        assert!(one.of(Kind::Requests) <= 6 && shares.in_use(Kind::Requests) <= 10);
                        drop(share);
                    }
                });
            }
        });
        assert_eq!((one.of(Kind::Requests), shares.in_use(Kind::Requests)), (0, 0));
    }
}
