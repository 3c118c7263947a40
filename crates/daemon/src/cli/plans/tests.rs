//! The options of `fencepost plan` and `fencepost tenant` as they are read, and wrong usage.

use clap::{CommandFactory, Parser};

use super::*;
use crate::cli::{Cli, Command};

const REASON: [&str; 2] = ["--reason", "because of it"];

fn parse(line: &str, more: &[&str]) -> Result<Command, clap::Error> {
    let words = ["fencepost"].into_iter().chain(line.split(' ')).chain(more.iter().copied());
    Cli::try_parse_from(words).map(|cli| cli.command)
}

fn plan(line: &str, more: &[&str]) -> Plan {
    match parse(line, more) {
        Ok(Command::Plan(plan)) => plan,
        other => panic!("{line}: {other:?}"),
    }
}

fn tenant(line: &str, more: &[&str]) -> Tenant {
    match parse(line, more) {
        Ok(Command::Tenant(tenant)) => tenant,
        other => panic!("{line}: {other:?}"),
    }
}

fn retry(options: &[&str]) -> TaskRetryRequest {
    let options = [options, &REASON].concat();
    let Plan::Retry { options, .. } = plan("plan retry k", &options) else { panic!("{options:?}") };
    options.request(None)
}

#[test]
fn a_plan_is_created_from_a_file_or_from_standard_input() {
    let Plan::Create { file, start, key, remote } =
        plan("plan create -f plan.json --start --idempotency-key K --url http://a --token T --json", &[])
    else {
        panic!("create")
    };
    assert_eq!((file, start, key.as_deref()), (PathBuf::from("plan.json"), true, Some("K")));
    assert_eq!(
        (remote.url, remote.bearer.token.as_deref(), remote.json),
        (vec!["http://a".to_owned()], Some("T"), true)
    );
    let Plan::Create { file, start, key, .. } = plan("plan create --file - --key K", &[]) else {
        panic!("create")
    };
    assert_eq!((file, start, key.as_deref()), (PathBuf::from("-"), false, Some("K")));
    let command = Cli::command();
    let create = command.find_subcommand("plan").unwrap().find_subcommand("create").unwrap();
    let key = create.get_arguments().find(|arg| arg.get_id().as_str() == "key").unwrap();
    assert_eq!(key.get_long_and_visible_aliases(), Some(vec!["key"]), "as every other command has it");
}

#[test]
fn plans_and_tasks_are_steered_with_or_without_a_reason() {
    let given = |change: Change| (change.plan, change.reason);
    let Plan::Start(change) = plan("plan start p", &[]) else { panic!("start") };
    assert_eq!(given(change), ("p".to_owned(), None));
    for line in ["plan pause p", "plan resume p", "plan cancel p"] {
        let (Plan::Pause(change) | Plan::Resume { change, .. } | Plan::Cancel { change, .. }) =
            plan(line, &REASON)
        else {
            panic!("{line}")
        };
        assert_eq!(given(change), ("p".to_owned(), Some("because of it".to_owned())), "{line}");
    }
    for line in ["plan pause-task k", "plan resume-task k", "plan cancel-task k"] {
        let (Plan::PauseTask(change) | Plan::ResumeTask(change) | Plan::CancelTask { change, .. }) =
            plan(line, &REASON)
        else {
            panic!("{line}")
        };
        assert_eq!((change.task.as_str(), change.reason.as_deref()), ("k", Some("because of it")), "{line}");
    }
    for (line, keeps) in [("plan resume p", false), ("plan resume p --keep-paused", true)] {
        let Plan::Resume { keep_paused, .. } = plan(line, &[]) else { panic!("{line}") };
        assert_eq!(keep_paused, keeps, "{line}");
    }
    for (line, run) in [("plan cancel-task k", None), ("plan cancel-task k --expect-run 2", Some(2))] {
        let Plan::CancelTask { expect_run, .. } = plan(line, &[]) else { panic!("{line}") };
        assert_eq!(expect_run, run, "{line}");
    }
}

