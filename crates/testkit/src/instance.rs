//! The real `fencepost serve`, as a process with a directory of its own.
//!
//! Nothing here looks inside the daemon: options and variables go in, and its ready line, its exit code
//! and its log come out.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tempfile::TempDir;

use crate::ports;
use crate::process::{Launch, Process, Signal, tail};

const READY: &str = "fencepost ready on ";
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long the output of a process that ended is waited for.
const OUTPUT_ENDS_MAX: Duration = Duration::from_secs(2);

/// What the ready line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// `http://ADDR`, or `https://ADDR`.
    pub url: String,
    /// The name of this incarnation.
    pub instance: String,
    /// `basic` or `worker-queue`.
    pub mode: String,
    /// `sqlite` or `postgres`.
    pub ledger: String,
    /// The kind of bus.
    pub bus: String,
}

impl Ready {
    /// Reads the line that the contract prescribes, and nothing looser.
    ///
    /// # Errors
    /// The line has another shape.
    pub fn parse(line: &str) -> Result<Self> {
        let parse = || {
            let mut words = line.strip_prefix(READY)?.split(' ');
            let url = words.next()?;
            let mut named = |name: &str| {
                let value = words.next()?.strip_prefix(name)?.strip_prefix('=')?;
                (!value.is_empty()).then(|| value.to_owned())
            };
            let ready = Self {
                url: url.strip_prefix("http://").or(url.strip_prefix("https://")).map(|_| url.to_owned())?,
                instance: named("instance")?,
                mode: named("mode")?,
                ledger: named("ledger")?,
                bus: named("bus")?,
            };
            words.next().is_none().then_some(ready)
        };
        parse().ok_or_else(|| anyhow!("not the ready line of the contract: {line:?}"))
    }
}

/// How instances are to be started.
#[derive(Clone, Debug)]
pub struct Setup {
    command: &'static str,
    args: Vec<String>,
    env: Vec<(String, String)>,
    dir: Option<PathBuf>,
    descriptors: Option<u32>,
    binary: Option<PathBuf>,
}

impl Setup {
    /// `fencepost serve` with nothing said: SQLite in its directory, default address and mode.
    #[must_use]
    pub fn bare() -> Self {
        Self::command("serve")
    }

    /// Another command of `fencepost`, for [`Setup::run_to_end`].
    #[must_use]
    pub fn command(command: &'static str) -> Self {
        Self { command, args: Vec::new(), env: Vec::new(), dir: None, descriptors: None, binary: None }
    }

    /// On a free port of 127.0.0.1, basic mode, everything else default.
    ///
    /// # Errors
    /// No port is free.
    pub fn basic() -> Result<Self> {
        Self::in_mode("basic")
    }

    /// On a free port of 127.0.0.1, in the mode named, everything else default.
    ///
    /// # Errors
    /// No port is free.
    pub fn in_mode(mode: &str) -> Result<Self> {
        let listen = format!("127.0.0.1:{}", ports::free()?);
        Ok(Self::bare().arg("--listen").arg(&listen).arg("--mode").arg(mode))
    }

    /// Adds a command line argument.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Works on this PostgreSQL database.
    #[must_use]
    pub fn database(self, url: &str) -> Self {
        self.arg("--database-url").arg(url)
    }

    /// Runs in this directory instead of one of its own; it is not removed afterwards.
    #[must_use]
    pub fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// May have so many open files and connections, and cannot raise that.
    #[must_use]
    pub const fn descriptors(mut self, max: u32) -> Self {
        self.descriptors = Some(max);
        self
    }

    /// Runs this binary instead of the one that lies in the build directory.
    #[must_use]
    pub fn binary(mut self, binary: &Path) -> Self {
        self.binary = Some(binary.to_owned());
        self
    }

    /// Starts an instance and waits for its ready line.
    ///
    /// # Errors
    /// It ends before it is ready, or is not ready within a minute; its log is in the message.
    pub async fn start(self) -> Result<Instance> {
        let own_dir = TempDir::with_prefix("fencepost-instance-")?;
        let mut instance = Instance { running: None, setup: self, own_dir };
        instance.start().await?;
        Ok(instance)
    }

