//! A private Redis, without persistence.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::on_path;
use crate::ports;
use crate::process::{Launch, Process, tail};

/// Where tests look for a server that somebody else started for the whole run.
pub const URL_VARIABLE: &str = "FENCEPOST_TEST_REDIS_URL";

/// A private server, killed and removed on drop.
#[derive(Debug)]
pub struct Redis {
    // Before `_dir`: the server ends before its files go.
    _process: Process,
    _dir: TempDir,
    port: u16,
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
        let port = ports::free()?;
        let mut redis = Command::new(program);
        redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        redis.current_dir(dir.path());
        let log = dir.path().join("server.log");
        let (process, _) = Process::spawn(&Launch {
            program: &redis,
            death: "KILL",
            run_as: None,
            stdout: &log,
            stderr: &log,
            wanted: |_| false,
        })?;
        let give_up = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if process.exited().is_some() || Instant::now() > give_up {
                bail!("Redis does not start:\n{}", tail(&log, 2_000));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { _process: process, _dir: dir, port })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}
