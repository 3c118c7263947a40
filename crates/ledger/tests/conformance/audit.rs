//! The audit: one entry for each change, in its commit; and no change without one.

use domain::plan::{Command, Intent};
use domain::{AuditEntry, Mode, SegmentTag, SequenceName, TenantId};
use ledger::{
    AuditFilter, Author, Confirmation, Error, LockBreak, Margins, Migrate, NewPlan, PAGE_BYTES_MAX,
    PlanBatch, PlanCreated, PlanVerdict, RECOVERED_TOKENS, SegmentChange, SequenceChange, Verdict,
};
use sqlx::Connection;

use crate::bench::{Bench, LONG_MS, batch_with_policy, by, new_grant, nonce, owner, signer};
use crate::confirmations::{states, with_all_states};
use crate::plan_owner::{PlanOwner, new_started, plan, plan_id, task_id};

async fn subjects(b: &Bench, filter: AuditFilter) -> Vec<String> {
    let found = b.ledger.audits(&AuditFilter { limit: 100, ..filter }).await.unwrap();
    found.into_iter().map(|entry| format!("{} {} {}", entry.principal, entry.action, entry.subject)).collect()
}

fn about(subject: &str) -> AuditEntry {
    AuditEntry { subject: subject.to_owned(), request_id: Some("r-1".into()), ..by() }
}

/// Everything that takes its entry along; each makes one change.
async fn change_all(b: &Bench) -> Vec<Result<bool, Error>> {
    let (me, s) = (owner("a"), signer("s"));
    let tag = SegmentTag::parse("order").unwrap();
    let sequence = SequenceName::parse("invoice").unwrap();
    let mut changed = Vec::new();
    let mode = b.ledger.decide_mode(Mode::Basic).await.unwrap();
    changed.push(b.ledger.replace_modes(&mode, &about("config:mode")).await.map(|modes| modes.is_some()));
    let (version, _) = b.ledger.pools().await.unwrap();
    changed.push(b.ledger.replace_pools(version, "[]".to_owned(), &about("config:pools")).await);
    let segment = b.ledger.put_segment(&tag, &SegmentChange::default(), &about("segment:order")).await;
    changed.push(segment.map(|_| true));
    let sequenced =
        b.ledger.put_sequence(&sequence, &SequenceChange::default(), &about("sequence:invoice")).await;
    changed.push(sequenced.map(|_| true));
    let token = b.acquired(&me, &s, LONG_MS).await;
    let mut policy = batch_with_policy(&s, &me, token, vec![new_grant(0, LONG_MS)]);
    policy.audit = vec![about("signer:s")];
    changed.push(b.ledger.commit(policy).await.map(|verdict| matches!(verdict, Verdict::Committed { .. })));
    let (_, step) = PlanOwner::started(b, plan(1, &["x"])).await.decide(&Command::Pause);
    let step = PlanBatch { audit: Some(about("task:x")), ..step };
    let stepped = b.ledger.commit_plan(step).await;
    changed.push(stepped.map(|verdict| matches!(verdict, PlanVerdict::Written { .. })));
    let started = NewPlan { audit: Some(about("plan:y")), ..new_started(&plan(2, &["y"])) };
    let made = b.ledger.create_plan(started).await;
    changed.push(made.map(|made| matches!(made, PlanCreated::Made { .. })));
    changed
}

pub async fn every_change_of_an_operator_has_one_entry(b: Bench) {
    for changed in change_all(&b).await {
        assert!(changed.unwrap());
    }
    let all =
        ["plan:y", "task:x", "signer:s", "sequence:invoice", "segment:order", "config:pools", "config:mode"];
    let all = all.map(|subject| format!("ops test {subject}"));
    assert_eq!(subjects(&b, AuditFilter::default()).await, all, "the newest first");
    for (filter, expected) in [
        (AuditFilter { subject: Some("segment:order".to_owned()), ..AuditFilter::default() }, 1),
        (AuditFilter { principal: Some("ops".to_owned()), ..AuditFilter::default() }, 7),
        (AuditFilter { principal: Some("x".to_owned()), ..AuditFilter::default() }, 0),
        (AuditFilter { action: Some("test".to_owned()), ..AuditFilter::default() }, 7),
        (AuditFilter { before: Some(0), ..AuditFilter::default() }, 0),
        (AuditFilter { since: Some(domain::Timestamp::from_micros(1)), ..AuditFilter::default() }, 7),
        (
            AuditFilter {
                since: Some(domain::Timestamp::from_micros(4_000_000_000_000_000)),
                ..AuditFilter::default()
            },
            0,
        ),
    ] {
        assert_eq!(subjects(&b, filter.clone()).await.len(), expected, "{filter:?}");
    }
    // What was refused is not noted.
    let stale = domain::Modes { version: 77, mode: Mode::Basic, only: None };
    assert_eq!(b.ledger.replace_modes(&stale, &by()).await.unwrap(), None);
    // A request that several instances note is noted once; two requests are not, whatever ids their caller gave them.
    b.ledger.audit(&about("node:n")).await.unwrap();
    b.ledger.audit_once(&about("node:n")).await.unwrap();
    assert_eq!(subjects(&b, AuditFilter::default()).await.len(), 8);
    b.ledger.audit(&about("node:n")).await.unwrap();
    b.ledger.audit_once(&about("node:other")).await.unwrap();
    assert_eq!(subjects(&b, AuditFilter::default()).await.len(), 10);
    assert_eq!(b.ledger.purge_audits(60_000, 100).await.unwrap(), 0);
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert_eq!(b.ledger.purge_audits(1, 4).await.unwrap(), 4);
    assert_eq!(subjects(&b, AuditFilter::default()).await.len(), 6);
}

