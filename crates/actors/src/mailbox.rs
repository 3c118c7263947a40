//! Mailboxes: the way of a command to the actor that owns a key, with the count by which an owner that wants to end knows
//! whether something is still on its way; and the report of an owner that dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::prelude::SendError;
use actix::{Message, Recipient};
use tokio::sync::mpsc;

/// A command on its way to an owner's mailbox.
pub(crate) struct Deliver<C>(pub(crate) C);

impl<C> Message for Deliver<C> {
    type Result = ();
}

/// The way to a key's owner. Cheap to clone, as a clone of the library's own is not.
pub(crate) struct Handle<C: Send + 'static>(Arc<Mailbox<C>>);

struct Mailbox<C: Send + 'static> {
    recipient: Recipient<Deliver<C>>,
    /// Messages that were sent. An owner that has handled as many has nothing on its way.
    sent: AtomicU64,
}

impl<C: Send + 'static> Clone for Handle<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: Send + 'static> Handle<C> {
    /// The way to the owner behind `recipient`.
    pub(crate) fn new(recipient: Recipient<Deliver<C>>) -> Self {
        Self(Arc::new(Mailbox { recipient, sent: AtomicU64::new(0) }))
    }

    /// Sends a command past the mailbox's bound: for what must not be lost, of which there is never more than there are
    /// slots and callers that wait. An owner that has ended drops it; what it was about is found in the ledger.
    pub(crate) fn send(&self, command: C) {
        self.0.sent.fetch_add(1, Ordering::AcqRel);
        self.0.recipient.do_send(Deliver(command));
    }

    /// Sends a command if the mailbox has room; else answers it again.
    pub(crate) fn try_send(&self, command: C) -> Result<(), Box<C>> {
        self.0.sent.fetch_add(1, Ordering::AcqRel);
        match self.0.recipient.try_send(Deliver(command)) {
            Ok(()) | Err(SendError::Closed(_)) => Ok(()),
            Err(SendError::Full(Deliver(command))) => {
                self.0.sent.fetch_sub(1, Ordering::AcqRel);
                Err(Box::new(command))
            }
        }
    }

    /// How many messages were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Acquire)
    }

    /// Whether both lead to the same owner.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Reports an owner that dies of a defect. An owner that ends in order says so before.
pub(crate) struct Obituary<K: Clone, C: Send + 'static> {
    key: K,
    handle: Handle<C>,
    deaths: mpsc::UnboundedSender<(K, Handle<C>)>,
    /// Whether the owner ends in order: then nothing is reported.
    pub(crate) is_expected: bool,
}

impl<K: Clone, C: Send + 'static> Obituary<K, C> {
    /// The obituary of the key's owner, to which `handle` leads.
    pub(crate) fn new(key: K, handle: Handle<C>, deaths: mpsc::UnboundedSender<(K, Handle<C>)>) -> Self {
        Self { key, handle, deaths, is_expected: false }
    }
}

impl<K: Clone, C: Send + 'static> Drop for Obituary<K, C> {
    fn drop(&mut self) {
        if !self.is_expected {
            // Where the receiver is gone, so is the whole incarnation.
            let _ = self.deaths.send((self.key.clone(), self.handle.clone()));
        }
    }
}