    /// Starts what is expected to end by itself, and waits for that.
    ///
    /// # Errors
    /// It could not be started or still runs after `limit`.
    pub async fn run_to_end(self, limit: Duration) -> Result<Ended> {
        let own_dir = TempDir::with_prefix("fencepost-instance-")?;
        let (process, output) = self.spawn(own_dir.path())?;
        let status = process.wait(limit).await;
        // What it wrote last may still be on its way into the file. A child of its own may keep the pipe open.
        let _ = tokio::time::timeout(OUTPUT_ENDS_MAX, output).await;
        let stderr = tail(&own_dir.path().join("stderr.log"), 20_000);
        let status = status.with_context(|| stderr.clone())?;
        let stdout = tail(&own_dir.path().join("stdout.log"), 20_000);
        Ok(Ended { code: status.code(), stdout, stderr })
    }

    /// Starts a command that runs until it is dropped, such as a node.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start_command(self) -> Result<Running> {
        let own_dir = TempDir::with_prefix("fencepost-instance-")?;
        let (process, _) = self.spawn(own_dir.path())?;
        Ok(Running { process, own_dir })
    }

    fn spawn(&self, own_dir: &Path) -> Result<(Process, tokio::sync::oneshot::Receiver<String>)> {
        let mut command = match &self.binary {
            Some(binary) => command_of(binary),
            None => fencepost()?,
        };
        if let Some(max) = self.descriptors {
            // It becomes the daemon, with the same pid.
            let mut limited = Command::new("prlimit");
            limited.arg(format!("--nofile={max}:{max}")).arg("--").arg(command.get_program());
            for (key, _) in command.get_envs() {
                limited.env_remove(key);
            }
            command = limited;
        }
        // Logs lie beside, not in, the working directory that the caller chose.
        command.current_dir(self.dir.as_deref().unwrap_or(own_dir)).arg(self.command).args(&self.args);
        for (key, value) in &self.env {
            command.env(key, value);
        }
        Process::spawn(&Launch {
            program: &command,
            death: "KILL",
            run_as: None,
            stdout: &own_dir.join("stdout.log"),
            stderr: &own_dir.join("stderr.log"),
            wanted: |line| line.starts_with(READY),
        })
    }
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it logged.
    pub stderr: String,
}

/// A command that runs. Killed on drop.
#[derive(Debug)]
pub struct Running {
    // Before `own_dir`: the process ends before its files go.
    process: Process,
    own_dir: TempDir,
}

impl Running {
    /// Its process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// All that it has printed.
    #[must_use]
    pub fn stdout(&self) -> String {
        tail(&self.own_dir.path().join("stdout.log"), usize::MAX)
    }

    /// All of its log.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.own_dir.path().join("stderr.log"), usize::MAX)
    }
}

/// A `fencepost serve` that was started and is not ready yet. Killed on drop.
#[derive(Debug)]
pub struct Starting {
    process: Process,
    line: tokio::sync::oneshot::Receiver<String>,
}

impl Starting {
    /// The process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }
}

/// A `fencepost serve` that can be killed, frozen and started again. Killed on drop.
#[derive(Debug)]
pub struct Instance {
    // Before `own_dir`: the process ends before its files go.
    running: Option<(Process, Ready)>,
    setup: Setup,
    own_dir: TempDir,
}

impl Instance {
    /// Starts it again with the same options, in the same directory, after it ended.
    ///
    /// # Errors
    /// As for [`Setup::start`].
    pub async fn start(&mut self) -> Result<()> {
        let starting = self.launch()?;
        self.becomes_ready(starting).await
    }

    /// Starts it again as [`Self::start`] does, and does not wait until it is ready.
    ///
    /// # Errors
    /// It could not be started.
    pub fn launch(&mut self) -> Result<Starting> {
        self.running = None;
        let (process, line) = self.setup.spawn(self.own_dir.path())?;
        Ok(Starting { process, line })
    }

