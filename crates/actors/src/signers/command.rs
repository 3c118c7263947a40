//! What can be asked of a signer's owner, and where the answer goes.

use std::time::Instant;

use domain::nonce::{Policy, PolicyPatch, Resolution, SettleRefusal, Settlement, Status};
use domain::{HoldId, Nonce};
use ledger::GrantAnswer;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{GrantRequest, Grants, Refusal};

/// Where an answer goes. Its other end is gone when the caller has left.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// One answer for each settlement, in their order.
pub(super) type Settlements = Vec<Result<Status, SettleRefusal>>;

pub(super) enum Command {
    Grant(Granting, Reply<Grants>),
    Settle(Vec<Settlement>, Reply<Settlements>),
    Resolve(Resolving, Reply<Status>),
    SetPolicy(PolicyPatch, Reply<Policy>),
    Sweep(Reply<()>),
}

pub(super) struct Granting {
    pub(super) request: GrantRequest,
    /// What the last try sent without learning whether it was committed.
    pub(super) lost: Option<GrantAnswer>,
}

pub(super) struct Resolving {
    pub(super) nonce: Nonce,
    pub(super) hold: Option<HoldId>,
    pub(super) resolution: Resolution,
}

/// A command that waits.
pub(super) struct Work {
    pub(super) command: Command,
    pub(super) ticket: Ticket,
}

/// What a command has with it, whatever it asks.
pub(super) struct Ticket {
    pub(super) arrived: Instant,
    /// When the caller is told that another instance has the lease.
    pub(super) patience: Instant,
    /// When the caller is told that the ledger does not answer.
    pub(super) deadline: Instant,
    /// Whether a try of it may have been committed without anybody having looked since.
    pub(super) unsure: bool,
    /// Held until the command is answered; gives its place under `in_flight_max` back.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Work {
    /// Refuses it; where something may have been written all the same, by saying that this is not known.
    pub(super) fn refuse(self, refusal: Refusal) {
        let refusal = if self.ticket.unsure { Refusal::LedgerUnavailable } else { refusal };
        // A caller that has left needs no answer.
        match self.command {
            Command::Grant(_, reply) => drop(reply.send(Err(refusal))),
            Command::Settle(_, reply) => drop(reply.send(Err(refusal))),
            Command::Resolve(_, reply) => drop(reply.send(Err(refusal))),
            Command::SetPolicy(_, reply) => drop(reply.send(Err(refusal))),
            Command::Sweep(reply) => drop(reply.send(Err(refusal))),
        }
    }

    /// Nobody waits for the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        match &self.command {
            Command::Grant(_, reply) => reply.is_closed(),
            Command::Settle(_, reply) => reply.is_closed(),
            Command::Resolve(_, reply) => reply.is_closed(),
            Command::SetPolicy(_, reply) => reply.is_closed(),
            Command::Sweep(reply) => reply.is_closed(),
        }
    }

    /// How many nonces it may touch.
    pub(super) fn nonces(&self) -> usize {
        match &self.command {
            Command::Grant(granting, _) => granting.request.count,
            Command::Settle(settlements, _) => settlements.len(),
            Command::Resolve(..) => 1,
            Command::SetPolicy(..) | Command::Sweep(_) => 0,
        }
    }
}
