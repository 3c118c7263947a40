//! Who this instance is, and by what it shows that it lives.
//!
//! What lives here: the identity of one incarnation and the `instance:` lease behind it.
//! What must never: a decision about a key's work, or a name that two incarnations could share.

mod standing;

use std::time::{Duration, Instant};

use domain::limits::INSTANCE_ID_CHARS_MAX;
use domain::{InstanceId, Resource, ResourceKind, Token};
use ledger::{Acquisition, Handle, LeaseFilter, NewInstance, Renewal};
use rand::RngExt;
pub use standing::Standing;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Characters that the part of an instance id unique to one start has, its dash included.
const UNIQUE_CHARS: usize = 33;
/// Longest node name, in characters.
pub const NODE_NAME_CHARS_MAX: usize = INSTANCE_ID_CHARS_MAX - UNIQUE_CHARS;
/// Mean pause between two attempts to join, in milliseconds.
const JOIN_PAUSE_MS: u64 = 200;
/// A lease is renewed this many times before it would run out.
pub const RENEWALS_PER_LEASE: u32 = 4;

/// One incarnation of Fencepost, as it presents itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its id: node name and a part unique to this start.
    pub id: InstanceId,
    /// Where others reach it.
    pub url: String,
}

impl Identity {
    /// A new incarnation of the node. The unique part is what keeps a restarted process from renewing
    /// the lease of its own paused predecessor.
    ///
    /// # Errors
    /// [`domain::Invalid`] for a node name outside the safe characters or longer than
    /// [`NODE_NAME_CHARS_MAX`].
    pub fn new(node_name: &str, url: String) -> Result<Self, domain::Invalid> {
        let too_long = || domain::Invalid {
            what: "node_name",
            expected: format!("1 to {NODE_NAME_CHARS_MAX} characters of letters, digits and . _ : @ -"),
        };
        if node_name.is_empty() {
            return Err(too_long());
        }
        let id =
            InstanceId::parse(&format!("{node_name}-{}", Uuid::now_v7().simple())).map_err(|_| too_long())?;
        Ok(Self { id, url })
    }
}

/// What an incarnation tells of its process.
#[derive(Clone, Debug)]
pub struct Process {
    /// The machine's name.
    pub hostname: String,
    /// The process there.
    pub pid: u32,
    /// The version of the binary.
    pub version: String,
}

/// The running proof of life: written down in the ledger, its lease renewed in the background.
pub struct Membership {
    standing: Standing,
    forgotten: watch::Receiver<bool>,
    stop: oneshot::Sender<()>,
    heart: JoinHandle<()>,
}

impl Membership {
    /// Writes the incarnation down, takes its lease and keeps renewing it. A ledger that goes away
    /// meanwhile is waited for, `patience` at most; both writes can be repeated, whatever became of the
    /// first attempt.
    ///
    /// # Errors
    /// [`ledger::Error`] when the ledger cannot be written.
    pub async fn join(
        ledger: Handle,
        identity: &Identity,
        process: Process,
        lease: Duration,
        patience: Duration,
    ) -> ledger::Result<Self> {
        let Process { hostname, pid, version } = process;
        let (id, url) = (identity.id.clone(), identity.url.clone());
        let instance = NewInstance { id: id.clone(), url, hostname, pid, version };
        let standing = Standing::member(lease);
        let (forget, forgotten) = watch::channel(false);
        let mut heart = Heart { ledger, id, lease, token: None, standing: standing.clone(), forget };
        let give_up = tokio::time::Instant::now() + patience;
        while let Err(error) = heart.start(&instance).await {
            if !error.is_retryable() || tokio::time::Instant::now() >= give_up {
                return Err(error);
            }
            tracing::warn!(%error, "waiting for the ledger");
            let pause = rand::rng().random_range(JOIN_PAUSE_MS / 2..JOIN_PAUSE_MS * 3 / 2);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let (stop, stopped) = oneshot::channel();
        Ok(Self { standing, forgotten, stop, heart: tokio::spawn(heart.beat(stopped)) })
    }

    /// What this instance knows of life and death.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing.clone()
    }

    /// Comes back when this incarnation was forgotten: it was away for so long that its lease's row was
    /// purged, and its id can never be acquired again. A new incarnation is needed.
    pub async fn forgotten(&mut self) {
        // A heart that died forgets nobody; that is seen when it is asked to stop.
        if self.forgotten.wait_for(|forgotten| *forgotten).await.is_err() {
            std::future::pending().await
        }
    }

    /// Ends the lease, so that others see at once that this instance is gone.
    pub async fn leave(self) {
        // The heart may have stopped by itself; there is then nothing to tell it.
        let _ = self.stop.send(());
        if let Err(error) = self.heart.await {
            tracing::error!(%error, "the renewal of the instance's lease had died");
        }
    }
}

