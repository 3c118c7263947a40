//! The calls that a node's state asks for: to the bus, the lanes and the ledger. Each ends as the event that answers it.

use std::collections::HashSet;
use std::slice;
use std::sync::{Arc, Weak};
use std::time::Instant;

use actors::jobs::{Answer, Dispatch as JobDispatch, Failure, HolderNote, Jobs, NodeResult};
use bus::{Connected, Connecting, Epoch, NewConnection, NodeRecord, Report, Slot};
use domain::NodeId;
use domain::job::Ended;
use ledger::jittered;
use nodes::attached::{CommitTerms, Committed, Event, Known, Registering, Rival};
use nodes::connection::{Dispatch, End};

use crate::auth::Principal;
use crate::forwarder::Forwarder;
use crate::limits::NODE_REGISTER_AGAIN;
use crate::services::Incarnation;
use crate::state::State;

/// What every call needs.
pub(super) struct Calls {
    pub(super) state: Arc<State>,
    pub(super) forwarder: Arc<Forwarder>,
    pub(super) incarnation: Arc<Incarnation>,
    pub(super) principal: Arc<Principal>,
    pub(super) node: NodeId,
    pub(super) epoch: Epoch,
    /// What the lanes hand over for the node from then on goes to this connection, or is not on a list that it gave before.
    pub(super) handed_since: Instant,
    /// The note that the connection's node is here, until the connection is over.
    pub(super) holder_note: Weak<HolderNote>,
}

/// A dispatch as the node's state knows it.
pub(super) fn frame_of(dispatch: JobDispatch) -> Dispatch {
    Dispatch { slot: Slot { job: dispatch.job, attempt: dispatch.attempt }, node_job: dispatch.node_job }
}

/// The pause before a node is registered again.
pub(super) async fn pause() -> Event {
    tokio::time::sleep(jittered(NODE_REGISTER_AGAIN)).await;
    Event::RegisterAgain
}

fn slots_of(dispatches: &[Dispatch]) -> Vec<Slot> {
    dispatches.iter().map(|dispatch| dispatch.slot).collect()
}

/// Results, by who writes them: the owner of the job's lane, or this instance.
pub(super) fn by_writer(jobs: &Jobs, results: Vec<(Slot, End)>) -> Vec<Vec<NodeResult>> {
    let results = results.into_iter().map(|(Slot { job, attempt }, end)| {
        let output = match end {
            End::Succeeded { output } => Ok(output),
            End::Failed { message, is_retryable } => {
                Err(Failure { ended: Ended::Failed, message, is_retryable })
            }
        };
        NodeResult { job, attempt, output }
    });
    let (by_owner, by_holder): (Vec<_>, Vec<_>) = results.partition(|result| jobs.is_the_owners(result));
    [by_owner, by_holder].into_iter().filter(|results| !results.is_empty()).collect()
}

impl Calls {
    /// Takes the record over, and completes it with the ledger's unfinished attempts if the bus had none. A node that `is_new`
    /// here may be another token's elsewhere.
    pub(super) async fn register(
        self,
        report: Report,
        running: Vec<Slot>,
        (since, over, had): (Instant, Option<Epoch>, Option<Epoch>),
        is_new: bool,
    ) -> Event {
        let Self { state, incarnation, principal, node, handed_since, holder_note, .. } = &self;
        let (jobs, bus, is_lent) = (&incarnation.jobs, &state.bus, report.vouched.is_none());
        let register = async {
            let (holder, age) = (jobs.me(), since.elapsed());
            let floor = incarnation.registry.epoch_floor(node);
            let new = NewConnection { holder, principal: principal.name(), age, over, had, floor };
            let connecting = bus.connect_node(node, &new, &report, &running).await;
            let may_stay = !matches!(connecting, Ok(Connecting::Younger | Connecting::Anothers));
            if is_new && may_stay && self.is_anothers_elsewhere().await {
                if let Ok(Connecting::Done(Connected { epoch, .. })) = connecting {
                    // It may be from another connection of the same token: nobody is to read that the node is gone.
                    if let Err(error) = bus.withdraw_node(node, epoch).await {
                        tracing::debug!(%error, %node, "the record of a node that is turned away stays until its time is over");
                    }
                }
                return Ok(Registering::Anothers);
            }
            let connected = match connecting? {
                Connecting::Done(connected) => connected,
                Connecting::Younger => return self.rival().await.map(Registering::Contested),
                Connecting::Anothers => return Ok(Registering::Anothers),
            };
            // The lanes hear of attempts that the node does not list, whatever the bus knows.
            let unfinished = jobs.attempts_on(node, holder_note, *handed_since, &running).await;
            let mut unfinished = match unfinished {
                Ok(unfinished) if !connected.is_complete => unfinished,
                Ok(_) | Err(_) => {
                    return Ok(Registering::Done(Known { connected, taken: running, unlisted: vec![] }));
                }
            };
            bus.complete_node(node, connected.epoch, &unfinished).await?;
            let listed: HashSet<_> = running.iter().copied().collect();
            unfinished.retain(|slot| !listed.contains(slot));
            let connected = Connected { is_complete: true, ..connected };
            Ok(Registering::Done(Known { connected, taken: running, unlisted: unfinished }))
        };
        let known = state.call(register).await;
        Event::Registered { known, is_lent, provisional: incarnation.registry.next_epoch(node) }
    }

