//! What an owner loads must not cost more the longer its signer lives. Both databases are asked how they
//! would run the statements; on PostgreSQL with a table large enough for the answer to mean something.

use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::bench::Bench;

/// The statements of a load, and what each may use. A scan of the table, or of all nonces that the signer
/// ever had, is neither.
const LOADS: [(&str, &str, &str); 2] = [
    (
        "nonce_holes",
        include_str!("../../sql/sqlite/nonce_holes.sql"),
        include_str!("../../sql/postgres/nonce_holes.sql"),
    ),
    (
        "nonce_overdue",
        include_str!("../../sql/sqlite/nonce_overdue.sql"),
        include_str!("../../sql/postgres/nonce_overdue.sql"),
    ),
];

#[tokio::test]
async fn sqlite_loads_by_the_indexes_of_open_nonces() {
    let b = Bench::sqlite().await;
    let mut session = SqliteConnection::connect(&b.options.url).await.unwrap();
    for (name, statement, _) in LOADS {
        let plan: Vec<(i64, i64, i64, String)> =
            // Of the statement whose third argument is missing it is NULL, which changes no plan.
            sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")))
                .bind("s")
                .bind(10)
                .fetch_all(&mut session)
                .await
                .unwrap();
        let plan: Vec<_> = plan.into_iter().map(|step| step.3).collect();
        assert!(plan[0].contains("USING INDEX signer_nonce_h"), "{name}: {plan:?}");
        assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{name} sorts: {plan:?}");
    }
}

#[tokio::test]
async fn postgres_loads_by_the_indexes_of_open_nonces_also_under_generic_plans() {
    let b = Bench::postgres().await;
    let mut session = PgConnection::connect(&b.options.url).await.unwrap();
    sqlx::raw_sql(
        "INSERT INTO signer_nonce_allocation
         SELECT 's' || n % 50, n, CASE n / 50 % 100 WHEN 0 THEN 'RELEASED' WHEN 1 THEN 'HELD' ELSE 'CONSUMED' END,
                gen_random_uuid(), now(), NULL, 1, 'a', now(), now()
         FROM generate_series(0, 99999) n;
         ANALYZE signer_nonce_allocation;
         SET plan_cache_mode = force_generic_plan",
    )
    .execute(&mut session)
    .await
    .unwrap();
    for (name, _, statement) in LOADS {
        let prepare = format!("PREPARE {name} (text, bigint, bigint) AS {statement}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(prepare)).execute(&mut session).await.unwrap();
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS) EXECUTE {name} ('s7', 10, 0)");
        let plan: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(explain)).fetch_all(&mut session).await.unwrap();
        let plan = plan.join("\n");
        let open_only = ["signer_nonce_hole", "signer_nonce_held", "signer_nonce_overdue"];
        let by_open = open_only.iter().any(|index| plan.contains(index));
        assert!(by_open && !plan.contains("Seq Scan"), "{name}: {plan}");
    }
}
