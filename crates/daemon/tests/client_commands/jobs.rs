//! `fencepost node` and `fencepost submit`.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use tokio_tungstenite::tungstenite::Message as Packet;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};
use wire::Json;
use wire::worker::{Dispatch, HeartbeatOk, Message, NodeFrame, Notice, SchedulerFrame, Welcome, close};

use crate::process::{
    LOST, PATIENCE, answering, answering_keys, answering_no_waits, asked, ended, fencepost, listener,
    unanswered_keys, unheard,
};

pub fn tell(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A node's connection, from the scheduler's end, with the frames that came and were not looked at.
pub struct Peer(WebSocketStream<TcpStream>, VecDeque<NodeFrame>);

impl Peer {
    pub async fn welcomed(listener: &TcpListener) -> Self {
        Self::welcomed_with(listener, "t-1").await
    }

    /// The same of a node that shows this token.
    pub async fn welcomed_with(listener: &TcpListener, token: &str) -> Self {
        let (stream, _) = tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        #[expect(clippy::result_large_err, reason = "the library's own shape")]
        let accept = |request: &Request, mut response: Response| {
            assert_eq!(request.headers()["authorization"], format!("Bearer {token}"));
            response.headers_mut().insert("sec-websocket-protocol", "fencepost.v1".parse().unwrap());
            Ok(response)
        };
        let mut peer = Self(accept_hdr_async(stream, accept).await.unwrap(), VecDeque::new());
        assert_eq!(peer.heard().await, "hello");
        let (node_id, instance) = ("n".to_owned(), "i".to_owned());
        peer.say(SchedulerFrame::Welcome(Welcome { node_id, instance, heartbeat_ms: 500, pools: None }))
            .await;
        peer
    }

    pub async fn say(&mut self, frame: SchedulerFrame) {
        self.0.send(Packet::text(Message::One(frame).to_text())).await.unwrap();
    }

    pub async fn dispatch(&mut self, job: &str) {
        let dispatch = Dispatch::new(job, 1, Json::of(job).unwrap(), 600_000);
        self.say(SchedulerFrame::Dispatch(dispatch)).await;
        assert_eq!(self.heard().await, "ack");
    }

    pub async fn commit(&mut self, job: &str) {
        self.say(SchedulerFrame::Committed(Notice { job: job.to_owned(), attempt: 1 })).await;
    }

    pub async fn close(&mut self, code: u16) {
        self.0.close(Some(CloseFrame { code: code.into(), reason: "".into() })).await.unwrap();
    }

    /// The next frame that is no heartbeat: a result as it is, of the others the type.
    pub async fn heard(&mut self) -> String {
        loop {
            match self.1.pop_front() {
                Some(NodeFrame::Heartbeat(_)) => {
                    self.say(SchedulerFrame::HeartbeatOk(HeartbeatOk::default())).await;
                }
                Some(result @ NodeFrame::Result(_)) => return Message::One(result).to_text(),
                Some(frame) => return frame.kind().to_owned(),
                None => {
                    let packet = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("a word in time");
                    let Some(Ok(Packet::Text(text))) = packet else { return "gone".to_owned() };
                    self.1 = Message::read(&text).unwrap().into_frames().into();
                }
            }
        }
    }
}

fn node(url: &str, script: &str) -> Child {
    fencepost(&["node", "--url", url, "--token", "t-1", "--node-id", "n", "--exec", "sh", "-c", script])
}

/// Waits for a file to have a line, and gives it.
async fn line_in(file: &std::path::Path) -> String {
    loop {
        match std::fs::read_to_string(file) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test]
async fn a_node_told_to_stop_finishes_what_it_has_and_exits_0() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let (listener, url) = listener().await;
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done; cat", go.display());
    let node = node(&url, &script);
    let mut peer = Peer::welcomed(&listener).await;
    peer.dispatch("a").await;
    tell(&node, Signal::TERM);
    assert_eq!(peer.heard().await, "drain");
    std::fs::write(&go, "").unwrap();
    assert_eq!(peer.heard().await, r#"{"type":"result","job":"a","attempt":1,"ok":true,"output":"a"}"#);
    peer.commit("a").await;
    assert_eq!(peer.heard().await, "gone");
    let output = ended(node).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_node_stops_what_runs_when_the_time_of_its_drain_is_over() {
    let (listener, url) = listener().await;
    let node = fencepost(&[
        "node",
        "--url",
        &url,
        "--token",
        "t-1",
        "--drain-at-most",
        "0s",
        "--exec",
        "sleep",
        "600",
    ]);
    let mut peer = Peer::welcomed(&listener).await;
    peer.dispatch("a").await;
    tell(&node, Signal::TERM);
    assert_eq!(peer.heard().await, "drain");
    // Without the option it would have as long as [`PATIENCE`].
    let result = tokio::time::timeout(PATIENCE / 2, peer.heard()).await.expect("it is stopped");
    let why = r#""message":"the node stopped before the attempt had finished""#;
    assert!(result.contains(why) && result.contains(r#""ok":false"#), "{result}");
    peer.commit("a").await;
    assert_eq!(peer.heard().await, "gone");
    assert_eq!(ended(node).await.status.code(), Some(0));
}

#[tokio::test]
async fn a_node_whose_options_no_daemon_takes_exits_2_before_it_connects_and_names_them() {
    // Nobody answers there.
    let (_listener, url) = listener().await;
    let (long, language) = ("l".repeat(65), "z".repeat(36));
    for (option, value, named) in [
        ("--label", long.as_str(), "label"),
        ("--label", "é", "label"),
        ("--asr", language.as_str(), "asr"),
        ("--node-id", "a b", "node_id"),
    ] {
        let node = fencepost(&["node", "--url", &url, "--token", "t-1", option, value, "--exec", "cat"]);
        let output = ended(node).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option}: {said}");
        assert!(said.contains(&format!("{named} {value:?} must be")), "{option}: {said}");
    }
}

#[tokio::test]
async fn a_hangup_ends_neither_a_node_nor_what_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let (listener, url) = listener().await;
    let node = node(&url, &format!("while [ ! -e {} ]; do sleep 0.01; done; cat", go.display()));
    let mut peer = Peer::welcomed(&listener).await;
    peer.dispatch("a").await;
    tell(&node, Signal::HUP);
    // It still drains on SIGTERM: the hangup was dealt with before.
    tell(&node, Signal::TERM);
    assert_eq!(peer.heard().await, "drain");
    std::fs::write(&go, "").unwrap();
    assert_eq!(peer.heard().await, r#"{"type":"result","job":"a","attempt":1,"ok":true,"output":"a"}"#);
    peer.commit("a").await;
    assert_eq!(ended(node).await.status.code(), Some(0));
}

#[tokio::test]
async fn a_node_whose_command_lacks_its_program_or_a_variable_does_not_start() {
    let (_listener, url) = listener().await;
    let cases: [(&[&str], &str); 3] = [
        (&["--exec", "no-such-program-here"], "there is no program \"no-such-program-here\""),
        (&["--env", "PATH", "--env", "NO_SUCH", "--exec", "cat"], "has no variable \"NO_SUCH\""),
        (&["--env", "PATH=/bin", "--exec", "cat"], "has no variable \"PATH=/bin\""),
    ];
    for (words, why) in cases {
        let output = ended(fencepost(&[&["node", "--url", &url], words].concat())).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {err}");
        assert!(err.contains(why), "{words:?}: {err}");
    }
}

#[tokio::test]
async fn a_second_signal_ends_a_node_at_once_and_what_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let (listener, url) = listener().await;
    let node = node(&url, &format!("trap '' TERM; echo $$ > {}; while :; do sleep 60; done", file.display()));
    let mut peer = Peer::welcomed(&listener).await;
    peer.dispatch("a").await;
    let pid = line_in(&file).await;
    tell(&node, Signal::TERM);
    assert_eq!(peer.heard().await, "drain");
    // What follows at once is taken for an echo.
    tokio::time::sleep(Duration::from_millis(300)).await;
    tell(&node, Signal::TERM);
    assert_eq!(ended(node).await.status.code(), Some(143));
    while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_node_that_is_replaced_exits_1_and_says_why() {
    let (listener, url) = listener().await;
    let node = node(&url, "cat");
    let mut peer = Peer::welcomed(&listener).await;
    peer.close(close::REPLACED).await;
    let output = ended(node).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--node-id"));
}

fn accepted() -> (u16, String) {
    (202, r#"{"id":"j-1","state":"CREATED","lane":"l","created_at":"t"}"#.to_owned())
}

fn finished(outcome: &str, result: &str, error: &str) -> (u16, String) {
    let body = format!(
        r#"{{"id":"j-1","state":"FINISHED","outcome":"{outcome}","lane":"l","session":null,"seq":null,"tenant":null,
        "pool":null,"route":null,"requires":[],"priority":0,"timeout_ms":1,"attempt":3,"max_attempts":3,"node":null,
        "payload":1,"result":{result},"error":{error},"dead":false,"progress":null,"created_at":"t","run_at":null,
        "dispatched_at":null,"running_at":null,"finished_at":null,"released_at":null,"retry_of":null,"retried_as":null,"attempts":[]}}"#
    );
    (200, body)
}

pub fn created() -> (u16, String) {
    let (status, body) = finished("failed", "null", "null");
    let body = body.replace("FINISHED", "CREATED").replace("\"outcome\":\"failed\"", "\"outcome\":null");
    (status, body.replace("\"attempt\":3", "\"attempt\":0"))
}

#[tokio::test]
async fn a_submit_prints_the_id_or_the_result_and_exits_1_when_the_job_fails() {
    let (status, cancelled) = finished("cancelled", "null", "\"cancelled\"");
    let cases = [
        (vec![accepted()], vec![], 0, "j-1\n", ""),
        (
            vec![accepted(), (status, cancelled.replace("\"attempt\":3", "\"attempt\":0"))],
            vec!["--wait"],
            1,
            "",
            "job j-1 cancelled before its first attempt\n",
        ),
        (
            vec![accepted(), finished("succeeded", r#"{ "a": 1.0 }"#, "null")],
            vec!["--wait"],
            0,
            "{ \"a\": 1.0 }\n",
            "job j-1 is accepted",
        ),
        (
            vec![accepted(), finished("failed", "null", "\"no luck\"")],
            vec!["--wait"],
            1,
            "",
            "job j-1 failed after 3 of 3 attempts: no luck",
        ),
        (
            vec![accepted(), finished("failed", "null", r#""a\u001b[2J\nb""#)],
            vec!["--wait"],
            1,
            "",
            "fencepost: job j-1 failed after 3 of 3 attempts: a [2J b\n",
        ),
        (
            vec![(409, serde_json::to_string(&wire::Problem::new(wire::Code::Conflict, "closed")).unwrap())],
            vec![],
            1,
            "",
            "conflict",
        ),
    ];
    for (answers, options, status, stdout, stderr) in cases {
        let (listener, url) = listener().await;
        answering(listener, answers);
        let words = [&["submit", "--url", &url, "hello"], options.as_slice()].concat();
        let output = ended(fencepost(&words)).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), out.as_ref()), (Some(status), stdout), "{words:?}: {err}");
        assert!(err.contains(stderr), "{words:?}: {err}");
    }
}

#[tokio::test]
async fn a_job_that_ends_at_the_limit_of_a_wait_has_ended_in_time() {
    for (last, status, stdout, stderr) in [
        (finished("succeeded", "7", "null"), 0, "7\n", ""),
        (finished("failed", "null", "\"no luck\""), 1, "", "job j-1 failed after 3 of 3 attempts: no luck"),
        (created(), 1, "", "job j-1 is CREATED after 500 ms"),
    ] {
        let (listener, url) = listener().await;
        answering_no_waits(listener, vec![created(), last]);
        let output = ended(fencepost(&["job", "wait", "j-1", "--at-most", "500ms", "--url", &url])).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), out.as_ref()), (Some(status), stdout), "{err}");
        assert!(err.contains(stderr), "{err}");
    }
}

#[tokio::test]
async fn a_wait_for_a_job_of_a_daemon_that_hangs_ends_at_its_limit() {
    let (listener, url) = listener().await;
    let child = fencepost(&["job", "wait", "j-1", "--at-most", "500ms", "--url", &url]);
    // Only the look at the end of the wait is answered.
    let (_unanswered, _) = tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    answering(listener, vec![created()]);
    let output = ended(child).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("job j-1 is CREATED after 500 ms"), "{err}");
}

