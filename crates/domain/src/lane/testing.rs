//! What the tests of lanes share.

use std::time::{Duration, Instant};

use super::limits::WAITING_BYTES_MAX;
use super::messages::{
    Callers, Command, CompletionRequest, Effect, PendingSubmission, ReservedSlot, Submission,
};
use super::state::{LaneSettings, LaneState};
use super::waiting_bytes::WaitingBytes;
use crate::job::{Assignment, Attempt, Change, Due, JobKey, LiveJob, Spec};
use crate::{
    IdempotencyKey, InstanceId, JobId, KeyScope, LaneId, NodeId, NodeTimeouts, PoolName, Timestamp, Token,
};

/// The seed of a random test: from `FENCEPOST_SEED`, or drawn, and printed.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("FENCEPOST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("FENCEPOST_SEED={seed}");
    seed
}

/// Callers are numbers.
pub(super) enum Numbered {}

impl Callers for Numbered {
    type Submit = u64;
    type Cancel = u64;
    type Complete = u64;
    type Close = u64;
}

pub(super) fn settings(seed: u64) -> LaneSettings {
    LaneSettings {
        batch_rows_max: 2_000,
        timeouts: NodeTimeouts::DEFAULT,
        seed,
        waiting: WaitingBytes::new(WAITING_BYTES_MAX),
    }
}

pub(super) fn own_lane(now: Instant) -> LaneState<Numbered> {
    let lane = LaneId::parse("instance:i").unwrap();
    LaneState::new(lane, Token::new(1), false, settings(1), now)
}

pub(super) fn job(number: u64) -> JobId {
    JobId::from_u128(u128::from(number))
}

pub(super) fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

pub(super) fn slot(at: &str) -> ReservedSlot {
    let placed = Assignment { node: node(at), holder: InstanceId::parse("i").unwrap() };
    ReservedSlot { placed, pool: PoolName::parse("default").unwrap(), instead_of: None }
}

pub(super) fn spec() -> Spec {
    Spec { timeout_ms: 60_000, ..Spec::new("1") }
}

pub(super) fn submission(
    number: u64,
    due: Due,
    key: Option<&str>,
    now: Instant,
) -> PendingSubmission<Numbered> {
    let key = key.map(|key| JobKey {
        scope: KeyScope { scope: "submit".to_owned(), key: IdempotencyKey::parse(key).unwrap() },
        body_hash: [0; 32],
    });
    let submission = Submission { spec: spec(), client_ref: None, due, key, retry: None };
    PendingSubmission {
        id: job(number),
        submission,
        submitter: None,
        arrived: now,
        deadline: now + Duration::from_secs(3_600),
        is_looked_up: false,
        reply: number,
    }
}

/// A job that waits, as the ledger has it.
pub(super) fn waiting(lane: &LaneId, number: u64) -> LiveJob {
    LiveJob { created_at: Timestamp::from_micros(1), ..LiveJob::created(job(number), lane.clone(), spec()) }
}

pub(super) fn completion(number: u64, attempt: u32, at: &str) -> Command<Numbered> {
    Command::Complete(CompletionRequest {
        job: job(number),
        attempt: Attempt::new(attempt),
        node: node(at),
        output: "1".to_owned(),
        may_pass: true,
        reply: number,
    })
}

/// What effects are, in one word each; without the lengths of waits, which every round with submissions has.
pub(super) fn words(effects: &[Effect<Numbered>]) -> String {
    let word = |effect: &Effect<Numbered>| match effect {
        Effect::Flush => "flush".to_owned(),
        Effect::Commit(batch) => {
            let changes: Vec<_> = batch.writes.iter().map(|write| change(&write.change)).collect();
            format!("commit({})", changes.join(","))
        }
        Effect::FindSlots(search) => format!("find({},{})", search.offers.len(), search.requests.len()),
        Effect::Submitted(_, Ok(_)) => "accepted".to_owned(),
        Effect::Submitted(_, Err(refused)) => format!("refused({refused:?})"),
        Effect::AnswerByKey(_) => "by_key".to_owned(),
        Effect::LookUp(pending) => format!("look_up({})", pending.len()),
        Effect::Cancelled(_, Ok(())) => "cancelled".to_owned(),
        Effect::Cancelled(_, Err(refused)) => format!("not_cancelled({refused:?})"),
        Effect::Completed(_) => "completed".to_owned(),
        Effect::Closed(_, Ok(())) => "closed".to_owned(),
        Effect::Closed(_, Err(refused)) => format!("not_closed({refused:?})"),
        Effect::Dispatch(_) => "dispatch".to_owned(),
        Effect::Withdraw(_) => "withdraw".to_owned(),
        Effect::ReleaseSlot { .. } => "release".to_owned(),
        Effect::ReleaseUnsent { .. } => "release_unsent".to_owned(),
        Effect::LookForNode { .. } => "look_for_node".to_owned(),
        Effect::SlotFreed(_) => "freed".to_owned(),
        Effect::LookForOlder { .. } => "look_for_older".to_owned(),
        Effect::Enqueue(enqueue) if enqueue.is_back => "enqueue_again".to_owned(),
        Effect::Enqueue(_) => "enqueue".to_owned(),
        Effect::Dequeue(_) => "dequeue".to_owned(),
        Effect::DequeueAll => "dequeue_all".to_owned(),
        Effect::Notify(_) => "notify".to_owned(),
        Effect::Waited(_) => unreachable!("it is left out"),
        Effect::Read(_) => "read".to_owned(),
        Effect::AcquireAnew => "anew".to_owned(),
        Effect::Bind(_) => "bind".to_owned(),
        Effect::CloseSession => "close".to_owned(),
        Effect::Transfer(jobs) => format!("transfer({})", jobs.len()),
        Effect::Promote => "promote".to_owned(),
        Effect::Stop => "stop".to_owned(),
    };
    let told = effects.iter().filter(|effect| !matches!(effect, Effect::Waited(_)));
    told.map(word).collect::<Vec<_>>().join(" ")
}

fn change(change: &Change) -> &'static str {
    match change {
        Change::Submit(_) => "submit",
        Change::Dispatch { .. } => "dispatch",
        Change::Revoke { .. } => "revoke",
        Change::End { .. } => "end",
        Change::Complete { .. } => "complete",
        Change::Run { .. } | Change::Fail { .. } | Change::Release { .. } => "not the lane's",
    }
}
