//! Jobs at random: step by step against what the domain says, and all at once against what every writer was told.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::JobId;
use domain::job::{Attempt, Change, CurrentAttempt, Event, Outcome, Revoked, State, Step, decide};
use ledger::{Acquisition, Error, Handle, JobBatch, JobVerdict, JobsVerdict, Lane};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use crate::bench::{Bench, owner};
use crate::shop::{ATTEMPTS, complete, forms, job, of_lane, said, session, submit_placed, write};

const JOBS: u64 = 6;

fn some_event(rng: &mut StdRng, about: Attempt) -> Event {
    // Mostly of the newest attempt.
    let attempt = match rng.random_range(0..6) {
        0 => Attempt::new(about.get().saturating_sub(1)),
        1 => about.next(),
        _ => about,
    };
    match rng.random_range(0..20) {
        0..6 => Event::Place,
        6..9 => Event::Acknowledged(attempt),
        9..10 => Event::Succeeded(attempt),
        10..14 => Event::Failed { attempt, retryable: rng.random_ratio(4, 5) },
        14..19 => Event::Revoked { attempt, why: Revoked::ALL[rng.random_range(0..Revoked::ALL.len())] },
        _ => Event::Cancelled,
    }
}

/// A job as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Live(CurrentAttempt),
    Finished(Outcome),
}

fn after(newest: CurrentAttempt, step: Step, form: &Change) -> Expected {
    let live = |state, attempt, charged_attempts| {
        Expected::Live(CurrentAttempt { state, attempt, charged_attempts })
    };
    match (step, form) {
        (Step::Dispatch(attempt), _) => live(State::Dispatched, attempt, newest.charged_attempts),
        (Step::Run, _) => live(State::Running, newest.attempt, newest.charged_attempts),
        (Step::Retry { counts, .. }, _) => {
            live(State::Created, newest.attempt, newest.charged_attempts + u32::from(counts))
        }
        (Step::Finish { .. }, Change::End { outcome, .. }) => Expected::Finished(*outcome),
        (Step::Finish { outcome, .. }, _) => Expected::Finished(outcome),
    }
}

/// One job after the other through events of all kinds, a few in one batch: each is written exactly if the domain lets
/// it, and leaves what the domain says.
pub async fn random_events_come_to_what_the_domain_says(b: Bench) {
    const ROUNDS: usize = 150;
    let seed: u64 = rand::rng().random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lane = b.lane(session("s"), &owner("a")).await;
    let mut expected = HashMap::new();
    let (mut next, mut written, mut stale) = (0, 0, 0);
    for _ in 0..ROUNDS {
        let live = expected.values().filter(|job| matches!(job, Expected::Live(_))).count() as u64;
        let new: Vec<_> = (live..JOBS).map(|n| job(next + n - live)).collect();
        next += new.len() as u64;
        b.does(of_lane(&lane, new.iter().map(|id| submit_placed(*id)))).await;
        let placed =
            CurrentAttempt { state: State::Dispatched, attempt: Attempt::new(1), charged_attempts: 0 };
        expected.extend(new.iter().map(|id| (*id, Expected::Live(placed))));
        if rng.random_ratio(1, 10) {
            // Somebody takes the lane: what the last owner sends afterwards is as if it had never been.
            let old = lane;
            b.ledger.release(old.id.lease(), &old.owner, old.token).await.unwrap();
            lane = b.lane(session("s"), &owner(if rng.random() { "a" } else { "b" })).await;
            let late = of_lane(&old, expected.keys().map(|id| complete(*id, 1, "late")));
            assert_eq!(b.ledger.commit_jobs(late).await.unwrap(), JobsVerdict::Fenced, "seed {seed}");
        }
        let mut batch = vec![];
        for (id, was) in &expected {
            let newest = match was {
                Expected::Live(newest) => Some(*newest),
                // Those that finished long ago have been looked at often enough.
                Expected::Finished(_) if rng.random_ratio(9, 10) => continue,
                Expected::Finished(_) => None,
            };
            let about = newest.map_or(Attempt::new(1), |newest| newest.attempt);
            let event = some_event(&mut rng, about);
            let step = decide(newest, ATTEMPTS, event);
            let mut forms = forms(*id, event, about.next());
            let form = match step {
                Ok(Step::Finish { .. }) => forms.pop().unwrap(),
                _ => forms.swap_remove(0),
            };
            let then = match (newest, step) {
                (Some(newest), Ok(step)) => after(newest, step, &form),
                _ => *was,
            };
            batch.push((*id, form, step.is_ok(), then));
        }
        let verdicts = b.verdicts(of_lane(&lane, batch.iter().map(|write| write.1.clone()))).await;
        for ((id, form, is_ok, then), verdict) in batch.into_iter().zip(verdicts) {
            let right = if is_ok { JobVerdict::Written } else { JobVerdict::Stale };
            assert_eq!(verdict, right, "{form:?} of {:?} (seed {seed})", expected[&id]);
            *if is_ok { &mut written } else { &mut stale } += 1;
            expected.insert(id, then);
        }
    }
    assert!(written > ROUNDS && stale > ROUNDS / 2, "{written} written, {stale} stale (seed {seed})");
    for (id, expected) in expected {
        let record = b.found(id).await;
        let (state, attempt, charged_attempts) = (record.state, record.attempt, record.charged_attempts);
        let is = match &record.finished {
            Some(finished) => Expected::Finished(finished.outcome),
            None => Expected::Live(CurrentAttempt { state, attempt, charged_attempts }),
        };
        assert_eq!(is, expected, "{id} (seed {seed})");
        let over = attempt.get() - u32::from(matches!(state, State::Dispatched | State::Running));
        let past: Vec<_> = record.attempts.iter().map(|past| past.attempt.get()).collect();
        assert_eq!(past, (1..=over).collect::<Vec<_>>(), "{id} (seed {seed})");
    }
}

