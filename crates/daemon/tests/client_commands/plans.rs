//! `fencepost plan` and `fencepost tenant`.

use crate::process::{LOST, answering, ended, fencepost, listener};

fn plan(status: &str, succeeded: u32) -> (u16, String) {
    let body = format!(
        r#"{{"id":"p-1","name":null,"status":"{status}","max_concurrency":5,"on_failure":"stop_new","timeout_ms":1000,
        "intent":"run","halted":false,"over_time":false,"progress":{{"total":1,"pending":0,"running":{},
        "succeeded":{succeeded},"failed":0,"paused":0,"interrupted":0,"cancelled":0}},"created_at":"t","started_at":"t",
        "finished_at":null}}"#,
        1 - succeeded
    );
    (200, body)
}

fn task(status: &str, stage: &str, more: &str) -> String {
    format!(
        r#"{{"id":"k-1","plan":"p-1","place":1,"tenant":"acme","name":null,"status":"{status}","intent":"run","reason":null,
        "run":1,"run_at":"t","timeout_ms":1000,"definition":1,"stage":{stage},"stages":[{{"name":"build",
        "status":"SUCCEEDED","job":"j-1"}},{{"name":"check","status":"RUNNING","job":"j-2"}}],"has_checkpoint":false,
        "checkpoint":null,"checkpoint_version":0,{more}"waits_for":null,"updated_at":"t"}}"#
    )
}

fn tasks(status: &str, stage: &str) -> (u16, String) {
    let lock = if status == "RUNNING" { r#""lock_token":7,"# } else { "" };
    (200, format!(r#"{{"items":[{}],"next_cursor":null}}"#, task(status, stage, lock)))
}

/// The job of the second stage, with this beside.
fn stages_job(more: &str) -> (u16, String) {
    let body = format!(
        r#"{{"id":"j-2","state":"CREATED","outcome":null,"lane":"l","session":null,"seq":null,"tenant":"acme","pool":null,
        "route":null,"requires":[],"priority":0,"timeout_ms":1,"attempt":0,"max_attempts":1,"node":null,"metadata":{{}},
        "payload":1,"error":null,"dead":false,"progress":null,"created_at":"t","run_at":null,"dispatched_at":null,
        "running_at":null,"finished_at":null,"released_at":null,"retry_of":null,{more}"retried_as":null}}"#
    );
    (200, body)
}

#[tokio::test]
async fn a_plan_is_created_from_its_file_and_a_file_that_is_no_plan_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let name = file.to_str().unwrap();
    std::fs::write(&file, r#"{"tasks": [{"tenant": "acme", "stages": [{"name": "build", "payload": 1}]}]}"#)
        .unwrap();
    let (listener, url) = listener().await;
    let heard = answering(listener, vec![plan("RUNNING", 0)]);
    let output = ended(fencepost(&["plan", "create", "--url", &url, "-f", name, "--start"])).await;
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"p-1\n".as_slice()));
    let asked = r#"POST /v1/plans {"start":true,"tasks":[{"tenant":"acme","stages":[{"name":"build","payload":1}]}]}"#;
    assert_eq!(*heard.lock(), [asked]);

    std::fs::write(&file, "{\n  \"tasks\": 7\n}").unwrap();
    let output = ended(fencepost(&["plan", "create", "--url", &url, "-f", name])).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains(&format!("{name}: ")) && err.contains("line 2 column 12"), "{err}");
}

