//! The directory of keys that are served on this instance, one for each kind of key: where a message for a key's owner goes.
//!
//! An owner that wants to end asks here. Under the entry's lock, the number of messages that were sent is
//! compared with the number that it has handled, so no message goes to an owner that has just ended. While
//! the owner releases its lease its entry stays, and takes no more messages.

use std::hash::Hash;

use dashmap::DashMap;
use tokio::sync::Notify;

use crate::mailbox::Handle;

struct Entry<C: Send + 'static> {
    handle: Handle<C>,
    is_ending: bool,
}

/// The keys of one kind that are served here, whose owners take commands `C`.
pub(crate) struct Directory<K: Eq + Hash, C: Send + 'static> {
    owners: DashMap<K, Entry<C>>,
    /// Tells that an entry is gone.
    removed: Notify,
}

/// Where a key's messages go.
pub(crate) enum Found<C: Send + 'static> {
    /// To this owner.
    Served(Handle<C>),
    /// Nowhere: its owner is giving the lease back.
    Ending,
    /// It is not served here.
    None,
}

/// A command that was not sent.
pub(crate) struct Undelivered<C> {
    pub(crate) command: Box<C>,
    /// Whether the mailbox was full; else the key is not served here.
    pub(crate) is_full: bool,
}

impl<K: Eq + Hash, C: Send + 'static> Default for Directory<K, C> {
    fn default() -> Self {
        Self { owners: DashMap::new(), removed: Notify::new() }
    }
}

