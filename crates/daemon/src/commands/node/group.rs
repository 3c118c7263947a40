//! A child process and all that it starts: ended together, and never signalled once their number may be somebody
//! else's.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use procfs::process::{Process, all_processes};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    pidfd_send_signal, prlimit, waitid,
};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// A child that leads a process group of its own. Dropping it while the child runs kills the group, and what has left it.
///
/// The kernel keeps the group's number as long as the leader is not reaped. So the group is signalled before that
/// only: `leader` and `child` say whether it is still time.
pub struct Group {
    /// The leader's, until it was reaped.
    leader: Option<Pid>,
    child: Child,
    /// Processes that the leader or its children started and that left the group, as `timeout` does, as far as a signal was for
    /// them. Their handles stay theirs.
    strays: HashMap<Pid, OwnedFd>,
}

impl Group {
    /// Starts a command as a group, with this limit of open files.
    ///
    /// # Errors
    /// The system's, when it cannot be started.
    pub fn spawn(command: &mut Command, descriptors: Rlimit) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // It may have ended already.
        let _ = prlimit(leader, Resource::Nofile, descriptors);
        Ok(Self { leader, child, strays: HashMap::new() })
    }

    /// The child itself, for its pipes.
    pub const fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Signals all of the group, and what its processes started outside of it.
    pub fn signal(&mut self, signal: Signal) {
        if let Some(leader) = self.leader {
            // First: a leader that ends leaves its children to another parent.
            self.find_strays(leader);
        }
        self.signal_known(signal);
    }

    fn signal_known(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // A process that has ended needs no signal.
            let _ = kill_process_group(leader, signal);
        }
        for stray in self.strays.values() {
            let _ = pidfd_send_signal(stray, signal);
        }
    }

    /// Waits until the leader has ended; what it left running in its group is killed then, and what was signalled before.
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
            // What it left is nobody's child any more.
            self.signal_known(Signal::KILL);
        }
        self.leader = None;
        self.child.wait().await
    }

    /// Looks for descendants of the leader that are in another group.
    fn find_strays(&mut self, leader: Pid) {
        // Where processes cannot be listed, the group is all that is known.
        let Ok(processes) = all_processes() else { return };
        let stats = processes.filter_map(|process| process.ok()?.stat().ok());
        let mut children = HashMap::<i32, Vec<_>>::new();
        for stat in stats {
            children.entry(stat.ppid).or_default().push(stat);
        }
        let group = leader.as_raw_pid();
        let (mut parents, mut seen) = (vec![group], HashSet::new());
        while let Some(parent) = parents.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                if !seen.insert(child.pid) {
                    continue;
                }
                parents.push(child.pid);
                if child.pgrp == group {
                    continue;
                }
                let Some(pid) = Pid::from_raw(child.pid) else { continue };
                let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
                // Its number may have become another's before there was a handle.
                let is_it = Process::new(child.pid)
                    .and_then(|now| now.stat())
                    .is_ok_and(|now| now.starttime == child.starttime);
                if is_it {
                    self.strays.entry(pid).or_insert(handle);
                }
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
