//! What an owner loads must not cost more the longer its signer lives; nor what is asked of instances, the more leases others
//! have. Both databases are asked how they would run the statements; on PostgreSQL with a table large enough for the answer to
//! mean something.

use std::fs;
use std::path::Path;

use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::bench::{BY_KEYS, Bench};
use crate::job_plans::{pages_of, with_mark};

/// The statements of a load, and what each may use. A scan of the table, or of all nonces that the signer
/// ever had, is neither.
const LOADS: [(&str, &str, &str); 2] = [
    ("nonce_holes", sql!("sqlite/nonce_holes"), sql!("postgres/nonce_holes")),
    ("nonce_overdue", sql!("sqlite/nonce_overdue"), sql!("postgres/nonce_overdue")),
];

#[tokio::test]
async fn sqlite_loads_by_the_indexes_of_open_nonces() {
    let b = Bench::sqlite().await;
    let mut session = SqliteConnection::connect(&b.options.url).await.unwrap();
    for (name, statement, _) in LOADS {
        let plan: Vec<(i64, i64, i64, String)> =
            // Of the statement whose later arguments are missing they are NULL, which changes no plan.
            sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")))
                .bind("s")
                .bind(10)
                .fetch_all(&mut session)
                .await
                .unwrap();
        let plan: Vec<_> = plan.into_iter().map(|step| step.3).collect();
        let of_rows: Vec<_> = plan.iter().filter(|step| step.contains("signer_nonce_allocation")).collect();
        let by_open =
            |step: &&&String| step.starts_with("SEARCH") && step.contains("USING INDEX signer_nonce_h");
        assert!(!of_rows.is_empty() && of_rows.iter().all(|step| by_open(&step)), "{name}: {plan:?}");
        assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{name} sorts: {plan:?}");
    }
}

const HOT_SIGNER: &str = "
    INSERT INTO signer_nonce_allocation
    SELECT 'hot', n, 'HELD', gen_random_uuid(), now() + '1 hour', NULL, 1, 'a', now(), now()
    FROM generate_series(0, 49999) n;
    ANALYZE signer_nonce_allocation;";
const MANY_SIGNERS: &str = "
    INSERT INTO signer_nonce_allocation
    SELECT 's' || n % 50, n, CASE n / 50 % 100 WHEN 0 THEN 'RELEASED' WHEN 1 THEN 'HELD' ELSE 'CONSUMED' END,
           gen_random_uuid(), now() + '2 hours', NULL, 1, 'a', now(), now()
    FROM generate_series(0, 99999) n;";

#[tokio::test]
async fn postgres_loads_by_the_indexes_of_open_nonces_also_under_generic_plans() {
    let b = Bench::postgres().await;
    let does = async |session: &mut PgConnection, text: String| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(session).await.unwrap();
    };
    // A plan is kept that was made before there were any rows, or when there was one signer.
    for (before, after) in [
        (
            String::new(),
            format!("{HOT_SIGNER} {MANY_SIGNERS}").replace("ANALYZE signer_nonce_allocation;", ""),
        ),
        (HOT_SIGNER.to_owned(), MANY_SIGNERS.to_owned()),
        (format!("{MANY_SIGNERS} {HOT_SIGNER}"), String::new()),
    ] {
        let mut session = PgConnection::connect(&b.options.url).await.unwrap();
        does(&mut session, BY_KEYS.to_owned()).await;
        does(&mut session, format!("TRUNCATE signer_nonce_allocation; {before}")).await;
        for (name, _, statement) in LOADS {
            does(&mut session, format!("PREPARE {name} (text, bigint, bigint, bigint) AS {statement}")).await;
            plan_of(&mut session, &load(name, "s7")).await;
        }
        does(&mut session, after).await;
        for ((name, ..), signer) in LOADS.iter().flat_map(|load| ["s7", "none"].map(|signer| (load, signer)))
        {
            let plan = plan_of(&mut session, &load(name, signer)).await;
            let by_open = ["signer_nonce_hole", "signer_nonce_held"].iter().any(|index| plan.contains(index));
            assert!(by_open && !plan.contains("Seq Scan"), "{name}: {plan}");
            // What another signer holds is not looked through for what this one does.
            let removed = plan.lines().filter_map(|line| line.split_once("Removed by Filter: "));
            let removed: u64 = removed.map(|(_, rows)| rows.trim().parse::<u64>().unwrap()).sum();
            assert!(removed <= 1, "{name}: {plan}");
        }
    }
}

