//! The HTTP server. It is bound before the ledger is reached, since its threads are the arbiters on which actors live and
//! batches are committed; requests wait until everything is there. Where that takes long, what needs no ledger is served
//! meanwhile: also snowflakes, where the local file proves a worker number.

use std::num::NonZeroUsize;
use std::time::Duration;

use actors::arbiters::{Arbiters, Recruiter};
use api::Awaited;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::endpoint::{self, Endpoint};
use super::{CLOSE_STEP_MAX, settings, tls};
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// What takes longer than this at the start takes long.
const PROMPT: Duration = Duration::from_secs(1);

/// A running server.
pub struct Serving {
    pub endpoint: Endpoint,
    pub api: api::Handle,
    /// The listener's TLS, if it has any.
    pub tls: Option<api::Tls>,
    /// Its threads.
    pub arbiters: Arbiters,
    pub ended: JoinHandle<std::io::Result<()>>,
    /// The server for health and metrics alone, where one is configured.
    pub probe: Option<api::Probe>,
}

impl Serving {
    /// Binds the configured address, and starts the server's threads.
    ///
    /// # Errors
    /// As [`tls::listener`], [`endpoint::listen`] and [`Endpoint::of`]; [`Exit::Software`] where no server can be started.
    pub async fn start(config: &Config, early: api::Early) -> Result<Self, Failure> {
        let tls = tls::listener(config)?;
        let listener = endpoint::listen("server.listen", &config.server.listen)?;
        let probe_listen = &config.server.probe_listen;
        let probe_listener = (!probe_listen.is_empty())
            .then(|| endpoint::listen("server.probe_listen", probe_listen))
            .transpose()?;
        let endpoint = Endpoint::of(config, &listener)?;
        let settings = api::Settings { tls: tls.clone(), ..settings::api(config) };
        let threads = NonZeroUsize::new(settings.workers).unwrap_or(NonZeroUsize::MIN);
        let (recruiter, recruits) = Recruiter::new(threads);
        let defect = |error| Failure::new(Exit::Software, format!("the HTTP server cannot start: {error}"));
        let server =
            api::Server::bind(listener, early, settings, move || recruiter.join()).map_err(defect)?;
        let (api, ended) = (server.handle(), tokio::spawn(server.run()));
        let gone = || Failure::new(Exit::Software, "the HTTP server's threads ended at the start".to_owned());
        let arbiters = recruits.all().await.ok_or_else(gone)?;
        let probe = match probe_listener {
            None => None,
            Some(listener) => {
                let listen = listener.local_addr().ok().map(tracing::field::display);
                tracing::info!(listen, "health and metrics have a listener of their own");
                Some(api::Probe::start(listener, &api).map_err(defect)?)
            }
        };
        Ok(Self { endpoint, api, tls, arbiters, ended, probe })
    }

    /// Waits for a thing that the start depends on. If that takes long, requests stop waiting: those that need no ledger are
    /// served, and all others are refused, until the start is complete.
    pub async fn refuse_without<T>(&self, awaited: Awaited, wanted: impl Future<Output = T>) -> T {
        self.api.awaits(awaited);
        let mut wanted = std::pin::pin!(wanted);
        match timeout(PROMPT, &mut wanted).await {
            Ok(found) => found,
            Err(_) => {
                self.api.refuse_without(awaited);
                tracing::warn!(
                    url = self.endpoint.url,
                    what = awaited.what(),
                    "the start takes long; what needs no ledger is served meanwhile, and everything else is refused"
                );
                wanted.await
            }
        }
    }

    /// The start has come to nothing: what is under way ends in order.
    pub async fn close(self, drain_timeout: Duration) {
        self.api.drain();
        if timeout(drain_timeout, self.api.idle()).await.is_ok() {
            let _ = timeout(CLOSE_STEP_MAX, self.api.stop()).await;
        } else {
            tracing::warn!(
                requests = self.api.in_flight(),
                "the drain timeout is over; the remaining requests are cut off"
            );
            let _ = timeout(CLOSE_STEP_MAX, self.api.stop_at_once()).await;
        }
        let _ = timeout(CLOSE_STEP_MAX, close_probe(self.probe)).await;
    }
}

/// Closes the server for health and metrics, if there is one.
pub async fn close_probe(probe: Option<api::Probe>) {
    if let Some(probe) = probe {
        probe.stop().await;
    }
}
