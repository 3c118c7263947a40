//! Waits for a job's end, for `submit --wait` and `job wait`.

use std::io::IsTerminal as _;
use std::time::Duration;

use client::wire::jobs::{Job, JobState, Outcome};
use client::{Client, JobUpdate};
use tokio::time::{Instant, sleep_until, timeout};

use crate::commands::absence::Absence;
use crate::commands::{jobs_shown, shown};
use crate::exit::{Exit, Failure};

/// The longest wait for the end of the job in one call. A daemon that answers for so long is there: an absence is over.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// A job that has waited so long is asked why.
const WAITS_AFTER: Duration = Duration::from_secs(2);
/// The delay between two such questions.
const WAITS_EVERY: Duration = Duration::from_secs(5);
/// How long the last look at a job that has not ended in time may take.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Waits until the job, which the daemon has accepted, is FINISHED, at most so long, and prints its result. Says on stderr why it
/// waits meanwhile.
///
/// # Errors
/// The refusal, or why no daemon could be reached; the job did not succeed, or has not ended in time.
pub async fn to_the_end(
    client: &Client,
    id: &str,
    at_most: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    to_the_end_behind(async { Ok(()) }, client, id, at_most, json).await
}

/// The same of a job that may not be there. A daemon that cannot be reached now is not waited for.
///
/// # Errors
/// As for [`to_the_end`].
pub async fn to_the_end_if_there(
    client: &Client,
    id: &str,
    at_most: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    let look = async { client.jobs().get(id).await.map(drop) };
    to_the_end_behind(look, client, id, at_most, json).await
}

/// The same behind a first call, whose time counts too.
async fn to_the_end_behind(
    first: impl Future<Output = client::Result<()>>,
    client: &Client,
    id: &str,
    at_most: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    // The longest length of all is no limit.
    let at_most = at_most.unwrap_or(Duration::MAX);
    let ended = timeout(at_most, async {
        first.await?;
        tokio::select! {
            ended = end(client, id, json) => ended,
            never = explain(client, id, json) => match never {},
        }
    });
    let job = match ended.await {
        Ok(ended) => ended.map_err(|error| shown::failure(json, error))?,
        Err(_) => late(client, id, at_most, json).await?,
    };
    shown::answer(json, &job, |job| match (&job.outcome, &job.result) {
        (Some(Outcome::Succeeded), Some(result)) => shown::escaped(result.as_str()) + "\n",
        _ => String::new(),
    });
    match job.outcome {
        Some(Outcome::Succeeded) => Ok(()),
        _ => Err(Failure::new(Exit::Refused, unsuccessful(&job))),
    }
}

/// The job when it is FINISHED. A person at a terminal sees the progress; if the event stream cannot be had, the wait goes on
/// without it.
async fn end(client: &Client, id: &str, json: bool) -> client::Result<Job> {
    if std::io::stderr().is_terminal()
        && !json
        && let Ok(job) = followed(client, id).await
    {
        return Ok(job);
    }
    waited(id, async |at_most| client.jobs().wait(id, at_most).await).await
}

/// The job when it is FINISHED, through absences of the daemon. `ask` waits for that at most so long, and gives the job as it is
/// then.
async fn waited(id: &str, mut ask: impl AsyncFnMut(Duration) -> client::Result<Job>) -> client::Result<Job> {
    let mut absence = Absence::default();
    loop {
        match ask(ASK_EVERY).await {
            Ok(job) if job.state == JobState::Finished => return Ok(job),
            Ok(_) => absence.end(),
            Err(error) => {
                if let Err(error) = absence.outlast(error).await {
                    shown::note(&format!("job {id} continues; `fencepost job show {id}` shows it\n"));
                    return Err(error);
                }
            }
        }
    }
}

/// The job when it is FINISHED; prints its progress until then.
async fn followed(client: &Client, id: &str) -> client::Result<Job> {
    let mut events = client.jobs().events(id);
    let mut last = None;
    while let Some(news) = events.next().await? {
        match news {
            JobUpdate::Job(job) => last = Some(*job),
            JobUpdate::Progress(progress) => shown::note(&(jobs_shown::progress(&progress) + "\n")),
            _ => {}
        }
    }
    match last {
        Some(job) => Ok(job),
        None => client.jobs().get(id).await,
    }
}

