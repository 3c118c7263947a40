//! A ledger that went back in time: it is noticed, grants nothing, and goes on past all that it may have granted.

use domain::job::{Attempt, Event, State};
use domain::limits::{ID_NUMBER_MAX, SEGMENT_STEP_GROWN_MAX, SEGMENT_STEP_MAX, SEQUENCE_INCREMENT_MAX};
use domain::plan::Command;
use domain::{BulkId, PlanId, Resource, SegmentTag, SequenceName, SessionId, SignerId, Token, WorkerNumber};
use ledger::{
    Acquisition, BulkAction, BulkMade, BulkStatus, BulkStep, Error, Identity, JobFilter, JobsVerdict, Kind,
    Margins, Migrate, NewBulk, Options, Put, RECOVERED_NUMBERS_MAX, RECOVERED_NUMBERS_MIN, RECOVERED_TOKENS,
    RangeTaken, SegmentChange, SequenceChange, SequenceGrant, Verdict, Witness, WorkerClaim,
};

use crate::bench::{Bench, LONG_MS, batch, batch_with_policy, by, new_grant, owner, signer};
use crate::bulks;
use crate::opening::execute;
use crate::plan_owner::{PlanOwner, new, plan, plan_id};
use crate::sessions::spec;
use crate::shop::{
    cancel, complete, forms, in_session, job, of_lane, release, run, said, session, session_id, submit,
    submit_placed,
};

async fn current(b: &Bench, known: Option<&Identity>) -> Identity {
    match b.ledger.witness(known).await.unwrap() {
        Witness::Current(identity) => identity,
        gone @ Witness::WentBack(..) => panic!("{gone:?}"),
    }
}

/// What the owner of a signer reads of it, and what a repeated request does, which must say the same.
pub async fn is_recovering(b: &Bench, signer: &SignerId) -> bool {
    let loaded = b.ledger.load(signer, 1).await.unwrap().is_recovering;
    assert_eq!(b.ledger.is_recovering(signer).await.unwrap(), loaded, "{signer}");
    loaded
}

fn tag() -> SegmentTag {
    SegmentTag::parse("order").unwrap()
}

fn sequence() -> SequenceName {
    SequenceName::parse("invoice").unwrap()
}

async fn with_numbers(b: &Bench) {
    let made = b.ledger.put_segment(&tag(), &SegmentChange::default(), &by()).await.unwrap();
    assert!(matches!(made, Put::Done(_)), "{made:?}");
    let made = b.ledger.put_sequence(&sequence(), &SequenceChange::default(), &by()).await.unwrap();
    assert!(matches!(made, Put::Done(_)), "{made:?}");
}

async fn first_of_range(b: &Bench) -> u64 {
    match b.ledger.take_range(&tag(), 1).await.unwrap() {
        RangeTaken::Taken { range, .. } => range.start,
        other => panic!("{other:?}"),
    }
}

async fn next_number(b: &Bench) -> u64 {
    match b.ledger.grant_sequence(&sequence(), 1).await.unwrap() {
        SequenceGrant::Granted { first, .. } => first,
        other => panic!("{other:?}"),
    }
}

pub async fn a_ledger_that_is_behind_is_noticed_and_grants_nothing(b: Bench) {
    let (me, s) = (owner("a"), signer("s"));
    with_numbers(&b).await;
    let token = b.acquired(&me, &s, LONG_MS).await;
    b.commits(batch_with_policy(&s, &me, token, vec![new_grant(0, LONG_MS)])).await;
    let worker = acquired_number(&b, 7).await;
    b.ledger.open_id_worker(&worker, "node").await.unwrap().unwrap();
    let first = current(&b, None).await;
    assert_eq!(first.server.is_some(), b.ledger.kind() == Kind::Postgres, "{first:?}");
    let second = current(&b, Some(&first)).await;
    assert!(second.position > first.position && second.cluster == first.cluster);
    b.commits(batch(&s, &me, token, vec![new_grant(1, LONG_MS)])).await;
    let other = Identity { cluster: "another".to_owned(), ..second.clone() };
    assert!(matches!(b.ledger.witness(Some(&other)).await.unwrap(), Witness::WentBack(..)));
    b.commits(batch(&s, &me, token, vec![new_grant(2, LONG_MS)])).await;
    assert!(b.ledger.is_current().await.unwrap());
    let ahead = Identity { position: second.position + 1_000, ..second.clone() };
    assert!(matches!(b.ledger.witness(Some(&ahead)).await.unwrap(), Witness::WentBack(..)));
    if b.ledger.kind() == Kind::Sqlite {
        assert!(b.ledger.is_current().await.unwrap(), "a file that went back is not served at all");
        return;
    }
    // By one statement, and the general way.
    for asked in [batch, batch_with_policy] {
        let verdict = b.ledger.commit(asked(&s, &me, token, vec![new_grant(3, LONG_MS)])).await.unwrap();
        assert_eq!(verdict, Verdict::Fenced);
    }
    assert!(matches!(b.ledger.take_range(&tag(), 1).await, Err(Error::WentBack)));
    assert!(matches!(b.ledger.grant_sequence(&sequence(), 1).await, Err(Error::WentBack)));
    assert!(!b.ledger.is_current().await.unwrap());
    assert!(matches!(b.ledger.open_id_worker(&worker, "node").await, Err(Error::WentBack)));
    assert!(matches!(b.ledger.mark_id_worker(&worker, 1, 1).await, Err(Error::WentBack)));
    assert_eq!(b.last(&s).await, Some(2));
}

