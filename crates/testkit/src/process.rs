//! One child process: started so that it dies with the harness, signalled by pid, killed on drop.
//!
//! Nothing here knows what the process is for; what Fencepost or PostgreSQL need is said elsewhere.

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::{oneshot, watch};

/// A signal that the harness sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ends the process at once; it cannot react.
    Kill,
    /// Freezes the process, as a long pause of a virtual machine would.
    Stop,
    /// Wakes a frozen process.
    Continue,
    /// Asks for a graceful end.
    Terminate,
    /// Asks for a graceful end, as Ctrl-C does.
    Interrupt,
    /// Has the configuration read again.
    Hangup,
}

impl Signal {
    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "KILL",
            Self::Stop => "STOP",
            Self::Continue => "CONT",
            Self::Terminate => "TERM",
            Self::Interrupt => "INT",
            Self::Hangup => "HUP",
        }
    }
}

/// A running (or ended) child process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    exit: watch::Receiver<Option<ExitStatus>>,
}

/// What is to be started, and how.
pub struct Launch<'a> {
    /// The program with its arguments, variables and directory.
    pub program: &'a Command,
    /// Name of the signal that the child gets when the harness ends, however it ends.
    pub death: &'a str,
    /// User and group ids to run as; `None` is "as we are".
    pub run_as: Option<(u32, u32)>,
    /// File to which standard output is appended.
    pub stdout: &'a Path,
    /// File to which standard error is appended.
    pub stderr: &'a Path,
    /// The first line of standard output for which this is true is handed out.
    pub wanted: fn(&str) -> bool,
}

impl<'a> Launch<'a> {
    /// The launch of a program whose output all goes into this file, and that is killed with the harness.
    #[must_use]
    pub fn logging(program: &'a Command, log: &'a Path) -> Self {
        Self { program, death: "KILL", run_as: None, stdout: log, stderr: log, wanted: |_| false }
    }
}

impl Process {
    /// Starts a program. The receiver gets the first wanted line of its output, or an error when the
    /// output ends before.
    ///
    /// # Errors
    /// The program (or `setpriv`, part of util-linux) could not be started, or a file not be opened.
    pub fn spawn(launch: &Launch<'_>) -> Result<(Self, oneshot::Receiver<String>)> {
        let program = launch.program;
        // The kernel's "tell me when my parent dies" must be asked for by the child itself, and after a
        // change of user, which forgets it. setpriv does both and then becomes the program, so that the
        // pid is the program's own.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", launch.death]);
        if let Some((user, group)) = launch.run_as {
            command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
        }
        command.arg("--").arg(program.get_program()).args(program.get_args());
        for (key, value) in program.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        if let Some(dir) = program.get_current_dir() {
            command.current_dir(dir);
        }
        let errors = append(launch.stderr)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);

