//! Histories of plans that are too long to be deleted with their plans; what of a plan's past is kept with it; the lock of
//! a task that a person decides about; the plans of a tenant, and who sees a plan; and pages of tasks that are large.

use std::collections::HashMap;
use std::sync::Arc;

use domain::job::Outcome;
use domain::plan::{Command, From, PlanState, PlanStatus, Resolution, Retry, StageEnd, TaskStatus};
use domain::{PoolName, Resource, TenantId, TraceParent};
use ledger::{PAGE_BYTES_MAX, PlanAccess, PlanFilter, PlanVerdict, TaskRecord};

use crate::bench::{Bench, eventually};
use crate::plan_owner::{PlanOwner, plan, plan_id, task_id};

const HOUR_MS: u64 = 3_600_000;

pub async fn the_history_of_a_plan_is_deleted_piece_by_piece_and_its_rows_last(b: Bench) {
    let mut over = PlanOwner::started(&b, plan(1, &["x", "z"])).await;
    let mut busy = PlanOwner::started(&b, plan(2, &["y"])).await;
    busy.complete(0, None).await;
    for at in [0, 0, 1, 1] {
        over.complete(at, Some("{\"a\":1}")).await;
    }
    let events = b.ledger.plan_events(plan_id(1), None, 0, 100).await.unwrap();
    let ended = b.ledger.clock_ms().await.unwrap();
    eventually("a moment passes", async || b.ledger.clock_ms().await.unwrap() > ended).await;
    let kept = b.ledger.load_plan(plan_id(1)).await.unwrap();
    assert_eq!(b.ledger.trim_plan(0, 1).await.unwrap(), 0, "it has an owner");
    b.ledger.release(&Resource::plan(plan_id(1)), &over.me, over.token).await.unwrap();
    assert_eq!(b.ledger.trim_plan(HOUR_MS, 1).await.unwrap(), 0, "it is too young");
    assert_eq!(b.ledger.trim_plan(0, 1).await.unwrap(), 3, "one event, one checkpoint and one stage");
    let left = b.ledger.plan_events(plan_id(1), None, 0, 100).await.unwrap();
    assert_eq!(left, events[1..], "the oldest goes first");
    let checkpoints = async |plan, at| b.ledger.checkpoints(task_id(plan, at), None, 10).await.unwrap().len();
    assert_eq!(checkpoints(1, 0).await + checkpoints(1, 1).await, 3);
    assert_eq!(b.ledger.load_plan(plan_id(1)).await.unwrap(), kept, "what is shown of it is the same");
    let mut deleted = 3;
    loop {
        match b.ledger.trim_plan(0, 2).await.unwrap() {
            0 => break,
            more => deleted += more,
        }
    }
    assert_eq!(deleted as usize, events.len() - 1 + 4 + 4, "events, checkpoints and stages");
    assert_eq!(checkpoints(1, 0).await + checkpoints(1, 1).await, 0);
    let left = b.ledger.plan_events(plan_id(1), None, 0, 100).await.unwrap();
    assert_eq!(left, events[events.len() - 1..], "the next event would follow it");
    assert_eq!(b.ledger.load_plan(plan_id(1)).await.unwrap(), kept);
    assert_eq!(b.ledger.purge_plans(0, 1).await.unwrap(), 1);
    assert_eq!(b.ledger.load_plan(plan_id(1)).await.unwrap(), None);
    // Nothing of the other plan.
    assert_eq!(checkpoints(2, 0).await, 1);
    let first = b.ledger.plan_events(plan_id(2), None, 0, 1).await.unwrap();
    assert_eq!(first[0].seq, 1);
}

