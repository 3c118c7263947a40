//! Verifies what became of jobs: what was accepted, what the instances say of it in the end, and what the nodes wrote in
//! their diaries must tell one story. Pure.

mod overlaps;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use client::wire::worker::close;
use serde_json::Value;
use testkit::fault_nodes::{Diary, Run, Said, Wrote};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Close codes that an honest node may see; 0 stands for a close without one.
const CLOSES: [u16; 6] = [0, 1006, close::GOING_AWAY, close::PROTOCOL, close::REPLACED, close::SLOW_READER];

/// What a job can come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hope {
    /// It succeeds, sooner or later.
    Success,
    /// It fails for good, as it was told to.
    Failure,
    /// It is called off at some moment, if it is not done by then.
    SuccessOrCancelled,
}

/// A job that was accepted.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Its id.
    pub id: String,
    /// What its payload is recognised by.
    pub number: u64,
    /// What it can come to.
    pub hope: Hope,
    /// Its outcome, if it was told already by the answer to a call that calls it off.
    pub answered: Option<String>,
    /// The strict session that it belongs to; its jobs were submitted in the order of their numbers.
    pub session: Option<String>,
}

/// All that is to be verified.
#[derive(Debug, Default)]
pub struct Evidence {
    /// What was accepted.
    pub accepted: Vec<Accepted>,
    /// What the instances say of it, by id.
    pub jobs: HashMap<String, Value>,
    /// What the nodes wrote.
    pub diaries: Vec<Diary>,
}

/// Broken promises, in words. Empty is what we want.
#[must_use]
pub fn check(evidence: &Evidence) -> Vec<String> {
    let mut broken = Vec::new();
    let diaries = Diaries::read(&evidence.diaries, &mut broken);
    let mut numbers = HashMap::new();
    for accepted in &evidence.accepted {
        if let Some(other) = numbers.insert(&accepted.id, accepted.number) {
            broken.push(format!(
                "{}: two submissions were answered by it: {other}, {}",
                accepted.id, accepted.number
            ));
        }
        match evidence.jobs.get(&accepted.id) {
            Some(job) => check_job(accepted, job, &diaries, &mut broken),
            None => broken.push(format!("{}: accepted, and nowhere to be found", accepted.id)),
        }
    }
    check_committed(&evidence.jobs, &diaries, &mut broken);
    check_places(evidence, &diaries, &mut broken);
    check_order(evidence, &diaries, &mut broken);
    overlaps::check(evidence, &mut broken);
    for (run, (node, _)) in &diaries.began {
        match evidence.jobs.get(&run.job).and_then(|job| job["attempt"].as_u64()) {
            Some(newest) if run.attempt <= newest => {}
            Some(newest) => broken.push(format!("{node} ran {run:?}, and the newest attempt is {newest}")),
            None => broken.push(format!("{node} ran {run:?}, which nobody submitted")),
        }
    }
    evidence.diaries.iter().for_each(|diary| check_diary(diary, &mut broken));
    broken
}

/// What the diaries tell together.
#[derive(Default)]
pub struct Diaries<'d> {
    /// Who began what, and when.
    began: BTreeMap<&'d Run, (&'d str, u64)>,
    /// What was said of it, by which node, and when.
    said: HashMap<&'d Run, (&'d str, &'d Said, u64)>,
    /// The places that each job had where it began, each in a session. Not all write them down.
    places: HashMap<&'d str, BTreeSet<(&'d str, u64)>>,
    /// What was confirmed, and to which node.
    committed: Vec<(&'d str, &'d Run)>,
}

impl<'d> Diaries<'d> {
    /// Reads them, and says which attempts were run twice.
    pub fn read(diaries: &'d [Diary], broken: &mut Vec<String>) -> Self {
        let mut read = Self::default();
        for diary in diaries {
            let node = diary.node.as_str();
            for line in &diary.lines {
                match &line.wrote {
                    Wrote::Began { run, place, .. } => {
                        if let Some((session, seq)) = place {
                            read.places.entry(run.job.as_str()).or_default().insert((session.as_str(), *seq));
                        }
                        if let Some((other, _)) = read.began.insert(run, (node, line.at_us)) {
                            broken.push(format!("{run:?} was run twice: by {other}, by {node}"));
                        }
                    }
                    Wrote::Ended { run, said } => {
                        read.said.insert(run, (node, said, line.at_us));
                    }
                    Wrote::Settled { run, is_committed: true } => read.committed.push((node, run)),
                    _ => {}
                }
            }
        }
        read
    }

