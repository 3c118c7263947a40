//! The texts that people see.

use client::wire::plans::{OnFailure, PlanStatus, TaskLock, TaskStage, TenantLock};

use super::*;

fn a_stage(name: &str, status: StageStatus) -> TaskStage {
    let job = status.eq(&StageStatus::Running).then(|| "j-1".to_owned());
    let attempts = job.as_ref().map(|_| 2);
    TaskStage { name: name.to_owned(), status, job, attempts }
}

/// A task of three stages, of which `done` are completed.
fn a_task(id: &str, status: TaskStatus, done: u32) -> Task {
    let stages: Vec<_> = (0..)
        .zip(["build", "migrate", "check"])
        .map(|(at, name)| {
            a_stage(name, if at < done { StageStatus::Succeeded } else { StageStatus::Pending })
        })
        .collect();
    let checkpoint = (done > 0).then(|| TaskCheckpoint {
        version: done + 10,
        completed_stages: stages.iter().take(done as usize).map(|stage| stage.name.clone()).collect(),
        last_completed: done,
        saved_at: None,
        context: None,
    });
    Task {
        id: id.to_owned(),
        plan: "p-1".to_owned(),
        place: 1,
        tenant: format!("tenant-{id}"),
        name: None,
        status,
        intent: Intent::Run,
        reason: None,
        run: 1,
        run_at: Some("12:00".to_owned()),
        timeout_ms: 600_000,
        definition: 1,
        stage: Some(done + 1).filter(|number| *number <= 3),
        stages,
        has_checkpoint: checkpoint.is_some(),
        checkpoint_version: done + 10,
        checkpoint,
        context: None,
        config: None,
        lock: None,
        lock_token: None,
        waits_for: None,
        updated_at: "12:30".to_owned(),
    }
}

fn a_plan(mut tasks: Vec<Task>) -> PlanView {
    let plan = Plan {
        id: "p-1".to_owned(),
        name: Some("rollout".to_owned()),
        status: PlanStatus::Attention,
        max_concurrency: 5,
        on_failure: OnFailure::StopNew,
        timeout_ms: 7_200_000,
        intent: Intent::Run,
        halted: false,
        over_time: false,
        progress: PlanProgress {
            total: 5,
            succeeded: 1,
            running: 2,
            failed: 1,
            pending: 1,
            ..PlanProgress::default()
        },
        created_at: "11:00".to_owned(),
        started_at: Some("11:30".to_owned()),
        finished_at: None,
        attention: None,
    };
    for task in &mut tasks {
        task.lock_token = match task.id.as_str() {
            "b" => Some(7),
            "c" => Some(12),
            _ => None,
        };
    }
    PlanView { plan, tasks, waits: HashMap::new() }
}