#[tokio::test]
async fn a_job_that_has_not_ended_in_time_is_printed_for_programs() {
    let (listener, url) = listener().await;
    answering_no_waits(listener, vec![created(), created()]);
    let words = ["job", "wait", "j-1", "--at-most", "500ms", "--json", "--url", &url];
    let output = ended(fencepost(&words)).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let job: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(job["id"] == "j-1" && job["state"] == "CREATED", "{job}");
    assert!(err.contains("job j-1 is CREATED after 500 ms"), "{err}");
}

#[tokio::test]
async fn a_job_that_cannot_be_seen_at_the_end_of_a_wait_is_a_failure_for_programs() {
    let (listener, url) = listener().await;
    answering_no_waits(listener, vec![created(), refused(wire::Code::NotFound)]);
    let words = ["job", "wait", "j-1", "--at-most", "500ms", "--json", "--url", &url];
    let output = ended(fencepost(&words)).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{err}");
    let failure: serde_json::Value = serde_json::from_slice(&output.stderr).expect(&err);
    assert!(failure["id"] == "j-1", "{failure}");
    assert!(
        failure["error"].as_str().unwrap().contains("has not ended after 500 ms (not_found"),
        "{failure}"
    );
}

/// What a session is shown as.
fn session(id: &str, closed_at: &str) -> String {
    format!(
        r#"{{"id":"{id}","owner":null,"tenant":null,"ordering":"none","route":null,"pool":null,"requires":[],"idle_ms":1,
        "idle_for_ms":1,"created_at":"t","closed_at":{closed_at},"last_seq":1,"last_node":null,
        "jobs":{{"created":0,"dispatched":0,"running":0,"finished":1}}}}"#
    )
}

