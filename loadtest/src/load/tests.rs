//! The generator against a server of this test's own: latency counts from the intended start.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Answers one request after the other; the one numbered `slow` only after `pause`.
async fn server(slow: usize, pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let seen = Arc::new(AtomicUsize::new(0));
        while let Ok((mut socket, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                while socket.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                    if buffer.starts_with(b"GET /v1/cluster") {
                        let _ = socket.write_all(b"HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n").await;
                        continue;
                    }
                    if seen.fetch_add(1, Ordering::Relaxed) == slow {
                        tokio::time::sleep(pause).await;
                    }
                    let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
                }
            });
        }
    });
    format!("http://{address}")
}

fn plan(pace: Pace, connections: usize) -> Plan {
    Plan {
        ask: Ask::Empty,
        pace,
        connections,
        prefix: "s-".into(),
        choice: Arc::new(Zipf::new(1, 0.0)),
        route: Route::Any,
        seed: 1,
    }
}

async fn load(plan: Plan, url: String) -> Log {
    let targets = Arc::new(Targets::new(&[url], 1));
    run(plan, &targets, &Arc::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_behind_a_slow_answer_are_counted_as_slow() {
    let pause = Duration::from_millis(300);
    let url = server(10, pause).await;
    let schedule = Schedule::new(Spread::Even, 100.0, Duration::from_secs(1), 0);
    let log = load(plan(Pace::Open(Arc::new(schedule)), 1), url).await;
    assert_eq!((log.entries.len(), log.never_sent), (100, 0));
    // One answer was slow; the thirty that should have begun meanwhile waited for it, on average half
    // as long. Counted from when they were sent, one would be slow.
    let over = |limit_us: u64, part: fn(&Entry) -> u64| {
        log.entries.iter().filter(|entry| part(entry) > limit_us).count()
    };
    assert!(over(100_000, Entry::latency_us) >= 20, "{}", over(100_000, Entry::latency_us));
    assert!((1..=3).contains(&over(100_000, Entry::service_us)), "{}", over(100_000, Entry::service_us));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_connection_became_free_for_is_counted_as_never_sent() {
    // Longer than the schedule and its overtime: the only connection is busy all the time.
    let url = server(0, Duration::from_secs(6)).await;
    let schedule = Schedule::new(Spread::Even, 100.0, Duration::from_millis(200), 0);
    let log = load(plan(Pace::Open(Arc::new(schedule)), 1), url).await;
    assert_eq!((log.entries.len(), log.never_sent), (1, 19));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_ends_when_its_time_is_over() {
    let url = server(usize::MAX, Duration::ZERO).await;
    let log = load(plan(Pace::Closed(Duration::from_millis(200)), 4), url).await;
    assert!(log.entries.len() > 20, "{}", log.entries.len());
    assert!(log.entries.iter().all(|entry| entry.is_fine() && entry.intended_us == entry.sent_us));
}

#[test]
fn a_grant_that_is_not_as_the_contract_says_leaves_nothing_behind() {
    let mut log = Log::default();
    let body = |status: &str| {
        format!(
            "{{\"fencing_token\":1,\"owner\":\"a\",\"grants\":[{{\"nonce\":1,\"hold\":\"{0}\",\"status\":\"HELD\",\"held_for_ms\":1}},{{\"nonce\":2,\"hold\":\"{0}\",\"status\":\"{status}\",\"held_for_ms\":1}}]}}",
            "00000000-0000-0000-0000-000000000001"
        )
    };
    assert_eq!(granted(&mut log, body("CONSUMED").as_bytes()), None);
    assert!(log.nonces.is_empty());
    assert_eq!(
        granted(&mut log, body("HELD").as_bytes()),
        Some(Said::Granted { token: 1, owner: 0, first: 0, count: 2 })
    );
    assert_eq!(log.nonces.len(), 2);
}
