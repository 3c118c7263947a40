//! Redis beside the instances: shown while they are there, missed by nobody when it goes.

use serde_json::Value;
use testkit::PATIENCE;
use testkit::http::Client;
use testkit::instance::{Instance, Setup};
use testkit::process::Signal;
use testkit::proxy::Proxy;
use testkit::servers::{Database, Redis};

use crate::{patient, until};

async fn private_redis() -> Redis {
    tokio::task::spawn_blocking(Redis::start).await.unwrap().unwrap()
}

async fn instance(redis: &Redis) -> (Instance, Database) {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
    let setup = setup.arg("--redis-url").arg(&redis.url()).env("FENCEPOST__BUS__KEY_PREFIX", "fp:");
    (setup.start().await.unwrap(), database)
}

fn presence(redis: &Redis, instance: &str) -> Value {
    let said = redis.command(&["--raw", "GET", &format!("fp:schedulers:presence:{instance}")]).unwrap();
    serde_json::from_str(&said).unwrap_or_default()
}

async fn readiness(client: &Client, url: &str) -> (String, String) {
    let ready = client.get(&format!("{url}/readyz")).await.unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&ready["status"]), text(&ready["checks"]["bus"]["status"]))
}

async fn grants(client: &Client, url: &str) {
    let reply = client.request("POST", &format!("{url}/v1/signers/s/nonces"), None, None).await.unwrap();
    assert_eq!(reply.status, 201, "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_shown_in_redis_as_long_as_it_is_there() {
    let redis = private_redis().await;
    let (mut instance, _database) = instance(&redis).await;
    let ready = instance.ready().clone();
    assert_eq!((ready.ledger.as_str(), ready.bus.as_str()), ("postgres", "redis"));
    until("it is shown", async || presence(&redis, &ready.instance) != Value::Null).await;
    let shown = presence(&redis, &ready.instance);
    assert_eq!(shown["address"], ready.url.as_str(), "{shown}");
    for field in ["started_at", "hostname", "version"] {
        assert!(shown[field].as_str().is_some_and(|text| !text.is_empty()), "{shown}");
    }
    let client = patient();
    let itself =
        async || client.get(&format!("{}/v1/cluster", ready.url)).await.unwrap()["instances"][0].clone();
    assert_eq!(shown["pid"], itself().await["pid"]);
    until("it has noted that it reaches the bus", async || itself().await["bus_up"] == true).await;
    let left =
        redis.command(&["--raw", "PTTL", &format!("fp:schedulers:presence:{}", ready.instance)]).unwrap();
    assert!((1..=2_000).contains(&left.trim().parse::<i64>().unwrap()), "{left}");
    instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    assert_eq!(presence(&redis, &ready.instance), Value::Null, "who leaves takes its presence along");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_nonces_go_on_and_it_comes_back_by_itself() {
    let redis = private_redis().await;
    let (instance, _database) = instance(&redis).await;
    let (client, ready) = (patient(), instance.ready().clone());
    let url = &ready.url;
    let is =
        async |status: &str, bus: &str| readiness(&client, url).await == (status.to_owned(), bus.to_owned());
    until("all is well", async || is("ready", "ok").await).await;
    redis.flush().unwrap();
    until("it is shown again", async || presence(&redis, &ready.instance) != Value::Null).await;
    redis.kill();
    grants(&client, url).await;
    until("it says so", async || is("degraded", "down").await).await;
    until("the others can see it", async || {
        let cluster = client.get(&format!("{url}/v1/cluster")).await.unwrap();
        cluster["instances"][0]["bus_up"] == false
    })
    .await;
    grants(&client, url).await;
    redis.boot().unwrap();
    until("all is well again", async || is("ready", "ok").await).await;
    until("it is shown again", async || presence(&redis, &ready.instance) != Value::Null).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
    until("a server that may forget is told of", async || is("degraded", "warn").await).await;
    grants(&client, url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_and_goes_is_said_to_do_so() {
    let redis = private_redis().await;
    let (instance, _database) = instance(&redis).await;
    let client = patient();
    let says = "Redis comes and goes; it is used again once it has answered for ";
    until("it is on trial", async || {
        let ready = client.get(&format!("{}/readyz", instance.url())).await.unwrap();
        let bus = &ready["checks"]["bus"];
        if bus["status"] == "ok" {
            redis.kill();
            redis.boot().unwrap();
        }
        bus["status"] == "down" && bus["detail"].as_str().unwrap().starts_with(says)
    })
    .await;
    assert!(instance.whole_log().contains("the bus is on trial"), "{}", instance.whole_log());
}

/// As when a note that was given up is carried out after the one that followed it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_noted_of_an_instances_bus_is_put_right_while_its_link_stays_up() {
    let redis = private_redis().await;
    let (_instance, database) = instance(&redis).await;
    let is_noted = || {
        let up = database.query("SELECT 1 FROM instance WHERE bus_up AND bus IS NOT NULL");
        !up.unwrap().is_empty()
    };
    until("it has noted all of its bus", async || is_noted()).await;
    database.query("UPDATE instance SET bus_up = false").unwrap();
    until("it is noted again", async || is_noted()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_does_not_answer_keeps_no_instance_from_showing_itself_on_a_redis_that_is_back() {
    let redis = private_redis().await;
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let server = database.url().split(['@', '/']).find(|part| part.starts_with("127.0.0.1:")).unwrap();
    let way = Proxy::start(server.parse().unwrap()).await.unwrap();
    let url = database.url().replace(server, &way.address().to_string());
    // Before a call is given up, the instance has not reached the ledger for so long that it does not show itself.
    let setup = Setup::in_mode("worker-queue").unwrap().database(&url);
    let setup = setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "60000");
    let setup = setup.env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "60000");
    let setup = setup.arg("--redis-url").arg(&redis.url()).env("FENCEPOST__BUS__KEY_PREFIX", "fp:");
    let instance = setup.start().await.unwrap();
    let ready = instance.ready().clone();
    until("it is shown", async || presence(&redis, &ready.instance) != Value::Null).await;
    way.freeze();
    redis.kill();
    until("it is noticed", async || instance.whole_log().contains("the bus is down")).await;
    redis.boot().unwrap();
    until("it is shown again", async || presence(&redis, &ready.instance) != Value::Null).await;
    way.heal().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_on_different_buses_say_so_until_all_use_the_same() {
    let (right, wrong) = (private_redis().await, private_redis().await);
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let start = async |redis: Option<&Redis>| {
        let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
        let setup = redis.into_iter().fold(setup, |setup, redis| setup.arg("--redis-url").arg(&redis.url()));
        setup.start().await.unwrap()
    };
    let mut instances =
        [start(Some(&right)).await, start(Some(&right)).await, start(Some(&wrong)).await, start(None).await];
    let client = patient();
    let ids = instances.each_ref().map(|instance| instance.ready().instance.clone());
    let named = async |url: &str| {
        let ready = client.get(&format!("{url}/readyz")).await.unwrap();
        let detail = ready["checks"]["bus"]["detail"].as_str().unwrap_or_default().to_owned();
        let named: Vec<_> = (0..4).filter(|n| detail.contains(&format!("{} at ", ids[*n]))).collect();
        (ready["status"].as_str().unwrap().to_owned(), named)
    };
    let others: [&[usize]; 4] = [&[2, 3], &[2, 3], &[0, 1, 3], &[0, 1, 2]];
    for (instance, others) in instances.iter().zip(others) {
        let wanted = ("degraded".to_owned(), others.to_vec());
        until("it names the others", async || named(instance.url()).await == wanted).await;
        assert!(
            instance.log().contains("jobs pass between them through the ledger alone"),
            "{}",
            instance.log()
        );
    }
    let cluster = client.get(&format!("{}/v1/cluster", instances[0].url())).await.unwrap();
    let mut buses: Vec<_> = (0..4).map(|n| cluster["instances"][n]["bus"].as_str().unwrap()).collect();
    buses.sort_unstable();
    buses.dedup();
    assert_eq!(buses.len(), 3, "{cluster}");
    for instance in &mut instances[2..] {
        instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    }
    for instance in &instances[..2] {
        until("all is well", async || named(instance.url()).await == ("ready".to_owned(), vec![])).await;
        assert!(instance.log().contains("all instances use the same bus"), "{}", instance.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_cannot_be_used_stops_the_start() {
    let run = async |args: &[&str], variables: &[(&str, &str)]| {
        let setup = args.iter().fold(Setup::in_mode("basic").unwrap(), |setup, arg| setup.arg(arg));
        let setup = variables.iter().fold(setup, |setup, (key, value)| setup.env(key, value));
        let ended = setup.run_to_end(PATIENCE).await.unwrap();
        (ended.code, ended.stderr)
    };
    let patience = ("FENCEPOST__BUS__CONNECT_TIMEOUT_MS", "500");
    let nobody = format!("redis://127.0.0.1:{}", testkit::ports::free().unwrap());
    let (code, said) = run(&["--redis-url", &nobody], &[patience]).await;
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains(&format!("The bus is {nobody} (bus.redis_url).")), "{said}");
    let (code, said) = run(&[], &[("FENCEPOST__BUS__KEY_PREFIX", "a{b}")]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("bus.key_prefix") && said.contains("letters"), "{said}");
    let redis =
        tokio::task::spawn_blocking(|| Redis::with(&["--requirepass", "secret"])).await.unwrap().unwrap();
    let wrong = format!("redis://:wrong@127.0.0.1:{}", redis.port());
    let (code, said) = run(&["--redis-url", &wrong], &[patience]).await;
    assert_eq!(code, Some(78), "{said}");
    let named = format!("The bus is {} (bus.redis_url).", wrong.replace("wrong", "***"));
    assert!(said.contains(&named), "{said}");
    assert!(!said.contains("wrong@"), "no password in the log: {said}");
}