#[tokio::test]
async fn a_watched_plan_is_printed_whenever_it_has_changed_until_it_has_ended() {
    let (listener, url) = listener().await;
    let answers = vec![
        plan("RUNNING", 0),
        tasks("RUNNING", "2"),
        stages_job(r#""waiting_for":{"reason":"queued","detail":"2 are before it"},"#),
        plan("RUNNING", 0),
        tasks("RUNNING", "2"),
        stages_job(""),
        // A person is to look at another task; this one runs on. Its job is not to be seen any more.
        plan("ATTENTION", 0),
        tasks("RUNNING", "2"),
        (404, r#"{"type":"t","title":"t","status":404,"detail":"d","code":"not_found"}"#.to_owned()),
        plan("SUCCEEDED", 1),
        tasks("SUCCEEDED", "null"),
    ];
    let heard = answering(listener, answers);
    let output = ended(fencepost(&["plan", "show", "p-1", "--url", &url, "-w"])).await;
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!out.contains('\u{1b}'), "{out}");
    let lines: Vec<_> = out.lines().filter(|line| line.starts_with("acme ")).collect();
    assert_eq!(
        lines,
        [
            "acme    RUNNING  1    2/2 check  -           7     k-1   its job waits: 2 are before it",
            "acme    RUNNING  1    2/2 check  -           7     k-1   -",
            "acme    RUNNING  1    2/2 check  -           7     k-1   -",
            "acme    SUCCEEDED  1    2/2    -           -     k-1   -"
        ],
        "{out}"
    );
    assert_eq!(heard.lock().len(), 11);
}

/// A plan without a task that runs, with this beside.
fn still(status: &str, attention: &str) -> (u16, String) {
    let (code, body) = plan(status, 0);
    let body = body.replace(r#""running":1"#, r#""running":0"#);
    (code, body.replace(r#""finished_at":null"#, &format!(r#""attention":[{attention}],"finished_at":null"#)))
}

#[tokio::test]
async fn a_plan_is_waited_for_until_nothing_follows_and_the_status_says_whether_it_succeeded() {
    let failed = r#"{"task":"k-1","tenant":"acme","status":"FAILED","reason":"stage check: no","stage":2,
        "stage_name":"check"}"#;
    let done = "plan p-1 is SUCCEEDED: 1 of 1 succeeded\n";
    // A task that a person must look at; another one runs on.
    let looked_at = vec![plan("RUNNING", 0), plan("ATTENTION", 0), still("ATTENTION", failed)];
    let why = "plan p-1 is ATTENTION: 0 of 1 succeeded\n  task k-1 of acme is FAILED: stage check: no\n  \
               `fencepost plan show p-1`";
    let waits = "plan p-1 is CREATED; `fencepost plan start p-1` starts it\nplan p-1 is PAUSED; `fencepost plan resume";
    let not_started =
        vec![still("CREATED", ""), still("CREATED", ""), still("PAUSED", ""), plan("SUCCEEDED", 1)];
    let unknown = r#"{"type":"t","title":"t","status":404,"detail":"d","code":"not_found"}"#.to_owned();
    for (answers, code, out, err) in [
        (vec![plan("SUCCEEDED", 1)], 0, done, ""),
        (not_started, 0, done, waits),
        (vec![still("CANCELLED", "")], 1, "", "plan p-1 is CANCELLED: 0 of 1 succeeded\n"),
        (looked_at, 1, "", why),
        (vec![plan("RUNNING", 0), LOST, plan("SUCCEEDED", 1)], 0, done, ""),
        (vec![(404, unknown)], 1, "", "not_found: d"),
    ] {
        let (stand_in, url) = listener().await;
        let asked = answers.len();
        let heard = answering(stand_in, answers);
        let output = ended(fencepost(&["plan", "wait", "p-1", "--url", &url])).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), &*String::from_utf8_lossy(&output.stdout)),
            (Some(code), out),
            "{said}"
        );
        assert!(said.contains(err), "{said}");
        assert_eq!(heard.lock().len(), asked);
    }
}

#[tokio::test]
async fn a_plan_that_has_not_ended_in_time_is_printed_for_programs() {
    // The first look, or the last one at the latest, sees it.
    let (stand_in, url) = listener().await;
    answering(stand_in, vec![plan("RUNNING", 0), plan("RUNNING", 0)]);
    let output =
        ended(fencepost(&["plan", "wait", "p-1", "--at-most", "500ms", "--json", "--url", &url])).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(plan["id"] == "p-1" && plan["status"] == "RUNNING", "{plan}");
    let says = "after 500 ms, plan p-1 is RUNNING: 0 of 1 succeeded, 1 running\n  `fencepost plan wait p-1` waits again";
    assert!(err.contains(says), "{err}");
}

