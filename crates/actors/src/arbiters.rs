//! Arbiters: the threads on which actors run, one for each core.
//!
//! What lives here: turning threads into arbiters, and placing an actor on the arbiter of its key. What must
//! never: anything about what an actor does.
//!
//! An arbiter is a thread with a single-threaded Tokio runtime. The daemon makes arbiters of the threads that
//! serve HTTP, so that a request needs no other thread if it arrives on the arbiter of its key; tests start
//! threads of their own. All actors of one key live on the same arbiter. Arbiters belong to the process: they
//! outlive the actors of every incarnation, because connections of the ledger run on them.

use std::cell::RefCell;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use actix::dev::channel;
use actix::{Actor, Addr, Context, System};
use domain::shard_of;
use panic_guard::guarded_call;
use parking_lot::Mutex;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

thread_local! {
    /// The way to this thread, once it is an arbiter.
    static HERE: RefCell<Option<Home>> = const { RefCell::new(None) };
}

/// What is to be done on an arbiter.
type ArbiterTask = Box<dyn FnOnce() + Send>;

/// The way to an arbiter. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    tasks: mpsc::UnboundedSender<ArbiterTask>,
}

impl Home {
    /// The way to the calling thread; `None` where that is no arbiter.
    pub(crate) fn of_this_thread() -> Option<Self> {
        HERE.with_borrow(Clone::clone)
    }

    /// Whether it leads to the calling thread.
    pub(crate) fn is_this_thread(&self) -> bool {
        HERE.with_borrow(|here| here.as_ref().is_some_and(|here| here.tasks.same_channel(&self.tasks)))
    }

    /// Has this done on the arbiter, soon and in the order of the calls. An arbiter that is gone drops it.
    pub(crate) fn run(&self, task: impl FnOnce() + Send + 'static) {
        let _ = self.tasks.send(Box::new(task));
    }
}

/// The arbiters of a process. Clones share them. Dropping the last clone stops the threads that [`Arbiters::start`] has
/// started.
#[derive(Clone)]
pub struct Arbiters {
    inner: Arc<Inner>,
}

struct Inner {
    arbiters: Vec<Arbiter>,
    own: OwnThreads,
}

/// One thread.
struct Arbiter {
    number: usize,
    home: Home,
    runtime: runtime::Handle,
}

/// The threads that were started for their arbiters alone.
#[derive(Default)]
struct OwnThreads {
    /// One for each thread; sending or dropping it ends the thread.
    stops: Mutex<Vec<oneshot::Sender<()>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a thread needs to become an arbiter. Clones are for other threads.
#[derive(Clone)]
pub struct Recruiter {
    joined: Arc<AtomicUsize>,
    count: NonZeroUsize,
    arbiters: mpsc::UnboundedSender<Arbiter>,
}

/// Threads that are becoming arbiters.
pub struct Recruits {
    count: NonZeroUsize,
    arbiters: mpsc::UnboundedReceiver<Arbiter>,
}

impl Recruiter {
    /// For `count` threads.
    #[must_use]
    pub fn new(count: NonZeroUsize) -> (Self, Recruits) {
        let (arbiters, joining) = mpsc::unbounded_channel();
        (Self { joined: Arc::default(), count, arbiters }, Recruits { count, arbiters: joining })
    }

    /// Makes an arbiter of the calling thread, for as long as its runtime runs. Must be called within a
    /// single-threaded Tokio runtime that takes local tasks. A thread that is an arbiter already is not
    /// changed; threads beyond the count are not used.
    pub fn join(&self) {
        if Home::of_this_thread().is_some() {
            return;
        }
        let number = self.joined.fetch_add(1, Ordering::Relaxed);
        if number >= self.count.get() {
            return;
        }
        let (tasks, mut coming) = mpsc::unbounded_channel::<ArbiterTask>();
        actix::spawn(async move {
            while let Some(task) = coming.recv().await {
                // A defect in one of them must not cost those that come behind it.
                guarded_call("a task on an arbiter", task);
            }
        });
        let home = Home { tasks };
        HERE.set(Some(home.clone()));
        // Where nobody waits for it, it stays without actors.
        let _ = self.arbiters.send(Arbiter { number, home, runtime: runtime::Handle::current() });
    }
}

impl Recruits {
    /// The arbiters, once all threads have joined. `None` if the recruiters are gone before.
    pub async fn all(self) -> Option<Arbiters> {
        self.all_with(OwnThreads::default()).await
    }

    async fn all_with(mut self, own: OwnThreads) -> Option<Arbiters> {
        let mut arbiters = Vec::with_capacity(self.count.get());
        while arbiters.len() < self.count.get() {
            arbiters.push(self.arbiters.recv().await?);
        }
        arbiters.sort_unstable_by_key(|arbiter| arbiter.number);
        Some(Arbiters { inner: Arc::new(Inner { arbiters, own }) })
    }
}

impl Arbiters {
    /// Starts `count` threads, and makes an arbiter of each. Blocks until they run.
    ///
    /// # Errors
    /// What the operating system says when it gives no thread, or when a thread's runtime cannot be built.
    pub fn start(count: NonZeroUsize) -> io::Result<Self> {
        let (recruiter, recruits) = Recruiter::new(count);
        let own = OwnThreads::default();
        for number in 0..count.get() {
            let (stop, stopped) = oneshot::channel();
            let recruiter = recruiter.clone();
            let (started, is_started) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new().name(format!("arbiter-{number}")).spawn(move || {
                System::new().block_on(async move {
                    recruiter.join();
                    // `start` waits for this; if it has failed meanwhile, `stopped` ends at once.
                    let _ = started.send(());
                    let _ = stopped.await;
                });
            })?;
            is_started.recv().map_err(io::Error::other)?;
            own.stops.lock().push(stop);
            own.threads.lock().push(thread);
        }
        drop(recruiter);
        let all = futures_util::FutureExt::now_or_never(recruits.all_with(own)).flatten();
        all.ok_or_else(|| io::Error::other("a thread did not become an arbiter"))
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
        self.inner.arbiters.len()
    }

