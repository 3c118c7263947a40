//! What the node says of ends: recorded, answered, and then the slot is free at the bus, or passed on to what was dispatched
//! with the same commit.

use std::sync::Arc;

use actors::jobs::{Answer, Dispatch, Failure, NodeResult};
use bus::{Epoch, Slot};
use domain::NodeId;
use domain::job::Revoked;
use futures_util::FutureExt;
use nodes::Registry;
use nodes::connection::{Effect, End};

use super::{Done, Registered, Socket};
use crate::state::State;

impl Socket {
    pub(super) fn commit(&mut self, results: Vec<(Slot, End)>) {
        if results.is_empty() {
            return;
        }
        let Some(registered) = &self.registered else { return self.early.extend(results) };
        let results = results.into_iter().map(|(slot, end)| {
            let output = match end {
                End::Succeeded { output } => Ok(output),
                End::Failed { message, is_retryable } => Err(Failure { message, is_retryable }),
            };
            (slot, NodeResult { job: slot.job, attempt: slot.attempt, output })
        });
        let jobs = &self.incarnation.jobs;
        let (the_owners, others): (Vec<_>, Vec<_>) =
            results.partition(|(_, result)| jobs.is_the_owners(result));
        let (node, may_pass) = (registered.node.clone(), self.may_pass());
        // Neither of them waits for the other.
        for results in [the_owners, others].into_iter().filter(|results| !results.is_empty()) {
            let (slots, results): (Vec<_>, Vec<_>) = results.into_iter().unzip();
            let (state, jobs, node) = (Arc::clone(&self.state), jobs.clone(), node.clone());
            let commit = async move {
                let answers = state.call(jobs.results(&node, results, may_pass)).await;
                Done::Committed(slots, answers)
            };
            self.work.push(commit.boxed_local());
        }
    }

    /// Whether a slot may go from one attempt to the next: the bus knows of the node, and says who gives slots.
    fn may_pass(&self) -> bool {
        let is_known = self.registered.as_ref().is_some_and(|registered| !registered.is_provisional);
        let is_up = self.state.bus.link().borrow().up_for().is_some();
        is_up && is_known && !self.vouching.is_ahead() && !self.registering
    }

    /// The node is told, and what follows on its slots goes to it.
    pub(super) fn on_committed(&mut self, slots: Vec<Slot>, answers: Vec<(Answer, Option<Box<Dispatch>>)>) {
        let may_pass = self.may_pass();
        let (mut effects, mut over, mut dispatches) = (Vec::new(), Vec::new(), Vec::new());
        for (slot, (answer, next)) in slots.into_iter().zip(answers) {
            effects.extend(match answer {
                Answer::Committed => self.connection.committed(slot),
                Answer::Stale => self.connection.stale(slot),
            });
            match next {
                // Taken back while it waited here.
                Some(next) if !self.incarnation.jobs.is_expected(next.job, next.attempt) => {}
                Some(next) if may_pass => {
                    over.push(slot);
                    dispatches.push(*next);
                }
                Some(next) => self.not_passed(&next),
                None => {}
            }
        }
        effects.retain(|effect| !matches!(effect, Effect::Free(slot) if over.contains(slot)));
        self.follow(effects);
        self.pass(over, dispatches);
    }

    /// It was to have a slot that was not passed on to it.
    pub(super) fn not_passed(&self, dispatch: &Dispatch) {
        let (job, attempt, why) = (dispatch.job, dispatch.attempt, Revoked::Undeliverable);
        self.incarnation.jobs.came_to_nothing(job, attempt, why, "its slot could not be passed on");
    }

    /// Asks the bus to let dispatches have the slots of what is over.
    fn pass(&mut self, over: Vec<Slot>, dispatches: Vec<Dispatch>) {
        let Some(registered) = self.registered.as_ref().filter(|_| !over.is_empty()) else { return };
        let (node, epoch, state) = (registered.node.clone(), registered.epoch, Arc::clone(&self.state));
        over.iter().for_each(|slot| self.incarnation.jobs.slot_freed(slot.job, slot.attempt));
        let follows = dispatches.iter().map(|d| Slot { job: d.job, attempt: d.attempt });
        let pairs: Vec<_> = over.iter().copied().zip(follows).collect();
        self.sending.extend(pairs.iter().map(|(_, follows)| follows));
        let pass = async move {
            let mut passed = Vec::with_capacity(pairs.len());
            for pairs in pairs.chunks(bus::limits::NODE_SLOTS_MAX) {
                match state.call(state.bus.pass_slots(&node, epoch, pairs)).await {
                    Ok(more) => passed.extend(more),
                    Err(error) => return Done::Passed(Err(error), over, dispatches),
                }
            }
            Done::Passed(Ok(passed), over, dispatches)
        };
        self.work.push(pass.boxed_local());
    }

    /// What has its slot goes out. Where nobody knows, the slots are freed with the next refresh.
    pub(super) fn on_passed(
        &mut self,
        passed: bus::Result<Vec<bool>>,
        over: Vec<Slot>,
        dispatches: Vec<Dispatch>,
    ) {
        match (&passed, &self.registered) {
            (Ok(passed), Some(Registered { node, epoch, .. })) => {
                let kept = passed.iter().filter(|is_passed| !**is_passed);
                kept.for_each(|_| self.incarnation.registry.freed(node, *epoch));
            }
            _ => {
                self.gone.extend(over);
                self.refresh();
            }
        }
        self.on_sent(passed, dispatches);
    }

    pub(super) fn free(&mut self, slots: Vec<Slot>) {
        let Some(registered) = self.registered.as_ref().filter(|_| !slots.is_empty()) else { return };
        let (node, epoch) = (registered.node.clone(), registered.epoch);
        let (state, registry) = (Arc::clone(&self.state), self.incarnation.registry.clone());
        slots.iter().for_each(|slot| self.incarnation.jobs.slot_freed(slot.job, slot.attempt));
        let capacity = self.hello.as_ref().map_or(0, |hello| hello.capacity as usize);
        let was_full = self.connection.slots().count() + slots.len() >= capacity;
        let free = async move { Done::Freed(free(&state, &registry, &node, epoch, slots).await, was_full) };
        self.work.push(free.boxed_local());
    }

    pub(super) fn on_freed(&mut self, left: Vec<Slot>, was_full: bool) {
        // The others do not ask a full node again before they hear of it.
        let told = |registered: &&Registered| was_full && !registered.is_provisional;
        if let Some(registered) = self.registered.as_ref().filter(told) {
            self.incarnation.registry.tell_of(&registered.node, registered.epoch);
        }
        if !left.is_empty() {
            self.gone.extend(left);
            self.refresh();
        }
    }
}

/// Answers those that could not be freed: they are, with the next refresh.
async fn free(
    state: &Arc<State>,
    registry: &Registry,
    node: &NodeId,
    epoch: Epoch,
    slots: Vec<Slot>,
) -> Vec<Slot> {
    let mut left = Vec::new();
    for slots in slots.chunks(bus::limits::NODE_SLOTS_MAX) {
        match state.call(state.bus.free_slots(node, slots)).await {
            Ok(()) => slots.iter().for_each(|_| registry.freed(node, epoch)),
            Err(error) => {
                tracing::debug!(%error, %node, "slots were not freed yet");
                left.extend(slots);
            }
        }
    }
    left
}
