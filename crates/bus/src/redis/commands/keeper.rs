//! The task that keeps the connection for commands: it probes it, and makes it again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{To, connect, explained, read, remember_servers, send, try_calls, try_out};
use crate::limits::{
    CALLS_TRIED_PROBES, CLUSTER_SERVERS_PROBES, ECHO_MS, PROBE_MS, RECONNECT_PAUSE_MS, REMAKE_MS,
};
use crate::link::Part;
use crate::redis::Shared;
use crate::redis::address::elsewhere;
use crate::redis::cluster_slots::{cluster_slots, named, one_of_each_master};
use crate::redis::failure::{self, Effect};
use crate::redis::half_moved;
use crate::redis::logged_reasons::LoggedReasons;
use crate::redis::pause::{Pause, jittered};
use crate::{Error, Result};

/// Keeps the connection for commands: probes it, and makes it again when it is lost. For ever.
pub(in crate::redis) async fn keep(shared: Arc<Shared>) {
    let mut keeper = Keeper {
        shared,
        pause: Pause::default(),
        awaited: None,
        remade: Instant::now(),
        probes: 0,
        is_trial_told: false,
        elsewhere: LoggedReasons::default(),
        refused: LoggedReasons::default(),
    };
    loop {
        keeper.turn().await;
    }
}

struct Keeper {
    shared: Arc<Shared>,
    pause: Pause,
    /// The first echo that was not heard yet: when it was sent, and which listening connection was to hear it.
    awaited: Option<(Duration, u64)>,
    remade: Instant,
    probes: u32,
    /// Whether the log has said so of the trial that the link is on.
    is_trial_told: bool,
    /// That the Cluster names a server that may not be connected to.
    elsewhere: LoggedReasons,
    /// Why Redis refuses this instance.
    refused: LoggedReasons,
}

impl Keeper {
    async fn turn(&mut self) {
        let shared = self.shared.clone();
        if shared.commands.get().is_none() {
            shared.commands.is_apart.store(false, Ordering::Release);
            match connect(&shared).await {
                Ok(connection) => shared.commands.set(connection),
                Err(error) => {
                    tracing::debug!(%error, "no connection to Redis");
                    self.note(error);
                    return self.pause.wait().await;
                }
            }
        }
        let look = shared.link.look();
        match self.probe().await {
            Ok(()) => {
                shared.link.found_up(look);
                self.refused.ends();
                if shared.link.answers() {
                    *shared.commands.failure.lock() = None;
                }
                let trial = shared.link.trial();
                let is_told = std::mem::replace(&mut self.is_trial_told, trial.is_some());
                if let Some(trial) = trial.filter(|_| !is_told) {
                    tracing::info!(%trial, "the bus is on trial");
                }
                self.pause = Pause::default();
                self.follow_name().await;
                let probed = jittered(Duration::from_millis(PROBE_MS));
                tokio::select! {
                    () = tokio::time::sleep(probed) => {}
                    () = shared.commands.suspected.notified() => {
                        // A single server is asked again first: its connection, if that is at fault, says so by then.
                        if shared.commands.is_cluster() {
                            self.remake().await;
                        }
                        // However many fail: one probe for all of them.
                        tokio::time::sleep(jittered(Duration::from_millis(RECONNECT_PAUSE_MS))).await;
                    }
                }
            }
            Err(error) => {
                let is_refusal = failure::is_servers_word(&error);
                if shared.link.is_up(Part::Commands) {
                    // The presence publisher follows the link, and logs it with this failure.
                    tracing::debug!(%error, "the link to Redis is down");
                }
                *shared.commands.failure.lock() = Some(error.clone());
                shared.link.down(Part::Commands);
                // Those who wait for Redis do not wait for the reason as well.
                self.note(explained(&shared, error).await);
                // A server that answers is of use for reads, and for what frees its memory, until there is a better one.
                if !shared.commands.is_cluster() && !is_refusal {
                    shared.commands.drop_connection();
                }
                self.pause.wait().await;
                if shared.commands.get().is_some() {
                    self.remake().await;
                }
            }
        }
    }

    /// Notes why commands are not answered. It logs an error that only a person can mend, once: the line that the link is down
    /// may have come before the error was known.
    fn note(&mut self, error: Error) {
        if !error.is_retryable() && self.refused.is_new(&error) {
            tracing::warn!(%error, "Redis cannot be used until this is mended");
        }
        *self.shared.commands.failure.lock() = Some(error);
    }

