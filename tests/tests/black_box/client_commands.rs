//! The client commands against a real daemon: each with its help, its table, its JSON and its errors; jobs from a file, waits
//! with a limit.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::instance::{Ended, Running, Setup, fencepost};
use testkit::ports;
use testkit::process::Signal;

use crate::jobs::rig::Rig;
use crate::until;

/// Runs a command against a daemon.
async fn run_at(url: &str, command: &'static str, args: &[&str]) -> Ended {
    let setup = Setup::command(command).env("FENCEPOST_URL", url);
    let setup = args.iter().fold(setup, |setup, arg| setup.arg(arg));
    setup.run_to_end(PATIENCE).await.unwrap()
}

/// Runs a command, which must succeed; what it printed.
async fn ok(url: &str, command: &'static str, args: &[&str]) -> String {
    let ended = run_at(url, command, args).await;
    assert_eq!(ended.code, Some(0), "{command} {args:?}: {}", ended.stderr);
    ended.stdout
}

/// The one JSON document that a command prints.
async fn document(url: &str, command: &'static str, args: &[&str]) -> Value {
    let text = ok(url, command, &[args, &["--json"]].concat()).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command} {args:?}: {error}: {text}"))
}

/// A node that runs `cat` for each job, and fails a job whose payload is `"fail"` for good.
fn node(url: &str, more: &[&str]) -> Running {
    let setup = Setup::command("node").env("FENCEPOST_URL", url).arg("--node-id").arg("cat");
    let setup = more.iter().fold(setup, |setup, arg| setup.arg(arg));
    let script = r#"read -r it; test "$it" = '"fail"' && exit 65; printf %s "$it""#;
    setup.arg("--exec").arg("sh").arg("-c").arg(script).start_command().unwrap()
}

/// The words of one command, and what its table shows.
type Case = (&'static str, Vec<String>, &'static str);