/// From now on the ledger is behind what its process has seen.
async fn falls_behind(b: &Bench) {
    let known = current(b, None).await;
    let ahead = Identity { position: known.position + 1_000, ..known };
    assert!(matches!(b.ledger.witness(Some(&ahead)).await.unwrap(), Witness::WentBack(..)));
}

pub async fn no_bulk_operation_goes_on_in_a_ledger_that_is_behind(b: Bench) {
    if b.ledger.kind() == Kind::Sqlite {
        return;
    }
    bulks::stock(&b).await;
    let mut begun = Vec::new();
    for (n, action) in [(1, BulkAction::Delete), (2, BulkAction::Dismiss)] {
        begun.push(bulks::made(&b, &bulks::new(&b, n, action, JobFilter::default()).await).await);
    }
    falls_behind(&b).await;
    for bulk in &begun {
        assert_eq!(b.ledger.remove_page(bulk, &[job(0)], job(0)).await.unwrap(), None, "{bulk:?}");
        assert!(b.found(job(0)).await.is_dead(), "{bulk:?}");
        let noted = b.ledger.note_progress(bulk, job(0), &BulkStep::default()).await.unwrap();
        assert_eq!(noted, None, "{bulk:?}");
        let ended = b.ledger.finish_bulk(bulk, BulkStatus::Done, None).await.unwrap();
        assert_eq!(ended, None, "{bulk:?}");
    }
    let open = b.ledger.open_bulks().await.unwrap();
    assert_eq!(open.len(), begun.len());
    for open in open {
        assert_eq!(b.ledger.take_bulk(&open, &owner("a")).await.unwrap(), None, "{open:?}");
    }
}

pub async fn a_ledger_that_went_back_is_noticed_by_what_the_process_has_seen(b: Bench) {
    let first = current(&b, None).await;
    let second = current(&b, Some(&first)).await;
    assert!(second.position > first.position);
    let back = format!("UPDATE ledger_identity SET position = {}", first.position);
    assert_eq!(execute(&b.options.url, &back).await, 1);
    // The caller knows no more than the ledger has.
    assert!(matches!(b.ledger.witness(Some(&first)).await.unwrap(), Witness::WentBack(..)));
}

pub async fn what_a_node_reports_is_neither_written_to_a_ledger_that_is_behind_nor_stale(b: Bench) {
    if b.ledger.kind() == Kind::Sqlite {
        return;
    }
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [0, 2].map(|n| submit_placed(job(n))))).await;
    b.does(of_lane(&lane, [cancel(job(2))])).await;
    falls_behind(&b).await;
    let failed = Event::Failed { attempt: Attempt::new(1), retryable: true };
    let reports = [complete(job(0), 1, "1"), run(job(0), 1), complete(job(1), 1, "lost"), release(job(2), 1)];
    for report in reports.into_iter().chain(forms(job(0), failed, Attempt::new(2))) {
        let answer = b.ledger.commit_jobs(said([report.clone()])).await;
        assert!(matches!(answer, Err(Error::WentBack)), "{report:?}: {answer:?}");
        assert_eq!(b.found(job(0)).await.state, State::Dispatched, "{report:?}");
        assert_eq!(b.found(job(2)).await.finished.unwrap().released_at, None, "{report:?}");
    }
    let of_owner = b.ledger.commit_jobs(of_lane(&lane, [cancel(job(0))])).await.unwrap();
    assert_eq!(of_owner, JobsVerdict::Fenced);
}

