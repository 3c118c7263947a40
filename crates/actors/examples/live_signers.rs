//! Measures what live signer actors cost: bytes of each without work, and the time of a message.
//!
//! `cargo run --release -p actors --example live_signers [COUNT]` (100,000 without it). Each signer grants one nonce,
//! so that its actor has a lease and a loaded state, and then has nothing to do. Bytes are what the process grew by,
//! which counts the entries in directory and renewals, and what the ledger (SQLite in a temporary folder) keeps. A
//! message is a grant that a full window refuses: it goes to the actor and back and never to the ledger.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actors::arbiters::Arbiters;
use actors::signers::{GrantRequest, Limits, Refusal, Signers};
use cluster::{ClusterView, FailureDetector, Identity};
use domain::nonce::PolicyPatch;
use domain::{InstanceId, Mode, SignerId};

/// Requests under way while the actors are started.
const STARTING: usize = 256;
/// Messages of each measurement.
const MESSAGES: usize = 200_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let count: usize = std::env::args().nth(1).map_or(Ok(100_000), |count| count.parse())?;
    let folder = tempfile::tempdir()?;
    let options = ledger::Options {
        url: format!("sqlite:{}", folder.path().join("ledger.db").display()),
        connections_max: 4,
        connect_timeout_ms: 10_000,
        call_timeout_ms: 60_000,
        expected_id: None,
    };
    let ledger = ledger::open(&options).await?;
    let limits = Limits {
        lease: Duration::from_secs(36_000),
        hold_ms: 36_000_000,
        lease_wait: Duration::from_millis(250),
        lease_kept_max: Duration::from_millis(100),
        idle: Duration::from_secs(36_000),
        request_timeout: Duration::from_secs(60),
        queue_max: 10_000,
        in_flight_max: 20_000,
    };
    let me = Identity { id: InstanceId::parse("me-1")?, url: "http://me".to_owned() };
    let cluster_view = ClusterView::alone(&me, Mode::WorkerQueue);
    let arbiters = Arbiters::one_per_core()?;
    let clock = actors::database_clock::SharedClock::new(Duration::from_secs(1));
    let signers =
        Signers::start(arbiters, ledger, me.id, FailureDetector::alone(), cluster_view, clock, limits);
    // What the first ones cost once.
    start(&signers, 0, 1_000).await?;
    let (before, begun) = (resident_bytes()?, Instant::now());
    start(&signers, 1_000, count).await?;
    let grown = resident_bytes()?.saturating_sub(before);
    println!("{count} started in {:?}", begun.elapsed());
    println!("{} bytes for each", grown / count as u64);
    for callers in [1, 64] {
        let length = messages(&signers, callers).await?;
        println!("{:?} for each message, {callers} callers", length / MESSAGES as u32);
    }
    Ok(())
}

fn signer(number: usize) -> Result<SignerId, Failure> {
    Ok(SignerId::parse(&format!("eip155:1:0x{number:040x}"))?)
}

const fn one() -> GrantRequest {
    GrantRequest { count: 1, hold_ms: None, key: None }
}

/// Starts `count` actors from the number `from` on.
async fn start(signers: &Signers, from: usize, count: usize) -> Result<(), Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..STARTING {
        let signers = signers.clone();
        tasks.spawn(async move {
            for number in (from + first..from + count).step_by(STARTING) {
                signers.grant(&signer(number)?, one()).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// The time that all messages to one signer take from `callers` at once.
async fn messages(signers: &Signers, callers: usize) -> Result<Duration, Failure> {
    let busy = Arc::new(signer(0)?);
    let patch = PolicyPatch { max_in_flight: Some(Some(1)), ..PolicyPatch::default() };
    signers.set_policy(&busy, patch, domain::AuditEntry::new("", "set_policy", "signer:busy")).await?;
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (signers, busy) = (signers.clone(), Arc::clone(&busy));
        tasks.spawn(async move {
            for _ in 0..MESSAGES / callers {
                match signers.grant(&busy, one()).await {
                    Err(Refusal::WindowFull { .. }) => {}
                    other => return Err(format!("{other:?}").into()),
                }
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(begun.elapsed())
}

fn resident_bytes() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    let kilobytes: u64 = line.split_whitespace().nth(1).ok_or("no number in VmRSS")?.parse()?;
    Ok(kilobytes * 1_024)
}
