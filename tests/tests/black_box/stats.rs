//! `GET /v1/stats` and `fencepost stats`: what there is by state, on every instance alike, and what each instance did.

use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::instance::Setup;
use testkit::process::Signal;

use crate::jobs::rig::{Rig, echo, hold, with};
use crate::plans::rig::on_both_ledgers;
use crate::until;

on_both_ledgers! {
    jobs_are_shown_by_state_and_pool_on_every_instance_and_rates_where_they_arise,
    plans_and_tasks_are_shown_by_status,
    metrics_show_depth_age_and_slots,
    a_request_counts_nothing,
    the_command_prints_tables_or_the_answer_as_json,
}

/// The statistics of an instance, once they are so.
async fn once(rig: &Rig, index: usize, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    let mut stats = Value::Null;
    until(what, async || {
        stats = rig.get(index, "/v1/stats").await;
        so(&stats)
    })
    .await;
    stats
}

fn states(created: u64, dispatched: u64, running: u64, finished: u64) -> Value {
    json!({"CREATED": created, "DISPATCHED": dispatched, "RUNNING": running, "FINISHED": finished})
}

fn no_rates() -> Value {
    let finished = json!({"succeeded": 0.0, "failed": 0.0, "cancelled": 0.0, "timed_out": 0.0});
    let rate = json!({"accepted_per_second": 0.0, "finished_per_second": finished});
    json!({"1m": rate, "5m": rate, "15m": rate})
}

/// The figures of one pool.
fn of_pool<'s>(stats: &'s Value, pool: &Value) -> &'s Value {
    let found = stats["pools"].as_array().unwrap().iter().find(|one| one["pool"] == *pool);
    found.unwrap_or_else(|| panic!("no pool {pool} in {stats:#}"))
}

/// The figures of one tenant.
fn of_tenant<'s>(stats: &'s Value, tenant: &Value) -> &'s Value {
    let found = stats["tenants"].as_array().unwrap().iter().find(|one| one["tenant"] == *tenant);
    found.unwrap_or_else(|| panic!("no tenant {tenant} in {stats:#}"))
}

/// How many jobs there were for each one accepted, of all jobs or of one pool: the rates of one answer have one divisor.
fn share(stats: &Value, of: &Value, what: &str) -> f64 {
    let rate = |of: &Value, what: &str| of.pointer(&format!("/rates/15m/{what}")).unwrap().as_f64().unwrap();
    let share = rate(of, what) / rate(stats, "accepted_per_second");
    (share * 1e6).round() / 1e6
}

