//! The events of one plan, or of one of its tasks, as they happen: read from the ledger at intervals, so that any instance
//! can stream them and none is missed.

use std::sync::Arc;
use std::time::Duration;

use domain::plan::EventKind;
use domain::{PlanId, TaskId};
use ledger::TimedEvent;
use rand::RngExt;
use wire::events::PLAN_EVENT;

use super::stream::{self, Ended, Place, SseWriter};
use crate::auth::Principal;
use crate::limits::{PLAN_EVENTS_AT_ONCE, PLAN_EVENTS_EVERY_MS};
use crate::plan_fields::to_wire;
use crate::refusal::{Answer, Refusal};
use crate::shares::Kind;
use crate::state::State;
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
pub fn of_plan(state: Arc<State>, principal: Arc<Principal>, follower: PlanFollower) -> Answer {
    let place = Place::take(&state, &principal, Kind::PlanStreams, "plan")?;
    let (writer, answer) =
        stream::open(Arc::clone(&state), state.incarnation(), Arc::clone(&principal), place);
    let following = follower.follow(Arc::clone(&state), writer, principal);
    state.spawn(following);
    Ok(answer)
}

impl PlanFollower {
    async fn follow(mut self, state: Arc<State>, mut writer: SseWriter, principal: Arc<Principal>) {
        if writer.comment("the stream is open").await.is_err() {
            return;
        }
        loop {
            let Ok(Wanted { events, behind }) = writer.beside(self.next(&state)).await else { return };
            for event in events {
                let Ok(shown) = to_wire::event(&event) else { return };
                // A retry may name other pools than those that the client sees.
                if shown.kind == EventKind::Retried.as_str() && !self.is_seen(&state, &principal).await {
                    return;
                }
                let id = event.seq.to_string();
                if let Err(Ended) = writer.event(PLAN_EVENT, Some(&id), &shown).await {
                    return;
                }
            }
            self.after = behind;
        }
    }

    /// Whether the client still sees what it follows.
    async fn is_seen(&self, state: &State, principal: &Principal) -> bool {
        let sees = principal.sees();
        let is_seen = match self.task {
            _ if sees.everything() => return true,
            Some(task) => visibility::task_of_id(state, sees, task).await,
            None => visibility::plan(state, sees, self.plan).await,
        };
        // A client whose stream ends asks again.
        is_seen.unwrap_or(false)
    }

    /// The next events, at least one. While the ledger is away the stream waits for it.
    async fn next(&self, state: &State) -> Wanted {
        let plan = self.plan;
        let read = |after| state.read(state.ledger.plan_events(plan, None, after, PLAN_EVENTS_AT_ONCE));
        next_wanted(self.task, self.after, read).await
    }
}

/// Events that a stream is to show, at least one.
struct Wanted {
    events: Vec<TimedEvent>,
    /// The number of the last event that was read, shown or not: the next read begins behind it.
    behind: u64,
}

/// Reads a plan's events from behind that number on until some are of the task, or are there at all without one. The events
/// of one task have no index: each of the plan's is read once, and the others are left out here.
async fn next_wanted<F: Future<Output = Result<Vec<TimedEvent>, Refusal>>>(
    task: Option<TaskId>,
    after: u64,
    read: impl Fn(u64) -> F,
) -> Wanted {
    let mut behind = after;
    loop {
        let mut may_have_more = false;
        match read(behind).await {
            Ok(mut events) => {
                may_have_more = events.len() >= PLAN_EVENTS_AT_ONCE as usize;
                behind = events.last().map_or(behind, |last| last.seq);
                events.retain(|event| task.is_none() || event.task == task);
                if !events.is_empty() {
                    return Wanted { events, behind };
                }
            }
            Err(refusal) => tracing::debug!(%refusal, "a plan's stream waits"),
        }
        if !may_have_more {
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use domain::Timestamp;

    use super::*;

    const MINE: TaskId = TaskId::from_u128(1);
    const OTHER: TaskId = TaskId::from_u128(2);

    fn event(seq: u64, task: Option<TaskId>) -> TimedEvent {
        TimedEvent { seq, at: Timestamp::from_micros(1), task, document: "{}".to_owned() }
    }

    /// The numbers of the events that a stream shows next, and behind which numbers it has read.
    async fn next(events: &[TimedEvent], task: Option<TaskId>, after: u64) -> (Vec<u64>, u64, Vec<u64>) {
        let asked = RefCell::new(Vec::new());
        let read = |after| {
            asked.borrow_mut().push(after);
            let behind = events.iter().filter(|event| event.seq > after);
            let page: Vec<_> = behind.take(PLAN_EVENTS_AT_ONCE as usize).cloned().collect();
            async move { Ok(page) }
        };
        let wanted = next_wanted(task, after, read).await;
        (wanted.events.iter().map(|event| event.seq).collect(), wanted.behind, asked.into_inner())
    }

    #[actix_web::test]
    async fn the_stream_of_a_task_reads_each_event_of_its_plan_once() {
        let page = u64::from(PLAN_EVENTS_AT_ONCE);
        let task_of = |seq: u64| match seq {
            _ if seq == 3 || seq == 3 * page - 1 => Some(MINE),
            _ => [None, Some(OTHER)][(seq % 2) as usize],
        };
        let events: Vec<_> = (1..=3 * page).map(|seq| event(seq, task_of(seq))).collect();
        assert_eq!(next(&events, Some(MINE), 0).await, (vec![3], page, vec![0]));
        let (shown, behind, asked) = next(&events, Some(MINE), page).await;
        assert_eq!((shown, behind, asked), (vec![3 * page - 1], 3 * page, vec![page, 2 * page]));
        // Without a task all are shown.
        assert_eq!(next(&events[..4], None, 1).await, (vec![2, 3, 4], 4, vec![1]));
    }

    #[actix_web::test]
    async fn what_is_of_others_is_not_read_again_while_a_stream_waits() {
        let asked = RefCell::new(Vec::new());
        let read = |after| {
            asked.borrow_mut().push(after);
            let page = match asked.borrow().len() {
                1 => vec![event(1, Some(OTHER)), event(2, None)],
                2 => vec![event(3, Some(MINE))],
                _ => unreachable!("it is shown first"),
            };
            async move { Ok(page) }
        };
        let wanted = next_wanted(Some(MINE), 0, read).await;
        assert_eq!((wanted.events, wanted.behind), (vec![event(3, Some(MINE))], 3));
        assert_eq!(asked.into_inner(), [0, 2]);
    }
}
