//! A private Redis server, without persistence.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::{on_path, until_it_listens};
use crate::ports;
use crate::process::{Launch, Process, Signal};

/// A private server, killed and removed on drop.
#[derive(Debug)]
pub struct Redis {
    // Before `dir`: the server ends before its files go.
    running: Mutex<Option<Process>>,
    dir: TempDir,
    port: u16,
    settings: Vec<String>,
}

impl Redis {
    /// Starts a server and waits until it takes connections.
    ///
    /// # Errors
    /// Redis is not installed or does not start; its log is in the message.
    pub fn start() -> Result<Self> {
        Self::with(&[])
    }

    /// The same with settings of its own, as on its command line: `["--requirepass", "secret"]`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn with(settings: &[&str]) -> Result<Self> {
        Self::at(ports::free()?, settings)
    }

    /// The same on a port that is known to be free.
    pub(super) fn at(port: u16, settings: &[&str]) -> Result<Self> {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let dir = TempDir::with_prefix("fencepost-redis-")?;
        let server = Self { running: Mutex::new(None), dir, port, settings };
        server.boot()?;
        Ok(server)
    }

    /// Its URL, without a password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its process, if it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.running.lock().as_ref().map(Process::pid)
    }

    /// Kills it; all that it knew is gone, but for what a `SAVE` has kept.
    pub fn kill(&self) {
        let process = self.running.lock().take();
        drop(process);
    }

    /// Starts the killed server again on the same port, empty or as it was at its last `SAVE`, and waits until it takes
    /// connections.
    ///
    /// # Errors
    /// It does not start; its log is in the message.
    pub fn boot(&self) -> Result<()> {
        let program =
            on_path("redis-server").context("redis-server is not installed (tests/install does it)")?;
        let mut redis = Command::new(program);
        redis.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        redis.args(["--appendonly", "no"]).args(&self.settings).current_dir(self.dir.path());
        let log = self.dir.path().join("server.log");
        let (process, _) = Process::spawn(&Launch::logging(&redis, &log))?;
        until_it_listens("Redis", &process, self.address(), &log)?;
        *self.running.lock() = Some(process);
        Ok(())
    }

    /// Freezes it: it keeps its connections and answers nothing.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::Stop)
    }

    /// Wakes it.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn wake(&self) -> Result<()> {
        self.signal(Signal::Continue)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let running = self.running.lock();
        running.as_ref().context("this Redis was killed")?.signal(signal)
    }

    /// Runs one command through `redis-cli`.
    ///
    /// # Errors
    /// The server cannot be reached or refuses the command.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        run_cli(&[&["-p", &self.port.to_string(), "-e"], arguments].concat())
    }

    /// Sets a key, and waits until a replica has it too.
    ///
    /// Both commands use one connection: `WAIT` waits for the writes of its own connection alone.
    ///
    /// # Errors
    /// As [`Self::command`], or no replica has the write within five seconds.
    pub fn set_replicated(&self, key: &str, value: &str) -> Result<()> {
        let mut cli = cli()?;
        cli.args(["-p", &self.port.to_string(), "-e"]).stdin(Stdio::piped());
        let mut cli = cli.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        // Dropping the handle ends the input, and with it redis-cli.
        let mut input = cli.stdin.take().context("redis-cli has no input")?;
        write!(input, "SET {key} {value}\nWAIT 1 5000\n")?;
        drop(input);
        let said = cli.wait_with_output()?;
        let out = String::from_utf8_lossy(&said.stdout);
        ensure!(out.lines().eq(["OK", "1"]), "{key} did not reach a replica: {out}");
        Ok(())
    }

    /// Forgets everything.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn flush(&self) -> Result<()> {
        self.command(&["FLUSHALL"]).map(|_| ())
    }
}

/// Runs `redis-cli`, and gives back what it printed.
pub(super) fn run_cli(arguments: &[&str]) -> Result<String> {
    let said = cli()?.args(arguments).output()?;
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    ensure!(said.status.success(), "redis-cli {}: {out}{err}", arguments.join(" "));
    Ok(out.into_owned())
}

fn cli() -> Result<Command> {
    let program = on_path("redis-cli").context("redis-cli is not installed (tests/install does it)")?;
    Ok(Command::new(program))
}