#[tokio::test(flavor = "multi_thread")]
async fn every_client_command_has_its_help_its_table_its_json_and_its_error() {
    let rig = Rig::alone().await;
    let url = rig.urls[0].clone();
    let _node = node(&url, &["--service", "ocr"]);
    rig.node_is(0, "cat", |shown| shown["state"] == "online").await;

    let id = |text: String| text.trim().to_owned();
    let job = id(ok(&url, "submit", &["--tenant", "acme", "--metadata", "k=v", "hello"]).await);
    assert_eq!(ok(&url, "job", &["wait", &job, "--at-most", "60s"]).await, "\"hello\"\n");
    let failed = id(ok(&url, "submit", &["fail"]).await);
    assert_eq!(run_at(&url, "job", &["wait", &failed]).await.code, Some(1));
    let dismissed = id(ok(&url, "submit", &["fail", "--kind", "render_video"]).await);
    assert_eq!(run_at(&url, "job", &["wait", &dismissed]).await.code, Some(1));
    assert!(ok(&url, "job", &["list", "--kind", "render_video"]).await.contains("render_video"));
    let done = id(ok(&url, "submit", &["--kind", "done", "x"]).await);
    ok(&url, "job", &["wait", &done]).await;
    let bulk = id(ok(&url, "job", &["bulk", "delete", "--kind", "done", "--yes", "--no-wait"]).await);
    ok(&url, "job", &["bulk", "show", &bulk, "-w"]).await;
    let session = id(ok(&url, "session", &["open", "--ordering", "results"]).await);
    let plan_file = tempfile::NamedTempFile::new().unwrap();
    let plan = json!({"tasks": [{"tenant": "t-1", "stages": [{"name": "s", "payload": 1}]}]});
    std::fs::write(plan_file.path(), plan.to_string()).unwrap();
    let plan = id(ok(&url, "plan", &["create", "-f", plan_file.path().to_str().unwrap(), "--start"]).await);
    ok(&url, "plan", &["show", &plan, "-w"]).await;
    let tasks = rig.get(0, &format!("/v1/plans/{plan}/tasks")).await;
    let task = tasks["items"][0]["id"].as_str().unwrap().to_owned();
    ok(&url, "nonce", &["grant", "eip155:1:0xab", "--count", "2"]).await;
    ok(&url, "id", &["set-segment", "order"]).await;
    ok(&url, "id", &["set-sequence", "invoice"]).await;
    ok(&url, "nodes", &["drain", "cat"]).await;
    ok(&url, "nodes", &["undrain", "cat"]).await;

    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let of =
        |command: &'static str, line: String, shows: &'static str| -> Case { (command, words(&line), shows) };
    let cases = [
        of("job", "list".to_owned(), "JOB "),
        of("job", "list --dead --tenant nobody".to_owned(), "JOB "),
        of("job", format!("show {job}"), "metadata    k=v\n"),
        of("job", format!("events {job}"), "succeeded, attempt 1, node cat\n"),
        of("job", format!("cancel {job}"), "is succeeded, attempt 1"),
        of("job", format!("wait {job}"), "\"hello\"\n"),
        of("job", format!("retry {failed}"), ""),
        of("job", "retry --dead --dry-run".to_owned(), "would be retried; nothing was changed\n"),
        of("session", "open --pool default".to_owned(), ""),
        of("job", format!("dismiss {dismissed}"), "is dismissed\n"),
        of(
            "job",
            "bulk retry --dead --kind nothing --dry-run".to_owned(),
            "0 jobs match; nothing was changed\n",
        ),
        of(
            "job",
            "bulk cancel --kind nothing --yes".to_owned(),
            "DONE: 0 jobs cancelled, 0 skipped, 0 failed\n",
        ),
        of("job", "bulk list".to_owned(), "cancel  kind nothing  DONE"),
        of("job", format!("bulk show {bulk} -w"), "status          DONE\n"),
        of("job", format!("bulk stop {bulk}"), "DONE: 1 jobs deleted, 0 skipped, 0 failed\n"),
        of("session", "list --open".to_owned(), "SESSION  "),
        of("session", format!("show {session}"), "ordering   results\n"),
        of("session", format!("close {session}"), "is closed; 0 of its jobs have not ended\n"),
        of("nodes", "list".to_owned(), "NODE  STATE   SLOTS"),
        of("nodes", "show cat".to_owned(), "services        ocr\n"),
        of("nodes", "drain cat".to_owned(), "node cat is draining"),
        of("nodes", "undrain cat".to_owned(), "node cat is online\n"),
        of("nodes", "explain --require ocr".to_owned(), "chosen      node cat of pool default\n"),
        of("nodes", "explain --require no".to_owned(), "without its labels or languages\n"),
        of("pool", "pause default --reason repair --for 10m".to_owned(), "pool default is paused since "),
        of("pool", "show".to_owned(), ": repair\n"),
        of("pool", "resume default".to_owned(), "pool default is resumed\n"),
        of("pool", "show".to_owned(), "all nodes are in the pool default\n"),
        of("plan", "list".to_owned(), "PLAN "),
        of("plan", format!("show {plan}"), "1 of 1 succeeded\n"),
        of("plan", format!("wait {plan}"), "is SUCCEEDED: 1 of 1 succeeded\n"),
        of("plan", format!("events {plan}"), "SEQ "),
        of("plan", format!("task {task}"), "SUCCEEDED"),
        of("plan", format!("stages {task}"), "\"payload\":1,"),
        of("plan", format!("checkpoints {task}"), "AFTER STAGE"),
        of("tenant", "show t-1".to_owned(), "newest task"),
        of("tenant", "history t-1".to_owned(), "TASK "),
        of("audit", "list".to_owned(), "undrain_node"),
        of("stats", String::new(), "POOL "),
        of("top", String::new(), "slots taken on 1 nodes"),
        of("nonce", "show eip155:1:0xab".to_owned(), "next nonce"),
        of("nonce", "show eip155:1:0xab 0".to_owned(), "nonce          0\n"),
        of("nonce", "show eip155:1:0xab 1".to_owned(), "nonce          1\n"),
        of("nonce", "list".to_owned(), "SIGNER"),
        of("nonce", "list eip155:1:0xab".to_owned(), "NONCE"),
        of("id", "snowflake --count 2".to_owned(), "\n"),
        of("id", "segment order".to_owned(), "\n"),
        of("id", "segments".to_owned(), "TAG "),
        of("id", "sequence invoice".to_owned(), "\n"),
        of("id", "sequences".to_owned(), "SEQUENCE "),
        of("id", "uuid".to_owned(), "-"),
        of("id", "decode 7".to_owned(), "worker number"),
        of("lease", "list --kind instance".to_owned(), "RESOURCE"),
        of("cluster", "show".to_owned(), "INSTANCE"),
        of("health", "--ready".to_owned(), "CHECK"),
    ];
    let nobody = format!("127.0.0.1:{}", ports::free().unwrap());
    // One after the other, since some change what others show; what is asked of nobody goes on beside it.
    let mut refused = tokio::task::JoinSet::new();
    for (command, args, shows) in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.is_empty()).collect();
        let table = ok(&url, command, &args).await;
        assert!(table.contains(shows), "{command} {args:?}: {table}");
        let lines = ok(&url, command, &[&args[..], &["--json"]].concat()).await;
        for line in lines.lines() {
            assert!(serde_json::from_str::<Value>(line).is_ok(), "{command} {args:?}: {line}");
        }
        let may_be_empty =
            args.contains(&"list") || args.contains(&"--dry-run") || args.contains(&"checkpoints");
        assert!(may_be_empty || !lines.is_empty(), "{command} {args:?}");
        let help = ok(&url, command, &[&args[..], &["--help"]].concat()).await;
        assert!(help.contains("Usage: fencepost") && help.contains("--url"), "{command} {args:?}: {help}");
        let wrong = run_at(&url, command, &[&args[..], &["--no-such-option"]].concat()).await;
        assert_eq!(wrong.code, Some(2), "{command} {args:?}: {}", wrong.stderr);
        let (nobody, args) = (nobody.clone(), args.iter().map(ToString::to_string).collect::<Vec<_>>());
        refused.spawn(async move {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let ended = run_at(&nobody, command, &args).await;
            assert_eq!(ended.code, Some(69), "{command} {args:?}: {}", ended.stderr);
            for word in ["fencepost: ", &nobody, "`fencepost serve` starts one", "--url"] {
                assert!(ended.stderr.contains(word), "{word}: {command} {args:?}: {}", ended.stderr);
            }
        });
    }
    while let Some(done) = refused.join_next().await {
        done.unwrap();
    }
    for (command, args, code, says) in [
        ("job", vec!["show", "nothing"], 1, "not_found"),
        ("nonce", vec!["show", "eip155:1:0xab", "2"], 1, "nonce 2 was never granted"),
        ("nonce", vec!["show", "eip155:1:0xab", "9007199254740991"], 1, "was never granted"),
        ("nonce", vec!["show", "eip155:1:0xno", "7"], 1, "not_found"),
        ("job", vec!["retry", "--dead", "--pool", "no"], 0, "0 jobs are retried"),
        ("job", vec!["retry", "--pool", "no"], 2, "--outcome"),
        ("job", vec!["retry", "--dry-run", "--kind", "k"], 2, "--outcome"),
        ("session", vec!["show", "nothing"], 1, "not_found"),
        ("nodes", vec!["drain", "nobody"], 1, "not_found"),
        ("tenant", vec!["show", "nobody"], 1, "not_found"),
        ("plan", vec!["events", "p", "-w", "--limit", "5"], 2, "takes neither --limit nor --cursor"),
        ("pool", vec!["set", "-f", "/no/such/file"], 2, "/no/such/file"),
        ("lease", vec!["list", "--kind", "lane"], 2, "id-worker, instance, plan, session, signer, tenant"),
    ] {
        let ended = run_at(&url, command, &args).await;
        assert_eq!(ended.code, Some(code), "{command} {args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{command} {args:?}: {}", ended.stderr);
    }
    let refusal = run_at(&url, "job", &["show", "nothing", "--json"]).await.stderr;
    let refusal: Value = serde_json::from_str(&refusal).expect("a problem");
    assert_eq!(refusal["code"], "not_found");
    // What is made of an answer names its request, and what is made without one names none.
    let settle = ["settle", "eip155:1:0xab", "2", "--hold", "h", "--outcome", "unknown", "--json"];
    let stale = r#"{"version": 7, "pools": []}"#;
    let file = rig.instance(0).await.dir().join("stale.json");
    std::fs::write(&file, stale).unwrap();
    let set = ["set", "-f", file.to_str().unwrap(), "--json"];
    for (command, args, has_id) in [
        ("nonce", &settle[..], true),
        ("nonce", &["show", "eip155:1:0xab", "2", "--json"][..], true),
        ("pool", &set[..], false),
    ] {
        let refusal = run_at(&url, command, args).await.stderr;
        let refusal: Value = serde_json::from_str(&refusal).expect("a problem");
        let id = refusal.get("request_id").map(|id| id.as_str().unwrap().len());
        assert_eq!(id, has_id.then_some(32), "{refusal}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_set_from_what_is_shown_and_dropped_only_by_who_is_sure() {
    let rig = Rig::alone().await;
    let url = &rig.urls[0];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pools.json");
    let path = file.to_str().unwrap();
    let mut setting = document(url, "pool", &["show"]).await;
    setting["pools"] = json!([{"name": "a", "requires": ["gpu"]}, {"name": "b"}]);
    std::fs::write(&file, setting.to_string()).unwrap();
    let dry = ok(url, "pool", &["set", "-f", path, "--dry-run"]).await;
    assert_eq!(dry, "added      a\nadded      b\nnothing was changed\n");
    assert!(ok(url, "pool", &["set", "-f", path]).await.contains("a     1       -       gpu\n"));
    let stale = run_at(url, "pool", &["set", "-f", path]).await;
    assert_eq!(stale.code, Some(1), "{}", stale.stderr);
    assert!(stale.stderr.contains("nothing was changed"), "{}", stale.stderr);

    let mut fewer = document(url, "pool", &["show"]).await;
    fewer["pools"].as_array_mut().unwrap().remove(0);
    std::fs::write(&file, fewer.to_string()).unwrap();
    let asked = run_at(url, "pool", &["set", "-f", path]).await;
    assert_eq!(asked.code, Some(2), "{}", asked.stderr);
    assert!(
        asked.stderr.contains("a. Drop the pools?") && asked.stderr.contains("--yes"),
        "{}",
        asked.stderr
    );
    assert_eq!(rig.get(0, "/v1/config/pools").await["pools"].as_array().unwrap().len(), 2);
    let set = ok(url, "pool", &["set", "-f", path, "--yes"]).await;
    assert!(set.contains("b ") && !set.contains("gpu"), "{set}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_file_are_submitted_in_batches_once_under_a_key_or_not_at_all() {
    let rig = Rig::alone().await;
    let url = &rig.urls[0];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.jsonl");
    let path = file.to_str().unwrap();
    let lines: String = (0..2_500).map(|n| format!("{{\"payload\":{n},\"priority\":{}}}\n", n % 3)).collect();
    std::fs::write(&file, &lines).unwrap();
    let submit = ["-f", path, "--tenant", "acme", "--require", "gpu", "--key", "import-7", "--json"];
    let ids = |text: &str| -> Vec<String> {
        let read = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        text.lines().map(|line| read(line)["id"].as_str().unwrap().to_owned()).collect()
    };
    // The output is longer than what `Setup` keeps of it.
    let run = || {
        let mut command = fencepost().unwrap();
        let output = command.env("FENCEPOST_URL", url).arg("submit").args(submit).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let first = ids(&run());
    assert_eq!(first.len(), 2_500);
    assert_eq!(ids(&run()), first, "the same key is the same jobs");
    let job = rig.job(0, &first[1_001]).await;
    assert_eq!((&job["payload"], &job["tenant"]), (&json!(1_001), &json!("acme")));
    assert_eq!((&job["requires"], &job["priority"]), (&json!(["gpu"]), &json!(2)));

    std::fs::write(&file, format!("{lines}{{\"payload\":1,\"priorty\":2}}\n")).unwrap();
    let ended = run_at(url, "submit", &["-f", path, "--tenant", "wrong"]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
    for word in ["jobs.jsonl: line 2501, column", "unknown field `priorty`", "No job was submitted."] {
        assert!(ended.stderr.contains(word), "{word}: {}", ended.stderr);
    }
    assert_eq!(rig.get(0, "/v1/jobs?tenant=wrong").await["items"], json!([]));

    let long = "k".repeat(118);
    let ended = run_at(url, "submit", &["-f", path, "--key", &long]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("--key must have at most 117 characters"), "{}", ended.stderr);

    // What only the daemon refuses is named with its line, and the other jobs are accepted.
    std::fs::write(&file, "{\"payload\":1}\n\n{\"payload\":2,\"session\":\"none\"}\n{\"payload\":3}\n")
        .unwrap();
    let ended = run_at(url, "submit", &["-f", path]).await;
    assert_eq!((ended.code, ended.stdout.lines().count()), (Some(1), 2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("line 3: not_found")
            && ended.stderr.contains("2 jobs are accepted, 1 are refused")
    );

    let mut child = fencepost().unwrap();
    let child = child.env("FENCEPOST_URL", url).args(["submit", "-f", "-"]);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{\"payload\":\"from a pipe\"}").unwrap();
    let output = child.wait_with_output().unwrap();
    let id = String::from_utf8(output.stdout).unwrap();
    assert_eq!(rig.job(0, id.trim()).await["payload"], "from a pipe");
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 jobs are accepted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_dismissed_and_deleted_one_by_one_and_in_bulk_and_refusals_change_nothing() {
    let rig = Rig::alone().await;
    let url = rig.urls[0].clone();
    let _node = node(&url, &[]);
    let submit = async |kind: &str, payload: &str| {
        let id = ok(&url, "submit", &["--kind", kind, payload]).await.trim().to_owned();
        run_at(&url, "job", &["wait", &id]).await;
        id
    };
    let refused = async |command: &'static str, args: &[&str], code: i32, says: &str| {
        let ended = run_at(&url, command, args).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {} {}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    };
    let (good, bad) = (submit("a", "x").await, submit("a", "fail").await);
    let waits = ok(&url, "submit", &["--kind", "w", "--delay-ms", "600000", "x"]).await.trim().to_owned();
    refused("job", &["dismiss", &good], 1, "conflict").await;
    refused("job", &["delete", &waits, "--yes"], 1, "conflict").await;
    // Nobody answers the question.
    refused("job", &["delete", &good], 2, "nothing was changed").await;
    refused("job", &["bulk", "delete", "--kind", "a"], 2, "2 jobs match. Delete them").await;
    refused("job", &["bulk", "cancel", "--kind", "w"], 2, "1 job matches. Cancel it").await;
    refused("job", &["bulk", "retry", "--kind", "a"], 1, "name an outcome").await;
    refused("job", &["bulk", "delete", "--yes"], 1, "name one condition").await;
    refused("job", &["bulk", "dismiss", "--before", "yesterday"], 2, "a time as in 20").await;
    refused("job", &["bulk", "show", "no-such"], 1, "not_found").await;
    refused("pool", &["pause", "no-such", "--reason", "r"], 1, "not_found").await;
    assert_eq!(rig.get(0, "/v1/bulk").await["items"], json!([]));
    assert_eq!(rig.job(0, &good).await["state"], "FINISHED");

    // What a dry run shows is not done.
    let session = ok(&url, "session", &["open"]).await.trim().to_owned();
    let dry = ok(&url, "job", &["cancel", &waits, &good, "--dry-run", "--yes"]).await;
    let stays = format!("job {good} stays as it is: succeeded");
    let expected = [&*format!("job {waits} would be cancelled: CREATED"), &*stays, "nothing was changed"];
    assert_eq!(dry.lines().count(), expected.len(), "{dry}");
    assert!(dry.lines().zip(expected).all(|(line, begins)| line.starts_with(begins)), "{dry}");
    let dry = ok(&url, "nodes", &["drain", "cat", "--dry-run", "-y"]).await;
    assert_eq!(dry, "node cat would be drained: online, 0 of 1 slots taken\nnothing was changed\n");
    let dry = ok(&url, "session", &["close", &session, "--dry-run"]).await;
    let expected =
        format!("session {session} would be closed; 0 of its jobs have not ended\nnothing was changed\n");
    assert_eq!(dry, expected);
    let lines = ok(&url, "job", &["cancel", &waits, "--dry-run", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&lines).unwrap()["id"], *waits, "{lines}");
    refused("job", &["cancel", "no-such", "--dry-run"], 1, "not_found").await;
    assert_eq!(rig.job(0, &waits).await["state"], "CREATED");
    assert_eq!(rig.get(0, "/v1/nodes/cat").await["state"], "online");
    assert_eq!(rig.get(0, &format!("/v1/sessions/{session}")).await["closed_at"], Value::Null);
    ok(&url, "session", &["close", &session, "--yes"]).await;

    let answer = document(&url, "job", &["dismiss", &bad]).await;
    assert_eq!((&answer["id"], &answer["dead"]), (&json!(bad), &json!(false)));
    assert_eq!(document(&url, "job", &["delete", &good, "--yes"]).await, json!({"id": good}));
    refused("job", &["show", &good], 1, "not_found").await;

    // A retry is followed to its end, and a job that fails again is no failure of the operation.
    let retried = document(&url, "job", &["bulk", "retry", "--outcome", "failed", "--kind", "a"]).await;
    assert_eq!((&retried["status"], &retried["done"]), (&json!("DONE"), &json!(1)), "{retried}");
    let said = run_at(&url, "job", &["bulk", "cancel", "--kind", "w", "--yes"]).await;
    assert!(said.stderr.contains("is under way; 1 job matches"), "{}", said.stderr);
    assert!(said.stdout.ends_with("is DONE: 1 jobs cancelled, 0 skipped, 0 failed\n"), "{}", said.stdout);
    assert_eq!(rig.job(0, &waits).await["outcome"], "cancelled");

    // What comes while somebody thinks about the question is none of it.
    let first = ok(&url, "submit", &["--kind", "q", "--delay-ms", "600000", "x"]).await.trim().to_owned();
    let mut asks = fencepost().unwrap();
    let asks = asks.env("FENCEPOST_URL", &url).args(["job", "bulk", "cancel", "--kind", "q"]);
    let mut asks = asks.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut question = [0; 14];
    asks.stderr.as_mut().unwrap().read_exact(&mut question).unwrap();
    assert_eq!(&question, b"1 job matches.");
    let later = ok(&url, "submit", &["--kind", "q", "--delay-ms", "600000", "x"]).await.trim().to_owned();
    asks.stdin.as_mut().unwrap().write_all(b"y\n").unwrap();
    let ended = asks.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(said.ends_with("is DONE: 1 jobs cancelled, 0 skipped, 0 failed\n"), "{said}");
    assert_eq!(rig.job(0, &first).await["outcome"], "cancelled");
    assert_eq!(rig.job(0, &later).await["state"], "CREATED");

    // One that is stopped ends so, and the command that follows it says so.
    let many = (0..40).map(|_| json!({"payload": 1, "kind": "m", "delay_ms": 600_000})).collect::<Vec<_>>();
    rig.post(0, "/v1/jobs/batch", Some(&json!({"jobs": many})), 202).await;
    let slow = ["bulk", "cancel", "--kind", "m", "--rate", "1", "--yes", "--no-wait"];
    let id = ok(&url, "job", &slow).await.trim().to_owned();
    let followed = tokio::spawn({
        let (url, id) = (url.clone(), id.clone());
        async move { ok(&url, "job", &["bulk", "show", &id, "-w"]).await }
    });
    ok(&url, "job", &["bulk", "stop", &id]).await;
    let shown = followed.await.unwrap();
    assert!(shown.contains("status          CANCELLED\n"), "{shown}");
    let listed = ok(&url, "job", &["bulk", "list", "--json"]).await;
    assert_eq!(listed.lines().count(), 4, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_page_by_page() {
    let rig = Rig::alone().await;
    let url = rig.urls[0].clone();
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(
            ok(&url, "session", &["open", "--tenant", "acme", "--require", "gpu"]).await.trim().to_owned(),
        );
    }
    ok(&url, "session", &["close", &made[1]]).await;
    made.sort();
    let ids = async |args: &[&str]| {
        let lines = ok(&url, "session", &[&["list", "--json"][..], args].concat()).await;
        let id = |line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
        lines.lines().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&[]).await, made);
    let (open, closed) = (ids(&["--open"]).await, ids(&["--closed"]).await);
    assert_eq!((open.len(), closed.len()), (2, 1));
    let page = rig.get(0, "/v1/sessions?limit=2").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    assert_eq!(ids(&["--cursor", cursor]).await, made[2..]);
    assert_eq!(page["items"][0]["requires"], json!(["gpu"]));
    for bad in [
        "/v1/sessions?open=yes",
        "/v1/sessions?cursor=j.x",
        "/v1/sessions?tenant=a/b",
        "/v1/sessions?pool=p",
        "/v1/sessions?limit=0",
    ] {
        let reply = rig.ask(0, "GET", bad, None).await;
        assert_eq!((reply.status, reply.code()), (400, "invalid"), "{bad}: {}", reply.text);
    }
    let table = ok(&url, "session", &["list"]).await;
    assert!(table.contains("closed  strict    acme    gpu"), "{table}");
    let other = ok(&url, "session", &["open", "--tenant", "other"]).await.trim().to_owned();
    assert_eq!(ids(&["--tenant", "other"]).await, [other]);
    assert_eq!(ids(&["--tenant", "acme"]).await, made);
    assert_eq!(ids(&["--tenant", "acme", "--closed"]).await, closed);
    assert!(ids(&["--tenant", "nobody"]).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_says_why_no_node_takes_the_job_and_ends_at_its_limit() {
    let rig = Rig::alone().await;
    // A URL without a scheme is http.
    let url = rig.urls[0].strip_prefix("http://").unwrap();
    let waits = ["--wait", "--at-most", "4s", "--require", "gpu", "x"];
    let ended = run_at(url, "submit", &waits).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
    let id = ended
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("job ")?.strip_suffix(" is accepted"))
        .unwrap();
    for word in [
        format!("job {id} waits: no node is connected"),
        format!("job {id} is CREATED after 4.0 s: no node is connected"),
        format!("`fencepost job wait {id}` waits again"),
    ] {
        assert!(ended.stderr.contains(&word), "{word}: {}", ended.stderr);
    }
    let _node = node(url, &[]);
    rig.node_is(0, "cat", |shown| shown["state"] == "online").await;
    let shown = ok(url, "job", &["show", id]).await;
    let why = "waits       no node in its pools has all of: gpu\n";
    assert!(shown.contains(why), "{shown}");
    let delayed = ok(url, "submit", &["--delay-ms", "600000", "x"]).await;
    let shown = ok(url, "job", &["show", delayed.trim()]).await;
    assert!(shown.contains("waits       the job is due later, until "), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_logs_the_beginning_and_the_end_of_each_attempt_and_an_operators_drain() {
    let rig = Rig::alone().await;
    let url = &rig.urls[0];
    let loud = node(url, &[]);
    rig.node_is(0, "cat", |shown| shown["state"] == "online").await;
    let good = ok(url, "submit", &["good"]).await.trim().to_owned();
    let bad = ok(url, "submit", &["fail"]).await.trim().to_owned();
    assert_eq!(rig.finished(0, &good).await["outcome"], "succeeded");
    assert_eq!(rig.finished(0, &bad).await["outcome"], "failed");
    ok(url, "nodes", &["drain", "cat"]).await;
    ok(url, "nodes", &["undrain", "cat"]).await;
    let has =
        |log: &str, words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    until("the node has logged all of it", async || {
        let log = loud.log();
        has(&log, &["an attempt begins", &good])
            && has(&log, &["an attempt has succeeded", &good, "took_ms"])
            && has(&log, &["an attempt begins", &bad])
            && has(&log, &["an attempt has failed", &bad, "exit status 65", "\"retryable\":false"])
            && has(&log, &["an operator drains this node"])
            && has(&log, &["the operator's drain of this node has ended"])
    })
    .await;
    drop(loud);
    let quiet = node(url, &["-q"]);
    rig.node_is(0, "cat", |shown| shown["state"] == "online").await;
    let bad = ok(url, "submit", &["fail"]).await.trim().to_owned();
    rig.finished(0, &bad).await;
    until("what goes wrong is logged", async || quiet.log().contains("an attempt has failed")).await;
    let log = quiet.log();
    assert!(!log.contains("begins") && !log.contains("connected"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_watched_is_printed_whenever_it_has_changed() {
    let rig = Rig::alone().await;
    let url = &rig.urls[0];
    let watch = |args: &[&str]| {
        let setup = Setup::command("job").env("FENCEPOST_URL", url);
        args.iter().fold(setup, |setup, arg| setup.arg(arg)).start_command().unwrap()
    };
    let tables = watch(&["list", "-w"]);
    let lines = watch(&["list", "-w", "--json"]);
    until("both have begun", async || tables.stdout().contains("JOB ")).await;
    let id = ok(url, "submit", &["x"]).await.trim().to_owned();
    until("the job is shown", async || tables.stdout().contains(&id) && lines.stdout().contains(&id)).await;
    ok(url, "job", &["cancel", &id]).await;
    until("its end is shown", async || {
        tables.stdout().contains("cancelled") && lines.stdout().contains("cancelled")
    })
    .await;
    let seen: Vec<Value> = lines.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let states: Vec<_> = seen.iter().map(|job| job["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["CREATED", "FINISHED"], "each change once");
    // A single job is followed to its end.
    let id = ok(url, "submit", &["y"]).await.trim().to_owned();
    let words = ["show", &id, "-w"];
    let (shown, cancelled) = tokio::join!(run_at(url, "job", &words), async {
        rig.in_state(0, &id, "CREATED").await;
        ok(url, "job", &["cancel", &id]).await
    });
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stdout.contains("state       cancelled\n") && cancelled.contains("cancelled"));
    rig.end(0, Signal::Terminate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_are_watched_are_all_that_come_between_two_looks_however_many_pages_they_are() {
    let rig = Rig::alone().await;
    let url = &rig.urls[0];
    let job = |number: u64| json!({ "payload": number });
    let mut expected = Vec::new();
    for number in 0..3 {
        expected.push(rig.submit(0, job(number)).await);
    }
    // The first look shows one page.
    expected.remove(0);
    let set_policy = async |signer: String| {
        let (path, policy) = (format!("/v1/signers/{signer}/policy"), json!({"hold_ms": 60_000}));
        let reply = rig.ask(0, "PUT", &path, Some(&policy)).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    };
    set_policy("s-0".to_owned()).await;
    let watch = |command: &'static str, limit: &str| {
        let setup = Setup::command(command).env("FENCEPOST_URL", url).arg("list").arg("-w").arg("--json");
        setup.arg("--limit").arg(limit).start_command().unwrap()
    };
    let (jobs, changes) = (watch("job", "2"), watch("audit", "1"));
    let lines = |of: &Running| of.stdout().matches('\n').count();
    until("both have begun", async || lines(&jobs) >= 2 && lines(&changes) >= 1).await;
    expected.extend(rig.submit_all(0, &(3..10).map(job).collect::<Vec<_>>()).await);
    for number in 1..6 {
        set_policy(format!("s-{number}")).await;
    }
    until("all that is new is printed", async || lines(&jobs) >= expected.len() && lines(&changes) >= 6)
        .await;
    let printed = |of: &Running, field: &str| {
        let field =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()[field].as_str().unwrap().to_owned();
        of.stdout().lines().map(field).collect::<Vec<_>>()
    };
    let mut ids = printed(&jobs, "id");
    ids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ids, expected, "each once");
    let subjects: Vec<_> = (0..6).map(|number| format!("signer:s-{number}")).collect();
    assert_eq!(printed(&changes, "subject"), subjects, "each once, the newest last");
    // What there is not has no headings either.
    let unknown = "00000000-0000-7000-8000-000000000000";
    let ended = run_at(url, "plan", &["events", unknown, "-w"]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
    rig.end(0, Signal::Terminate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_ids_that_is_refused_keeps_no_other_from_being_done() {
    let rig = Rig::alone().await;
    let url = &rig.urls[0];
    let first = ok(url, "submit", &["x"]).await.trim().to_owned();
    let last = ok(url, "submit", &["y"]).await.trim().to_owned();
    let unknown = "00000000-0000-7000-8000-000000000000";
    let ended = run_at(url, "job", &["cancel", &first, unknown, &last]).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.starts_with(&format!("fencepost: {unknown}: refused: not_found")),
        "{}",
        ended.stderr
    );
    for job in [&first, &last] {
        assert_eq!(rig.job(0, job).await["outcome"], "cancelled");
    }
    rig.end(0, Signal::Terminate).await;
    // Where no daemon answers, one line is enough.
    let ended = run_at(url, "job", &["cancel", &first, &last]).await;
    assert_eq!((ended.code, ended.stderr.matches("fencepost:").count()), (Some(69), 1), "{}", ended.stderr);
}
