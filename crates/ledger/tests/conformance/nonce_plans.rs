//! A list of a signer's nonces in one state must not read those in other states: nearly all are CONSUMED, and more every day.

use domain::nonce::Status;
use ledger::NonceFilter;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::bench::{Bench, nonce, signer};
use crate::job_plans::{explained, with_mark};

/// What each list must be found by, on both databases; PostgreSQL names the index of a primary key otherwise.
const LISTS: [(&str, &str); 5] = [
    ("HELD", "signer_nonce_held"),
    ("CONSUMED", "signer_nonce_allocation"),
    ("RELEASED", "signer_nonce_hole"),
    ("QUARANTINED", "signer_nonce_hole"),
    ("", "signer_nonce_allocation"),
];

/// Nonces of one signer that is used much: its newest ones are RELEASED, QUARANTINED and HELD. And of many others, of which
/// these states are most, so that the tables' statistics make them look frequent.
const FILL: &str = "
    INSERT INTO signer_nonce_allocation
        (signer, nonce, status, hold, held_until, fencing_token, owner, created_at, updated_at)
    SELECT signer, nonce, status, gen_random_uuid(), now(), 1, 'a', now(), now()
    FROM (SELECT 's' AS signer, n AS nonce,
                 CASE WHEN n < 99700 THEN 'CONSUMED' WHEN n < 99800 THEN 'RELEASED'
                      WHEN n < 99900 THEN 'QUARANTINED' ELSE 'HELD' END AS status
          FROM generate_series(0, 99999) n
          UNION ALL
          SELECT 'other' || n % 500, n / 500,
                 (ARRAY['RELEASED', 'QUARANTINED', 'HELD'])[n % 3 + 1]
          FROM generate_series(0, 99999) n) AS nonces";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_lists_the_nonces_of_a_state_without_reading_the_others() {
    let b = Bench::postgres().await;
    let page = async |status: Status, after: Option<u64>| {
        let filter =
            NonceFilter { signer: signer("s"), status: Some(status), after: after.map(nonce), limit: 50 };
        let page = b.ledger.nonces(&filter).await.unwrap();
        page.iter().map(|record| record.row.nonce.get()).collect::<Vec<_>>()
    };
    let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(FILL).execute(&mut hand).await.unwrap();
    sqlx::raw_sql("ANALYZE signer_nonce_allocation").execute(&mut hand).await.unwrap();
    // Often enough for the server to think about a plan for all arguments.
    for _ in 0..8 {
        for (status, first) in [
            (Status::Consumed, 0),
            (Status::Released, 99_700),
            (Status::Quarantined, 99_800),
            (Status::Held, 99_900),
        ] {
            assert_eq!(page(status, None).await, (first..first + 50).collect::<Vec<_>>(), "{status:?}");
            let next = (first + 50..first + 100).collect::<Vec<_>>();
            assert_eq!(page(status, Some(first + 49)).await, next, "{status:?}");
        }
    }
    hand.close().await.unwrap();
    let read = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'signer_nonce_allocation')::bigint
                     + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'signer_nonce_allocation')";
    let read = b.counted_at_last(read).await;
    assert!(read < 8_000, "{read} rows were read for 64 pages of 50");
}

