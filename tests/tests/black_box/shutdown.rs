//! SIGTERM: nothing accepted is lost, leases are let go, and the end comes in time.

use std::time::{Duration, Instant};

use loadtest::checker;
use loadtest::fleet::Fleet;
use loadtest::history::Told;
use loadtest::instance::{Instance, Setup};
use loadtest::process::Signal;
use loadtest::servers::Database;
use loadtest::tables;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Load, patient};

const DRAIN: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_loses_nothing_and_lets_go_of_every_lease() {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let fleet = Fleet::on(database, "basic", 2, |setup| setup).await.unwrap();
    let mut load = Load::start(8, &fleet.urls()[..1]);
    load.successes(100).await;

    let owner = fleet.instance(0).await.ready().instance.clone();
    let signalled = load.history.now_us();
    let status = fleet.instance(0).await.end_by(Signal::Terminate, DRAIN).await.unwrap();
    assert_eq!(status.code(), Some(0));
    let ended = load.history.now_us();
    load.stop().await;

    let records = load.history.records();
    for record in &records {
        // Who asked before the signal is answered, if only that the instance is leaving.
        let unanswered = matches!(&record.told, Told::Unknown { .. });
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

/// A request whose body never comes in full, and the connection that must stay open for it.
async fn endless_request(instance: &Instance) -> TcpStream {
    let host = instance.url().strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(host).await.unwrap();
    let head = format!(
        "POST /v1/signers/slow/nonces HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // "Continue" says that the request reached its handler.
    let mut said = [0; 12];
    socket.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"HTTP/1.1 100");
    socket.write_all(b"{\"count\"").await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_never_ends_does_not_outlast_the_drain_time() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__SERVER__DRAIN_TIMEOUT_MS", "1000");
    let mut instance = setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "60000").start().await.unwrap();
    let _open = endless_request(&instance).await;
    let status = instance.end_by(Signal::Terminate, Duration::from_secs(8)).await.unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_at_once() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "60000");
    let mut instance = setup.start().await.unwrap();
    let _open = endless_request(&instance).await;
    instance.process().signal(Signal::Terminate).unwrap();
    let early = instance.process().wait(Duration::from_millis(500)).await;
    assert!(early.is_err(), "an open request is waited for: {early:?}");
    let asked = Instant::now();
    instance.end_by(Signal::Interrupt, Duration::from_secs(10)).await.unwrap();
    assert!(asked.elapsed() < DRAIN / 3, "it drained on after the second signal");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_instance_ends_with_0_on_either_signal_and_frees_its_file() {
    let mut instance = Setup::basic().unwrap().start().await.unwrap();
    for signal in [Signal::Terminate, Signal::Interrupt] {
        let status = instance.end_by(signal, DRAIN).await.unwrap();
        assert_eq!(status.code(), Some(0), "{signal:?}");
        instance.start().await.unwrap();
    }
}