/// The words of a command, what it is answered, its exit status and its output.
type Case<'a> = (&'a [&'a str], Vec<(u16, String)>, i32, &'a str);

#[tokio::test]
async fn a_dry_run_about_a_named_job_only_looks() {
    let failed = |fields: &str| {
        let (status, body) = finished("failed", "null", "\"no\"");
        (status, body.replace("\"dead\":false", fields))
    };
    let dismissed = "\"dead\":false,\"dismissed_at\":\"t\"";
    let (status, body) = failed(dismissed);
    let of_plan = (status, body.replace("\"lane\":\"l\"", "\"lane\":\"plan:p\""));
    let cases = [
        ("dismiss", failed("\"dead\":true"), "would be dismissed: failed (dead), attempt 3: no"),
        ("dismiss", failed(dismissed), "stays as it is: failed, attempt 3: no"),
        (
            "dismiss",
            failed("\"dead\":false"),
            "would be refused, since it is not dead: failed, attempt 3: no",
        ),
        ("delete", failed(dismissed), "would be deleted: failed, attempt 3: no"),
        ("delete", created(), "would be refused, since it has not ended: CREATED"),
        ("retry", failed(dismissed), "would be retried: failed, attempt 3: no"),
        ("retry", created(), "would be refused, since it has not ended: CREATED"),
        ("retry", of_plan, "would be refused, since it is a stage of a plan: failed, attempt 3: no"),
    ];
    for (command, answer, becomes) in cases {
        let (listener, url) = listener().await;
        let heard = answering(listener, vec![answer]);
        let output = ended(fencepost(&["job", command, "j-1", "--dry-run", "--url", &url])).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let said = format!("job j-1 {becomes}\nnothing was changed\n");
        assert_eq!((output.status.code(), out.as_ref()), (Some(0), said.as_str()), "{command}: {err}");
        assert_eq!(*heard.lock(), ["GET /v1/jobs/j-1"], "{command}");
    }
    // The session of a job takes its retry, or refuses it.
    for (closed_at, becomes) in
        [("null", "would be retried"), ("\"t\"", "would be refused, since its session is closed")]
    {
        let (listener, url) = listener().await;
        let (status, body) = failed(dismissed);
        let of_session = (status, body.replace("\"session\":null", "\"session\":\"s-1\""));
        let heard = answering(listener, vec![of_session, (200, session("s-1", closed_at))]);
        let output = ended(fencepost(&["job", "retry", "j-1", "--dry-run", "--url", &url])).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let said = format!("job j-1 {becomes}: failed, attempt 3: no\nnothing was changed\n");
        assert_eq!((output.status.code(), out.as_ref()), (Some(0), said.as_str()), "{closed_at}: {err}");
        assert_eq!(*heard.lock(), ["GET /v1/jobs/j-1", "GET /v1/sessions/s-1"], "{closed_at}");
    }
}

