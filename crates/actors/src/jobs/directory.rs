//! The directory of lanes that are served on this instance: where a message for a lane goes.
//!
//! An owner that wants to end asks here. Under the entry's lock, the number of messages that were sent is
//! compared with the number that it has handled, so no message goes to an owner that has just ended. While
//! the owner releases its lease its entry stays, and takes no more messages.

use dashmap::DashMap;
use domain::LaneId;
use tokio::sync::Notify;

use super::messages::{LaneCommand, LaneHandle};

struct Entry {
    handle: LaneHandle,
    is_ending: bool,
}

/// The lanes that are served here.
#[derive(Default)]
pub(super) struct Directory {
    lanes: DashMap<LaneId, Entry>,
    /// Tells that an entry is gone.
    removed: Notify,
}

/// Where a lane's messages go.
pub(super) enum Found {
    /// To this owner.
    Served(LaneHandle),
    /// Nowhere: its owner is giving the lease back.
    Ending,
    /// It is not served here.
    None,
}

/// A command that was not sent.
pub(super) struct Undelivered {
    pub(super) command: Box<LaneCommand>,
    /// Whether the mailbox was full; else the lane is not served here.
    pub(super) is_full: bool,
}

impl Directory {
    /// From now on the lane's messages go there.
    pub(super) fn insert(&self, lane: LaneId, handle: LaneHandle) {
        self.lanes.insert(lane, Entry { handle, is_ending: false });
    }

    /// Where messages for the lane go.
    pub(super) fn find(&self, lane: &LaneId) -> Found {
        match self.lanes.get(lane) {
            Some(entry) if entry.is_ending => Found::Ending,
            Some(entry) => Found::Served(entry.handle.clone()),
            None => Found::None,
        }
    }

    /// The lane's owner, if it is here and not ending.
    pub(super) fn get(&self, lane: &LaneId) -> Option<LaneHandle> {
        match self.find(lane) {
            Found::Served(handle) => Some(handle),
            Found::Ending | Found::None => None,
        }
    }

    /// Whether the lane is served here.
    pub(super) fn contains_key(&self, lane: &LaneId) -> bool {
        self.lanes.contains_key(lane)
    }

    /// Sends a command if the lane is served here and its mailbox has room; else answers it again.
    pub(super) fn try_send(&self, lane: &LaneId, command: LaneCommand) -> Result<(), Undelivered> {
        match self.lanes.get(lane) {
            Some(entry) if !entry.is_ending => {
                let sent = entry.handle.try_send(command);
                sent.map_err(|command| Undelivered { command, is_full: true })
            }
            _ => Err(Undelivered { command: Box::new(command), is_full: false }),
        }
    }

    /// Sends a command made for each lane.
    pub(super) fn send_to_all(&self, command: impl Fn() -> LaneCommand) {
        self.lanes.iter().filter(|entry| !entry.is_ending).for_each(|entry| entry.handle.send(command()));
    }

    /// The owner takes no more messages; `handled` is how many it has handled, where it ends only if that is all.
    /// Whether it may end.
    pub(super) fn begin_end(&self, lane: &LaneId, handle: &LaneHandle, handled: Option<u64>) -> bool {
        let Some(mut entry) = self.lanes.get_mut(lane).filter(|entry| entry.handle.is_same(handle)) else {
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
    pub(super) fn remove(&self, lane: &LaneId, handle: &LaneHandle) {
        self.lanes.remove_if(lane, |_, entry| entry.handle.is_same(handle));
        self.removed.notify_waiters();
    }

    /// Comes back when no lane is served here any more. Sends that command to all until then.
    pub(super) async fn until_empty(&self, command: impl Fn() -> LaneCommand) {
        loop {
            // Registered before the look, so that a lane that ends in between is not missed.
            let removed = self.removed.notified();
            if self.lanes.is_empty() {
                return;
            }
            self.send_to_all(&command);
            removed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use actix::{Actor, Context, Handler};

    use super::*;
    use crate::arbiters::Arbiters;
    use crate::jobs::messages::Deliver;

    /// An owner that handles nothing before its gate is open.
    struct Blocked(std::sync::mpsc::Receiver<()>);

    impl Actor for Blocked {
        type Context = Context<Self>;
    }

    impl Handler<Deliver> for Blocked {
        type Result = ();

        fn handle(&mut self, _: Deliver, _: &mut Context<Self>) {
            let _ = self.0.recv();
        }
    }

    fn blocked(
        mailbox_messages_max: usize,
    ) -> (Arbiters, Directory, LaneHandle, std::sync::mpsc::Sender<()>) {
        let arbiters = Arbiters::start(NonZeroUsize::MIN).unwrap();
        let (open, gate) = std::sync::mpsc::channel();
        let address = arbiters.start_actor(0, mailbox_messages_max, |_| Blocked(gate));
        let handle = LaneHandle::new(address.recipient(), Arc::<AtomicU64>::default());
        let directory = Directory::default();
        directory.insert(lane(), handle.clone());
        (arbiters, directory, handle, open)
    }

    fn lane() -> LaneId {
        LaneId::parse("instance:i").unwrap()
    }

    #[test]
    fn of_ten_thousand_messages_at_once_those_beyond_the_mailbox_come_back_at_once() {
        let (_arbiters, directory, handle, _open) = blocked(64);
        let submit = || directory.try_send(&lane(), LaneCommand::Submit(Vec::new()));
        let full = |_: &u32| submit().is_err_and(|undelivered| undelivered.is_full);
        let refused = (0..10_000_u32).filter(full).count();
        // One may be in hand, and each sender may be one over.
        assert!((9_930..10_000).contains(&refused), "{refused} were refused");
        assert_eq!(handle.sent(), 10_000 - refused as u64, "what was refused was not sent");
        // What must not be lost goes past the bound.
        handle.send(LaneCommand::Stop);
        assert_eq!(handle.sent(), 10_001 - refused as u64);
    }

    #[test]
    fn an_owner_with_messages_on_their_way_may_not_end() {
        let (_arbiters, directory, handle, _open) = blocked(8);
        handle.send(LaneCommand::Stop);
        assert!(!directory.begin_end(&lane(), &handle, Some(0)));
        assert!(directory.get(&lane()).is_some(), "its messages go there still");
        assert!(directory.begin_end(&lane(), &handle, Some(1)));
        assert!(matches!(directory.find(&lane()), Found::Ending));
        assert!(directory.get(&lane()).is_none() && directory.contains_key(&lane()));
        let refused = directory.try_send(&lane(), LaneCommand::Stop);
        assert!(refused.is_err_and(|undelivered| !undelivered.is_full));
        directory.remove(&lane(), &handle);
        assert!(matches!(directory.find(&lane()), Found::None));
    }

    #[test]
    fn an_owner_removes_no_entry_but_its_own() {
        let (_arbiters, directory, first, _open) = blocked(8);
        let (_other_arbiters, _, second, _other_open) = blocked(8);
        directory.insert(lane(), second.clone());
        assert!(directory.begin_end(&lane(), &first, None), "the first is not known any more");
        directory.remove(&lane(), &first);
        assert!(directory.get(&lane()).is_some_and(|served| served.is_same(&second)));
    }
}