struct Heart {
    ledger: Handle,
    id: InstanceId,
    lease: Duration,
    token: Option<Token>,
    standing: Standing,
    forget: watch::Sender<bool>,
}

/// Instances looked at after each renewal.
const NEIGHBOURS_MAX: u32 = 1_000;

impl Heart {
    async fn start(&mut self, instance: &NewInstance) -> ledger::Result<()> {
        self.ledger.register(instance).await?;
        self.acquire().await
    }

    async fn beat(mut self, mut stopped: oneshot::Receiver<()>) {
        let period = self.lease / RENEWALS_PER_LEASE;
        loop {
            let jittered = period.mul_f64(rand::rng().random_range(0.9..1.1));
            tokio::select! {
                _ = &mut stopped => break,
                () = tokio::time::sleep(jittered) => {}
            }
            if let Err(error) = self.renew_or_acquire().await {
                metrics::counter!("fencepost_lease_renew_total", "result" => "error").increment(1);
                tracing::warn!(%error, "the instance's lease could not be renewed");
            }
        }
        if let Some(token) = self.token {
            let resource = Resource::instance(&self.id);
            if let Err(error) = self.ledger.release(&resource, &self.id, token).await {
                tracing::warn!(%error, "the instance's lease was not released and runs out by itself");
            }
        }
    }

    async fn renew_or_acquire(&mut self) -> ledger::Result<()> {
        let Some(token) = self.token else { return self.acquire_again().await };
        let resource = Resource::instance(&self.id);
        let renewal = [Renewal { resource, token, lease_ms: self.lease.as_millis() as u64 }];
        // A row that does not come back may just have been locked: it is asked for once more.
        for _ in 0..2 {
            let sent = Instant::now();
            if !self.ledger.renew(&self.id, &renewal).await?.is_empty() {
                self.standing.renewed(sent);
                self.look_around().await;
                metrics::counter!("fencepost_lease_renew_total", "result" => "renewed").increment(1);
                return Ok(());
            }
        }
        metrics::counter!("fencepost_lease_renew_total", "result" => "lost").increment(1);
        self.token = None;
        self.acquire_again().await
    }

    /// Takes the lease that this incarnation had before. One that was away for so long that its row was
    /// purged stays away: its token would start over.
    async fn acquire_again(&mut self) -> ledger::Result<()> {
        let resource = Resource::instance(&self.id);
        if self.ledger.lease(&resource).await?.is_none() {
            tracing::error!(%resource, "this incarnation was forgotten");
            self.forget.send_replace(true);
            return Ok(());
        }
        self.acquire().await
    }

    /// Looks at the others, for as long as the next renewal is not due: a ledger that is slow to answer must
    /// not make this instance look dead.
    async fn look_around(&self) {
        let kind = Some(ResourceKind::Instance);
        let filter = LeaseFilter { kind, limit: NEIGHBOURS_MAX, ..LeaseFilter::default() };
        match tokio::time::timeout(self.lease / RENEWALS_PER_LEASE, self.ledger.leases(&filter)).await {
            Ok(Ok(leases)) => self.standing.saw(leases),
            Ok(Err(error)) => tracing::debug!(%error, "the other instances were not seen"),
            Err(_) => tracing::debug!("the other instances were not seen in time"),
        }
    }

    async fn acquire(&mut self) -> ledger::Result<()> {
        let resource = Resource::instance(&self.id);
        let sent = Instant::now();
        match self.ledger.acquire(&resource, &self.id, self.lease.as_millis() as u64).await? {
            Acquisition::Acquired { token, .. } => {
                tracing::info!(%resource, owner = %self.id, %token, "lease acquired");
                self.token = Some(token);
                self.standing.renewed(sent);
                self.look_around().await;
            }
            Acquisition::Held { owner, .. } => {
                tracing::error!(%resource, %owner, "another holds the lease of this very instance");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_starts_of_one_node_are_two_instances() {
        let start = || Identity::new("node-a", "http://127.0.0.1:7070".to_owned()).unwrap().id;
        let (first, second) = (start(), start());
        assert_ne!(first, second);
        assert!(first.as_str().starts_with("node-a-"));
    }

    #[test]
    fn node_names_leave_room_for_the_unique_part() {
        let named = |name: &str| Identity::new(name, String::new()).map(|_| ());
        assert!(named(&"n".repeat(NODE_NAME_CHARS_MAX)).is_ok());
        assert!(named(&"n".repeat(NODE_NAME_CHARS_MAX + 1)).is_err());
        assert!(named("").is_err());
        assert!(named("a b").is_err());
    }
}
