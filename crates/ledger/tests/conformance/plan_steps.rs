//! Plans: their steps under the plan's lease and the tenants' locks, and what is forgotten of them.

use std::sync::Arc;

use domain::job::OnRecovery;
use domain::plan::{Command, PlanStatus, Resolution, StageEnd, StageStatus, TaskStatus};
use domain::{InstanceId, JobId, LaneId, Resource, TenantId, Timestamp, Token};
use ledger::{
    Author, JobKey, KeptPlan, KeptRetry, KeyScope, Lane, LockBreak, Locker, NewPlan, PlanBatch, PlanCreated,
    PlanVerdict, RetryKey,
};

use crate::bench::{Bench, eventually, owner};
use crate::plan_owner::{HOUR_MS, PlanOwner, new, new_started, plan, plan_id, task_id};
use crate::shop::{complete, dispatch, job_made, of_lane, said, session, submit_placed};

fn tenant_lock(name: &str) -> Resource {
    Resource::tenant(&TenantId::parse(name).unwrap())
}

pub async fn a_plan_and_all_its_tasks_are_made_in_one_commit(b: Bench) {
    let made = plan(1, &["x", "y"]);
    b.ledger.create_plan(new(&made)).await.unwrap();
    assert_eq!(b.ledger.load_plan(made.id).await.unwrap(), Some(made.clone()));
    assert_eq!(b.ledger.load_plan(plan_id(2)).await.unwrap(), None);
    // The second task is there already: nothing of the plan is written.
    let mut other = plan(2, &["z"]);
    other.tasks.push(Arc::clone(&made.tasks[1]));
    assert!(b.ledger.create_plan(new(&other)).await.is_err());
    assert_eq!(b.ledger.plan(other.id).await.unwrap(), None);
    assert!(b.ledger.create_plan(new(&made)).await.is_err(), "a plan is made once");
    let large: Vec<String> = (0..1_000).map(|n| format!("tenant-{n}")).collect();
    let large = plan(3, &large.iter().map(String::as_str).collect::<Vec<_>>());
    b.ledger.create_plan(new(&large)).await.unwrap();
    assert_eq!(b.ledger.load_plan(large.id).await.unwrap().unwrap().tasks.len(), 1_000);
}

pub async fn a_step_writes_rows_locks_jobs_and_history_together(b: Bench) {
    let mut owner = PlanOwner::of(&b, plan(1, &["x", "y"])).await;
    owner.step(&Command::Start).await;
    owner.is_as_loaded().await;
    assert!(owner.state.tasks.iter().all(|task| task.lock.is_some()));
    owner.step(&Command::Advance).await;
    let first = owner.in_flight(0);
    let stored = b.ledger.job(first).await.unwrap().unwrap();
    assert_eq!(
        (stored.lane.as_str(), stored.spec.on_recovery),
        (format!("plan:{}", plan_id(1)).as_str(), OnRecovery::Hold)
    );
    owner.complete(0, Some("{\"a\":1}")).await;
    owner.is_as_loaded().await;
    let task = owner.state.tasks[0].id;
    let checkpoints = b.ledger.checkpoints(task, None, 10).await.unwrap();
    assert_eq!(checkpoints.len(), 1);
    assert_eq!((checkpoints[0].run, &*checkpoints[0].checkpoint.context), (1, "{\"a\":1}"));
    assert!(b.ledger.job(owner.in_flight(0)).await.unwrap().is_some(), "the next stage's job is there");
    // The last stage frees the tenant's lock.
    owner.complete(0, None).await;
    owner.is_as_loaded().await;
    assert_eq!(owner.state.tasks[0].status, TaskStatus::Succeeded);
    assert_eq!(b.ledger.lease(&tenant_lock("x")).await.unwrap().unwrap().owner, None);
    assert!(b.ledger.lease(&tenant_lock("y")).await.unwrap().unwrap().is_live());
    // The history has everything in order, with its author.
    let events = b.ledger.plan_events(plan_id(1), None, 0, 1_000).await.unwrap();
    assert!(events.iter().map(|event| event.seq).eq(1..=events.len() as u64), "{events:#?}");
    assert!(events[1].document.contains("\"request_id\":\"r-1\""), "{events:#?}");
    let of_task = b.ledger.plan_events(plan_id(1), Some(task), 0, 1_000).await.unwrap();
    assert!(!of_task.is_empty() && of_task.iter().all(|event| event.task == Some(task)));
    let page = b.ledger.plan_events(plan_id(1), None, 2, 1).await.unwrap();
    assert_eq!(page, events[2..3]);
}

