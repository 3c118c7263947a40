//! The node's record at the bus: taken over when it connects, written with each heartbeat, made anew when it was lost.

use std::sync::Arc;
use std::time::Instant;

use actors::jobs::limits::RESERVATION;
use bus::{Connected, Epoch, NodeState, Slot, Version, Written};
use futures_util::FutureExt;
use nodes::connection::{CloseCode, Hello};
use nodes::limits::HEARTBEAT_MS_DEFAULT;
use nodes::{Profile, Record, Stamp, Status};

use super::{Done, Known, Registered, Socket};
use crate::limits::{NODE_CONTESTED_MAX, NODE_REGISTER_AGAIN};
use crate::server::Incarnation;

impl Socket {
    /// Has the node's record taken over at the bus. Tried until it is, for as long as the socket lives.
    pub(super) fn register(&mut self) {
        let Some(hello) = self.hello.as_ref().filter(|_| !self.registering) else { return };
        self.registering = true;
        self.vouching.said();
        let profile = Arc::new(profile(hello, &self.incarnation));
        let stamp = Stamp { epoch: Epoch::new(0), version: Version::new(0) };
        let report = self.known(hello, &profile, stamp).report();
        let running: Vec<_> = match self.registered {
            Some(_) => self.connection.taken().collect(),
            None => hello.running.clone(),
        };
        let (state, incarnation) = (Arc::clone(&self.state), Arc::clone(&self.incarnation));
        let (node, since) = (hello.node.clone(), self.since);
        let connect = async move {
            let jobs = &incarnation.jobs;
            let connect = async {
                let connected = state.bus.connect_node(&node, jobs.me(), &report, &running, since.elapsed());
                let Some(connected) = connected.await? else { return Ok(None) };
                let unfinished = jobs.attempts_on(&node, &running).await;
                let mut unfinished = match unfinished {
                    Ok(unfinished) if !connected.is_complete => unfinished,
                    Ok(_) | Err(_) => return Ok(Some(Known { connected, told: running, unlisted: vec![] })),
                };
                state.bus.complete_node(&node, connected.epoch, &unfinished).await?;
                unfinished.retain(|slot| !running.contains(slot));
                let connected = Connected { is_complete: true, ..connected };
                Ok(Some(Known { connected, told: running, unlisted: unfinished }))
            };
            Done::Registered(state.call(connect).await)
        };
        self.work.push(connect.boxed_local());
    }

    pub(super) fn register_again(&mut self) {
        self.registering = true;
        let pause = async {
            tokio::time::sleep(NODE_REGISTER_AGAIN).await;
            Done::RegisterAgain
        };
        self.work.push(pause.boxed_local());
    }

    /// Another connection has the node's record. It may be one that the node has left, whose word reached the bus late
    /// and so seemed young: a node that still speaks here is connected again, unless the other hears of it too.
    pub(super) fn contest(&mut self) {
        let contested = *self.contested.get_or_insert_with(Instant::now);
        if contested.elapsed() < NODE_CONTESTED_MAX {
            self.register_again();
        } else {
            self.end(CloseCode::Replaced, "a newer connection of this node took over");
        }
    }

    pub(super) fn free_unlisted(&mut self) {
        if !self.unlisted.is_empty() && Instant::now() >= self.unlisted_until {
            let mut unlisted = std::mem::take(&mut self.unlisted);
            unlisted.retain(|slot| !self.connection.has(*slot) && !self.sending.contains(slot));
            self.free(unlisted);
        }
    }

    /// The node as it is known here.
    pub(super) fn known(&self, hello: &Hello, profile: &Arc<Profile>, stamp: Stamp) -> Record {
        let used = u32::try_from(self.connection.taken().count()).unwrap_or(u32::MAX);
        // Before its welcome it gets work as soon as its slots are known.
        let state = self.connection.state().unwrap_or(NodeState::Accepting);
        let status = Status { capacity: hello.capacity, used, is_complete: true, state };
        Record { stamp, profile: Arc::clone(profile), status, load: self.load }
    }

