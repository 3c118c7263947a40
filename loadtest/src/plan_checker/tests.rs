//! Made-up stories: one that holds, and lies about it, each of which must be found.

use serde_json::json;
use testkit::fault_nodes::{Line, Run, Said, Stage, Wrote};

use super::reported::{Lock, Outcome, RetryFrom};
use super::*;

const TASK: &str = "task-1";
const SECOND: u64 = 1_000_000;

/// An event of the task, as `kind run stage before after`; a dash is nothing.
fn event(text: &str, decision: Option<Decision>) -> Event {
    let words: Vec<_> = text.split(' ').collect();
    let [kind, run, stage, before, after] = words[..] else { panic!("{text}") };
    let word = |word: &str| (word != "-").then(|| word.to_owned());
    Event {
        at: "2026-11-22T10:00:05Z".to_owned(),
        task: Some(TASK.to_owned()),
        kind: kind.to_owned(),
        run: run.parse().ok(),
        stage: stage.parse().ok(),
        before: word(before),
        after: word(after),
        reason: decision.map(|decision| decision.reason()),
        ..Event::default()
    }
}

fn of_plan(kind: &str, before: Option<&str>, after: &str) -> Event {
    let (before, after) = (before.map(str::to_owned), Some(after.to_owned()));
    Event { kind: kind.to_owned(), before, after, ..Event::default() }
}

fn not_done() -> Decision {
    Decision::Resolve { number: 1, stage: 2, outcome: Outcome::NotDone, context: None }
}

fn retry() -> Decision {
    Decision::Retry { number: 2, from: RetryFrom::Checkpoint, patch: Some(json!({ "patched": 2 })) }
}

/// What a node was told of a stage in a run.
fn stage(run: u64, number: u64, context: Value) -> Stage {
    Stage {
        plan: "plan-1".to_owned(),
        task: TASK.to_owned(),
        tenant: "t".to_owned(),
        run,
        name: format!("s{number}"),
        number,
        context,
        config: json!({ "size": 1 }),
        tenant_token: 10 + run as i64,
    }
}

fn attempt(job: &str, attempt: u64) -> Run {
    Run { job: job.to_owned(), attempt }
}

fn began(at_us: u64, job: &str, stage: Stage) -> Line {
    Line { at_us, wrote: Wrote::Began { run: attempt(job, 1), place: None, stage: Some(Box::new(stage)) } }
}

fn ended(at_us: u64, job: &str, output: Value) -> Line {
    Line { at_us, wrote: Wrote::Ended { run: attempt(job, 1), said: Said::Output(output) } }
}

fn committed(at_us: u64, job: &str) -> Line {
    Line { at_us, wrote: Wrote::Settled { run: attempt(job, 1), is_committed: true } }
}

fn diary(node: &str, lines: Vec<Line>) -> Diary {
    let joined = Line { at_us: 1, wrote: Wrote::Joined };
    let lines = std::iter::once(joined).chain(lines).collect();
    Diary { node: node.to_owned(), capacity: 2, lines, ..Diary::default() }
}