        let mut child = spawn_from_nursery(command)
            .with_context(|| format!("cannot start {}", program.get_program().display()))?;
        let pid = child.id();
        let output = child.stdout.take().context("standard output was asked for")?;
        let copy = append(launch.stdout)?;
        let wanted = launch.wanted;
        let (found, line) = oneshot::channel();
        thread::spawn(move || copy_lines(output, copy, wanted, found));
        let (ended, exit) = watch::channel(None);
        thread::spawn(move || {
            if let Ok(status) = child.wait() {
                ended.send_replace(Some(status));
            }
        });
        Ok((Self { pid, exit }, line))
    }

    /// The process id.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Its end, if it has ended.
    #[must_use]
    pub fn exited(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Sends a signal. A process that has ended already is left alone.
    ///
    /// # Errors
    /// The signal could not be sent though the process runs.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.exited().is_some() {
            return Ok(());
        }
        // The shell's own `kill`, since a slim Debian has no /bin/kill.
        let line = format!("kill -{} {}", signal.name(), self.pid);
        let sent = Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).status()?;
        if !sent.success() && self.exited().is_none() {
            // It may have ended between the question and the signal; its waiter is about to say so.
            thread::sleep(Duration::from_millis(50));
            if self.exited().is_none() {
                bail!("cannot send SIG{} to process {}", signal.name(), self.pid);
            }
        }
        Ok(())
    }

    /// Waits for its end, `limit` at most.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let mut exit = self.exit.clone();
        let ended = tokio::time::timeout(limit, exit.wait_for(Option::is_some)).await;
        let status = match ended {
            Ok(Ok(status)) => *status,
            Ok(Err(_)) => None,
            Err(_) => bail!("process {} still runs after {limit:?}", self.pid),
        };
        status.context("the process ended without a status")
    }

    /// Kills it and waits until it is gone.
    pub fn end(&self) {
        let _ = self.signal(Signal::Kill);
        let give_up = Instant::now() + Duration::from_secs(10);
        while self.exited().is_none() && Instant::now() < give_up {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The last `bytes` of a log file, for messages.
#[must_use]
pub fn tail(path: &Path, bytes: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text[text.len().saturating_sub(bytes)..]).into_owned()
}

fn append(path: &Path) -> Result<File> {
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

fn copy_lines(
    output: impl std::io::Read,
    mut copy: File,
    wanted: fn(&str) -> bool,
    found: oneshot::Sender<String>,
) {
    use std::io::{BufRead, BufReader, Write};
    let mut found = Some(found);
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else { return };
        let _ = writeln!(copy, "{line}");
        if wanted(&line)
            && let Some(found) = found.take()
        {
            let _ = found.send(line);
        }
    }
}

type Spawned = std::io::Result<std::process::Child>;

/// The kernel watches the *thread* that started a child, not the process. So all children are
/// started by one thread that lives as long as the harness.
fn spawn_from_nursery(command: Command) -> Spawned {
    static NURSERY: OnceLock<mpsc::Sender<(Command, mpsc::Sender<Spawned>)>> = OnceLock::new();
    let nursery = NURSERY.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<(Command, mpsc::Sender<Spawned>)>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, spawned) = mpsc::channel();
    let gone = || std::io::Error::other("the thread that starts processes is gone");
    nursery.send((command, answer)).map_err(|_| gone())?;
    spawned.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(
        program: &Command,
        wanted: fn(&str) -> bool,
    ) -> (Process, oneshot::Receiver<String>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let (stdout, stderr) = (dir.path().join("out"), dir.path().join("err"));
        let launch =
            Launch { program, death: "KILL", run_as: None, stdout: &stdout, stderr: &stderr, wanted };
        let (process, line) = Process::spawn(&launch).unwrap();
        (process, line, dir)
    }

    #[tokio::test]
    async fn a_child_can_be_frozen_woken_and_asked_to_end() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap 'exit 7' TERM; echo hello; echo ready; while :; do sleep 0.05; done"]);
        let (child, line, _dir) = start(&shell, |line| line == "ready");
        assert_eq!(line.await.unwrap(), "ready");
        child.signal(Signal::Stop).unwrap();
        child.signal(Signal::Terminate).unwrap();
        assert!(child.wait(Duration::from_millis(200)).await.is_err(), "a frozen process handles no signal");
        child.signal(Signal::Continue).unwrap();
        assert_eq!(child.wait(Duration::from_secs(5)).await.unwrap().code(), Some(7));
        child.signal(Signal::Kill).unwrap();
    }

    #[tokio::test]
    async fn a_child_outlives_the_thread_that_asked_for_it() {
        let asked = thread::spawn(|| {
            let mut sleep = Command::new("sleep");
            sleep.arg("60");
            start(&sleep, |_| false)
        });
        let (child, _, _dir) = asked.join().unwrap();
        assert!(child.wait(Duration::from_millis(100)).await.is_err());
        child.end();
        assert!(child.exited().is_some());
    }
}