pub async fn a_stale_owner_of_a_plan_writes_nothing(b: Bench) {
    let mut stale = PlanOwner::started(&b, plan(1, &["x"])).await;
    b.ledger.release(&Resource::plan(plan_id(1)), &stale.me, stale.token).await.unwrap();
    let fresh = PlanOwner::acquire(&b, "b", plan_id(1)).await;
    let end = StageEnd::Completed(None);
    let command = Command::StageEnded { task: task_id(1, 0), job: stale.in_flight(0), end };
    assert_eq!(stale.try_step(&command).await, PlanVerdict::Fenced);
    fresh.is_as_loaded().await;
    assert!(b.ledger.checkpoints(task_id(1, 0), None, 10).await.unwrap().is_empty());
    // One that has its lease by another name is as stale.
    let (_, batch) = stale.decide(&Command::Pause);
    let other = PlanBatch { token: fresh.token, ..batch };
    assert_eq!(b.ledger.commit_plan(other).await.unwrap(), PlanVerdict::Fenced);
}

/// Steps of many plans share a train. What is wrong with one of them is its own verdict, and keeps no other from being
/// written.
pub async fn steps_of_many_plans_are_written_together_and_judged_one_by_one(b: Bench) {
    let mut owners = Vec::new();
    for n in 1..=24 {
        let tenants = [format!("x{n}"), format!("y{n}")];
        let mut owner = PlanOwner::started(&b, plan(n, &tenants.each_ref().map(String::as_str))).await;
        // Not all have the same number of events.
        if n % 3 == 0 {
            owner.step(&Command::PauseTask(task_id(n, 0))).await;
            owner.step(&Command::ResumeTask(task_id(n, 0))).await;
        }
        owners.push(owner);
    }
    let stale = &owners[4];
    b.ledger.release(&Resource::plan(stale.state.id), &stale.me, stale.token).await.unwrap();
    let broken = owners[9].state.tasks[1].clone();
    let author = Author::default();
    b.ledger.break_lock(&broken.spec.tenant, broken.lock.unwrap(), &author).await.unwrap();
    let before = owners[14].state.clone();
    owners[14].complete(0, None).await;
    let known = std::mem::replace(&mut owners[14].state, before);
    let mut steps = Vec::new();
    for owner in &owners {
        let ends: Vec<_> = owner
            .state
            .tasks
            .iter()
            .map(|task| (task.id, task.in_flight().unwrap().1, StageEnd::Completed(Some("{\"n\":1}".into()))))
            .collect();
        let ends = ends.iter().map(|(task, job, end)| (*task, *job, end));
        let (jobs, mut number) = (owner.jobs, 50);
        let mut new_job = || {
            number += 1;
            job_made(jobs + number, 0)
        };
        let step = owner.state.apply_ends(ends, Timestamp::from_micros(5), &mut new_job);
        steps.push((owner.batch_of(&step), step));
    }
    let commits = steps.iter().map(|(batch, _)| b.ledger.commit_plan(batch.clone()));
    let verdicts = futures_util::future::join_all(commits).await;
    owners[14].state = known;
    for (at, ((owner, (_, step)), verdict)) in owners.iter_mut().zip(steps).zip(verdicts).enumerate() {
        match (at, verdict.unwrap()) {
            (4, PlanVerdict::Fenced) | (14, PlanVerdict::Diverged) => {}
            (9, PlanVerdict::LockLost(lost)) => assert_eq!(lost, [1]),
            (4 | 9 | 14, other) => panic!("{at}: {other:?}"),
            (_, PlanVerdict::Written { .. }) => owner.state = step.next,
            (_, other) => panic!("{at}: {other:?}"),
        }
        if at == 9 {
            // Its lock is gone, which its owner has not been told of.
            Arc::make_mut(&mut owner.state.tasks[1]).lock = None;
        }
        owner.is_as_loaded().await;
        let events = b.ledger.plan_events(owner.state.id, None, 0, 1_000).await.unwrap();
        assert!(events.iter().map(|event| event.seq).eq(1..=events.len() as u64), "{events:#?}");
        for (place, task) in owner.state.tasks.iter().enumerate() {
            let checkpoints = b.ledger.checkpoints(task.id, None, 10).await.unwrap();
            let kept = usize::from(!matches!(at, 4 | 9) && (at, place) != (14, 1));
            assert_eq!(checkpoints.len(), kept, "plan {at}, task {place}");
            let job = task.in_flight().unwrap().1;
            let job = b.ledger.job(job).await.unwrap().unwrap();
            assert_eq!(job.lane, LaneId::plan(owner.state.id));
        }
    }
}

