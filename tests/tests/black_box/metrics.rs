//! What the daemon tells of itself: metrics with help and type, the alerts and the board that are made of them, a listener
//! for probes that a flood does not reach, and log lines.

mod promql;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::http::plain_http;
use testkit::instance::Setup;
use testkit::node::{Message, Socket};
use testkit::ports;
use testkit::servers::Database;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use self::promql::{Selector, read};
use crate::jobs::hand::{Hand, done, frame, heartbeat};
use crate::jobs::rig::{Rig, echo, with};
use crate::recovery::tool;
use crate::tokens::first;
use crate::{patient, until};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn file(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What is exposed under one name.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    samples: usize,
}

/// The families in an answer of `/metrics`. A histogram has its three kinds of samples under its name.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut found = BTreeMap::<String, Family>::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            found.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            found.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((series, _)) = line.rsplit_once(' ') {
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let of = |name: &str| {
                let whole = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end));
                whole
                    .filter(|whole| text.contains(&format!("# TYPE {whole} histogram")))
                    .unwrap_or(name)
                    .to_owned()
            };
            let family = found.entry(of(name)).or_default();
            family.samples += 1;
            // No value of ours has a quote or a comma in it.
            let pairs = labels.trim_end_matches('}').split("\",").filter(|pair| !pair.is_empty());
            family.labels.extend(pairs.map(|pair| pair.split_once('=').unwrap().0.to_owned()));
        }
    }
    found
}

