//! Where sessions are: bound, read, taken over, forgotten.

use std::time::Duration;

use bus::limits::SESSION_TTL_MS_MAX;
use bus::{Binding, Error, Handle, Hub};
use domain::{NodeId, PoolName, SessionId, Token};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::bench::{Bench, LONG, eventually, id};
use crate::outages::with_a_server;

/// Short, and long enough for what a busy machine does first.
const SHORT: Duration = Duration::from_secs(2);
const STEPS: usize = 500;

fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

fn binding(instance: &str, token: i64) -> Binding {
    Binding { instance: id(instance), token: Token::new(token), node: None, pool: None }
}

async fn bind(bus: &Handle, name: &str, binding: &Binding) -> bool {
    bus.bind_session(&session(name), binding, LONG).await.unwrap()
}

async fn bound(bus: &Handle, name: &str) -> Option<Binding> {
    bus.session_binding(&session(name)).await.unwrap()
}

pub async fn a_bound_session_is_found_by_others_as_it_was_said(b: Bench) {
    let (owner, reader) = (b.join().await, b.join().await);
    assert_eq!(bound(&reader, "s").await, None);
    let (node, pool) = (NodeId::parse("n-1").ok(), PoolName::parse("zh-en").ok());
    for said in [
        binding("a-1", 1),
        Binding { node: node.clone(), ..binding("a-1", 1) },
        Binding { node, pool, ..binding("a-1", i64::from(i32::MAX) << 16) },
        binding("a-2", i64::from(i32::MAX) << 16),
    ] {
        assert!(bind(&owner, "s", &said).await);
        assert_eq!(bound(&reader, "s").await, Some(said), "in place of the one before");
    }
    assert_eq!(bound(&reader, "another").await, None);
}

pub async fn an_earlier_owner_neither_binds_nor_unbinds(b: Bench) {
    let (earlier, later) = (b.join().await, b.join().await);
    let (old, new) = (binding("a-1", 9), binding("a-2", 10));
    assert!(bind(&earlier, "s", &old).await && bind(&later, "s", &new).await);
    assert!(!bind(&earlier, "s", &old).await);
    earlier.unbind_session(&session("s"), old.token).await.unwrap();
    assert_eq!(bound(&earlier, "s").await, Some(new.clone()));
    for _ in 0..2 {
        later.unbind_session(&session("s"), new.token).await.unwrap();
        assert_eq!(bound(&earlier, "s").await, None);
    }
    assert!(bind(&earlier, "s", &old).await, "the word of the last owner is the only one that is kept");
    later.unbind_session(&session("s"), new.token).await.unwrap();
    assert_eq!(bound(&later, "s").await, None, "a later owner forgets an earlier one's");
}

pub async fn a_binding_ends_with_its_time_unless_it_is_said_again(b: Bench) {
    let bus = b.join().await;
    for name in ["stays", "goes"] {
        bus.bind_session(&session(name), &binding("a-1", 2), SHORT).await.unwrap();
    }
    assert!(bind(&bus, "stays", &binding("a-1", 2)).await);
    eventually("its time is over", async || bound(&bus, "goes").await.is_none()).await;
    assert!(bound(&bus, "stays").await.is_some());
    assert!(bind(&bus, "goes", &binding("a-2", 1)).await, "what is over binds nobody");
}

pub async fn a_session_is_bound_for_no_longer_than_the_limit(b: Bench) {
    let bus = b.join().await;
    for ttl in [Duration::ZERO, Duration::from_millis(SESSION_TTL_MS_MAX + 1)] {
        let refused = bus.bind_session(&session("s"), &binding("a-1", 1), ttl).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    }
    assert_eq!(bound(&bus, "s").await, None, "a refusal changes nothing");
}

pub async fn a_closed_bus_says_nothing_of_sessions(b: Bench) {
    let (bus, other) = (b.join().await, b.join().await);
    assert!(bind(&bus, "s", &binding("a-1", 1)).await);
    bus.close().await;
    for error in refusals(&bus).await {
        assert!(matches!(error, Error::Closed), "{error}");
    }
    assert!(bound(&other, "s").await.is_some(), "closing unbinds nothing");
}

pub async fn the_same_steps_are_answered_as_in_process(b: Bench) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let (bus, local) = (b.join().await, Hub::default().join());
    let mut random = StdRng::seed_from_u64(seed);
    for n in 0..STEPS {
        let name = ["s", "t"][random.random_range(0..2)];
        let said = binding(["a-1", "a-2"][random.random_range(0..2)], random.random_range(1..6));
        if random.random_bool(0.7) {
            assert_eq!(bind(&bus, name, &said).await, bind(&local, name, &said).await, "step {n}");
        } else {
            for each in [&bus, &local] {
                each.unbind_session(&session(name), said.token).await.unwrap();
            }
        }
        assert_eq!(bound(&bus, name).await, bound(&local, name).await, "step {n} of seed {seed}");
    }
}

async fn refusals(bus: &Handle) -> [Error; 3] {
    let s = session("s");
    [
        bus.bind_session(&s, &binding("a-1", 1), LONG).await.unwrap_err(),
        bus.session_binding(&s).await.unwrap_err(),
        bus.unbind_session(&s, Token::new(1)).await.unwrap_err(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_refuses_and_a_binding_of_another_hand_counts_as_none() {
    let (server, bus) = with_a_server().await;
    assert!(bind(&bus, "s", &binding("a-1", 1)).await);
    server.freeze().unwrap();
    for refused in refusals(&bus).await {
        assert!(refused.is_retryable(), "{refused}");
    }
    server.wake().unwrap();
    eventually("it is bound again", async || {
        bus.bind_session(&session("s"), &binding("a-1", 2), LONG).await.is_ok_and(|written| written)
    })
    .await;
    server.command(&["HSET", "t:{session:s}:c:binding", "token", "of a newer version"]).unwrap();
    assert_eq!(bound(&bus, "s").await, None);
    assert!(bind(&bus, "s", &binding("a-1", 2)).await, "and is overwritten");
    assert_eq!(bound(&bus, "s").await, Some(binding("a-1", 2)));
}
