//! What lanes load and lists read must not cost more the more jobs there are, of other lanes or finished ones; nor what counts
//! tasks the more plans are over, nor what shows a few tasks of a plan the more others it has. Both databases are asked how they
//! would run the statements; PostgreSQL with tables large enough for the answer to mean something.

use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use domain::job::{Retry, State};
use ledger::{JobFilter, LAST_NODE_PLACES, SessionFilter, WaitingGroup};

use crate::bench::{BY_KEYS, Bench, owner};
use crate::shop::{
    complete, dispatch, job, node, of_lane, plain, run, said, session, session_id, submit, submit_placed,
};

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

/// `both` before the name of a statement that has one file for both databases.
macro_rules! load {
    (both $name:literal, $types:literal, $values:literal, $indexes:expr) => {
        load!("both/sqlite", "both/postgres", $name, $types, $values, $indexes)
    };
    ($name:literal, $types:literal, $values:literal, $indexes:expr) => {
        load!("sqlite", "postgres", $name, $types, $values, $indexes)
    };
    ($sqlite:literal, $postgres:literal, $name:literal, $types:literal, $values:literal, $indexes:expr) => {
        Load {
            name: $name,
            sqlite: include_str!(concat!(env!("OUT_DIR"), "/sql/", $sqlite, "/", $name, ".sql")),
            postgres: include_str!(concat!(env!("OUT_DIR"), "/sql/", $postgres, "/", $name, ".sql")),
            types: $types,
            values: $values,
            indexes: &$indexes,
        }
    };
}

const LOADS: [Load; 26] = [
    load!(
        "job_in_flight",
        "text, uuid, bigint, bigint",
        "'session:l7', '00000000-0000-0000-0000-000000000000', 10, 1000",
        ["job_in_flight"]
    ),
    load!(
        both "job_under_way",
        "text, uuid, bigint",
        "'session:l7', '00000000-0000-0000-0000-000000000000', 10",
        ["job_in_flight"]
    ),
    load!(
        both "job_waiting",
        "text, text, bigint, bigint",
        "'session:l7', 'p/t//', 10, 1000",
        ["job_waiting_group"]
    ),
    load!(
        "job_coming",
        "text, bigint, bigint, bigint, bigint, uuid",
        "'session:l7', 1000, 10, 1000, -1, '00000000-0000-0000-0000-000000000000'",
        ["job_delayed"]
    ),
    load!("job_groups", "text, text, bigint", "'session:l7', '', 10", ["job_waiting_group"]),
    load!("job_promote", "text, bigint", "'session:l7', 10", ["job_delayed"]),
    load!("job_lanes", "text, bigint, bigint, text", "'', 1000, 10, 'me'", ["job_delayed"]),
    load!("job_seq", "text", "'l7'", ["job_session"]),
    load!("job_counts", "uuid, bigint", "'00000000-0000-0000-0000-000000000000', 10", ["job"]),
    load!(both "job_finished_count", "uuid, bigint", "'00000000-0000-0000-0000-000000000000', 10", ["job_finished"]),
    load!(
        both "job_finished_pools",
        "text, uuid, bigint",
        "'', '00000000-0000-0000-0000-000000000000', 10",
        ["job_finished_pool"]
    ),
    load!(
        both "job_finished_tenants",
        "text, uuid, bigint",
        "'', '00000000-0000-0000-0000-000000000000', 10",
        ["job_finished_tenant"]
    ),
    load!(both "job_on_node", "text", "'n7'", ["job_node"]),
    load!("job_current", "uuid[]", "'{00000000-0000-0000-0000-000000000000}'", ["job"]),
    load!(both "job_show", "uuid", "'00000000-0000-0000-0000-000000000000'", ["job"]),
    load!("job_states", "uuid[]", "'{00000000-0000-0000-0000-000000000000}'", ["job"]),
    load!(
        "job_states_finished",
        "uuid[], uuid, uuid",
        "'{00000000-0000-0000-0000-000000000000}', '00000000-0000-0000-0000-000000000000', \
         '00000000-0000-0000-0000-000000000000'",
        ["job_finished"]
    ),
    load!(
        "job_line",
        "text, text, bigint, bigint, bigint",
        "'session:l7', 'l7', 7, 10, 1000",
        ["job_session"]
    ),
    load!(
        "session_results",
        "text[], bigint[], bigint[], bigint",
        "ARRAY['l7'], ARRAY[7], ARRAY[10], 1000",
        ["job_session", "job_finished_place"]
    ),
    load!(both "session_places", "text, bigint, bigint", "'l7', 7, 10", ["job_finished_place"]),
    load!(both "session_unfinished", "text, bigint, bigint", "'l7', 7, 10", ["job_session"]),
    load!(both "session_refs", "text, bigint, bigint", "'l7', 7, 10", ["job_session", "job_finished_place"]),
    load!("session_counts", "text, bigint", "'l7', 256", ["job_session", "job_finished_place"]),
    load!("session_last_attempts", "text, bigint", "'l7', 10000", ["job_session", "job_finished_end"]),
    load!("session_show", "text", "'l7'", ["job_session", "job_finished_end"]),
    load!(
        "session_idle",
        "text, bigint, bigint",
        "'l7', 10, 0",
        ["session_open", "job_session", "job_finished_end"]
    ),
];

