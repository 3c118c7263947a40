//! Which ledger it is, and whether it went back in time.
//!
//! A restored backup, a failover to a replica that lagged, or a file that was put back would repeat nonces, ids and tokens.
//! So the ledger has an identity and a position that its instances raise a few times a second. A process remembers the
//! highest that it saw, in memory and beside its data; a ledger with a lower one, or another ledger, went back. On PostgreSQL
//! every statement that grants something compares the two as well (the view `ledger_current`), so nothing is granted between two
//! looks. [`crate::recover`] raises the position past every one that can have been seen.
//!
//! The position alone would miss a failover that lost less than the time between two looks. So a process also remembers
//! which PostgreSQL server it was: its system identifier, its timeline, and whether its commits waited for a standby. A
//! standby that becomes the primary begins another timeline, and every connection to the old primary ends. Each new
//! connection asks which server it reached ([`Remembered::expects`]), and is closed if that is another one than the last look
//! accepted. [`Reason::of`] says which other one a look accepts; then those that were opened before are closed
//! ([`Remembered::keeps`]), since an old primary may live on, and a proxy may keep what leads to it.
//!
//! That commits waited for a standby does not say that it was this one, nor that they waited to their end: an operator may have
//! cancelled the wait, after which PostgreSQL answers as if it were over. So a process keeps the numbers of the transactions
//! that it was answered since the last look ([`Remembered::answered`]), and asks a server of another timeline whether it has
//! committed each of them. A server gives the numbers that it has not seen to transactions of its own; so a number counts only if
//! the server has replayed something of that transaction ([`Mark`]). What was answered before a look stands in the log before the
//! look's own transaction. An old primary may also answer after a look has accepted the new one, which the next look asks then.
//! Where there were too many to be kept, nobody can tell whether such a server has all of them: it counts as one that lacks some.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// A rise of the position by more than this is a recovery: looks would take years for it.
const RECOVERED_BY: i64 = 1 << 31;

/// A new connection has reached the server that was accepted at most so long before it counts as open.
const OPENED_WITHIN: Duration = Duration::from_millis(50);

/// Marks that are kept at most, beside one for each timeline of those that were not kept.
const MARKS_MAX: usize = 100_000;

/// Which ledger it is, and how far it has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The ledger, as long as its tables are.
    pub cluster: String,
    /// Rises with every look of an instance.
    pub position: i64,
    /// The PostgreSQL server, if it tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Server>,
}

impl Identity {
    /// Whether the ledger was recovered between that earlier look and this one.
    #[must_use]
    pub const fn is_recovered_since(&self, known: &Self) -> bool {
        self.position.saturating_sub(known.position) > RECOVERED_BY
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ledger {} at position {}", self.cluster, self.position)?;
        let Some(server) = &self.server else { return Ok(()) };
        write!(f, ", on server {}, timeline {}, log {}", server.system, server.timeline, server.written)
    }
}

/// Which PostgreSQL server it is, and how far it has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Its system identifier: the same on all copies of its files.
    pub system: String,
    /// Rises when a standby becomes the primary.
    pub timeline: i64,
    /// Where its log had got before the position was raised: a byte's number.
    pub written: i64,
    /// Whether its commits wait for a standby.
    pub is_synchronous: bool,
}

/// What a look at the ledger's identity has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The ledger is the one that was known, and as far at least. Its position was raised.
    Current(Identity),
    /// It is behind what was known, or may be, or is another one.
    WentBack(Identity, Reason),
}

/// Why a ledger counts as gone back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its tables are another ledger's.
    OtherLedger,
    /// Its position is lower than the one known.
    Position,
    /// This look or an earlier one has seen that another SQLite file has the name of the open one, or of its log, or none has.
    /// What the look has found is of the open one.
    OtherFile,
    /// PostgreSQL's system identifier is another.
    OtherServer,
    /// The same server, and its log is shorter than it was.
    ShorterLog,
    /// A standby took over that no commit had waited for.
    AsynchronousFailover,
    /// A standby took over that had less of the log than was committed, or lacks what the old primary has answered since.
    LostCommits,
    /// The timeline is an earlier one: that of an old primary that lives on, or of a restored copy. Nothing is known of the
    /// accepted server.
    EarlierTimeline,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherLedger => "it is another ledger",
            Self::Position => "its position is lower",
            Self::OtherFile => "its file or its log was moved or replaced",
            Self::OtherServer => "PostgreSQL's system identifier is another",
            Self::ShorterLog => "PostgreSQL's log is shorter",
            Self::AsynchronousFailover => "a standby took over that no commit had waited for",
            Self::LostCommits => "a standby took over that lacked commits",
            Self::EarlierTimeline => "PostgreSQL's timeline is an earlier one",
        })
    }
}

