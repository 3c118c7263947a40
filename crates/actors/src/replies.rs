//! Answers to callers, most of which wait on other threads than their owner's.
//!
//! To wake a task on another thread costs a system call each time, also while that thread is awake. An owner answers many
//! callers at once, after one commit. So an answer goes to its caller's arbiter, whose own task gives it to the caller: that
//! task is woken once for all that come before it runs.

use tokio::sync::oneshot;

use crate::arbiters::Home;

/// The way of an answer to the one caller that waits for it. Dropped, it tells the caller that no answer comes.
#[derive(Debug)]
pub(crate) struct ReplyTo<T> {
    sender: oneshot::Sender<T>,
    /// The arbiter on which the caller waits, if it waits on one.
    home: Option<Home>,
}

/// For a caller that waits on the calling thread.
pub(crate) fn reply_channel<T>() -> (ReplyTo<T>, oneshot::Receiver<T>) {
    let (sender, receiver) = oneshot::channel();
    (ReplyTo { sender, home: Home::of_this_thread() }, receiver)
}

impl<T: Send + 'static> ReplyTo<T> {
    /// Answers. The caller may be gone.
    pub(crate) fn send(self, value: T) {
        let Self { sender, home } = self;
        match home.filter(|home| !home.is_this_thread()) {
            // A thread that is gone took the caller with it.
            Some(home) => home.run(move || drop(sender.send(value))),
            None => drop(sender.send(value)),
        }
    }

    /// Whether the caller has stopped waiting.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::arbiters::Arbiters;

    /// Runs a future on an arbiter; what it answers.
    async fn on<T: Send + 'static>(
        arbiters: &Arbiters,
        number: usize,
        run: impl AsyncFnOnce() -> T + Send + 'static,
    ) -> T {
        let (done, answer) = oneshot::channel();
        arbiters.home(number).run(|| {
            actix::spawn(async move { done.send(run().await).ok() });
        });
        answer.await.unwrap()
    }

    #[tokio::test]
    async fn a_reply_finds_its_caller_on_whatever_thread_either_is() {
        let arbiters = Arbiters::start(NonZeroUsize::new(2).unwrap()).unwrap();
        for (caller, owner) in [(0, 0), (0, 1), (1, 0)] {
            let (way, to) = oneshot::channel();
            let waits = on(&arbiters, caller, async move || {
                let (reply, answer) = reply_channel();
                assert!(reply.home.as_ref().is_some_and(Home::is_this_thread));
                way.send(reply).unwrap();
                (answer.await, Home::of_this_thread().is_some())
            });
            let answers = on(&arbiters, owner, async move || to.await.unwrap().send(caller));
            assert_eq!(tokio::join!(waits, answers), ((Ok(caller), true), ()));
        }
        let (reply, answer) = reply_channel();
        assert!(reply.home.is_none(), "this thread is no arbiter");
        on(&arbiters, 0, async || reply.send("here")).await;
        assert_eq!(answer.await, Ok("here"));
    }

    #[tokio::test]
    async fn who_is_not_answered_learns_it() {
        let arbiters = Arbiters::start(NonZeroUsize::MIN).unwrap();
        let (reply, answer) = on(&arbiters, 0, async || reply_channel::<()>()).await;
        drop(reply);
        assert!(answer.await.is_err(), "its owner is gone");
        let (reply, answer) = on(&arbiters, 0, async || reply_channel()).await;
        let (gone, left) = on(&arbiters, 0, async || reply_channel()).await;
        drop(left);
        assert!(gone.is_closed(), "its caller is gone");
        gone.send(());
        arbiters.stop();
        reply.send(());
        assert!(answer.await.is_err(), "its arbiter is gone");
    }
}
