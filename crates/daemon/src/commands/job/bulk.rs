//! `fencepost job bulk …`: begins, follows, shows and stops bulk operations.

use std::time::Duration;

use client::Client;
use client::wire::List;
use client::wire::bulk::{Bulk as Shown, BulkAccepted, BulkAction, BulkFilter, BulkStatus};
use indicatif::ProgressBar;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::does_work_again;
use crate::cli::jobs::bulk::{Begun, Bulk};
use crate::commands::absence::Absence;
use crate::commands::look::Look;
use crate::commands::{confirm, connect, once, page, progress_bar, shown};
use crate::exit::{Exit, Failure};

/// The delay between two looks at an operation that is under way.
const EVERY: Duration = Duration::from_millis(250);

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage where a question was not answered with yes; that a followed
/// operation did not do all that it should.
pub async fn run(command: Bulk) -> Result<(), Failure> {
    match command {
        Bulk::Retry(begun) => begin(BulkAction::Retry, begun).await,
        Bulk::Cancel(begun) => begin(BulkAction::Cancel, begun).await,
        Bulk::Delete(begun) => begin(BulkAction::Delete, begun).await,
        Bulk::Dismiss(begun) => begin(BulkAction::Dismiss, begun).await,
        Bulk::List { paged, shown } => {
            let client = connect(&shown.remote)?;
            let place = |bulk: &Shown| bulk.id.clone();
            let read = async |page| client.bulks().list(&page).await;
            Look::list(list).run_newest_first(&shown, page(paged), place, read).await
        }
        Bulk::Show { id, shown } => {
            let client = connect(&shown.remote)?;
            Look::one(card).until(is_over).run(&shown, async || client.bulks().get(&id).await).await
        }
        Bulk::Stop { id, remote } => {
            let answer = connect(&remote)?.bulks().stop(&id).await;
            shown::answered(remote.json, answer, |bulk| line(bulk) + "\n")
        }
    }
}

async fn begin(action: BulkAction, begun: Begun) -> Result<(), Failure> {
    let json = begun.remote.json;
    let client = connect(&begun.remote)?;
    let mut request = begun.request(action);
    let refused = |error| shown::failure(json, error);
    if begun.dry_run {
        let counted = client.bulks().begin(&request, begun.key.as_deref()).await.map_err(refused)?;
        shown::answer(json, &counted, unchanged);
        return Ok(());
    }
    let key = once::key(begun.key.clone(), "bulk");
    let mut with = once::option(&key);
    let is_asked = match action {
        BulkAction::Cancel | BulkAction::Delete => !begun.yes,
        BulkAction::Retry => does_work_again(request.filter.outcome) && confirm::asks_at_terminal(begun.yes),
        _ => false,
    };
    if is_asked {
        // The time of the count cannot be added to it below.
        if begun.key.is_some() && request.before.is_none() {
            let done = done(action);
            let why =
                format!("with --key, give --before or --yes: what comes after the question is {done} too");
            return Err(Failure::new(Exit::Usage, why));
        }
        request.dry_run = Some(true);
        let counted = client.bulks().begin(&request, None).await.map_err(refused)?;
        request.dry_run = None;
        if begun.key.is_some() && is_cut(request.before.as_deref(), counted.before.as_deref()) {
            let done = done(action);
            let why = format!(
                "--before is in the future, and what comes after the question is {done} too; --yes does not ask"
            );
            return Err(Failure::new(Exit::Usage, why));
        }
        let question = if counted.matched > 0 || counted.at_least {
            format!("{}. {}?", matching(&counted), asked(action, counted.matched))
        } else if begun.key.is_some() {
            // It may have been begun before, and have done all that it should.
            "No job matches now. Begin, or show what was begun under this key?".to_owned()
        } else {
            shown::answer(json, &counted, unchanged);
            return Ok(());
        };
        confirm::ask(&question)?;
        // Not those that came meanwhile. A repetition under a key must be the same request.
        if begun.key.is_none()
            && let Some(before) = counted.before
        {
            with += &format!(" --before {before}");
            request.before = Some(before);
        }
        // The answer is given.
        with += " --yes";
    }
    let accepted = client.bulks().begin(&request, Some(&key)).await;
    let accepted =
        accepted.map_err(|error| refused(once::explained(error, "The operation may be under way", &with)))?;
    let Some(id) = accepted.id.clone() else {
        return Err(Failure::new(Exit::Software, "the daemon named no bulk operation"));
    };
    if begun.no_wait {
        shown::answer(json, &accepted, |_| format!("{id}\n"));
        return Ok(());
    }
    if !json {
        shown::note(&format!("bulk operation {id} is under way; {}\n", matching(&accepted)));
    }
    let bulk = follow(&client, &id, json).await?;
    shown::answer(json, &bulk, |bulk| line(bulk) + "\n");
    match bulk.status {
        BulkStatus::Done if bulk.failed == 0 => Ok(()),
        _ => {
            let why = bulk.error.map(|error| format!(": {}", shown::one_line(&error))).unwrap_or_default();
            let message = format!("bulk operation {id} is {}, {} jobs failed{why}", bulk.status, bulk.failed);
            Err(Failure::new(Exit::Refused, if json { String::new() } else { message }))
        }
    }
}

