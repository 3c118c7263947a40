//! A copy of the ledger that is served on the Redis of its original, which is a mistake.

use std::process::Command;

use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::servers::Database;

use super::rig::{Rig, echo, hold};
use crate::recovery::tool;
use crate::until;

/// A database with all that this one has.
fn copied(database: &Database) -> Database {
    let (copy, folder) = (Database::fresh().unwrap(), tempfile::tempdir().unwrap());
    let dump = folder.path().join("dump.sql");
    let dump = dump.to_str().unwrap();
    let run = |program: &str, args: &[&str]| {
        let done = Command::new(tool(program)).args(args).output().unwrap();
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    };
    run("pg_dump", &["--no-privileges", "-f", dump, database.url()]);
    run("psql", &["-q", "--single-transaction", "-v", "ON_ERROR_STOP=1", "-f", dump, copy.url()]);
    copy
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_of_a_copy_on_one_redis_stops_no_job_of_the_original_and_both_sides_name_the_other() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 4).await;
    let running = rig.submit(0, hold("kept")).await;
    node.runs.begun(&running, 1).await;
    rig.in_state(0, &running, "RUNNING").await;
    let database = rig.database.clone().unwrap();
    let copy = tokio::task::spawn_blocking(move || copied(&database)).await.unwrap();
    let setup = Setup::in_mode("worker-queue").unwrap().database(copy.url());
    let setup = setup.arg("--redis-url").arg(&rig.redis.as_ref().unwrap().url());
    let stage = setup.env("FENCEPOST__LEASE__INSTANCE_MS", "2000").start().await.unwrap();
    let ask = async |method: &str, path: &str, body: Option<&Value>| {
        rig.http.request(method, &format!("{}{path}", stage.url()), None, body).await.unwrap()
    };
    let says = "instances of another ledger with the id of this one are on this bus";
    let originals =
        [rig.instance(0).await.ready().instance.clone(), rig.instance(1).await.ready().instance.clone()];
    until("the copy's instance names those of the original", async || {
        let said = ask("GET", "/readyz", None).await.text;
        said.contains(says) && originals.iter().all(|id| said.contains(id))
    })
    .await;
    for index in 0..2 {
        until("the original's instance names that of the copy", async || {
            let said = rig.ask(index, "GET", "/readyz", None).await.text;
            said.contains(says) && said.contains(&stage.ready().instance)
        })
        .await;
    }
    // What the copy decides about the job reaches no node of the original.
    until("the copy has cancelled the job", async || {
        ask("POST", &format!("/v1/jobs/{running}/cancel"), None).await.status == 200
    })
    .await;
    let jobs: Vec<_> = (0..20).map(echo).collect();
    for id in rig.submit_all(0, &jobs).await {
        let job = rig.finished(0, &id).await;
        assert_eq!(job["outcome"], "succeeded", "{job:#}");
    }
    node.runs.release(1);
    let job = rig.finished(0, &running).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("kept"), &json!(1)), "{job:#}");
    // Nor does a job of its own, which says what it waits for.
    let own = ask("POST", "/v1/jobs", Some(&echo("of the copy"))).await.body;
    let own = own["id"].as_str().unwrap();
    until("the copy's job waits for a node that answers", async || {
        let job = ask("GET", &format!("/v1/jobs/{own}"), None).await.body;
        job["waiting_for"]["reason"] == "not_ready"
    })
    .await;
    assert!(node.runs.of(own).is_empty() && node.runs.of(&running).len() == 1, "{:?}", node.runs.all());
    for index in 0..2 {
        let log = rig.instance(index).await.whole_log();
        assert!(!log.contains("inbox was closed by another"), "{log}");
    }
    rig.no_defect().await;
}