    /// Whether this node said that the attempt failed.
    pub fn has_failed(&self, run: &Run, node: &str) -> bool {
        matches!(self.said.get(run), Some((by, Said::Failure, _)) if *by == node)
    }
}

fn check_job(accepted: &Accepted, job: &Value, diaries: &Diaries<'_>, broken: &mut Vec<String>) {
    let mut wrong = |what: &str| broken.push(format!("{}: {what}: {job}", accepted.id));
    if job["state"] != "FINISHED" {
        return wrong("it is not finished");
    }
    let outcome = job["outcome"].as_str().unwrap_or_default();
    let is_hoped = match accepted.hope {
        Hope::Success => outcome == "succeeded",
        Hope::Failure => outcome == "failed",
        Hope::SuccessOrCancelled => outcome == "succeeded" || outcome == "cancelled",
    };
    if !is_hoped {
        wrong(&format!("{:?} was to be expected", accepted.hope));
    }
    if accepted.answered.as_ref().is_some_and(|answered| answered != outcome) {
        wrong(&format!("its end was answered before, as {:?}", accepted.answered));
    }
    let past: Vec<_> = job["attempts"].as_array().into_iter().flatten().collect();
    if !past.is_sorted_by(|a, b| a["attempt"].as_u64() < b["attempt"].as_u64()) {
        wrong("its attempts are not in order");
    }
    let ended: Vec<_> = past.iter().filter(|past| past["state"] == "succeeded").collect();
    let newest = Run { job: accepted.id.clone(), attempt: job["attempt"].as_u64().unwrap_or_default() };
    let by = job["node"].as_str().unwrap_or_default();
    match outcome {
        "succeeded" => {
            if ended.len() != 1 || ended[0]["attempt"] != job["attempt"] {
                wrong("there must be one result, of its newest attempt");
            }
            match diaries.said.get(&newest) {
                Some((node, Said::Output(output), _)) if *node == by && *output == job["result"] => {}
                other => wrong(&format!("its result is not what its node said, which is {other:?}")),
            }
            if job["result"]["number"] != accepted.number {
                wrong("the result of another");
            }
        }
        "failed" if diaries.has_failed(&newest, by) => {}
        "failed" => wrong("its node did not say that it failed"),
        _ if !ended.is_empty() => wrong("it has a result all the same"),
        _ => {}
    }
}

/// What was confirmed to a node is there: an output is the result of its job, a failure the end of its attempt.
pub fn check_committed(jobs: &HashMap<String, Value>, diaries: &Diaries<'_>, broken: &mut Vec<String>) {
    for (node, run) in &diaries.committed {
        let Some(job) = jobs.get(&run.job) else { continue };
        let is_there = match diaries.said.get(run) {
            Some((by, Said::Output(_), _)) if by == node => {
                job["outcome"] == "succeeded" && job["attempt"] == run.attempt && job["node"] == *node
            }
            Some((by, Said::Failure, _)) if by == node => may_have_failed(job, run.attempt),
            _ => continue,
        };
        if !is_there {
            broken.push(format!("{run:?} was committed to {node}, and what it said is not there: {job}"));
        }
    }
}

/// Whether a job lists this attempt as failed, or lists only newer ones.
fn may_have_failed(job: &Value, attempt: u64) -> bool {
    listed(job, attempt).is_none_or(|past| past["state"] == "failed")
}

/// How a job lists this attempt; `None` if it lists only newer ones, since it keeps so many. Nothing else may be missing: such a
/// one is null.
fn listed(job: &Value, attempt: u64) -> Option<&Value> {
    let past = job["attempts"].as_array().map_or(&[][..], Vec::as_slice);
    let is_left_out =
        past.first().and_then(|oldest| oldest["attempt"].as_u64()).is_some_and(|oldest| oldest > attempt);
    let found = past.iter().find(|past| past["attempt"] == attempt);
    found.or_else(|| (!is_left_out).then_some(&Value::Null))
}