/// What PostgreSQL calls an index in a partition.
const IN_A_PARTITION: [(&str, &str); 5] = [
    ("job_finished", "job_finished_rest_pkey"),
    ("job_finished_pool", "job_finished_rest_pool_id_idx"),
    ("job_finished_tenant", "job_finished_rest_tenant_id_idx"),
    ("job_finished_place", "job_finished_rest_session_seq_id_idx"),
    ("job_finished_end", "job_finished_rest_session_finished_at_idx"),
];

/// A list of finished jobs with one mark, and the index of a partition that must serve it.
const LISTS: [(&str, &str); 7] = [
    ("session", "session_id_idx"),
    ("tenant", "tenant_id_idx"),
    ("pool", "pool_id_idx"),
    ("kind", "kind_id_idx"),
    ("unsuccessful", "outcome_id_idx"),
    ("dead", "_id_idx2"),
    ("retried", "_id_idx1"),
];

/// Lists of a token that sees just one tenant, or one pool, each with the mark of that.
const OF_ONE: [(&str, Load); 5] = [
    ("tenant", load!("session_list", "text, bigint, text, text", "'', 10, 't7', 'p7'", ["session_tenant"])),
    ("pool", load!("session_list", "text, bigint, text, text", "'', 10, 't7', 'p7'", ["session_pool"])),
    (
        "tenant",
        load!(both "session_names", "text, bigint, text, text", "'', 10, 't7', 'p7'", ["session_tenant"]),
    ),
    ("pool", load!(both "session_names", "text, bigint, text, text", "'', 10, 't7', 'p7'", ["session_pool"])),
    (
        "tenant",
        load!(
            both "plan_list",
            "uuid, text, bigint, text",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff', NULL, 10, 't7'",
            ["plan_task_tenant"]
        ),
    ),
];

#[tokio::test]
async fn sqlite_finds_a_lanes_jobs_by_their_indexes() {
    let b = Bench::sqlite().await;
    let mut asks = SqliteConnection::connect(&b.options.url).await.unwrap();
    for Load { name, sqlite: statement, values, indexes, .. } in LOADS {
        let plan = explained_by_sqlite(&mut asks, statement, values).await;
        for index in indexes {
            assert!(plan.contains(index), "{name} does not use {index}:\n{plan}");
        }
        let scans = plan.lines().any(|step| step == "SCAN job" || step == "SCAN job_finished");
        assert!(!scans, "{name}:\n{plan}");
    }
    let on_nodes = listed_on_nodes(sql!("sqlite/job_list"));
    let plan = explained_by_sqlite(&mut asks, &on_nodes, ON_NODES).await;
    assert!(plan.contains("job_in_flight"), "{plan}");
    // The dead without those that were dismissed.
    let list = with_mark(sql!("sqlite/job_list_finished"), "dead");
    let next = sql!("both/sqlite/bulk_next_finished").replace("--? by_", "--? ");
    for dead in [list, with_mark(&next, "dead")] {
        let plan = explained_by_sqlite(&mut asks, &dead, "'x', 10, 10").await;
        assert!(plan.contains("job_finished_undismissed"), "{plan}");
    }
}

