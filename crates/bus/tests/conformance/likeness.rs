//! Nodes on a server and in process are alike: the same random steps give the same answers, one by one.

use std::time::Duration;

use bus::{Claim, Connecting, Epoch, Handle, Held, Hub, NewConnection, NodeState, Report, Slot, Written};
use domain::job::Attempt;
use domain::{JobId, Token};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::bench::{Bench, LONG, id};
use crate::nodes::{node, show};

const STEPS: usize = 1_500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_like_the_process() {
    alike(Bench::redis().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_like_the_process() {
    alike(Bench::redis_cluster().await).await;
}

async fn alike(b: Bench) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let (server, local) = (b.join().await, Hub::default().join());
    let mut random = StdRng::seed_from_u64(seed);
    // The epochs of both, one pair for each connection.
    let mut epochs = vec![(Epoch::new(1), Epoch::new(1))];
    for n in 0..STEPS {
        let step = Step::draw(&mut random, epochs.len());
        let (one, other) = (epochs[step.connection].0, epochs[step.connection].1);
        let (on_server, in_process) = (step.take(&server, one).await, step.take(&local, other).await);
        assert_eq!(on_server.0, in_process.0, "step {n} of seed {seed}: {step:?}");
        if let (Some(one), Some(other)) = (on_server.1, in_process.1) {
            epochs.push((one, other));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Connect,
    Complete,
    Refresh,
    Recount,
    Disconnect,
    Withdraw,
    Reserve,
    Send,
    Pass,
    Unreserve,
    Free,
}

#[derive(Debug)]
struct Step {
    what: What,
    /// Which connection does it, if one does.
    connection: usize,
    slots: Vec<Slot>,
    token: Token,
    report: Report,
    /// Of a new connection: its holder, its principal and its age.
    holder: &'static str,
    principal: &'static str,
    age: Duration,
    /// Of a new connection: whether the instance of the one before is gone.
    goes_over: bool,
    /// Of a new connection: whether it is the one before, once more.
    comes_again: bool,
}

impl Step {
    fn draw(random: &mut StdRng, connections: usize) -> Self {
        use What::{
            Complete, Connect, Disconnect, Free, Pass, Recount, Refresh, Reserve, Send, Unreserve, Withdraw,
        };
        let often =
            [Reserve, Reserve, Reserve, Send, Send, Pass, Pass, Free, Unreserve, Refresh, Recount, Complete];
        let seldom = [Connect, Connect, Connect, Connect, Disconnect, Withdraw];
        let kinds: &[What] = if random.random_bool(0.9) { &often } else { &seldom };
        let what = *kinds.choose(random).unwrap();
        let slot = |random: &mut StdRng| Slot {
            job: JobId::from_u128(random.random_range(0..8)),
            attempt: Attempt::new(random.random_range(1..3)),
        };
        let newest = connections - 1;
        Self {
            what,
            connection: if random.random_bool(0.9) { newest } else { random.random_range(0..connections) },
            slots: (0..random.random_range(0..5)).map(|_| slot(random)).collect(),
            token: Token::new(random.random_range(1..4)),
            report: Report {
                capacity: random.random_range(2..6),
                state: if random.random_bool(0.9) { NodeState::Accepting } else { NodeState::Draining },
                document: vec![random.random_range(0..2)].into(),
                ttl: LONG,
                vouched: random.random_bool(0.7).then_some(LONG),
            },
            holder: if random.random_bool(0.5) { "a-1" } else { "a-2" },
            principal: if random.random_bool(0.9) { "" } else { "ops" },
            age: if random.random_bool(0.7) { Duration::ZERO } else { LONG * 10 },
            goes_over: random.random_bool(0.3),
            comes_again: random.random_bool(0.5),
        }
    }

    /// Takes it, and says what was answered and what is to be seen afterwards, without the numbers that differ; and
    /// the epoch of a new connection.
    async fn take(&self, bus: &Handle, epoch: Epoch) -> (String, Option<Epoch>) {
        let (n, mut connected) = (node("n"), None);
        let before = show(bus, "n").await.map(|record| record.version);
        let claims: Vec<_> = self.slots.iter().map(|slot| Claim { slot: *slot, token: self.token }).collect();
        let written = |written: Written| match written {
            Written::Done(version) if Some(version) == before => "as it was",
            Written::Done(_) => "risen",
            Written::Lost => "lost",
            Written::Replaced => "replaced",
        };
        let answer = match self.what {
            What::Connect => {
                let holder = id(self.holder);
                let new = NewConnection {
                    holder: &holder,
                    principal: self.principal,
                    age: self.age,
                    over: self.goes_over.then_some(epoch),
                    had: self.comes_again.then_some(epoch),
                    floor: Epoch::new(0),
                };
                match bus.connect_node(&n, &new, &self.report, &self.slots).await.unwrap() {
                    Connecting::Done(answer) => {
                        connected = Some(answer.epoch);
                        format!("{}", answer.is_complete)
                    }
                    refused => format!("{refused:?}"),
                }
            }
            What::Complete => written(bus.complete_node(&n, epoch, &self.slots).await.unwrap()).to_owned(),
            What::Refresh => {
                written(bus.refresh_node(&n, epoch, &self.report, &self.slots).await.unwrap()).to_owned()
            }
            What::Recount => {
                written(bus.recount_node(&n, epoch, &self.report, &self.slots).await.unwrap()).to_owned()
            }
            What::Disconnect => written(bus.disconnect_node(&n, epoch, LONG).await.unwrap()).to_owned(),
            What::Withdraw => written(bus.withdraw_node(&n, epoch).await.unwrap()).to_owned(),
            What::Reserve => format!("{:?}", bus.reserve_slots(&n, &claims, LONG).await.unwrap()),
            What::Send => format!("{:?}", bus.send_slots(&n, epoch, &self.slots).await.unwrap()),
            What::Pass => {
                let pairs: Vec<_> = self.slots.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
                format!("{:?}", bus.pass_slots(&n, epoch, &pairs).await.unwrap())
            }
            What::Unreserve => format!("{:?}", bus.unreserve_slots(&n, &claims).await.unwrap()),
            What::Free => format!("{:?}", bus.free_slots(&n, &self.slots).await.unwrap()),
        };
        let shown = show(bus, "n").await.map(|it| {
            (
                it.is_online,
                it.is_complete,
                it.capacity,
                it.used,
                it.state,
                it.document,
                Some(it.version) == before,
            )
        });
        let all: Vec<_> = (0..8)
            .flat_map(|job| {
                [1, 2].map(|attempt| Slot { job: JobId::from_u128(job), attempt: Attempt::new(attempt) })
            })
            .collect();
        let Held { holder, age, is_taken } = bus.held_slots(&n, &all).await.unwrap();
        (format!("{answer} {shown:?} {holder:?} {:?} {is_taken:?}", age.is_some()), connected)
    }
}