#[test]
fn a_plan_is_a_card_and_a_line_for_each_task() {
    let mut pausing = a_task("b", TaskStatus::Running, 1);
    pausing.intent = Intent::Pause;
    let mut interrupted = a_task("c", TaskStatus::Interrupted, 1);
    interrupted.run = 2;
    interrupted.reason = Some("its owner\nchanged\u{1b}[2J".to_owned());
    interrupted.stages[1].status = StageStatus::Unknown;
    let tasks = vec![
        a_task("a", TaskStatus::Succeeded, 3),
        pausing,
        interrupted,
        a_task("dd", TaskStatus::Pending, 0),
    ];
    let text = "\
plan    p-1
name    rollout
status  ATTENTION
tasks   1 of 5 succeeded, 2 running, 1 pending, 1 failed
rules   5 at once, on failure stop_new, time limit 2 h
times   created 11:00, started 11:30

TENANT     STATUS             RUN  STAGE                CHECKPOINT  LOCK  TASK  REASON
tenant-a   SUCCEEDED          1    3/3                  13          -     a     -
tenant-b   RUNNING (pausing)  1    2/3 migrate          11          7     b     -
tenant-c   INTERRUPTED        2    2/3 migrate UNKNOWN  11          12    c     its owner changed [2J
tenant-dd  PENDING            1    1/3 build            -           -     dd    -
";
    let mut view = a_plan(tasks);
    assert_eq!(plan(&view), text);
    view.waits.insert("b".to_owned(), "no node is connected".to_owned());
    let waits = text.replace("7     b     -", "7     b     its job waits: no node is connected");
    assert_eq!(plan(&view), waits);
}

#[test]
fn a_plan_that_starts_nothing_more_says_why() {
    let mut view = a_plan(Vec::new());
    (view.plan.halted, view.plan.over_time) = (true, true);
    let text = plan(&view);
    let status = "status  ATTENTION; no further task starts until `fencepost plan resume`: its owner changed, or a task \
                  was retried alone; it ran over its time: no further task starts, until it is \
                  retried with `fencepost plan retry`\n";
    assert!(text.contains(status), "{text}");
    view.plan.status = PlanStatus::Succeeded;
    (view.plan.halted, view.plan.over_time) = (true, false);
    assert!(plan(&view).contains("status  SUCCEEDED\n"), "nobody can resume it");
}

#[test]
fn a_plan_that_is_paused_says_so_whatever_its_status() {
    let mut view = a_plan(Vec::new());
    view.plan.intent = Intent::Pause;
    let status = "status  ATTENTION; paused: no further stage begins until `fencepost plan resume`\n";
    assert!(plan(&view).contains(status), "{}", plan(&view));
    for status in [PlanStatus::Paused, PlanStatus::Succeeded, PlanStatus::Cancelled] {
        view.plan.status = status;
        assert!(plan(&view).contains(&format!("status  {status}\n")), "{}", plan(&view));
    }
}

#[test]
fn a_plan_that_was_changed_says_what_people_want_of_it_and_what_goes_on() {
    use Intent::{Cancel, Pause, Run};
    for (intent, status, says) in [
        (Run, PlanStatus::Created, "CREATED; `fencepost plan start p-1` starts it"),
        (Run, PlanStatus::Running, "RUNNING"),
        (Run, PlanStatus::Attention, "ATTENTION"),
        (Run, PlanStatus::Paused, "PAUSED; `fencepost plan resume p-1` goes on with it"),
        (Pause, PlanStatus::Paused, "PAUSED; `fencepost plan resume p-1` goes on with it"),
        (Pause, PlanStatus::Attention, "ATTENTION, and paused; `fencepost plan resume p-1` goes on with it"),
        (Pause, PlanStatus::Succeeded, "SUCCEEDED"),
        (Cancel, PlanStatus::Running, "to be CANCELLED; `fencepost plan show -w p-1` follows it"),
        (Cancel, PlanStatus::Attention, "to be CANCELLED; `fencepost plan show -w p-1` follows it"),
        (Cancel, PlanStatus::Cancelled, "CANCELLED"),
        (Cancel, PlanStatus::Succeeded, "SUCCEEDED"),
    ] {
        let plan = a_plan(Vec::new()).plan;
        let progress = PlanProgress { running: 0, ..plan.progress };
        let mut plan = Plan { intent, status, progress, ..plan };
        assert_eq!(changed(&plan), format!("plan p-1 is {says}\n"));
        // What still runs is at risk if an instance is stopped now.
        plan.progress.running = 2;
        let says = says.replace(
            "; `fencepost plan resume",
            "; stages that still run to their end: 2; `fencepost plan resume",
        );
        assert_eq!(changed(&plan), format!("plan p-1 is {says}\n"));
    }
}

#[test]
fn a_plan_that_was_waited_for_says_how_it_stands_and_which_tasks_a_person_looks_at() {
    let mut plan = a_plan(Vec::new()).plan;
    let text = "plan p-1 is ATTENTION: 1 of 5 succeeded, 2 running, 1 pending, 1 failed";
    assert_eq!((standing(&plan).as_str(), to_look_at(&plan).as_str()), (text, ""));
    let found = |task: &str, reason: Option<&str>| AttentionTask {
        task: task.to_owned(),
        tenant: "acme".to_owned(),
        status: TaskStatus::Failed,
        reason: reason.map(str::to_owned),
        stage: None,
        stage_name: None,
    };
    plan.attention = Some(vec![found("a", Some("stage build:\nno\u{1b}[2J")), found("b", None)]);
    let lines = "\n  task a of acme is FAILED: stage build: no [2J\n  task b of acme is FAILED";
    assert_eq!(to_look_at(&plan), lines);
    plan.attention = Some(vec![found("a", None); LOOK_AT_MAX + 1]);
    assert_eq!(to_look_at(&plan).lines().count(), LOOK_AT_MAX + 1, "below the line before");
}

#[test]
fn the_json_of_a_plan_is_the_daemons_with_the_tasks() {
    let text = serde_json::to_string(&a_plan(vec![a_task("a", TaskStatus::Pending, 0)])).unwrap();
    assert!(text.starts_with(r#"{"id":"p-1","name":"rollout","status":"ATTENTION","#), "{text}");
    assert!(text.contains(r#""finished_at":null,"tasks":[{"id":"a","#), "{text}");
    assert!(!text.contains("lock"), "{text}");
}

#[test]
fn plans_are_a_line_each() {
    let list = List { items: vec![a_plan(Vec::new()).plan], next_cursor: Some("c".to_owned()) };
    let text = "\
PLAN  STATUS     DONE  TO LOOK AT  CREATED  STARTED  FINISHED  NAME
p-1   ATTENTION  1/5   1           11:00    11:30    -         rollout
… more: --cursor 'c'
";
    assert_eq!(plans(&list), text);
}

#[test]
fn a_task_is_a_card_and_a_line_for_each_stage() {
    let mut one = a_task("k", TaskStatus::Running, 1);
    one.stages[1] = a_stage("migrate", StageStatus::Running);
    one.context = Some(Json::parse("{\n\"schema\": 4}").unwrap());
    one.config = Some(Json::null());
    one.lock = Some(Some(TaskLock { token: 7, expires_in_ms: 9_000_000 }));
    let text = "\
task           k
plan           p-1
tenant         tenant-k
name           -
status         RUNNING
reason         -
run            1 since 12:00
time limit     10 min
stage          2/3 migrate
waits for job  -
checkpoint     version 11, after stage 1 build
context        { \"schema\": 4}
config         -
lock           token 7 for 2 h

NO  STAGE    STATUS     ATTEMPTS  JOB
1   build    SUCCEEDED  -         -
2   migrate  RUNNING    2         j-1
3   check    PENDING    -         -
";
    let mut view = TaskView { task: one, waits: None };
    assert_eq!(task(&view), text);
    view.waits = Some("no node is connected".to_owned());
    let waits = text.replace("2/3 migrate\n", "2/3 migrate; its job waits: no node is connected\n");
    assert_eq!(task(&view), waits);
    assert!(!serde_json::to_string(&view).unwrap().contains("waits\""), "the JSON is the daemon's");
}

#[test]
fn a_retry_says_where_the_task_continues() {
    let mut one = a_task("k", TaskStatus::Pending, 2);
    one.run = 3;
    assert_eq!(retried(&one, false), "task k is PENDING in run 3, at stage 3/3 check\n");
    let dry = "nothing was changed: task k would be PENDING in run 3, at stage 3/3 check\n";
    assert_eq!(retried(&one, true), dry);
}

#[test]
fn a_tenant_is_shown_with_its_newest_task_and_its_history() {
    let mut failed = a_task("k", TaskStatus::Failed, 1);
    failed.reason = Some("no luck".to_owned());
    let lock =
        TenantLock { token: 7, expires_in_ms: 60_000, task: "k".to_owned(), plan: Some("p-1".to_owned()) };
    let shown =
        Tenant { tenant: "t".to_owned(), task: failed.clone(), has_checkpoint: true, lock: Some(lock) };
    let text = "\
tenant       t
newest task  k
plan         p-1
status       FAILED
reason       no luck
run          1 since 12:00
stage        2/3 migrate
checkpoint   version 11, after stage 1 build
lock         token 7 for 60.0 s, of task k
";
    assert_eq!(tenant(&shown), text);
    let text = "\
TASK  PLAN  STATUS  RUN  STAGE        CHECKPOINT  CHANGED  REASON
k     p-1   FAILED  1    2/3 migrate  11          12:30    no luck
";
    assert_eq!(history(&List { items: vec![failed], next_cursor: None }), text);
}

#[test]
fn events_are_a_line_each() {
    let event = |seq, task: Option<&str>, before: Option<&str>, after: Option<&str>| PlanEvent {
        seq,
        at: "12:00".to_owned(),
        task: task.map(str::to_owned),
        kind: "status".to_owned(),
        run: task.map(|_| 1),
        stage: None,
        before: before.map(str::to_owned),
        after: after.map(str::to_owned),
        reason: None,
        principal: None,
        request_id: None,
    };
    let mut paused = event(2, Some("k"), Some("RUNNING"), Some("PAUSED"));
    (paused.principal, paused.reason) = (Some("ops".to_owned()), Some("look".to_owned()));
    let items = vec![event(1, None, None, Some("RUNNING")), paused, event(3, None, None, None)];
    let text = "\
SEQ  AT     EVENT   TASK  RUN  STAGE  CHANGE            BY   REASON
1    12:00  status  -     -    -      RUNNING           -    -
2    12:00  status  k     1    -      RUNNING → PAUSED  ops  look
3    12:00  status  -     -    -      -                 -    -
";
    let lines: String = items.iter().map(event_line).collect();
    assert_eq!(events(&List { items, next_cursor: None }), text);
    let text = "\
SEQ    AT                           EVENT       TASK                                  RUN  STAGE  CHANGE                   BY        REASON
1      12:00                        status      -                                     -    -      RUNNING                  -         -
2      12:00                        status      k                                     1    -      RUNNING → PAUSED         ops       look
3      12:00                        status      -                                     -    -      -                        -         -
";
    assert_eq!(event_headings() + &lines, text);
}

#[test]
fn checkpoints_are_listed_with_the_last_stage_that_each_covers() {
    let checkpoint = |version, run, completed: &[&str], context: &str| Checkpoint {
        version,
        run,
        completed_stages: completed.iter().map(|name| (*name).to_owned()).collect(),
        last_completed: completed.len() as u32,
        saved_at: format!("12:0{version}"),
        context: Json::parse(context).unwrap(),
    };
    let items = vec![
        checkpoint(3, 2, &["build"], r#"{"n":2}"#),
        checkpoint(2, 1, &["build", "migrate"], "{\n  \"schema\": 12\n}"),
    ];
    let list = List { items, next_cursor: Some("c.2".to_owned()) };
    assert_eq!(
        checkpoints(&list),
        "VERSION  RUN  AFTER STAGE  SAVED  CONTEXT\n\
         3        2    1 build      12:03  {\"n\":2}\n\
         2        1    2 migrate    12:02  {   \"schema\": 12 }\n\
         … more: --cursor 'c.2'\n"
    );
}
