//! More connections than the daemon has descriptors for.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::TcpStream;

use super::Bounded;
use crate::patient;

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_idle_connections_leave_a_daemon_of_1024_descriptors_at_work() {
    let daemon =
        Bounded::shaped(&[("SERVER__RECEIVE_TIMEOUT_MS", "5000")], |setup| setup.descriptors(1_024)).await;
    let log = daemon.instance.whole_log();
    assert!(log.contains("the limit of open files leaves room for fewer connections"), "{log}");
    // Who is connected stays connected, and is served with all that needs descriptors of its own.
    let client = patient().with_token("other");
    daemon.is_well(&client).await;
    let connect = || tokio::time::timeout(Duration::from_secs(3), TcpStream::connect(daemon.address()));
    let idle = join_all((0..2_000).map(|_| connect())).await;
    // The system keeps some of them waiting, and others do not get that far.
    let connected = idle.iter().filter(|stream| matches!(stream, Ok(Ok(_)))).count();
    assert!(connected > 800, "{connected} of 2,000: more than the daemon takes");
    for n in 0..20 {
        let path = daemon.url(&format!("/v1/signers/s{n}/nonces"));
        let reply = client.request("POST", &path, None, None).await.unwrap();
        assert_eq!(reply.status, 201, "{}", reply.text);
    }
    daemon.is_well(&client).await;
    // A new one waits until those that sent nothing are closed.
    drop(idle);
    daemon.serves_others().await;
    daemon.is_sound();
}