/// The names, with their labels, that docs/monitoring.md explains.
fn explained() -> BTreeMap<String, BTreeSet<String>> {
    let page = file("docs/monitoring.md");
    let (_, watched) = page.split_once("## What to watch").unwrap();
    let cells = watched.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`'));
    let names = names.filter(|name| name.starts_with("fencepost_") || name.starts_with("process_"));
    let labelled = names.map(|name| {
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        (name.to_owned(), labels.map(str::to_owned).collect())
    });
    let mut explained = BTreeMap::<String, BTreeSet<String>>::new();
    for (name, labels) in labelled {
        assert!(explained.insert(name.clone(), labels).is_none(), "{name} has two rows on the page");
    }
    explained
}

async fn scrape(url: &str) -> String {
    let reply = patient().request("GET", &format!("{url}/metrics"), None, None).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.text
}

/// An instance on PostgreSQL and Redis, once everything of it is exposed.
async fn exposed() -> (Rig, BTreeMap<String, Family>) {
    let rig = Rig::together(1).await;
    rig.submit(0, echo(1)).await;
    let mut found = BTreeMap::new();
    until("the metrics that nobody knows the values of are there", async || {
        found = families(&scrape(&rig.urls[0]).await);
        let late = ["fencepost_clock_offset_seconds", "fencepost_redis_command_seconds"];
        late.iter().all(|name| found.contains_key(*name))
    })
    .await;
    (rig, found)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_has_help_and_type_and_is_explained_on_the_page() {
    let (_rig, found) = exposed().await;
    let explained = explained();
    for (name, family) in &found {
        assert!(["counter", "gauge", "histogram"].contains(&family.kind.as_str()), "{name}: {family:?}");
        assert!(family.help.len() > 5 && family.samples > 0, "{name}: {family:?}");
        let labels = explained.get(name).unwrap_or_else(|| panic!("{name} is not on the page"));
        let mut shown = family.labels.clone();
        shown.remove("le");
        assert_eq!(&shown, labels, "{name}");
    }
    let missing: Vec<_> = explained.keys().filter(|name| !found.contains_key(*name)).collect();
    assert!(missing.is_empty(), "not exposed: {missing:?}");
}

/// Checks an expression's names and labels.
fn check(place: &str, expression: &str, found: &BTreeMap<String, Family>) -> Result<usize, String> {
    let read = read(expression).map_err(|why| format!("{place}: {why}: {expression}"))?;
    // Prometheus adds these to every sample.
    let mut known: BTreeSet<&str> = BTreeSet::from(["instance", "job"]);
    for Selector { name, labels } in &read.selectors {
        let (family, suffix) = match found.get(name.as_str()) {
            Some(family) => (family, ""),
            None => {
                let suffix = ["_bucket", "_sum", "_count"].into_iter().find(|end| name.ends_with(end));
                let suffix = suffix.ok_or_else(|| format!("{place}: {name} is not exposed"))?;
                let whole = found.get(name.trim_end_matches(suffix));
                (whole.ok_or_else(|| format!("{place}: {name} is not exposed"))?, suffix)
            }
        };
        if (family.kind == "histogram") == suffix.is_empty() {
            return Err(format!("{place}: {name} is a {}", family.kind));
        }
        let of_it =
            |label: &String| family.labels.contains(label) || ["instance", "job"].contains(&label.as_str());
        if let Some(unknown) = labels.iter().find(|label| !of_it(label)) {
            return Err(format!("{place}: {name} has no label {unknown}"));
        }
        known.extend(family.labels.iter().map(String::as_str));
    }
    if let Some(unknown) = read.groupings.iter().find(|label| !known.contains(label.as_str())) {
        return Err(format!("{place}: no metric here has the label {unknown}: {expression}"));
    }
    Ok(read.selectors.len())
}

/// An alert of the rules.
#[derive(Debug, Default)]
struct Alert {
    name: String,
    fields: BTreeMap<String, String>,
}

/// The alerts of the rules, each field on one line.
fn alerts() -> Vec<Alert> {
    let text = file("deploy/prometheus/fencepost.rules.yml");
    let mut alerts = Vec::<Alert>::new();
    for line in text.lines() {
        let Some((key, value)) = line.trim().trim_start_matches("- ").split_once(": ") else { continue };
        let quoted = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
        let value = quoted.map_or_else(|| value.to_owned(), |quoted| quoted.replace("''", "'"));
        match (key, alerts.last_mut()) {
            ("alert", _) => alerts.push(Alert { name: value, ..Alert::default() }),
            (_, Some(alert)) => drop(alert.fields.insert(key.to_owned(), value)),
            (_, None) => {}
        }
    }
    alerts
}

/// All texts under this key, wherever they are.
fn texts<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => texts(value, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, found)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_and_board_use_metrics_and_labels_that_are_exposed() {
    let (_rig, found) = exposed().await;
    let mut selectors = 0;
    let mut all = |place: &str, expression: &str| {
        selectors += check(place, expression, &found).unwrap_or_else(|why| panic!("{why}"));
    };
    for Alert { name, fields } in alerts() {
        all(&name, &fields["expr"]);
        // `$labels.x` in a text must be a label that the expression leaves.
        let expression = read(&fields["expr"]).unwrap();
        for used in fields.values().flat_map(|text| text.split("$labels.").skip(1)) {
            let label: String = used.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let is_left = expression.groupings.contains(&label)
                || (expression.groupings.is_empty() && ["instance", "job"].contains(&label.as_str()))
                || (expression.is_joined && ["instance", "job"].contains(&label.as_str()));
            assert!(is_left, "{name} tells of {label}, which its expression does not have");
        }
    }
    let board: Value = serde_json::from_str(&file("deploy/grafana/fencepost.json")).unwrap();
    let (mut expressions, mut variables) = (Vec::new(), Vec::new());
    texts(&board, "expr", &mut expressions);
    texts(&board, "definition", &mut variables);
    assert!(expressions.len() > 40 && !variables.is_empty(), "{}", expressions.len());
    let mut on_board = BTreeSet::new();
    for expression in expressions {
        all("the board", expression);
        on_board.extend(read(expression).unwrap().selectors.into_iter().map(|selector| selector.name));
    }
    let is_on_board =
        |name: &str| ["", "_bucket", "_count"].iter().any(|end| on_board.contains(&format!("{name}{end}")));
    let missing: Vec<_> = found.keys().filter(|name| !is_on_board(name)).collect();
    assert!(missing.is_empty(), "on no panel of the board: {missing:?}");
    for variable in variables {
        let (name, label) = variable
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')')?.split_once(", "))
            .unwrap_or_else(|| panic!("{variable}"));
        all("the board", &format!("count by ({label}) ({name})"));
    }
    assert!(selectors > 80, "{selectors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_of_every_kind_show_their_queues_jobs_their_stages_and_a_late_result_its_fence() {
    let rig = Rig::alone().await;
    let value = async |series: &str| -> f64 {
        let text = scrape(&rig.urls[0]).await;
        let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("{series} is missing in\n{text}")).parse().unwrap()
    };
    let queue = |kind: &str| format!("fencepost_actor_queue_seconds_count{{kind=\"{kind}\"}}");
    let stage = |stage: &str| format!("fencepost_job_seconds_count{{stage=\"{stage}\"}}");
    for series in ["signer", "lane", "session", "plan"].map(queue).into_iter().chain([stage("running")]) {
        assert_eq!(value(&series).await, 0.0, "{series} is there from the start");
    }
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    rig.post(0, "/v1/signers/s/nonces", Some(&json!({"hold_ms": 3_600_000})), 201).await;
    assert_eq!(value(&queue("signer")).await, 1.0);
    // A job that takes its time, in the lane of the instance.
    rig.submit(0, echo(1)).await;
    let of = hand.given().await;
    hand.say(frame("ack", &of, json!({}))).await;
    hand.say(done(&of, "good")).await;
    hand.hear("committed").await;
    assert_eq!(value(&queue("lane")).await, 1.0);
    for name in ["waiting", "starting", "running"] {
        assert_eq!(value(&stage(name)).await, 1.0, "{name}");
    }
    let session = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await;
    rig.submit(0, with(echo(2), json!({"session": session["id"]}))).await;
    let of = hand.given().await;
    hand.say(done(&of, "good")).await;
    hand.hear("committed").await;
    assert_eq!(value(&queue("session")).await, 1.0);
    let locks = "fencepost_lease_acquire_total{kind=\"tenant\",result=\"acquired\"}";
    assert_eq!(value(locks).await, 0.0);
    let task = json!({"tenant": "t", "stages": [{"name": "only", "payload": 3}]});
    rig.post(0, "/v1/plans", Some(&json!({"name": "p", "start": true, "tasks": [task]})), 201).await;
    let of = hand.given().await;
    hand.say(done(&of, "good")).await;
    hand.hear("committed").await;
    assert!(value(&queue("plan")).await >= 1.0);
    assert_eq!(value(locks).await, 1.0);
    // The result of an attempt that was taken back.
    rig.submit(0, with(echo(4), json!({"timeout_ms": 200, "backoff": {"initial_ms": 0}}))).await;
    let of = hand.given().await;
    hand.say(frame("ack", &of, json!({}))).await;
    hand.say(heartbeat(json!([of]))).await;
    hand.hear("cancel").await;
    hand.say(done(&of, "late")).await;
    hand.hear("stale").await;
    assert_eq!(value("fencepost_fence_reject_total{op=\"result\"}").await, 1.0);
    let log = rig.instance(0).await.whole_log();
    let line = log.lines().find(|line| line.contains("an attempt that is over was fenced"));
    let line: Value = serde_json::from_str(line.unwrap_or_else(|| panic!("{log}"))).unwrap();
    let told =
        ["resource", "operation", "token", "instance"].map(|field| line[field].as_str().map(str::to_owned));
    let job = of["job"].as_str().map(str::to_owned);
    let me = rig.instance(0).await.ready().instance.clone();
    assert_eq!(told, [job, Some("result".to_owned()), Some("1".to_owned()), Some(me)], "{line}");
    let line = log.lines().find(|line| line.contains("an attempt was taken back"));
    let line: Value = serde_json::from_str(line.unwrap_or_else(|| panic!("{log}"))).unwrap();
    let told = ["level", "reason", "node", "job", "attempt"].map(|field| line[field].as_str());
    let job = of["job"].as_str();
    assert_eq!(told, [Some("INFO"), Some("timed_out"), Some("h"), job, Some("1")], "{line}");
    hand.say(heartbeat(json!([]))).await;
    let second = hand.given().await;
    hand.say(done(&second, "good")).await;
    hand.hear("committed").await;
    for kind in ["signer", "lane", "session", "plan"] {
        let series = format!("fencepost_actor_queue_depth{{kind=\"{kind}\"}}");
        until("nothing waits", async || value(&series).await == 0.0).await;
    }
    for (series, least) in [
        ("fencepost_nonce_grants_total", 1.0),
        ("fencepost_nonces{state=\"HELD\"}", 1.0),
        ("fencepost_jobs_total{state=\"CREATED\",outcome=\"\"}", 3.0),
        ("fencepost_jobs_total{state=\"DISPATCHED\",outcome=\"\"}", 4.0),
        ("fencepost_jobs_total{state=\"FINISHED\",outcome=\"succeeded\"}", 3.0),
        ("fencepost_registry_nodes", 1.0),
        ("fencepost_node_heartbeat_seconds_count", 1.0),
    ] {
        until(series, async || value(series).await >= least).await;
    }
}

/// Prometheus drops the series of an instance as soon as a scrape of it fails; what they were is left in ranges of time.
#[test]
fn the_alert_about_restarts_lasts_while_the_instance_is_down() {
    let all = alerts();
    let of_restarts = all.iter().find(|alert| alert.name == "FencepostRestarts").unwrap();
    let expression = &of_restarts.fields["expr"];
    for Selector { name, .. } in read(expression).unwrap().selectors {
        let (_, behind) = expression.split_once(&name).unwrap();
        assert!(behind.starts_with('['), "{name} is looked at in one moment: {expression}");
    }
}

#[test]
fn the_alert_about_forwards_knows_every_way_not_to_reach_an_owner() {
    let all = alerts();
    let of_forwards = all.iter().find(|alert| alert.name == "FencepostForwardsFail").unwrap();
    let (_, results) = of_forwards.fields["expr"].split_once("result=~\"").unwrap();
    let results: BTreeSet<_> = results.split('"').next().unwrap().split('|').collect();
    assert_eq!(results, BTreeSet::from(["unreachable", "lost", "mistaken"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_a_lease_that_another_has_is_counted_and_logged_by_its_writer() {
    // No renewal tells the owners before they write.
    let rig = Rig::shaped(1, false, |setup| setup.env("FENCEPOST__LEASE__SIGNER_MS", "300000")).await;
    let (database, me) = (rig.database.as_ref().unwrap(), rig.instance(0).await.ready().instance.clone());
    let session = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await["id"].clone();
    // No node is there, so that all of it waits, and has an owner.
    let job = with(echo(1), json!({ "session": session }));
    rig.submit(0, job.clone()).await;
    let task = json!({"tenant": "t", "stages": [{"name": "only", "payload": 1}]});
    let plan = rig.post(0, "/v1/plans", Some(&json!({"start": true, "tasks": [task]})), 201).await;
    let plan = plan["id"].as_str().unwrap();
    rig.post(0, "/v1/signers/s/nonces", Some(&json!({})), 201).await;
    for (resource, operation, path, body) in [
        ("signer:s".to_owned(), "grant", "/v1/signers/s/nonces".to_owned(), json!({})),
        (format!("session:{}", session.as_str().unwrap()), "jobs", "/v1/jobs".to_owned(), job),
        (format!("plan:{plan}"), "plan", format!("/v1/plans/{plan}/pause"), json!({"reason": "why"})),
    ] {
        let lease = format!("/v1/leases/{resource}");
        until("it has an owner", async || rig.ask(0, "GET", &lease, None).await.body["owner"] == me.as_str())
            .await;
        let taken = format!(
            "update lease set owner = 'thief', fencing_token = fencing_token + 1 where resource = '{resource}' \
             returning fencing_token - 1"
        );
        let token = database.query(&taken).unwrap()[0][0].clone();
        let reply = rig.ask(0, "POST", &path, Some(&body)).await;
        eprintln!("{resource}: {} {}", reply.status, reply.text);
        let series = format!("fencepost_fence_reject_total{{op=\"{operation}\"}}");
        until("it is counted", async || rig.series(0, &series).await > 0.0).await;
        let logged = async || {
            let log = rig.instance(0).await.whole_log();
            let fenced = log.lines().filter(|line| line.contains("a stale owner was fenced"));
            let mut fenced = fenced.filter_map(|line| serde_json::from_str::<Value>(line).ok());
            fenced.find(|line| line["resource"] == resource.as_str())
        };
        // It is counted first.
        until("it is logged", async || logged().await.is_some()).await;
        let line = logged().await.unwrap();
        let told = ["operation", "token", "instance"].map(|field| line[field].as_str().map(str::to_owned));
        assert_eq!(told, [operation.to_owned(), token, me.clone()].map(Some), "{line}");
    }
}

#[test]
fn a_renamed_metric_or_label_is_found() {
    let text = "# HELP a_total x\n# TYPE a_total counter\na_total{kind=\"x\"} 1\n# HELP fencepost_b_seconds x\n\
                # TYPE fencepost_b_seconds histogram\nfencepost_b_seconds_bucket{of=\"y\",le=\"1\"} 0\n";
    let text = text.replace("a_total", "fencepost_a_total");
    let found = families(&text);
    for good in [
        "rate(fencepost_a_total{kind=\"z\"}[5m]) > 0",
        "sum by (kind) (fencepost_a_total)",
        "histogram_quantile(0.9, sum by (le, of) (rate(fencepost_b_seconds_bucket[1m])))",
        "fencepost_a_total{kind=~\"a|b\",instance=~\"$instance\"} and on (job, instance) fencepost_a_total",
    ] {
        assert!(check("here", good, &found).is_ok(), "{good}: {:?}", check("here", good, &found));
    }
    for (bad, why) in [
        ("rate(fencepost_c_total[5m])", "not exposed"),
        ("rate(fencepost_a_total{sort=\"z\"}[5m])", "no label sort"),
        ("sum by (of) (fencepost_a_total)", "the label of"),
        ("rate(fencepost_b_seconds[5m])", "is a histogram"),
        ("rate(fencepost_a_total_bucket[5m])", "is a counter"),
        ("raet(fencepost_a_total[5m])", "unknown word raet"),
        ("renamed_total > 0", "unknown word renamed_total"),
        ("fencepost_a_total{kind=\"x\" > 0", "is not closed"),
    ] {
        let found = check("here", bad, &found).expect_err(bad);
        assert!(found.contains(why), "{bad}: {found}");
    }
}

#[test]
fn each_alert_says_what_it_is_how_bad_it_is_and_where_to_read_on() {
    let page = file("docs/monitoring.md");
    let (_, section) = page.split_once("\n## Alerts\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let headings: BTreeSet<_> = section.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let alerts = alerts();
    assert!(alerts.len() > 20, "{}", alerts.len());
    let mut named = BTreeSet::new();
    for Alert { name, fields } in &alerts {
        assert!(named.insert(name.as_str()), "{name} is there twice");
        for field in ["expr", "summary", "description"] {
            assert!(fields.get(field).is_some_and(|text| text.len() > 10), "{name} has no {field}");
        }
        assert!(["warning", "critical"].contains(&fields["severity"].as_str()), "{name}");
        assert_eq!(fields["runbook"], format!("docs/monitoring.md#{}", name.to_lowercase()));
    }
    assert_eq!(named, headings, "each alert has its section, and each section its alert");
}

/// One Prometheus may scrape several clusters, each under a `job` of its own.
#[test]
fn neither_alerts_nor_the_board_take_the_instances_of_two_clusters_for_those_of_one() {
    for Alert { name, fields } in alerts() {
        let expression = &fields["expr"];
        for of_all in ["sum(", "max(", "min(", "count(", "avg("] {
            assert!(!expression.contains(of_all), "{name} has one value for all clusters: {expression}");
        }
        for group in expression.split("by (").skip(1) {
            let labels = group.split(')').next().unwrap();
            let is_of_one = labels.split(", ").any(|label| ["instance", "job"].contains(&label));
            assert!(is_of_one, "{name} is by {labels}: {expression}");
        }
    }
    let board: Value = serde_json::from_str(&file("deploy/grafana/fencepost.json")).unwrap();
    let mut expressions = Vec::new();
    texts(&board, "expr", &mut expressions);
    for expression in expressions {
        let selectors = read(expression).unwrap().selectors;
        let is_of_one = selectors.iter().any(|selector| selector.labels.iter().any(|label| label == "job"));
        assert!(is_of_one, "the board shows all clusters as one: {expression}");
    }
}

#[test]
fn the_alert_about_missing_instances_counts_none_where_all_of_a_cluster_are_gone() {
    let all = alerts();
    let of_missing = all.iter().find(|alert| alert.name == "FencepostInstanceMissing").unwrap();
    // A difference has no value where one side has none.
    assert!(of_missing.fields["expr"].contains("or 0 * "), "{of_missing:?}");
}

#[test]
fn alerts_read_what_tells_the_fault_from_what_is_well() {
    let alerts = alerts();
    for (name, metric) in [
        // A counter rises once, and an instance that finds the fault at its start has counted it before the first scrape.
        ("FencepostLedgerWentBack", "fencepost_ledger_went_back"),
        // Jobs that never begin are in no histogram.
        ("FencepostJobsWaitLong", "fencepost_pool_oldest_seconds"),
        // How many rejections are many depends on how much is dispatched.
        ("FencepostNodesReject", "fencepost_jobs_total"),
        // A due job that waits for the one before it in its session needs no slot.
        ("FencepostJobsWaitLong", "fencepost_jobs_waiting"),
        // Jobs that wait for slots are there meanwhile: one whose wait counts from before it was due was not.
        ("FencepostJobsWaitLong", "fencepost_job_seconds_count"),
        // Without Redis each instance knows its own nodes alone.
        ("FencepostRegistriesDiffer", "fencepost_redis_command_seconds_count"),
        // Of instances with different secrets each says that it is ready.
        ("FencepostMessagesRejected", "fencepost_bus_rejected_total"),
        ("FencepostMessagesRejected", "fencepost_forward_unproven_total"),
        // A refusal is counted and logged in one moment, and what was read before stays in force until the files are taken.
        ("FencepostTokensNotReloaded", "fencepost_file_refused"),
        // A token that was taken away stays good as long as the audit takes no entry of it.
        ("FencepostTokensNotReloaded", "fencepost_token_reload_total"),
        ("FencepostCertificatesNotReloaded", "fencepost_file_refused"),
        ("FencepostCertificateExpires", "fencepost_tls_certificate_expires_seconds"),
        // An instance whose Redis is away serves, and no counter of its own need rise.
        ("FencepostDegraded", "fencepost_readyz_check"),
        // A purge that fails all the time leaves the instance ready.
        ("FencepostPurgesFail", "fencepost_purge_failures_total"),
        // A plan that is over its time, or waits for its resumption, need have no task that failed.
        ("FencepostPlansWantAttention", "fencepost_plans"),
        // How many are paused does not say for how long one is.
        ("FencepostTasksPausedLong", "fencepost_plan_oldest_seconds"),
    ] {
        let alert = alerts.iter().find(|alert| alert.name == name).unwrap();
        let used = read(&alert.fields["expr"]).unwrap().selectors;
        assert!(used.iter().any(|selector| selector.name == metric), "{name} does not read {metric}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connections_to_the_ledger_that_are_in_use_are_counted_also_while_it_counts_nothing_itself() {
    const READERS: usize = 3;
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let instance = Setup::basic().unwrap().database(database.url()).start().await.unwrap();
    let mut psql = Command::new(tool("psql"));
    let script = "BEGIN; LOCK TABLE signer_nonce_allocation; SELECT pg_sleep(600)";
    let mut lock = psql.args(["-q", "-d", database.url(), "-c", script]).spawn().unwrap();
    let locked = "SELECT 1 FROM pg_locks WHERE relation = 'signer_nonce_allocation'::regclass AND granted \
                  AND mode = 'AccessExclusiveLock'";
    until("the lock is held", async || !database.query(locked).unwrap().is_empty()).await;
    let read = || {
        let nonces = format!("{}/v1/signers/s/nonces", instance.url());
        tokio::spawn(async move {
            let client = patient();
            // Each answer is a refusal while the table is locked.
            while client.request("GET", &nonces, None, None).await.is_ok() {}
        })
    };
    let readers: Vec<JoinHandle<()>> = (0..READERS).map(|_| read()).collect();
    let in_use = async || {
        let shown = scrape(instance.url()).await;
        let gauge = shown
            .lines()
            .find_map(|line| line.strip_prefix("fencepost_pool_in_use{pool=\"postgres\"} "))
            .unwrap_or_else(|| panic!("{shown}"));
        gauge.parse::<f64>().unwrap()
    };
    until("those of the readers are counted", async || in_use().await >= READERS as f64).await;
    readers.iter().for_each(JoinHandle::abort);
    database
        .query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'BEGIN; LOCK%'")
        .unwrap();
    lock.wait().unwrap();
    until("they are given back", async || in_use().await < READERS as f64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_or_an_event_stream_counts_as_answered_when_it_opens_and_is_in_flight_no_more() {
    let instance = Setup::in_mode("worker-queue").unwrap().start().await.unwrap();
    let mut socket = Socket::connect(instance.url()).await.unwrap();
    let events = plain_http(PATIENCE).unwrap().get(format!("{}/v1/events", instance.url()));
    let mut stream = events.send().await.unwrap();
    let shown = scrape(instance.url()).await;
    let of_both =
        [[r#"route="/v1/nodes/ws""#, r#"status="101""#], [r#"route="/v1/events""#, r#"status="200""#]];
    for labels in of_both {
        let is_opening = |line: &&str| {
            line.starts_with("fencepost_http_requests_total{")
                && labels.iter().all(|label| line.contains(label))
        };
        let opened: Vec<_> = shown.lines().filter(is_opening).collect();
        assert!(matches!(opened[..], [line] if line.ends_with(" 1")), "{labels:?}: {shown}");
    }
    // The scrape alone.
    assert!(shown.lines().any(|line| line == "fencepost_http_requests_in_flight 1"), "{shown}");
    assert!(shown.lines().any(|line| line == "fencepost_sockets 1"), "{shown}");
    let hello = r#"{"type":"hello","node_id":"n","capacity":1,"running":[]}"#;
    socket.send(Message::text(hello)).await.unwrap();
    assert_eq!(first(&mut socket).await, "welcome", "it is open");
    assert!(stream.chunk().await.unwrap().is_some(), "so is this");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_that_takes_all_connections_does_not_keep_the_probes_out() {
    let [address, probes] = [(); 2].map(|()| format!("127.0.0.1:{}", ports::free().unwrap()));
    let instance = Setup::bare()
        .env("FENCEPOST_LISTEN", &address)
        .env("FENCEPOST__SERVER__PROBE_LISTEN", &probes)
        .env("FENCEPOST__SERVER__CONNECTIONS_MAX", "2")
        .env("FENCEPOST__SERVER__WORKERS", "1")
        .start()
        .await
        .unwrap();
    let brief = testkit::http::Client::new(Duration::from_secs(1)).unwrap();
    // The main listener answers no more: its connections are taken, by callers that send nothing.
    let mut flood = Vec::new();
    until("all connections are taken", async || {
        for _ in 0..4 {
            flood.push(TcpStream::connect(&address).await.unwrap());
        }
        brief.request("GET", &format!("{}/healthz", instance.url()), None, None).await.is_err()
    })
    .await;
    let url = format!("http://{probes}");
    let client = patient();
    let health = client.get(&format!("{url}/healthz")).await.unwrap();
    assert_eq!(health["status"], "ok");
    let ready = client.get(&format!("{url}/readyz")).await.unwrap();
    assert_eq!(ready["checks"]["ledger"]["status"], "ok", "{ready}");
    assert!(scrape(&url).await.contains("fencepost_build_info{"));
    // Nothing else is there.
    for path in ["/", "/v1/stats", "/v1/signers/s/nonces", "/openapi.json", "/nowhere"] {
        let reply = client.request("GET", &format!("{url}{path}"), None, None).await.unwrap();
        assert_eq!((reply.status, reply.code()), (404, "not_found"), "{path}: {}", reply.text);
    }
    let reply = client.request("POST", &format!("{url}/metrics"), None, None).await.unwrap();
    assert_eq!((reply.status, reply.code()), (405, "method_not_allowed"), "{}", reply.text);
    assert!(brief.request("GET", &format!("{}/healthz", instance.url()), None, None).await.is_err());
    drop(flood);
    until("the main listener serves again", async || {
        brief.request("GET", &format!("{}/metrics", instance.url()), None, None).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listener_for_probes_asks_for_tokens_as_the_main_one_does_and_keeps_to_loopback_without() {
    let [address, probes] = [(); 2].map(|()| format!("127.0.0.1:{}", ports::free().unwrap()));
    let setup = || Setup::bare().env("FENCEPOST_LISTEN", &address);
    let token = r#"[{"name":"ops","token":"probe-test-token","scopes":["admin"]}]"#;
    let guarded =
        setup().env("FENCEPOST__SERVER__PROBE_LISTEN", &probes).env("FENCEPOST__AUTH__TOKENS", token);
    let instance = guarded.start().await.unwrap();
    let (url, client) = (format!("http://{probes}"), patient());
    for path in ["/healthz", "/readyz"] {
        client.get(&format!("{url}{path}")).await.unwrap();
    }
    let metrics = format!("{url}/metrics");
    let reply = client.request("GET", &metrics, None, None).await.unwrap();
    assert_eq!((reply.status, reply.code()), (401, "unauthorized"), "{}", reply.text);
    let client = client.with_token("probe-test-token");
    assert_eq!(client.request("GET", &metrics, None, None).await.unwrap().status, 200);
    drop(instance);
    let open =
        setup().env("FENCEPOST__SERVER__PROBE_LISTEN", "0.0.0.0:0").run_to_end(PATIENCE).await.unwrap();
    assert_eq!(open.code, Some(78), "{}", open.stderr);
    assert!(
        open.stderr.contains("server.probe_listen") && open.stderr.contains("auth.tokens"),
        "{}",
        open.stderr
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let busy = setup().env("FENCEPOST__SERVER__PROBE_LISTEN", &taken).run_to_end(PATIENCE).await.unwrap();
    assert_eq!(busy.code, Some(69), "{}", busy.stderr);
    assert!(busy.stderr.contains("server.probe_listen"), "{}", busy.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_is_logged_and_a_forward_keeps_the_requests_id_and_principal() {
    let token = r#"[{"name":"relayer","token":"log-test-token","scopes":["admin"]}]"#;
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let mut instances = Vec::new();
    for _ in 0..2 {
        let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
        let setup = setup.env("FENCEPOST__AUTH__TOKENS", token);
        let setup = setup.env("FENCEPOST__LOG__FILTER", "info,api::gate=debug,api::signers=debug");
        instances.push(setup.env("FENCEPOST__LEASE__INSTANCE_MS", "10000").start().await.unwrap());
    }
    let client = patient().with_token("log-test-token");
    until("both are on the ring", async || {
        let mut on_ring = Vec::new();
        for instance in &instances {
            let cluster = client.get(&format!("{}/v1/cluster", instance.url())).await.unwrap();
            let members = cluster["instances"].as_array().unwrap();
            on_ring.push(members.iter().filter(|member| member["on_ring"] == true).count());
        }
        on_ring == [2, 2]
    })
    .await;
    let placed = client.get(&format!("{}/v1/cluster/owner/signer:logged", instances[0].url())).await.unwrap();
    let is_owner = |at: &usize| placed["url"] == instances[*at].url();
    let owner = (0..2).find(is_owner).unwrap();
    let (owner, other) = (&instances[owner], &instances[1 - owner]);
    let http = plain_http(PATIENCE).unwrap();
    let request =
        http.post(format!("{}/v1/signers/logged/nonces", other.url())).bearer_auth("log-test-token");
    let answer = request.header("x-request-id", "told-apart-7").send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    let lines = |log: &str, words: &[&str]| -> Vec<Value> {
        let lines = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    for instance in [other, owner] {
        until("the request is in the log", async || {
            !lines(&instance.whole_log(), &["told-apart-7", "answered"]).is_empty()
        })
        .await;
        let found = lines(&instance.whole_log(), &["told-apart-7", "answered"]);
        for line in &found {
            let span = &line["span"];
            assert_eq!(
                (&span["request_id"], &span["principal"]),
                (&"told-apart-7".into(), &"relayer".into())
            );
            assert_eq!(line["path"], "/v1/signers/logged/nonces", "{line}");
        }
    }
    // The owner says which nonces these are, and what becomes of them, one by one and together.
    let granted: Value = answer.json().await.unwrap();
    let hold = &granted["grants"][0]["hold"];
    let release = json!({"hold": hold, "outcome": "unknown"});
    let settlements = json!({"settlements": [
        {"nonce": 0, "hold": hold, "outcome": "consumed"}, {"nonce": 7, "hold": "none", "outcome": "consumed"}
    ]});
    for (path, body) in [("nonces/0/release", &release), ("settlements", &settlements)] {
        let settled = http.post(format!("{}/v1/signers/logged/{path}", other.url()));
        let settled = settled.bearer_auth("log-test-token").header("x-request-id", "told-apart-9");
        assert_eq!(settled.json(body).send().await.unwrap().status().as_u16(), 200);
    }
    let of_nonces = |log: &str| -> Vec<[Value; 4]> {
        let told = lines(log, &["nonces are ", "told-apart-"]);
        let of = |line: Value| {
            [&line["message"], &line["signer"], &line["nonces"], &line["span"]["principal"]].map(Value::clone)
        };
        told.into_iter().map(of).collect()
    };
    until("the settlements are in the log", async || of_nonces(&owner.whole_log()).len() >= 3).await;
    let expected = [
        ("nonces are granted", "0"),
        ("nonces are settled", "0 QUARANTINED"),
        ("nonces are settled", "0 CONSUMED, 7 stale_hold"),
    ]
    .map(|(message, nonces)| [message, "logged", nonces, "relayer"].map(Value::from));
    assert_eq!(of_nonces(&owner.whole_log()), expected);
    assert!(of_nonces(&other.whole_log()).is_empty(), "the one that passed them on");
    let refused = http.get(format!("{}/v1/signers/logged?limit=1", owner.url()));
    let refused =
        refused.bearer_auth("log-test-token").header("x-request-id", "refused-8").send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 400);
    let of_refused = || lines(&owner.whole_log(), &["refused-8", "answered"]);
    until("the refused request is in the log", async || !of_refused().is_empty()).await;
    let line = &of_refused()[0];
    assert_eq!((&line["status"], &line["code"]), (&json!(400), &json!("invalid")), "{line}");
    assert!(line["ms"].is_u64() && line["span"]["route"] == "/v1/signers/{signer}", "{line}");
    let acquired = lines(&owner.whole_log(), &["lease acquired", "signer:logged"]);
    assert_eq!(acquired.len(), 1, "{}", owner.whole_log());
    let line = &acquired[0];
    assert_eq!((&line["level"], &line["owner"]), (&"INFO".into(), &owner.ready().instance.as_str().into()));
    assert!(line["token"] == "1" && line["lease_ms"].as_u64().is_some(), "{line}");
    assert!(line["expires_at"].as_i64().is_some(), "{line}");
    let snowflake = format!("{}/v1/ids/snowflake", owner.url());
    until("a snowflake is made", async || {
        client.request("GET", &snowflake, None, None).await.unwrap().status == 200
    })
    .await;
    let of_worker = || lines(&owner.whole_log(), &["lease acquired", "id-worker:"]);
    until("the lease of a worker number is in the log", async || !of_worker().is_empty()).await;
    let line = &of_worker()[0];
    assert!(line["owner"] == owner.ready().instance.as_str() && line["token"] == "1", "{line}");
    assert!(line["expires_at"].as_i64().is_some() && line["lease_ms"].as_u64().is_some(), "{line}");
    // The lock of a tenant is its task's.
    let plan =
        json!({"start": true, "tasks": [{"tenant": "logged", "stages": [{"name": "s", "payload": 1}]}]});
    let plans = format!("{}/v1/plans", owner.url());
    let made = client.request("POST", &plans, None, Some(&plan)).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
    let tasks = format!("{plans}/{}/tasks", made.body["id"].as_str().unwrap());
    let tasks = client.get(&tasks).await.unwrap();
    let task = format!("task:{}", tasks["items"][0]["id"].as_str().unwrap());
    let of_tenant = || lines(&owner.whole_log(), &["a tenant is locked", "tenant:logged"]);
    until("the lock of a tenant is in the log", async || !of_tenant().is_empty()).await;
    let line = &of_tenant()[0];
    assert!(line["owner"] == task && line["token"] == "1", "{line}");
    assert_eq!(line["lease_ms"], 9_000_000, "{line}");
    let expires = "SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM lease \
                   WHERE resource = 'tenant:logged'";
    let expires = tokio::task::block_in_place(|| database.query(expires)).unwrap();
    assert_eq!(expires, [[line["expires_at"].as_i64().unwrap().to_string()]], "{line}");
}