    /// The connection that has the node's record.
    async fn rival(&self) -> bus::Result<Rival> {
        let (bus, node) = (&self.state.bus, &self.node);
        let record = bus.show_nodes(slice::from_ref(node)).await?.remove(node);
        // A record that is gone is in nobody's way.
        let Some(NodeRecord { holder, epoch, .. }) = record else {
            return Ok(Rival { epoch: Epoch::new(0), is_there: true });
        };
        // A presence outlives its instance where the clock of Redis was set back.
        let has_ended = self.incarnation.reach.has_ended(&holder);
        let is_there = !has_ended && bus.present(slice::from_ref(&holder)).await?.contains_key(&holder);
        Ok(Rival { epoch, is_there })
    }

    /// Has the lanes told of attempts that the node does not list.
    pub(super) async fn look_up(self, running: Vec<Slot>) -> Option<Event> {
        let Self { state, incarnation, node, handed_since, holder_note, .. } = &self;
        let attempts = incarnation.jobs.attempts_on(node, holder_note, *handed_since, &running);
        if let Err(error) = state.call(attempts).await {
            tracing::debug!(%error, %node, "a node's attempts could not be looked up yet");
        }
        None
    }

    pub(super) async fn refresh(self, report: Report, freed: Vec<Slot>, taken: Option<Vec<Slot>>) -> Event {
        let Self { state, node, epoch, .. } = &self;
        let is_lent = report.vouched.is_none();
        let written = match &taken {
            Some(taken) => state.call(state.bus.recount_node(node, *epoch, &report, taken)).await,
            None => state.call(state.bus.refresh_node(node, *epoch, &report, &freed)).await,
        };
        Event::Refreshed { written, is_lent, freed, taken }
    }

    pub(super) async fn send_slots(self, dispatches: Vec<Dispatch>) -> Event {
        let Self { state, node, epoch, .. } = &self;
        let slots = slots_of(&dispatches);
        let sent = state.call(state.bus.send_slots(node, *epoch, &slots)).await;
        Event::Sent { sent, dispatches }
    }

    pub(super) async fn pass_slots(self, over: Vec<Slot>, dispatches: Vec<Dispatch>) -> Event {
        let Self { state, node, epoch, .. } = &self;
        let pairs: Vec<_> = over.iter().copied().zip(slots_of(&dispatches)).collect();
        let pass = async {
            let mut passed = Vec::with_capacity(pairs.len());
            for pairs in pairs.chunks(bus::limits::NODE_SLOTS_MAX) {
                passed.extend(state.bus.pass_slots(node, *epoch, pairs).await?);
            }
            Ok(passed)
        };
        let passed = state.call(pass).await;
        Event::Passed { passed, over, dispatches }
    }

    pub(super) async fn free_slots(self, slots: Vec<Slot>, was_full: bool) -> Event {
        let Self { state, incarnation, node, epoch, .. } = &self;
        let mut left = Vec::new();
        for slots in slots.chunks(bus::limits::NODE_SLOTS_MAX) {
            match state.call(state.bus.free_slots(node, slots)).await {
                Ok(()) => slots.iter().for_each(|_| incarnation.registry.freed(node, *epoch)),
                Err(error) => {
                    tracing::debug!(%error, %node, "slots could not be freed yet");
                    left.extend(slots);
                }
            }
        }
        Event::Freed { left, was_full }
    }

    pub(super) async fn commit(self, results: Vec<NodeResult>, terms: CommitTerms) -> Event {
        let Self { state, incarnation, node, .. } = &self;
        let jobs = &incarnation.jobs;
        let slots: Vec<_> =
            results.iter().map(|result| Slot { job: result.job, attempt: result.attempt }).collect();
        let answers = state.call(jobs.results(node, results, terms.may_pass)).await;
        let committed = slots.into_iter().zip(answers).map(|(slot, (answer, next))| Committed {
            slot,
            is_recorded: matches!(answer, Answer::Committed),
            // An attempt that was taken back meanwhile is not sent.
            next: next.filter(|next| jobs.is_expected(next.job, next.attempt)).map(|next| frame_of(*next)),
        });
        Event::Committed { committed: committed.collect(), terms }
    }
}
