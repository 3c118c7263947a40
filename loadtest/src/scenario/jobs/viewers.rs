//! Open dashboards: each asks what the overview and the list of jobs ask, as often and with the same header, and holds the
//! stream of events open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::raw::Connection;

/// What a page polls, and how often. `dashboard/src/pages` says so.
const POLLS: [(&str, Duration); 4] = [
    ("/v1/stats", Duration::from_secs(3)),
    ("/v1/cluster", Duration::from_secs(3)),
    ("/v1/config/pools", Duration::from_secs(30)),
    ("/readyz", Duration::from_secs(5)),
];
/// The list of jobs: how often, and how often at most after events.
const LIST: &str = "/v1/jobs?limit=100";
const LIST_EVERY: Duration = Duration::from_secs(3);
const LIST_AFTER_EVENTS: Duration = Duration::from_secs(2);
const STREAM: &str = "/v1/events?kinds=job&digest=true";
/// The pages were not all opened at once.
pub const OPENED_WITHIN: Duration = Duration::from_secs(3);

/// The open dashboards. They close when this is dropped.
pub struct Viewers {
    tasks: JoinSet<Result<()>>,
    answers: Arc<AtomicU64>,
}

impl Viewers {
    /// Opens so many, spread over the instances, and waits until each has been opened.
    pub async fn open(urls: &[String], count: usize) -> Result<Self> {
        let (mut tasks, answers) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
        for (n, url) in (0..count).zip(urls.iter().cycle()) {
            let host = url.trim_start_matches("http://").to_owned();
            let late = OPENED_WITHIN.mul_f64(n as f64 / count as f64);
            let changed = Arc::new(Notify::new());
            for (path, every) in POLLS {
                tasks.spawn(poll(host.clone(), path, late, every, Arc::clone(&answers)));
            }
            tasks.spawn(list(host.clone(), late, Arc::clone(&changed), Arc::clone(&answers)));
            tasks.spawn(stream(host, late, changed));
        }
        sleep(OPENED_WITHIN).await;
        Ok(Self { tasks, answers })
    }

    /// Closes them; how many answers they got.
    pub fn close(mut self) -> Result<u64> {
        while let Some(ended) = self.tasks.try_join_next() {
            ended?.context("an open dashboard")?;
        }
        Ok(self.answers.load(Ordering::Relaxed))
    }
}

fn request(host: &str, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nCache-Control: max-age=1\r\n\r\n").into_bytes()
}

async fn ask(connection: &mut Connection, host: &str, path: &str, answers: &AtomicU64) -> Result<()> {
    let (status, _) = connection.exchange(&request(host, path)).await.with_context(|| path.to_owned())?;
    ensure!(status == 200, "GET {path}: {status}");
    answers.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

async fn poll(
    host: String,
    path: &'static str,
    late: Duration,
    every: Duration,
    answers: Arc<AtomicU64>,
) -> Result<()> {
    sleep(late).await;
    let mut connection = Connection::open(&host).await?;
    loop {
        ask(&mut connection, &host, path, &answers).await?;
        sleep(every).await;
    }
}

async fn list(host: String, late: Duration, changed: Arc<Notify>, answers: Arc<AtomicU64>) -> Result<()> {
    sleep(late).await;
    let mut connection = Connection::open(&host).await?;
    loop {
        let next_at = Instant::now() + LIST_AFTER_EVENTS;
        ask(&mut connection, &host, LIST, &answers).await?;
        if timeout(LIST_EVERY, changed.notified()).await.is_ok() {
            sleep_until(next_at).await;
        }
    }
}

async fn stream(host: String, late: Duration, changed: Arc<Notify>) -> Result<()> {
    sleep(late).await;
    let mut socket = TcpStream::connect(&host).await?;
    socket.write_all(&request(&host, STREAM)).await?;
    let mut bytes = vec![0; 16 << 10];
    loop {
        let count = socket.read(&mut bytes).await?;
        ensure!(count > 0, "a stream of events has ended");
        changed.notify_one();
    }
}
