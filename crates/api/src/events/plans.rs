//! The events of one plan, or of one of its tasks, as they happen: read from the ledger at intervals, so that any instance
//! can stream them and none is missed.

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use domain::plan::EventKind;
use domain::{PlanId, TaskId};
use ledger::TimedEvent;
use rand::RngExt;
use wire::events::PLAN_EVENT;

use super::stream::{self, Ended, Line};
use crate::auth::Principal;
use crate::limits::{PLAN_EVENTS_AT_ONCE, PLAN_EVENTS_EVERY_MS};
use crate::plan_fields::to_wire;
use crate::refusal::Refusal;
use crate::state::State;
use crate::streams::Place;
use crate::visibility;

/// Follows the events of a plan.
pub struct PlanFollower {
    /// The plan.
    pub plan: PlanId,
    /// The task, if only its events are wanted.
    pub task: Option<TaskId>,
    /// The number of the last event that the client has seen. 0 for none.
    pub after: u64,
}

/// Streams the events of a plan, from the next one on.
pub fn of_plan(
    state: Arc<State>,
    principal: Arc<Principal>,
    follower: PlanFollower,
) -> Result<HttpResponse, Refusal> {
    let place = Place::of_plan(&state.shares, &principal)?;
    let (line, answer) = stream::open(Arc::clone(&state), state.incarnation(), Arc::clone(&principal), place);
    let following = follower.follow(Arc::clone(&state), line, principal);
    state.spawn(following);
    Ok(answer)
}

impl PlanFollower {
    async fn follow(mut self, state: Arc<State>, mut line: Line, principal: Arc<Principal>) {
        if line.comment("the stream is open").await.is_err() {
            return;
        }
        loop {
            let Ok(events) = line.beside(self.next(&state)).await else { return };
            for event in events {
                let Ok(shown) = to_wire::event(&event) else { return };
                // A retry may name other pools than those that the client sees.
                if shown.kind == EventKind::Retried.as_str() && !self.is_seen(&state, &principal).await {
                    return;
                }
                let id = event.seq.to_string();
                if let Err(Ended) = line.event(PLAN_EVENT, Some(&id), &shown).await {
                    return;
                }
                self.after = event.seq;
            }
        }
    }

    /// Whether the client still sees what it follows.
    async fn is_seen(&self, state: &State, principal: &Principal) -> bool {
        let sees = principal.sees();
        let is_seen = match self.task {
            _ if sees.everything() => return true,
            Some(task) => match state.read(state.ledger.plan_task(task)).await {
                Ok(record) => Ok(record.is_some_and(|record| visibility::task(sees, &record))),
                Err(refusal) => Err(refusal),
            },
            None => visibility::plan(state, sees, self.plan).await,
        };
        // A client whose stream ends asks again.
        is_seen.unwrap_or(false)
    }

    /// The next events, at least one. While the ledger is away the stream waits for it.
    async fn next(&self, state: &State) -> Vec<TimedEvent> {
        loop {
            let read = state.ledger.plan_events(self.plan, self.task, self.after, PLAN_EVENTS_AT_ONCE);
            match state.read(read).await {
                Ok(events) if !events.is_empty() => return events,
                Ok(_) => {}
                Err(refusal) => tracing::debug!(%refusal, plan = %self.plan, "a plan's stream waits"),
            }
            tokio::time::sleep(pause()).await;
        }
    }
}

/// The time until the next read, spread at random so that streams do not read together.
fn pause() -> Duration {
    let spread = PLAN_EVENTS_EVERY_MS / 5;
    let range = PLAN_EVENTS_EVERY_MS - spread..=PLAN_EVENTS_EVERY_MS + spread;
    Duration::from_millis(rand::rng().random_range(range))
}
