//! `fencepost job …`: lists, shows, awaits, cancels, retries, dismisses, deletes and follows jobs.

mod bulk;
mod wait;

use client::wire::Problem;
use client::wire::jobs::{
    Job as Shown, JobAccepted, JobState, NotRetried, Outcome, RetryAnswer, RetryRequest,
};
use client::wire::limits::BATCH_JOBS_MAX;
use client::{Client, Error, JobQuery, JobUpdate, Page};
use serde::Serialize;

use super::absence::Absence;
use super::each::{each, each_unchanged};
use super::jobs_shown;
use super::look::Look;
use super::{all_pages, confirm, connect, once, page, shown};
use crate::cli::Remote;
use crate::cli::jobs::{Filter, Job};
use crate::exit::{Exit, Failure};

pub use wait::to_the_end;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage where a question was not answered with yes; for `wait` also that
/// the job did not succeed, or not in time.
pub async fn run(command: Job) -> Result<(), Failure> {
    match command {
        Job::List { state, filter, paged, shown } => {
            let client = connect(&shown.remote)?;
            let query = JobQuery { state, ..query(filter) };
            let place = |job: &Shown| job.id.clone();
            let read = async |page| client.jobs().list(&JobQuery { page, ..query.clone() }).await;
            Look::list(jobs_shown::jobs).run_newest_first(&shown, page(paged), place, read).await
        }
        Job::Show { job, shown } => {
            let client = connect(&shown.remote)?;
            let read = async || client.jobs().get(&job).await;
            Look::one(jobs_shown::job).until(|job| job.outcome.is_some()).run(&shown, read).await
        }
        Job::Wait { job, at_most, remote } => {
            wait::to_the_end_if_there(&connect(&remote)?, &job, at_most, remote.json).await
        }
        Job::Cancel { jobs, dry_run, yes, remote } => {
            let client = connect(&remote)?;
            if dry_run {
                let read = async |id: &str| client.jobs().get(id).await;
                return each_unchanged(&jobs, &remote, read, would_cancel).await;
            }
            confirm::ask_at_terminal(yes, || format!("Cancel {}?", jobs.join(", ")))?;
            each(
                &jobs,
                &remote,
                async |id| client.jobs().cancel(id).await,
                |job: &Shown| format!("job {} is {}\n", job.id, jobs_shown::change(job)),
            )
            .await
        }
        Job::Retry { jobs, filter, dry_run: true, remote, .. } => {
            let client = connect(&remote)?;
            if jobs.is_empty() {
                return would_retry_selected(&client, filter, &remote).await;
            }
            let read = async |id: &str| to_retry(&client, id, remote.json).await;
            each_unchanged(&jobs, &remote, read, would_retry).await
        }
        Job::Retry { jobs, filter, key, yes, remote, .. } => match jobs.as_slice() {
            [job] => {
                let key = once::key(key, "retry");
                let answer = connect(&remote)?.jobs().retry(job, Some(&key)).await;
                let accepted = answer
                    .map_err(|error| once::failure(remote.json, error, "The job may be retried", &key))?;
                shown::answer(remote.json, &accepted, |accepted: &JobAccepted| format!("{}\n", accepted.id));
                once::written(&key)
            }
            _ => {
                let Filter { dead, outcome, session, tenant, pool, kind } = filter;
                if does_work_again(outcome) {
                    confirm::ask_at_terminal(yes, || {
                        format!("Retry up to {BATCH_JOBS_MAX} jobs, and do again what they have done?")
                    })?;
                }
                let dead = dead.then_some(true);
                let which =
                    RetryRequest { ids: jobs, state: None, outcome, session, tenant, pool, kind, dead };
                let key = once::key(key, "retry");
                let answer = connect(&remote)?.jobs().retry_many(&which, Some(&key)).await;
                let answer = answer
                    .map_err(|error| once::failure(remote.json, error, "The jobs may be retried", &key))?;
                let done = retried(&answer, &key, remote.json);
                once::written(&key)?;
                done
            }
        },
        Job::Dismiss { jobs, dry_run, remote } => {
            let client = connect(&remote)?;
            if dry_run {
                let read = async |id: &str| client.jobs().get(id).await;
                return each_unchanged(&jobs, &remote, read, would_dismiss).await;
            }
            let dismiss = async |id: &str| client.jobs().dismiss(id).await;
            each(&jobs, &remote, dismiss, |job| format!("job {} is dismissed\n", job.id)).await
        }
        Job::Delete { jobs, dry_run, yes, remote } => {
            let client = connect(&remote)?;
            if dry_run {
                let read = async |id: &str| client.jobs().get(id).await;
                return each_unchanged(&jobs, &remote, read, would_delete).await;
            }
            if !yes {
                confirm::ask(&format!("Delete {}, with payloads and results?", jobs.join(", ")))?;
            }
            let delete =
                async |id: &str| client.jobs().delete(id).await.map(|()| Deleted { id: id.to_owned() });
            each(&jobs, &remote, delete, |job| format!("job {} is deleted\n", job.id)).await
        }
        Job::Bulk(command) => bulk::run(command).await,
        Job::Events { job, remote } => follow(&connect(&remote)?, &job, remote.json).await,
    }
}

