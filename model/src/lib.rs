//! The lease protocol as a model that is checked exhaustively: every order in which a few instances, their statements
//! and their accidents can follow one another. What lives here is the protocol alone; what must never live here is a
//! database, a clock, or a line of the daemon's code.
//!
//! Four models share the work. This page is about [`LeaseModel`]: that nothing is granted twice, whichever instance
//! takes a lease from another, and whenever. [`membership`] is about when it is wise to take: that a ledger which
//! stalls makes nobody steal. [`plans`] is about a lock whose owner outlives every instance: that of two tasks which
//! want one tenant each stage runs when a person wants it to, and never twice by itself. [`slots`] is about a node's
//! slots, which the bus gives, or lends to the holder of the node's socket: that never both give them, and that no
//! attempt is taken for lost that still runs.
//!
//! One resource (a signer), a few instances, and callers who each want one nonce. [`Protocol`] says how the pieces are
//! built, [`Bounds`] says how much may happen. [`Protocol::sound`] must hold every property of [`properties`]; a
//! protocol with one [`Trap`] reopened must break those that [`Trap::breaks`] names.
//!
//! # What a step stands for
//!
//! | [`Step`] | statement or event |
//! |---|---|
//! | `Acquire` | `UPDATE lease SET owner = me, fencing_token = fencing_token + 1, … WHERE` free, run out or mine, else `INSERT … ON CONFLICT DO NOTHING`; a transaction of its own. It changes a key column (`UNIQUE (resource, fencing_token)`), so its row lock is `FOR UPDATE` and it waits for every open fenced write |
//! | `TakeOver` | the same from an owner whose lease has not run out, `WHERE owner = dead`. Here without any condition on who is dead: what must never happen does not happen at any moment of any takeover, however unwise ([`membership`] says when it is wise) |
//! | `AcquireUnheard` | the same, but the answer never arrives or nobody waits for it any more: a late statement of a lost connection |
//! | `Load` | `SELECT` of the granted nonces, a statement *after* the acquire, with a snapshot of its own |
//! | `Begin` | the owner picks the lowest nonce that it does not know as granted and opens a transaction for it, under a fresh hold |
//! | `BeginBehind` | the owner picks the nonce behind the one that is on its way, and opens a second transaction |
//! | `Admit` | `SELECT 1 FROM lease WHERE resource = … AND fencing_token = mine FOR KEY SHARE`; no row is the verdict `Fenced` |
//! | `Insert` | `INSERT INTO signer_nonce_allocation`; seen by nobody until the commit |
//! | `Commit`, `RollBack` | the server ends the transaction, whether or not its writer is still there: a time-out, a dead backend, a restart. A write that follows another is committed only after that one |
//! | `Hear` | the writer hears the outcome, and only now answers its caller |
//! | `LoseConnection` | the writer does not hear it. The transaction is a zombie now: it may stop, or run on to its commit at any later time. The writer drops what it knew and must acquire anew and load (I9); only the load tells it what to say to that caller |
//! | `SendRenewal`, `LandRenewal` | the bulk renewal by exact (resource, owner, token), sent and carried out at different times; it changes times only, so its row lock is `FOR NO KEY UPDATE`. Like its statement it has no condition on time, so it revives a lease that ran out and that nobody took |
//! | `Release` | `UPDATE lease SET owner = NULL, expires_at = now() WHERE` owner and token are mine; the row and its token stay |
//! | `RunOut` | the database's clock passes `expires_at`. Any time will do: that covers stalls of every length |
//! | `NewIdentity` | the process finds its `instance:` lease taken, drops its actors and is there again under a new owner name. Its transactions under way live on, as do the late statements of its old name; callers who wait are told that the outcome is unknown |
//! | `Crash` | the process dies and another starts in its place, under an owner name of its own; its transactions live on as zombies. A renewal under way dies with it: it could only lengthen the lease of the dead |
//!
//! A **pause** is not a step. Between any two of its steps an instance may be left out for as long as the others have
//! something to do, and then goes on believing what it knew: every pause, at every point, is already among the runs.
//! [`properties::PAUSED_OWNER_WAKES`] shows that the runs we fear are really there.
//!
//! # What a transaction sees
//!
//! READ COMMITTED: each statement sees what was committed when it began, and a statement that waited for a row lock
//! looks at that row again. An acquire that waits may therefore be one step, taken when the lock is gone. (The one
//! place where that is too kind is an acquire that also loads, [`LoadIn::AcquireStatement`]; there it is two steps.)
//! Lock modes and their conflicts are PostgreSQL's. On SQLite one writer at a time makes a fenced write a single step:
//! fewer runs than here.
//!
//! # No unique key
//!
//! The real table has one row per (signer, nonce), and its key would turn some duplicates into an error. It would not
//! turn them all: a hole is granted again by an update. So the model leaves the key out. Its table is a *multiset* of
//! rows (nonce, hold, token), two committed rows of one nonce are a duplicate, and the fence has to hold by itself.
//!
//! # Left out
//!
//! - The `instance:` leases, and with them who is dead: that is [`membership`].
//! - The holder's own monotonic clock. It only makes a holder stop sooner; safety must not need it, and does not here.
//! - Holds that end, and holes granted again: they are updates behind the same fence.
//! - Trains, skipped locks and time limits on the server: a train is one transaction of many resources, and a resource
//!   meets it as one fenced write; a limit shows as `RollBack`.
//! - Liveness. Only "somebody could serve it" is looked at, through [`properties::RELEASED_STAYS_RELEASED`] and
//!   [`properties::RENEWAL_NEVER_WAITS`].

mod protocol;
mod state;
mod steps;
mod trap;

pub mod membership;
pub mod plans;
pub mod properties;
pub mod slots;

use stateright::{Model, Property};

pub use protocol::{AfterUnknown, Fence, LoadIn, OwnerNames, Protocol, RowLock};
pub use state::{
    Caller, Hold, Instance, Knowledge, Lease, Nonce, NonceSet, Owner, Phase, Seen, Spent, Standing, State,
    Token, Transaction, Write,
};
pub use steps::Step;
pub use trap::Trap;

/// How much may happen in one run. Every limit is a count per run, over all instances; together they make the state
/// space finite, so that no limit on depth or states is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Instances side by side; at least 1.
    pub instances: u8,
    /// The highest fencing token: one per acquisition, takeovers and unheard ones included.
    pub acquisitions: u8,
    /// Fenced writes begun; at most 8, so that a nonce fits a [`NonceSet`].
    pub writes: u8,
    /// Writes whose writer loses its connection before it hears the outcome.
    pub lost_connections: u8,
    /// Acquires that take effect without anybody hearing of it.
    pub unheard_acquires: u8,
    /// Processes that die and are started anew.
    pub crashes: u8,
    /// Processes that go on under a new identity.
    pub new_identities: u8,
}

/// A protocol within bounds: what the checker explores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseModel {
    /// How acquire, renew, release and the fenced write are built.
    pub protocol: Protocol,
    /// How much may happen.
    pub bounds: Bounds,
}

impl Model for LeaseModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        assert!(self.bounds.writes <= 8, "a nonce must fit a NonceSet");
        vec![State::new(self.bounds.instances)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps::possible(self, state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        Some(steps::after(self, state, step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