    /// Writes and publishes to ourselves, and sees whether what was published earlier was heard. Now and then it tries the other
    /// calls, too: a right that was taken away, and that only they need, is no link either.
    async fn probe(&mut self) -> Result<()> {
        let shared = &self.shared;
        let listener = &shared.listener;
        if let Some((sent, generation)) = self.awaited {
            if listener.heard() >= sent || listener.generation() != generation {
                self.awaited = None;
            } else if listener.clock().saturating_sub(sent) >= Duration::from_millis(ECHO_MS) {
                tracing::warn!("the probe published to Redis did not come back; reconnecting the listener");
                listener.condemn(generation);
                self.awaited = None;
                shared.commands.suspect_apart();
            }
        }
        let (now, generation) = (listener.clock(), listener.generation());
        let hearing = shared.link.is_well(Part::Listener);
        // Keys of any slot, so that in the end all masters are tried. What was down is up when all of them are well at
        // once: else the link would be down and up in turn while one of them is away.
        let numbers = match shared.commands.is_cluster() && !shared.link.is_up(Part::Commands) {
            true => {
                let slots = send(shared, &cluster_slots(), To::Anybody, Effect::Reads).await?;
                // Also where no write is taken: other servers may have taken the place of all that were known.
                remember_servers(shared, &slots);
                one_of_each_master(&slots, |number| shared.names.probe(number))
            }
            false => vec![rand::random()],
        };
        try_out(shared, &numbers).await?;
        if self.probes.is_multiple_of(CALLS_TRIED_PROBES) || !shared.link.is_up(Part::Commands) {
            try_calls(shared, &numbers).await?;
        }
        if hearing && self.awaited.is_none() {
            self.awaited = Some((now, generation));
        }
        if shared.commands.is_cluster() && self.probes.is_multiple_of(CLUSTER_SERVERS_PROBES) {
            self.look_for_servers().await;
            self.look_at_refusals().await;
        }
        self.probes = self.probes.wrapping_add(1);
        Ok(())
    }

    /// Connects anew where another connection may be to another server: the name of a single one leads both to the same. A
    /// Cluster says itself where a key is.
    async fn follow_name(&mut self) {
        let commands = &self.shared.commands;
        let is_due = self.remade.elapsed() >= Duration::from_millis(REMAKE_MS);
        if !commands.is_cluster() && is_due && commands.is_apart.swap(false, Ordering::AcqRel) {
            let made = commands.generation();
            self.remake().await;
            // Where there is no new one, it is tried again.
            if self.shared.commands.generation() == made {
                self.shared.commands.suspect_apart();
            }
        }
    }

    /// Connects anew, in place of a connection that is not lost. One to a Cluster may know it as it was: a server that went
    /// silent is otherwise waited for again and again. The name of a single server may lead to another one by now, which is
    /// the master. Those who ask meanwhile go on with the old connection.
    async fn remake(&mut self) {
        if self.remade.elapsed() < Duration::from_millis(REMAKE_MS) {
            return;
        }
        match connect(&self.shared).await {
            Ok(connection) => self.shared.commands.set(connection),
            // The driver goes on trying, and may say no more than that the time is over.
            Err(error) if self.shared.commands.is_cluster() && !error.is_retryable() => {
                if !self.shared.link.is_well(Part::Commands) {
                    self.note(error);
                }
            }
            Err(error) => tracing::debug!(%error, "no new connection to Redis"),
        }
        self.remade = Instant::now();
    }

    async fn look_for_servers(&mut self) {
        let shared = &self.shared;
        match send(shared, &cluster_slots(), To::Anybody, Effect::Reads).await {
            Ok(slots) => {
                // The first in their order: each server may name them in another one.
                match named(&slots).filter(|(host, _)| !shared.may_reach(host)).min() {
                    Some((host, port)) => {
                        let refused = elsewhere(&host, port);
                        if self.elsewhere.is_new(&refused) {
                            tracing::warn!(%refused, "a server of the Redis Cluster is not connected to");
                        }
                    }
                    // A server that has left its Cluster names none.
                    None if named(&slots).next().is_some() && self.elsewhere.ends() => {
                        tracing::info!("all servers that the Redis Cluster names may be connected to");
                    }
                    None => {}
                }
                remember_servers(shared, &slots);
            }
            Err(error) => tracing::debug!(%error, "the Cluster's servers could not be listed"),
        }
    }

    /// Finds out whether scripts are refused for long because a hash slot is half moved.
    async fn look_at_refusals(&self) {
        let shared = &self.shared;
        let refused = shared.commands.refusals.long(Instant::now());
        if refused.is_empty() {
            return shared.commands.half_moved.show(Vec::new());
        }
        let views = send(shared, &half_moved::cluster_nodes(), To::Masters, Effect::Reads).await;
        match views.and_then(|views| read::<HashMap<String, String>>(views, Effect::Reads)) {
            Ok(views) => {
                let found = half_moved::half_moved(views.values().map(String::as_str), &refused);
                shared.commands.half_moved.show(found);
            }
            Err(error) => tracing::debug!(%error, "the Cluster's servers did not say what they move"),
        }
    }
}
