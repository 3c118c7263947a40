//! One signer's owner as a pure state: commands, answers of the ledger and the passing of time go in, effects come out.
//!
//! What lives here: what waits and what is refused, when the lease is acquired, given back or distrusted, what
//! is decided together and committed as one batch, and what becomes of a batch whose outcome is not known. What must
//! never: a clock, chance (both come in), a ledger, a runtime.
//!
//! ```text
//!              command                acquired               loaded
//!   VACANT ─────────────▶ ACQUIRING ─────────────▶ LOADING ─────────▶ OWNING ──┐ rounds: read, decide, commit,
//!    ▲  ▲                  ▲  └── held by another,            ▲       │  │ │   │ answer
//!    │  │                  │      or no answer: a pause       └───────┼──┘ └───┘
//!    │  │                  └──────────── a batch was not surely committed
//!    │  └── RELEASING ◀── idle, handed off, or the turn is over ──────┤
//!    └───── RECLAIMING ◀──────────────────────── fenced ──────────────┘
//! ```
//!
//! The order of steps, and what a crash after each leaves behind:
//! 1. acquire (a transaction of its own): a lease that runs out by itself;
//! 2. load, in a later statement, so that it sees the last commit of the owner before;
//! 3. expire what is overdue (one commit): holes or quarantined nonces, as the policy says;
//! 4. each command: decide on the loaded state, commit; a crash before the answer leaves a hold that runs out, or that
//!    the caller's retry finds under its idempotency key;
//! 5. release.
//!
//! Any commit that was not surely done ends all trust in what is in memory: it is dropped, never repaired. The lease is
//! acquired anew, the state loaded, and each command decided again; a grant remembers the hold ids of its last try and
//! is answered with them if they turn out to be in the ledger (I9).

mod batch_builder;
mod command;
mod config;
mod effect;
mod facts;
mod refusal;
mod state;
mod waiting;

pub use command::{
    Answer, Caller, Command, Grant, GrantRequest, Grants, RequestKey, ResolveRequest, Settlements, Ticket,
};
pub use config::{SignerConfig, Sources};
pub use effect::{Acquired, BATCH_OPERATIONS, BatchId, Effect, Effects, LedgerFailure, Moment, Note, Phase};
pub use facts::{FactsRead, Round, still_live};
pub use refusal::Refusal;
pub use state::SignerState;