    /// Their runtimes, in the order of their numbers.
    #[must_use]
    pub fn runtimes(&self) -> Vec<runtime::Handle> {
        self.inner.arbiters.iter().map(|arbiter| arbiter.runtime.clone()).collect()
    }

    /// The runtime for tasks that the actors of all arbiters wait for, such as the bus's connections: the first arbiter's.
    /// An answer from there wakes one sleeping thread less than an answer from a thread beside the arbiters.
    #[must_use]
    pub fn common(&self) -> &runtime::Handle {
        &self.inner.arbiters[0].runtime
    }

    /// The way to one of them.
    #[cfg(test)]
    pub(crate) fn home(&self, number: usize) -> Home {
        self.inner.arbiters[number].home.clone()
    }

    /// The number of the arbiter on which the actor of the key with that name lives.
    pub(crate) fn number_of(&self, name: &str) -> usize {
        shard_of(name, self.count())
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
        make: impl FnOnce(Addr<A>) -> A + Send + 'static,
    ) -> Addr<A>
    where
        A: Actor<Context = Context<A>>,
    {
        self.start_entered(number, mailbox_messages_max, |address| address, make)
    }

    /// The same for an actor that is entered somewhere, and removed from there when it ends: `enter` is called before the
    /// actor starts. Answers what `enter` has answered, of which the actor is made with a clone.
    pub(crate) fn start_entered<A, T>(
        &self,
        number: usize,
        mailbox_messages_max: usize,
        enter: impl FnOnce(Addr<A>) -> T,
        make: impl FnOnce(T) -> A + Send + 'static,
    ) -> T
    where
        A: Actor<Context = Context<A>>,
        T: Clone + Send + 'static,
    {
        // `Actor::start_in_arbiter` sets a mailbox's size only on the arbiter, after the first messages may have come.
        let (sender, receiver) = channel::channel(mailbox_messages_max);
        let entered = enter(Addr::new(sender));
        let given = entered.clone();
        let start = move || {
            actix::spawn(Context::with_receiver(receiver).into_future(make(given)));
        };
        // An arbiter that is gone drops the receiver, which closes the address.
        self.inner.arbiters[number].home.run(start);
        entered
    }

    /// Ends the threads that [`Self::start`] has started, and waits for them, which blocks the calling
    /// thread. Actors and tasks that still run on them are dropped, so stop the actors first.
    pub fn stop(&self) {
        let own = &self.inner.own;
        own.end();
        let threads = std::mem::take(&mut *own.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("an arbiter had panicked");
            }
        }
    }
}

impl OwnThreads {
    fn end(&self) {
        self.stops.lock().clear();
    }
}

impl Drop for OwnThreads {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

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
    async fn an_actor_is_entered_before_it_starts() {
        let arbiters = arbiters(1);
        let started = Arc::<AtomicBool>::default();
        let enter = |address: Addr<Counter>| {
            // What the arbiter was given before is done then.
            let (done, is_done) = std::sync::mpsc::channel();
            arbiters.home(0).run(move || done.send(()).unwrap());
            is_done.recv().unwrap();
            assert!(!started.load(Ordering::SeqCst), "it may have ended by now, and stays entered");
            address
        };
        let starts = Arc::clone(&started);
        let counter = arbiters.start_entered(0, 8, enter, move |_| {
            starts.store(true, Ordering::SeqCst);
            Counter(0)
        });
        assert_eq!(counter.send(Add(None)).await.unwrap(), 1);
        assert!(started.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_key_keeps_its_arbiter_and_many_keys_use_all() {
        let arbiters = arbiters(3);
        let numbers: std::collections::HashSet<_> =
            (0..100).map(|key| arbiters.number_of(&format!("key-{key}"))).collect();
        assert_eq!(numbers.len(), 3);
        assert_eq!(arbiters.number_of("key"), arbiters.number_of("key"));
    }

    #[test]
    fn a_thread_that_serves_something_else_becomes_an_arbiter_once() {
        let (recruiter, recruits) = Recruiter::new(NonZeroUsize::MIN);
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            System::new().block_on(async move {
                recruiter.join();
                recruiter.join();
                let _ = stopped.await;
            });
        });
        let arbiters = System::new().block_on(recruits.all()).unwrap();
        let counter = arbiters.start_actor(0, 8, |_| Counter(0));
        assert_eq!(System::new().block_on(counter.send(Add(None))).unwrap(), 1);
        drop(stop);
        thread.join().unwrap();
        assert!(counter.try_send(Add(None)).is_err(), "it ends with its thread");
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

    #[tokio::test]
    async fn a_panic_in_a_task_costs_none_that_comes_behind_it() {
        let arbiters = arbiters(1);
        arbiters.home(0).run(|| panic!("made on purpose"));
        let counter = arbiters.start_actor(0, 8, |_| Counter(0));
        assert_eq!(counter.send(Add(None)).await.unwrap(), 1);
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