/// A task of two stages. Its second stage was lost with its node when the plan's owner died; somebody said that it did
/// nothing, and the retry completed it.
fn good() -> Evidence {
    let checkpoint = |version, run, stages: &[&str], context| Checkpoint {
        version,
        run,
        completed_stages: stages.iter().map(|&name| name.to_owned()).collect(),
        context,
    };
    let checkpoints = vec![
        checkpoint(1, 1, &["s0"], json!({ "n": 0 })),
        checkpoint(2, 2, &["s0", "s1"], json!({ "n": 0, "patched": 2 })),
    ];
    let mut events = vec![
        of_plan("status", None, "CREATED"),
        of_plan("status", Some("CREATED"), "RUNNING"),
        event("status 1 - PENDING RUNNING", None),
        event("stage 1 1 PENDING RUNNING", None),
        event("stage 1 1 RUNNING SUCCEEDED", None),
        event("checkpoint 1 - - -", None),
        event("stage 1 2 PENDING RUNNING", None),
        event("stage 1 2 RUNNING UNKNOWN", None),
        event("status 1 - RUNNING INTERRUPTED", None),
        of_plan("status", Some("RUNNING"), "ATTENTION"),
        event("resolved 1 - - -", Some(not_done())),
        event("stage 1 2 UNKNOWN PENDING", None),
        event("retried 2 - INTERRUPTED PENDING", Some(retry())),
        event("status 2 - PENDING RUNNING", None),
        event("stage 2 2 PENDING RUNNING", None),
        event("stage 2 2 RUNNING SUCCEEDED", None),
        event("checkpoint 2 - - -", None),
        event("status 2 - RUNNING SUCCEEDED", None),
        of_plan("status", Some("ATTENTION"), "SUCCEEDED"),
    ];
    events.iter_mut().zip(1..).for_each(|(event, seq)| event.seq = seq);
    let reported = |status: &str, job: Option<&str>| reported::Stage {
        status: status.to_owned(),
        job: job.map(str::to_owned),
    };
    let task = Task {
        id: TASK.to_owned(),
        tenant: "t".to_owned(),
        status: "SUCCEEDED".to_owned(),
        intent: "run".to_owned(),
        run: 2,
        stages: vec![reported("SKIPPED", None), reported("SUCCEEDED", Some("c"))],
        checkpoint_version: 2,
        lock: None,
    };
    let asked =
        AskedTask { tenant: "t".to_owned(), config: json!({ "size": 1 }), reruns: vec![false, false] };
    let plan = Plan { id: "plan-1".to_owned(), status: "SUCCEEDED".to_owned() };
    let job = |outcome: &str, state: &str, node: &str| {
        json!({
            "state": "FINISHED", "outcome": outcome, "attempt": 1, "node": node, "dispatched_at": "2026-11-22T10:00:04Z",
            "attempts": [{ "attempt": 1, "state": state }],
        })
    };
    let jobs = [
        ("a", job("succeeded", "succeeded", "n1")),
        ("b", job("failed", "node_lost", "n2")),
        ("c", job("succeeded", "succeeded", "n3")),
    ];
    Evidence {
        plans: vec![PlanStory { asked: vec![asked], plan, tasks: vec![(task, checkpoints)], events }],
        listed: vec!["plan-1".to_owned()],
        decided: vec![(TASK.to_owned(), not_done()), (TASK.to_owned(), retry())],
        jobs: jobs.into_iter().map(|(id, job)| (id.to_owned(), job)).collect(),
        diaries: vec![
            diary(
                "n1",
                vec![
                    began(SECOND, "a", stage(1, 1, json!({}))),
                    ended(2 * SECOND, "a", json!({ "context": { "n": 0 } })),
                ],
            ),
            diary(
                "n2",
                vec![
                    began(3 * SECOND, "b", stage(1, 2, json!({ "n": 0 }))),
                    Line { at_us: 9 * SECOND, wrote: Wrote::Died },
                ],
            ),
            diary(
                "n3",
                vec![
                    began(20 * SECOND, "c", stage(2, 2, json!({ "n": 0, "patched": 2 }))),
                    ended(21 * SECOND, "c", json!({ "silent": 1 })),
                    committed(22 * SECOND, "c"),
                ],
            ),
        ],
        grace: Duration::from_secs(2),
    }
}

