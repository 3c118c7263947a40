//! SIGTERM: nothing accepted is lost, leases are let go, and the end comes in time.

use std::io::{BufRead as _, BufReader, PipeReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use loadtest::checker;
use loadtest::history::Answer;
use loadtest::tables;
use testkit::PATIENCE;
use testkit::fleet::Fleet;
use testkit::http::Client;
use testkit::instance::{Ready, Setup, fencepost};
use testkit::ports;
use testkit::process::Signal;
use testkit::servers::Database;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Load, patient, until};

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_loses_nothing_and_lets_go_of_every_lease() {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let fleet = Fleet::on(database, "basic", 2, |setup| setup).await.unwrap();
    let mut load = Load::patient(8, &fleet.urls()[..1]);
    load.successes(100).await;

    let owner = fleet.instance(0).await.ready().instance.clone();
    let signalled = load.history.now_us();
    let status = fleet.instance(0).await.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(0));
    let ended = load.history.now_us();
    load.stop().await;

    let records = load.history.records();
    for record in &records {
        // Who asked before the signal is answered, if only that the instance is leaving.
        let unanswered = matches!(&record.answer, Answer::Unknown { .. });
        assert!(
            !unanswered || record.sent_us >= signalled,
            "signalled at {signalled}, ended at {ended}: {record:?}"
        );
    }
    let held =
        fleet.database().query(&format!("select resource from lease where owner = '{owner}'")).unwrap();
    assert_eq!(held, Vec::<Vec<String>>::new(), "leases that were not let go");
    let tables = tables::read(fleet.database(), &patient(), &fleet.urls()[1]).await.unwrap();
    assert_eq!(checker::check(&records, &[], &tables), []);
}

/// Begins a request with a body of that many bytes, and comes back once it waits for them: the instance has it under way until
/// they are written to the connection.
pub async fn begin_request(url: &str, path: &str, body_bytes: usize) -> TcpStream {
    let host = url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(host).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: {body_bytes}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // "Continue" says that the request reached its handler.
    let mut said = [0; 25];
    socket.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket
}