/// More numbers and ids than any test gives.
const SKIPPED: i64 = 3 * RECOVERED_NUMBERS_MIN;

/// How far ahead of the clock snowflakes may be.
const LEAD_MS: i64 = 900_000;

/// Recovers as the command does: no other process has the ledger.
pub async fn recovered(b: Bench, is_trial: bool) -> (Bench, ledger::Recovery) {
    recovered_by(b, SKIPPED, is_trial).await
}

async fn recovered_by(b: Bench, numbers: i64, is_trial: bool) -> (Bench, ledger::Recovery) {
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    let margins = Margins { numbers, lead_ms: LEAD_MS };
    let recovery = match is_trial {
        true => ledger::try_recovery(&options, margins).await.unwrap(),
        false => ledger::recover(&options, Migrate::Check, margins, &by()).await.unwrap(),
    };
    let ledger = ledger::open(&options).await.unwrap();
    (Bench { ledger, options, database, _folder }, recovery)
}

/// An operator says that signers without a row are new.
pub async fn with_new_signers(b: Bench) -> Bench {
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    ledger::let_new_signers_grant(&options, Migrate::Check, &by()).await.unwrap();
    Bench { ledger: ledger::open(&options).await.unwrap(), options, database, _folder }
}

pub async fn a_recovery_goes_past_all_that_was_granted(b: Bench) {
    let (me, s) = (owner("a"), signer("s"));
    with_numbers(&b).await;
    let token = b.acquired(&me, &s, LONG_MS).await;
    b.commits(batch_with_policy(&s, &me, token, vec![new_grant(0, LONG_MS)])).await;
    let known = current(&b, None).await;
    let (first, number) = (first_of_range(&b).await, next_number(&b).await);
    let (b, trial) = recovered(b, true).await;
    assert_eq!((trial.signers, trial.segments, trial.sequences), (1, 1, 1));
    assert!(!is_recovering(&b, &s).await, "a trial changes nothing");
    assert_eq!(next_number(&b).await, number + 1);
    let (b, recovery) = recovered(b, false).await;
    assert_eq!(ledger::Recovery { ahead_ms: trial.ahead_ms, ..recovery }, trial);
    let ahead = Identity { position: known.position + 1_000_000, ..known };
    current(&b, Some(&ahead)).await;
    assert!(first_of_range(&b).await >= first + SKIPPED as u64);
    assert!(next_number(&b).await > number + SKIPPED as u64);
    assert!(is_recovering(&b, &s).await);
    let shown = b.ledger.signer(&s).await.unwrap().unwrap();
    assert!(shown.is_recovering && shown.owner.is_none());
    let next = b.acquired(&owner("b"), &s, LONG_MS).await;
    assert!(next.get() > token.get() + RECOVERED_TOKENS);
    let late = batch(&s, &me, token, vec![new_grant(1, LONG_MS)]);
    assert_eq!(b.ledger.commit(late).await.unwrap(), Verdict::Fenced);
}

pub async fn no_bulk_operation_goes_on_after_a_recovery(b: Bench) {
    let asked = NewBulk {
        id: BulkId::from_u128(1),
        principal: String::new(),
        action: BulkAction::Delete,
        filter: JobFilter::default(),
        before: b.ledger.bulk_now().await.unwrap(),
        rate: 1,
        matched: 0,
        owner: owner("a"),
        key_hash: None,
        body_hash: String::new(),
    };
    let BulkMade::Made(before) = b.ledger.create_bulk(&asked, None).await.unwrap() else { panic!() };
    let (b, _) = recovered(b, true).await;
    assert_eq!(b.ledger.bulk(asked.id).await.unwrap().as_ref(), Some(&*before), "a trial changes nothing");
    let (b, _) = recovered(b, false).await;
    let after = b.ledger.bulk(asked.id).await.unwrap().unwrap();
    assert_eq!(after.status, BulkStatus::Failed);
    assert!(after.finished_at.is_some() && after.error.is_some_and(|error| error.contains("recovered")));
    assert_eq!(
        after.token,
        before.token + RECOVERED_TOKENS as u64,
        "past those of owners that were forgotten"
    );
    assert!(b.ledger.open_bulks().await.unwrap().is_empty());
}