#[tokio::test]
async fn sqlite_finds_what_is_of_one_tenant_or_pool_by_their_indexes() {
    let b = Bench::sqlite().await;
    let mut asks = SqliteConnection::connect(&b.options.url).await.unwrap();
    for (mark, Load { name, sqlite: statement, values, indexes, .. }) in OF_ONE {
        let plan = explained_by_sqlite(&mut asks, &with_mark(statement, mark), values).await;
        for index in indexes {
            assert!(plan.contains(index), "{name} does not use {index}:\n{plan}");
        }
    }
}

#[tokio::test]
async fn sqlite_finds_plans_of_one_status_and_entries_of_the_audit_by_their_indexes() {
    let b = Bench::sqlite().await;
    let mut asks = SqliteConnection::connect(&b.options.url).await.unwrap();
    let (plans, audit) = (sql!("both/sqlite/plan_list"), sql!("sqlite/audit_list"));
    for (statement, mark, index) in [
        (plans, "status", "plan_status"),
        (audit, "principal", "audit_principal"),
        (audit, "subject", "audit_subject"),
    ] {
        let plan =
            explained_by_sqlite(&mut asks, &with_mark(statement, mark), "'x', 'x', 'x', 1, 2, 3").await;
        assert!(plan.contains(index), "one {mark} is not found by {index}:\n{plan}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finds_what_is_of_one_tenant_or_pool_by_their_indexes() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(
        "INSERT INTO session (session, tenant, pool, requires, ordering, idle_ms, purged_seq, created_at)
         SELECT 'l' || n, 't' || n % 500, 'p' || n % 500, '', 'strict', 1, 0, now() FROM generate_series(1, 20000) n;
         INSERT INTO plan (id, status, version, needs_owner, document, created_at)
         SELECT lpad(to_hex(n), 32, '0')::uuid, 'RUNNING', 1, FALSE, '{}', now() FROM generate_series(1, 20000) n;
         INSERT INTO plan_task (id, plan, place, tenant, status, run, definition, version, document, updated_at)
         SELECT lpad(to_hex(n), 32, '0')::uuid, lpad(to_hex(n / 3 + 1), 32, '0')::uuid, n % 3, 't' || n % 20000, 'RUNNING',
                1, 1, 1, '{}', now()
         FROM generate_series(0, 59999) n;
         ANALYZE session; ANALYZE plan; ANALYZE plan_task;
         SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off",
    )
    .execute(&mut session)
    .await
    .unwrap();
    for (mark, Load { name, postgres, types, values, indexes, .. }) in OF_ONE {
        let list = with_mark(postgres, mark);
        let plan = explained(&mut session, &format!("{name}_{mark}"), &list, types, values).await;
        for index in indexes {
            assert!(plan.contains(index), "{name} of one {mark} does not use {index}:\n{plan}");
        }
    }
}

#[tokio::test]
async fn sqlite_counts_tasks_and_unknown_stages_plan_by_plan() {
    let b = Bench::sqlite().await;
    let mut asks = SqliteConnection::connect(&b.options.url).await.unwrap();
    let counts = sql!("sqlite/plan_counts");
    let plan: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {counts}")))
            .fetch_all(&mut asks)
            .await
            .unwrap();
    for table in ["SEARCH p ", "SEARCH t ", "SEARCH s "] {
        assert!(plan.iter().any(|step| step.3.starts_with(table)), "{table}: {plan:?}");
    }
}

#[tokio::test]
async fn sqlite_reads_no_documents_of_tasks_that_are_behind_the_first_ones_to_look_at() {
    let b = Bench::sqlite().await;
    let mut asks = SqliteConnection::connect(&b.options.url).await.unwrap();
    let plan = explained_by_sqlite(&mut asks, sql!("sqlite/plan_attention"), "'[]', 10, '[]'").await;
    // The tasks of each plan are numbered without what is large of them, which is read by their ids.
    let by_id = |step: &str| step.starts_with("SEARCH t ") && step.ends_with("(id=?)");
    assert!(plan.lines().any(by_id), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_counts_tasks_plan_by_plan_whatever_it_knows_of_the_plans() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    // The tables' statistics are those of a time when every plan was under way.
    sqlx::raw_sql(
        "INSERT INTO plan (id, status, version, needs_owner, document, created_at)
         SELECT lpad(to_hex(n), 32, '0')::uuid, 'RUNNING', 1, FALSE, '{}', now() FROM generate_series(1, 20000) n;
         INSERT INTO plan_task (id, plan, place, tenant, status, run, definition, version, document, updated_at)
         SELECT lpad(to_hex(n), 32, '0')::uuid, lpad(to_hex(n / 3 + 1), 32, '0')::uuid, n % 3, 't', 'RUNNING', 1, 1, 1,
                '{}', now()
         FROM generate_series(0, 59999) n;
         ANALYZE plan; ANALYZE plan_task;
         SET enable_seqscan = off; SET jit = off",
    )
    .execute(&mut session)
    .await
    .unwrap();
    let counts = sql!("postgres/plan_counts");
    let plan: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(format!("EXPLAIN {counts}"))).fetch_all(&mut session).await.unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("Index Cond: (plan = p.id)"), "{plan}");
}