/// Nonces of one signer that holds very many, behind some that are CONSUMED, and of which every tenth is RELEASED.
const HOLDS: &str = "
    INSERT INTO signer_nonce_allocation
        (signer, nonce, status, hold, held_until, fencing_token, owner, created_at, updated_at)
    SELECT 's', n, CASE WHEN n < 20000 THEN 'CONSUMED' WHEN n % 10 = 0 THEN 'RELEASED' ELSE 'HELD' END,
           gen_random_uuid(), now() + interval '1 day' - n * interval '1 millisecond', 1, 'a', now(), now()
    FROM generate_series(0, 99999) n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_reads_a_page_of_very_many_holds_without_the_others() {
    let b = Bench::postgres().await;
    let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(HOLDS).execute(&mut hand).await.unwrap();
    sqlx::raw_sql("ANALYZE signer_nonce_allocation").execute(&mut hand).await.unwrap();
    hand.close().await.unwrap();
    let mut after = None;
    for page in 0..30 {
        let filter = NonceFilter {
            signer: signer("s"),
            status: Some(Status::Held),
            after: after.map(nonce),
            limit: 90,
        };
        let records = b.ledger.nonces(&filter).await.unwrap();
        let read: Vec<_> = records.iter().map(|record| record.row.nonce.get()).collect();
        let first = 20_000 + page * 100;
        let held = (first..first + 100).filter(|number| number % 10 != 0);
        assert_eq!(read, held.collect::<Vec<_>>(), "page {page}");
        after = read.last().copied();
    }
    let read = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'signer_nonce_allocation')::bigint
                     + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'signer_nonce_allocation')";
    let read = b.counted_at_last(read).await;
    // The first page is behind more nonces than are looked at, and puts all 72,000 into order.
    assert!(read < 600_000, "{read} rows were read for 30 pages of 90");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finds_the_nonces_of_a_state_by_its_index_whenever_the_plan_was_made() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    let list = sql!("postgres/nonce_list");
    // As the sessions that run it. A plan is kept that was made before there were any rows.
    let settings = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan";
    sqlx::raw_sql(settings).execute(&mut session).await.unwrap();
    for (status, _) in LISTS {
        let list = with_mark(list, status);
        explained(&mut session, &format!("kept_{status}"), &list, "text, bigint, bigint", "'s', 7, 10").await;
    }
    let next = sql!("postgres/nonce_list_next");
    let next = explained(&mut session, "kept_next", next, "text, bigint, bigint", "'s', 7, 10").await;
    assert!(!next.contains("Sort") && !next.contains("Bitmap"), "{next}");
    let confirm = sql!("postgres/confirm_known");
    let values = "'s', 99800, 7, '00000000-0000-0000-0000-000000000001'";
    explained(&mut session, "confirm", confirm, "text, bigint, bigint, uuid", values).await;
    for prepare in [FILL, "ANALYZE signer_nonce_allocation", "SET plan_cache_mode = force_custom_plan"] {
        sqlx::raw_sql(prepare).execute(&mut session).await.unwrap();
        for (status, index) in LISTS {
            let plan = run(&mut session, &format!("kept_{status} ('s', 7, 10)")).await;
            assert!(plan.contains(index), "{status}:\n{plan}");
            // The holds of one signer, which are few, are put into order; nothing else is.
            assert_eq!(plan.contains("Sort"), status == "HELD", "{status}:\n{plan}");
            assert!(!plan.contains("Bitmap") || status == "HELD", "{status}:\n{plan}");
        }
        let plan = run(&mut session, "kept_next ('s', 7, 10)").await;
        let is_bounded = |step: &str| step.contains("Index Cond") && step.contains("nonce <= ");
        assert!(plan.lines().any(is_bounded) && !plan.contains("Seq Scan"), "{plan}");
        let plan = run(&mut session, &format!("confirm ({values})")).await;
        assert!(plan.contains("signer_nonce_held") && plan.contains("signer_nonce_hole"), "{plan}");
        assert!(!plan.contains("Seq Scan"), "{plan}");
    }
}

async fn run(session: &mut PgConnection, call: &str) -> String {
    let explain = AssertSqlSafe(format!("EXPLAIN EXECUTE {call}"));
    let plan: Vec<String> = sqlx::query_scalar(explain).fetch_all(session).await.unwrap();
    plan.join("\n")
}

#[tokio::test]
async fn sqlite_finds_the_nonces_of_a_state_by_its_index() {
    let b = Bench::sqlite().await;
    let mut asks = SqliteConnection::connect(&b.options.url).await.unwrap();
    let list = sql!("sqlite/nonce_list");
    for (status, index) in LISTS {
        let explain = format!("EXPLAIN QUERY PLAN {}", with_mark(list, status));
        let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(AssertSqlSafe(explain))
            .bind("s")
            .bind(7)
            .bind(10)
            .fetch_all(&mut asks)
            .await
            .unwrap();
        let plan = plan.into_iter().map(|step| step.3).collect::<Vec<_>>().join("\n");
        assert!(plan.contains(index) && plan.starts_with("SEARCH"), "{status}:\n{plan}");
        assert_eq!(plan.contains("TEMP B-TREE"), status == "HELD", "{status}:\n{plan}");
    }
    let explain = format!("EXPLAIN QUERY PLAN {}", sql!("sqlite/nonce_list_next"));
    let plan: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(AssertSqlSafe(explain)).bind("s").bind(7).bind(10).fetch_all(&mut asks).await.unwrap();
    let plan = plan.into_iter().map(|step| step.3).collect::<Vec<_>>().join("\n");
    let along = "SEARCH signer_nonce_allocation USING PRIMARY KEY (signer=? AND nonce>? AND nonce<?)";
    assert!(plan.contains(along) && !plan.contains("TEMP B-TREE"), "{plan}");
}
