//! What lanes load and lists read must not cost more the more jobs there are, of other lanes or finished ones. Both
//! databases are asked how they would run the statements; PostgreSQL with tables large enough for the answer to mean
//! something.

use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use ledger::{JobFilter, WaitingGroup};

use crate::bench::{Bench, owner};
use crate::shop::{complete, job, node, of_lane, plain, run, said, session, submit, submit_placed};

/// A statement that lanes load by.
struct Load {
    name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
    /// Its arguments' types on PostgreSQL, and values for them.
    types: &'static str,
    values: &'static str,
    /// What it must use.
    indexes: &'static [&'static str],
}

macro_rules! load {
    ($name:literal, $types:literal, $values:literal, $indexes:expr) => {
        Load {
            name: $name,
            sqlite: include_str!(concat!("../../sql/sqlite/", $name, ".sql")),
            postgres: include_str!(concat!("../../sql/postgres/", $name, ".sql")),
            types: $types,
            values: $values,
            indexes: &$indexes,
        }
    };
}

const LOADS: [Load; 8] = [
    load!(
        "job_in_flight",
        "text, uuid, bigint, bigint",
        "'session:l7', '00000000-0000-0000-0000-000000000000', 10, 1000",
        ["job_in_flight"]
    ),
    load!(
        "job_waiting",
        "text, text, text, bigint, bigint",
        "'session:l7', 'p', 't', 10, 1000",
        ["job_waiting"]
    ),
    load!(
        "job_coming",
        "text, bigint, bigint, bigint, bigint, uuid",
        "'session:l7', 1000, 10, 1000, -1, '00000000-0000-0000-0000-000000000000'",
        ["job_delayed"]
    ),
    load!("job_groups", "text, text, text, bigint", "'session:l7', '', '', 10", ["job_waiting"]),
    load!("job_lanes", "text, bigint, bigint", "'', 1000, 10", ["job_delayed"]),
    load!("job_seq", "text", "'l7'", ["job_session"]),
    load!("job_on_node", "text", "'n7'", ["job_node"]),
    load!("job_show", "uuid", "'00000000-0000-0000-0000-000000000000'", ["job"]),
];

/// A list of finished jobs with one mark, and the index of a partition that must serve it.
const LISTS: [(&str, &str); 5] = [
    ("session", "session_id_idx"),
    ("tenant", "tenant_id_idx"),
    ("pool", "pool_id_idx"),
    ("unsuccessful", "outcome_id_idx"),
    ("dead", "_id_idx"),
];