async fn explained_by_sqlite(asks: &mut SqliteConnection, statement: &str, values: &str) -> String {
    let mut plan = sqlx::query_as(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")));
    for value in values.split(", ") {
        plan = plan.bind(value.trim_matches('\''));
    }
    let plan: Vec<(i64, i64, i64, String)> = plan.fetch_all(&mut *asks).await.unwrap();
    plan.into_iter().map(|step| step.3).collect::<Vec<_>>().join("\n")
}

pub async fn explained(
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

/// How many pages a statement has read, by the plan of its run.
pub fn pages_of(plan: &str) -> u32 {
    let pages = plan.lines().find_map(|line| line.trim().strip_prefix("Buffers: shared ")).unwrap();
    pages.split(' ').filter_map(|part| part.split_once('=')?.1.parse::<u32>().ok()).sum()
}

/// Finished jobs of many sessions, tenants, pools and kinds, most of which succeeded. Of those that failed nearly all are
/// dismissed.
async fn fill_finished(session: &mut PgConnection) {
    sqlx::raw_sql(
        "INSERT INTO job_finished (id, lane, seq, session, tenant, pool, requires, priority, timeout_ms, max_attempts,
                                   backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload,
                                   created_at, attempt, counted, past_attempts, outcome, dead, finished_at, kind, dismissed_at)
         SELECT gen_random_uuid(), 'session:l' || n % 500, n, 'l' || n % 500, 't' || n % 300, 'p' || n % 200, '', 0, 1,
                1, 1, 1, 1, 'run', '{}', now(), 1, 0, '', CASE n % 30 WHEN 0 THEN 'failed' ELSE 'succeeded' END,
                n % 30 = 0, now(), 'k' || n % 200, CASE WHEN n % 30 = 0 AND n % 600 <> 0 THEN now() END
         FROM generate_series(1, 60000) n;
         ANALYZE job_finished",
    )
    .execute(session)
    .await
    .unwrap();
}

/// Arguments of a list of unfinished jobs that are in one state in which nodes have them.
const ON_NODES: &str = "'ffffffff-ffff-ffff-ffff-ffffffffffff', 10, 'l7', 't7', 'p7', 'k7', 'DISPATCHED'";

/// Such a list.
fn listed_on_nodes(list: &str) -> String {
    with_mark(&list.replace("--? state", "--? on_nodes").replace("--? sorted", "--? on_nodes"), "on_nodes")
}

/// A statement with the lines of one mark; that of all that did not succeed names an outcome too.
pub fn with_mark(text: &str, mark: &str) -> String {
    let outcome = mark == "unsuccessful";
    let stays =
        |line: &&str| line.split_once("--? ").is_none_or(|(_, of)| of == mark || outcome && of == "outcome");
    text.lines().filter(stays).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finds_jobs_by_their_indexes_also_under_generic_plans() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    fill_finished(&mut session).await;
    sqlx::raw_sql(
        "INSERT INTO job (id, lane, seq, session, tenant, pool, requires, priority, timeout_ms, max_attempts,
                          backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload,
                          created_at, due_at, state, attempt, counted, node, holder, past_attempts)
         SELECT gen_random_uuid(), 'session:l' || n % 50, n, 'l' || n % 50, 't' || n % 3, 'p', '', 0, 1, 1, 1, 1, 1,
                'run', '{}', now(), CASE WHEN n % 10 = 1 THEN now() + n * interval '1 second' END,
                CASE n % 10 WHEN 0 THEN 'DISPATCHED' ELSE 'CREATED' END, 1, 0,
                CASE n % 10 WHEN 0 THEN 'n' || n % 99 END, CASE n % 10 WHEN 0 THEN 'h' END, ''
         FROM generate_series(1, 40000) n;
         INSERT INTO session (session, pool, requires, ordering, idle_ms, purged_seq, created_at, closed_at)
         SELECT 'l' || n, '', '', 'strict', 1, 0, now(), CASE WHEN n % 10 > 0 THEN now() END
         FROM generate_series(1, 20000) n;
         ANALYZE job; ANALYZE session;
         SET plan_cache_mode = force_generic_plan",
    )
    .execute(&mut session)
    .await
    .unwrap();
    for Load { name, postgres, types, values, indexes, .. } in LOADS {
        let plan = explained(&mut session, name, postgres, types, values).await;
        for index in indexes {
            let in_a_partition = IN_A_PARTITION.iter().find(|(name, _)| name == index);
            let index = in_a_partition.map_or(*index, |(_, index)| *index);
            assert!(plan.contains(index), "{name} does not use {index}:\n{plan}");
        }
        // A partition that is empty may be looked through.
        let tables = ["job", "job_finished_rest", "session", "lease"];
        let scans = tables.iter().any(|table| plan.contains(&format!("Seq Scan on {table} ")));
        assert!(!scans, "{name}:\n{plan}");
    }
    let list = sql!("postgres/job_list_finished");
    for (mark, index) in LISTS {
        let list = with_mark(&list.replace(" --? anywhere", ""), mark);
        let types = "uuid, bigint, text, text, text, text, text";
        let values = "'ffffffff-ffff-ffff-ffff-ffffffffffff', 10, 'l7', 't7', 'p7', 'k7', 'failed'";
        let plan = explained(&mut session, &format!("list_{mark}"), &list, types, values).await;
        assert!(
            plan.contains(&format!("job_finished_rest_{}", index.trim_start_matches('_'))),
            "{mark}:\n{plan}"
        );
        assert!(!plan.contains("Seq Scan on job_finished_rest"), "{mark}:\n{plan}");
    }
    let unfinished = sql!("postgres/job_list");
    // As in the sessions that run them.
    sqlx::raw_sql("SET enable_seqscan = off").execute(&mut session).await.unwrap();
    let newest = sql!("postgres-only/job_list_newest");
    for (name, list, part) in [
        ("of_sessions", list, "job_finished_rest_session_id_idx"),
        ("unfinished_of_sessions", unfinished, "job_session"),
        // Each of the newest jobs is looked up among the sessions, and not compared with all of them.
        ("newest_of_sessions", newest, "hashed SubPlan"),
    ] {
        let list = with_mark(&list.replace("--? sorted", "--? sessions"), "sessions");
        let types = "uuid, bigint, text, text, text, text, text, uuid, text[]";
        let values = "'ffffffff-ffff-ffff-ffff-ffffffffffff', 10, 'l7', 't7', 'p7', 'k7', 'DISPATCHED', \
                      '00000000-0000-0000-0000-000000000000', '{l7,l8}'";
        let plan = explained(&mut session, name, &list, types, values).await;
        assert!(plan.contains(part), "{name}:\n{plan}");
    }
    let on_nodes = listed_on_nodes(unfinished);
    let types = "uuid, bigint, text, text, text, text, text";
    let plan = explained(&mut session, "list_on_nodes", &on_nodes, types, ON_NODES).await;
    assert!(plan.contains("job_in_flight") || plan.contains("job_node"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finds_the_jobs_of_a_bulk_operation_by_their_indexes() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    fill_finished(&mut session).await;
    sqlx::raw_sql("SET plan_cache_mode = force_generic_plan").execute(&mut session).await.unwrap();
    let next = sql!("both/postgres/bulk_next_finished");
    for (mark, index) in LISTS {
        let next = with_mark(&next.replace("--? by_", "--? "), mark);
        let types = "uuid, timestamptz, bigint, text, text, text, text, text, uuid, bigint";
        let values = "'00000000-0000-0000-0000-000000000000', now(), 100, 'l7', 't7', 'p7', 'k7', 'failed', \
                      'ffffffff-ffff-ffff-ffff-ffffffffffff', 1000";
        let plan = explained(&mut session, &format!("next_{mark}"), &next, types, values).await;
        assert!(
            plan.contains(&format!("job_finished_rest_{}", index.trim_start_matches('_'))),
            "{mark}:\n{plan}"
        );
        assert!(!plan.contains("Seq Scan on job_finished_rest"), "{mark}:\n{plan}");
    }
    // Where no index is of the filter, and for unfinished jobs, a scan reads so many rows in the order of their ids.
    for (name, next, index) in [
        ("next_any", next, "job_finished_rest_pkey"),
        ("next_unfinished", sql!("both/postgres/bulk_next_unfinished"), "job_pkey"),
    ] {
        let types = "uuid, timestamptz, bigint, text, text, text, text, text, uuid, bigint";
        let values = "'00000000-0000-0000-0000-000000000000', now(), 100, 'l7', 't7', 'p7', 'k7', 'failed', \
                      'ffffffff-ffff-ffff-ffff-ffffffffffff', 1000";
        let plan = explained(&mut session, name, &with_mark(next, ""), types, values).await;
        assert!(plan.contains(index) && plan.contains("Limit"), "{name}:\n{plan}");
    }
}

/// Such jobs lie where older ones were deleted, so that what is known of ranges of pages finds none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finds_what_is_old_among_jobs_without_a_days_partition_by_its_age() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    fill_finished(&mut session).await;
    // As in the sessions that purge.
    sqlx::raw_sql("SET enable_seqscan = off; SET jit = off").execute(&mut session).await.unwrap();
    let purge = sql!("postgres-only/job_purge_rest");
    let plan = explained(&mut session, "purge_rest", purge, "bigint, bigint", "60000, 100").await;
    assert!(plan.contains("job_finished_rest_age"), "{plan}");
}

/// What many lanes write at once is read once, and not again for each lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rounds_rows_are_not_read_again_for_each_of_its_lanes() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(BY_KEYS).execute(&mut session).await.unwrap();
    // Of the columns of a new job those that the statement names itself.
    let round = sql!("postgres-only/job_round")
        .replace(
            "{given unnested $20}",
            "unnest($20::uuid[]) AS id, unnest($21::text[]) AS lane, unnest($22::text[]) AS node",
        )
        .replace("{given of w}", "w.id, w.lane, w.node")
        .replace("{given}", "id, lane, node");
    let types = "text[], bigint[], text[], text[], uuid[], text[], bigint[], text[], text[], uuid[], text[], text[], bytea[],
                 text[], uuid[], text[], bigint[], text[], text[], uuid[], text[], text[]";
    let values = vec!["'{}'"; 22].join(", ");
    // In every choice of sections: of new jobs, their keys, attempts that begin and what must end for these, and ends.
    for (choice, sections) in [
        ["new"].as_slice(),
        &["begins"],
        &["ends"],
        &["new", "keys"],
        &["new", "begins"],
        &["new", "ends"],
        &["begins", "ends"],
        &["new", "keys", "begins"],
        &["new", "keys", "ends"],
        &["new", "begins", "ends"],
        &["new", "keys", "begins", "ends"],
    ]
    .into_iter()
    .enumerate()
    {
        let has = |section| sections.contains(&section);
        let behind = has("begins") && has("ends");
        let plan = explained(
            &mut session,
            &format!("round{choice}"),
            &with_sections(&round, sections),
            types,
            &values,
        )
        .await;
        let lookups = sections.len() + usize::from(behind);
        assert_eq!(plan.matches("hashed SubPlan").count(), lookups, "{sections:?}\n{plan}");
        assert!(!plan.contains("Join Filter"), "{sections:?}\n{plan}");
    }
}

