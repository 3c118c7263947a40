//! What is read of plans: their tasks and stages, those without a live owner, and how many there are.

use std::sync::Arc;

use domain::job::Outcome;
use domain::plan::{Command, Intent, PlanStatus, StageEnd, StageSpec, StageStatus, TaskStatus};
use domain::{LaneId, Resource, TenantId};
use ledger::{Lane, PlanFilter};

use crate::bench::{Bench, LONG_MS, owner};
use crate::plan_owner::{PlanOwner, new, plan, plan_id, task_id};
use crate::shop::dispatch;

pub async fn the_names_of_stages_are_read_for_several_definitions_at_once(b: Bench) {
    let mut owner = PlanOwner::started(&b, plan(1, &["x", "y"])).await;
    let end = StageEnd::Ended(Outcome::Failed, "no".into());
    owner.step(&Command::StageEnded { task: task_id(1, 0), job: owner.in_flight(0), end }).await;
    let odd = r#"{"a \"name\"":"\u0000\ud800","name":[1]}"#;
    let stages = ["z", "\u{6b65}\u{9aa4} \"1\"", "a"].map(|name| StageSpec::new(name, odd));
    let retry = domain::plan::Retry {
        from: domain::plan::From::Start,
        expect: None,
        context: None,
        stages: Some(stages.into()),
        config: None,
        max_attempts: None,
        reason: "again".into(),
    };
    owner.step(&Command::Retry(task_id(1, 0), retry)).await;
    let names = async |task, versions: &[u32]| {
        let mut names: Vec<_> = b.ledger.stage_names(task, versions).await.unwrap().into_iter().collect();
        names.sort();
        names
    };
    let both: [(u32, Vec<Arc<str>>); 2] = [
        (1, vec!["first".into(), "second".into()]),
        (2, vec!["z".into(), "\u{6b65}\u{9aa4} \"1\"".into(), "a".into()]),
    ];
    assert_eq!(names(task_id(1, 0), &[2, 3, 1]).await, both);
    assert_eq!(names(task_id(1, 0), &[2]).await, both[1..]);
    assert_eq!(names(task_id(1, 1), &[1, 2]).await, both[..1], "the other task has its own");
    assert_eq!(names(task_id(1, 0), &[]).await, []);
}

pub async fn plans_without_a_live_owner_are_found(b: Bench) {
    let me = owner("me");
    let owned = PlanOwner::started(&b, plan(1, &["x"])).await;
    // Its instance shows no sign of life.
    let left = b.ledger.left_plans(&me, 10).await.unwrap();
    assert_eq!(left, [(plan_id(1), Some(owned.me.clone()))]);
    assert!(b.ledger.left_plans(&owned.me, 10).await.unwrap().is_empty(), "it is the caller's own");
    b.ledger.acquire(&Resource::instance(&owned.me), &owned.me, LONG_MS).await.unwrap();
    assert!(b.ledger.left_plans(&me, 10).await.unwrap().is_empty(), "its owner lives");
    b.ledger.release(&Resource::plan(plan_id(1)), &owned.me, owned.token).await.unwrap();
    assert_eq!(b.ledger.left_plans(&me, 10).await.unwrap(), [(plan_id(1), None)]);
    // A plan that was never started, or is over, needs nobody.
    let mut other = PlanOwner::of(&b, plan(2, &["y"])).await;
    b.ledger.release(&Resource::plan(plan_id(2)), &other.me, other.token).await.unwrap();
    assert_eq!(b.ledger.left_plans(&me, 10).await.unwrap().len(), 1);
    other = PlanOwner::acquire(&b, "a", plan_id(2)).await;
    other.step(&Command::Cancel).await;
    b.ledger.release(&Resource::plan(plan_id(2)), &other.me, other.token).await.unwrap();
    assert_eq!(b.ledger.left_plans(&me, 10).await.unwrap().len(), 1);
}