/// Whether jobs that are retried by this outcome do again what was done, or what nobody wants: they had no need of a retry.
const fn does_work_again(outcome: Option<Outcome>) -> bool {
    matches!(outcome, Some(Outcome::Succeeded | Outcome::Cancelled))
}

/// A job that was deleted, for programs.
#[derive(Serialize)]
struct Deleted {
    id: String,
}

fn would_cancel(job: &Shown) -> String {
    let becomes = if job.state == JobState::Finished { "stays as it is" } else { "would be cancelled" };
    format!("job {} {becomes}: {}\n", job.id, jobs_shown::change(job))
}

/// A job that may be retried.
#[derive(Serialize)]
struct ToRetry {
    #[serde(flatten)]
    job: Shown,
    /// Whether its session takes no more jobs.
    #[serde(skip)]
    is_session_closed: bool,
}

/// Reads a job, and for people its session where the retry depends on it.
async fn to_retry(client: &Client, id: &str, json: bool) -> client::Result<ToRetry> {
    let job = client.jobs().get(id).await?;
    let is_session_closed = match &job.session {
        Some(session) if !json && job.state == JobState::Finished => {
            client.sessions().get(session).await?.closed_at.is_some()
        }
        _ => false,
    };
    Ok(ToRetry { job, is_session_closed })
}

fn would_retry(ToRetry { job, is_session_closed }: &ToRetry) -> String {
    let becomes = match job.state {
        JobState::Finished if is_stage(job) => "would be refused, since it is a stage of a plan",
        JobState::Finished if *is_session_closed => "would be refused, since its session is closed",
        JobState::Finished => "would be retried",
        _ => "would be refused, since it has not ended",
    };
    format!("job {} {becomes}: {}\n", job.id, jobs_shown::change(job))
}

/// Whether it is a job of a plan, which alone retries it.
fn is_stage(job: &Shown) -> bool {
    job.lane.starts_with("plan:")
}

fn would_dismiss(job: &Shown) -> String {
    let becomes = match (job.dead, &job.dismissed_at) {
        (true, _) => "would be dismissed",
        (false, Some(_)) => "stays as it is",
        (false, None) => "would be refused, since it is not dead",
    };
    format!("job {} {becomes}: {}\n", job.id, jobs_shown::change(job))
}

fn would_delete(job: &Shown) -> String {
    let is_over = job.state == JobState::Finished;
    let becomes = if is_over { "would be deleted" } else { "would be refused, since it has not ended" };
    format!("job {} {becomes}: {}\n", job.id, jobs_shown::change(job))
}

fn query(filter: Filter) -> JobQuery {
    let Filter { dead, outcome, session, tenant, pool, kind } = filter;
    let dead = dead.then_some(true);
    JobQuery { outcome, session, tenant, pool, kind, dead, ..JobQuery::default() }
}

