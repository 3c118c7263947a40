//! Black-box tests: the real `fencepost`, as processes, on a real PostgreSQL or a SQLite file.
//!
//! One binary with a module per question. Nothing here may use a crate of the daemon: what cannot be
//! seen from outside is not tested here. The client library is no such crate: its users are outside.

#![expect(clippy::unwrap_used, reason = "all of this is test code, its helper functions too")]

mod access;
mod answers;
mod bad_input;
mod bounds;
mod bus;
mod chain;
mod client_commands;
mod clock_jumps;
mod cluster;
mod commands;
mod completions;
mod every_command;
mod faults;
mod forwards;
mod full_disk;
mod idempotency;
mod ids;
mod jobs;
mod metrics;
mod modes;
mod outages;
mod plans;
mod pooler;
mod readme;
mod recovery;
mod restart;
mod shutdown;
mod startup;
mod stats;
mod tls;
mod tokens;
mod upgrade;
mod web_pages;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadtest::access::Access;
use loadtest::caller::Caller;
use loadtest::history::History;
use testkit::http::Client;

/// A client that waits long enough for any answer.
fn patient() -> Client {
    Client::new(testkit::PATIENCE).unwrap()
}

/// Waits until something is so.
async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so().await {
        assert!(begun.elapsed() < testkit::PATIENCE, "not within {:?}: {what}", testkit::PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Clients at work beside a test, and what they remember.
struct Load {
    history: Arc<History>,
    signers: Arc<[String]>,
    stop: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(clients: usize, urls: &[String]) -> Self {
        Self::with(("load", 0), clients, urls, Arc::default(), None)
    }

    /// The same, of clients that wait for any answer: a request without one was left without one.
    fn patient(clients: usize, urls: &[String]) -> Self {
        Self::with(("load", 0), clients, urls, Arc::default(), Some(testkit::PATIENCE))
    }

    /// More clients, with signers of their own, remembered in the same history.
    fn beside(&self, name: &str, clients: usize, urls: &[String]) -> Self {
        Self::with((name, self.callers.len()), clients, urls, Arc::clone(&self.history), None)
    }

    fn with(
        (name, first): (&str, usize),
        clients: usize,
        urls: &[String],
        history: Arc<History>,
        patience: Option<Duration>,
    ) -> Self {
        let signers: Arc<[String]> =
            (0..4).map(|signer| format!("{name}-{signer}")).collect::<Vec<_>>().into();
        let access = Access::open();
        let mut load = Self { history, signers, stop: Arc::default(), callers: Vec::new() };
        for number in first..first + clients {
            let caller =
                Caller::new(number, 0, urls, &load.signers, Arc::clone(&load.history), &access).unwrap();
            let caller = match patience {
                Some(patience) => caller.waiting(patience, &access).unwrap(),
                None => caller,
            };
            load.callers.push(tokio::spawn(caller.run(Arc::clone(&load.stop))));
        }
        load
    }

    /// Waits until so many more requests were answered 2xx.
    async fn successes(&self, more: usize) {
        let count = || self.history.records().iter().filter(|record| record.answer.is_success()).count();
        let enough = count() + more;
        let wait = async {
            while count() < enough {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(testkit::PATIENCE, wait).await.expect("requests are answered");
    }

    async fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers.drain(..) {
            caller.await.unwrap();
        }
    }
}
