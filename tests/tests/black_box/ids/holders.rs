//! All worker numbers in the hands of others. A thousand instances are too much for one machine, so the others are
//! rows in the ledger: leases of instances that live, as the daemon sees it.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn with_all_1024_numbers_held_by_the_living_snowflakes_are_exhausted_and_one_that_comes_free_is_taken()
{
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let setup = Setup::basic().unwrap().database(database.url());
    let instance = setup.start().await.unwrap();
    let client = patient();
    prepare(instance.url()).await;
    database
        .query(
            "insert into lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
             select kind || n, 'foreign-' || n, 1, now(), now(), now() + interval '1 hour'
             from generate_series(0, 1023) n,
                  lateral (values ('id-worker:'), ('instance:foreign-')) as kinds (kind)",
        )
        .unwrap();
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
    let begun = Instant::now();
    let made = loop {
        let reply = get(&client, instance.url(), "/v1/ids/snowflake").await;
        if reply.status == 200 {
            break reply;
        }
        assert_eq!(reply.code(), "exhausted", "{}", reply.text);
        assert!(begun.elapsed() < PATIENCE, "{}", reply.text);
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(made.body["worker"], 700, "{}", made.text);
    let ready = client.get(&format!("{}/readyz", instance.url())).await.unwrap();
    assert_eq!(ready["checks"]["snowflakes"]["status"], "ok", "{ready}");
}