#[tokio::test]
async fn the_checkpoints_of_a_task_are_listed_page_by_page() {
    let item = r#"{"version":2,"run":1,"completed_stages":["build"],"last_completed":1,"saved_at":"t","context":{"n":1}}"#;
    let page = |items: &str| (200, format!(r#"{{"items":[{items}],"next_cursor":"c.2"}}"#));
    // A node may write its context over several lines.
    let written = |context| item.replace(r#"{"n":1}"#, context);
    let two = format!("{item},{}", written("{\r\n  \"n\": 1\n}"));
    let (listener, url) = listener().await;
    let heard = answering(listener, vec![page(item), page(&two)]);
    let line = ["plan", "checkpoints", "k-1", "--limit", "1", "--cursor", "c.3", "--url", &url];
    let output = ended(fencepost(&line)).await;
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains("2        1    1 build      t      {\"n\":1}\n") && out.contains("c.2"), "{out}");
    let output = ended(fencepost(&["plan", "checkpoints", "k-1", "--json", "--url", &url])).await;
    let lines = format!("{item}\n{}\n", written(r#"{    "n": 1 }"#));
    assert_eq!(String::from_utf8_lossy(&output.stdout), lines);
    assert!(String::from_utf8_lossy(&output.stderr).contains("c.2"));
    assert_eq!(
        *heard.lock(),
        ["GET /v1/tasks/k-1/checkpoints?limit=1&cursor=c.3", "GET /v1/tasks/k-1/checkpoints"]
    );
}

#[tokio::test]
async fn the_stages_of_a_task_are_printed_as_a_retry_reads_them_and_nothing_of_them_is_lost() {
    // The second one is of a newer daemon. A payload is compared byte for byte, also with what a terminal would obey.
    let build =
        "{\"name\":\"build\",\"payload\":{ \"n\": 1.50, \"mark\":\"\u{200f}\" },\"timeout_ms\":60000}";
    let check = r#"{"name":"check","payload":2,"colour":"blue"}"#;
    let answer = |stages: &str| {
        let begin = r#"{"task":"k-1","run":1,"checkpoint_version":0,"definition":1,"stages":["#;
        (200, format!("{begin}{stages}]}}"))
    };
    let (stand_in, url) = listener().await;
    let both = format!("{build},{check}");
    let heard = answering(stand_in, vec![answer(&both), answer(&both), (202, task("FAILED", "1", ""))]);
    let output = ended(fencepost(&["plan", "stages", "k-1", "--url", &url])).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("[\n  {build},\n  {check}\n]\n"));
    let output = ended(fencepost(&["plan", "stages", "k-1", "--json", "--url", &url])).await;
    let line = answer(&both).1.replace('\u{200f}', "\\u200f") + "\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), line);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stages.json");
    std::fs::write(&file, format!("[\n  {build}\n]\n")).unwrap();
    let line = ["plan", "retry", "k-1", "--reason", "r", "--key", "k", "--stages", file.to_str().unwrap()];
    let output = ended(fencepost(&[&line[..], &["--url", &url]].concat())).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(heard.lock()[..2], ["GET /v1/tasks/k-1/stages"; 2]);
    assert!(heard.lock()[2].contains(&format!("\"stages\":[{build}]")), "{:?}", heard.lock());
}

#[tokio::test]
async fn a_stage_is_resolved_by_its_name() {
    let (listener, url) = listener().await;
    let heard = answering(listener, vec![(200, task("INTERRUPTED", "1", ""))]);
    let line =
        ["plan", "resolve", "k-1", "check", "not_done", "--job", "j-1", "--reason", "r", "--url", &url];
    let output = ended(fencepost(&line)).await;
    assert_eq!(
        output.stdout,
        b"task k-1 is INTERRUPTED; `fencepost plan retry k-1 --reason TEXT` opens its next run\n"
    );
    let asked = r#"POST /v1/tasks/k-1/stages/check/resolve {"outcome":"not_done","job":"j-1","reason":"r"}"#;
    assert_eq!(*heard.lock(), [asked]);
}

#[tokio::test]
async fn a_lock_is_broken_only_by_who_is_sure_and_a_refusal_says_who_holds_it() {
    let mut problem = wire::Problem::new(wire::Code::TenantLocked, "another task has the lock");
    (problem.tenant, problem.task) = (Some("acme".to_owned()), Some("k-2".to_owned()));
    let (listener, url) = listener().await;
    let refused = (409, serde_json::to_string(&problem).unwrap());
    let heard = answering(listener, vec![refused]);
    let line = ["tenant", "unlock", "acme", "--lock-token", "7", "--reason", "r", "--url", &url];
    let output = ended(fencepost(&line)).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains(" [y/N] \nfencepost: not confirmed, "), "{err}");
    assert!(heard.lock().is_empty());

    let output = ended(fencepost(&[&line[..], &["--yes"]].concat())).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let expected = "refused: tenant_locked: another task has the lock\n  tenant acme, task k-2\n";
    assert!(err.contains(expected), "{err}");
    assert_eq!(*heard.lock(), [r#"POST /v1/tenants/acme/unlock {"token":7,"reason":"r"}"#]);
}

#[tokio::test]
async fn a_retry_that_may_be_done_says_how_the_same_one_is_asked_for_again() {
    let failed = task("FAILED", "1", "");
    let tenant = format!(r#"{{"tenant":"acme","task":{failed},"has_checkpoint":false,"lock":null}}"#);
    for (words, seen) in [(["plan", "retry", "k-1"], failed.clone()), (["tenant", "retry", "acme"], tenant)] {
        let problem = wire::Problem::new(wire::Code::Unauthorized, "because");
        let refused = (401, serde_json::to_string(&problem).unwrap());
        let (stand_in, url) = listener().await;
        let heard = answering(stand_in, vec![(200, seen), LOST, refused]);
        let line = [&words[..], &["--reason", "r", "--url", &url]].concat();
        let output = ended(fencepost(&line)).await;
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{err}");
        let asked = heard.lock()[1..].to_vec();
        assert_eq!(asked[0], asked[1]);
        assert!(asked[0].contains(r#""expect":{"run":1,"checkpoint_version":0}"#), "{asked:?}");
        let (_, options) = err.split_once(" run the same command with ").expect("it says how");
        let options: Vec<_> = options.lines().next().unwrap().split(' ').collect();
        assert_eq!(options[0], "--key");

        let (stand_in, other) = listener().await;
        let heard = answering(stand_in, vec![(202, failed.clone())]);
        let again = [&words[..], &["--reason", "r", "--url", &other], options.as_slice()].concat();
        let output = ended(fencepost(&again)).await;
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(*heard.lock(), asked[..1]);
    }
}

#[tokio::test]
async fn a_dry_run_of_a_retry_that_fails_has_done_nothing() {
    let problem = wire::Problem::new(wire::Code::Unauthorized, "because");
    let refused = || (401, serde_json::to_string(&problem).unwrap());
    for words in [["plan", "retry", "k-1"], ["tenant", "retry", "acme"]] {
        let cases = [(vec![LOST, refused()], 1), (vec![(200, "no answer of a daemon".to_owned())], 69)];
        for (answers, status) in cases {
            let (stand_in, url) = listener().await;
            answering(stand_in, answers);
            let line = [&words[..], &["--reason", "r", "--dry-run", "--key", "k", "--url", &url]].concat();
            let output = ended(fencepost(&line)).await;
            let err = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{words:?}: {err}");
            assert!(!err.contains("may be retried"), "{words:?}: {err}");
        }
    }
}