/// Lists the jobs that a retry by this filter selects now.
async fn would_retry_selected(client: &Client, filter: Filter, remote: &Remote) -> Result<(), Failure> {
    let query = JobQuery { retriable: true, ..query(filter) };
    let list =
        async |page: &Page| client.jobs().list(&JobQuery { page: page.clone(), ..query.clone() }).await;
    let listed = all_pages(BATCH_JOBS_MAX, list).await;
    let (mut selected, _) = listed.map_err(|error| shown::failure(remote.json, error))?;
    selected.truncate(BATCH_JOBS_MAX);
    if remote.json {
        selected.iter().for_each(|job| shown::answer(true, job, |_| String::new()));
    } else {
        let count = format!("{} jobs would be retried; nothing was changed\n", selected.len());
        shown::print(&(jobs_shown::table(&selected) + &count));
    }
    Ok(())
}

/// Prints the ids of the new jobs.
///
/// # Errors
/// Jobs are not retried. Where that may pass, or one may be retried all the same, the failure names the key: under another
/// one the same command could retry jobs twice.
fn retried(answer: &RetryAnswer, key: &str, json: bool) -> Result<(), Failure> {
    shown::answer(json, answer, |answer| answer.ids.iter().fold(String::new(), |text, id| text + id + "\n"));
    if answer.results.is_empty() {
        if !json {
            shown::note(&format!("{} jobs are retried\n", answer.retried));
        }
        return Ok(());
    }
    let wrong = answer.results.iter().map(|one| {
        let line = format!("job {}: {}: {}", one.retry_of, one.code, one.detail);
        shown::one_line(&line)
    });
    let mut message = format!(
        "{} jobs are retried, these are not:\n{}",
        answer.retried,
        wrong.collect::<Vec<_>>().join("\n")
    );
    if answer.results.iter().any(is_open) {
        let with = once::option(key);
        let next = format!("To retry the rest, and no job twice, run the same command with {with}");
        if json {
            shown::note(&format!("{next}\n"));
        }
        message += &format!("\n  {next}");
    }
    Err(Failure::new(Exit::Refused, if json { String::new() } else { message }))
}

/// Whether a job that was not retried may be retried later, or by now.
fn is_open(one: &NotRetried) -> bool {
    let refusal = Error::Refused(Box::new(Problem::of_code(&one.code, one.detail.as_str())));
    refusal.is_retryable() || refusal.may_be_done()
}

/// One event of a job, for programs.
#[derive(Serialize)]
struct Line<'a, T> {
    event: &'a str,
    #[serde(flatten)]
    data: &'a T,
}

/// Prints the events of a job until it is FINISHED.
async fn follow(client: &Client, id: &str, json: bool) -> Result<(), Failure> {
    // A daemon that cannot be reached now is not waited for.
    client.jobs().get(id).await.map_err(|error| shown::failure(json, error))?;
    let mut events = client.jobs().events(id);
    let mut absence = Absence::default();
    loop {
        let next = tokio::select! {
            next = events.next() => next,
            () = shown::reader_gone() => return Ok(()),
        };
        let update = match next {
            Ok(Some(update)) => update,
            Ok(None) => return Ok(()),
            Err(error) => {
                absence.outlast(error).await.map_err(|error| shown::failure(json, error))?;
                continue;
            }
        };
        absence.end();
        let line = match (&update, json) {
            (JobUpdate::Job(job), true) => shown::json(&Line { event: "job", data: job.as_ref() }),
            (JobUpdate::Progress(progress), true) => shown::json(&Line { event: "progress", data: progress }),
            (JobUpdate::Job(job), false) => jobs_shown::change(job),
            (JobUpdate::Progress(progress), false) => jobs_shown::progress(progress),
            _ => continue,
        };
        if !shown::print(&(line + "\n")) {
            return Ok(());
        }
    }
}