    /// Waits until one that was launched is ready.
    ///
    /// # Errors
    /// As for [`Setup::start`].
    pub async fn becomes_ready(&mut self, starting: Starting) -> Result<()> {
        let Starting { process, line } = starting;
        match tokio::time::timeout(START_LIMIT, line).await {
            Ok(Ok(line)) => {
                self.running = Some((process, Ready::parse(&line)?));
                Ok(())
            }
            Ok(Err(_)) => {
                let status = process.wait(Duration::from_secs(5)).await;
                bail!("fencepost ended before it was ready ({status:?}):\n{}", self.log())
            }
            Err(_) => bail!("fencepost is not ready after {START_LIMIT:?}:\n{}", self.log()),
        }
    }

    /// Whether it was started and not ended by us since.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        self.running.is_some()
    }

    /// What its ready line said.
    ///
    /// # Panics
    /// After [`Instance::end_by`] and before the next start.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.running.as_ref().expect("the instance was started").1
    }

    /// `http://ADDR`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.ready().url
    }

    /// The process.
    ///
    /// # Panics
    /// After [`Instance::end_by`] and before the next start.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.running.as_ref().expect("the instance was started").0
    }

    /// The memory that it occupies now, in bytes.
    ///
    /// # Errors
    /// It has ended.
    pub fn memory_bytes(&self) -> Result<u64> {
        memory_bytes(self.process().pid())
    }

    /// Sends a signal and waits for the end, `limit` at most.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub async fn end_by(&mut self, signal: Signal, limit: Duration) -> Result<ExitStatus> {
        self.process().signal(signal)?;
        self.ended(limit).await
    }

    /// Waits for the end after a signal, `limit` at most.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub async fn ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let status = self.process().wait(limit).await.with_context(|| self.log())?;
        self.running = None;
        Ok(status)
    }

    /// Its next start runs this binary.
    pub fn replace_binary(&mut self, binary: &Path) {
        self.setup.binary = Some(binary.to_owned());
    }

    /// Its working directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.setup.dir.as_deref().unwrap_or_else(|| self.own_dir.path())
    }

    /// All that it printed to standard output, over all its starts.
    #[must_use]
    pub fn stdout(&self) -> String {
        tail(&self.own_dir.path().join("stdout.log"), usize::MAX)
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.own_dir.path().join("stderr.log"), 8_000)
    }

    /// All of its log.
    #[must_use]
    pub fn whole_log(&self) -> String {
        tail(&self.own_dir.path().join("stderr.log"), usize::MAX)
    }

    /// Lines of its log that tell of a defect.
    #[must_use]
    pub fn defects_logged(&self) -> Vec<String> {
        self.whole_log().lines().filter(|line| is_defect(line)).map(str::to_owned).collect()
    }
}

/// What errors in the log of a daemon say that no outage of its servers causes.
const DEFECTS: [&str; 5] = [
    // A request, a batch, a step of a plan, a result.
    "the ledger refused",
    "the ledger failed",
    "the ledger did not say what a lost node had",
    "upkeep failed",
    // A request, the work on bulk operations.
    "because of a defect",
];

/// Whether a line of a log, which is JSON unless it tells of a panic, tells of a defect.
fn is_defect(line: &str) -> bool {
    let is_error = line.contains("\"ERROR\"");
    line.contains("panicked") || is_error && DEFECTS.iter().any(|defect| line.contains(defect))
}

/// The memory that a process of this machine occupies now (its resident set), in bytes.
///
/// # Errors
/// There is no such process.
pub fn memory_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("a line VmRSS")?;
    Ok(kib.trim().parse::<u64>()? * 1_024)
}

/// The processor time that a process of this machine has used so far, in seconds, to a hundredth.
///
/// # Errors
/// There is no such process.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in brackets may have blanks; what follows has none. Linux counts in hundredths here.
    let (_, rest) = stat.rsplit_once(')').context("a name in brackets")?;
    let used = rest.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(used.sum::<std::result::Result<u64, _>>()? as f64 / 100.0)
}