#[tokio::test]
async fn sqlite_finds_a_lanes_jobs_by_their_indexes() {
    let b = Bench::sqlite().await;
    let mut asks = SqliteConnection::connect(&b.options.url).await.unwrap();
    for Load { name, sqlite: statement, values, indexes, .. } in LOADS {
        let mut plan = sqlx::query_as(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")));
        for value in values.split(", ") {
            plan = plan.bind(value.trim_matches('\''));
        }
        let plan: Vec<(i64, i64, i64, String)> = plan.fetch_all(&mut asks).await.unwrap();
        let plan = plan.into_iter().map(|step| step.3).collect::<Vec<_>>().join("\n");
        for index in indexes {
            assert!(plan.contains(index), "{name} does not use {index}:\n{plan}");
        }
        let scans = plan.lines().any(|step| step == "SCAN job" || step == "SCAN job_finished");
        assert!(!scans, "{name}:\n{plan}");
    }
}

async fn explained(
    session: &mut PgConnection,
    name: &str,
    statement: &str,
    types: &str,
    values: &str,
) -> String {
    let prepare = format!("PREPARE {name} ({types}) AS {statement}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *session).await.unwrap();
    let explain = format!("EXPLAIN EXECUTE {name} ({values})");
    let plan: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(explain)).fetch_all(&mut *session).await.unwrap();
    plan.join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finds_jobs_by_their_indexes_also_under_generic_plans() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(
        "INSERT INTO job (id, lane, seq, session, tenant, pool, requires, priority, timeout_ms, max_attempts,
                          backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload,
                          created_at, due_at, state, attempt, counted, node, holder, past_attempts)
         SELECT gen_random_uuid(), 'session:l' || n % 50, n, 'l' || n % 50, 't' || n % 3, 'p', '', 0, 1, 1, 1, 1, 1,
                'run', '{}', now(), CASE WHEN n % 10 = 1 THEN now() + n * interval '1 second' END,
                CASE n % 10 WHEN 0 THEN 'DISPATCHED' ELSE 'CREATED' END, 1, 0,
                CASE n % 10 WHEN 0 THEN 'n' || n % 99 END, CASE n % 10 WHEN 0 THEN 'h' END, ''
         FROM generate_series(1, 40000) n;
         INSERT INTO job_finished (id, lane, seq, session, tenant, pool, requires, priority, timeout_ms, max_attempts,
                                   backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload,
                                   created_at, attempt, counted, past_attempts, outcome, dead, finished_at)
         SELECT gen_random_uuid(), 'session:l' || n % 500, n, 'l' || n % 500, 't' || n % 300, 'p' || n % 200, '', 0, 1,
                1, 1, 1, 1, 'run', '{}', now(), 1, 0, '', CASE n % 300 WHEN 0 THEN 'failed' ELSE 'succeeded' END,
                n % 600 = 0, now()
         FROM generate_series(1, 60000) n;
         ANALYZE job; ANALYZE job_finished;
         SET plan_cache_mode = force_generic_plan",
    )
    .execute(&mut session)
    .await
    .unwrap();
    for Load { name, postgres, types, values, indexes, .. } in LOADS {
        let plan = explained(&mut session, name, postgres, types, values).await;
        for index in indexes {
            assert!(plan.contains(index), "{name} does not use {index}:\n{plan}");
        }
        assert!(!plan.contains("Seq Scan on job"), "{name}:\n{plan}");
    }
    let list = include_str!("../../sql/postgres/job_list_finished.sql");
    for (mark, index) in LISTS {
        let outcome = mark == "unsuccessful";
        let stays = |line: &&str| {
            line.split_once("--? ").is_none_or(|(_, of)| of == mark || outcome && of == "outcome")
        };
        let list = list.lines().filter(stays).collect::<Vec<_>>().join("\n");
        let types = "uuid, bigint, bigint, text, text, text, text";
        let values = "'ffffffff-ffff-ffff-ffff-ffffffffffff', 10, 1000, 'l7', 't7', 'p7', 'failed'";
        let plan = explained(&mut session, &format!("list_{mark}"), &list, types, values).await;
        assert!(
            plan.contains(&format!("job_finished_rest_{}", index.trim_start_matches('_'))),
            "{mark}:\n{plan}"
        );
        assert!(!plan.contains("Seq Scan on job_finished_rest"), "{mark}:\n{plan}");
    }
}

/// Rows are found by their keys whatever is known of the tables: here that they are empty, which they were when they
/// were looked at last. The server counts what was read otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_trains_nor_loads_read_whole_tables() {
    let b = Bench::postgres().await;
    let lane = b.lane(session("s"), &owner("a")).await;
    let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql("ANALYZE job; ANALYZE job_finished").execute(&mut hand).await.unwrap();
    hand.close().await.unwrap();
    for chunk in 0..4 {
        b.does(of_lane(&lane, (chunk * 1_000..(chunk + 1) * 1_000).map(|n| submit_placed(job(n))))).await;
    }
    let ids = || (0..4_000).step_by(100).map(job);
    b.does(said(ids().map(|id| run(id, 1)))).await;
    b.does(said(ids().map(|id| complete(id, 1, "1")))).await;
    b.told(of_lane(&lane, ids().map(submit_placed))).await;
    b.does(of_lane(&lane, (4_000..4_400).map(|n| submit(plain(job(n)))))).await;
    // Often enough for the server to think about a plan for all arguments.
    for n in 0..10 {
        b.ledger.in_flight(&lane.resource, Some(job(n)), 10).await.unwrap();
        b.ledger.waiting(&lane.resource, &WaitingGroup::default(), 10).await.unwrap();
        b.ledger.waiting_groups(&lane.resource, None, 10).await.unwrap();
        b.ledger.coming_due(&lane.resource, None, 1_000, 10).await.unwrap();
        b.ledger.left_lanes(None, 1_000, 10).await.unwrap();
        b.ledger.lane_seq(&lane.resource).await.unwrap();
        b.ledger.attempts_on(&node("unknown")).await.unwrap();
        b.ledger.jobs(&JobFilter { limit: 10, ..JobFilter::default() }).await.unwrap();
        b.found(job(n * 100)).await;
        b.found(job(n * 100 + 1)).await;
    }
    let read = "SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'job%'";
    assert_eq!(b.counted_at_last(read).await, 0, "rows that nobody asked for were read");
}