/// Whether the daemon has counted up to an earlier time than was asked for: it takes none that is to come. It reads
/// microseconds.
fn is_cut(asked: Option<&str>, counted: Option<&str>) -> bool {
    let micros = |text: &str| {
        OffsetDateTime::parse(text, &Rfc3339).ok().map(|at| at.unix_timestamp_nanos().div_euclid(1_000))
    };
    match (asked.and_then(micros), counted.and_then(micros)) {
        (Some(asked), Some(counted)) => counted < asked,
        _ => false,
    }
}

/// The operation when it is over, through absences of the daemon; a bar shows on a terminal how far it is.
async fn follow(client: &Client, id: &str, json: bool) -> Result<Shown, Failure> {
    let besides = |skipped: u64, failed: u64| format!("{skipped} skipped, {failed} failed");
    let bar = match json {
        true => ProgressBar::hidden(),
        false => progress_bar::new(0, "{pos}/{len} jobs", besides(0, 0)),
    };
    let mut absence = Absence::default();
    loop {
        match client.bulks().get(id).await {
            Ok(bulk) if is_over(&bulk) => {
                bar.finish_and_clear();
                return Ok(bulk);
            }
            Ok(bulk) => {
                absence.end();
                bar.set_length(bulk.matched.max(worked_on(&bulk)));
                bar.set_position(worked_on(&bulk));
                bar.set_message(besides(bulk.skipped, bulk.failed));
                tokio::time::sleep(EVERY).await;
            }
            Err(error) => {
                if let Err(error) = absence.outlast(error).await {
                    bar.finish_and_clear();
                    shown::note(&format!(
                        "bulk operation {id} continues; `fencepost job bulk show {id}` shows it\n"
                    ));
                    return Err(shown::failure(json, error));
                }
            }
        }
    }
}

const fn is_over(bulk: &Shown) -> bool {
    matches!(bulk.status, BulkStatus::Done | BulkStatus::Cancelled | BulkStatus::Failed)
}

const fn worked_on(bulk: &Shown) -> u64 {
    bulk.done + bulk.skipped + bulk.failed
}

fn asked(action: BulkAction, matched: u64) -> String {
    let (it, has, their) = match matched {
        1 => ("it", "it has", "its payload and result"),
        _ => ("them", "they have", "their payloads and results"),
    };
    match action {
        BulkAction::Retry => format!("Retry {it}, and do again what {has} done"),
        BulkAction::Cancel => format!("Cancel {it}"),
        BulkAction::Delete => format!("Delete {it}, with {their}"),
        BulkAction::Dismiss => format!("Dismiss {it}"),
        _ => format!("Change {it}"),
    }
}

fn unchanged(counted: &BulkAccepted) -> String {
    format!("{}; nothing was changed\n", matching(counted))
}

fn matching(counted: &BulkAccepted) -> String {
    let at_least = if counted.at_least { "at least " } else { "" };
    match counted.matched {
        1 => format!("{at_least}1 job matches"),
        jobs => format!("{at_least}{jobs} jobs match"),
    }
}

/// What is done to a job.
const fn done(action: BulkAction) -> &'static str {
    match action {
        BulkAction::Retry => "retried",
        BulkAction::Cancel => "cancelled",
        BulkAction::Delete => "deleted",
        BulkAction::Dismiss => "dismissed",
        _ => "done",
    }
}

/// How an operation stands, on a line.
fn line(bulk: &Shown) -> String {
    format!(
        "bulk operation {} is {}: {} jobs {}, {} skipped, {} failed",
        bulk.id,
        bulk.status,
        bulk.done,
        done(bulk.action),
        bulk.skipped,
        bulk.failed
    )
}