/// As of many pools, which each entry about them names as they were and as they are.
pub async fn a_page_of_long_entries_ends_early_and_only_an_empty_one_is_the_end(b: Bench) {
    let pools = "x".repeat(PAGE_BYTES_MAX as usize / 5);
    for _ in 0..5 {
        b.ledger.audit(&by().changed(pools.clone(), pools.clone())).await.unwrap();
    }
    let (mut pages, mut before) = (Vec::new(), None);
    loop {
        let filter = AuditFilter { before, limit: 100, ..AuditFilter::default() };
        let page = b.ledger.audits(&filter).await.unwrap();
        for entry in &page {
            assert!(entry.before.as_ref() == Some(&pools) && entry.after.as_ref() == Some(&pools));
        }
        assert!(page.is_sorted_by(|newer, older| newer.id > older.id));
        pages.push(page.len());
        let Some(last) = page.last() else { break };
        before = Some(last.id);
    }
    assert_eq!(pages, [3, 2, 0]);
}

pub async fn nothing_is_changed_where_its_entry_cannot_be_written(b: Bench) {
    let shown = async |b: &Bench| {
        let (version, _) = b.ledger.pools().await.unwrap();
        let tag = SegmentTag::parse("order").unwrap();
        let sequence = SequenceName::parse("invoice").unwrap();
        let modes = b.ledger.modes().await.unwrap().map(|modes| modes.version);
        let (segment, sequence) = (
            b.ledger.segment(&tag).await.unwrap().is_some(),
            b.ledger.sequence(&sequence).await.unwrap().is_some(),
        );
        (modes.unwrap_or(1), version, segment, sequence, b.last(&signer("s")).await)
    };
    let before = shown(&b).await;
    by_hand(&b, "ALTER TABLE audit RENAME TO elsewhere").await;
    for changed in change_all(&b).await {
        assert!(changed.is_err(), "{changed:?}");
    }
    assert!(b.ledger.audit(&by()).await.is_err());
    assert_eq!(shown(&b).await, before);
    let unpaused = b.ledger.load_plan(plan_id(1)).await.unwrap().unwrap();
    assert_eq!(unpaused.intent, Intent::Run);
    assert_eq!(b.ledger.load_plan(plan_id(2)).await.unwrap(), None);
}

/// Another hand changes the tables.
async fn by_hand(b: &Bench, statement: &'static str) {
    if b.database.is_some() {
        let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
        sqlx::query(statement).execute(&mut hand).await.unwrap();
    } else {
        let mut hand = sqlx::SqliteConnection::connect(&b.options.url).await.unwrap();
        sqlx::query(statement).execute(&mut hand).await.unwrap();
    }
}

pub async fn no_lock_is_broken_no_signer_confirmed_and_nothing_recovered_without_an_entry(b: Bench) {
    let (b, recovering) = with_all_states(b).await;
    let (me, sound, tenant) = (owner("a"), signer("sound"), TenantId::parse("x").unwrap());
    assert_eq!(b.ledger.confirm_signer(&sound, nonce(0), &by()).await.unwrap(), Confirmation::Done);
    let token = b.acquired(&me, &sound, LONG_MS).await;
    b.commits(batch_with_policy(&sound, &me, token, vec![new_grant(0, LONG_MS)])).await;
    let locker = PlanOwner::started(&b, plan(1, &["x"])).await;
    let held = locker.state.tasks[0].lock.unwrap();
    let before = states(&b, &recovering).await;

    by_hand(&b, "ALTER TABLE audit RENAME TO elsewhere").await;
    let confirmed = b.ledger.confirm_signer(&recovering, nonce(7), &by()).await;
    assert!(confirmed.is_err(), "{confirmed:?}");
    let broken = b.ledger.break_lock(&tenant, held, &Author::default()).await;
    assert!(broken.is_err(), "{broken:?}");
    // As the command does it: no other process has the ledger.
    let Bench { ledger, options, database, _folder } = b;
    ledger.close().await;
    drop(ledger);
    let margins = Margins { numbers: 0, lead_ms: 0 };
    let recovery = ledger::recover(&options, Migrate::Auto, margins, &by()).await;
    assert!(recovery.is_err(), "{recovery:?}");
    let ended = ledger::let_new_signers_grant(&options, Migrate::Auto, &by()).await;
    assert!(ended.is_err(), "{ended:?}");
    let b = Bench { ledger: ledger::open(&options).await.unwrap(), options, database, _folder };
    by_hand(&b, "ALTER TABLE elsewhere RENAME TO audit").await;

    assert_eq!(states(&b, &recovering).await, before);
    assert!(b.ledger.load(&recovering, 1).await.unwrap().is_recovering);
    assert!(!b.ledger.load(&sound, 1).await.unwrap().is_recovering, "nothing was recovered");
    assert!(b.acquired(&me, &sound, LONG_MS).await.get() < token.get() + RECOVERED_TOKENS);
    // Each of them is still to be done.
    let lock = b.ledger.break_lock(&tenant, held, &Author::default()).await.unwrap();
    assert_eq!(lock, LockBreak::Broken { task: task_id(1, 0), plan: Some(plan_id(1)) });
    let confirmed = b.ledger.confirm_signer(&recovering, nonce(7), &by()).await.unwrap();
    assert_eq!(confirmed, Confirmation::Done);
}