/// What a server has of what was written before it became the primary.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replayed {
    /// Where it stopped to replay, if it tells.
    pub(crate) to: Option<i64>,
    /// It lacks a transaction that this process was answered.
    pub(crate) lacks_answered: bool,
}

impl Reason {
    /// Why a ledger that is `found` counts as gone back for a process that knew another state of it; `None` if it does
    /// not. `ended` says what its server has replayed, if it tells.
    pub(crate) fn of(known: &Identity, found: &Identity, ended: Option<Replayed>) -> Option<Self> {
        if known.cluster != found.cluster {
            return Some(Self::OtherLedger);
        }
        // An operator has recovered it, on whatever server.
        if found.is_recovered_since(known) {
            return None;
        }
        let of_server = match (&known.server, &found.server) {
            (Some(before), Some(now)) => Self::of_server(before, now, ended.unwrap_or_default()),
            _ => None,
        };
        of_server.or_else(|| (found.position < known.position).then_some(Self::Position))
    }

    fn of_server(before: &Server, now: &Server, ended: Replayed) -> Option<Self> {
        if before.system != now.system {
            return Some(Self::OtherServer);
        }
        if now.timeline < before.timeline {
            return Some(Self::EarlierTimeline);
        }
        let is_other = now.timeline > before.timeline;
        if !is_other && now.written < before.written {
            return Some(Self::ShorterLog);
        }
        if is_other && !before.is_synchronous {
            return Some(Self::AsynchronousFailover);
        }
        let is_short = is_other && ended.to.is_some_and(|to| to < before.written);
        (is_short || ended.lacks_answered).then_some(Self::LostCommits)
    }
}

/// A transaction of PostgreSQL's that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    /// The timeline of its server.
    pub(crate) timeline: i64,
    /// Its number.
    pub(crate) xid: i64,
    /// A place in the log behind something that it wrote, and before its commit: a byte's number.
    pub(crate) place: i64,
}

impl Mark {
    /// Stands for the transactions of a timeline's server whose marks were not kept. No server has come as far.
    const fn of_forgotten(timeline: i64) -> Self {
        Self { timeline, xid: i64::MAX, place: i64::MAX }
    }
}

/// What this process has seen of the ledger. All clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remembered(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// The highest position.
    position: AtomicI64,
    accepted: Mutex<Accepted>,
    /// The last look has failed, or has found the ledger behind.
    is_doubted: AtomicBool,
    /// It was said that the server does not tell who it is.
    is_told: AtomicBool,
    answered: Mutex<Answered>,
}

/// Transactions that this process was answered as committed.
#[derive(Debug, Default)]
struct Answered {
    /// How many looks have begun.
    looks: u64,
    /// Each with how many looks had begun when it was answered.
    marks: HashMap<Mark, u64>,
    /// Where the ledger was recovered, this timeline: those of earlier ones are not kept.
    recovered_on: i64,
}

#[derive(Debug, Default)]
struct Accepted {
    /// The system identifier and timeline of the server.
    server: Option<(String, i64)>,
    /// When it was accepted first.
    since: Option<Instant>,
}

impl Remembered {
    /// The position; 0 before the first look.
    pub(crate) fn position(&self) -> i64 {
        self.0.position.load(Ordering::Acquire)
    }

    /// Notes a position. A lower one changes nothing.
    pub(crate) fn saw(&self, position: i64) {
        self.0.position.fetch_max(position, Ordering::AcqRel);
    }

    /// Notes the server that a look accepted, or that the look's process knew.
    pub(crate) fn accepts(&self, server: Option<&Server>) {
        let Some(server) = server else { return };
        let (server, mut accepted) = (Some((server.system.clone(), server.timeline)), self.0.accepted.lock());
        if accepted.server != server {
            *accepted = Accepted { server, since: Some(Instant::now()) };
        }
    }