    pub(super) fn on_registered(&mut self, known: Known) {
        let Known { connected, told, unlisted } = known;
        let Some(hello) = &self.hello else { return };
        let is_contested = self.contested.take().is_some();
        let profile = Arc::new(profile(hello, &self.incarnation));
        let (node, epoch) = (hello.node.clone(), connected.epoch);
        let line = match self.registered.take() {
            None => {
                tracing::info!(%node, %epoch, "a node is connected");
                self.incarnation.jobs.attach(&node, self.since)
            }
            Some(Registered { is_provisional, line, .. }) => {
                tracing::info!(%node, %epoch, is_provisional, is_contested, "a node's record is made anew");
                line
            }
        };
        self.registered = Some(Registered { node, profile, epoch, is_provisional: false, line });
        self.unlisted = unlisted;
        self.unlisted_until = Instant::now() + RESERVATION;
        self.told(&told);
        self.record(connected.version);
        let effects = self.connection.registered(&told, Instant::now());
        self.follow(effects);
        let early = std::mem::take(&mut self.early);
        self.commit(early);
        if !connected.is_complete {
            // The ledger could not be asked. The record is made anew until it can.
            self.register_again();
        }
        self.send_held_back();
        self.refresh();
    }

    /// What was written to the bus is applied here and told to the others.
    pub(super) fn record(&self, version: Version) {
        self.record_as(version, None);
    }

    /// As [`Self::record`], of a heartbeat that arrived then.
    pub(super) fn record_as(&self, version: Version, arrived: Option<Instant>) {
        let (Some(registered), Some(hello)) = (&self.registered, &self.hello) else { return };
        let stamp = Stamp { epoch: registered.epoch, version };
        let record = self.known(hello, &registered.profile, stamp);
        let (registry, now) = (&self.incarnation.registry, Instant::now());
        match arrived {
            Some(arrived) => registry.heartbeat_recorded(record, arrived, now),
            None => registry.recorded(record, now),
        };
    }

    /// Has the record say how the node is now; one such call at a time.
    pub(super) fn refresh(&mut self) {
        let (Some(registered), Some(hello)) = (&self.registered, &self.hello) else { return };
        if registered.is_provisional {
            // It will be told of all that is taken then.
            self.gone.clear();
            return self.note();
        }
        let told = self.recount();
        // Under the epoch that is about to be replaced by its own next one it would find itself replaced. What is on its
        // way to being sent would be freed by a recount, or be sent without its slot.
        if self.refreshing || self.registering || (told.is_some() && !self.sending.is_empty()) {
            self.refresh_again = true;
            if self.registering {
                self.note();
            }
            return;
        }
        self.refreshing = true;
        self.vouching.said();
        let stamp = Stamp { epoch: registered.epoch, version: Version::new(0) };
        let report = self.known(hello, &registered.profile, stamp).report();
        let (node, epoch) = (registered.node.clone(), registered.epoch);
        let gone = std::mem::take(&mut self.gone);
        let api = Arc::clone(&self.state);
        let refresh = async move {
            let written = match &told {
                Some(told) => api.call(api.bus.recount_node(&node, epoch, &report, told)).await,
                None => api.call(api.bus.refresh_node(&node, epoch, &report, &gone)).await,
            };
            Done::Refreshed(written, gone, told)
        };
        self.work.push(refresh.boxed_local());
    }

    pub(super) fn on_refreshed(
        &mut self,
        written: bus::Result<Written>,
        gone: Vec<Slot>,
        told: Option<Vec<Slot>>,
    ) {
        self.refreshing = false;
        self.answered(&written);
        self.on_counted(&written, told);
        match written {
            Ok(Written::Done(version)) => {
                let arrived = self.heartbeat_at.take();
                self.record_as(version, arrived);
            }
            Ok(Written::Lost) => self.register(),
            Ok(Written::Replaced) => self.contest(),
            Err(error) => {
                tracing::debug!(%error, "a node's record was not refreshed");
                self.gone.extend(gone);
            }
        }
        if std::mem::take(&mut self.refresh_again) {
            self.refresh();
        }
    }
}

pub(super) fn profile(hello: &Hello, incarnation: &Incarnation) -> Profile {
    Profile {
        node: hello.node.clone(),
        holder: incarnation.identity.id.clone(),
        labels: Arc::clone(&hello.labels),
        pools: hello.pools.clone(),
        heartbeat_ms: HEARTBEAT_MS_DEFAULT,
        software: hello.software.clone(),
    }
}