pub async fn leases_that_a_recovered_ledger_does_not_know_begin_above_all_that_were_given(b: Bench) {
    let me = owner("a");
    let (b, _) = recovered(b, false).await;
    let first = b.acquired(&me, &signer("first"), LONG_MS).await;
    assert!(first.get() > RECOVERED_TOKENS, "{first}");
    // Of a tenant, whose token outside systems compare.
    let locker = PlanOwner::started(&b, plan(1, &["x"])).await;
    let held = locker.state.tasks[0].lock.unwrap();
    assert!(held.get() > RECOVERED_TOKENS, "{held}");
    // The ids of those that are made from now on are used once, and their owners take the token 1 for the first.
    for once in [Resource::plan(PlanId::from_u128(7)), Resource::session(&SessionId::parse("s-7").unwrap())] {
        let taken = b.ledger.acquire(&once, &me, LONG_MS).await.unwrap();
        assert!(matches!(taken, Acquisition::Acquired { token: Token::FIRST, .. }), "{once}: {taken:?}");
    }
    // The same backup is restored once more.
    let back = "UPDATE lease SET fencing_token = 1";
    execute(&b.options.url, back).await;
    let (b, _) = recovered(b, false).await;
    let (known, unknown) = (signer("first"), signer("second"));
    for s in [known, unknown] {
        let next = b.acquired(&me, &s, LONG_MS).await;
        assert!(next.get() > first.get(), "{s}: {next} after {first}");
    }
}

pub async fn sessions_and_plans_of_a_recovered_ledger_go_on_past_what_they_may_have_had(b: Bench) {
    let (me, of_nobody) = (owner("a"), plan(1, &["x"]));
    b.ledger.create_plan(new(&of_nobody)).await.unwrap();
    for name in ["s", "unused", "closed"] {
        b.ledger.open_session(&session_id(name), &spec(), None, None).await.unwrap();
    }
    let closed = b.lane(session("closed"), &me).await;
    b.ledger.close_session(&closed).await.unwrap().unwrap();
    let lane = b.lane(session("s"), &me).await;
    b.does(of_lane(&lane, (1..=3).map(|n| submit(in_session("s", n))))).await;
    b.does(of_lane(&lane, [cancel(job(3))])).await;
    let (b, recovery) = recovered(b, true).await;
    assert_eq!(recovery.sessions, 2);
    let (b, recovery) = recovered(b, false).await;
    assert_eq!(recovery.sessions, 2);
    let places = async |name| b.ledger.lane_seq(&session(name)).await.unwrap().cast_signed();
    assert_eq!([places("s").await, places("unused").await], [3 + SKIPPED, SKIPPED]);
    assert_eq!(places("closed").await, 0, "nothing is submitted to it");
    // Nobody takes the next owner for the first one.
    for name in
        [Resource::plan(of_nobody.id), session("s").lease().clone(), session("unused").lease().clone()]
    {
        let taken = b.ledger.acquire(&name, &me, LONG_MS).await.unwrap();
        let Acquisition::Acquired { token, .. } = taken else { panic!("{name}: {taken:?}") };
        assert!(token.get() > RECOVERED_TOKENS, "{name}: {token}");
    }
    // The places that there can be come to an end.
    b.by_hand(format!("UPDATE session SET purged_seq = {} WHERE session = 's'", i64::MAX - 1)).await;
    let (b, _) = recovered(b, false).await;
    assert_eq!(b.ledger.lane_seq(&session("s")).await.unwrap(), i64::MAX as u64);
}

