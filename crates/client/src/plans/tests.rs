//! What the calls about plans ask for, against a stand-in that plays a script.

use wire::Json;
use wire::plans::{RetryFrom, RetryPoint, StageOutcome, StageRequest, TaskRequest};
use wire::{Code, limits::LIST_ITEMS_MAX};

use super::*;
use crate::Error;
use crate::transport::stand_in::{Act, StandIn, client, header, refused};

const PLAN: &str = r#"{"id":"p","name":null,"status":"CREATED","max_concurrency":5,"on_failure":"stop_new","timeout_ms":1,"intent":"run","halted":false,"over_time":false,"progress":{"total":1,"pending":1,"running":0,"succeeded":0,"failed":0,"paused":0,"interrupted":0,"cancelled":0},"created_at":"t","started_at":null,"finished_at":null}"#;
const TASK: &str = r#"{"id":"k","plan":"p","place":1,"tenant":"t","name":null,"status":"FAILED","intent":"run","reason":"r","run":2,"run_at":"t","timeout_ms":1,"definition":1,"stage":1,"stages":[{"name":"s","status":"FAILED","job":"j"}],"has_checkpoint":false,"checkpoint":null,"checkpoint_version":3,"lock":null,"waits_for":null,"updated_at":"t"}"#;

fn plan() -> Act {
    Act::Answer(200, "", PLAN.to_owned())
}

fn task() -> Act {
    Act::Answer(200, "", TASK.to_owned())
}

