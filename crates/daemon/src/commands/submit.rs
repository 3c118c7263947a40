//! `fencepost submit`: submits one job and, with `--wait`, prints its result.

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use client::wire::Json;
use client::wire::events::ProgressEvent;
use client::wire::jobs::{Job, JobState, Outcome};
use client::wire::limits::PAYLOAD_BYTES_MAX;
use client::{Client, JobUpdate};

use super::absence::Absence;
use super::{connect, shown};
use crate::cli::jobs::Submit;
use crate::exit::{Exit, Failure};

/// The longest wait for the end of the job in one request.
const ASK_EVERY: Duration = Duration::from_secs(60);

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; with `--wait` also that the job did not succeed.
pub async fn run(command: Submit) -> Result<(), Failure> {
    let Submit { payload, job, key, wait, remote } = command;
    let job = job.request(self::payload(payload)?);
    let client = connect(&remote)?;
    let failure = |error| shown::failure(remote.json, error);
    let accepted = client.jobs().submit(&job, key.as_deref()).await.map_err(failure)?;
    if !wait {
        shown::answer(remote.json, &accepted, |accepted| format!("{}\n", accepted.id));
        return Ok(());
    }
    // An interrupted wait leaves the job as it is, so its id is printed first.
    eprintln!("job {} is accepted", accepted.id);
    // A person at a terminal sees the progress. If the event stream cannot be had, the wait goes on without it.
    let followed = match std::io::stderr().is_terminal() && !remote.json {
        true => follow(&client, &accepted.id).await.ok(),
        false => None,
    };
    let job = match followed {
        Some(job) => job,
        None => waited(&client, &accepted.id).await.map_err(failure)?,
    };
    shown::answer(remote.json, &job, |job| match (&job.outcome, &job.result) {
        (Some(Outcome::Succeeded), Some(result)) => format!("{result}\n"),
        _ => String::new(),
    });
    match job.outcome {
        Some(Outcome::Succeeded) => Ok(()),
        _ => Err(Failure::new(Exit::Refused, unsuccessful(&job))),
    }
}

/// The job when it is FINISHED, through absences of the daemon.
async fn waited(client: &Client, id: &str) -> client::Result<Job> {
    let mut absence = Absence::default();
    loop {
        match client.jobs().wait(id, ASK_EVERY).await {
            Ok(job) if job.state == JobState::Finished => return Ok(job),
            Ok(_) => absence.is_over(),
            Err(error) => {
                if let Err(error) = absence.outlast(error).await {
                    eprintln!("job {id} continues; GET /v1/jobs/{id} shows it");
                    return Err(error);
                }
            }
        }
    }
}

/// The job when it is FINISHED; prints its events until then.
async fn follow(client: &Client, id: &str) -> client::Result<Job> {
    let mut events = client.jobs().events(id);
    let mut last = None;
    while let Some(news) = events.next().await? {
        match news {
            JobUpdate::Job(job) => last = Some(*job),
            JobUpdate::Progress(progress) => eprintln!("{}", progress_line(&progress)),
        }
    }
    match last {
        Some(job) => Ok(job),
        None => client.jobs().get(id).await,
    }
}

fn progress_line(progress: &ProgressEvent) -> String {
    let percent = progress.percent.map(|percent| format!("{percent:.0} %"));
    let note = progress.note.as_ref().map(|note| shown::one_line(note));
    [percent, note].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn unsuccessful(job: &Job) -> String {
    let how = job.outcome.map_or("did not end", Outcome::as_str);
    let why = job.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("job {} {how} after {} of {} attempts{why}", job.id, job.attempt, job.max_attempts)
}

/// The payload from the command line, or from standard input.
fn payload(given: Option<String>) -> Result<Json, Failure> {
    match given.as_deref() {
        None => Ok(Json::null()),
        Some("-") => {
            let mut text = String::new();
            // One byte more than is taken tells that it is too much.
            let read = std::io::stdin().lock().take(PAYLOAD_BYTES_MAX as u64 + 1).read_to_string(&mut text);
            read.map_err(|error| Failure::new(Exit::Usage, format!("standard input: {error}")))?;
            if text.len() > PAYLOAD_BYTES_MAX {
                let message = format!("a payload has at most {PAYLOAD_BYTES_MAX} bytes");
                return Err(Failure::new(Exit::Usage, message));
            }
            json(&text)
        }
        Some(text) => json(text),
    }
}

/// JSON as it is; other text as a JSON string, unless it begins as only JSON does.
fn json(text: &str) -> Result<Json, Failure> {
    match Json::parse(text) {
        Ok(json) => Ok(json),
        Err(error) if text.trim_start().starts_with(['{', '[', '"']) => {
            Err(Failure::new(Exit::Usage, format!("the payload is not JSON: {error}")))
        }
        Err(_) => Ok(Json::of(text.trim_end_matches('\n')).expect("a text has a JSON form")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_one_line_that_moves_no_cursor() {
        let line = |percent, note: Option<&str>| {
            let note = note.map(str::to_owned);
            progress_line(&ProgressEvent { id: "i".to_owned(), attempt: 1, percent, note })
        };
        assert_eq!(line(Some(33.3), Some("half\u{1b}[2J\nway")), "33 % half [2J way");
        assert_eq!((line(Some(5.0), None), line(None, Some("n"))), ("5 %".to_owned(), "n".to_owned()));
    }

    #[test]
    fn payloads_are_json_or_plain_text() {
        for (text, json) in
            [(r#"{ "a": 1 }"#, r#"{ "a": 1 }"#), ("7", "7"), ("hello\n", r#""hello""#), ("", r#""""#)]
        {
            assert_eq!(super::json(text).unwrap().as_str(), json, "{text}");
        }
        for bad in ["{a:1}", "[1,", "\"x"] {
            assert_eq!(json(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
        assert_eq!(payload(None).unwrap(), Json::null());
    }
}