/// A request whose body never comes in full, and the connection that must stay open for it.
async fn endless_request(url: &str) -> TcpStream {
    let mut socket = begin_request(url, "/v1/signers/slow/nonces", 100).await;
    socket.write_all(b"{\"count\"").await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_never_ends_does_not_outlast_the_drain_time() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__SERVER__DRAIN_TIMEOUT_MS", "1000");
    let mut instance = setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "300000").start().await.unwrap();
    let _open = endless_request(instance.url()).await;
    let status = instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    let log = instance.whole_log();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("the drain timeout is over") && !log.contains("\"ERROR\""), "{log}");
    assert!(log.contains("its leases are free once this instance has left"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_at_once() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "60000");
    let mut instance = setup.start().await.unwrap();
    let _open = endless_request(instance.url()).await;
    instance.process().signal(Signal::Terminate).unwrap();
    let early = instance.process().wait(Duration::from_millis(500)).await;
    assert!(early.is_err(), "an open request is waited for: {early:?}");
    let status = instance.end_by(Signal::Interrupt, PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(130), "not the end of the drain, which would be 0: {}", instance.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_with_a_delay_serves_on_while_readyz_says_that_it_stops() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__SERVER__STOP_DELAY_MS", "60000");
    let mut instance = setup.start().await.unwrap();
    let (grants, ready) =
        (format!("{}/v1/signers/a/nonces", instance.url()), format!("{}/readyz", instance.url()));
    let grant = async |client: &Client| client.request("POST", &grants, None, None).await.unwrap();
    let before = patient();
    assert_eq!(grant(&before).await.status, 201);
    instance.process().signal(Signal::Terminate).unwrap();
    until("/readyz says so", async || before.request("GET", &ready, None, None).await.unwrap().status == 503)
        .await;
    let early = instance.process().wait(Duration::from_millis(500)).await;
    assert!(early.is_err(), "the delay is not over: {early:?}");
    // By a connection from before the signal, and by a new one.
    for client in [&before, &patient()] {
        let ready = client.request("GET", &ready, None, None).await.unwrap();
        assert!(ready.status == 503 && ready.text.contains("\"draining\""), "{}", ready.text);
        let granted = grant(client).await;
        assert_eq!(granted.status, 201, "{}", granted.text);
    }
    // The second signal ends the delay, and not the process at once, which would be 143.
    let status = instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    let log = instance.whole_log();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("a further signal ends the delay") && log.contains("\"stopped\""), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_with_a_delay_goes_on_by_itself() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__SERVER__STOP_DELAY_MS", "200");
    let mut instance = setup.start().await.unwrap();
    let status = instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    let log = instance.whole_log();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("stopping after a delay") && log.contains("stopping: no new work"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_instance_ends_with_0_on_either_signal_and_frees_its_file() {
    let mut instance = Setup::basic().unwrap().start().await.unwrap();
    for signal in [Signal::Terminate, Signal::Interrupt] {
        let status = instance.end_by(signal, PATIENCE).await.unwrap();
        assert_eq!(status.code(), Some(0), "{signal:?}");
        instance.start().await.unwrap();
    }
}

/// Killed on drop.
struct Daemon {
    child: Child,
    ready: Ready,
}

impl Daemon {
    /// Starts `serve` with this as its standard error and these variables, and waits for the ready line.
    fn start(dir: &Path, stderr: Stdio, variables: &[(&str, &str)]) -> Self {
        let listen = format!("127.0.0.1:{}", ports::free().unwrap());
        let mut command = fencepost().unwrap();
        command.current_dir(dir).args(["serve", "--listen", &listen, "--mode", "basic"]);
        command.envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        // A pipe's reading end is closed here.
        drop(child.stderr.take());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = Ready::parse(line.trim_end()) else {
            panic!("{line:?}, ended with {:?}", child.wait());
        };
        Self { child, ready }
    }

    /// Starts one whose standard error is a pipe that nobody reads, and has it log more than the pipe takes.
    async fn stuck(dir: &Path, variables: &[(&str, &str)]) -> (Self, PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut all = vec![("FENCEPOST__LOG__FILTER", "debug")];
        all.extend(variables);
        let daemon = Self::start(dir, writer.into(), &all);
        // Each logs at least that a lease was acquired; a pipe takes 64 KiB.
        let client = patient();
        for number in 0..1_000 {
            daemon.grants(&client, &format!("s{number}")).await;
        }
        (daemon, reader)
    }

    async fn grants(&self, client: &Client, signer: &str) {
        let path = format!("{}/v1/signers/{signer}/nonces", self.ready.url);
        let granted = client.request("POST", &path, None, None).await.unwrap();
        assert_eq!(granted.status, 201, "{}", granted.text);
    }

    fn terminate(&self) {
        let line = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_log_cannot_be_written_serves_and_drains_as_any_other() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap().into();
    for (what, stderr) in [("a full disk", full()), ("a closed pipe", Stdio::piped())] {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start(dir.path(), stderr, &[]);
        let url = &daemon.ready.url;
        let healthy = patient().get(&format!("{url}/healthz")).await.unwrap();
        assert_eq!(healthy["status"], "ok", "{what}");
        daemon.grants(&patient(), "a").await;
        daemon.terminate();
        let ended = tokio::task::spawn_blocking(move || daemon.child.wait().unwrap());
        let ended = tokio::time::timeout(PATIENCE, ended).await.expect("it ends in time").unwrap();
        assert_eq!(ended.code(), Some(0), "{what}");
    }
}

/// Whether the pipe had no room for the last line of the log.
fn is_cut(mut reader: PipeReader, last: &str) -> bool {
    let mut log = Vec::new();
    reader.read_to_end(&mut log).unwrap();
    let log = String::from_utf8_lossy(&log);
    log.contains("starting") && !log.contains(last)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_log_nobody_reads_serves_and_drains_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let (mut daemon, reader) = Daemon::stuck(dir.path(), &[]).await;
    let healthy = patient().get(&format!("{}/healthz", daemon.ready.url)).await.unwrap();
    assert_eq!(healthy["status"], "ok");
    daemon.grants(&patient(), "a").await;
    daemon.terminate();
    let ended = tokio::task::spawn_blocking(move || daemon.child.wait().unwrap());
    let ended = tokio::time::timeout(PATIENCE, ended).await.expect("it ends in time").unwrap();
    assert_eq!(ended.code(), Some(0));
    assert!(is_cut(reader, "\"stopped\""), "the pipe was full");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_daemon_whose_log_nobody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let long = [
        ("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "300000"),
        ("FENCEPOST__SERVER__DRAIN_TIMEOUT_MS", "30000"),
    ];
    let (mut daemon, reader) = Daemon::stuck(dir.path(), &long).await;
    let _open = endless_request(&daemon.ready.url).await;
    // Signals soon after the first count as its echo.
    until("a further signal ends it", async || {
        daemon.terminate();
        daemon.child.try_wait().unwrap().is_some()
    })
    .await;
    assert_eq!(daemon.child.wait().unwrap().code(), Some(143));
    assert!(is_cut(reader, "a second signal to stop"), "the pipe was full");
}
