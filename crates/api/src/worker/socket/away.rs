//! What a socket's holder does itself while the bus is away: welcome a node, and give its slots out to the lanes of this
//! instance. The bus hears of it with the first word that reaches it, and until then nobody reserves there.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use actors::jobs::Dispatch;
use bus::{Claim, Epoch, Reserved, Slot, Version, Written};
use domain::NodeId;
use domain::job::Revoked;
use futures_util::FutureExt;
use nodes::Stamp;
use nodes::limits::OFFLINE_MS;
use tokio::sync::oneshot;

use super::record::profile;
use super::{Done, Registered, Socket};
use crate::limits::NODE_REGISTER_AGAIN;

impl Socket {
    /// A word to the bus was answered, or not.
    pub(super) fn answered<T>(&mut self, answer: &bus::Result<T>) {
        match answer {
            Err(error) if !error.may_have_run() => self.vouching.unheard(),
            Ok(_) | Err(_) => self.vouching.heard(Instant::now()),
        }
    }

    /// The bus cannot be asked: the node is welcomed for the work of this instance's lanes. The bus hears of it when it
    /// is back.
    pub(super) fn welcome_alone(&mut self) {
        let Some(hello) = &self.hello else { return };
        let (node, running) = (hello.node.clone(), hello.running.clone());
        let profile = profile(hello, &self.incarnation).into();
        let epoch = self.incarnation.registry.next_epoch(&node);
        let line = self.incarnation.jobs.attach(&node, self.since);
        tracing::info!(%node, "a node is connected while the bus is away");
        self.registered = Some(Registered { node: node.clone(), profile, epoch, is_provisional: true, line });
        let (state, jobs) = (self.state.clone(), self.incarnation.jobs.clone());
        let look = async move {
            // What it does not list any more is lost, whoever is told.
            if let Err(error) = state.call(jobs.attempts_on(&node, &running)).await {
                tracing::debug!(%error, %node, "its attempts could not be looked up yet");
            }
            Done::Over
        };
        self.work.push(look.boxed_local());
        let effects = self.connection.registered(&[], Instant::now());
        self.follow(effects);
        let early = std::mem::take(&mut self.early);
        self.commit(early);
        self.note();
    }

    /// A lane of this instance wants slots, and could not ask the bus for them.
    pub(super) fn grant(
        &mut self,
        claims: &[Claim],
        ends: Instant,
        reply: oneshot::Sender<Option<Vec<Reserved>>>,
    ) {
        let now = Instant::now();
        let given = self.vouching.may_give(now).then(|| self.connection.grant(claims, ends, now));
        if given.as_ref().is_some_and(|given| given.contains(&Reserved::Yes)) {
            self.vouching.ahead(true);
            self.note();
        }
        // What nobody waits for any more runs out.
        let _ = reply.send(given);
    }

    /// The node as it is known here, while the bus does not take it.
    pub(super) fn note(&self) {
        let (Some(registered), Some(hello)) = (&self.registered, &self.hello) else { return };
        let stamp = Stamp { epoch: registered.epoch, version: Version::new(0) };
        let record = self.known(hello, &registered.profile, stamp);
        self.incarnation.registry.noted(record, Instant::now());
    }

    /// All slots of which the record must know, if there may be others than it knows of.
    pub(super) fn recount(&self) -> Option<Vec<Slot>> {
        let all = || self.connection.taken().chain(self.unlisted.iter().copied()).collect();
        self.vouching.is_ahead().then(all)
    }

    /// These were told to be taken; what was taken meanwhile is still to be told.
    pub(super) fn told(&mut self, told: &[Slot]) {
        let told: HashSet<_> = told.iter().copied().collect();
        let is_all = self.connection.taken().all(|slot| told.contains(&slot));
        self.vouching.ahead(!is_all);
    }

    /// Dispatches that came before the bus heard which slots are taken: now it has.
    pub(super) fn send_held_back(&mut self) {
        let held_back = std::mem::take(&mut self.held_back);
        if !held_back.is_empty() {
            self.send_out(held_back);
        }
    }

    /// The bus cannot be asked whether these have their slots.
    pub(super) fn refuse(&mut self, dispatches: Vec<Dispatch>) {
        for Dispatch { job, attempt, .. } in dispatches {
            self.called_off.remove(&Slot { job, attempt });
            let why = "the bus is away, and with it the slot";
            self.incarnation.jobs.came_to_nothing(job, attempt, Revoked::Undeliverable, why);
        }
    }

    /// What became of a word that told which slots are taken.
    pub(super) fn on_counted(&mut self, written: &bus::Result<Written>, told: Option<Vec<Slot>>) {
        match (written, told) {
            (Ok(Written::Done(_)), told) => {
                if let Some(told) = told {
                    self.told(&told);
                    // What has ended meanwhile was freed before, perhaps in vain.
                    let taken: HashSet<_> =
                        self.connection.taken().chain(self.unlisted.iter().copied()).collect();
                    self.free(told.into_iter().filter(|slot| !taken.contains(slot)).collect());
                }
                self.send_held_back();
            }
            // The record is made anew first.
            (Ok(Written::Lost | Written::Replaced), _) => {}
            (Err(_), _) => {
                let held_back = std::mem::take(&mut self.held_back);
                self.refuse(held_back);
                self.note();
            }
        }
    }
}

/// Says that a node, which was heard of then, is gone, once nobody else may have it; until that is answered.
pub(super) async fn disconnect_for_sure(
    bus: &bus::Handle,
    node: &NodeId,
    epoch: Epoch,
    heard: Instant,
) -> bus::Result<Written> {
    loop {
        until_known(bus, heard).await;
        match bus.disconnect_node(node, epoch).await {
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, %node, "a node that is gone was not taken off yet");
                tokio::time::sleep(NODE_REGISTER_AGAIN).await;
            }
            answer => return answer,
        }
    }
}

/// Comes back when it is known whether a node that was heard of then has connected to another instance: the link to the
/// bus has been well since, or for so long that whoever did so while it was away has told.
async fn until_known(bus: &bus::Handle, heard: Instant) {
    const LONG: Duration = Duration::from_millis(OFFLINE_MS);
    let mut link = bus.link();
    loop {
        let up_for = link.borrow_and_update().up_for();
        let changed = match up_for {
            Some(up) if up >= heard.elapsed().min(LONG) => return,
            Some(up) => tokio::time::timeout(LONG.saturating_sub(up), link.changed()).await.unwrap_or(Ok(())),
            None => link.changed().await,
        };
        // A bus that was closed does not come back.
        if changed.is_err() {
            return;
        }
    }
}