impl<K: Eq + Hash, C: Send + 'static> Directory<K, C> {
    /// From now on the key's messages go there.
    pub(crate) fn insert(&self, key: K, handle: Handle<C>) {
        self.owners.insert(key, Entry { handle, is_ending: false });
    }

    /// Where messages for the key go.
    pub(crate) fn find(&self, key: &K) -> Found<C> {
        match self.owners.get(key) {
            Some(entry) if entry.is_ending => Found::Ending,
            Some(entry) => Found::Served(entry.handle.clone()),
            None => Found::None,
        }
    }

    /// The key's owner, if it is here and not ending.
    pub(crate) fn get(&self, key: &K) -> Option<Handle<C>> {
        match self.find(key) {
            Found::Served(handle) => Some(handle),
            Found::Ending | Found::None => None,
        }
    }

    /// Whether the key is served here.
    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.owners.contains_key(key)
    }

    /// Sends a command if the key is served here and its mailbox has room; else answers it again.
    pub(crate) fn try_send(&self, key: &K, command: C) -> Result<(), Undelivered<C>> {
        match self.owners.get(key) {
            Some(entry) if !entry.is_ending => {
                let sent = entry.handle.try_send(command);
                sent.map_err(|command| Undelivered { command, is_full: true })
            }
            _ => Err(Undelivered { command: Box::new(command), is_full: false }),
        }
    }

    /// Sends a command made for each owner.
    pub(crate) fn send_to_all(&self, command: impl Fn() -> C) {
        self.owners.iter().filter(|entry| !entry.is_ending).for_each(|entry| entry.handle.send(command()));
    }

    /// The owner takes no more messages; `handled` is how many it has handled, where it ends only if that is all.
    /// Whether it may end.
    pub(crate) fn begin_end(&self, key: &K, handle: &Handle<C>, handled: Option<u64>) -> bool {
        let Some(mut entry) = self.owners.get_mut(key).filter(|entry| entry.handle.is_same(handle)) else {
            // It is not known here any more.
            return true;
        };
        if handled.is_some_and(|handled| handled != entry.handle.sent()) {
            return false;
        }
        entry.is_ending = true;
        true
    }

    /// The owner is gone.
    pub(crate) fn remove(&self, key: &K, handle: &Handle<C>) {
        self.owners.remove_if(key, |_, entry| entry.handle.is_same(handle));
        self.removed.notify_waiters();
    }

    /// Comes back when no key is served here any more. Sends that command to all until then.
    pub(crate) async fn until_empty(&self, command: impl Fn() -> C) {
        self.until_none(|_| true, command).await;
    }

    /// Comes back when none of these keys is served here any more. Sends that command to their owners until then.
    pub(crate) async fn until_none(&self, is_one: impl Fn(&K) -> bool, command: impl Fn() -> C) {
        loop {
            // Registered before the look, so that an owner that ends in between is not missed.
            let removed = self.removed.notified();
            let mut is_any = false;
            self.owners.iter().filter(|entry| is_one(entry.key())).for_each(|entry| {
                is_any = true;
                if !entry.is_ending {
                    entry.handle.send(command());
                }
            });
            if !is_any {
                return;
            }
            removed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use actix::{Actor, Context, Handler};
    use domain::PlanId;

    use super::*;
    use crate::arbiters::Arbiters;
    use crate::mailbox::Deliver;

    /// An owner that handles nothing before its gate is open.
    struct Blocked(std::sync::mpsc::Receiver<()>);

    impl Actor for Blocked {
        type Context = Context<Self>;
    }

    impl Handler<Deliver<u8>> for Blocked {
        type Result = ();

        fn handle(&mut self, _: Deliver<u8>, _: &mut Context<Self>) {
            let _ = self.0.recv();
        }
    }

    fn blocked(
        mailbox_messages_max: usize,
    ) -> (Arbiters, Directory<PlanId, u8>, Handle<u8>, std::sync::mpsc::Sender<()>) {
        let arbiters = Arbiters::start(NonZeroUsize::MIN).unwrap();
        let (open, gate) = std::sync::mpsc::channel();
        let address = arbiters.start_actor(0, mailbox_messages_max, |_| Blocked(gate));
        let handle = Handle::new(address.recipient());
        let directory = Directory::default();
        directory.insert(key(), handle.clone());
        (arbiters, directory, handle, open)
    }

    fn key() -> PlanId {
        PlanId::from_u128(1)
    }

    #[test]
    fn of_ten_thousand_messages_at_once_those_beyond_the_mailbox_come_back_at_once() {
        let (_arbiters, directory, handle, _open) = blocked(64);
        let submit = || directory.try_send(&key(), 1);
        let full = |_: &u32| submit().is_err_and(|undelivered| undelivered.is_full);
        let refused = (0..10_000_u32).filter(full).count();
        // One may be in hand, and each sender may be one over.
        assert!((9_930..10_000).contains(&refused), "{refused} were refused");
        assert_eq!(handle.sent(), 10_000 - refused as u64, "what was refused was not sent");
        // What must not be lost goes past the bound.
        handle.send(2);
        assert_eq!(handle.sent(), 10_001 - refused as u64);
    }

    #[test]
    fn an_owner_with_messages_on_their_way_may_not_end() {
        let (_arbiters, directory, handle, _open) = blocked(8);
        handle.send(2);
        assert!(!directory.begin_end(&key(), &handle, Some(0)));
        assert!(directory.get(&key()).is_some(), "its messages go there still");
        assert!(directory.begin_end(&key(), &handle, Some(1)));
        assert!(matches!(directory.find(&key()), Found::Ending));
        assert!(directory.get(&key()).is_none() && directory.contains_key(&key()));
        let refused = directory.try_send(&key(), 2);
        assert!(refused.is_err_and(|undelivered| !undelivered.is_full));
        directory.remove(&key(), &handle);
        assert!(matches!(directory.find(&key()), Found::None));
    }

    #[tokio::test]
    async fn only_the_owners_of_the_keys_that_are_to_go_are_sent_the_command_and_waited_for() {
        let (_arbiters, directory, stays, _open) = blocked(8);
        let (_other_arbiters, _, goes, _other_open) = blocked(8);
        let other = PlanId::from_u128(2);
        directory.insert(other, goes.clone());
        let ends = async {
            while goes.sent() == 0 {
                tokio::task::yield_now().await;
            }
            directory.remove(&other, &goes);
        };
        tokio::join!(directory.until_none(|of| *of == other, || 1), ends);
        assert_eq!((stays.sent(), goes.sent()), (0, 1));
        assert!(directory.contains_key(&key()));
    }

    #[test]
    fn an_owner_removes_no_entry_but_its_own() {
        let (_arbiters, directory, first, _open) = blocked(8);
        let (_other_arbiters, _, second, _other_open) = blocked(8);
        directory.insert(key(), second.clone());
        assert!(directory.begin_end(&key(), &first, None), "the first is not known any more");
        directory.remove(&key(), &first);
        assert!(directory.get(&key()).is_some_and(|served| served.is_same(&second)));
    }
}