pub async fn plans_tasks_and_tenants_are_listed(b: Bench) {
    for n in 1..=3 {
        PlanOwner::of(&b, plan(n, &["x", "y", "z"])).await;
    }
    let mut owner = PlanOwner::acquire(&b, "a", plan_id(2)).await;
    owner.step(&Command::Start).await;
    owner.step(&Command::Advance).await;
    let list = async |status, before, limit| {
        let plans = b.ledger.plans(&PlanFilter { status, tenant: None, before, limit }).await.unwrap();
        plans.into_iter().map(|plan| plan.plan.id.as_u128()).collect::<Vec<_>>()
    };
    assert_eq!(list(None, None, 10).await, [3, 2, 1]);
    assert_eq!(list(None, Some(plan_id(3)), 1).await, [2]);
    assert_eq!(list(Some(PlanStatus::Created), None, 10).await, [3, 1]);
    assert_eq!(list(Some(PlanStatus::Running), None, 10).await, [2]);
    let record = b.ledger.plan(plan_id(2)).await.unwrap().unwrap();
    assert_eq!(
        (record.status, record.plan.intent, record.finished_at),
        (PlanStatus::Running, Intent::Run, None)
    );
    let page = b.ledger.plan_tasks(plan_id(2), Some(0), 1).await.unwrap();
    assert_eq!((page.len(), page[0].place, page[0].plan), (1, 1, plan_id(2)));
    assert_eq!(page[0].task.stages[0].status, StageStatus::Running);
    let task = b.ledger.plan_task(task_id(2, 1)).await.unwrap().unwrap();
    assert_eq!(task, page[0]);
    assert_eq!(b.ledger.plan_task(task_id(9, 9)).await.unwrap(), None);
    let with = async |statuses: &[TaskStatus], after| {
        let tasks = b.ledger.plan_tasks_with(plan_id(2), statuses, after, 2).await.unwrap();
        tasks.into_iter().map(|task| task.place).collect::<Vec<_>>()
    };
    assert_eq!(with(&[TaskStatus::Running, TaskStatus::Failed], None).await, [0, 1]);
    assert_eq!(with(&[TaskStatus::Running], Some(1)).await, [2]);
    assert!(with(&[TaskStatus::Pending], None).await.is_empty() && with(&[], None).await.is_empty());
    let mut progress = b.ledger.plan_progress(&[plan_id(2), plan_id(3), plan_id(9)]).await.unwrap();
    progress.sort_unstable();
    assert_eq!(progress, [(plan_id(2), TaskStatus::Running, 3), (plan_id(3), TaskStatus::Pending, 3)]);
    assert!(b.ledger.plan_progress(&[]).await.unwrap().is_empty());
    let tenant = TenantId::parse("y").unwrap();
    let history = b.ledger.tenant_tasks(&tenant, None, 10).await.unwrap();
    assert!(history.iter().map(|task| task.plan.as_u128()).eq([3, 2, 1]));
    let older = b.ledger.tenant_tasks(&tenant, Some(history[1].task.id), 10).await.unwrap();
    assert_eq!(older, history[2..]);
    assert!(b.ledger.tenant_tasks(&TenantId::parse("nobody").unwrap(), None, 10).await.unwrap().is_empty());
    // A plan that is over says since when.
    owner.step(&Command::Cancel).await;
    for at in 0..3 {
        let (task, job) = (owner.state.tasks[at].id, owner.in_flight(at));
        let end = StageEnd::Ended(Outcome::Cancelled, "".into());
        owner.step(&Command::StageEnded { task, job, end }).await;
    }
    let record = b.ledger.plan(plan_id(2)).await.unwrap().unwrap();
    assert_eq!(record.status, PlanStatus::Cancelled);
    assert!(record.finished_at.is_some_and(|at| at >= record.created_at));
}