pub async fn who_follows_a_plan_misses_nothing_that_a_recovered_ledger_adds(b: Bench) {
    PlanOwner::started(&b, plan(1, &["x"])).await;
    PlanOwner::of(&b, plan(2, &["y"])).await.step(&Command::Cancel).await;
    b.ledger.create_plan(new(&plan(3, &["z"]))).await.unwrap();
    let before = b.ledger.plan_events(plan_id(1), None, 0, 100).await.unwrap();
    let last = before.last().unwrap().seq;
    let (b, trial) = recovered(b, true).await;
    assert_eq!(trial.plans, 3);
    assert_eq!(b.ledger.plan_events(plan_id(1), None, 0, 100).await.unwrap(), before);
    let (b, recovery) = recovered(b, false).await;
    assert_eq!(recovery.plans, 3);
    let events = b.ledger.plan_events(plan_id(1), None, 0, 100).await.unwrap();
    assert_eq!(events[..before.len()], before[..], "earlier events stay as they are");
    // Somebody has seen events of each plan that the ledger has lost.
    for (n, status) in [(1, "RUNNING"), (2, "CANCELLED"), (3, "CREATED")] {
        let added = b.ledger.plan_events(plan_id(n), None, last + 10, 100).await.unwrap();
        let [added] = &added[..] else { panic!("{n}: {added:?}") };
        let told =
            format!(r#"{{"kind":"status","before":"{status}","after":"{status}","reason":"the ledger "#);
        assert!(added.document.starts_with(&told), "{added:?}");
        assert!(added.seq >= SKIPPED as u64 && added.task.is_none(), "{n}: {added:?}");
    }
    assert_eq!(events.last().unwrap().seq, last + SKIPPED as u64);
    PlanOwner::acquire(&b, "b", plan_id(3)).await.step(&Command::Start).await;
    let next = b.ledger.plan_events(plan_id(3), None, SKIPPED as u64, 100).await.unwrap();
    assert_eq!(next[0].seq, SKIPPED as u64 + 1, "what follows has the numbers behind");
}

async fn acquired_number(b: &Bench, number: u16) -> WorkerClaim {
    let number = WorkerNumber::new(number).unwrap();
    let taken = b.ledger.acquire(&Resource::id_worker(number), &owner("a"), LONG_MS).await.unwrap();
    let Acquisition::Acquired { token, .. } = taken else { panic!("{taken:?}") };
    WorkerClaim { number, owner: owner("a"), token }
}

/// Acquires a worker number, and answers how far its mark is ahead of the database's clock.
async fn ahead_of_clock(b: &Bench, number: u16) -> i64 {
    let claim = acquired_number(b, number).await;
    let opened = b.ledger.open_id_worker(&claim, "node").await.unwrap().unwrap();
    opened.mark_ms as i64 - opened.database_ms as i64
}

pub async fn no_worker_number_is_used_until_all_marks_are_past_that_may_have_been_committed(b: Bench) {
    assert!(ahead_of_clock(&b, 7).await < 0);
    let (b, recovery) = recovered(b, false).await;
    assert_eq!(recovery.workers, 1_024);
    let known = b.ledger.id_workers().await.unwrap();
    let now_ms = b.ledger.clock_ms().await.unwrap();
    assert!(known.len() == 1_024 && known.iter().all(|record| record.mark_ms > now_ms), "{known:?}");
    // One that the ledger knows, and those that it does not.
    for number in [7, 0, 8, 1_023] {
        let ahead = ahead_of_clock(&b, number).await;
        assert!((LEAD_MS - LONG_MS as i64..=LEAD_MS + 5_000).contains(&ahead), "{number}: {ahead}");
    }
}

pub async fn a_later_recovery_with_a_shorter_lead_says_how_far_the_marks_are(b: Bench) {
    let (b, fresh) = recovered(b, true).await;
    assert_eq!(fresh.ahead_ms, 0, "no number has a mark");
    let (b, first) = recovered(b, false).await;
    let Bench { ledger, options, database: _database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    let margins = Margins { numbers: SKIPPED, lead_ms: 1_000 };
    let shorter = ledger::recover(&options, Migrate::Check, margins, &by()).await.unwrap();
    let trial = ledger::try_recovery(&options, margins).await.unwrap();
    for ahead_ms in [first, shorter, trial].map(|recovery| recovery.ahead_ms) {
        assert!((LEAD_MS - LONG_MS as i64..=LEAD_MS + 5_000).contains(&ahead_ms), "{ahead_ms}");
    }
}

pub async fn a_recovery_skips_the_ranges_that_instances_may_have_in_memory(b: Bench) {
    with_numbers(&b).await;
    let first = first_of_range(&b).await;
    // A busy tag's ranges grow to a million ids, and an instance has two of them and one on its way.
    let (mut b, _) = recovered_by(b, RECOVERED_NUMBERS_MIN, false).await;
    let mut last = first_of_range(&b).await;
    assert!(last >= first + 33 * 3 * 1_000_000 + RECOVERED_NUMBERS_MIN as u64, "{first} to {last}");
    // A tag's own step counts if it is longer; and no number is beyond the highest.
    let longer = SegmentChange { step: Some(SEGMENT_STEP_MAX), ..SegmentChange::default() };
    b.ledger.put_segment(&tag(), &longer, &by()).await.unwrap();
    (b, _) = recovered_by(b, RECOVERED_NUMBERS_MIN, false).await;
    last = first_of_range(&b).await - last;
    assert!(last >= 33 * 3 * SEGMENT_STEP_MAX, "{last}");
    execute(&b.options.url, "UPDATE id_segment SET next = 9223372036854775000").await;
    (b, _) = recovered_by(b, RECOVERED_NUMBERS_MIN, false).await;
    assert_eq!(b.ledger.take_range(&tag(), 1).await.unwrap(), RangeTaken::Exhausted);
}

pub async fn what_a_recovered_ledger_may_have_lost_begins_where_its_request_says(b: Bench) {
    with_numbers(&b).await;
    let (b, _) = recovered(b, false).await;
    // Those that it knows stay as they are.
    with_numbers(&b).await;
    let (lost_tag, lost_sequence) =
        (SegmentTag::parse("lost").unwrap(), SequenceName::parse("lost").unwrap());
    let by_default = SegmentChange { step: Some(10), ..SegmentChange::default() };
    let made = b.ledger.put_segment(&lost_tag, &by_default, &by()).await.unwrap();
    assert!(matches!(made, Put::StartUnknown), "{made:?}");
    let made = b.ledger.put_sequence(&lost_sequence, &SequenceChange::default(), &by()).await.unwrap();
    assert!(matches!(made, Put::StartUnknown), "{made:?}");
    assert!(b.ledger.segment(&lost_tag).await.unwrap().is_none());
    assert!(b.ledger.sequence(&lost_sequence).await.unwrap().is_none());
    let from = SegmentChange { start: Some(500), ..SegmentChange::default() };
    let made = b.ledger.put_segment(&lost_tag, &from, &by()).await.unwrap();
    assert!(matches!(made, Put::Done(_)), "{made:?}");
    let from = SequenceChange { start: Some(500), increment: None };
    let made = b.ledger.put_sequence(&lost_sequence, &from, &by()).await.unwrap();
    assert!(matches!(made, Put::Done(_)), "{made:?}");
    let granted = b.ledger.grant_sequence(&lost_sequence, 1).await.unwrap();
    assert_eq!(granted, SequenceGrant::Granted { first: 500, increment: 1 });
    // Somebody says that what it does not know is new.
    let b = with_new_signers(b).await;
    let new = SequenceName::parse("new").unwrap();
    let made = b.ledger.put_sequence(&new, &SequenceChange::default(), &by()).await.unwrap();
    assert!(matches!(made, Put::Done(_)), "{made:?}");
}

pub async fn a_recovery_names_the_sequences_and_segments_that_it_takes_to_their_end(b: Bench) {
    with_numbers(&b).await;
    let most = ID_NUMBER_MAX - SKIPPED as u64;
    // Each with its increment, and the last two sides of where nothing is left.
    let sequences = [
        ("wide", 1, SEQUENCE_INCREMENT_MAX),
        ("last", most - 1, 1),
        ("none", most, 1),
        ("before", ID_NUMBER_MAX - 1, 1),
    ];
    for (name, start, increment) in sequences {
        let change = SequenceChange { start: Some(start), increment: Some(increment) };
        let made = b.ledger.put_sequence(&SequenceName::parse(name).unwrap(), &change, &by()).await.unwrap();
        assert!(matches!(made, Put::Done(_)), "{made:?}");
    }
    let grown = most - 100 * SEGMENT_STEP_GROWN_MAX;
    let long = most - 101 * SEGMENT_STEP_MAX;
    let segments = [
        ("last", grown - 10, 10),
        ("none", grown - 9, 10),
        ("long", long, SEGMENT_STEP_MAX),
        ("longer", long + 1, SEGMENT_STEP_MAX),
        ("past", most + 1, SEGMENT_STEP_MAX),
    ];
    for (tag, start, step) in segments {
        let change = SegmentChange { start: Some(start), step: Some(step), description: None };
        let made = b.ledger.put_segment(&SegmentTag::parse(tag).unwrap(), &change, &by()).await.unwrap();
        assert!(matches!(made, Put::Done(_)), "{made:?}");
    }
    let (b, trial) = recovered(b, true).await;
    let (b, recovery) = recovered(b, false).await;
    for found in [trial, recovery] {
        assert_eq!((found.sequences, found.segments), (3, 3), "{found:?}");
        assert_eq!(found.ended_sequences, ["before", "none"]);
        assert_eq!(found.ended_segments, ["longer", "none", "past"]);
    }
    for (name, ..) in sequences {
        let granted = b.ledger.grant_sequence(&SequenceName::parse(name).unwrap(), 1).await.unwrap();
        assert_eq!(granted == SequenceGrant::Exhausted, ["before", "none"].contains(&name), "{name}");
    }
    for (tag, ..) in segments {
        let taken = b.ledger.take_range(&SegmentTag::parse(tag).unwrap(), 1).await.unwrap();
        assert_eq!(taken == RangeTaken::Exhausted, !["last", "long"].contains(&tag), "{tag}");
    }
    let (_, wide) = recovered_by(b, RECOVERED_NUMBERS_MAX, true).await;
    assert!(wide.ended_sequences.contains(&"wide".to_owned()), "{wide:?}");
}

pub async fn a_trial_changes_nothing_and_migrates_no_tables(b: Bench) {
    let (me, s) = (owner("a"), signer("s"));
    b.acquired(&me, &s, LONG_MS).await;
    let (now, later) = match b.ledger.kind() {
        Kind::Sqlite => ("1", "99999999999999999"),
        Kind::Postgres => ("now()", "now() + interval '1 hour'"),
    };
    let untouched = format!(
        "UPDATE lease SET owner = owner WHERE resource = 'signer:s' AND owner = '{me}' AND expires_at > {now}"
    );
    execute(&b.options.url, &format!("UPDATE lease SET expires_at = {later}")).await;
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    let (look, older): (&str, &[&str]) = match Kind::of(&options.url).unwrap() {
        Kind::Sqlite => ("SELECT 1 WHERE false", &["DELETE FROM schema_migration WHERE version = 19"]),
        Kind::Postgres => (
            "SELECT FROM pg_inherits WHERE inhparent = 'job_finished'::regclass",
            &[
                "CREATE INDEX signer_nonce_overdue ON signer_nonce_allocation (held_until) WHERE status = 'HELD'",
                "CREATE INDEX plan_event_task ON plan_event (task, seq) WHERE task IS NOT NULL",
                "DELETE FROM schema_migration WHERE version = 21",
            ],
        ),
    };
    // A serving instance makes the partitions of the next days.
    if look.contains("pg_inherits") {
        let newest = "DO $$ BEGIN EXECUTE (SELECT 'DROP TABLE ' || max(c.relname) FROM pg_inherits i
                      JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relname LIKE 'job_finished_2%' AND c.relkind = 'r'); END $$";
        execute(&options.url, newest).await;
    }
    let partitions = execute(&options.url, look).await;
    let margins = Margins { numbers: SKIPPED, lead_ms: LEAD_MS };
    ledger::try_recovery(&options, margins).await.unwrap();
    assert_eq!(execute(&options.url, &untouched).await, 1, "the lease is as it was");
    assert_eq!(execute(&options.url, look).await, partitions);
    for statement in older {
        execute(&options.url, statement).await;
    }
    let versions = execute(&options.url, "UPDATE schema_migration SET version = version").await;
    let refused = ledger::try_recovery(&options, margins).await.err();
    assert!(matches!(refused, Some(Error::Migration(_))), "{refused:?}");
    let refused = ledger::recover(&options, Migrate::Check, margins, &by()).await.err();
    assert!(matches!(refused, Some(Error::Migration(_))), "{refused:?}");
    let after = execute(&options.url, "UPDATE schema_migration SET version = version").await;
    assert_eq!(after, versions, "no migration was made");
    drop((database, _folder));
}

#[tokio::test]
async fn a_recovery_of_a_large_ledger_takes_its_time() {
    let b = Bench::postgres().await;
    b.acquired(&owner("a"), &signer("s"), LONG_MS).await;
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    for statement in [
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$",
        "CREATE TRIGGER slow BEFORE UPDATE ON lease FOR EACH STATEMENT EXECUTE FUNCTION slow()",
    ] {
        execute(&options.url, statement).await;
    }
    let options = Options { call_timeout_ms: 500, ..options };
    let margins = Margins { numbers: SKIPPED, lead_ms: LEAD_MS };
    let recovery = ledger::recover(&options, Migrate::Auto, margins, &by()).await.unwrap();
    assert_eq!((recovery.leases, recovery.signers), (1, 0));
    drop((database, _folder));
}
