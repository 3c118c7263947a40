//! The ledger away for long under load. `FENCEPOST_AWAY_SECONDS=60` is the long form.

use testkit::servers::Postgres;

use super::*;

/// How long the ledger is away.
const AWAY_SECONDS_DEFAULT: u64 = 6;
/// How far ahead the second instance commits its mark, in milliseconds: less than the ledger is away.
const SHORT_LEAD_MS: u64 = 2_000;
/// Clients of each kind.
const CLIENTS: usize = 2;

/// What came of one request.
struct Answer {
    kind: &'static str,
    url: usize,
    at: Instant,
    status: u16,
    code: String,
    ids: Vec<String>,
}

async fn asks_on(
    (number, kind): (usize, &'static str),
    urls: Vec<String>,
    answers: Arc<Mutex<Vec<Answer>>>,
    stop: Arc<AtomicBool>,
) {
    let client = patient();
    for round in number.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let url = round % urls.len();
        let path = format!("{}{kind}?count={}", urls[url], 1 + round % 40);
        let reply = client.request("GET", &path, None, None).await.unwrap();
        let ids = if reply.status == 200 { texts(&reply) } else { Vec::new() };
        let (status, code, at) = (reply.status, reply.code().to_owned(), Instant::now());
        answers.lock().push(Answer { kind, url, at, status, code, ids });
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_ledger_away_for_long_segments_and_snowflakes_go_on_as_far_as_was_provided_for() {
    let away = match std::env::var("FENCEPOST_AWAY_SECONDS") {
        Ok(seconds) => seconds.parse().expect("a number of seconds"),
        Err(_) => AWAY_SECONDS_DEFAULT,
    };
    let server = Arc::new(tokio::task::spawn_blocking(Postgres::start).await.unwrap().unwrap());
    let database = server.database().unwrap();
    let setup = |lead_ms: u64| {
        Setup::in_mode("worker-queue")
            .unwrap()
            .database(database.url())
            .env("FENCEPOST__IDS__LEAD_MS", &lead_ms.to_string())
            .env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "1000")
            .env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "500")
    };
    // The first can do without the ledger for as long as that takes; the second cannot.
    let provided = setup((away + 60) * 1_000).start().await.unwrap();
    let short = setup(SHORT_LEAD_MS).start().await.unwrap();
    let urls = [provided.url().to_owned(), short.url().to_owned()];
    let client = patient();
    prepare(&urls[0]).await;
    assert_eq!(put(&client, &urls[0], TAG, json!({ "step": 2_000_000 })).await.status, 200);
    let (answers, stop): (Arc<Mutex<Vec<Answer>>>, Arc<AtomicBool>) = (Arc::default(), Arc::default());
    for url in &urls {
        for kind in KINDS {
            // A call that takes longer than half a second is refused, on a busy machine at first also here.
            until(kind, async || get(&client, url, kind).await.status == 200).await;
        }
    }
    let clients = (0..CLIENTS).flat_map(|number| KINDS.map(|kind| (number, kind)));
    let tasks: Vec<_> = clients
        .map(|who| tokio::spawn(asks_on(who, urls.to_vec(), Arc::clone(&answers), Arc::clone(&stop))))
        .collect();
    let since = |at: Instant, kind: &str, url: usize, status: u16| {
        let answers = answers.lock();
        let is = |one: &&Answer| one.at > at && one.kind == kind && one.url == url && one.status == status;
        answers.iter().filter(is).count()
    };
    let all_answer = async |at: Instant| {
        let begun = Instant::now();
        for (kind, url) in KINDS.iter().flat_map(|kind| [(kind, 0), (kind, 1)]) {
            while since(at, kind, url, 200) < 5 {
                assert!(begun.elapsed() < PATIENCE, "no {kind} of instance {url}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    all_answer(Instant::now()).await;

    server.stop_immediate().unwrap();
    let gone = Instant::now();
    tokio::time::sleep(Duration::from_secs(away)).await;
    for (kind, url) in
        [("/v1/ids/snowflake", 0), (TAG, 0), (TAG, 1), ("/v1/ids/uuid", 0), ("/v1/ids/uuid", 1)]
    {
        assert_eq!(since(gone, kind, url, 503), 0, "{kind} of instance {url} was refused");
        assert!(since(gone, kind, url, 200) > 20, "{kind} of instance {url}");
    }
    assert!(since(gone, "/v1/ids/snowflake", 1, 200) > 0, "up to the mark");
    assert!(since(gone, "/v1/ids/snowflake", 1, 503) > 0, "and not past it");
    assert!(since(gone, SEQUENCE, 0, 503) > 0 && since(gone, SEQUENCE, 1, 503) > 0);
    server.boot().unwrap();
    all_answer(Instant::now()).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }

    let answers = std::mem::take(&mut *answers.lock());
    for kind in KINDS {
        let mut seen = HashSet::new();
        for id in answers.iter().filter(|one| one.kind == kind).flat_map(|one| &one.ids) {
            assert!(seen.insert(id), "{kind}: {id} was given twice");
        }
        eprintln!("{kind}: {} ids", seen.len());
    }
    for refused in answers.iter().filter(|one| one.status != 200) {
        assert_eq!((refused.status, refused.code.as_str()), (503, "ledger_unavailable"), "{}", refused.kind);
    }
}