    /// Notes whether a look has failed, or has found the ledger behind.
    pub(crate) fn looked(&self, is_doubted: bool) {
        self.0.is_doubted.store(is_doubted, Ordering::Release);
    }

    /// Whether there is a server that a connection must reach.
    pub(crate) fn expects(&self) -> bool {
        self.0.accepted.lock().server.is_some()
    }

    /// Whether a connection that has been open for so long was opened to the accepted server.
    pub(crate) fn keeps(&self, age: Duration) -> bool {
        self.0.accepted.lock().since.is_none_or(|since| age + OPENED_WITHIN < since.elapsed())
    }

    /// Whether the next look may go by a connection of the last one. It may not where that has failed, or has found the ledger
    /// behind: the connection may lead to an old primary. There a commit that waits for a standby keeps the ledger's row, so that
    /// each look of another instance would be told again that the row is locked.
    pub(crate) fn keeps_look(&self) -> bool {
        !self.0.is_doubted.load(Ordering::Acquire)
    }

    /// Whether this is that server.
    pub(crate) fn is_accepted(&self, system: &str, timeline: Option<i64>) -> bool {
        let accepted = self.0.accepted.lock();
        accepted.server.as_ref().is_none_or(|(known, on)| known == system && Some(*on) == timeline)
    }

    /// Notes that a transaction was answered as committed, if it has a mark. `earlier` is one that was answered before this one
    /// began: the later one of the same server stands for both, since the log has them in that order. Without a server to compare
    /// with, nothing is noted.
    pub(crate) fn answered(&self, mark: Option<Mark>, earlier: Option<Mark>) {
        let Some(mark) = mark.filter(|_| self.expects()) else { return };
        let mut answered = self.0.answered.lock();
        if mark.timeline < answered.recovered_on {
            return;
        }
        if let Some(earlier) = earlier.filter(|earlier| earlier.timeline == mark.timeline) {
            answered.marks.remove(&earlier);
        }
        let looks = answered.looks;
        if answered.marks.len() >= MARKS_MAX {
            // No look has gone well for long.
            let timelines: HashSet<_> = answered.marks.drain().map(|(mark, _)| mark.timeline).collect();
            let forgotten = timelines.into_iter().map(|timeline| (Mark::of_forgotten(timeline), looks));
            answered.marks.extend(forgotten);
        }
        answered.marks.insert(mark, looks);
    }

    /// Begins a look; answers its number.
    pub(crate) fn begins_look(&self) -> u64 {
        let mut answered = self.0.answered.lock();
        answered.looks += 1;
        answered.looks
    }

    /// Which transactions a server of this timeline must have: those that servers of earlier ones have answered, also one that
    /// was not the accepted one any more by then.
    pub(crate) fn must_have(&self, timeline: i64) -> Vec<Mark> {
        let answered = self.0.answered.lock();
        answered.marks.keys().filter(|mark| mark.timeline < timeline).copied().collect()
    }

    /// Ends the look of this number, which has raised the position: the raise is in the log behind all that was answered before
    /// the look began. A server that lacks the raise has a lower position.
    pub(crate) fn raised(&self, look: u64) {
        self.0.answered.lock().marks.retain(|_, looks| *looks >= look);
    }

    /// Notes that the ledger was recovered, on this timeline: what servers of earlier ones have answered is skipped there.
    pub(crate) fn recovered(&self, timeline: i64) {
        let mut answered = self.0.answered.lock();
        answered.recovered_on = timeline;
        answered.marks.retain(|mark, _| mark.timeline >= timeline);
    }