pub async fn a_plan_that_was_over_and_goes_on_is_loaded_without_a_time(b: Bench) {
    let mut owner = PlanOwner::started(&b, plan(1, &["x"])).await;
    owner.step(&Command::CancelTask(task_id(1, 0))).await;
    let end = StageEnd::Ended(Outcome::Cancelled, "cancelled".into());
    owner.step(&Command::StageEnded { task: task_id(1, 0), job: owner.in_flight(0), end }).await;
    assert_eq!(owner.state.status(), PlanStatus::Cancelled);
    let retry = Retry {
        from: From::Checkpoint,
        expect: None,
        context: None,
        stages: None,
        config: None,
        max_attempts: None,
        reason: "again".into(),
    };
    owner.step(&Command::Retry(task_id(1, 0), retry)).await;
    let loaded = b.ledger.load_plan(plan_id(1)).await.unwrap().unwrap();
    assert!(loaded.is_untimed);
    assert_eq!(loaded, owner.state);
}

pub async fn what_the_time_ends_has_no_author(b: Bench) {
    let mut made = plan(1, &["x"]);
    Arc::make_mut(&mut made.spec).timeout_ms = 0;
    PlanOwner::of(&b, made).await.step(&Command::Start).await;
    let events = b.ledger.plan_events(plan_id(1), None, 0, 10).await.unwrap();
    let documents: Vec<_> = events.iter().map(|event| event.document.as_str()).collect();
    let [started, over_time, status] = documents[..] else { panic!("{documents:?}") };
    assert!(started.contains("RUNNING") && started.contains("ops"), "what was asked for: {started}");
    assert!(over_time.contains("over_time") && status.contains("ATTENTION"), "{documents:?}");
    for own in [over_time, status] {
        assert!(!["ops", "r-1", "because"].iter().any(|author| own.contains(author)), "{own}");
    }
}

pub async fn the_spans_that_stages_continue_are_kept(b: Bench) {
    let span = |trace: u32| TraceParent::parse(&format!("00-{trace:032x}-00f067aa0ba902b7-01"));
    let mut made = plan(1, &["x", "y"]);
    made.traceparent = span(1);
    let mut owner = PlanOwner::of(&b, made).await;
    Arc::make_mut(&mut owner.state.tasks[1]).traceparent = span(2);
    owner.step(&Command::Start).await;
    owner.step(&Command::Advance).await;
    let loaded = b.ledger.load_plan(plan_id(1)).await.unwrap().unwrap();
    assert_eq!(loaded, owner.state);
    let spans = [loaded.traceparent, loaded.tasks[0].traceparent, loaded.tasks[1].traceparent];
    assert_eq!(spans, [span(1), None, span(2)]);
}

pub async fn a_lock_that_ran_out_is_good_again_with_the_word_that_its_stage_is_done(b: Bench) {
    let mut owner = PlanOwner::started(&b, plan(1, &["x"])).await;
    let lock = Resource::tenant(&TenantId::parse("x").unwrap());
    let lease = async || b.ledger.lease(&lock).await.unwrap().unwrap();
    let (_, mut batch) = owner.decide(&Command::RenewLocks);
    batch.lock_ms = 0;
    let verdict = b.ledger.commit_plan(batch).await.unwrap();
    assert!(matches!(verdict, PlanVerdict::Written { .. }), "{verdict:?}");
    owner.step(&Command::TakenOver).await;
    eventually("it has run out, and nobody took it", async || lease().await.expires_in_ms == 0).await;
    let before = lease().await;
    let resolution = Resolution::Done(None);
    owner.step(&Command::Resolve { task: task_id(1, 0), stage: 0, job: None, resolution }).await;
    let after = lease().await;
    assert_eq!(after.token, before.token);
    assert!(after.expires_in_ms > 0);
}

pub async fn plans_with_a_task_of_a_tenant_are_listed(b: Bench) {
    for (n, tenants) in [(1, &["x", "y"][..]), (2, &["y"]), (3, &["x"]), (4, &["y", "x"])] {
        PlanOwner::of(&b, plan(n, tenants)).await;
    }
    let listed = async |tenant: &str, before, limit| {
        let filter =
            PlanFilter { tenant: TenantId::parse(tenant).ok(), before, limit, ..PlanFilter::default() };
        let plans = b.ledger.plans(&filter).await.unwrap();
        plans.into_iter().map(|plan| plan.plan.id).collect::<Vec<_>>()
    };
    assert_eq!(listed("x", None, 2).await, [4, 3].map(plan_id));
    assert_eq!(listed("x", Some(plan_id(3)), 2).await, [plan_id(1)]);
    assert_eq!(listed("z", None, 2).await, []);
}