#[tokio::test]
async fn a_dry_run_by_filter_asks_for_all_that_a_retry_selects_and_reads_no_session() {
    let (listener, url) = listener().await;
    let of = |id: &str, session: &str| {
        let (_, body) = finished("failed", "null", "\"no\"");
        body.replace("j-1", id).replace("\"session\":null", &format!("\"session\":{session}"))
    };
    let page = |items: [String; 2], next: &str| {
        (200, format!(r#"{{"items":[{}],"next_cursor":{next}}}"#, items.join(",")))
    };
    let first = page([of("j-1", "\"s-1\""), of("j-2", "null")], "\"c\"");
    let second = page([of("j-3", "\"s-2\""), of("j-4", "\"s-1\"")], "null");
    let heard = answering(listener, vec![first, second]);
    let output = ended(fencepost(&["job", "retry", "--dead", "--dry-run", "--json", "--url", &url])).await;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(["j-1", "j-2", "j-3", "j-4"].iter().all(|id| out.contains(id)), "{out}");
    let heard = heard.lock();
    assert_eq!(heard.len(), 2, "{heard:?}");
    for asked in &*heard {
        assert!(asked.starts_with("GET /v1/jobs?") && asked.contains("dead=true"), "{asked}");
        assert!(asked.contains("limit=1000") && asked.contains("retriable=true"), "{asked}");
    }
}

#[tokio::test]
async fn a_dry_run_about_several_ids_looks_at_each_and_changes_none() {
    let node = |id: &str, state: &str| {
        let body = format!(
            r#"{{"id":"{id}","state":"{state}","instance":"i","capacity":2,"used":1,"labels":[],"pools":[],"load":null,
            "version":null,"seen_at":"t"}}"#
        );
        (200, body)
    };
    let retried = "job j-1 would be retried: succeeded, attempt 3\n";
    let cases = [
        (
            ["nodes", "undrain"],
            vec![node("a", "draining"), node("b", "online")],
            "node a would be undrained: draining, 1 of 2 slots taken\nnode b stays as it is: online, 1 of 2 slots taken\n"
                .to_owned(),
            ["GET /v1/nodes/a", "GET /v1/nodes/b"],
        ),
        (
            ["job", "retry"],
            vec![finished("succeeded", "1", "null"), finished("succeeded", "1", "null")],
            retried.repeat(2),
            ["GET /v1/jobs/a", "GET /v1/jobs/b"],
        ),
    ];
    for (command, answers, said, asked) in cases {
        let (listener, url) = listener().await;
        let heard = answering(listener, answers);
        let words = [command.as_slice(), &["a", "b", "--dry-run", "--url", &url]].concat();
        let output = ended(fencepost(&words)).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let said = said + "nothing was changed\n";
        assert_eq!((output.status.code(), out.as_ref()), (Some(0), said.as_str()), "{words:?}: {err}");
        assert_eq!(*heard.lock(), asked, "{words:?}");
    }
}

