//! Plans under two leases: what a person has not asked for never runs twice, a task keeps its tenant's lock through
//! everything that befalls instances, and each condition left out is missed.

use model::plans::properties::{
    BOTH_SUCCEED, LATE_COMMIT, LATE_RESULT_COUNTS, LOCK_CHANGES_HANDS, LOCK_RUNS_OUT, MAKER_IS_LATE,
    OLDER_ATTEMPT_RUNS_ON, PAUSED_OWNER_WAKES, RESTART_IS_SURVIVED, TWO_TASKS_RUN,
};
use model::plans::{Bounds, PlansModel, Rules, Trap};
use stateright::Expectation;

/// Two instances, one plan, and one takeover.
const ONE_TAKEOVER: Bounds = Bounds {
    instances: 2,
    plans: 1,
    acquisitions: 2,
    words: 1,
    lost_verdicts: 0,
    unheard_acquires: 0,
    failures: 0,
    breaks: 0,
    run_outs: 0,
    restarts: 0,
};

/// One plan that goes there and back again, is retried after a failure or a resolution, and suffers one of every accident
/// that needs no other plan.
const OWNERS: Bounds = Bounds {
    acquisitions: 3,
    words: 2,
    lost_verdicts: 1,
    unheard_acquires: 1,
    failures: 1,
    restarts: 1,
    ..ONE_TAKEOVER
};

/// Two plans, and a person breaks the lock of one.
const BREAKS: Bounds = Bounds { plans: 2, acquisitions: 3, lost_verdicts: 1, breaks: 1, ..ONE_TAKEOVER };

/// Two plans whose lock goes from one to the other by time as well, and nobody says anything else.
const RUN_OUTS: Bounds = Bounds { words: 0, run_outs: 1, ..BREAKS };

/// Two plans, and all instances die.
const RESTARTS: Bounds = Bounds { plans: 2, acquisitions: 3, run_outs: 1, restarts: 1, ..ONE_TAKEOVER };

/// What must be possible, and where it is.
const SHOWN: [(Bounds, &[&str]); 4] = [
    (
        OWNERS,
        &[
            LATE_RESULT_COUNTS,
            OLDER_ATTEMPT_RUNS_ON,
            LATE_COMMIT,
            PAUSED_OWNER_WAKES,
            MAKER_IS_LATE,
            RESTART_IS_SURVIVED,
        ],
    ),
    (BREAKS, &[LOCK_CHANGES_HANDS, TWO_TASKS_RUN, BOTH_SUCCEED, LATE_COMMIT]),
    (RUN_OUTS, &[LOCK_CHANGES_HANDS, LOCK_RUNS_OUT, TWO_TASKS_RUN]),
    (RESTARTS, &[RESTART_IS_SURVIVED, LOCK_RUNS_OUT, BOTH_SUCCEED]),
];

fn keeps_every_promise(bounds: Bounds) {
    let shown = SHOWN.iter().find(|(shown_in, _)| *shown_in == bounds).map_or(&[][..], |(_, shown)| shown);
    crate::search::keeps_every_promise_and_shows(PlansModel { rules: Rules::sound(), bounds }, shown);
}

fn is_caught(trap: Trap, bounds: Bounds) {
    let shut = PlansModel { rules: Rules::sound(), bounds };
    let open = PlansModel { rules: trap.reopened(), bounds };
    crate::search::is_caught(&format!("{trap:?}"), trap.breaks(), shut, open);
    crate::search::breaks_nothing_else(&format!("{trap:?}"), trap.breaks(), open);
}

#[test]
fn a_plan_keeps_every_promise_through_every_accident_of_its_owners() {
    keeps_every_promise(OWNERS);
}

#[test]
fn two_plans_of_one_tenant_keep_every_promise_when_a_person_breaks_the_lock() {
    keeps_every_promise(BREAKS);
}

#[test]
fn two_plans_of_one_tenant_keep_every_promise_when_the_lock_runs_out() {
    keeps_every_promise(RUN_OUTS);
}

#[test]
fn two_plans_of_one_tenant_keep_every_promise_through_a_restart_of_all() {
    keeps_every_promise(RESTARTS);
}

#[test]
fn every_promise_is_broken_by_some_trap_and_every_feared_run_is_there() {
    for property in model::plans::properties::all() {
        let is_shown = match property.expectation {
            Expectation::Always => Trap::ALL.into_iter().any(|trap| trap.breaks().contains(&property.name)),
            _ => SHOWN.iter().any(|(_, shown)| shown.contains(&property.name)),
        };
        assert!(is_shown, "nothing shows that this is ever so: {}", property.name);
    }
}

#[test]
fn a_step_that_ignores_the_tenants_lock_goes_on_under_anothers() {
    is_caught(Trap::StepIgnoresLock, Bounds { plans: 2, breaks: 1, ..ONE_TAKEOVER });
}

#[test]
fn an_owner_that_takes_a_late_result_after_the_loss_of_the_lock_writes_a_checkpoint_without_it() {
    is_caught(Trap::EndIgnoresLostLock, Bounds { breaks: 1, ..ONE_TAKEOVER });
}

#[test]
fn a_step_that_ignores_the_plans_lease_commits_beside_the_new_owner() {
    is_caught(Trap::StepIgnoresPlanLease, ONE_TAKEOVER);
}

#[test]
fn a_step_that_ignores_the_rows_version_begins_again_what_another_owner_did() {
    is_caught(Trap::StepIgnoresVersion, ONE_TAKEOVER);
}

#[test]
fn a_takeover_that_dispatches_runs_a_stage_twice() {
    is_caught(Trap::TakeoverBeginsAgain, ONE_TAKEOVER);
}

#[test]
fn a_restart_that_ends_every_lease_frees_locks() {
    is_caught(Trap::RestartFreesLocks, Bounds { plans: 2, restarts: 1, ..ONE_TAKEOVER });
}

#[test]
fn a_break_that_names_no_token_frees_the_next_tasks_lock() {
    is_caught(Trap::BreakNamesNoToken, Bounds { plans: 2, breaks: 1, ..ONE_TAKEOVER });
}

#[test]
fn a_retry_that_guesses_runs_an_unknown_stage_again() {
    is_caught(Trap::RetryGuesses, ONE_TAKEOVER);
}

#[test]
fn a_retry_that_does_not_wait_runs_beside_the_older_attempt() {
    is_caught(Trap::RetryDoesNotWait, Bounds { failures: 1, ..ONE_TAKEOVER });
}

#[test]
fn an_owner_that_comes_back_after_another_goes_on_with_what_it_was_not_told() {
    is_caught(Trap::AnewAsTheOwner, Bounds { acquisitions: 3, lost_verdicts: 1, ..ONE_TAKEOVER });
}

#[test]
fn an_owner_that_serves_before_the_hold_has_its_own_job_held() {
    is_caught(Trap::ServesBeforeHold, ONE_TAKEOVER);
}

#[test]
fn an_owner_that_does_not_look_for_the_lock_has_its_task_wait_for_ever() {
    is_caught(Trap::ReadTrustsLock, Bounds { breaks: 1, ..ONE_TAKEOVER });
}