/// A statement's text with these sections and no others.
fn with_sections(text: &str, wanted: &[&str]) -> String {
    let mut open = Vec::new();
    let mut kept = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("--if ") {
            Some(section) => open.push(wanted.contains(&section)),
            None if line == "--end" => assert!(open.pop().is_some()),
            None if open.iter().all(|wanted| *wanted) => kept.push(line),
            None => {}
        }
    }
    kept.join("\n")
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
    b.verdicts(of_lane(&lane, ids().map(submit_placed))).await;
    let retry = |id: domain::JobId| {
        let new = domain::JobId::from_u128(id.as_u128() + 10_000);
        submit(domain::job::NewJob { retry: Some(Retry { of: id, once: true }), ..plain(new) })
    };
    b.does(of_lane(&lane, ids().map(retry))).await;
    b.does(of_lane(&lane, (4_000..4_400).map(|n| submit(plain(job(n)))))).await;
    b.does(of_lane(&lane, (4_000..4_100).map(|n| dispatch(job(n), 1)))).await;
    b.does(of_lane(&lane, (1..4_000).step_by(100).map(|n| complete(job(n), 1, "1")))).await;
    let id = session_id("s");
    b.ledger.open_session(&id, &crate::sessions::spec(), None, None).await.unwrap();
    // Often enough for the server to think about a plan for all arguments.
    for n in 0..10 {
        b.ledger.in_flight(&lane.id, Some(job(n)), 10).await.unwrap();
        b.ledger.waiting(&lane.id, &WaitingGroup::default(), 10).await.unwrap();
        b.ledger.waiting_groups(&lane.id, None, 10).await.unwrap();
        b.ledger.coming_due(&lane.id, None, 1_000, 10).await.unwrap();
        b.ledger.orphaned_lanes(&owner("looks"), None, 1_000, 10).await.unwrap();
        b.ledger.lane_seq(&lane.id).await.unwrap();
        b.ledger.attempts_on(&node("unknown")).await.unwrap();
        b.ledger.line(&lane.id, n, 10).await.unwrap();
        b.ledger.session_results(&id, n, 10).await.unwrap();
        b.ledger.finished_places(&id, n, 10).await.unwrap();
        b.ledger.unfinished_places(&id, n, 10).await.unwrap();
        b.ledger.session_counts(&id).await.unwrap();
        b.ledger.session(&id).await.unwrap();
        b.ledger.idle_sessions(0, None, 10).await.unwrap();
        for open in [None, Some(true), Some(false)] {
            let after = Some(id.clone());
            let filter = SessionFilter { open, after, limit: 10, ..SessionFilter::default() };
            b.ledger.sessions(&filter).await.unwrap();
        }
        b.ledger.purge_sessions(0, 10).await.unwrap();
        b.ledger.jobs(&JobFilter { limit: 10, ..JobFilter::default() }).await.unwrap();
        b.found(job(n * 100)).await;
        b.found(job(n * 100 + 1)).await;
    }
    // Nor are all attempts of a node read to find one of them.
    let read = "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname ~ '^(job|session|lease)')::bigint
                     + (SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'job_node')";
    assert_eq!(b.counted_at_last(read).await, 0, "rows that nobody asked for were read");
}