/// A job has one place in all its attempts, in its own session. Places follow the order in which the jobs were submitted.
fn check_places(evidence: &Evidence, diaries: &Diaries<'_>, broken: &mut Vec<String>) {
    let mut accepted: Vec<_> = evidence.accepted.iter().collect();
    accepted.sort_unstable_by_key(|job| job.number);
    let mut before: HashMap<&str, (u64, &str)> = HashMap::new();
    for Accepted { id, session, .. } in accepted {
        let Some(places) = diaries.places.get(id.as_str()) else { continue };
        if places.len() > 1 || places.iter().any(|(of, _)| session.as_deref() != Some(*of)) {
            broken.push(format!("{id}, of the session {session:?}, has the places {places:?}"));
            continue;
        }
        for &(of, seq) in places {
            if let Some((earlier, other)) = before.insert(of, (seq, id.as_str()))
                && earlier >= seq
            {
                broken.push(format!("{of}: {other} has the place {earlier}, and {id} behind it {seq}"));
            }
        }
    }
}

/// In a strict session nothing begins before the newest attempt of all that were submitted before has ended. Attempts
/// that were taken back may go on for a while where the word of it has not come. So may that of a job that was cancelled,
/// since a paused node hears of it when it wakes: such a job has ended when it was finished.
fn check_order(evidence: &Evidence, diaries: &Diaries<'_>, broken: &mut Vec<String>) {
    let mut sessions: BTreeMap<&String, Vec<&Accepted>> = BTreeMap::new();
    for accepted in &evidence.accepted {
        if let Some(session) = &accepted.session {
            sessions.entry(session).or_default().push(accepted);
        }
    }
    for (session, mut jobs) in sessions {
        jobs.sort_unstable_by_key(|job| job.number);
        let mut before: Option<(u64, &Accepted)> = None;
        for accepted in jobs {
            let runs = diaries.began.range(Run { job: accepted.id.clone(), attempt: 0 }..);
            let runs = runs.take_while(|(run, _)| run.job == accepted.id);
            if let Some((ended, other)) = before
                && let Some((run, (node, at))) = runs.min_by_key(|(_, (_, at))| *at)
                && *at < ended
            {
                broken.push(format!(
                    "{session}: {node} began {run:?} {} us before {} had ended",
                    ended - at,
                    other.id
                ));
            }
            let Some(job) = evidence.jobs.get(&accepted.id) else { continue };
            let newest =
                Run { job: accepted.id.clone(), attempt: job["attempt"].as_u64().unwrap_or_default() };
            if let Some((_, Said::Output(_) | Said::Failure, at)) = diaries.said.get(&newest) {
                let at = cancelled_at_us(job).map_or(*at, |cancelled| cancelled.min(*at));
                before = Some((before.map_or(at, |(ended, _)| ended.max(at)), accepted));
            }
        }
    }
}

/// When it was cancelled, in microseconds since 1970; `None` of a job that was not.
fn cancelled_at_us(job: &Value) -> Option<u64> {
    finished_at_us(job).filter(|_| job["outcome"] == "cancelled")
}

/// When it was finished, in microseconds since 1970; `None` of a job that does not say so in a way that can be read.
pub fn finished_at_us(job: &Value) -> Option<u64> {
    moment_us(&job["finished_at"])
}

/// A moment in microseconds since 1970, if it can be read.
fn moment_us(moment: &Value) -> Option<u64> {
    let moment = OffsetDateTime::parse(moment.as_str()?, &Rfc3339).ok()?;
    u64::try_from(moment.unix_timestamp_nanos() / 1_000).ok()
}

