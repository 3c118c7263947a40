//! SIGTERM and SIGINT: the first asks for an orderly end, the second ends at once.

use std::fmt;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Exit, Failure};

/// Which signal it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// From a supervisor.
    Terminate,
    /// From a keyboard.
    Interrupt,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        })
    }
}

/// The signals, listened for from the first moment on.
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
    pub async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Terminate,
            _ = self.interrupt.recv() => Told::Interrupt,
        }
    }

    /// From now on a signal ends the process on the spot. What was answered is committed; leases run out
    /// by themselves.
    pub fn second_ends_at_once(mut self) {
        tokio::spawn(async move {
            let exit = match self.next().await {
                Told::Terminate => Exit::Terminated,
                Told::Interrupt => Exit::Interrupted,
            };
            tracing::warn!("told to stop a second time: ending at once");
            std::process::exit(i32::from(exit.status()));
        });
    }
}