pub async fn a_step_that_was_decided_on_an_older_row_writes_nothing(b: Bench) {
    let mut one = PlanOwner::started(&b, plan(1, &["x", "y"])).await;
    let mut other = one.twin(900);
    one.complete(0, None).await;
    assert_eq!(other.try_step(&Command::PauseTask(task_id(1, 0))).await, PlanVerdict::Diverged);
    one.is_as_loaded().await;
    // With all tasks paused one by one, a pause of the plan writes the plan's row alone.
    for at in 0..2 {
        one.step(&Command::PauseTask(task_id(1, at))).await;
    }
    let mut other = one.twin(950);
    one.step(&Command::Pause).await;
    assert_eq!(other.try_step(&Command::Pause).await, PlanVerdict::Diverged, "the plan's own row");
    one.is_as_loaded().await;
}

pub async fn all_locks_of_a_plan_are_taken_or_none(b: Bench) {
    let mut first = PlanOwner::of(&b, plan(1, &["m"])).await;
    first.step(&Command::Start).await;
    let many: Vec<String> = (0..99).map(|n| format!("t-{n}")).collect();
    let tenants: Vec<_> = many.iter().map(String::as_str).chain(["m"]).collect();
    let mut second = PlanOwner::of(&b, plan(2, &tenants)).await;
    let locked =
        Locker { tenant: TenantId::parse("m").unwrap(), task: Some(task_id(1, 0)), plan: Some(plan_id(1)) };
    assert_eq!(second.try_step(&Command::Start).await, PlanVerdict::Locked(locked));
    assert!(b.ledger.lease(&tenant_lock("t-0")).await.unwrap().is_none_or(|lease| !lease.is_live()));
    second.is_as_loaded().await;
    // Once it is free the same step passes.
    first.step(&Command::Cancel).await;
    second.step(&Command::Start).await;
    assert!(second.state.tasks.iter().all(|task| task.lock.is_some()));
}

