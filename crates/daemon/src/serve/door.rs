//! The socket, and the server behind it. It is opened once all is there; or before, while the ledger is away, where
//! the local file proves a worker number: then snowflakes are made already.

use std::net::TcpListener;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::place::{self, Place};
use super::{FAREWELL_MAX, settings};
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// A running server.
pub struct Serving {
    pub api: api::Handle,
    pub ended: JoinHandle<std::io::Result<()>>,
}

/// Bound, and perhaps serving already.
pub struct Door {
    pub place: Place,
    listener: TcpListener,
    early: Option<Serving>,
}

impl Door {
    /// Binds the configured address. Who connects waits.
    ///
    /// # Errors
    /// As [`place::listen`] and [`Place::of`].
    pub fn find(config: &Config) -> Result<Self, Failure> {
        let listener = place::listen(config)?;
        let place = Place::of(config, &listener)?;
        Ok(Self { place, listener, early: None })
    }

    /// Serves what needs no ledger.
    ///
    /// # Errors
    /// [`Exit::Software`] where no server can be started.
    pub fn open_early(&mut self, config: &Config, early: api::Early) -> Result<(), Failure> {
        let listener = self.listener.try_clone().map_err(defect)?;
        self.early = Some(Serving::start(listener, config, early)?);
        tracing::warn!(
            url = self.place.url,
            "the ledger was not reached yet; snowflakes are made by the local file, everything else is refused"
        );
        Ok(())
    }

    /// Serves everything.
    ///
    /// # Errors
    /// As [`Self::open_early`].
    pub fn open(
        self,
        config: &Config,
        early: api::Early,
        services: api::Services,
    ) -> Result<(Place, Serving), Failure> {
        let serving = match self.early {
            Some(serving) => serving,
            None => Serving::start(self.listener, config, early)?,
        };
        serving.api.open(services);
        Ok((self.place, serving))
    }

    /// The start has come to nothing: what was served early ends in order.
    pub async fn close(self, drain_timeout: Duration) {
        let Some(Serving { api, .. }) = self.early else { return };
        api.drain();
        if timeout(drain_timeout, api.idle()).await.is_err() {
            tracing::warn!(requests = api.in_flight(), "the time to drain is up; what is left is cut off");
        }
        let _ = timeout(FAREWELL_MAX, api.stop()).await;
    }
}

impl Serving {
    fn start(listener: TcpListener, config: &Config, early: api::Early) -> Result<Self, Failure> {
        let server = api::Server::bind(listener, early, settings(config)).map_err(defect)?;
        Ok(Self { api: server.handle(), ended: tokio::spawn(server.run()) })
    }
}

fn defect(error: std::io::Error) -> Failure {
    Failure::new(Exit::Software, format!("the HTTP server cannot start: {error}"))
}
