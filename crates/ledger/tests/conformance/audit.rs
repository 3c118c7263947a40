//! The audit: one entry for each change, in its commit; and no change without one.

use domain::{AuditEntry, Mode, SegmentTag, SequenceName};
use ledger::{AuditFilter, Error, SegmentChange, SequenceChange, Verdict};
use sqlx::Connection;

use crate::bench::{Bench, LONG_MS, batch_with_policy, by, new_grant, owner, signer};

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
    changed
}

pub async fn every_change_of_an_operator_has_one_entry(b: Bench) {
    for changed in change_all(&b).await {
        assert!(changed.unwrap());
    }
    let all = ["signer:s", "sequence:invoice", "segment:order", "config:pools", "config:mode"];
    let all = all.map(|subject| format!("ops test {subject}"));
    assert_eq!(subjects(&b, AuditFilter::default()).await, all, "the newest first");
    for (filter, expected) in [
        (AuditFilter { subject: Some("segment:order".to_owned()), ..AuditFilter::default() }, 1),
        (AuditFilter { principal: Some("ops".to_owned()), ..AuditFilter::default() }, 5),
        (AuditFilter { principal: Some("x".to_owned()), ..AuditFilter::default() }, 0),
        (AuditFilter { action: Some("test".to_owned()), ..AuditFilter::default() }, 5),
        (AuditFilter { before: Some(0), ..AuditFilter::default() }, 0),
        (AuditFilter { since: Some(domain::Timestamp::from_micros(1)), ..AuditFilter::default() }, 5),
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
    assert_eq!(subjects(&b, AuditFilter::default()).await.len(), 6);
    b.ledger.audit(&about("node:n")).await.unwrap();
    b.ledger.audit_once(&about("node:other")).await.unwrap();
    assert_eq!(subjects(&b, AuditFilter::default()).await.len(), 8);
    assert_eq!(b.ledger.purge_audits(60_000, 100).await.unwrap(), 0);
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert_eq!(b.ledger.purge_audits(1, 4).await.unwrap(), 4);
    assert_eq!(subjects(&b, AuditFilter::default()).await.len(), 4);
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
    let rename = "ALTER TABLE audit RENAME TO elsewhere";
    if b.database.is_some() {
        let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
        sqlx::query(rename).execute(&mut hand).await.unwrap();
    } else {
        let mut hand = sqlx::SqliteConnection::connect(&b.options.url).await.unwrap();
        sqlx::query(rename).execute(&mut hand).await.unwrap();
    }
    for changed in change_all(&b).await {
        assert!(changed.is_err(), "{changed:?}");
    }
    assert!(b.ledger.audit(&by()).await.is_err());
    assert_eq!(shown(&b).await, before);
}