/// What the checker must say of it, and how the evidence is falsified.
type Lie = (&'static str, fn(&mut Evidence));

/// The event with this text, as [`event`] reads it.
fn at(evidence: &Evidence, text: &str) -> usize {
    let wanted = event(text, None);
    let is_it = |event: &Event| {
        (&event.kind, event.run, event.stage, &event.after, event.task.is_some())
            == (&wanted.kind, wanted.run, wanted.stage, &wanted.after, true)
    };
    evidence.plans[0].events.iter().position(is_it).unwrap()
}

fn remove(evidence: &mut Evidence, text: &str) {
    let at = at(evidence, text);
    evidence.plans[0].events.remove(at);
}

fn insert(evidence: &mut Evidence, before: &str, event: Event) {
    let at = at(evidence, before);
    evidence.plans[0].events.insert(at, event);
}

/// What the second run's attempt was told.
fn last_stage(evidence: &mut Evidence) -> &mut Stage {
    match &mut evidence.diaries[2].lines[1].wrote {
        Wrote::Began { stage: Some(stage), .. } => stage,
        other => panic!("{other:?}"),
    }
}

/// The second stage of the first run goes on, on a node that nobody has lost.
fn let_it_live(evidence: &mut Evidence) {
    evidence.diaries[1].lines[2] = ended(30 * SECOND, "b", json!({}));
}

fn assert_found(lies: &[Lie]) {
    for (word, lie) in lies {
        let mut evidence = good();
        lie(&mut evidence);
        let broken = check(&evidence).broken;
        assert!(broken.iter().any(|line| line.contains(word)), "{word}: {broken:#?}");
    }
}

#[test]
fn a_story_that_holds_is_believed() {
    let findings = check(&good());
    assert_eq!(findings.broken, Vec::<String>::new());
    assert_eq!(
        (findings.counts["stages begun"], findings.counts["retries"]),
        (3, 1),
        "{:?}",
        findings.counts
    );
}

#[test]
fn the_end_of_a_job_that_counts_for_nothing_changes_nothing() {
    let mut evidence = good();
    insert(&mut evidence, "stage 1 2 UNKNOWN PENDING", event("stage 1 2 UNKNOWN UNKNOWN", None));
    // Behind the word, something else must become of the stage.
    assert!(check(&evidence).broken.iter().any(|line| line.contains("after Some((2, NotDone, None))")));
    let mut evidence = good();
    let resolved = at(&evidence, "stage 1 2 UNKNOWN PENDING") - 1;
    evidence.plans[0].events.insert(resolved, event("stage 1 2 UNKNOWN UNKNOWN", None));
    evidence.plans[0].events.iter_mut().zip(1..).for_each(|(event, seq)| event.seq = seq);
    let findings = check(&evidence);
    assert_eq!(findings.broken, Vec::<String>::new());
    assert_eq!(findings.counts["stages that became UNKNOWN"], 1);
}

#[test]
fn what_was_accepted_and_is_not_there_is_found() {
    assert_found(&[
        ("accepted, and not listed", |e| e.listed.clear()),
        ("listed, and nobody made it", |e| e.listed.push("plan-2".to_owned())),
        ("listed twice", |e| e.listed.push("plan-1".to_owned())),
        ("no event tells of it", |e| {
            e.decided.push((TASK.to_owned(), Decision::Unlock { number: 9, token: 11 }));
        }),
        ("was answered 2xx twice", |e| e.decided.push((TASK.to_owned(), retry()))),
        ("its tasks are", |e| e.plans[0].asked[0].tenant = "u".to_owned()),
        ("it has not ended", |e| e.plans[0].tasks[0].0.status = "RUNNING".to_owned()),
        ("it must be SUCCEEDED", |e| {
            e.plans[0].plan.status = "CANCELLED".to_owned();
            e.plans[0].events.last_mut().unwrap().after = Some("CANCELLED".to_owned());
        }),
        ("its events lead to", |e| e.plans[0].plan.status = "CANCELLED".to_owned()),
        ("has the number", |e| e.plans[0].events[3].seq = 7),
        ("its status was", |e| e.plans[0].events[1].before = Some("PAUSED".to_owned())),
        ("its intent was", |e| e.plans[0].events.push(of_plan("intent", Some("pause"), "run"))),
        ("holds its tenant's lock", |e| e.plans[0].tasks[0].0.lock = Some(Lock { token: 12 })),
    ]);
}

#[test]
fn a_stage_that_begins_when_it_must_not_is_found() {
    assert_found(&[
        ("nobody said that the stage did nothing", |e| remove(e, "resolved 1 - - -")),
        ("is UNKNOWN, and nobody resolved it", |e| {
            remove(e, "resolved 1 - - -");
            remove(e, "stage 1 2 UNKNOWN PENDING");
        }),
        ("a stage of a task that is INTERRUPTED", |e| {
            insert(e, "retried 2 - INTERRUPTED PENDING", event("stage 1 2 PENDING RUNNING", None));
        }),
        ("the stage began before in this run", |e| {
            insert(e, "retried 2 - INTERRUPTED PENDING", event("stage 1 2 PENDING RUNNING", None));
        }),
        ("1 stages are completed, and another begins", |e| {
            let begins = at(e, "stage 2 2 PENDING RUNNING");
            e.plans[0].events[begins].stage = Some(1);
        }),
        ("a retry of a task that is RUNNING", |e| remove(e, "status 1 - RUNNING INTERRUPTED")),
        ("this must not follow without a retry", |e| {
            insert(e, "retried 2 - INTERRUPTED PENDING", event("status 1 - INTERRUPTED RUNNING", None));
        }),
        ("nobody decided this", |e| {
            let retried = at(e, "retried 2 - INTERRUPTED PENDING");
            e.plans[0].events[retried].reason = None;
        }),
        ("one decision was carried out twice", |e| {
            let again = event("retried 3 - INTERRUPTED PENDING", Some(retry()));
            insert(e, "stage 2 2 PENDING RUNNING", again);
        }),
        ("after Some((2, NotDone, None))", |e| {
            let resolved = at(e, "stage 1 2 UNKNOWN PENDING");
            e.plans[0].events[resolved].after = Some("SUCCEEDED".to_owned());
        }),
        ("nothing became of it", |e| remove(e, "stage 1 2 UNKNOWN PENDING")),
        ("its intent is run", |e| {
            insert(e, "stage 2 2 PENDING RUNNING", event("intent 2 - pause run", None));
        }),
        ("with the intent pause", |e| {
            insert(e, "stage 2 2 PENDING RUNNING", event("intent 2 - run pause", None));
        }),
        ("this is run 2, not that of", |e| {
            let begins = at(e, "stage 2 2 PENDING RUNNING");
            e.plans[0].events[begins].run = Some(1);
        }),
        ("this must not become of a stage", |e| {
            let begins = at(e, "stage 2 2 PENDING RUNNING");
            e.plans[0].events[begins].after = Some("SUCCEEDED".to_owned());
        }),
        ("it is Task", |e| e.plans[0].tasks[0].0.run = 3),
        ("its status is RUNNING, not that before", |e| {
            let ends = at(e, "status 1 - RUNNING INTERRUPTED");
            e.plans[0].events[ends].before = Some("PENDING".to_owned());
        }),
        ("its stages are", |e| {
            remove(e, "stage 2 2 RUNNING SUCCEEDED");
            remove(e, "checkpoint 2 - - -");
        }),
        ("it has no such stage", |e| {
            let begins = at(e, "stage 2 2 PENDING RUNNING");
            e.plans[0].events[begins].stage = Some(3);
        }),
        ("the stage is PENDING, not that before", |e| {
            let begins = at(e, "stage 2 2 PENDING RUNNING");
            e.plans[0].events[begins].before = Some("UNKNOWN".to_owned());
        }),
        ("stage 1 is not UNKNOWN", |e| {
            let resolved = at(e, "resolved 1 - - -");
            let decision =
                Decision::Resolve { number: 1, stage: 1, outcome: Outcome::NotDone, context: None };
            e.plans[0].events[resolved].reason = Some(decision.reason());
        }),
        ("nobody knows this kind", |e| {
            insert(e, "stage 2 2 PENDING RUNNING", event("restarted 2 - - -", None));
        }),
    ]);
}

#[test]
fn a_checkpoint_that_does_not_follow_is_found() {
    assert_found(&[
        ("must cover 2 stages", |e| e.plans[0].tasks[0].1[1].version = 3),
        ("must cover 2 stages", |e| e.plans[0].tasks[0].1[1].run = 1),
        ("must cover 2 stages", |e| drop(e.plans[0].tasks[0].1[1].completed_stages.pop())),
        ("its checkpoint is not there", |e| drop(e.plans[0].tasks[0].1.pop())),
        ("tell of 2 checkpoints", |e| {
            let newest = e.plans[0].tasks[0].1[1].clone();
            e.plans[0].tasks[0].1.push(newest);
        }),
        ("no checkpoint was written", |e| remove(e, "checkpoint 2 - - -")),
        ("no stage was completed before this checkpoint", |e| {
            let (task, checkpoints) = &mut e.plans[0].tasks[0];
            task.checkpoint_version = 3;
            checkpoints.push(Checkpoint { version: 3, ..checkpoints[1].clone() });
            insert(e, "status 2 - RUNNING SUCCEEDED", event("checkpoint 2 - - -", None));
        }),
        ("a stage was completed at last", |e| {
            let written = at(e, "checkpoint 2 - - -");
            e.plans[0].events.truncate(written);
        }),
        ("was decided at last", |e| {
            let becomes = at(e, "stage 1 2 UNKNOWN PENDING");
            e.plans[0].events.truncate(becomes);
        }),
        ("the context that was left is", |e| e.plans[0].tasks[0].1[0].context = json!({ "n": 7 })),
        ("no node wrote down the result", |e| drop(e.diaries[0].lines.pop())),
        ("there is no such checkpoint", |e| {
            let from = RetryFrom::CheckpointVersion(2);
            let retried = at(e, "retried 2 - INTERRUPTED PENDING");
            let decision = Decision::Retry { number: 2, from, patch: None };
            e.plans[0].events[retried].reason = Some(decision.reason());
        }),
    ]);
}

#[test]
fn a_node_that_ran_something_else_is_found() {
    assert_found(&[
        ("no event says that this began", |e| last_stage(e).run = 3),
        ("nobody made it", |e| last_stage(e).task = "task-2".to_owned()),
        ("the last checkpoint before it left", |e| last_stage(e).context = json!({ "n": 0 })),
        ("it was made for", |e| last_stage(e).config = json!(null)),
        ("the tokens of its runs do not grow", |e| last_stage(e).tenant_token = 11),
        ("a run has two tokens", |e| {
            let Wrote::Began { stage: Some(stage), .. } = &mut e.diaries[1].lines[1].wrote else { panic!() };
            stage.tenant_token = 12;
        }),
        ("nowhere to be found", |e| drop(e.jobs.remove("b"))),
        ("is not finished", |e| e.jobs.get_mut("b").unwrap()["state"] = json!("RUNNING")),
        ("was dispatched after it had become UNKNOWN", |e| {
            e.jobs.get_mut("b").unwrap()["dispatched_at"] = json!("2026-11-22T10:00:06Z");
        }),
        ("another after it", |e| e.jobs.get_mut("b").unwrap()["attempt"] = json!(2)),
        ("is told as", |e| e.plans[0].tasks[0].0.stages[1].job = Some("d".to_owned())),
        ("the newest attempt is 0", |e| e.jobs.get_mut("b").unwrap()["attempt"] = json!(0)),
        ("is FAILED, and its job succeeded", |e| {
            for text in ["stage 2 2 RUNNING SUCCEEDED", "status 2 - RUNNING SUCCEEDED"] {
                let ends = at(e, text);
                e.plans[0].events[ends].after = Some("FAILED".to_owned());
            }
        }),
        ("one run of a stage is two jobs", |e| {
            let again = [began(25 * SECOND, "d", last_stage(e).clone()), ended(26 * SECOND, "d", json!({}))];
            e.diaries[2].lines.extend(again);
        }),
        ("was committed to n3", |e| e.jobs.get_mut("c").unwrap()["outcome"] = json!("cancelled")),
        ("was committed to n2", |e| {
            let failed = Wrote::Ended { run: attempt("b", 1), said: Said::Failure };
            e.diaries[1].lines[2] = Line { at_us: 9 * SECOND, wrote: failed };
            e.diaries[1].lines.push(committed(10 * SECOND, "b"));
        }),
        ("was told", |e| e.diaries[0].blames.push("it is not with this node".to_owned())),
    ]);
}

/// The job of the first run's second stage failed, as its one attempt is said to have ended.
fn fails_as(evidence: &mut Evidence, ended: &str) {
    evidence.jobs.get_mut("b").unwrap()["attempts"][0]["state"] = json!(ended);
}

/// That attempt's node says so of its end, and stays within reach.
fn says(evidence: &mut Evidence, said: Said) {
    let wrote = Wrote::Ended { run: attempt("b", 1), said };
    evidence.diaries[1].lines[2] = Line { at_us: 9 * SECOND, wrote };
}

/// That job was finished then.
fn is_finished(evidence: &mut Evidence, finished_at: &str) {
    evidence.jobs.get_mut("b").unwrap()["finished_at"] = json!(finished_at);
}

/// That attempt's node says so of its end, and is not out of reach until the job was finished long since.
fn says_and_parts_late(evidence: &mut Evidence, said: Said) {
    says(evidence, said);
    fails_as(evidence, "unlisted");
    is_finished(evidence, "1970-01-01T00:00:09Z");
    evidence.diaries[1].lines.push(Line { at_us: 40 * SECOND, wrote: Wrote::Parted });
}

/// No node ever began that job.
fn begins_nowhere(evidence: &mut Evidence) {
    evidence.diaries[1].lines.truncate(1);
}

/// With that job the stage and the task failed, and were retried.
fn is_told_as_failed(evidence: &mut Evidence) {
    remove(evidence, "resolved 1 - - -");
    remove(evidence, "stage 1 2 UNKNOWN PENDING");
    for text in ["stage 1 2 RUNNING UNKNOWN", "status 1 - RUNNING INTERRUPTED"] {
        let ends = at(evidence, text);
        evidence.plans[0].events[ends].after = Some("FAILED".to_owned());
    }
    let retried = at(evidence, "retried 2 - INTERRUPTED PENDING");
    evidence.plans[0].events[retried].before = Some("FAILED".to_owned());
    evidence.plans[0].events.iter_mut().zip(1..).for_each(|(event, seq)| event.seq = seq);
    evidence.decided.remove(0);
}

#[test]
fn a_failure_that_its_node_does_not_bear_out_is_found() {
    let lies: [fn(&mut Evidence); 10] = [
        |e| fails_as(e, "failed"),
        |e| fails_as(e, "not_acknowledged"),
        |e| says(e, Said::Nothing),
        |e| {
            says(e, Said::Failure);
            e.jobs.get_mut("b").unwrap()["attempts"] = json!([]);
        },
        |e| {
            says(e, Said::Failure);
            fails_as(e, "failed");
            e.jobs.get_mut("b").unwrap()["node"] = json!("n3");
        },
        |e| {
            begins_nowhere(e);
            fails_as(e, "failed");
        },
        |e| {
            begins_nowhere(e);
            fails_as(e, "node_lost_unsent");
        },
        |e| {
            begins_nowhere(e);
            fails_as(e, "unlisted");
        },
        |e| says_and_parts_late(e, Said::Failure),
        |e| says_and_parts_late(e, Said::Output(json!({}))),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let mut evidence = good();
        is_told_as_failed(&mut evidence);
        assert_eq!(check(&evidence).broken, Vec::<String>::new());
        lie(&mut evidence);
        let broken = check(&evidence).broken;
        assert!(broken.len() == 1 && broken[0].contains("does not bear out"), "{number}: {broken:#?}");
    }
}

#[test]
fn a_failure_that_its_node_said_or_that_was_lost_with_it_is_believed() {
    let truths: [fn(&mut Evidence); 7] = [
        |e| {
            says(e, Said::Failure);
            fails_as(e, "failed");
        },
        // It dies before anybody hears that it failed.
        |e| {
            says(e, Said::Failure);
            e.diaries[1].lines.push(Line { at_us: 10 * SECOND, wrote: Wrote::Died });
        },
        // The order to stop reaches it before it notices that its instance has gone.
        |e| {
            says(e, Said::Nothing);
            e.diaries[1].lines.push(Line { at_us: 12 * SECOND, wrote: Wrote::Parted });
        },
        // It is given up before it notices that its instance has gone, and owes its result meanwhile.
        |e| {
            says(e, Said::Failure);
            is_finished(e, "1970-01-01T00:00:07Z");
            e.diaries[1].lines.push(Line { at_us: 15 * SECOND, wrote: Wrote::Parted });
        },
        // It is out of reach later, and nobody can read when it was given up.
        |e| {
            says_and_parts_late(e, Said::Failure);
            is_finished(e, "soon");
        },
        // Its dispatch was lost with its connection.
        begins_nowhere,
        |e| fails_as(e, "unlisted"),
    ];
    for (number, truth) in truths.into_iter().enumerate() {
        let mut evidence = good();
        is_told_as_failed(&mut evidence);
        truth(&mut evidence);
        assert_eq!(check(&evidence).broken, Vec::<String>::new(), "{number}");
    }
}

#[test]
fn a_job_of_the_newest_run_that_no_node_began_is_looked_at() {
    let unbegun = |e: &mut Evidence| e.diaries[2].lines.truncate(1);
    let mut evidence = good();
    unbegun(&mut evidence);
    evidence.jobs.get_mut("c").unwrap()["state"] = json!("CREATED");
    let broken = check(&evidence).broken;
    assert!(
        broken.iter().any(|line| line.contains("the job of stage (2, 2) is not finished")),
        "{broken:#?}"
    );
    evidence.jobs.remove("c");
    let broken = check(&evidence).broken;
    assert!(broken.iter().any(|line| line.contains("the job c of stage (2, 2) is nowhere")), "{broken:#?}");
    let mut evidence = good();
    remove(&mut evidence, "stage 2 2 PENDING RUNNING");
    unbegun(&mut evidence);
    let broken = check(&evidence).broken;
    assert!(broken.iter().any(|line| line.contains("has the job c, and no event says")), "{broken:#?}");
}

#[test]
fn two_attempts_at_once_are_found_unless_the_older_ones_node_was_out_of_reach() {
    assert_found(&[("two attempts at once", let_it_live)]);
    let parted_from_to = |from: u64, to: u64| {
        let mut evidence = good();
        let_it_live(&mut evidence);
        let line = |at: u64, wrote| Line { at_us: at * SECOND, wrote };
        let lines = &mut evidence.diaries[1].lines;
        lines.splice(2..2, [line(from, Wrote::Parted), line(to, Wrote::Joined)]);
        check(&evidence).broken
    };
    assert_eq!(parted_from_to(4, 6), Vec::<String>::new(), "it was away for the grace");
    assert_eq!(parted_from_to(18, 19), Vec::<String>::new(), "it was away a moment before");
    assert_eq!(parted_from_to(19, 25), Vec::<String>::new(), "it was away when the newer one began");
    assert!(
        parted_from_to(4, 5)[0].contains("two attempts at once"),
        "it was back before the grace was over"
    );
    assert!(parted_from_to(22, 29)[0].contains("two attempts at once"), "it left after the newer one began");
}

#[test]
fn a_stage_that_is_run_to_its_end_twice_by_one_job_is_found() {
    let mut evidence = good();
    let Wrote::Began { stage, .. } = evidence.diaries[2].lines[1].wrote.clone() else { panic!() };
    // The first one was not confirmed.
    evidence.diaries[2].lines.pop();
    let second = attempt("c", 2);
    let lines = [
        Line { at_us: 25 * SECOND, wrote: Wrote::Began { run: second.clone(), place: None, stage } },
        Line { at_us: 26 * SECOND, wrote: Wrote::Ended { run: second, said: Said::Output(json!({})) } },
    ];
    evidence.diaries[0].lines.extend(lines);
    let job = evidence.jobs.get_mut("c").unwrap();
    job["attempt"] = json!(2);
    job["attempts"] =
        json!([{ "attempt": 1, "state": "not_acknowledged" }, { "attempt": 2, "state": "succeeded" }]);
    let broken = check(&evidence).broken;
    assert!(broken.len() == 1 && broken[0].contains("run to its end twice"), "{broken:#?}");
}

#[test]
fn a_token_that_does_not_grow_from_task_to_task_is_found_unless_its_stage_began_late() {
    let other = |at: u64, token: i64, woke: Option<u64>| {
        let mut evidence = good();
        let mut other = stage(1, 1, json!({}));
        (other.task, other.tenant_token) = ("task-2".to_owned(), token);
        let mut lines = vec![began(at * SECOND, "d", other), ended((at + 1) * SECOND, "d", json!({}))];
        if let Some(woke) = woke {
            let line = |at, wrote| Line { at_us: at * SECOND, wrote };
            lines.splice(0..0, [line(woke - 5, Wrote::Stopped), line(woke, Wrote::Woke)]);
        }
        evidence.diaries.push(diary("n4", lines));
        let broken = check(&evidence).broken;
        broken.into_iter().filter(|line| line.starts_with("tenant")).collect::<Vec<_>>()
    };
    assert_eq!(other(30, 13, None), Vec::<String>::new());
    assert!(other(30, 11, None)[0].contains("a lower token after a higher one"));
    assert!(other(30, 12, None)[0].contains("two tasks of it have one token"));
    assert!(other(4, 13, None)[0].contains("a lower token after a higher one"));
    assert_eq!(other(30, 10, Some(29)), Vec::<String>::new(), "its dispatch lay in the socket");
    assert!(other(30, 10, Some(27))[0].contains("a lower token after a higher one"));
}

#[test]
fn a_retry_from_the_start_and_one_that_may_rerun_a_stage_are_believed() {
    let mut evidence = good();
    evidence.plans[0].asked[0].reruns[1] = true;
    remove(&mut evidence, "resolved 1 - - -");
    remove(&mut evidence, "stage 1 2 UNKNOWN PENDING");
    evidence.plans[0].events.iter_mut().zip(1..).for_each(|(event, seq)| event.seq = seq);
    evidence.decided.remove(0);
    assert_eq!(check(&evidence).broken, Vec::<String>::new(), "rerun");
    let retried = at(&evidence, "retried 2 - INTERRUPTED PENDING");
    let decision = Decision::Retry { number: 2, from: RetryFrom::Start, patch: None };
    evidence.plans[0].events[retried].reason = Some(decision.reason());
    let broken = check(&evidence).broken;
    assert!(
        broken.iter().any(|line| line.contains("0 stages are completed, and another begins")),
        "{broken:#?}"
    );
}