/// The conditions of a filter.
fn conditions(filter: &BulkFilter) -> String {
    let BulkFilter { state, outcome, session, tenant, pool, kind, dead } = filter;
    let named = [
        ("state", state.map(|state| state.to_string())),
        ("outcome", outcome.map(|outcome| outcome.to_string())),
        ("session", session.clone()),
        ("tenant", tenant.clone()),
        ("pool", pool.clone()),
        ("kind", kind.clone()),
        ("dead", dead.map(|dead| dead.to_string())),
    ];
    let named = named.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    let named: Vec<_> = named.collect();
    shown::joined(&named, ", ")
}

fn list(list: &List<Shown>) -> String {
    let headings = ["BULK", "ACTION", "FILTER", "STATUS", "JOBS", "FAILED", "CREATED"];
    shown::list(headings, list, |bulk| {
        [
            bulk.id.clone(),
            bulk.action.to_string(),
            conditions(&bulk.filter),
            bulk.status.to_string(),
            format!("{}/{}", worked_on(bulk), bulk.matched),
            bulk.failed.to_string(),
            bulk.created_at.clone(),
        ]
    })
}

fn card(bulk: &Shown) -> String {
    shown::card([
        ("bulk operation", bulk.id.clone()),
        ("action", bulk.action.to_string()),
        ("filter", conditions(&bulk.filter)),
        ("before", bulk.before.clone()),
        ("rate", format!("{} jobs per second at most", bulk.rate)),
        ("status", bulk.status.to_string()),
        ("matched", bulk.matched.to_string()),
        (done(bulk.action), bulk.done.to_string()),
        ("skipped", bulk.skipped.to_string()),
        ("failed", bulk.failed.to_string()),
        ("error", shown::or_none(bulk.error.as_ref())),
        ("by", shown::or_none((!bulk.by.is_empty()).then_some(&bulk.by))),
        ("instance", shown::or_none(bulk.instance.as_ref())),
        ("created", bulk.created_at.clone()),
        ("finished", shown::or_none(bulk.finished_at.as_ref())),
    ])
}

#[cfg(test)]
mod tests {
    use client::wire::jobs::Outcome;

    use super::*;

    #[test]
    fn people_see_where_not_all_jobs_were_counted() {
        let counted = |matched, at_least| BulkAccepted { id: None, matched, at_least, before: None };
        assert_eq!(unchanged(&counted(1, false)), "1 job matches; nothing was changed\n");
        assert_eq!(unchanged(&counted(0, true)), "at least 0 jobs match; nothing was changed\n");
        assert_eq!(matching(&counted(1_000_000, true)), "at least 1000000 jobs match");
    }

    #[test]
    fn people_are_asked_before_what_is_done_is_done_again() {
        assert_eq!(asked(BulkAction::Retry, 1), "Retry it, and do again what it has done");
        assert_eq!(asked(BulkAction::Retry, 2), "Retry them, and do again what they have done");
        let unasked = [None, Some(Outcome::Failed), Some(Outcome::TimedOut)];
        assert_eq!(unasked.map(does_work_again), [false; 3]);
        assert_eq!([Outcome::Succeeded, Outcome::Cancelled].map(Some).map(does_work_again), [true; 2]);
    }

    #[test]
    fn people_see_the_filter_and_how_far_the_operation_is() {
        let bulk: Shown = serde_json::from_value(serde_json::json!({
            "id": "b", "action": "retry", "filter": {"dead": true, "kind": "k"}, "before": "t", "rate": 200,
            "status": "RUNNING", "matched": 9, "done": 2, "skipped": 1, "failed": 1, "error": "no", "by": "",
            "instance": "i", "created_at": "c", "finished_at": null,
        }))
        .unwrap();
        assert_eq!(line(&bulk), "bulk operation b is RUNNING: 2 jobs retried, 1 skipped, 1 failed");
        let newer = line(&Shown { action: BulkAction::Unrecognised, ..bulk.clone() });
        assert!(newer.ends_with("RUNNING: 2 jobs done, 1 skipped, 1 failed"), "{newer}");
        let table = list(&List { items: vec![bulk.clone()], next_cursor: None });
        assert!(table.contains("b     retry   kind k, dead true  RUNNING  4/9   1       c\n"), "{table}");
        let card = card(&bulk);
        assert!(card.contains("retried         2\n") && card.contains("by              -\n"), "{card}");
        let left = Shown { instance: None, ..bulk.clone() };
        assert!(super::card(&left).contains("instance        -\n"), "{}", super::card(&left));
        assert!(!is_over(&bulk) && is_over(&Shown { status: BulkStatus::Failed, ..bulk }));
    }
}
