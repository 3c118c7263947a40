//! Several instances as one: requests find their owner from anywhere, keys move when instances come and go,
//! and one that was found dead comes back as another.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use loadtest::checker;
use loadtest::tables;
use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::fleet::Fleet;
use testkit::http::{Client, Reply};
use testkit::instance::Setup;
use testkit::process::Signal;
use testkit::servers::Database;

use crate::shutdown::begin_request;
use crate::{Load, patient, until};

async fn database() -> Database {
    tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap()
}

async fn fleet(count: usize, shape: impl Fn(Setup) -> Setup) -> Fleet {
    // Long enough that a busy machine kills nobody.
    let steady = |setup: Setup| shape(setup.env("FENCEPOST__LEASE__INSTANCE_MS", "10000"));
    let fleet = Fleet::on(database().await, "worker-queue", count, steady).await.unwrap();
    all_on_ring(&patient(), fleet.urls(), count).await;
    fleet
}

async fn shown(client: &Client, url: &str) -> Value {
    client.get(&format!("{url}/v1/cluster")).await.unwrap()
}

fn on_ring(cluster: &Value) -> usize {
    cluster["instances"].as_array().unwrap().iter().filter(|one| one["on_ring"] == true).count()
}

/// The instance that answered.
fn itself(cluster: &Value) -> &Value {
    cluster["instances"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["instance_id"] == cluster["instance"])
        .unwrap()
}

/// Waits until everybody sees the same ring of so many.
async fn all_on_ring(client: &Client, urls: &[String], count: usize) {
    until("all see the same ring", async || {
        let mut versions = BTreeSet::new();
        for url in urls {
            let cluster = shown(client, url).await;
            if on_ring(&cluster) != count {
                return false;
            }
            versions.insert(cluster["ring_version"].as_u64().unwrap());
        }
        versions.len() == 1
    })
    .await;
}

async fn grant(client: &Client, url: &str, signer: &str) -> Reply {
    let url = format!("{url}/v1/signers/{signer}/nonces");
    client.request("POST", &url, None, Some(&json!({}))).await.unwrap()
}

async fn owner(client: &Client, url: &str, signer: &str) -> Value {
    client.get(&format!("{url}/v1/cluster/owner/signer:{signer}")).await.unwrap()
}

