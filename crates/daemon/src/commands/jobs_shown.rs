//! How jobs are shown to people.

use client::wire::Json;
use client::wire::List;
use client::wire::events::ProgressEvent;
use client::wire::jobs::{Job, JobState, Outcome, PastAttempt};

use super::shown;

/// How many characters of a payload or a result are shown to people. `--json` shows all.
const JSON_CHARS_MAX: usize = 400;

/// A job with its attempts.
pub fn job(job: &Job) -> String {
    let text = |text: &Option<String>| shown::or_none(text.as_ref());
    let metadata: Vec<_> = job.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut lines = vec![
        ("job", job.id.clone()),
        ("state", state(job)),
        ("kind", text(&job.kind)),
        ("session", session(job)),
        ("tenant", text(&job.tenant)),
        ("needs", needs(job)),
        ("priority", job.priority.to_string()),
        ("metadata", shown::joined(&metadata, " ")),
        ("attempt", format!("{} (at most {} may fail)", job.attempt, job.max_attempts)),
        ("time limit", shown::length(job.timeout_ms)),
        ("node", text(&job.node)),
        ("created", job.created_at.clone()),
        ("dispatched", text(&job.dispatched_at)),
        ("running", text(&job.running_at)),
        ("finished", text(&job.finished_at)),
        ("retry of", text(&job.retry_of)),
        ("retried as", text(&job.retried_as)),
        ("error", text(&job.error)),
        ("payload", shown::or_none(job.payload.as_ref().map(cut))),
        ("result", shown::or_none(result(job).map(cut))),
    ];
    if let Some(waits) = waits(job) {
        // Beside the state, which it explains.
        lines.insert(2, ("waits", waits));
    }
    let card = shown::card(lines);
    match job.attempts.as_deref() {
        None | Some([]) => card,
        Some(past) => card + "\n" + &attempts(past),
    }
}

/// Why a job waits; `None` for one that does not.
pub fn waits(job: &Job) -> Option<String> {
    let waits = job.waiting_for.as_ref()?;
    let until = waits.until.as_ref().map(|at| format!(", until {at}")).unwrap_or_default();
    let hint = match (waits.reason.as_str(), &job.pool) {
        ("no_node", None) => "; `fencepost node --exec CMD…` starts one",
        ("no_node", Some(_)) => {
            "; `fencepost pool show` lists the pools, `fencepost nodes list` the nodes in each"
        }
        _ => "",
    };
    Some(shown::one_line(&format!("{}{until}{hint}", waits.detail)))
}

/// Jobs, one line each.
pub fn jobs(list: &List<Job>) -> String {
    table(&list.items) + &shown::more(list.next_cursor.as_ref())
}

/// Jobs, one line each.
pub fn table(jobs: &[Job]) -> String {
    let rows = jobs.iter().map(|job| {
        [
            job.id.clone(),
            state(job),
            shown::or_none(job.kind.as_ref()),
            session(job),
            shown::or_none(job.tenant.as_ref()),
            needs(job),
            format!("{}/{}", job.attempt, job.max_attempts),
            shown::or_none(job.node.as_ref()),
            job.created_at.clone(),
            shown::or_none(job.error.as_ref()),
        ]
    });
    let headings =
        ["JOB", "STATE", "KIND", "SESSION", "TENANT", "NEEDS", "ATTEMPT", "NODE", "CREATED", "ERROR"];
    shown::table(headings, rows)
}

/// A change of a job, on a line.
pub fn change(job: &Job) -> String {
    let mut line = state(job);
    if job.attempt > 0 {
        line += &format!(", attempt {}", job.attempt);
    }
    line += &job.node.as_ref().map(|node| format!(", node {node}")).unwrap_or_default();
    // Of a cancelled job the error says no more than the state.
    let error = job.error.as_ref().filter(|error| **error != state(job));
    line += &error.map(|error| format!(": {error}")).unwrap_or_default();
    shown::one_line(&line)
}

