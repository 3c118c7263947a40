//! A private Redis, without persistence, that can be killed, started again and flushed.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::on_path;
use crate::ports;
use crate::process::{Launch, Process, tail};

/// Where tests look for a server that somebody else started for the whole run.
pub const URL_VARIABLE: &str = "FENCEPOST_TEST_REDIS_URL";

/// How long Redis may take to start, or to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A private server, killed and removed on drop.
#[derive(Debug)]
pub struct Redis {
    // Before `dir`: the server ends before its files go.
    running: Mutex<Option<Process>>,
    dir: TempDir,
    port: u16,
    program: PathBuf,
}

impl Redis {
    /// Starts a server and waits until it takes connections.
    ///
    /// # Errors
    /// Redis is not installed or does not start; its log is in the message.
    pub fn start() -> Result<Self> {
        let program =
            on_path("redis-server").context("redis-server is not installed (tests/install does it)")?;
        let dir = TempDir::with_prefix("fencepost-redis-")?;
        let redis = Self { running: Mutex::new(None), dir, port: ports::free()?, program };
        redis.boot()?;
        Ok(redis)
    }

    /// Starts the killed server again on the same port, empty.
    ///
    /// # Errors
    /// It does not start; its log is in the message.
    pub fn boot(&self) -> Result<()> {
        let mut redis = Command::new(&self.program);
        redis.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        redis.current_dir(self.dir.path());
        let log = self.dir.path().join("server.log");
        let (process, _) = Process::spawn(&Launch {
            program: &redis,
            death: "KILL",
            run_as: None,
            stdout: &log,
            stderr: &log,
            wanted: |_| false,
        })?;
        let give_up = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address()).is_err() {
            if process.exited().is_some() || Instant::now() > give_up {
                bail!("Redis does not start:\n{}", tail(&log, 2_000));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        *self.running.lock().expect("no holder of this lock panics") = Some(process);
        Ok(())
    }

    /// Ends the server with SIGKILL: all that it held is gone.
    pub fn kill(&self) {
        let process = self.running.lock().expect("no holder of this lock panics").take();
        drop(process);
    }

    /// Empties it while it runs.
    ///
    /// # Errors
    /// It does not answer.
    pub fn flush(&self) -> Result<()> {
        let mut socket = TcpStream::connect(self.address())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.write_all(b"FLUSHALL\r\n")?;
        let mut said = [0; 5];
        socket.read_exact(&mut said)?;
        ensure!(&said == b"+OK\r\n", "FLUSHALL: {}", String::from_utf8_lossy(&said));
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}
