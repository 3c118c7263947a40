//! A child process and all that it starts: ended together, and never signalled once their number may be somebody
//! else's.

use std::io;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// A child that leads a process group of its own. Dropping it kills the group.
///
/// The kernel keeps the group's number as long as the leader is not reaped. So the group is signalled before that
/// only: `leader` and `child` say whether it is still time.
pub struct Group {
    /// The leader's, until it was reaped.
    leader: Option<Pid>,
    child: Child,
}

impl Group {
    /// Starts a command as a group.
    ///
    /// # Errors
    /// The system's, when it cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Self { leader, child })
    }

    /// The child itself, for its pipes.
    pub const fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Signals all of the group.
    pub fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // A process that has ended needs no signal.
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Waits until the leader has ended; what it left running is killed then.
    ///
    /// # Errors
    /// The system's; the group was killed.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        if let Some(leader) = self.leader {
            // Listening begins before the look, so that no end is missed.
            let mut children = signal(SignalKind::child())?;
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            while waitid(WaitId::Pid(leader), look)?.is_none() {
                children.recv().await;
            }
            self.signal(Signal::KILL);
        }
        self.leader = None;
        self.child.wait().await
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
