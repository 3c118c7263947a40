//! `fencepost session …`: opens, shows and closes sessions.

use client::wire::sessions::{Session as Shown, SessionRequest};

use super::look::Look;
use super::{connect, job, shown};
use crate::cli::jobs::Needs;
use crate::cli::sessions::Session;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Session) -> Result<(), Failure> {
    match command {
        Session::Open { ordering, tenant, needs: Needs { pool, requires, route }, idle_ms, key, remote } => {
            let request = SessionRequest { tenant, route, pool, requires, ordering, idle_ms };
            let answer = connect(&remote)?.sessions().open(&request, key.as_deref()).await;
            let opened = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &opened, |opened| format!("{}\n", opened.id));
            Ok(())
        }
        Session::Show { session, shown } => {
            let client = connect(&shown.remote)?;
            Look::one(card).run(&shown, async || client.sessions().get(&session).await).await
        }
        Session::Close { sessions, remote } => {
            let client = connect(&remote)?;
            let close = async |id: &str| {
                client.sessions().close(id).await?;
                client.sessions().get(id).await
            };
            let people = |session: &Shown| {
                let jobs = &session.jobs;
                let open = jobs.created + jobs.dispatched + jobs.running;
                format!("session {} is closed; {open} of its jobs have not ended\n", session.id)
            };
            job::each(&sessions, &remote, close, people).await
        }
    }
}

fn card(session: &Shown) -> String {
    let jobs = &session.jobs;
    let route = session.route.as_ref().map(|route| format!("{}:{}", route.source, route.target));
    let requires = (!session.requires.is_empty()).then(|| session.requires.join(", "));
    shown::card([
        ("session", session.id.clone()),
        ("state", if session.closed_at.is_some() { "closed" } else { "open" }.to_owned()),
        ("ordering", session.ordering.to_string()),
        ("owner", shown::or_none(session.owner.as_ref())),
        ("tenant", shown::or_none(session.tenant.as_ref())),
        ("pool", shown::or_none(session.pool.as_ref())),
        ("route", shown::or_none(route)),
        ("requires", shown::or_none(requires)),
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
