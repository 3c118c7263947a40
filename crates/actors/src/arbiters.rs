//! Arbiters: the threads on which actors live, one for each core.
//!
//! What lives here: starting and stopping those threads, and placing an actor on the one that its key hashes to.
//! What must never: anything about what an actor does.
//!
//! An arbiter is a thread with a single-threaded Tokio runtime. All actors of one key live on the same arbiter, so
//! that a message between them needs no other thread. Arbiters belong to the process: an incarnation's actors come
//! and go on them, and the arbiters outlive them all, since connections of the ledger may be driven by them.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use actix::dev::channel;
use actix::{Actor, Addr, Arbiter, ArbiterHandle, Context, System};
use tokio::sync::oneshot;

/// The arbiters of a process. Clones share them; dropping the last clone stops their threads.
#[derive(Clone)]
pub struct Arbiters {
    inner: Arc<Inner>,
}

struct Inner {
    handles: Vec<ArbiterHandle>,
    /// One for each thread; sending or dropping it ends the thread.
    stops: Mutex<Vec<oneshot::Sender<()>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Arbiters {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// What the operating system says when it gives no thread, or when the thread's runtime cannot be built.
    pub fn start(count: NonZeroUsize) -> io::Result<Self> {
        let (mut handles, mut stops, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..count.get() {
            let (stop, stopped) = oneshot::channel();
            let (started, handle) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new().name(format!("arbiter-{number}")).spawn(move || {
                System::new().block_on(async move {
                    // `start` waits for this; if it has failed meanwhile, `stopped` ends at once.
                    let _ = started.send(Arbiter::current());
                    let _ = stopped.await;
                });
            })?;
            handles.push(handle.recv().map_err(io::Error::other)?);
            stops.push(stop);
            threads.push(thread);
        }
        Ok(Self {
            inner: Arc::new(Inner { handles, stops: Mutex::new(stops), threads: Mutex::new(threads) }),
        })
    }

    /// One arbiter for each core of this machine, or for each that the process may use.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn one_per_core() -> io::Result<Self> {
        Self::start(std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.handles.len()
    }

    /// The number of the arbiter on which the actors of `key` live.
    pub(crate) fn number_of(&self, key: &impl Hash) -> usize {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        (hash % self.inner.handles.len() as u64) as usize
    }

    /// Starts an actor on the arbiter with that number. Its mailbox holds `mailbox_messages_max` messages from the
    /// beginning: a message beyond them is refused by [`Addr::try_send`] as long as all senders share one `Addr`. A
    /// clone of an `Addr` may go one message over.
    ///
    /// After the arbiters have stopped, the address is closed.
    pub(crate) fn start_actor<A>(
        &self,
        number: usize,
        mailbox_messages_max: usize,
        make: impl FnOnce(&mut Context<A>) -> A + Send + 'static,
    ) -> Addr<A>
    where
        A: Actor<Context = Context<A>>,
    {
        // `Actor::start_in_arbiter` sets a mailbox's size only on the arbiter, after the first messages may have come.
        let (sender, receiver) = channel::channel(mailbox_messages_max);
        self.inner.handles[number].spawn_fn(move || {
            let mut context = Context::with_receiver(receiver);
            let actor = make(&mut context);
            actix::spawn(context.into_future(actor));
        });
        Addr::new(sender)
    }

    /// Ends the threads and waits for them, which blocks the calling thread. What still runs on them is dropped: stop
    /// the actors before.
    pub fn stop(&self) {
        self.inner.end();
        let threads = std::mem::take(&mut *lock(&self.inner.threads));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("an arbiter had died");
            }
        }
    }
}

impl Inner {
    fn end(&self) {
        lock(&self.stops).clear();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use actix::{Handler, Message};

    use super::*;

    struct Counter(usize);

    impl Actor for Counter {
        type Context = Context<Self>;
    }

    struct Add(Option<std::sync::mpsc::Receiver<()>>);

    impl Message for Add {
        type Result = usize;
    }

    impl Handler<Add> for Counter {
        type Result = usize;

        fn handle(&mut self, add: Add, _: &mut Context<Self>) -> usize {
            if let Some(gate) = add.0 {
                gate.recv().unwrap();
            }
            self.0 += 1;
            self.0
        }
    }

    struct Defect;

    impl Message for Defect {
        type Result = ();
    }

    impl Handler<Defect> for Counter {
        type Result = ();

        fn handle(&mut self, _: Defect, _: &mut Context<Self>) {
            panic!("made on purpose");
        }
    }

    fn arbiters(count: usize) -> Arbiters {
        Arbiters::start(NonZeroUsize::new(count).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn an_actor_answers_from_its_arbiter() {
        let arbiters = arbiters(2);
        for number in 0..arbiters.count() {
            let counter = arbiters.start_actor(number, 8, move |_| Counter(number));
            assert_eq!(counter.send(Add(None)).await.unwrap(), number + 1);
        }
    }

    #[tokio::test]
    async fn a_key_keeps_its_arbiter_and_many_keys_use_all() {
        let arbiters = arbiters(3);
        let numbers: std::collections::HashSet<_> = (0..100).map(|key| arbiters.number_of(&key)).collect();
        assert_eq!(numbers.len(), 3);
        assert_eq!(arbiters.number_of(&"key"), arbiters.number_of(&"key"));
    }

    #[tokio::test]
    async fn a_full_mailbox_refuses_at_once() {
        let arbiters = arbiters(1);
        let counter = arbiters.start_actor(0, 16, |_| Counter(0));
        let (open, gate) = std::sync::mpsc::channel();
        counter.try_send(Add(Some(gate))).unwrap();
        let taken = (0..10_000).filter(|_| counter.try_send(Add(None)).is_ok()).count();
        assert!(taken <= 17, "{taken} of 10,000 were taken beyond the one in hand");
        open.send(()).unwrap();
        assert!(counter.send(Add(None)).await.unwrap() <= 19);
    }

    #[tokio::test]
    async fn a_panic_in_a_handler_costs_one_actor_and_not_its_arbiter() {
        let arbiters = arbiters(1);
        let (one, other) =
            (arbiters.start_actor(0, 8, |_| Counter(0)), arbiters.start_actor(0, 8, |_| Counter(0)));
        assert!(one.send(Defect).await.is_err(), "its caller hears that it is gone");
        assert!(one.send(Add(None)).await.is_err());
        assert_eq!(other.send(Add(None)).await.unwrap(), 1);
    }

    #[test]
    fn after_the_end_an_address_is_closed() {
        let arbiters = arbiters(1);
        let counter = arbiters.start_actor(0, 8, |_| Counter(0));
        arbiters.stop();
        assert!(counter.try_send(Add(None)).is_err());
        assert!(arbiters.start_actor(0, 8, |_| Counter(0)).try_send(Add(None)).is_err());
    }
}