/// Progress, on a line.
pub fn progress(progress: &ProgressEvent) -> String {
    // As the node sent it.
    let percent = progress.percent.map(|percent| format!("{percent} %"));
    let note = progress.note.as_ref().map(|note| shown::one_line(note));
    [percent, note].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The result of a job that succeeded.
fn result(job: &Job) -> Option<&Json> {
    job.result.as_ref().filter(|_| job.outcome == Some(Outcome::Succeeded))
}

/// The state; when it is over, the outcome; while it runs, the progress.
fn state(job: &Job) -> String {
    match (job.outcome, &job.progress) {
        (Some(outcome), _) if job.dead => format!("{outcome} (dead)"),
        (Some(outcome), _) => outcome.to_string(),
        (None, Some(progress)) if job.state == JobState::Running && progress.percent.is_some() => {
            format!("{} {} %", job.state, progress.percent.unwrap_or_default())
        }
        (None, _) => job.state.to_string(),
    }
}

fn session(job: &Job) -> String {
    let text = job.session.as_ref().map(|session| match (job.seq, &job.client_ref) {
        (Some(seq), Some(name)) => format!("{session} #{seq} ({name})"),
        (Some(seq), None) => format!("{session} #{seq}"),
        (None, _) => session.clone(),
    });
    shown::or_none(text)
}

fn needs(job: &Job) -> String {
    shown::needs(job.pool.as_ref(), job.route.as_ref(), &job.requires)
}

fn attempts(past: &[PastAttempt]) -> String {
    let rows = past.iter().map(|past| {
        let PastAttempt { attempt, node, state, reason, at } = past;
        [attempt.to_string(), node.clone(), state.clone(), at.clone(), reason.clone()]
    });
    shown::table(["ATTEMPT", "NODE", "ENDED", "AT", "REASON"], rows)
}

/// The beginning of a JSON text.
fn cut(json: &Json) -> String {
    let text = json.as_str();
    match text.char_indices().nth(JSON_CHARS_MAX) {
        Some((at, _)) => format!("{}… ({} bytes; --json shows all)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job as the daemon shows it, with other fields in place of these.
    fn shown_job(fields: serde_json::Value) -> Job {
        let mut job = serde_json::json!({
            "id": "i", "state": "CREATED", "outcome": null, "lane": "l", "session": null, "seq": null, "tenant": null,
            "pool": null, "route": null, "requires": [], "priority": 0, "timeout_ms": 600_000, "attempt": 0,
            "max_attempts": 3, "node": null, "metadata": {}, "payload": {"a": 1}, "error": null, "dead": false,
            "progress": null, "created_at": "t", "run_at": null, "dispatched_at": null, "running_at": null,
            "finished_at": null, "released_at": null, "retry_of": null, "retried_as": null, "attempts": [],
        });
        for (key, value) in fields.as_object().unwrap() {
            job[key] = value.clone();
        }
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_person_sees_what_a_job_needs_and_why_it_waits() {
        let job = shown_job(serde_json::json!({
            "session": "s", "seq": 2, "ref": "r", "pool": "p", "route": {"source": "zh", "target": "en"},
            "requires": ["gpu"], "metadata": {"k": "v"}, "kind": "send_email",
            "waiting_for": {"reason": "pool_paused", "detail": "the pool p is paused", "until": "u"},
        }));
        assert!(table(std::slice::from_ref(&job)).contains("CREATED  send_email  s #2 (r)"));
        let text = super::job(&job);
        for line in [
            "session     s #2 (r)\n",
            "needs       pool p, route zh:en, gpu\n",
            "metadata    k=v\n",
            "payload     {\"a\":1}\n",
            "result      -\n",
            "kind        send_email\n",
            "waits       the pool p is paused, until u\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn a_finished_job_shows_its_outcome_its_result_and_its_attempts() {
        let past =
            serde_json::json!([{"attempt": 1, "node": "n", "state": "failed", "reason": "a\nb", "at": "t"}]);
        let job = shown_job(serde_json::json!({
            "state": "FINISHED", "outcome": "succeeded", "attempt": 2, "result": "x".repeat(500), "attempts": past,
        }));
        let text = super::job(&job);
        assert!(
            text.contains("state       succeeded\n") && text.contains("… (502 bytes; --json shows all)"),
            "{text}"
        );
        assert!(text.ends_with("1        n     failed  t   a b\n"), "{text}");
        let dead = shown_job(
            serde_json::json!({"state": "FINISHED", "outcome": "failed", "dead": true, "error": "no"}),
        );
        assert!(table(std::slice::from_ref(&dead)).contains("failed (dead)"));
        assert_eq!(change(&dead), "failed (dead): no");
    }

    #[test]
    fn progress_is_one_line_that_moves_no_cursor_and_shows_the_percentage_as_sent() {
        let line = |percent, note: Option<&str>| {
            let note = note.map(str::to_owned);
            progress(&ProgressEvent { id: "i".to_owned(), attempt: 1, percent, note })
        };
        assert_eq!(line(Some(33.3), Some("half\u{1b}[2J\nway")), "33.3 % half [2J way");
        assert_eq!((line(Some(5.0), None), line(None, Some("n"))), ("5 %".to_owned(), "n".to_owned()));
        let progress =
            serde_json::json!({"state": "RUNNING", "attempt": 1, "node": "n", "progress": {"percent": 12.5}});
        assert_eq!(change(&shown_job(progress)), "RUNNING 12.5 %, attempt 1, node n");
    }
}