/// The same plan, whose first stage asks for this pool, and the second one for none.
fn in_pool(mut plan: PlanState, at: usize, pool: &str) -> PlanState {
    let spec = &mut Arc::make_mut(&mut plan.tasks[at]).spec;
    let mut stages = spec.stages.to_vec();
    stages[0].needs.pool = Some(PoolName::parse(pool).unwrap());
    Arc::make_mut(spec).stages = stages.into();
    plan
}

pub async fn who_sees_plans_is_read_without_their_tasks(b: Bench) {
    let two = in_pool(in_pool(plan(1, &["x", "y"]), 0, "p"), 1, "q");
    PlanOwner::of(&b, two.clone()).await;
    let mut owner = PlanOwner::started(&b, in_pool(plan(2, &["z"]), 0, "p")).await;
    let end = StageEnd::Ended(Outcome::Failed, "no".into());
    owner.step(&Command::StageEnded { task: task_id(2, 0), job: owner.in_flight(0), end }).await;
    let corrected = Retry {
        from: From::Start,
        expect: None,
        context: None,
        stages: Some(two.tasks[1].spec.stages.clone()),
        config: None,
        max_attempts: None,
        reason: "another pool".into(),
    };
    owner.step(&Command::Retry(task_id(2, 0), corrected)).await;
    let access = |tenants: &[&str], pools: &[Option<&str>]| PlanAccess {
        tenants: tenants.iter().map(|name| TenantId::parse(name).unwrap()).collect(),
        pools: pools.iter().map(|pool| pool.map(|name| PoolName::parse(name).unwrap())).collect(),
    };
    let asked = [1, 2, 3].map(plan_id);
    for (with_pools, first, second) in
        [(true, &[None, Some("p"), Some("q")][..], &[None, Some("q")][..]), (false, &[], &[])]
    {
        let expected = [(plan_id(1), access(&["x", "y"], first)), (plan_id(2), access(&["z"], second))];
        let expected: HashMap<_, _> = expected.into();
        assert_eq!(b.ledger.plan_access(&asked, with_pools).await.unwrap(), expected, "{with_pools}");
    }
    assert_eq!(b.ledger.plan_access(&[plan_id(3)], true).await.unwrap().len(), 0);
    assert_eq!(b.ledger.plan_of_task(task_id(1, 1)).await.unwrap(), Some(plan_id(1)));
    assert_eq!(b.ledger.plan_of_task(task_id(1, 2)).await.unwrap(), None);
}

pub async fn a_page_of_large_tasks_ends_early_and_only_an_empty_one_is_the_end(b: Bench) {
    let large = plan(2, &["x", "y"]);
    PlanOwner::of(&b, plan(1, &["x"])).await;
    PlanOwner::of(&b, large.clone()).await;
    b.lengthens_stages(task_id(2, 0), PAGE_BYTES_MAX).await;
    let loaded = b.ledger.load_plan(plan_id(2)).await.unwrap();
    assert!(loaded.as_ref() == Some(&large), "a plan is loaded with all of its tasks");
    let ids = |page: Vec<TaskRecord>| page.iter().map(|record| record.task.id).collect::<Vec<_>>();
    for (after, page) in [(None, Some(task_id(2, 0))), (Some(0), Some(task_id(2, 1))), (Some(1), None)] {
        assert_eq!(ids(b.ledger.plan_tasks(plan_id(2), after, 10).await.unwrap()), page.as_slice());
        let pending = b.ledger.plan_tasks_with(plan_id(2), &[TaskStatus::Pending], after, 10);
        assert_eq!(ids(pending.await.unwrap()), page.as_slice());
    }
    let tenant = TenantId::parse("x").unwrap();
    let (newest, older) = (task_id(2, 0), task_id(1, 0));
    for (before, page) in [(None, Some(newest)), (Some(newest), Some(older)), (Some(older), None)] {
        assert_eq!(ids(b.ledger.tenant_tasks(&tenant, before, 10).await.unwrap()), page.as_slice());
    }
}