/// Where nodes have many jobs and few wait, a page of those that nodes have is read without the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_the_jobs_that_nodes_have_does_not_read_all_of_them() {
    let b = Bench::postgres().await;
    let lane = b.lane(session("s"), &owner("a")).await;
    for chunk in 0..4 {
        b.does(of_lane(&lane, (chunk * 1_000..(chunk + 1) * 1_000).map(|n| submit_placed(job(n))))).await;
    }
    let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql("ANALYZE job").execute(&mut hand).await.unwrap();
    hand.close().await.unwrap();
    let on_nodes = JobFilter { state: Some(State::Dispatched), limit: 10, ..JobFilter::default() };
    let listed = b.ledger.jobs(&on_nodes).await.unwrap();
    assert!(listed.iter().map(|record| record.id).eq((3_990..4_000).rev().map(job)));
    let read = "SELECT (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE relname = 'job')::bigint
                     + (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes
                        WHERE indexrelname IN ('job_in_flight', 'job_node'))::bigint";
    let read = b.counted_at_last(read).await;
    assert!(read < 1_000, "{read} rows of 4,000 were read for a page of 10");
}

/// A client that has seen all of a session of a hundred thousand jobs asks for more, among many sessions of a few: as
/// many pages are read as in a short one. So it is for its next owner, though none of its jobs had a node. Its jobs are of
/// several days.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_behind_the_last_place_of_a_long_session_is_found_at_once() {
    const LAST: u32 = 100_000;
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(
        "INSERT INTO job_finished (id, lane, seq, session, tenant, pool, requires, priority, timeout_ms, max_attempts,
                                   backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload,
                                   created_at, attempt, counted, past_attempts, outcome, dead, result, finished_at)
         SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint + n % 4 * 86400000), 12, '0') || '7000'
                 || lpad(to_hex(n), 16, '0'))::uuid,
                'session:' || s, seq, s, '', '', '', 0, 1, 1, 1, 1, 1, 'run', '{}', now(), 0, 0, '', 'cancelled', FALSE,
                '1', now() - interval '1 hour'
         FROM (SELECT n, 'warm' AS s, n AS seq FROM generate_series(1, 100000) n
               UNION ALL
               SELECT n, 'short' || n % 20000, n / 20000 FROM generate_series(100001, 160000) n) AS jobs",
    )
    .execute(&mut session)
    .await
    .unwrap();
    sqlx::raw_sql("VACUUM ANALYZE job_finished").execute(&mut session).await.unwrap();
    sqlx::raw_sql("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
        .execute(&mut session)
        .await
        .unwrap();
    let results = sql!("postgres/session_results");
    let places = sql!("both/postgres/session_places");
    let counts = sql!("postgres/session_counts");
    let attempts = sql!("postgres/session_last_attempts");
    let behind =
        |ask: fn(u32) -> String| [LAST, LAST - 5, LAST / 2, 0].into_iter().map(ask).collect::<Vec<_>>();
    let statements = [
        (
            "session_results",
            results,
            "text[], bigint[], bigint[], bigint",
            behind(|after| format!("ARRAY['warm'], ARRAY[{after}], ARRAY[10], 1000000")),
        ),
        ("session_places", places, "text, bigint, bigint", behind(|after| format!("'warm', {after}, 10"))),
        ("session_counts", counts, "text, bigint", vec![format!("'warm', {LAST_NODE_PLACES}")]),
        ("session_last_attempts", attempts, "text, bigint", vec!["'warm', 10000".to_owned()]),
    ];
    for (name, statement, types, asks) in statements {
        let prepare = format!("PREPARE {name} ({types}) AS {statement}");
        sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut session).await.unwrap();
        for ask in asks {
            let explain = format!("EXPLAIN (ANALYZE, BUFFERS) EXECUTE {name} ({ask})");
            let plan: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(explain)).fetch_all(&mut session).await.unwrap();
            let plan = plan.join("\n");
            let pages = pages_of(&plan);
            assert!(pages > 0 && pages < 100, "{name} of {ask} reads {pages} pages:\n{plan}");
            println!("{name} of {ask} reads {pages} pages");
            let reads_no_job = name != "session_places" || plan.contains("Index Only Scan");
            assert!(reads_no_job, "{name}:\n{plan}");
        }
    }
}
