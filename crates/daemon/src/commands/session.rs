//! `fencepost session …`: opens, lists, shows and closes sessions.

use client::wire::List;
use client::wire::sessions::{ListedSession, Session as Shown, SessionRequest};
use client::{Client, SessionQuery};
use serde::Serialize;

use super::each::{each, each_unchanged};
use super::look::Look;
use super::{confirm, connect, once, page, shown};
use crate::cli::jobs::Needs;
use crate::cli::sessions::Session;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage where a question was not answered with yes.
pub async fn run(command: Session) -> Result<(), Failure> {
    match command {
        Session::Open { ordering, tenant, needs: Needs { pool, requires, route }, idle_ms, key, remote } => {
            let request = SessionRequest { tenant, route, pool, requires, ordering, idle_ms };
            let key = once::key(key, "session");
            let answer = connect(&remote)?.sessions().open(&request, Some(&key)).await;
            let opened =
                answer.map_err(|error| once::failure(remote.json, error, "The session may be open", &key))?;
            shown::answer(remote.json, &opened, |opened| format!("{}\n", opened.id));
            once::written(&key)
        }
        Session::List { open, closed, tenant, paged, shown } => {
            let client = connect(&shown.remote)?;
            let query = SessionQuery { open: (open || closed).then_some(open), tenant, page: page(paged) };
            Look::list(list).run(&shown, async || client.sessions().list(&query).await).await
        }
        Session::Show { session, shown } => {
            let client = connect(&shown.remote)?;
            Look::one(card).run(&shown, async || client.sessions().get(&session).await).await
        }
        Session::Close { sessions, dry_run, yes, remote } => {
            let client = connect(&remote)?;
            if dry_run {
                return each_unchanged(
                    &sessions,
                    &remote,
                    async |id| client.sessions().get(id).await,
                    would_close,
                )
                .await;
            }
            confirm::ask_at_terminal(yes, || {
                format!("A closed session takes no more jobs. Close {}?", sessions.join(", "))
            })?;
            each(&sessions, &remote, async |id| close(&client, id).await, closed).await
        }
    }
}

/// A session that was closed.
#[derive(Serialize)]
#[serde(untagged)]
enum Closed {
    /// As it is now.
    Seen(Box<Shown>),
    /// It could not be looked at any more.
    Unseen { id: String },
}

/// Closes a session, and looks at it. It is closed, whether it can be looked at or not.
async fn close(client: &Client, id: &str) -> client::Result<Closed> {
    client.sessions().close(id).await?;
    Ok(match client.sessions().get(id).await {
        Ok(session) => Closed::Seen(Box::new(session)),
        Err(_) => Closed::Unseen { id: id.to_owned() },
    })
}

fn closed(session: &Closed) -> String {
    match session {
        Closed::Seen(session) => {
            let jobs = unfinished(session);
            format!("session {} is closed; {jobs} of its jobs have not ended\n", session.id)
        }
        Closed::Unseen { id } => format!("session {id} is closed\n"),
    }
}

fn would_close(session: &Shown) -> String {
    match session.closed_at {
        Some(_) => format!("session {} is closed already\n", session.id),
        None => {
            let jobs = unfinished(session);
            format!("session {} would be closed; {jobs} of its jobs have not ended\n", session.id)
        }
    }
}

const fn unfinished(session: &Shown) -> u64 {
    session.jobs.created + session.jobs.dispatched + session.jobs.running
}

/// Sessions, one line each.
fn list(list: &List<ListedSession>) -> String {
    let headings = ["SESSION", "STATE", "ORDERING", "TENANT", "NEEDS", "IDLE", "CREATED"];
    shown::list(headings, list, |session| {
        [
            session.id.clone(),
            state(session.closed_at.as_ref()).to_owned(),
            session.ordering.to_string(),
            shown::or_none(session.tenant.as_ref()),
            shown::needs(session.pool.as_ref(), session.route.as_ref(), &session.requires),
            shown::length(session.idle_for_ms),
            session.created_at.clone(),
        ]
    })
}

const fn state(closed_at: Option<&String>) -> &'static str {
    if closed_at.is_some() { "closed" } else { "open" }
}

fn card(session: &Shown) -> String {
    let jobs = &session.jobs;
    let route = session.route.as_ref().map(|route| format!("{}:{}", route.source, route.target));
    shown::card([
        ("session", session.id.clone()),
        ("state", state(session.closed_at.as_ref()).to_owned()),
        ("ordering", session.ordering.to_string()),
        ("owner", shown::or_none(session.owner.as_ref())),
        ("tenant", shown::or_none(session.tenant.as_ref())),
        ("pool", shown::or_none(session.pool.as_ref())),
        ("route", shown::or_none(route)),
        ("requires", shown::joined(&session.requires, ", ")),
        (
            "jobs",
            format!(
                "{} CREATED, {} DISPATCHED, {} RUNNING, {} FINISHED, last number {}",
                jobs.created, jobs.dispatched, jobs.running, jobs.finished, session.last_seq
            ),
        ),
        ("last node", shown::or_none(session.last_node.as_ref())),
        ("idle", format!("{} of {}", shown::length(session.idle_for_ms), shown::length(session.idle_ms))),
        ("created", session.created_at.clone()),
        ("closed", shown::or_none(session.closed_at.as_ref())),
    ])
}