    /// Whether nobody was told yet that the server does not say who it is.
    pub(crate) fn is_news(&self) -> bool {
        !self.0.is_told.swap(true, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(timeline: i64, written: i64, is_synchronous: bool) -> Server {
        Server { system: "7".to_owned(), timeline, written, is_synchronous }
    }

    fn identity(position: i64, server: Option<Server>) -> Identity {
        Identity { cluster: "c".to_owned(), position, server }
    }

    #[test]
    fn a_ledger_went_back_if_it_may_lack_what_was_answered() {
        let known = |is_synchronous| identity(100, Some(server(1, 5_000, is_synchronous)));
        let other = Server { system: "8".to_owned(), ..server(1, 5_000, true) };
        let recovered =
            identity(100 + (1 << 32), Some(Server { system: "8".to_owned(), ..server(1, 9, false) }));
        let table = [
            ("the same", known(false), identity(100, Some(server(1, 5_000, false))), None, None),
            ("further", known(false), identity(140, Some(server(1, 6_000, false))), None, None),
            ("restarted", known(false), identity(100, Some(server(1, 5_000, false))), Some(5_000), None),
            ("a lower position", known(true), identity(99, None), None, Some(Reason::Position)),
            ("another server", known(true), identity(100, Some(other)), None, Some(Reason::OtherServer)),
            (
                "a copy",
                known(true),
                identity(100, Some(server(1, 4_999, true))),
                None,
                Some(Reason::ShorterLog),
            ),
            (
                "an asynchronous standby",
                known(false),
                identity(101, Some(server(2, 9_000, false))),
                Some(9_000),
                Some(Reason::AsynchronousFailover),
            ),
            (
                "a synchronous standby",
                known(true),
                identity(100, Some(server(2, 5_200, false))),
                Some(5_000),
                None,
            ),
            (
                "one that was restarted since",
                known(true),
                identity(100, Some(server(2, 5_200, true))),
                None,
                None,
            ),
            (
                "another standby than the synchronous one",
                known(true),
                identity(100, Some(server(2, 5_200, true))),
                Some(4_999),
                Some(Reason::LostCommits),
            ),
            (
                "the old primary",
                identity(100, Some(server(2, 5_000, true))),
                identity(100, Some(server(1, 5_000, true))),
                None,
                Some(Reason::EarlierTimeline),
            ),
            ("a recovered one", known(false), recovered, Some(0), None),
            ("a server that tells nothing", known(true), identity(100, None), None, None),
            ("one that told nothing", identity(100, None), known(true), None, None),
        ];
        for (what, known, found, to, expected) in table {
            let ended = to.map(|to| Replayed { to: Some(to), lacks_answered: false });
            assert_eq!(Reason::of(&known, &found, ended), expected, "{what}");
        }
        let lacks = |to| Some(Replayed { to, lacks_answered: true });
        let promoted = identity(101, Some(server(2, 9_000, true)));
        for to in [None, Some(9_000)] {
            assert_eq!(Reason::of(&known(true), &promoted, lacks(to)), Some(Reason::LostCommits), "{to:?}");
        }
        let same = identity(101, Some(server(1, 5_000, true)));
        assert_eq!(
            Reason::of(&known(true), &same, lacks(Some(4_000))),
            Some(Reason::LostCommits),
            "it was late"
        );
        let elsewhere = Identity { cluster: "d".to_owned(), ..identity(200, None) };
        assert_eq!(Reason::of(&known(true), &elsewhere, None), Some(Reason::OtherLedger));
    }

    #[test]
    fn a_file_from_before_the_server_was_remembered_is_read() {
        let old: Identity = serde_json::from_str(r#"{"cluster":"c","position":100}"#).unwrap();
        assert_eq!(old, identity(100, None));
        let new = identity(100, Some(server(3, 9, true)));
        let text = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<Identity>(&text).unwrap(), new);
    }

    /// Of the first timeline.
    const fn mark(xid: i64) -> Option<Mark> {
        Some(Mark { timeline: 1, xid, place: 0 })
    }

    fn must_have(remembered: &Remembered, timeline: i64) -> Vec<i64> {
        let mut numbers: Vec<_> = remembered.must_have(timeline).iter().map(|mark| mark.xid).collect();
        numbers.sort_unstable();
        numbers
    }

    const NONE: [i64; 0] = [];

    #[test]
    fn another_server_must_have_what_was_answered_since_the_last_raise() {
        let remembered = Remembered::default();
        remembered.answered(mark(1), None);
        remembered.accepts(Some(&server(1, 0, true)));
        assert_eq!(must_have(&remembered, 2), NONE, "nothing was known to compare with");
        remembered.answered(mark(2), None);
        remembered.answered(None, mark(2));
        assert_eq!(must_have(&remembered, 1), NONE);
        assert_eq!(must_have(&remembered, 2), [2]);
        let look = remembered.begins_look();
        // While the look goes on.
        remembered.answered(mark(3), None);
        remembered.answered(mark(4), None);
        remembered.raised(look);
        assert_eq!(must_have(&remembered, 2), [3, 4]);
        // A look that comes to nothing.
        remembered.begins_look();
        remembered.answered(mark(5), mark(3));
        assert_eq!(must_have(&remembered, 2), [4, 5]);
        let look = remembered.begins_look();
        remembered.raised(look);
        assert_eq!(must_have(&remembered, 2), NONE);
    }

    #[test]
    fn a_look_that_nobody_waits_for_any_more_takes_no_mark_away() {
        let remembered = Remembered::default();
        remembered.accepts(Some(&server(1, 0, true)));
        remembered.begins_look();
        let look = remembered.begins_look();
        // Behind the raise of the second look.
        remembered.answered(mark(1), None);
        // The first one comes to its server.
        assert_eq!(must_have(&remembered, 1), NONE);
        remembered.raised(look);
        assert_eq!(must_have(&remembered, 2), [1]);
    }

    #[test]
    fn another_server_lacks_some_of_what_was_answered_where_that_was_too_much_to_be_kept() {
        let remembered = Remembered::default();
        remembered.accepts(Some(&server(1, 0, true)));
        (0..=MARKS_MAX as i64).for_each(|xid| remembered.answered(mark(xid), None));
        let kept = remembered.must_have(2);
        assert_eq!(kept.len(), 2, "it is bounded");
        assert!(kept.contains(&Mark::of_forgotten(1)), "no server has that");
        assert_eq!(must_have(&remembered, 1), NONE, "the same server has all");
        // A look that comes to nothing, and one that goes well.
        remembered.begins_look();
        assert_eq!(remembered.must_have(2).len(), 2);
        let look = remembered.begins_look();
        remembered.raised(look);
        assert_eq!(must_have(&remembered, 2), NONE);
    }

    #[test]
    fn what_an_old_primary_answers_late_is_asked_of_the_new_one_unless_that_was_recovered() {
        let of_new = Some(Mark { timeline: 2, xid: 7, place: 0 });
        for is_recovered in [false, true] {
            let remembered = Remembered::default();
            remembered.accepts(Some(&server(1, 0, true)));
            let look = remembered.begins_look();
            remembered.answered(mark(1), None);
            remembered.accepts(Some(&server(2, 0, true)));
            if is_recovered {
                remembered.recovered(2);
            }
            remembered.raised(look);
            remembered.answered(mark(2), mark(1));
            remembered.answered(of_new, mark(2));
            assert_eq!(must_have(&remembered, 2).is_empty(), is_recovered);
            assert_eq!(
                must_have(&remembered, 3).contains(&2),
                !is_recovered,
                "no other server stands for it"
            );
            assert!(must_have(&remembered, 3).contains(&7));
        }
    }

    #[test]
    fn connections_reach_the_accepted_server_or_none() {
        let remembered = Remembered::default();
        assert!(!remembered.expects() && remembered.is_accepted("7", Some(1)));
        remembered.accepts(Some(&server(1, 0, false)));
        assert!(remembered.expects() && remembered.is_accepted("7", Some(1)));
        for (system, timeline) in [("7", Some(2)), ("8", Some(1)), ("7", None)] {
            assert!(!remembered.is_accepted(system, timeline), "{system} {timeline:?}");
        }
        remembered.accepts(Some(&server(2, 0, false)));
        assert!(remembered.is_accepted("7", Some(2)));
    }

    #[test]
    fn connections_from_before_a_server_was_accepted_are_not_kept() {
        let (remembered, old) = (Remembered::default(), Duration::from_secs(60));
        assert!(remembered.keeps(old), "none was accepted");
        for timeline in [1, 2] {
            remembered.accepts(Some(&server(timeline, 0, true)));
            assert!(!remembered.keeps(old), "nobody knows where it leads");
            let before = Instant::now().checked_sub(old);
            remembered.0.accepted.lock().since = before;
            remembered.accepts(Some(&server(timeline, 9, true)));
            assert!(remembered.keeps(old / 2) && !remembered.keeps(old * 2), "opened since, and before");
        }
    }

    #[test]
    fn a_look_that_found_the_ledger_behind_is_followed_by_one_on_a_new_connection() {
        let remembered = Remembered::default();
        for is_doubted in [false, true, false] {
            remembered.looked(is_doubted);
            assert_eq!(remembered.keeps_look(), !is_doubted);
        }
    }
}