pub async fn a_lock_that_is_gone_stops_what_goes_on_under_it_and_nothing_else(b: Bench) {
    let mut owner = PlanOwner::started(&b, plan(1, &["x", "y"])).await;
    let token = owner.state.tasks[0].lock.unwrap();
    let task_owner = InstanceId::parse(&format!("task:{}", task_id(1, 0))).unwrap();
    // An old token breaks nothing.
    assert!(!b.ledger.release(&tenant_lock("x"), &task_owner, Token::new(token.get() - 1)).await.unwrap());
    owner.is_as_loaded().await;
    assert!(b.ledger.release(&tenant_lock("x"), &task_owner, token).await.unwrap());
    let end = StageEnd::Completed(None);
    let late = Command::StageEnded { task: task_id(1, 0), job: owner.in_flight(0), end };
    assert_eq!(owner.try_step(&late).await, PlanVerdict::LockLost(vec![0]));
    owner.complete(1, None).await;
    owner.step(&Command::LockLost(task_id(1, 0), Some(token))).await;
    owner.is_as_loaded().await;
    assert_eq!(owner.state.tasks[0].status, TaskStatus::Interrupted);
    // A retry after somebody's word takes it anew, one token on.
    let resolve =
        Command::Resolve { task: task_id(1, 0), stage: 0, job: None, resolution: Resolution::NotDone };
    owner.step(&resolve).await;
    let retry = domain::plan::Retry {
        from: domain::plan::From::Checkpoint,
        expect: None,
        context: None,
        stages: None,
        config: None,
        max_attempts: None,
        reason: "again".into(),
    };
    owner.step(&Command::Retry(task_id(1, 0), retry)).await;
    assert_eq!(owner.state.tasks[0].lock, Some(Token::new(token.get() + 1)));
    owner.is_as_loaded().await;
}

pub async fn a_lock_that_ran_out_is_the_next_plans(b: Bench) {
    let mut first = PlanOwner::of(&b, plan(1, &["x"])).await;
    let (step, batch) = first.decide(&Command::Start);
    let short = PlanBatch { lock_ms: 1, ..batch };
    let PlanVerdict::Written { locks, .. } = b.ledger.commit_plan(short).await.unwrap() else { panic!() };
    first.state = step.next;
    first.state.locked(locks);
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    // Nobody has taken it: it is the task's still.
    first.step(&Command::Advance).await;
    let listed = b.ledger.plan_tasks(plan_id(1), None, 1).await.unwrap().remove(0);
    assert!(listed.task.lock.is_some() && !listed.is_lock_live);
    let mut second = PlanOwner::of(&b, plan(2, &["x"])).await;
    second.step(&Command::Start).await;
    assert!(b.ledger.plan_tasks(plan_id(2), None, 1).await.unwrap().remove(0).is_lock_live);
    let end = StageEnd::Completed(None);
    let late = Command::StageEnded { task: task_id(1, 0), job: first.in_flight(0), end };
    assert_eq!(first.try_step(&late).await, PlanVerdict::LockLost(vec![0]));
}

pub async fn a_plan_that_is_made_and_started_takes_all_locks_or_is_not_made(b: Bench) {
    let made = b.ledger.create_plan(new_started(&plan(1, &["x", "y"]))).await.unwrap();
    let PlanCreated::Made { locks, .. } = made else { panic!("{made:?}") };
    assert_eq!(locks.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 1]);
    let loaded = b.ledger.load_plan(plan_id(1)).await.unwrap().unwrap();
    assert_eq!((loaded.status(), loaded.version), (PlanStatus::Running, 1));
    assert_eq!(loaded.tasks[1].lock, Some(locks[1].1));
    let refused = b.ledger.create_plan(new_started(&plan(2, &["z", "y"]))).await.unwrap();
    let locker =
        Locker { tenant: TenantId::parse("y").unwrap(), task: Some(task_id(1, 1)), plan: Some(plan_id(1)) };
    assert_eq!(refused, PlanCreated::Locked(locker));
    assert_eq!(b.ledger.load_plan(plan_id(2)).await.unwrap(), None);
    assert_eq!(b.ledger.lease(&tenant_lock("z")).await.unwrap(), None, "no lock is left");
}

fn key_of(scope: &str, hash: u8) -> JobKey {
    let key = domain::IdempotencyKey::parse("k").unwrap();
    JobKey { scope: KeyScope { scope: scope.to_owned(), key }, body_hash: [hash; 32] }
}

