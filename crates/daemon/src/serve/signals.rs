//! SIGTERM and SIGINT: the first asks for an orderly end, the second ends at once. And SIGHUP, which ends nothing.

use std::fmt;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Exit, Failure};
use crate::logging;

/// How long after the first signal another one counts as its echo: supervisors such as `timeout` signal the
/// process and then its whole group.
const ECHO: Duration = Duration::from_millis(50);

/// Which signal it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// From a supervisor.
    Terminate,
    /// From a keyboard.
    Interrupt,
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        })
    }
}

/// Takes SIGHUP over from the system's default, which would end the process.
///
/// # Errors
/// [`Exit::Software`] when the system refuses.
pub fn hangups() -> Result<Signal, Failure> {
    signal(SignalKind::hangup())
        .map_err(|error| Failure::new(Exit::Software, format!("SIGHUP cannot be listened for: {error}")))
}

/// The signals to stop, listened for from the first moment on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes them over from the system's default, which would end the process.
    ///
    /// # Errors
    /// [`Exit::Software`] when the system refuses.
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Exit::Software, format!("signals cannot be listened for: {error}"))
            })
        };
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The next signal.
    pub async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.terminate.recv() => StopSignal::Terminate,
            _ = self.interrupt.recv() => StopSignal::Interrupt,
        }
    }

    /// The next signal that is no echo of the one before.
    pub async fn later(&mut self) -> StopSignal {
        tokio::time::sleep(ECHO).await;
        // Listening anew forgets what came meanwhile.
        if let Ok(anew) = Self::listen() {
            *self = anew;
        }
        self.next().await
    }

    /// The next signal that is no echo of the first, and the status to end with.
    pub async fn second(mut self) -> Exit {
        match self.later().await {
            StopSignal::Terminate => Exit::Terminated,
            StopSignal::Interrupt => Exit::Interrupted,
        }
    }

    /// From now on, but for an echo of the first, a signal ends the process on the spot. What was answered
    /// is committed; leases run out by themselves.
    pub fn second_ends_at_once(self) {
        tokio::spawn(async move {
            let exit = self.second().await;
            tracing::warn!("a second signal to stop: ending at once");
            logging::flush();
            std::process::exit(i32::from(exit.status()));
        });
    }
}