async fn jobs_are_shown_by_state_and_pool_on_every_instance_and_rates_where_they_arise(rig: Rig) {
    let pools = rig.get(0, "/v1/config/pools").await;
    let change = json!({"version": pools["version"], "pools": [{"name": "p"}, {"name": "idle"}]});
    let put = rig.ask(0, "PUT", "/v1/config/pools", Some(&change)).await;
    assert_eq!(put.status, 200, "{}", put.text);
    for index in 0..rig.urls.len() {
        let knows_pools = |stats: &Value| {
            stats["pools"].as_array().unwrap().len() == 3 && stats["finished_counted_ms_ago"].is_u64()
        };
        let stats = once(&rig, index, "the pools are configured", knows_pools).await;
        assert_eq!(stats["instance"], rig.get(index, "/v1/cluster").await["instance"]);
        for (of, pool) in [
            (&stats, None),
            (of_pool(&stats, &Value::Null), Some(json!(null))),
            (of_pool(&stats, &json!("p")), Some(json!("p"))),
            (of_pool(&stats, &json!("idle")), Some(json!("idle"))),
        ] {
            assert_eq!((&of["jobs"], &of["delayed"]), (&states(0, 0, 0, 0), &json!(0)), "{pool:?}");
            assert_eq!((&of["oldest_waiting_ms"], &of["rates"]), (&Value::Null, &no_rates()), "{pool:?}");
        }
    }

    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let in_pool = |job: Value| with(job, json!({"pool": "p", "tenant": "acme"}));
    let held = rig.submit(0, in_pool(hold(1))).await;
    for n in 0..3 {
        let id = rig.submit(0, in_pool(echo(n))).await;
        rig.finished(0, &id).await;
    }
    let broken = rig.submit(0, json!({"payload": {"broken": "no"}})).await;
    rig.finished(0, &broken).await;
    let nowhere = || with(in_pool(echo(1)), json!({"requires": ["asr:de"]}));
    let cancelled = rig.submit(0, nowhere()).await;
    rig.post(0, &format!("/v1/jobs/{cancelled}/cancel"), None, 200).await;
    rig.submit(0, nowhere()).await;
    rig.submit(0, with(echo(1), json!({"delay_ms": 600_000}))).await;
    for index in 0..rig.urls.len() {
        let slots = json!({"used": 1, "all": 4});
        let is_counted = |stats: &Value| {
            stats["jobs"] == states(2, 0, 1, 5) && stats["delayed"] == 1 && stats["slots"] == slots
        };
        let stats = once(&rig, index, "all jobs are counted", is_counted).await;
        let (none, p) = (of_pool(&stats, &Value::Null), of_pool(&stats, &json!("p")));
        assert_eq!((&none["jobs"], &none["delayed"]), (&states(1, 0, 0, 1), &json!(1)), "{stats:#}");
        assert_eq!((&p["jobs"], &p["delayed"]), (&states(1, 0, 1, 4), &json!(0)), "{stats:#}");
        assert_eq!(of_pool(&stats, &json!("idle"))["jobs"], states(0, 0, 0, 0));
        assert!(p["oldest_waiting_ms"].is_u64() && stats["oldest_waiting_ms"] == p["oldest_waiting_ms"]);
        assert_eq!(none["oldest_waiting_ms"], Value::Null, "what is delayed does not wait");
        for (tenant, pool) in [(json!(null), none), (json!("acme"), p)] {
            let of = of_tenant(&stats, &tenant);
            for figure in ["jobs", "delayed", "oldest_waiting_ms"] {
                assert_eq!(of[figure], pool[figure], "{figure} of {tenant}: {stats:#}");
            }
        }
        // Every instance shows the rates of all, and each one's own: the first one did all of it.
        let is_merged = |stats: &Value| stats["instances"].as_array().unwrap().len() == rig.urls.len();
        let stats = once(&rig, index, "the others have answered", is_merged).await;
        let (none, p) = (of_pool(&stats, &Value::Null), of_pool(&stats, &json!("p")));
        assert_eq!(none["jobs"], states(1, 0, 0, 1));
        let first = rig.get(0, "/v1/cluster").await["instance"].clone();
        for one in stats["instances"].as_array().unwrap() {
            assert_eq!(one["rates"] != no_rates(), one["instance"] == first, "{stats:#}");
            assert_eq!(
                (one["counting_since"].is_string(), &one["problem"]),
                (true, &Value::Null),
                "{stats:#}"
            );
        }
        assert_eq!(stats["instances"][0]["instance"], stats["instance"]);
        let steps = |what: &str| stats["history"][what].as_array().unwrap().len();
        assert_eq!((steps("accepted"), stats["history_since"].is_string()), (steps("timed_out"), true));
        // Of eight accepted, six in the pool.
        assert_eq!(share(&stats, p, "accepted_per_second"), 0.75, "{stats:#}");
        assert_eq!(of_tenant(&stats, &json!("acme"))["rates"], p["rates"], "all jobs of the pool are its");
        for (outcome, of_all, of_p) in
            [("succeeded", 3.0, 3.0), ("failed", 1.0, 0.0), ("cancelled", 1.0, 1.0), ("timed_out", 0.0, 0.0)]
        {
            let what = format!("finished_per_second/{outcome}");
            assert_eq!(share(&stats, &stats, &what), of_all / 8.0, "{outcome}: {stats:#}");
            assert_eq!(share(&stats, p, &what), of_p / 8.0, "{outcome}: {stats:#}");
        }
    }
    node.runs.release(1);
    rig.finished(0, &held).await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_says_nothing_is_named_and_the_others_answer() {
    let rig = Rig::together(3).await;
    for index in 0..3 {
        rig.submit(index, echo(index)).await;
    }
    let names = async |problems: usize| {
        let mut silent = Vec::new();
        until("the instances are listed", async || {
            let stats = rig.get(0, "/v1/stats").await;
            let instances = stats["instances"].as_array().unwrap();
            silent = instances.iter().filter(|one| one["problem"].is_string()).cloned().collect();
            instances.len() == 3 && silent.len() == problems
        })
        .await;
        silent
    };
    names(0).await;
    let frozen = rig.get(2, "/v1/cluster").await["instance"].clone();
    rig.instance(2).await.process().signal(Signal::Stop).unwrap();
    // Until its lease ends, when it is listed no more.
    let silent = names(1).await;
    rig.instance(2).await.process().signal(Signal::Continue).unwrap();
    assert_eq!((&silent[0]["instance"], &silent[0]["rates"]), (&frozen, &Value::Null), "{silent:#?}");
}

async fn plans_and_tasks_are_shown_by_status(rig: Rig) {
    let _node = rig.node(&[0], "n", |_| {}).await;
    let task = |tenant: &str| json!({"tenant": tenant, "stages": [{"name": "s", "payload": {"echo": {}}}]});
    let waits = json!({"start": false, "tasks": [task("a"), task("b")]});
    rig.post(0, "/v1/plans", Some(&waits), 201).await;
    rig.post(0, "/v1/plans", Some(&json!({"start": true, "tasks": [task("c")]})), 201).await;
    for index in 0..rig.urls.len() {
        let is_counted = |stats: &Value| {
            (&stats["plans"]["SUCCEEDED"], &stats["tasks"]["PENDING"]) == (&json!(1), &json!(2))
        };
        let stats = once(&rig, index, "the plans are counted", is_counted).await;
        let plans =
            json!({"CREATED": 1, "RUNNING": 0, "PAUSED": 0, "ATTENTION": 0, "SUCCEEDED": 1, "CANCELLED": 0});
        assert_eq!((&stats["plans"], &stats["unknown_stages"]), (&plans, &json!(0)), "{stats:#}");
        let tasks = json!({"PENDING": 2, "RUNNING": 0, "SUCCEEDED": 0, "FAILED": 0, "PAUSED": 0, "INTERRUPTED": 0,
                           "CANCELLED": 0});
        assert_eq!(stats["tasks"], tasks, "of the plan that is over no task is shown");
    }
    // The stage was accepted by one instance, and finished by that one or the node's.
    let (mut accepted, mut succeeded) = (0, 0);
    for index in 0..rig.urls.len() {
        let stats = rig.get(index, "/v1/stats").await;
        assert_eq!(stats["instances"][0]["instance"], stats["instance"]);
        let rate = &stats["instances"][0]["rates"]["15m"];
        accepted += u32::from(rate["accepted_per_second"].as_f64().unwrap() > 0.0);
        succeeded += u32::from(rate["finished_per_second"]["succeeded"].as_f64().unwrap() > 0.0);
    }
    assert_eq!((accepted, succeeded), (1, 1));
}

async fn a_request_counts_nothing(rig: Rig) {
    let begun = std::time::Instant::now();
    let (mut counts, mut age) = (0, u64::MAX);
    for _ in 0..300 {
        let now = rig.get(0, "/v1/stats").await["counted_ms_ago"].as_u64().unwrap();
        counts += u64::from(now < age);
        age = now;
    }
    // Half of three seconds is the shortest pause between two.
    let most = 2 + begun.elapsed().as_secs();
    assert!(counts <= most, "{counts} counts in {:?}", begun.elapsed());
}

async fn the_command_prints_tables_or_the_answer_as_json(rig: Rig) {
    let run = async |option: Option<&str>| {
        let setup = Setup::command("stats").arg("--url").arg(&rig.urls[0]);
        let setup = option.into_iter().fold(setup, Setup::arg);
        let ended = setup.run_to_end(PATIENCE).await.unwrap();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
        ended.stdout
    };
    rig.submit(0, with(echo(1), json!({"pool": "p"}))).await;
    once(&rig, 0, "the job is counted", |stats| stats["jobs"] == states(1, 0, 0, 0)).await;
    let output = run(None).await;
    for line in ["POOL  CREATED", "all   1 ", "p     1 ", "JOBS ", "STATUS "] {
        assert!(
            output.lines().any(|output| output.starts_with(line) || output.contains(line)),
            "{line}: {output}"
        );
    }
    let json = run(Some("--json")).await;
    let [line] = json.lines().collect::<Vec<_>>()[..] else { panic!("{json}") };
    let stats: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&stats["jobs"], stats["pools"][1]["pool"].as_str()), (&states(1, 0, 0, 0), Some("p")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_another_instance_is_finished_where_its_node_is_and_counts_in_its_pool() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[1], "n", |_| {}).await;
    let id = rig.submit(0, with(echo(1), json!({"pool": "default"}))).await;
    rig.finished(0, &id).await;
    let (accepted, succeeded) = ("accepted_per_second", "finished_per_second/succeeded");
    let is_above_zero =
        |of: &Value, what: &str| of.pointer(what).and_then(Value::as_f64).unwrap_or(0.0) > 0.0;
    let mut answers = Vec::new();
    for index in 0..2 {
        // Both instances show what both counted, also for the pool.
        let is_whole = |stats: &Value| {
            let pool = stats["pools"].as_array().unwrap().iter().find(|one| one["pool"] == "default");
            let has = |what| pool.is_some_and(|pool| is_above_zero(pool, &format!("/rates/1m/{what}")));
            has(accepted) && has(succeeded)
        };
        answers.push(once(&rig, index, "the rates of both are there", is_whole).await);
    }
    let own =
        |index: usize, what: &str| is_above_zero(&answers[index], &format!("/instances/0/rates/1m/{what}"));
    assert!(own(0, accepted) && !own(1, accepted), "{answers:#?}");
    assert!(own(1, succeeded) && !own(0, succeeded), "{answers:#?}");
}