/// A command that runs the daemon's binary, with no `FENCEPOST…` variable of ours in its environment.
///
/// # Errors
/// There is no binary.
pub fn fencepost() -> Result<Command> {
    Ok(command_of(&binary()?))
}

fn command_of(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("FENCEPOST") {
            command.env_remove(key);
        }
    }
    command.env_remove("RUST_LOG");
    command
}

/// The binary of the last release, which `tests/last-release` builds.
///
/// # Errors
/// It was not built.
pub fn last_release() -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    // target/debug/loadtest, or target/debug/deps/black_box-0123.
    let mut nearby = me.ancestors().skip(2).take(2).map(|dir| dir.join("last-release/fencepost"));
    nearby
        .find(|file| file.is_file())
        .context("no binary of the last release; `tests/last-release` builds it")
}

/// `FENCEPOST_BIN`, or the `fencepost` that lies in the same build directory as this program.
///
/// # Errors
/// There is none.
pub fn binary() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("FENCEPOST_BIN") {
        return std::fs::canonicalize(&named).with_context(|| format!("FENCEPOST_BIN={}", named.display()));
    }
    let me = std::env::current_exe()?;
    // target/debug/loadtest, or target/debug/deps/black_box-0123.
    let nearby = me.ancestors().skip(1).take(2).map(|dir| dir.join("fencepost"));
    nearby.into_iter().find(|file| file.is_file()).with_context(|| {
        format!("no fencepost binary near {}; `cargo build -p daemon` makes it", me.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_processor_time_grows_as_we_work() {
        let before = cpu_seconds(std::process::id()).unwrap();
        let began = std::time::Instant::now();
        while cpu_seconds(std::process::id()).unwrap() - before < 0.05 {
            assert!(began.elapsed() < Duration::from_secs(60), "busy, and no time was counted");
        }
    }

    #[test]
    fn our_own_memory_can_be_read() {
        let bytes = memory_bytes(std::process::id()).unwrap();
        assert!((1 << 20..1 << 36).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_panic_and_an_error_that_no_outage_causes_are_defects() {
        let line = |level: &str, message: &str| format!(r#"{{"level":"{level}","message":"{message}"}}"#);
        for defect in [
            "the ledger refused",
            "the ledger refused a batch that should be valid",
            "the ledger refused a result",
            "the ledger refused a step",
            "the ledger failed",
            "a request failed because of a defect",
        ] {
            assert!(is_defect(&line("ERROR", defect)), "{defect}");
            assert!(!is_defect(&line("DEBUG", defect)), "{defect}");
        }
        assert!(is_defect("thread 'main' panicked at src/main.rs:1:1:"));
        for outage in ["the instance's lease was taken: this incarnation ends", "the ledger takes no writes"]
        {
            assert!(!is_defect(&line("ERROR", outage)), "{outage}");
        }
    }

    #[test]
    fn the_ready_line_is_read_and_nothing_looser() {
        let good = "fencepost ready on http://127.0.0.1:7070 instance=a-1 mode=basic ledger=sqlite bus=local";
        let ready = Ready::parse(good).unwrap();
        assert_eq!(
            (
                ready.url.as_str(),
                ready.instance.as_str(),
                ready.mode.as_str(),
                ready.ledger.as_str(),
                ready.bus.as_str()
            ),
            ("http://127.0.0.1:7070", "a-1", "basic", "sqlite", "local")
        );
        for bad in [
            "fencepost ready on 127.0.0.1:7070 instance=a mode=basic ledger=sqlite bus=local",
            "fencepost ready on http://127.0.0.1:7070 instance= mode=basic ledger=sqlite bus=local",
            "fencepost ready on http://127.0.0.1:7070 mode=basic instance=a ledger=sqlite bus=local",
            "fencepost ready on http://127.0.0.1:7070 instance=a mode=basic ledger=sqlite",
            "fencepost ready on http://127.0.0.1:7070 instance=a mode=basic ledger=sqlite bus=local more",
        ] {
            assert!(Ready::parse(bad).is_err(), "{bad}");
        }
    }
}