/// A prepared statement of a load with its arguments.
fn load(name: &str, signer: &str) -> String {
    format!("{name} ('{signer}', 10, 0, 0)")
}

/// Runs a prepared statement, and tells how.
async fn plan_of(session: &mut PgConnection, call: &str) -> String {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS) EXECUTE {call}");
    let plan: Vec<String> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(explain)).fetch_all(session).await.unwrap();
    plan.join("\n")
}

#[tokio::test]
async fn postgres_looks_for_overdue_holds_at_one_entry_for_each_signer() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    let statement = sql!("postgres/signer_overdue");
    let prepare = format!("PREPARE look (text, text, bigint, bigint) AS {statement}");
    for text in [BY_KEYS, HOT_SIGNER, MANY_SIGNERS, &prepare] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(text.to_owned())).execute(&mut session).await.unwrap();
    }
    let plan = plan_of(&mut session, "look ('a', 'hos', 40, 0)").await;
    let scans: Vec<_> = plan.lines().filter(|line| line.contains("Scan using signer_nonce_")).collect();
    assert!(!scans.is_empty() && !plan.contains("Seq Scan on signer_nonce"), "{plan}");
    for scan in scans {
        let read = scan.rsplit_once("rows=").unwrap().1.split(' ').next().unwrap();
        assert!(scan.contains("signer_nonce_held") && read.parse::<f64>().unwrap() <= 1.0, "{plan}");
    }
}

/// What is asked every few seconds of instances, and of plans that have lost their owner: the statements, the types of their
/// arguments, and values for them. All of it is bounded by the numbers of instances and of plans.
const OF_INSTANCES: [(&str, &str, &str, &str); 7] = [
    ("instance_list", sql!("both/postgres/instance_list"), "text, bigint", "'me', 100"),
    ("instance_peers", sql!("postgres/instance_peers"), "bigint, bigint", "600000, 100"),
    ("transfer_list", sql!("both/postgres/transfer_list"), "text, bigint", "'me', 100"),
    ("plan_left", sql!("postgres/plan_left"), "text, bigint", "'me', 100"),
    ("instance_end", sql!("postgres/instance_end"), "bigint, bigint", "60000, 100"),
    ("instance_purge", sql!("postgres/instance_purge"), "bigint, bigint", "60000, 100"),
    ("lease_purge", sql!("postgres/lease_purge"), "bigint, bigint", "60000, 100"),
];

/// An instance that lives and one that ended long ago, a plan, and many leases before and behind theirs.
const MANY_LEASES: &str = "
    INSERT INTO instance (instance_id, url, hostname, pid, version, started_at)
    SELECT id, '', '', 1, '', now() FROM unnest(ARRAY['lives', 'ended']) AS id;
    INSERT INTO instance_nodes (instance_id, nodes) SELECT instance_id, '[]' FROM instance;
    INSERT INTO plan (id, status, version, needs_owner, document, created_at)
    VALUES (gen_random_uuid(), 'RUNNING', 1, TRUE, '{}', now());
    INSERT INTO lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
    SELECT 'instance:' || instance_id, instance_id, 1, now(), now(),
           now() + CASE instance_id WHEN 'lives' THEN interval '1 hour' ELSE interval '-1 hour' END
    FROM instance
    UNION ALL
    SELECT 'plan:' || id, 'ended', 1, now(), now(), now() + interval '1 hour' FROM plan
    UNION ALL
    SELECT kind || n, 'lives', 1, now(), now(), now() + interval '1 hour'
    FROM generate_series(1, 20000) n, unnest(ARRAY['a:', 'signer:']) AS kind";

#[tokio::test]
async fn postgres_reads_no_leases_of_others_to_know_instances_however_it_joins_them() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    let does = async |session: &mut PgConnection, text: String| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(session).await.unwrap();
    };
    // A server that takes the tables for small may join them by reading both. Here it has to.
    let joins = "SET enable_nestloop = off; SET enable_seqscan = off; SET jit = off;
                 SET plan_cache_mode = force_generic_plan";
    does(&mut session, joins.to_owned()).await;
    does(&mut session, MANY_LEASES.to_owned()).await;
    for (name, statement, types, values) in OF_INSTANCES {
        does(&mut session, format!("PREPARE {name} ({types}) AS {statement}")).await;
        let plan = plan_of(&mut session, &format!("{name} ({values})")).await;
        let pages = pages_of(&plan);
        assert!(pages < 100, "{name} reads {pages} pages:\n{plan}");
    }
}