#[tokio::test]
async fn a_dry_run_that_is_refused_prints_what_it_found_alone() {
    let missing = (404, serde_json::to_string(&wire::Problem::new(wire::Code::NotFound, "no")).unwrap());
    let found = "job j-1 would be retried: succeeded, attempt 3\nnothing was changed\n";
    for (ids, answers, said) in [
        (["a"].as_slice(), vec![missing.clone()], ""),
        (["a", "b"].as_slice(), vec![missing.clone(), missing.clone()], ""),
        (["a", "b"].as_slice(), vec![missing, finished("succeeded", "1", "null")], found),
    ] {
        let (listener, url) = listener().await;
        let heard = answering(listener, answers);
        let words = [["job", "retry"].as_slice(), ids, &["--dry-run", "--url", &url]].concat();
        let output = ended(fencepost(&words)).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), out.as_ref()), (Some(1), said), "{words:?}: {err}");
        assert_eq!(heard.lock().len(), ids.len(), "{words:?}");
    }
}

#[tokio::test]
async fn a_command_whose_stderr_cannot_be_written_does_what_it_should() {
    let missing = (404, serde_json::to_string(&wire::Problem::new(wire::Code::NotFound, "no")).unwrap());
    let page = (200, r#"{"items":[],"next_cursor":"c"}"#.to_owned());
    let cases: [Case<'_>; 4] = [
        (&["job", "show", "j-1", "--json"], vec![missing.clone()], 1, ""),
        (&["job", "show", "j-1"], vec![missing], 1, ""),
        (&["job", "list", "--json"], vec![page], 0, ""),
        (&["submit", "--wait", "x"], vec![accepted(), finished("succeeded", "7", "null")], 0, "7\n"),
    ];
    for (words, answers, status, stdout) in cases {
        let (listener, url) = listener().await;
        answering(listener, answers);
        let output = ended(unheard(&[words, &["--url", &url]].concat())).await;
        let out = String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.code(), out.as_ref()), (Some(status), stdout), "{words:?}");
    }
}