#[test]
fn a_plan_and_a_task_are_cancelled_without_a_question_where_yes_is_said() {
    for (line, is_sure) in [
        ("plan cancel p", false),
        ("plan cancel p --yes", true),
        ("plan cancel-task p", false),
        ("plan cancel-task -y p --json", true),
    ] {
        let (Plan::Cancel { yes, .. } | Plan::CancelTask { yes, .. }) = plan(line, &[]) else {
            panic!("{line}")
        };
        assert_eq!(yes, is_sure, "{line}");
    }
}

#[test]
fn plans_are_listed_shown_and_watched() {
    let Plan::List { status, paged, .. } = plan("plan list --status attention --limit 5 --cursor c", &[])
    else {
        panic!("list")
    };
    assert_eq!(
        (status, paged.limit, paged.cursor.as_deref()),
        (Some(PlanStatus::Attention), Some(5), Some("c"))
    );
    for (line, is_watched) in
        [("plan show p", false), ("plan show p -w", true), ("plan show --watch p --json", true)]
    {
        let Plan::Show { plan, shown } = plan(line, &[]) else { panic!("{line}") };
        assert_eq!((plan.as_str(), shown.watch), ("p", is_watched), "{line}");
    }
    for (line, limit) in [("plan wait p", None), ("plan wait p --at-most 5m", Some(Duration::from_secs(300)))]
    {
        let Plan::Wait { plan, at_most, .. } = plan(line, &[]) else { panic!("{line}") };
        assert_eq!((plan.as_str(), at_most), ("p", limit), "{line}");
    }
    for (line, is_watched) in [("plan events p --json", false), ("plan events p -w", true)] {
        let Plan::Events { plan, shown, .. } = plan(line, &[]) else { panic!("{line}") };
        assert_eq!((plan.as_str(), shown.watch), ("p", is_watched), "{line}");
    }
    assert!(matches!(plan("plan task k --json", &[]), Plan::Task { task, .. } if task == "k"));
    assert!(matches!(plan("plan stages k --json", &[]), Plan::Stages { task, .. } if task == "k"));
    let Plan::Checkpoints { task, paged, .. } = plan("plan checkpoints k --limit 5 --cursor c.3", &[]) else {
        panic!("checkpoints")
    };
    assert_eq!((task.as_str(), paged.limit, paged.cursor.as_deref()), ("k", Some(5), Some("c.3")));
}

#[test]
fn a_stage_is_resolved_by_name_or_number() {
    let Plan::Resolve { task, stage, outcome, context, job, reason, .. } =
        plan("plan resolve k migrate done --context {\"a\":1} --job j", &REASON)
    else {
        panic!("resolve")
    };
    assert_eq!((task.as_str(), stage.as_str(), outcome), ("k", "migrate", StageOutcome::Done));
    assert_eq!((context.unwrap().as_str(), reason.as_str()), ("{\"a\":1}", "because of it"));
    assert_eq!(job.as_deref(), Some("j"));
    let Plan::Resolve { stage, outcome, context, job: None, .. } = plan("plan resolve k 4 not_done", &REASON)
    else {
        panic!("resolve")
    };
    assert_eq!((stage.as_str(), outcome, context), ("4", StageOutcome::NotDone, None));
}