/// Whether a node was told to be wrong, was closed as only a wrong node is, or had more than its capacity.
pub fn check_diary(diary: &Diary, broken: &mut Vec<String>) {
    let Diary { node, capacity, lines, blames, closes } = diary;
    broken.extend(blames.iter().map(|blame| format!("{node}, which is honest, was told: {blame}")));
    for code in closes.keys().filter(|code| !CLOSES.contains(code)) {
        broken.push(format!("{node}: its socket was closed with {code}"));
    }
    // A node lists what it runs, and what is not settled; both are bounded by its capacity. Not all write down the
    // latter.
    let knows_settled = lines.iter().any(|line| matches!(line.wrote, Wrote::Settled { .. }));
    let (mut running, mut listed) = (BTreeMap::new(), BTreeMap::new());
    for line in lines {
        match &line.wrote {
            Wrote::Began { run, .. } => {
                running.insert(run, line.at_us);
                listed.insert(run, line.at_us);
                let held = if knows_settled { &listed } else { &running };
                if held.len() > *capacity {
                    broken.push(format!(
                        "{node} has {} at once, and a capacity of {capacity}: {held:?}",
                        held.len()
                    ));
                }
            }
            Wrote::Ended { run, said } => {
                running.remove(run);
                if *said == Said::Nothing {
                    listed.remove(run);
                }
            }
            Wrote::Settled { run, .. } => {
                listed.remove(run);
            }
            Wrote::Died => {
                running.clear();
                listed.clear();
            }
            Wrote::Joined | Wrote::Parted | Wrote::Stopped | Wrote::Woke => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use testkit::fault_nodes::Line;

    const SECOND: u64 = 1_000_000;

    fn run(attempt: u64) -> Run {
        Run { job: "j".to_owned(), attempt }
    }

    fn diary(node: &str, wrote: Vec<Wrote>) -> Diary {
        let lines =
            wrote.into_iter().enumerate().map(|(at, wrote)| Line { at_us: at as u64, wrote }).collect();
        Diary { node: node.to_owned(), capacity: 1, lines, ..Diary::default() }
    }

    fn began(attempt: u64) -> Wrote {
        Wrote::Began { run: run(attempt), place: None, stage: None }
    }

    fn output(attempt: u64, once: u64) -> Wrote {
        Wrote::Ended { run: run(attempt), said: Said::Output(json!({ "number": 7, "once": once })) }
    }

    fn committed(attempt: u64) -> Wrote {
        Wrote::Settled { run: run(attempt), is_committed: true }
    }

    /// The first attempt ended so, and its node was told that this is committed.
    fn ends(e: &mut Evidence, said: Said) {
        e.diaries[0] = diary("a", vec![began(1), Wrote::Ended { run: run(1), said }, committed(1)]);
    }

    /// One job whose first attempt was lost with its node, and whose second one succeeded.
    fn good() -> Evidence {
        let accepted =
            Accepted { id: "j".to_owned(), number: 7, hope: Hope::Success, answered: None, session: None };
        let job = json!({
            "state": "FINISHED", "outcome": "succeeded", "attempt": 2, "node": "b",
            "result": { "number": 7, "once": 2 },
            "attempts": [
                { "attempt": 1, "state": "node_lost", "at": "1970-01-01T00:00:00Z" },
                { "attempt": 2, "state": "succeeded" },
            ],
        });
        Evidence {
            accepted: vec![accepted],
            jobs: HashMap::from([("j".to_owned(), job)]),
            diaries: vec![
                diary("a", vec![began(1), Wrote::Died]),
                diary("b", vec![began(2), output(2, 2), committed(2)]),
            ],
        }
    }

    #[test]
    fn a_story_that_holds_is_believed() {
        assert_eq!(check(&good()), Vec::<String>::new());
    }

    #[test]
    fn a_failure_that_was_committed_is_listed_or_older_than_all_that_are() {
        let mut evidence = good();
        ends(&mut evidence, Said::Failure);
        later(&mut evidence.diaries[1], SECOND);
        let listed = |evidence: &mut Evidence, attempts: Value| {
            evidence.jobs.get_mut("j").unwrap()["attempts"] = attempts;
            check(evidence)
        };
        let newest = json!({ "attempt": 2, "state": "succeeded" });
        let both = json!([{ "attempt": 1, "state": "failed", "at": "1970-01-01T00:00:01Z" }, newest]);
        assert_eq!(listed(&mut evidence, both), Vec::<String>::new());
        assert_eq!(listed(&mut evidence, json!([newest])), Vec::<String>::new());
    }

    fn later(diary: &mut Diary, by_us: u64) {
        diary.lines.iter_mut().for_each(|line| line.at_us += by_us);
    }

    /// The node of the first attempt goes on with it from 3 s to 6 s, and is within reach; the second one begins at 5 s. The
    /// first one was over at this time, in this way.
    fn goes_on(e: &mut Evidence, state: &str, at: &str) {
        let ended = Wrote::Ended { run: run(1), said: Said::Nothing };
        let lines = [(0, Wrote::Joined), (3 * SECOND, began(1)), (6 * SECOND, ended)];
        e.diaries[0].lines = lines.map(|(at_us, wrote)| Line { at_us, wrote }).into();
        later(&mut e.diaries[1], 5 * SECOND);
        let job = e.jobs.get_mut("j").unwrap();
        job["timeout_ms"] = json!(2_000);
        job["attempts"][0] = json!({ "attempt": 1, "state": state, "at": at });
    }

    /// The same, and the node of the first attempt parted at this time.
    fn goes_on_and_parts(e: &mut Evidence, state: &str, parted_us: u64) {
        goes_on(e, state, "1970-01-01T00:00:05Z");
        e.diaries[0].lines.push(Line { at_us: parted_us, wrote: Wrote::Parted });
    }

    #[test]
    fn an_attempt_may_go_on_beside_a_newer_one_as_its_end_says() {
        let judged = |beside: &dyn Fn(&mut Evidence)| {
            let mut evidence = good();
            beside(&mut evidence);
            check(&evidence)
        };
        for state in ["not_acknowledged", "timed_out"] {
            let broken = judged(&|e| goes_on(e, state, "1970-01-01T00:00:05Z"));
            assert_eq!(broken, Vec::<String>::new(), "{state}");
        }
        for state in ["node_lost", "node_lost_unsent", "unlisted", "undeliverable", "rejected"] {
            // An instance that stands still is given up before the node hears nothing from it for too long.
            let broken = judged(&|e| goes_on_and_parts(e, state, 15 * SECOND));
            assert_eq!(broken, Vec::<String>::new(), "{state}");
        }
        // Nobody knows whether a process was within reach, nor when it acknowledged what its command began a moment later.
        for state in ["node_lost", "timed_out"] {
            let broken = judged(&|e| {
                goes_on(e, state, "1970-01-01T00:00:05Z");
                e.jobs.get_mut("j").unwrap()["timeout_ms"] = json!(2_001);
                e.diaries[0].lines.remove(0);
            });
            assert_eq!(broken, Vec::<String>::new(), "{state}");
        }
    }

    /// The job is of a session, and its two attempts say these places.
    fn placed(e: &mut Evidence, places: [(&str, u64); 2]) {
        e.accepted[0].session = Some("s".to_owned());
        for (diary, (session, seq)) in e.diaries.iter_mut().zip(places) {
            place(diary, session, seq);
        }
    }

    fn place(diary: &mut Diary, session: &str, seq: u64) {
        let Wrote::Began { place, .. } = &mut diary.lines[0].wrote else {
            panic!("it begins something else")
        };
        *place = Some((session.to_owned(), seq));
    }

    /// Another of its session, submitted before it, has this place.
    fn placed_behind(e: &mut Evidence, seq: u64) {
        overtakes(e, "cancelled", "1970-01-01T00:00:00Z");
        placed(e, [("s", 3), ("s", 3)]);
        place(&mut e.diaries[2], "s", seq);
    }

    #[test]
    fn the_places_of_jobs_follow_their_submission() {
        let mut evidence = good();
        placed_behind(&mut evidence, 2);
        assert_eq!(check(&evidence), Vec::<String>::new());
    }

    /// Another of its session, submitted before it, ends after it has begun.
    fn overtakes(e: &mut Evidence, outcome: &str, finished_at: &str) {
        let before = Run { job: "i".to_owned(), attempt: 1 };
        let output = json!({ "number": 6 });
        let line = |at_us, wrote| Line { at_us, wrote };
        let lines = vec![
            line(0, Wrote::Began { run: before.clone(), place: None, stage: None }),
            line(1, Wrote::Ended { run: before.clone(), said: Said::Output(output.clone()) }),
            line(2, Wrote::Settled { run: before, is_committed: outcome == "succeeded" }),
        ];
        e.diaries.push(Diary { lines, ..diary("c", vec![]) });
        e.accepted[0].session = Some("s".to_owned());
        e.accepted.push(Accepted {
            id: "i".to_owned(),
            number: 6,
            hope: Hope::SuccessOrCancelled,
            ..e.accepted[0].clone()
        });
        let mut job = json!({
            "state": "FINISHED", "outcome": outcome, "attempt": 1, "node": "c", "attempts": [],
            "finished_at": finished_at,
        });
        if outcome == "succeeded" {
            job["attempts"] = json!([{ "attempt": 1, "state": "succeeded" }]);
            job["result"] = output;
        }
        e.jobs.insert("i".to_owned(), job);
    }

    #[test]
    fn a_cancelled_job_may_go_on_at_its_node_while_the_next_one_begins() {
        let mut evidence = good();
        overtakes(&mut evidence, "cancelled", "1970-01-01T00:00:00Z");
        assert_eq!(check(&evidence), Vec::<String>::new());
    }

    /// What the checker must say of it, and how the evidence is falsified.
    type Lie = (&'static str, fn(&mut Evidence));

    #[test]
    fn each_lie_is_found() {
        let lies: [Lie; 35] = [
            ("not finished", |e| e.jobs.get_mut("j").unwrap()["state"] = json!("RUNNING")),
            ("nowhere to be found", |e| e.jobs.clear()),
            ("two submissions", |e| e.accepted.push(e.accepted[0].clone())),
            ("was to be expected", |e| e.jobs.get_mut("j").unwrap()["outcome"] = json!("cancelled")),
            ("answered before", |e| e.accepted[0].answered = Some("cancelled".to_owned())),
            ("not in order", |e| e.jobs.get_mut("j").unwrap()["attempts"].as_array_mut().unwrap().reverse()),
            ("one result", |e| e.jobs.get_mut("j").unwrap()["attempts"][0]["state"] = json!("succeeded")),
            ("one result", |e| {
                let older =
                    json!([{ "attempt": 1, "state": "succeeded" }, { "attempt": 2, "state": "node_lost" }]);
                e.jobs.get_mut("j").unwrap()["attempts"] = older;
            }),
            ("not what its node said", |e| e.jobs.get_mut("j").unwrap()["result"]["once"] = json!(3)),
            ("not what its node said", |e| e.jobs.get_mut("j").unwrap()["node"] = json!("a")),
            ("the result of another", |e| e.accepted[0].number = 8),
            ("did not say that it failed", |e| {
                e.accepted[0].hope = Hope::Failure;
                e.jobs.get_mut("j").unwrap()["outcome"] = json!("failed");
            }),
            ("a result all the same", |e| {
                e.accepted[0].hope = Hope::SuccessOrCancelled;
                e.jobs.get_mut("j").unwrap()["outcome"] = json!("cancelled");
            }),
            ("which nobody submitted", |e| {
                e.accepted.clear();
                e.jobs.clear();
            }),
            ("was closed with 4401", |e| {
                e.diaries[0].closes.insert(4401, 1);
            }),
            ("run twice", |e| e.diaries.push(diary("c", vec![began(1), Wrote::Died]))),
            ("newest attempt is", |e| e.diaries.push(diary("c", vec![began(3), Wrote::Died]))),
            ("at once", |e| e.diaries[1].lines.insert(0, Line { at_us: 0, wrote: began(0) })),
            ("was told", |e| e.diaries[0].blames.push("it is not with this node".to_owned())),
            ("was committed to a", |e| ends(e, Said::Output(json!({ "number": 7, "once": 1 })))),
            ("was committed to a", |e| ends(e, Said::Failure)),
            ("has the places", |e| placed(e, [("s", 3), ("s", 4)])),
            ("has the places", |e| placed(e, [("t", 3), ("t", 3)])),
            ("behind it", |e| placed_behind(e, 3)),
            ("behind it", |e| placed_behind(e, 4)),
            ("had ended", |e| overtakes(e, "succeeded", "1970-01-01T00:00:00.000001Z")),
            ("had ended", |e| overtakes(e, "cancelled", "1970-01-01T00:00:00.000002Z")),
            ("beside a newer one", |e| goes_on(e, "failed", "1970-01-01T00:00:05Z")),
            ("beside a newer one", |e| goes_on(e, "node_lost", "1970-01-01T00:00:05Z")),
            ("beside a newer one", |e| goes_on_and_parts(e, "unlisted", 15 * SECOND + 1)),
            ("beside a newer one", |e| goes_on_and_parts(e, "failed", 4 * SECOND)),
            ("beside a newer one", |e| {
                goes_on(e, "timed_out", "1970-01-01T00:00:05Z");
                e.jobs.get_mut("j").unwrap()["timeout_ms"] = json!(2_001);
            }),
            ("an older one was over", |e| goes_on(e, "not_acknowledged", "1970-01-01T00:00:05.000001Z")),
            ("list when", |e| e.jobs.get_mut("j").unwrap()["attempts"][0]["at"] = json!(null)),
            ("list when", |e| e.jobs.get_mut("j").unwrap()["attempts"][0]["attempt"] = json!(0)),
        ];
        for (word, lie) in lies {
            let mut evidence = good();
            lie(&mut evidence);
            let broken = check(&evidence);
            assert!(broken.iter().any(|line| line.contains(word)), "{word}: {broken:?}");
        }
    }
}