/// Says on stderr why the job waits, whenever that has changed.
async fn explain(client: &Client, id: &str, json: bool) -> std::convert::Infallible {
    let mut at = Instant::now() + WAITS_AFTER;
    let mut before = None;
    loop {
        sleep_until(at).await;
        at = Instant::now() + WAITS_EVERY;
        // An instance that cannot be asked now is asked again.
        let Ok(job) = client.jobs().get(id).await else { continue };
        // The words of one reason have numbers in them, which change.
        let reason = job.waiting_for.as_ref().map(|waits| waits.reason.clone());
        if let Some(waits) = jobs_shown::waits(&job)
            && before != reason
            && !json
        {
            shown::note(&format!("job {id} waits: {waits}\n"));
        }
        before = reason;
    }
}

/// Looks at a job that was not seen to end in time for the last time: it may have ended since the look before. With JSON it is
/// printed as it is, or that it could not be seen.
///
/// # Errors
/// It has not ended, or that cannot be found out.
async fn late(client: &Client, id: &str, after: Duration, json: bool) -> Result<Job, Failure> {
    let after = shown::length(after.as_millis() as u64);
    let goes_on = format!(
        "it continues; `fencepost job wait {id}` waits again, `fencepost job cancel {id}` cancels it"
    );
    let why = match timeout(LAST_LOOK, client.jobs().get(id)).await {
        Ok(Ok(job)) if job.state == JobState::Finished => return Ok(job),
        Ok(Ok(job)) => {
            if json {
                shown::answer(true, &job, |_| String::new());
            }
            let reason = jobs_shown::waits(&job).map(|reason| format!(": {reason}")).unwrap_or_default();
            let message = format!("job {id} is {} after {after}{reason}\n  {goes_on}", job.state);
            return Err(Failure::new(Exit::Refused, message));
        }
        Ok(Err(error)) => shown::one_line(&error.to_string()),
        Err(_) => "the daemon does not answer".to_owned(),
    };
    let message = format!("job {id} has not ended after {after} ({why})\n  {goes_on}");
    Err(shown::failed(json, id, Exit::Refused, message))
}

fn unsuccessful(job: &Job) -> String {
    let how = job.outcome.map_or("did not end", Outcome::as_str);
    let attempts = match job.attempt {
        0 => "before its first attempt".to_owned(),
        attempt => format!("after {attempt} of {} attempts", job.max_attempts),
    };
    // The error of a cancelled job may only say that it was cancelled.
    let why = job.error.as_ref().filter(|error| *error != how);
    let why = why.map(|error| format!(": {}", shown::one_line(error))).unwrap_or_default();
    format!("job {} {how} {attempts}{why}", job.id)
}

#[cfg(test)]
mod tests {
    use client::Error;
    use tokio::time::sleep;

    use super::*;
    use crate::commands::TOTAL;

    /// How long the daemon answers between two absences.
    const HERE: Duration = Duration::from_secs(8);

    fn job(state: &str) -> Job {
        serde_json::from_value(serde_json::json!({
            "id": "j", "state": state, "lane": "l", "requires": [], "priority": 0, "timeout_ms": 1, "attempt": 1,
            "max_attempts": 3, "dead": false, "created_at": "t",
        }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_answers_between_two_absences_is_waited_for_anew_in_each() {
        let (mut leaves_at, mut absences) = (Instant::now() + HERE, 0);
        let ask = async |at_most: Duration| {
            if absences == 10 {
                return Ok(job("FINISHED"));
            }
            if Instant::now() + at_most < leaves_at {
                sleep(at_most).await;
                return Ok(job("RUNNING"));
            }
            sleep_until(leaves_at + TOTAL).await;
            absences += 1;
            leaves_at = Instant::now() + HERE;
            let (url, reason) = ("u".to_owned(), "no answer in time".to_owned());
            Err(Error::Lost { url, reason, source: None })
        };
        assert_eq!(waited("j", ask).await.unwrap().id, "j");
        assert_eq!(absences, 10);
    }
}