fn refused(code: wire::Code) -> (u16, String) {
    (code.status(), serde_json::to_string(&wire::Problem::new(code, "because")).unwrap())
}

#[tokio::test]
async fn of_several_ids_each_failure_names_its_own_and_those_that_were_not_tried_are_named() {
    for command in [["job", "cancel"], ["session", "close"], ["nodes", "drain"], ["nodes", "undrain"]] {
        let failures = async |options: &[&str]| {
            let (listener, url) = listener().await;
            // What answers the second is no daemon.
            answering(listener, vec![refused(wire::Code::NotFound), (500, "broken".to_owned())]);
            let words = [command.as_slice(), &["a-1", "a-2", "a-3", "--url", &url], options].concat();
            let output = ended(fencepost(&words)).await;
            let err = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(69), &b""[..]), "{err}");
            err
        };
        let told = failures(&[]).await;
        assert!(told.starts_with("fencepost: a-1: refused: not_found: because\n"), "{told}");
        assert!(told.contains("\nfencepost: a-2: ") && told.ends_with("\n  not tried: a-3\n"), "{told}");

        let told = failures(&["--json"]).await;
        let lines: Vec<serde_json::Value> =
            told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [refused, lost, untried] = lines.as_slice() else { panic!("{told}") };
        assert_eq!((&refused["id"], &refused["code"]), (&"a-1".into(), &"not_found".into()), "{told}");
        assert!(lost["id"] == "a-2" && lost["error"].is_string(), "{told}");
        assert_eq!(untried, &serde_json::json!({"id": "a-3", "error": "not tried"}));
    }
}