fn tenant() -> Act {
    let body = format!(r#"{{"tenant":"t","task":{TASK},"has_checkpoint":false,"lock":null}}"#);
    Act::Answer(200, "", body)
}

fn list() -> Act {
    Act::Answer(200, "", r#"{"items":[],"next_cursor":null}"#.to_owned())
}

/// The first line of each request without its version, and its body.
fn asked(server: &StandIn) -> Vec<String> {
    let line = |request: &String| {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
        if body.is_empty() { line.to_owned() } else { format!("{line} {body}") }
    };
    server.heard().iter().map(line).collect()
}

#[tokio::test]
async fn a_plan_is_created_once_under_one_key() {
    let server = StandIn::playing(vec![Act::HangUp, plan(), plan()]).await;
    let client = client(&[&server]);
    let stages = vec![StageRequest::new("s", Json::of(&1).unwrap())];
    let request = PlanRequest { start: Some(true), ..PlanRequest::new(vec![TaskRequest::new("t", stages)]) };
    assert_eq!(client.plans().create(&request, None).await.unwrap().id, "p");
    client.plans().create(&request, Some("mine")).await.unwrap();
    let body = r#"{"start":true,"tasks":[{"tenant":"t","stages":[{"name":"s","payload":1}]}]}"#;
    assert_eq!(asked(&server), vec![format!("POST /v1/plans {body}"); 3]);
    let keys: Vec<_> =
        server.heard().iter().map(|request| header(request, "Idempotency-Key").unwrap()).collect();
    assert_eq!(keys[0], keys[1]);
    assert_eq!(keys[2], "mine");
}

#[tokio::test]
async fn a_plan_is_waited_for_until_it_has_ended_or_needs_somebody() {
    let in_status = |status: &str| Act::Answer(200, "", PLAN.replace("CREATED", status));
    for end in ["SUCCEEDED", "CANCELLED", "ATTENTION"] {
        let server = StandIn::playing(vec![in_status("RUNNING"), Act::HangUp, in_status(end)]).await;
        let plan = client(&[&server]).plans().wait("p", Duration::from_secs(60)).await.unwrap();
        assert_eq!(plan.status.as_str(), end);
        assert_eq!(asked(&server), ["GET /v1/plans/p"; 3]);
    }
    let server = StandIn::playing(vec![in_status("PAUSED")]).await;
    let plan = client(&[&server]).plans().wait("p", Duration::ZERO).await.unwrap();
    assert_eq!(plan.status, PlanStatus::Paused);
}

#[tokio::test]
async fn plans_are_steered_and_read_by_their_ids() {
    let script = vec![plan(), plan(), plan(), plan(), plan(), plan(), list(), list(), list()];
    let server = StandIn::playing(script).await;
    let client = client(&[&server]);
    let plans = client.plans();
    plans.start("p", None).await.unwrap();
    plans.pause("p", Some("look")).await.unwrap();
    plans.resume("p", None).await.unwrap();
    plans.resume_but_paused("p", None).await.unwrap();
    plans.cancel("p", None).await.unwrap();
    plans.get("p").await.unwrap();
    let page = Page { limit: Some(LIST_ITEMS_MAX), cursor: Some("c".to_owned()) };
    plans.list(&PlanQuery { status: Some(PlanStatus::Attention), page: Page::default() }).await.unwrap();
    plans.tasks("p", &TaskQuery { status: Some(TaskStatus::Failed), page: page.clone() }).await.unwrap();
    plans.events("p", &page).await.unwrap();
    assert_eq!(
        asked(&server),
        [
            "POST /v1/plans/p/start {}",
            r#"POST /v1/plans/p/pause {"reason":"look"}"#,
            "POST /v1/plans/p/resume {}",
            r#"POST /v1/plans/p/resume {"keep_paused":true}"#,
            "POST /v1/plans/p/cancel {}",
            "GET /v1/plans/p",
            "GET /v1/plans?status=ATTENTION",
            "GET /v1/plans/p/tasks?limit=1000&cursor=c&status=FAILED",
            "GET /v1/plans/p/events?limit=1000&cursor=c",
        ]
    );
}

#[tokio::test]
async fn tasks_and_tenants_are_steered_and_read_by_their_ids() {
    let stage = r#"{"name":"s","payload":{ "a":1.0 },"colour":"blue"}"#;
    let definition =
        format!(r#"{{"task":"k","run":2,"checkpoint_version":3,"definition":1,"stages":[{stage}]}}"#);
    let mut script = vec![task(), task(), task(), task(), task(), Act::Answer(200, "", definition)];
    script.extend([list(), list(), task(), tenant(), list(), tenant()]);
    let server = StandIn::playing(script).await;
    let client = client(&[&server]);
    let (tasks, tenants, page) = (client.tasks(), client.tenants(), Page::default());
    tasks.get("k").await.unwrap();
    tasks.pause("k", None).await.unwrap();
    tasks.resume("k", None).await.unwrap();
    tasks.cancel("k", Some("no")).await.unwrap();
    tasks.cancel_run("k", 2, None).await.unwrap();
    let shown = tasks.stages("k").await.unwrap();
    assert_eq!((shown.run, shown.stages[0].as_str()), (2, stage), "nothing of a newer daemon is lost");
    tasks.checkpoints("k", &page).await.unwrap();
    tasks.events("k", &page).await.unwrap();
    let resolution = StageResolveRequest {
        outcome: StageOutcome::Done,
        context: Some(Json::parse("{}").unwrap()),
        job: Some("j".to_owned()),
        reason: "r".to_owned(),
    };
    tasks.resolve("k", "4", &resolution).await.unwrap();
    assert_eq!(tenants.get("a:b").await.unwrap().task.run, 2);
    tenants.tasks("t", &page).await.unwrap();
    tenants.unlock("t", &UnlockRequest { token: 7, reason: "r".to_owned() }).await.unwrap();
    assert_eq!(
        asked(&server),
        [
            "GET /v1/tasks/k",
            "POST /v1/tasks/k/pause {}",
            "POST /v1/tasks/k/resume {}",
            r#"POST /v1/tasks/k/cancel {"reason":"no"}"#,
            r#"POST /v1/tasks/k/cancel {"expect":{"run":2}}"#,
            "GET /v1/tasks/k/stages",
            "GET /v1/tasks/k/checkpoints",
            "GET /v1/tasks/k/events",
            r#"POST /v1/tasks/k/stages/4/resolve {"outcome":"done","context":{},"job":"j","reason":"r"}"#,
            "GET /v1/tenants/a:b",
            "GET /v1/tenants/t/tasks",
            r#"POST /v1/tenants/t/unlock {"token":7,"reason":"r"}"#,
        ]
    );
}

#[tokio::test]
async fn a_retry_whose_answer_was_lost_opens_no_second_run() {
    let script = vec![task(), Act::HangUp, task(), tenant(), Act::HangUp, task(), task(), task(), task()];
    let server = StandIn::playing(script).await;
    let client = client(&[&server]);
    let retry = TaskRetryRequest::new(RetryFrom::Point(RetryPoint::Checkpoint), "r");
    assert_eq!(client.tasks().retry("k", &retry, None).await.unwrap().run, 2);
    assert_eq!(client.tenants().retry("t", &retry, None).await.unwrap().run, 2);
    let expect = Some(ExpectedTask { run: 1, checkpoint_version: 0 });
    client.tenants().retry("t", &TaskRetryRequest { expect, ..retry.clone() }, None).await.unwrap();
    client.tasks().retry("k", &retry, Some("mine")).await.unwrap();
    client.tenants().retry("t", &retry, Some("mine")).await.unwrap();
    let seen = r#"{"from":"checkpoint","expect":{"run":2,"checkpoint_version":3},"reason":"r"}"#;
    let given = r#"{"from":"checkpoint","expect":{"run":1,"checkpoint_version":0},"reason":"r"}"#;
    let any = r#"{"from":"checkpoint","reason":"r"}"#;
    assert_eq!(
        asked(&server),
        [
            "GET /v1/tasks/k".to_owned(),
            format!("POST /v1/tasks/k/retry {seen}"),
            format!("POST /v1/tasks/k/retry {seen}"),
            "GET /v1/tenants/t".to_owned(),
            format!("POST /v1/tenants/t/retry {seen}"),
            format!("POST /v1/tenants/t/retry {seen}"),
            format!("POST /v1/tenants/t/retry {given}"),
            format!("POST /v1/tasks/k/retry {any}"),
            format!("POST /v1/tenants/t/retry {any}"),
        ]
    );
    let keys: Vec<_> = server.heard().iter().map(|request| header(request, "Idempotency-Key")).collect();
    assert!(keys[1].is_some() && keys[1] == keys[2], "{keys:?}");
    assert!(keys[4].is_some() && keys[4] == keys[5] && keys[4] != keys[1], "{keys:?}");
    assert!(keys[6].is_some() && keys[6] != keys[4], "{keys:?}");
    assert_eq!(keys[7..], [Some("mine".to_owned()), Some("mine".to_owned())]);
}

#[tokio::test]
async fn a_plan_is_followed_behind_what_was_seen_when_its_stream_breaks_off() {
    let event = |seq: u64| {
        format!(
            "event: plan\nid: {seq}\ndata: {{\"seq\":{seq},\"at\":\"t\",\"task\":null,\"kind\":\"status\",\"run\":null,\
             \"stage\":null,\"before\":null,\"after\":\"RUNNING\",\"reason\":null,\"principal\":null,\
             \"request_id\":null}}\n\n"
        )
    };
    let first = format!(": hello\n\n{}event: newer\ndata: 1\n\n{}", event(3), event(4));
    let again = format!("{}{}", event(4), event(5));
    let answer = |body| Act::Answer(200, "content-type: Text/Event-Stream; charset=utf-8\r\n", body);
    let server = StandIn::playing(vec![answer(first), answer(again), refused(Code::NotFound, None)]).await;
    let client = client(&[&server]);
    let mut events = client.plans().follow("p");
    for seq in [3, 4, 5] {
        assert_eq!(events.next().await.unwrap().seq, seq);
    }
    assert_eq!(events.next().await.unwrap_err().problem().unwrap().known_code(), Some(Code::NotFound));
    assert_eq!(asked(&server), ["GET /v1/plans/p/events"; 3]);
    let header =
        |name| server.heard().iter().map(|request| header(request, name).unwrap()).collect::<Vec<_>>();
    assert_eq!(header("Last-Event-ID"), ["0", "4", "5"]);
    assert_eq!(header("Accept"), ["text/event-stream"; 3]);
}

#[tokio::test]
async fn an_answer_that_is_no_event_stream_ends_what_follows_a_plan_or_a_job() {
    let list = || {
        let body = r#"{"items":[],"next_cursor":null}"#.to_owned();
        Act::Answer(200, "content-type: application/json\r\n", body)
    };
    let server = StandIn::playing(vec![list(), list()]).await;
    let client = client(&[&server]);
    let of_plan = client.plans().follow("p").next().await.unwrap_err();
    assert!(matches!(of_plan, Error::Unexpected { status: 200, .. }), "{of_plan}");
    let of_job = client.jobs().events("j").next().await.unwrap_err();
    assert!(matches!(of_job, Error::Unexpected { status: 200, .. }), "{of_job}");
    assert_eq!(asked(&server), ["GET /v1/plans/p/events", "GET /v1/jobs/j/events"]);
}

#[tokio::test]
async fn a_resolution_that_may_have_been_made_is_repeated_only_if_it_names_the_job() {
    for (job, times) in [(None, 1), (Some("j"), 2)] {
        let server = StandIn::playing(vec![Act::HangUp, task()]).await;
        let (outcome, job) = (StageOutcome::NotDone, job.map(str::to_owned));
        let resolution = StageResolveRequest { outcome, context: None, job, reason: "r".to_owned() };
        let resolved = client(&[&server]).tasks().resolve("k", "s", &resolution).await;
        assert_eq!(server.heard().len(), times, "the stage may have a later attempt by now");
        assert_eq!(resolved.is_ok(), times == 2, "{resolved:?}");
    }
}