pub async fn the_tasks_of_many_plans_with_a_status_are_found_at_once(b: Bench) {
    let mut owner = PlanOwner::started(&b, plan(1, &["x", "y", "z"])).await;
    let of = |owner: &PlanOwner<'_>, at: usize, end| Command::StageEnded {
        task: owner.state.tasks[at].id,
        job: owner.in_flight(at),
        end,
    };
    owner.step(&of(&owner, 1, StageEnd::Completed(None))).await;
    owner.step(&Command::Advance).await;
    for (at, why) in [(0, "a\0b \"c\" é"), (1, "no"), (2, "nor this")] {
        owner.step(&of(&owner, at, StageEnd::Ended(Outcome::Failed, why.into()))).await;
    }
    let mut other = PlanOwner::started(&b, plan(2, &["u", "v"])).await;
    other.step(&of(&other, 1, StageEnd::Ended(Outcome::Failed, "".into()))).await;
    PlanOwner::started(&b, plan(3, &["w"])).await;
    let all = [plan_id(3), plan_id(2), plan_id(1), plan_id(9)];
    let (failed, running) = ([TaskStatus::Failed, TaskStatus::Interrupted], [TaskStatus::Running]);
    let found = b.ledger.tasks_of_plans(&all, &failed, 2).await.unwrap();
    let seen: Vec<_> = found.iter().map(|task| (task.plan.as_u128(), task.id.as_u128())).collect();
    assert_eq!(seen, [(1, 1_000), (1, 1_001), (2, 2_001)]);
    let stages: Vec<_> = found.iter().map(|task| task.stage.clone().unwrap()).collect();
    assert_eq!(stages, [(0, "first".into()), (1, "second".into()), (0, "first".into())]);
    assert_eq!((found[0].tenant.as_str(), found[0].status), ("x", TaskStatus::Failed));
    for task in &found {
        let record = b.ledger.plan_task(task.id).await.unwrap().unwrap();
        let readable = |reason: Option<&str>| reason.map(|reason| reason.replace('\0', "\u{fffd}"));
        assert_eq!(readable(task.reason.as_deref()), readable(record.task.reason.as_deref()));
    }
    let reason = found[0].reason.as_deref().unwrap();
    assert!(reason.contains("b \"c\" é") && reason.contains("first"), "{reason:?}");
    let found = b.ledger.tasks_of_plans(&all[..2], &running, 9).await.unwrap();
    assert!(found.iter().map(|task| task.id.as_u128()).eq([2_000, 3_000]), "{found:?}");
    assert!(found.iter().all(|task| task.reason.is_none()), "{found:?}");
    assert!(b.ledger.tasks_of_plans(&[], &failed, 9).await.unwrap().is_empty());
    assert!(b.ledger.tasks_of_plans(&all, &[], 9).await.unwrap().is_empty());
}

pub async fn tasks_and_unknown_stages_of_plans_that_are_not_over_are_counted(b: Bench) {
    let counted = async || {
        let mut counts = b.ledger.plan_counts().await.unwrap();
        assert!(counts.iter().all(|count| count.oldest_ms < LONG_MS), "{counts:?}");
        counts.sort_by(|a, b| a.status.cmp(&b.status));
        counts.iter().map(|count| format!("{} {}", count.status, count.count)).collect::<Vec<_>>()
    };
    assert!(counted().await.is_empty());
    let mut owner = PlanOwner::started(&b, plan(1, &["x", "y"])).await;
    b.ledger.create_plan(new(&plan(2, &["z"]))).await.unwrap();
    assert_eq!(counted().await, ["PENDING 1", "RUNNING 2"]);
    let (task, job) = (task_id(1, 0), owner.in_flight(0));
    owner.step(&Command::TakenOver).await;
    assert_eq!(counted().await, ["INTERRUPTED 2", "PENDING 1", "UNKNOWN 2"]);
    owner.step(&Command::CancelTask(task)).await;
    let end = StageEnd::Ended(Outcome::Cancelled, "cancelled".into());
    owner.step(&Command::StageEnded { task, job, end }).await;
    assert_eq!(counted().await, ["CANCELLED 1", "INTERRUPTED 1", "PENDING 1", "UNKNOWN 1"]);
    let mut statuses = b.ledger.plan_statuses().await.unwrap();
    statuses.sort();
    assert_eq!(statuses, [(PlanStatus::Created, 1), (PlanStatus::Attention, 1)]);
}

pub async fn the_newest_attempts_of_stages_jobs_are_read(b: Bench) {
    let owner = PlanOwner::started(&b, plan(1, &["x"])).await;
    let job = owner.in_flight(0);
    let lane = Lane { id: LaneId::plan(plan_id(1)), owner: owner.me.clone(), token: owner.token };
    let commit = async |change| {
        let writes = [ledger::JobWrite { change, key: None }].into();
        b.ledger.commit_jobs(ledger::JobBatch { lane: Some(lane.clone()), writes }).await.unwrap()
    };
    let attempt = |number| (job, domain::job::Attempt::new(number));
    assert_eq!(b.ledger.stage_attempts(&[job]).await.unwrap(), [attempt(0)]);
    commit(dispatch(job, 1)).await;
    assert_eq!(b.ledger.stage_attempts(&[job]).await.unwrap(), [attempt(1)]);
    commit(domain::job::Change::Complete {
        job,
        attempt: domain::job::Attempt::new(1),
        node: crate::shop::node("n"),
        output: "{\"context\":{}}".to_owned(),
    })
    .await;
    let unknown = crate::shop::job(99);
    assert_eq!(b.ledger.stage_attempts(&[unknown, job]).await.unwrap(), [attempt(1)]);
    assert!(b.ledger.stage_attempts(&[]).await.unwrap().is_empty());
}
