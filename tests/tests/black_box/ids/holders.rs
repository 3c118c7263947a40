//! All worker numbers in the hands of others. A thousand instances are too much for one machine, so the others are
//! rows in the ledger: leases of instances that live, as the daemon sees it.

use super::*;

/// Leases all numbers to instances that live: `foreign-0` has the number 0.
fn lease_all(database: &Database) {
    database
        .query(
            "insert into lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
             select kind || n, 'foreign-' || n, 1, now(), now(), now() + interval '1 hour'
             from generate_series(0, 1023) n,
                  lateral (values ('id-worker:'), ('instance:foreign-')) as kinds (kind)",
        )
        .unwrap();
}

/// Asks until there is a snowflake.
async fn made_at_last(client: &Client, url: &str) -> Reply {
    let begun = Instant::now();
    loop {
        let reply = get(client, url, "/v1/ids/snowflake").await;
        if reply.status == 200 {
            return reply;
        }
        assert_eq!(reply.code(), "exhausted", "{}", reply.text);
        assert!(begun.elapsed() < PATIENCE, "{}", reply.text);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_1024_numbers_held_by_the_living_snowflakes_are_exhausted_and_one_that_comes_free_is_taken()
{
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let setup = Setup::basic().unwrap().database(database.url());
    let instance = setup.start().await.unwrap();
    let client = patient();
    prepare(instance.url()).await;
    lease_all(&database);
    for _ in 0..2 {
        let refused = get(&client, instance.url(), "/v1/ids/snowflake").await;
        assert_eq!((refused.status, refused.code()), (503, "exhausted"), "{}", refused.text);
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("all 1024 worker numbers") && detail.contains("foreign-"), "{detail}");
    }
    let ready = client.get(&format!("{}/readyz", instance.url())).await.unwrap();
    assert_eq!(ready["status"], "degraded", "{ready}");
    let detail = ready["checks"]["snowflakes"]["detail"].as_str().unwrap();
    assert!(detail.contains("1024 worker numbers"), "{ready}");
    for kind in [TAG, SEQUENCE, "/v1/ids/uuid"] {
        assert_eq!(get(&client, instance.url(), kind).await.status, 200, "{kind}");
    }
    // One of them is found dead: its own lease of life has run out.
    database
        .query("update lease set expires_at = now() where resource = 'instance:foreign-700' returning 1")
        .unwrap();
    database
        .query(
            "update lease set owner = null, expires_at = now() where resource = 'id-worker:700' returning 1",
        )
        .unwrap();
    let made = made_at_last(&client, instance.url()).await;
    assert_eq!(made.body["worker"], 700, "{}", made.text);
    let ready = client.get(&format!("{}/readyz", instance.url())).await.unwrap();
    assert_eq!(ready["checks"]["snowflakes"]["status"], "ok", "{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_number_is_taken_from_an_instance_that_is_late_and_that_nobody_found_dead() {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    // For so long after it has joined, an instance finds nobody dead, and takes nothing that has run out.
    let setup = Setup::basic().unwrap().env("FENCEPOST__LEASE__INSTANCE_MS", "60000");
    let instance = setup.database(database.url()).start().await.unwrap();
    let client = patient();
    lease_all(&database);
    // As after an outage of the ledger: both may be about to renew themselves, and the second one its number as well.
    let late = "update lease set expires_at = now() \
                where resource in ('instance:foreign-7', 'instance:foreign-8', 'id-worker:8') returning 1";
    assert_eq!(database.query(late).unwrap().len(), 3);
    let refused = get(&client, instance.url(), "/v1/ids/snowflake").await;
    assert_eq!((refused.status, refused.code()), (503, "exhausted"), "{}", refused.text);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("instances that live or were not found dead yet"), "{detail}");
    let left = "update lease set owner = null where resource = 'instance:foreign-7' returning 1";
    assert_eq!(database.query(left).unwrap().len(), 1);
    let made = made_at_last(&client, instance.url()).await;
    assert_eq!(made.body["worker"], 7, "{}", made.text);
}