pub async fn a_key_of_a_retry_is_kept_with_its_step_and_counts_once(b: Bench) {
    let mut first = PlanOwner::started(&b, plan(1, &["x"])).await;
    let mut second = PlanOwner::started(&b, plan(2, &["y"])).await;
    let asked = |task, hash| Some(RetryKey { key: key_of("retry x", hash), task });
    let kept = async || b.ledger.kept_retry(&key_of("retry x", 0).scope).await.unwrap();
    // A step that is not written keeps no key, under whatever it fails.
    let (_, batch) = first.decide(&Command::Pause);
    let stale = PlanBatch { token: Token::new(99), key: asked(task_id(1, 0), 7), ..batch.clone() };
    assert_eq!(b.ledger.commit_plan(stale).await.unwrap(), PlanVerdict::Fenced);
    let mut next = (*batch.next).clone();
    next.version += 1;
    let diverged = PlanBatch { next: Arc::new(next), key: asked(task_id(1, 0), 7), ..batch.clone() };
    assert_eq!(b.ledger.commit_plan(diverged).await.unwrap(), PlanVerdict::Diverged);
    assert_eq!(kept().await, None);
    // The key is used once, whichever plan comes with it, and a step that comes later is undone.
    let step = PlanBatch { key: asked(task_id(1, 0), 7), ..batch };
    assert!(matches!(b.ledger.commit_plan(step).await.unwrap(), PlanVerdict::Written { .. }));
    let first_use = Some(KeptRetry { body_hash: [7; 32], task: task_id(1, 0) });
    assert_eq!(kept().await, first_use);
    let (_, batch) = second.decide(&Command::Pause);
    for hash in [7, 8] {
        let step = PlanBatch { key: asked(task_id(2, 0), hash), ..batch.clone() };
        assert_eq!(b.ledger.commit_plan(step).await.unwrap(), PlanVerdict::KeyTaken);
        second.is_as_loaded().await;
    }
    assert_eq!(kept().await, first_use);
}

pub async fn a_key_makes_one_plan(b: Bench) {
    let key = |hash: u8| key_of("plan ops", hash);
    let with_key = |n, hash| NewPlan { key: Some(key(hash)), ..new(&plan(n, &["x"])) };
    let kept = async || b.ledger.kept_plan(&key(0).scope).await.unwrap();
    assert_eq!(kept().await, None);
    assert!(matches!(b.ledger.create_plan(with_key(1, 7)).await.unwrap(), PlanCreated::Made { .. }));
    let first_use = KeptPlan { body_hash: [7; 32], plan: plan_id(1) };
    for hash in [7, 8] {
        let again = b.ledger.create_plan(with_key(2, hash)).await.unwrap();
        assert_eq!(again, PlanCreated::Kept(first_use.clone()));
    }
    assert_eq!(kept().await, Some(first_use));
    assert_eq!(b.ledger.load_plan(plan_id(2)).await.unwrap(), None);
    // A plan that is refused keeps no key.
    let mut refused = NewPlan { key: Some(key(7)), ..new_started(&plan(3, &["y"])) };
    refused.key.as_mut().unwrap().scope.scope = "plan other".to_owned();
    PlanOwner::started(&b, plan(4, &["y"])).await;
    assert!(matches!(b.ledger.create_plan(refused.clone()).await.unwrap(), PlanCreated::Locked(_)));
    refused.take.clear();
    assert!(matches!(b.ledger.create_plan(refused).await.unwrap(), PlanCreated::Made { .. }));
}

pub async fn a_step_renews_the_locks_that_it_holds(b: Bench) {
    let mut owner = PlanOwner::started(&b, plan(1, &["x", "y"])).await;
    let left = async |name: &str| b.ledger.lease(&tenant_lock(name)).await.unwrap().unwrap().expires_in_ms;
    owner.complete(0, None).await;
    assert!(left("x").await <= HOUR_MS, "a step by itself renews nothing");
    let (step, mut batch) = owner.decide(&Command::RenewLocks);
    assert!(step.writes.renews);
    batch.lock_ms = 2 * HOUR_MS;
    let verdict = b.ledger.commit_plan(batch).await.unwrap();
    assert!(matches!(verdict, PlanVerdict::Written { .. }), "{verdict:?}");
    for name in ["x", "y"] {
        assert!(left(name).await > HOUR_MS, "{name}");
    }
}