#[tokio::test]
async fn a_batch_is_submitted_again_under_its_key_while_jobs_of_it_are_refused_for_now() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.jsonl");
    std::fs::write(&file, "{\"payload\":1}\n{\"payload\":2}\n").unwrap();
    let name = file.to_str().unwrap();
    let batch = |second: &str| (202, format!(r#"{{"results":[{{"id":"j-1"}},{second}]}}"#));
    let (listener, url) = listener().await;
    let full = batch(r#"{"code":"overloaded","detail":"full"}"#);
    let heard = answering_keys(listener, vec![full, batch(r#"{"id":"j-2"}"#)]);
    let output = ended(fencepost(&["submit", "-f", name, "--key", "k", "--url", &url])).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), b"j-1\nj-2\n".as_slice()),
        "{err}"
    );
    assert!(err.contains("overloaded: full; trying again"), "{err}");
    assert_eq!(*heard.lock(), ["k.1", "k.1"]);
}

#[tokio::test]
async fn a_job_of_a_batch_that_was_accepted_stays_so_whatever_its_repetition_is_answered() {
    let full = r#"{"code":"overloaded","detail":"full"}"#;
    let batch = |first: &str, second: &str| (202, format!(r#"{{"results":[{first},{second}]}}"#));
    let (first, second) = (r#"{"id":"j-1"}"#, r#"{"id":"j-2"}"#);
    let lines = "{\"payload\":1}\n{\"payload\":2}\n";
    let submit = async |answers: Vec<(u16, String)>| {
        let (listener, url) = listener().await;
        answering_keys(listener, answers);
        let output = ended(asked(&["submit", "-f", "-", "--url", &url], lines)).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), out.into_owned(), err.into_owned())
    };
    // The daemon refuses a repetition before it knows its key.
    let (status, out, err) = submit(vec![batch(first, full), batch(full, second)]).await;
    assert_eq!((status, out.as_str()), (Some(0), "j-1\nj-2\n"), "{err}");
    let (status, out, err) = submit(vec![batch(full, second), refused(wire::Code::Unauthorized)]).await;
    assert_eq!((status, out.as_str()), (Some(1), "j-2\n"), "{err}");
    let says = "1 jobs are accepted; the rest of the batch from line 1 on is not. To continue ";
    assert!(err.contains(says), "{err}");
}

#[tokio::test]
async fn a_batch_that_may_be_accepted_does_not_end_as_refused() {
    let unauthorized = || refused(wire::Code::Unauthorized);
    let (listener, url) = listener().await;
    // The first call ends with the second answer, and is made again.
    let heard = answering_keys(listener, vec![LOST, unauthorized(), unauthorized()]);
    let words = ["submit", "-f", "-", "--key", "k", "--url", &url];
    let output = ended(asked(&words, "{\"payload\":1}\n")).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{err}");
    assert_eq!(*heard.lock(), ["k.1", "k.1", "k.1"]);
    let says = "0 jobs are accepted; the batch from line 1 on is not known to be. To continue ";
    assert!(err.contains(says) && err.contains(" with --key k\n"), "{err}");
}

#[tokio::test]
async fn a_file_whose_command_is_killed_is_continued_under_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.jsonl");
    std::fs::write(&file, "{\"payload\":1}\n").unwrap();
    let cases: [&[&str]; 2] = [&[], &["--key", "k"]];
    for given in cases {
        let (listener, url) = listener().await;
        let heard = unanswered_keys(listener);
        let words = [&["submit", "-f", file.to_str().unwrap(), "--url", &url], given].concat();
        let child = fencepost(&words);
        while heard.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Not SIGINT: a test that a script runs in the background has its commands ignore that.
        tell(&child, Signal::TERM);
        let output = ended(child).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), None, "{err}");
        let key = heard.lock()[0].strip_suffix(".1").unwrap().to_owned();
        let note = format!(
            "if this is interrupted, within 24 h (nonce.key_retention_ms) the same command with --key {key} continues it\n"
        );
        assert_eq!(err, if given.is_empty() { note.as_str() } else { "" });
    }
}

#[tokio::test]
async fn a_command_that_creates_something_names_its_key_where_that_may_be_done() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    std::fs::write(&file, r#"{"tasks": [{"tenant": "acme", "stages": [{"name": "build", "payload": 1}]}]}"#)
        .unwrap();
    let cases: [&[&str]; 7] = [
        &["submit", "x"],
        &["job", "retry", "j-1"],
        &["job", "retry", "--dead"],
        &["job", "bulk", "dismiss", "--dead"],
        &["session", "open"],
        &["nonce", "grant", "s"],
        &["plan", "create", "-f", file.to_str().unwrap()],
    ];
    for words in cases {
        let (listener, url) = listener().await;
        let heard = answering_keys(listener, vec![LOST, refused(wire::Code::Unauthorized)]);
        let output = ended(fencepost(&[words, &["--url", &url]].concat())).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{words:?}: {err}");
        let heard = heard.lock();
        assert_eq!((heard.len(), &heard[0]), (2, &heard[1]), "{words:?}");
        let says = format!(". To have it once, run the same command with --key {}\n", heard[0]);
        assert!(!heard[0].is_empty() && err.contains(&says), "{words:?}: {err}");
        assert!(err.contains("; then unauthorized: because"), "{words:?}: {err}");
    }
    // A job's name in its session is its key.
    let (listener, url) = listener().await;
    let heard = answering_keys(listener, vec![LOST, refused(wire::Code::Unauthorized)]);
    let words = ["submit", "--session", "s", "--ref", "r", "x", "--url", &url];
    let output = ended(fencepost(&words)).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{err}");
    assert!(err.contains("The job may be accepted. To have it once, run the same command\n"), "{err}");
    assert_eq!(*heard.lock(), ["", ""]);
}