/// The tables that may have millions of rows.
const LARGE: [&str; 14] = [
    "audit",
    "idempotency_key",
    "job",
    "job_finished",
    "lease",
    "plan",
    "plan_checkpoint",
    "plan_definition",
    "plan_event",
    "plan_stage_run",
    "plan_task",
    "session",
    "signer",
    "signer_nonce_allocation",
];

/// The statements of SQLite that read one of them, or an index of one, from end to end: those of a start and of recoveries, the
/// counts of plans and of open nonces, and the look at plans that need an owner. Of the last two there is an index.
const READ_WHOLE: [&str; 10] = [
    "lease_end_all",
    "nonce_open_counts",
    "plan_left",
    "plan_statuses",
    "recover_leases",
    "recover_owned",
    "recover_plans",
    "recover_sessions",
    "recover_signers",
    "recover_trial",
];

#[tokio::test]
async fn sqlite_reads_a_large_table_from_end_to_end_only_where_that_is_meant() {
    let b = Bench::sqlite().await;
    let mut session = SqliteConnection::connect(&b.options.url).await.unwrap();
    let mut read_whole = Vec::new();
    for (name, statement) in sqlite_statements() {
        let plan = sqlite_plan(&mut session, &statement).await;
        if reads_whole(&statement, &plan) {
            read_whole.push(name);
        }
    }
    assert_eq!(read_whole, READ_WHOLE);
}

#[tokio::test]
async fn sqlite_looks_up_the_instance_of_each_lease_that_it_may_forget() {
    let b = Bench::sqlite().await;
    let mut session = SqliteConnection::connect(&b.options.url).await.unwrap();
    let plan = sqlite_plan(&mut session, sql!("sqlite/lease_purge")).await;
    assert!(plan.iter().any(|step| step.starts_with("SEARCH i USING PRIMARY KEY")), "{plan:?}");
}

/// All statements of SQLite by their names, in the order of these, without remarks and what only some callers ask for.
fn sqlite_statements() -> Vec<(String, String)> {
    let root = Path::new(concat!(env!("OUT_DIR"), "/sql"));
    let mut statements = Vec::new();
    for folder in ["both/sqlite", "sqlite", "sqlite-only"] {
        for file in fs::read_dir(root.join(folder)).unwrap() {
            let path = file.unwrap().path();
            let text = with_mark(&fs::read_to_string(&path).unwrap(), "");
            let without_remark = |line: &str| line.split("--").next().unwrap_or_default().to_owned();
            let text = text.lines().map(without_remark).collect::<Vec<_>>().join("\n");
            // As if a new job had one column.
            let text = text
                .replace("{given in w}", "w.value ->> 'id'")
                .replace("{given of j}", "j.id")
                .replace("{given}", "id");
            statements.push((path.file_stem().unwrap().display().to_string(), text));
        }
    }
    statements.sort_unstable();
    statements
}

/// How SQLite would run a statement whose arguments are all NULL, which changes no plan.
async fn sqlite_plan(session: &mut SqliteConnection, statement: &str) -> Vec<String> {
    let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
    let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(explain).fetch_all(session).await.unwrap();
    plan.into_iter().map(|step| step.3).collect()
}

/// Whether a step of the plan reads a large table from end to end. A step names a table by its alias.
fn reads_whole(statement: &str, plan: &[String]) -> bool {
    let words = statement.split_whitespace().map(|word| word.trim_end_matches([',', ')', ';']));
    let words: Vec<_> = words.chain([""; 2]).collect();
    let is_large = |name: &str| {
        let is_its_alias =
            |at: &[&str]| LARGE.contains(&at[0]) && (at[1] == name || at[1] == "AS" && at[2] == name);
        LARGE.contains(&name) || words.windows(3).any(is_its_alias)
    };
    // Rows that the statement itself has made may be called as a table is elsewhere in it.
    let is_made = |name: &str| {
        plan.iter()
            .any(|step| *step == format!("CO-ROUTINE {name}") || *step == format!("MATERIALIZE {name}"))
    };
    let scans = plan.iter().filter_map(|step| step.strip_prefix("SCAN "));
    scans
        .filter(|scan| !scan.contains("VIRTUAL TABLE"))
        .filter_map(|scan| scan.split(' ').next())
        .any(|name| is_large(name) && !is_made(name))
}