pub async fn a_lock_is_broken_at_its_token_and_the_history_says_by_whom(b: Bench) {
    let mut owner = PlanOwner::started(&b, plan(1, &["x", "y"])).await;
    let (tenant, held) = (TenantId::parse("x").unwrap(), owner.state.tasks[0].lock.unwrap());
    let author = Author { principal: Some("boss".into()), reason: Some("stuck".into()), ..Author::default() };
    let break_at = async |token| b.ledger.break_lock(&tenant, token, &author).await.unwrap();
    assert_eq!(break_at(Token::new(held.get() + 1)).await, LockBreak::OtherToken(held));
    let broken = LockBreak::Broken { task: task_id(1, 0), plan: Some(plan_id(1)) };
    assert_eq!(break_at(held).await, broken);
    assert_eq!(break_at(held).await, LockBreak::NotHeld);
    let nobody = TenantId::parse("nobody").unwrap();
    assert_eq!(b.ledger.break_lock(&nobody, held, &author).await.unwrap(), LockBreak::NotHeld);
    let events = b.ledger.plan_events(plan_id(1), None, 0, 100).await.unwrap();
    let last = events.last().unwrap();
    assert_eq!(last.task, Some(task_id(1, 0)));
    for part in ["lock_broken", "boss", "stuck"] {
        assert!(last.document.contains(part), "{} lacks {part}", last.document);
    }
    // What goes on under the old token is refused.
    let end = StageEnd::Completed(None);
    let command = Command::StageEnded { task: task_id(1, 0), job: owner.in_flight(0), end };
    assert_eq!(owner.try_step(&command).await, PlanVerdict::LockLost(vec![0]));
    // The lock is free for another plan, at a higher token.
    let other = PlanOwner::started(&b, plan(2, &["x"])).await;
    assert!(other.state.tasks[0].lock.unwrap() > held);
}

pub async fn plans_that_ended_long_ago_are_forgotten_and_their_tenants_leases_are_not(b: Bench) {
    let mut over = PlanOwner::started(&b, plan(1, &["x"])).await;
    over.complete(0, None).await;
    over.complete(0, None).await;
    assert!(over.state.status().is_over());
    let mut busy = PlanOwner::started(&b, plan(2, &["y"])).await;
    busy.complete(0, None).await;
    assert_eq!(b.ledger.purge_plans(HOUR_MS, 10).await.unwrap(), 0, "it is too young");
    b.ledger.release(&Resource::plan(plan_id(1)), &over.me, over.token).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    assert_eq!(b.ledger.purge_plans(0, 10).await.unwrap(), 1);
    assert_eq!(b.ledger.load_plan(plan_id(1)).await.unwrap(), None);
    assert_eq!(b.ledger.plan_task(task_id(1, 0)).await.unwrap(), None);
    assert!(b.ledger.plan_events(plan_id(1), None, 0, 10).await.unwrap().is_empty());
    assert!(b.ledger.lease(&tenant_lock("x")).await.unwrap().is_some(), "its next token must be higher");
    assert_eq!(b.ledger.lease(&Resource::plan(plan_id(1))).await.unwrap(), None);
    busy.is_as_loaded().await;
    assert!(b.ledger.checkpoints(task_id(1, 0), None, 10).await.unwrap().is_empty());
    assert_eq!(b.ledger.checkpoints(task_id(2, 0), None, 10).await.unwrap().len(), 1);
    if b.ledger.kind() == ledger::Kind::Sqlite {
        return;
    }
    // Nothing is left but what belongs to the other plan: two stages, the first of them with its checkpoint.
    let left = "SELECT (SELECT count(*) FROM plan_stage_run) * 100 + (SELECT count(*) FROM plan_checkpoint) * 10 \
                + (SELECT count(DISTINCT plan) FROM plan_event)";
    assert_eq!(b.counted_at_last(left).await, 211);
}

