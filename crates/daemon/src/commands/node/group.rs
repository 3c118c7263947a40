//! A child process and all that it starts: ended together, and never signalled once their number may be somebody
//! else's.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use procfs::process::{Process, all_processes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    pidfd_send_signal, prlimit, waitid,
};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The delay between two looks whether a process that is nobody's child here has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A child that leads a process group of its own. Dropping it while the child runs kills the group, and what has left it.
///
/// The kernel keeps the group's number as long as the leader is not reaped. So the group is signalled before that
/// only: `leader` and `child` say whether it is still time.
pub struct Group {
    child: Child,
    /// Shared with the signal that is under way.
    members: Arc<Mutex<Members>>,
    /// Whether the last signal was one that a process may take its time to heed.
    has_grace: bool,
}

/// What is signalled together.
struct Members {
    /// The leader's, until it was reaped.
    leader: Option<Pid>,
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
        let members = Arc::new(Mutex::new(Members { leader, strays: HashMap::new() }));
        Ok(Self { child, members, has_grace: false })
    }

    /// The child itself, for its pipes.
    pub const fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Signals all of the group, and what its processes started outside of it. To find these, all processes of the system are
    /// looked through, on another thread: this one has the node's connection.
    pub async fn signal(&mut self, signal: Signal) {
        self.has_grace = signal != Signal::KILL;
        let members = Arc::clone(&self.members);
        // It fails where the node ends, which kills them.
        let _ = spawn_blocking(move || members.lock().signal(signal)).await;
    }

    /// Waits until the leader has ended; what it left running in its group is killed then, and what was signalled before. After
    /// a signal other than SIGKILL it waits for all of these as well: they end by themselves, or by the next signal.
    ///
    /// # Errors
    /// The system's; the group was killed.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        let leader = self.members.lock().leader;
        if let Some(leader) = leader {
            // Listening begins before the look, so that no end is missed.
            let mut children = signal(SignalKind::child())?;
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            while waitid(WaitId::Pid(leader), look)?.is_none() {
                children.recv().await;
            }
            if self.has_grace {
                all_ended(leader, &self.members).await;
            }
            // What it left is nobody's child any more.
            self.members.lock().end();
        }
        self.child.wait().await
    }
}

impl Members {
    fn signal(&mut self, signal: Signal) {
        if let Some(leader) = self.leader {
            // First: a leader that ends leaves its children to another parent.
            self.find_strays(leader);
            if signal == Signal::KILL {
                self.stop(leader);
            }
        }
        self.signal_known(signal);
    }

    /// Kills what is known. From now on the leader may be reaped.
    fn end(&mut self) {
        self.signal_known(Signal::KILL);
        self.leader = None;
    }

    /// Stops all until no more is found: what is stopped starts nothing that would be missed.
    fn stop(&mut self, leader: Pid) {
        loop {
            let known = self.strays.len();
            self.signal_known(Signal::STOP);
            self.find_strays(leader);
            if self.strays.len() == known {
                return;
            }
        }
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

    /// Looks for descendants of the leader, of its group and of known strays that are in another group.
    fn find_strays(&mut self, leader: Pid) {
        // Where processes cannot be listed, the group is all that is known.
        let Ok(processes) = all_processes() else { return };
        let stats = processes.filter_map(|process| process.ok()?.stat().ok());
        let mut children = HashMap::<i32, Vec<_>>::new();
        let group = leader.as_raw_pid();
        let (mut parents, mut seen) = (vec![group], HashSet::new());
        for stat in stats {
            // Those between the leader and it may have ended.
            if stat.pgrp == group {
                parents.push(stat.pid);
            }
            children.entry(stat.ppid).or_default().push(stat);
        }
        // As long as a stray runs, its number is nobody else's.
        let strays = self.strays.iter().filter(|(_, handle)| runs(handle));
        parents.extend(strays.map(|(pid, _)| pid.as_raw_pid()));
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

/// Waits until none of the strays runs, and nothing in the group.
async fn all_ended(group: Pid, members: &Mutex<Members>) {
    while members.lock().strays.values().any(runs) {
        sleep(LOOK_EVERY).await;
    }
    while let Ok(Some(member)) = spawn_blocking(move || running_in(group)).await {
        while runs(&member) {
            sleep(LOOK_EVERY).await;
        }
    }
}

/// A process of the group that runs. Where processes cannot be listed, none is known.
fn running_in(group: Pid) -> Option<OwnedFd> {
    let stats = all_processes().ok()?.filter_map(|process| process.ok()?.stat().ok());
    let members = stats.filter(|stat| stat.pgrp == group.as_raw_pid());
    let mut handles =
        members.filter_map(|stat| pidfd_open(Pid::from_raw(stat.pid)?, PidfdFlags::empty()).ok());
    handles.find(runs)
}

/// Whether a process has not ended. One that nobody has reaped yet has.
fn runs(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ended| ended == 0)
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut members = self.members.lock();
        members.signal(Signal::KILL);
        // A signal that still waits for its thread finds no leader then.
        members.end();
    }
}
