//! A node's id belongs to the token that connected it, also where no bus joins the instances.

use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::node::Socket;
use testkit::servers::Database;

use super::world::{frame, message, node};
use crate::tokens::{Guarded, first, root};
use crate::until;

/// The longest name that a node may have.
fn longest() -> String {
    format!("gpu-{}", "1".repeat(124))
}

/// A node of the longest name that says that it runs these; its first frame is not read yet.
async fn hello(daemon: &Guarded, token: &str, running: &Value) -> Socket {
    let mut socket = Socket::connect_with(daemon.instance.url(), token).await.unwrap();
    let hello = json!({"node_id": longest(), "capacity": 1, "running": running});
    socket.send(message("hello", &hello)).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_id_belongs_to_its_token_where_no_bus_joins_the_instances() {
    let database = tokio::task::block_in_place(Database::migrated).unwrap();
    let of_nodes = |name: &str| json!({"name": name, "token": name, "scopes": ["node"]});
    let tokens = json!([root(), of_nodes("ops"), of_nodes("other")]);
    let setup = || {
        let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
        setup.env("FENCEPOST__LEASE__INSTANCE_MS", "10000")
    };
    // One after the other: an instance knows those that were there before it, and hears of others with its next renewal.
    let one = Guarded::on(setup(), &tokens).await;
    let two = Guarded::on(setup(), &tokens).await;
    for daemon in [&one, &two] {
        until("the instances know each other", async || {
            let (_, cluster) = daemon.ask("root", "GET", "/v1/cluster", None).await;
            cluster["instances"].as_array().is_some_and(|instances| instances.len() == 2)
        })
        .await;
    }
    let mut own = hello(&one, "ops", &json!([])).await;
    assert_eq!(first(&mut own).await, "welcome");
    let job = one.done("root", "POST", "/v1/jobs", json!({"payload": 1})).await;
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let dispatch = frame(&mut own, "dispatch").await;
    let attempt = json!({"job": dispatch["job"], "attempt": dispatch["attempt"]});
    own.send(message("ack", &attempt)).await.unwrap();
    until("the job runs", async || two.ask("root", "GET", &path, None).await.1["state"] == "RUNNING").await;

    // Another token may read which attempt it is, and says that it is the node.
    let running = json!([attempt]);
    let result = |output: &str| {
        let mut result = attempt.clone();
        result["ok"] = json!(true);
        result["output"] = json!(output);
        message("result", &result)
    };
    let mut thief = hello(&two, "other", &running).await;
    thief.send(result("forged")).await.unwrap();
    assert_eq!(first(&mut thief).await, "4401");
    let claim = |daemon, token: &'static str| async move {
        let path = format!("/v1/whoami?node={}", longest());
        let (status, told) = Guarded::ask(daemon, token, "GET", &path, None).await;
        assert_eq!((status, &told["node"]["id"]), (200, &json!(longest())), "{told}");
        told["node"]["status"].as_str().unwrap().to_owned()
    };
    assert_eq!([claim(&one, "ops").await, claim(&one, "other").await], ["own", "anothers"]);
    assert_eq!(claim(&two, "other").await, "free", "this instance knows of no such node");
    let (status, refused) = one.ask("other", "GET", "/v1/whoami?node=a%20b", None).await;
    let detail = refused["detail"].as_str().unwrap();
    assert!(status == 400 && detail.starts_with("node must be 1 to 128 characters"), "{refused}");
    // Under a name of its own it is welcome.
    node(&two, "other", "gpu-2", "default").await;

    // The node itself may come to any instance, and its result is taken there.
    let mut moved = hello(&two, "ops", &running).await;
    assert_eq!(first(&mut moved).await, "welcome");
    moved.send(result("its own")).await.unwrap();
    frame(&mut moved, "committed").await;
    let (_, job) = one.ask("root", "GET", &path, None).await;
    assert_eq!((&job["outcome"], &job["result"]), (&json!("succeeded"), &json!("its own")), "{job}");
}