/// The sum of a counter's samples that have this text in their labels.
async fn counted(client: &Client, url: &str, name: &str, label: &str) -> f64 {
    let text = client.request("GET", &format!("{url}/metrics"), None, None).await.unwrap().text;
    let samples = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_any_instance_reach_the_one_owner() {
    // No instance is taken for dead while this machine is busy.
    let fleet = fleet(3, |setup| setup.env("FENCEPOST__LEASE__INSTANCE_MS", "20000")).await;
    let client = patient();
    let mut owners = BTreeSet::new();
    for number in 0..12 {
        let signer = format!("routed-{number}");
        let placed = owner(&client, &fleet.urls()[0], &signer).await;
        assert_eq!(placed["leased"], false);
        for (nonce, url) in fleet.urls().iter().cycle().take(6).enumerate() {
            let reply = grant(&client, url, &signer).await;
            assert_eq!(reply.status, 201, "{}", reply.text);
            assert_eq!(reply.body["grants"][0]["nonce"], nonce, "{}", reply.text);
            assert_eq!(reply.body["owner"], placed["instance_id"], "{}", reply.text);
            assert_eq!(reply.body["fencing_token"], 1, "the lease was acquired once: {}", reply.text);
        }
        for url in fleet.urls() {
            let seen = owner(&client, url, &signer).await;
            assert_eq!((&seen["instance_id"], &seen["url"]), (&placed["instance_id"], &placed["url"]));
            assert_eq!(seen["leased"], true);
        }
        owners.insert(placed["instance_id"].as_str().unwrap().to_owned());
    }
    assert!(owners.len() > 1, "the keys are spread");
    let mut forwarded = 0.0;
    for url in fleet.urls() {
        forwarded += counted(&client, url, "fencepost_forward_total", "answered").await;
    }
    assert_eq!(forwarded, 48.0, "two of three requests take a hop, and only one");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_requests_are_not_forwarded_they_are_told_the_owners_address() {
    let fleet = fleet(2, |setup| setup.env("FENCEPOST__WORKER_QUEUE__ON_MISROUTE", "redirect")).await;
    let client = patient();
    let placed = owner(&client, &fleet.urls()[0], "s").await;
    let other = fleet.urls().iter().find(|url| placed["url"] != url.as_str()).unwrap();
    let reply = grant(&client, other, "s").await;
    assert_eq!((reply.status, reply.code()), (409, "not_owner"), "{}", reply.text);
    assert_eq!((&reply.body["owner"], &reply.body["owner_url"]), (&placed["instance_id"], &placed["url"]));
    assert!(reply.retry_after.is_some(), "{}", reply.text);
    assert_eq!(grant(&client, placed["url"].as_str().unwrap(), "s").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_come_and_go_under_load_and_nothing_is_lost() {
    const LEASE: Duration = Duration::from_secs(4);
    let with_lease =
        |setup: Setup| setup.env("FENCEPOST__LEASE__INSTANCE_MS", &LEASE.as_millis().to_string());
    let begun = Instant::now();
    let fleet = fleet(2, with_lease).await;
    let client = patient();
    let mut load = Load::start(8, fleet.urls());
    load.successes(100).await;
    until("one is on the ring, and newcomers wait", async || begun.elapsed() > LEASE * 2).await;
    let newcomer = Setup::in_mode("worker-queue").unwrap().database(fleet.database().url());
    let mut newcomer = with_lease(newcomer).start().await.unwrap();
    let all: Vec<String> = fleet.urls().iter().cloned().chain([newcomer.url().to_owned()]).collect();
    // Callers that come to a newcomer before it is on the ring, and to instances that see different rings.
    let mut sprayed = load.beside("sprayed", 4, &all);
    sprayed.successes(100).await;
    all_on_ring(&client, &all, 3).await;
    load.successes(200).await;
    sprayed.stop().await;
    newcomer.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    all_on_ring(&client, fleet.urls(), 2).await;
    load.successes(200).await;
    load.stop().await;
    let tables = tables::read(fleet.database(), &client, &fleet.urls()[0]).await.unwrap();
    assert_eq!(checker::check(&load.history.records(), &[], &tables), []);
}

/// Signers that the ring puts at this instance, which has granted each of them a nonce.
async fn signers_at(client: &Client, url: &str, count: usize) -> Vec<String> {
    let (mut signers, mut number) = (Vec::new(), 0);
    while signers.len() < count {
        number += 1;
        let signer = format!("p-{number}");
        if owner(client, url, &signer).await["url"] == url {
            assert_eq!(grant(client, url, &signer).await.status, 201);
            signers.push(signer);
        }
    }
    signers
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_an_instance_that_stops_are_handed_over_once_however_long_the_stop_takes() {
    let fleet = fleet(3, |setup| setup).await;
    let client = patient();
    let [stopping, entry] = [&fleet.urls()[0], &fleet.urls()[1]];
    let signers = signers_at(&client, stopping, 8).await;
    // A body that does not come is waited for longer than an instance that cannot be reached is avoided.
    let _open = begin_request(stopping, "/v1/signers/slow/nonces", 100).await;
    let instance = fleet.instance(0).await;
    instance.process().signal(Signal::Terminate).unwrap();
    until("it takes no more requests", async || {
        let ready = client.request("GET", &format!("{stopping}/readyz"), None, None).await;
        ready.is_ok_and(|ready| ready.status == 503)
    })
    .await;
    // All are asked for at one instance, and the next owner of some is the third, which then hears of the stop by that alone.
    let mut tokens = Vec::new();
    for signer in &signers {
        until("another instance serves it", async || grant(&client, entry, signer).await.status == 201).await;
        tokens.push(grant(&client, entry, signer).await.body["fencing_token"].clone());
    }
    while instance.process().wait(Duration::from_millis(20)).await.is_err() {
        for (signer, token) in signers.iter().zip(&tokens) {
            let reply = grant(&client, entry, signer).await;
            assert_eq!((reply.status, &reply.body["fencing_token"]), (201, token), "{}", reply.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_was_found_dead_comes_back_as_another() {
    // Leases of signers last for longer than the test waits.
    let fleet = fleet(2, |setup| {
        setup.env("FENCEPOST__LEASE__INSTANCE_MS", "1000").env("FENCEPOST__LEASE__SIGNER_MS", "300000")
    })
    .await;
    let client = patient();
    let cluster = shown(&client, &fleet.urls()[0]).await;
    let before = cluster["instance"].as_str().unwrap().to_owned();
    let pid = itself(&cluster)["pid"].clone();
    let signers = signers_at(&client, &fleet.urls()[0], 8).await;
    fleet.instance(0).await.process().signal(Signal::Stop).unwrap();
    let taken = format!("{}/v1/leases/instance:{before}", fleet.urls()[1]);
    until("the survivor has taken its lease", async || {
        client.get(&taken).await.unwrap()["owner"] != before.as_str()
    })
    .await;
    // Its keys are served by the survivor long before their own leases run out.
    for signer in &signers {
        until("the survivor serves its keys", async || {
            grant(&client, &fleet.urls()[1], signer).await.status == 201
        })
        .await;
    }
    let from_the_dead = r#"kind="signer",reason="dead""#;
    let taken = counted(&client, &fleet.urls()[1], "fencepost_lease_takeover_total", from_the_dead).await;
    assert!(taken >= 1.0, "the survivor took the leases of its keys: {taken}");
    fleet.instance(0).await.process().signal(Signal::Continue).unwrap();
    until("it has begun anew", async || {
        let cluster = shown(&client, &fleet.urls()[0]).await;
        cluster["instance"] != before.as_str() && on_ring(&cluster) == 2
    })
    .await;
    let cluster = shown(&client, &fleet.urls()[0]).await;
    assert_eq!(itself(&cluster)["pid"], pid, "the same process");
    for signer in &signers {
        // The survivor hands the key over just now: a request that comes in between is refused, with a time to retry.
        until("its keys are served again", async || {
            let reply = grant(&client, &fleet.urls()[0], signer).await;
            if (reply.status, reply.code()) == (409, "not_owner") && reply.retry_after.is_some() {
                return false;
            }
            assert_eq!(reply.status, 201, "{}", reply.text);
            assert!(reply.body["grants"][0]["nonce"].as_u64().unwrap() >= 2, "{}", reply.text);
            true
        })
        .await;
    }
}