/// What everybody was told who ended a job: the final write and its verdict, by job.
type Ends = Arc<Mutex<HashMap<JobId, Vec<String>>>>;

struct Writer {
    ledger: Handle,
    name: String,
    rng: StdRng,
    ends: Ends,
    /// How many jobs there are; shared by all.
    jobs: Arc<AtomicU64>,
    fenced: usize,
    stale: usize,
    unheard: usize,
}

/// All writers speak of the same, the newest: all meet all.
const SHARED_JOBS: u64 = 40;
const LANES: usize = 3;

impl Writer {
    async fn run(mut self, rounds: usize) -> Self {
        for round in 0..rounds {
            let which = self.rng.random_range(0..LANES);
            if self.rng.random_ratio(1, 2) {
                self.speaks_for_nodes(round).await;
            } else {
                self.owns(which, round).await;
            }
        }
        self
    }

    /// Words of a holder who is often mistaken.
    async fn speaks_for_nodes(&mut self, round: usize) {
        let (mut changes, mut jobs) = (vec![], vec![]);
        for _ in 0..self.rng.random_range(1..8) {
            let made = self.jobs.load(Ordering::Relaxed);
            let id = job(self.rng.random_range(made.saturating_sub(SHARED_JOBS)..=made));
            if jobs.contains(&id) {
                continue;
            }
            jobs.push(id);
            let attempt = self.rng.random_range(1..6);
            changes.push(match self.rng.random_range(0..3) {
                0 => crate::shop::run(id, attempt),
                1 => complete(id, attempt, &format!("\"{} {round}\"", self.name)),
                _ => {
                    let failed = Event::Failed { attempt: Attempt::new(attempt), retryable: true };
                    forms(id, failed, Attempt::NONE).swap_remove(0)
                }
            });
        }
        self.commits(said(changes)).await;
    }

    /// Holds a lane's lease for a short time: it looks what is there, and moves it on.
    async fn owns(&mut self, which: usize, round: usize) {
        let (id, me) = (session(&format!("l{which}")), owner(&self.name));
        let asked = self.ledger.acquire(id.lease(), &me, 30).await;
        let Some(Acquisition::Acquired { token, .. }) = self.heard(asked) else { return };
        let lane = Lane { id: id.clone(), owner: me.clone(), token };
        let read = self.ledger.in_flight(&id, None, 20).await;
        let Some(mut jobs) = self.heard(read) else { return };
        let read = self.ledger.waiting(&id, &ledger::WaitingGroup::default(), 20).await;
        jobs.extend(self.heard(read).unwrap_or_default());
        jobs.sort_by_key(|job| job.id);
        jobs.dedup_by_key(|job| job.id);
        let mut changes: Vec<_> = jobs
            .iter()
            .filter_map(|job| {
                let event = match job.newest.state {
                    State::Created => Event::Place,
                    _ if self.rng.random_ratio(1, 15) => Event::Cancelled,
                    _ if self.rng.random_ratio(1, 4) => Event::Succeeded(job.newest.attempt),
                    _ => Event::Revoked { attempt: job.newest.attempt, why: Revoked::NodeLost },
                };
                let step = decide(Some(job.newest), u32::MAX, event).ok()?;
                let mut forms = forms(job.id, event, job.newest.attempt.next());
                Some(if matches!(step, Step::Finish { .. }) { forms.pop()? } else { forms.swap_remove(0) })
            })
            .collect();
        let new = self.rng.random_range(0..8);
        let first = self.jobs.fetch_add(new, Ordering::Relaxed);
        changes.extend((first..first + new).map(|n| submit_placed(job(n))));
        self.commits(of_lane(&lane, changes)).await;
        if round.is_multiple_of(3) {
            let released = self.ledger.release(id.lease(), &me, token).await;
            self.heard(released);
        }
    }