#[tokio::test]
async fn a_bulk_operation_that_may_be_under_way_is_repeated_as_it_was_asked_for() {
    let counted = (202, r#"{"id":null,"matched":2,"before":"2026-01-01T00:00:00Z"}"#.to_owned());
    let (stand_in, url) = listener().await;
    let heard = answering(stand_in, vec![counted, LOST, refused(wire::Code::Unauthorized)]);
    let words = ["job", "bulk", "delete", "--dead", "--before", "2027-01-01T00:00:00Z", "--url", &url];
    let output = ended(asked(&words, "y\n")).await;
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(69), "{err}");
    let (_, options) = err.split_once(" run the same command with ").expect("it says how");
    let options: Vec<_> = options.lines().next().unwrap().split(' ').collect();
    let sent = heard.lock()[1].clone();
    assert!(sent.contains(r#""before":"2026-01-01T00:00:00Z""#), "{sent}");

    let (stand_in, other) = listener().await;
    let heard = answering(stand_in, vec![(202, r#"{"id":"b-1","matched":2}"#.to_owned())]);
    let again = [&words[..6], &["--url", &other, "--no-wait"], options.as_slice()].concat();
    let output = ended(fencepost(&again)).await;
    assert_eq!(output.stdout, b"b-1\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(*heard.lock(), [sent.as_str()], "nothing is asked again");

    // Whether it was begun or not, no job may match by then. Without --yes that is asked about too.
    let (yes, options) = options.split_last().unwrap();
    assert_eq!(*yes, "--yes");
    for (answer, is_begun) in [("", false), ("y\n", true)] {
        let none = (202, r#"{"id":null,"matched":0,"before":"2026-01-01T00:00:00Z"}"#.to_owned());
        let (stand_in, other) = listener().await;
        let heard = answering(stand_in, vec![none, (202, r#"{"id":"b-1","matched":2}"#.to_owned())]);
        let again = [&words[..6], &["--url", &other, "--no-wait"], options].concat();
        let output = ended(asked(&again, answer)).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(if is_begun { 0 } else { 2 }), "{err}");
        assert!(err.contains("No job matches now. "), "{err}");
        assert_eq!(heard.lock().get(1), is_begun.then_some(&sent), "{err}");
    }
}

#[tokio::test]
async fn a_bulk_operation_under_a_key_is_asked_about_only_with_the_time_before_which_its_jobs_came() {
    let counted = || (202, r#"{"id":null,"matched":2,"before":"2026-01-01T00:00:00Z"}"#.to_owned());
    let begun = || (202, r#"{"id":"b-1","matched":2}"#.to_owned());
    for (action, does) in [("cancel", "cancelled"), ("delete", "deleted")] {
        let (stand_in, url) = listener().await;
        let heard = answering(stand_in, vec![counted(), begun()]);
        let words = ["job", "bulk", action, "--kind", "k", "--key", "k", "--no-wait", "--url", &url];
        let output = ended(asked(&words, "y\n")).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{action}: {err}");
        assert!(err.contains("give --before or --yes") && err.contains(&format!("is {does} too")), "{err}");
        assert!(heard.lock().is_empty(), "{action}");
    }
}

#[tokio::test]
async fn a_bulk_operation_under_a_key_is_not_asked_about_up_to_a_time_that_is_to_come() {
    for (before, is_to_come) in [("2099-01-01T00:00:00Z", true), ("2026-01-01T01:00:00.0000009+01:00", false)]
    {
        let counted = (202, r#"{"id":null,"matched":2,"before":"2026-01-01T00:00:00.000000Z"}"#.to_owned());
        let (stand_in, url) = listener().await;
        let heard = answering(stand_in, vec![counted, (202, r#"{"id":"b-1","matched":2}"#.to_owned())]);
        let words = ["job", "bulk", "delete", "--kind", "k", "--key", "k", "--before", before, "--no-wait"];
        let output = ended(asked(&[&words[..], &["--url", &url]].concat(), "y\n")).await;
        let err = String::from_utf8_lossy(&output.stderr);
        let (status, requests) = if is_to_come { (2, 1) } else { (0, 2) };
        assert_eq!((output.status.code(), heard.lock().len()), (Some(status), requests), "{err}");
        assert_eq!(err.contains("--before is in the future"), is_to_come, "{err}");
    }
}

#[tokio::test]
async fn a_change_that_an_earlier_attempt_may_have_made_does_not_end_as_refused() {
    let (listener, url) = listener().await;
    answering(listener, vec![LOST, refused(wire::Code::NotFound)]);
    let output = ended(fencepost(&["job", "delete", "j-1", "--yes", "--url", &url])).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{err}");
    assert!(err.contains("was lost: ") && err.contains("; then not_found: because"), "{err}");
}