#[test]
fn every_option_of_a_retry_is_a_field_of_the_request() {
    let point = |point| RetryFrom::Point(point);
    assert_eq!(retry(&[]), TaskRetryRequest::new(point(RetryPoint::Checkpoint), "because of it"));
    assert_eq!(retry(&["--from", "start"]).from, point(RetryPoint::Start));
    let version = RetryFrom::Version(CheckpointVersion { checkpoint_version: 7 });
    assert_eq!(retry(&["--from", "7"]).from, version);
    let all = retry(&[
        "--expect-run",
        "2",
        "--expect-checkpoint",
        "0",
        "--context-patch",
        r#"{ "a": null }"#,
        "--config",
        "[1]",
        "--max-attempts",
        "3",
        "--dry-run",
    ]);
    assert_eq!(all.expect, Some(ExpectedTask { run: 2, checkpoint_version: 0 }));
    assert_eq!(all.context_patch.unwrap().as_str(), r#"{ "a": null }"#);
    assert_eq!(all.config.unwrap().as_str(), "[1]");
    assert_eq!((all.max_attempts, all.dry_run), (Some(3), Some(true)));

    let Tenant::Retry { tenant, options, .. } = tenant("tenant retry t --stages s.json", &REASON) else {
        panic!("retry")
    };
    assert_eq!((tenant.as_str(), options.stages.as_deref()), ("t", Some(std::path::Path::new("s.json"))));
    let stages = vec![StageRequest::new("s", Json::null())];
    assert_eq!(options.request(Some(stages.clone())).stages, Some(stages));
}

#[test]
fn tenants_are_shown_and_unlocked() {
    assert!(matches!(tenant("tenant show t --json", &[]), Tenant::Show { tenant, .. } if tenant == "t"));
    let Tenant::History { tenant: name, paged, .. } = tenant("tenant history t --limit 1000", &[]) else {
        panic!("history")
    };
    assert_eq!((name.as_str(), paged.limit), ("t", Some(1000)));
    for (line, is_sure) in [
        ("tenant unlock t --lock-token 7", false),
        ("tenant unlock t --lock-token 7 --yes --token bearer", true),
    ] {
        let Tenant::Unlock { tenant, lock_token, reason, yes, .. } = tenant(line, &REASON) else {
            panic!("{line}")
        };
        assert_eq!(
            (tenant.as_str(), lock_token, yes, reason.as_str()),
            ("t", 7, is_sure, "because of it"),
            "{line}"
        );
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    for line in [
        "plan",
        "plan create",
        "plan create plan.json",
        "plan start",
        "plan start p --json --no",
        "plan list --status DONE",
        "plan wait",
        "plan wait p --at-most 90",
        "plan list --limit 1001",
        "plan resolve k 4 done",
        "plan resolve k 4 maybe --reason r",
        "plan resolve k 4 done --reason r --context 7",
        "plan resolve k 4 done --reason r --context {",
        "plan retry k",
        "plan retry k --reason r --from end",
        "plan retry k --reason r --from 0",
        "plan retry k --reason r --from 1001",
        "plan retry k --reason r --expect-run 1",
        "plan retry k --reason r --expect-checkpoint 1",
        "plan retry k --reason r --expect-run 0 --expect-checkpoint 1",
        "plan retry k --reason r --context-patch []",
        "plan retry k --reason r --config {a",
        "plan retry k --reason r --max-attempts 0",
        "plan retry k --reason r --max-attempts 101",
        "tenant unlock t --lock-token 7",
        "tenant unlock t --token 7 --reason r",
        "tenant unlock t --reason r",
        "tenant unlock t --lock-token -1 --reason r",
        "tenant history",
    ] {
        assert_eq!(parse(line, &[]).expect_err(line).exit_code(), 2, "{line}");
    }
}

#[test]
fn what_only_an_operator_may_do_says_so() {
    let command = Cli::command();
    for path in [
        "plan resolve",
        "tenant unlock",
        "nonce policy",
        "nonce resolve",
        "nonce confirm",
        "id set-segment",
        "id set-sequence",
        "audit list",
        "nodes drain",
        "nodes undrain",
        "pool pause",
        "pool resume",
        "pool set",
    ] {
        let (group, name) = path.split_once(' ').unwrap();
        let group = command.find_subcommand(group).unwrap();
        let about = group.find_subcommand(name).unwrap().get_about().unwrap().to_string();
        assert!(about.contains("(scope admin)"), "{path}: {about}");
    }
}