    async fn commits(&mut self, batch: JobBatch) {
        let ends: Vec<_> = batch.writes.iter().map(|write| end_of(&write.change)).collect();
        let ids: Vec<_> = batch.writes.iter().map(|write| write.change.job()).collect();
        let answer = self.ledger.commit_jobs(batch).await;
        let is_unknown = answer.as_ref().is_err_and(Error::may_have_written);
        match self.heard(answer) {
            Some(JobsVerdict::Written { jobs, .. }) => {
                let mut recorded = self.ends.lock();
                for ((id, end), verdict) in ids.into_iter().zip(ends).zip(jobs) {
                    self.stale += usize::from(verdict == JobVerdict::Stale);
                    if let (Some(end), JobVerdict::Written) = (end, verdict) {
                        recorded.entry(id).or_default().push(end);
                    }
                }
            }
            Some(JobsVerdict::Fenced | JobsVerdict::Again) => self.fenced += 1,
            None => self.unheard += usize::from(is_unknown),
        }
    }

    fn heard<T>(&self, answer: ledger::Result<T>) -> Option<T> {
        answer.map_err(|error| assert!(error.is_retryable(), "{}: {error}", self.name)).ok()
    }
}

/// What the job shows when this change has ended it; `None` for one that does not.
fn end_of(change: &Change) -> Option<String> {
    match change {
        Change::Complete { output, .. } => Some(output.clone()),
        Change::End { outcome, .. } => Some(outcome.as_str().to_owned()),
        Change::Fail { due_in_ms: None, .. } => Some(Outcome::Failed.as_str().to_owned()),
        _ => None,
    }
}

/// Several instances, each with two trains under way, lanes that change hands, and holders that say anything of any
/// job: every job that ended has one end, the one that its writer was told of. No statement deadlocks.
pub async fn whatever_everybody_says_at_once_every_job_has_one_result(b: Bench) {
    const WRITERS: usize = 12;
    let rounds: usize =
        std::env::var("FENCEPOST_OPERATIONS").map_or(480, |text| text.parse().unwrap()) / WRITERS;
    let seed: u64 = rand::rng().random();
    println!("seed {seed}");
    let (handles, ends, jobs) = (b.instances(3).await, Ends::default(), Arc::<AtomicU64>::default());
    let mut writers = JoinSet::new();
    for n in 0..WRITERS {
        let writer = Writer {
            ledger: handles[n % handles.len()].clone(),
            name: format!("w-{n}"),
            rng: StdRng::seed_from_u64(seed.wrapping_add(n as u64)),
            ends: ends.clone(),
            jobs: jobs.clone(),
            fenced: 0,
            stale: 0,
            unheard: 0,
        };
        writers.spawn(writer.run(rounds));
    }
    let writers = writers.join_all().await;
    let (mut fenced, mut stale, mut unheard) = (0, 0, 0);
    for writer in &writers {
        fenced += writer.fenced;
        stale += writer.stale;
        unheard += writer.unheard;
    }
    println!("{fenced} fenced, {stale} stale, {unheard} unheard");
    let ends = std::mem::take(&mut *ends.lock());
    for (id, ends) in &ends {
        let [end] = &ends[..] else { panic!("{id} has several ends: {ends:?} (seed {seed})") };
        let finished =
            b.found(*id).await.finished.unwrap_or_else(|| panic!("{id} is not finished (seed {seed})"));
        let shown = finished.result.unwrap_or_else(|| finished.outcome.as_str().to_owned());
        assert_eq!(&shown, end, "{id} (seed {seed})");
    }
    let mut unaccounted = 0;
    for id in (0..jobs.load(Ordering::Relaxed)).map(job) {
        let record = b.ledger.job(id).await.unwrap();
        let is_finished = record.is_some_and(|record| record.finished.is_some());
        unaccounted += usize::from(is_finished && !ends.contains_key(&id));
    }
    assert!(
        unaccounted <= unheard * SHARED_JOBS as usize,
        "{unaccounted} ends of which nobody heard (seed {seed})"
    );
    assert!(!ends.is_empty() && stale > 0, "seed {seed}");
    for handle in handles.iter().skip(1) {
        handle.close().await;
    }
    drop((handles, writers));
    assert_eq!(b.deadlocks_at_last().await, 0, "seed {seed}");
}

/// Two batches that write the same job never share a train, whatever their lanes: the second finds what the first did.
pub async fn a_job_is_on_a_train_once(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    for n in 0..10 {
        b.does(of_lane(&lane, [submit_placed(job(n))])).await;
        let mut commits = JoinSet::new();
        for output in 0..8 {
            let ledger = b.ledger.clone();
            let batch =
                JobBatch { lane: None, writes: [write(complete(job(n), 1, &output.to_string()))].into() };
            commits.spawn(async move { ledger.commit_jobs(batch).await.unwrap() });
        }
        let verdicts = commits.join_all().await;
        let written = verdicts.iter().filter(|verdict| {
            matches!(verdict, JobsVerdict::Written { jobs, .. } if jobs[..] == [JobVerdict::Written])
        });
        assert_eq!(written.count(), 1);
    }
    assert!(b.ledger.in_flight(&lane.id, None, 9).await.unwrap().is_empty());
}