pub async fn an_old_plan_that_has_an_owner_keeps_no_other_from_being_forgotten(b: Bench) {
    for (n, tenant) in [(1, "x"), (2, "y")] {
        let mut over = PlanOwner::started(&b, plan(n, &[tenant])).await;
        over.complete(0, None).await;
        over.complete(0, None).await;
        if n == 2 {
            b.ledger.release(&Resource::plan(plan_id(n)), &over.me, over.token).await.unwrap();
        }
    }
    // The older one has an owner.
    eventually("the younger one is forgotten", async || b.ledger.purge_plans(0, 1).await.unwrap() == 1).await;
    assert!(b.ledger.load_plan(plan_id(1)).await.unwrap().is_some());
    assert_eq!(b.ledger.load_plan(plan_id(2)).await.unwrap(), None);
}

pub async fn the_job_of_a_stage_is_kept_while_its_plan_waits_for_the_result(b: Bench) {
    stages_jobs_are_kept_while_waited_for(&b).await;
}

/// The same, for a bench that is used further.
pub async fn stages_jobs_are_kept_while_waited_for(b: &Bench) {
    let mut owner = PlanOwner::of(b, plan(1, &["x"])).await;
    owner.days_ago = 3;
    let lane = Lane { id: LaneId::plan(owner.state.id), owner: owner.me.clone(), token: owner.token };
    owner.step(&Command::Start).await;
    owner.step(&Command::Advance).await;
    let first = owner.in_flight(0);
    b.does(of_lane(&lane, [dispatch(first, 1)])).await;
    b.does(said([complete(first, 1, "1")])).await;
    only_others_are_purged(b, 1, &[first]).await;
    // It has its checkpoint; the next one has none.
    owner.complete(0, None).await;
    let second = owner.in_flight(0);
    b.does(of_lane(&lane, [dispatch(second, 1)])).await;
    b.does(said([complete(second, 1, "2")])).await;
    is_purged(b, first).await;
    only_others_are_purged(b, 2, &[second]).await;
    // Nobody knows what it did, until somebody says so.
    owner.step(&Command::TakenOver).await;
    assert_eq!(owner.state.tasks[0].stages[1].status, StageStatus::Unknown);
    only_others_are_purged(b, 3, &[second]).await;
    let task = owner.state.tasks[0].id;
    owner.step(&Command::Resolve { task, stage: 1, job: None, resolution: Resolution::NotDone }).await;
    // Nobody knows yet that no attempt of it is under way.
    only_others_are_purged(b, 4, &[second]).await;
    owner.step(&Command::OlderEnded { task, job: second }).await;
    is_purged(b, second).await;
}

/// A job of the same day, which is none of a stage, is purged; these are not.
async fn only_others_are_purged(b: &Bench, n: u64, kept: &[JobId]) {
    let (plain, lane) = (job_made(n, 3), b.lane(session(&n.to_string()), &owner("a")).await);
    b.does(of_lane(&lane, [submit_placed(plain)])).await;
    b.does(said([complete(plain, 1, "1")])).await;
    is_purged(b, plain).await;
    // It may have become old between the look at its day and the one at its row.
    eventually("all is old", async || b.ledger.purge_jobs(2, 100).await.is_ok()).await;
    assert!(b.ledger.delete_jobs(kept, None).await.unwrap().is_empty());
    for job in kept {
        assert!(b.ledger.job(*job).await.unwrap().is_some(), "the result of job {job} is still waited for");
    }
}

async fn is_purged(b: &Bench, job: JobId) {
    eventually("it is purged", async || match b.ledger.purge_jobs(2, 100).await {
        Ok(_) => b.ledger.job(job).await.unwrap().is_none(),
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            false
        }
    })
    .await;
}