async fn metrics_show_depth_age_and_slots(rig: Rig) {
    let pools = json!({"version": 1, "pools": [{"name": "p"}, {"name": "idle"}]});
    let reply = rig.ask(0, "PUT", "/v1/config/pools", Some(&pools)).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let _node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    rig.post(0, "/v1/pools/p/pause", Some(&json!({"reason": "repair"})), 200).await;
    for pool in ["p", "made-up"] {
        rig.submit(0, with(echo(1), json!({"pool": pool}))).await;
    }
    rig.submit(0, with(echo(1), json!({"pool": "p", "delay_ms": 600_000}))).await;
    for index in 0..rig.urls.len() {
        until("the metrics show the pools", async || {
            let url = format!("{}/metrics", rig.urls[index]);
            let text = rig.http.request("GET", &url, None, None).await.unwrap().text;
            let value = |series: &str| {
                text.lines()
                    .find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok())
                    .unwrap_or(-1.0)
            };
            let waiting = ["p", "idle", "other", ""]
                .map(|pool| value(&format!("fencepost_pool_waiting{{pool=\"{pool}\"}}")));
            let oldest = |pool: &str| value(&format!("fencepost_pool_oldest_seconds{{pool=\"{pool}\"}}"));
            let slots = ["used", "all"].map(|state| value(&format!("fencepost_slots{{state=\"{state}\"}}")));
            waiting == [1.0, 0.0, 1.0, 0.0]
                && oldest("p") > 0.0
                && oldest("idle").abs() < 1e-9
                && slots == [0.0, 4.0]
                && !text.contains("made-up")
        })
        .await;
        let stats = rig.get(index, "/v1/stats").await;
        assert_eq!(of_pool(&stats, &json!("p"))["paused"], true, "{stats:#}");
        assert_eq!(of_pool(&stats, &json!("idle"))["paused"], false, "{stats:#}");
    }
}
