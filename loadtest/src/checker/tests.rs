//! The checker itself: it passes a lawful run, and finds each broken promise that is put into one.

use super::*;
use crate::history::{Asked, Granted, Outcome, Settlement, Verdict};

const S: &str = "eip155:1:0xab";

/// Milliseconds, so that the stories below read easily.
fn record(asked: Asked, answer: Answer, sent: u64, ended: u64) -> Record {
    Record { client: 0, asked, answer, sent_us: sent * 1_000, ended_us: ended * 1_000 }
}

fn ask(count: u64, hold_ms: u64, key: Option<&str>) -> Asked {
    Asked::Grant { signer: S.into(), count, hold_ms, key: key.map(str::to_owned) }
}

fn granted(token: i64, grants: &[(u64, &str)], held_for_ms: u64) -> Answer {
    let grants =
        grants.iter().map(|(nonce, hold)| Granted { nonce: *nonce, hold: (*hold).into(), held_for_ms });
    Answer::Granted { token, grants: grants.collect() }
}

fn settle(nonce: u64, hold: &str, outcome: Outcome, verdict: Option<&str>, sent: u64) -> Record {
    let tx_hash = (outcome == Outcome::Consumed).then(|| format!("0x{hold}"));
    let line = Settlement { nonce, hold: hold.into(), outcome, tx_hash };
    let answer = match verdict {
        None => Answer::Unknown { error: "time out".into() },
        Some(code) if code.starts_with(char::is_uppercase) => {
            Answer::Settled(vec![Verdict::Done(code.into())])
        }
        Some(code) => Answer::Settled(vec![Verdict::Refused(code.into())]),
    };
    record(Asked::Settle { signer: S.into(), settlements: vec![line] }, answer, sent, sent + 10)
}

fn refused(status: u16, code: &str) -> Answer {
    Answer::Refused { status, code: code.into() }
}

fn unknown() -> Answer {
    Answer::Unknown { error: "connection reset".into() }
}

fn row(nonce: u64, status: &str, hold: &str, tx_hash: Option<&str>) -> NonceRow {
    NonceRow {
        signer: S.into(),
        nonce,
        status: status.into(),
        hold: hold.into(),
        tx_hash: tx_hash.map(str::to_owned),
    }
}

struct Run {
    records: Vec<Record>,
    tokens: Vec<TokenSeen>,
    tables: Tables,
}

impl Run {
    fn verify(&self) -> Vec<Violation> {
        check(&self.records, &self.tokens, &self.tables)
    }
}

/// Nonce 0 consumed, 1 let go and granted again, 2 quarantined, 3 run out and granted again to a
/// caller that never heard of it, 4 granted over three attempts.
fn lawful() -> Run {
    let records = vec![
        record(ask(3, 60_000, Some("k1")), granted(1, &[(0, "a"), (1, "b"), (2, "c")], 59_000), 0, 20),
        record(ask(3, 60_000, Some("k1")), granted(1, &[(0, "a"), (1, "b"), (2, "c")], 58_980), 30, 40),
        settle(0, "a", Outcome::Consumed, Some("CONSUMED"), 100),
        settle(0, "a", Outcome::Consumed, Some("CONSUMED"), 120),
        settle(1, "b", Outcome::NeverSent, Some("RELEASED"), 140),
        settle(2, "c", Outcome::Unknown, None, 160),
        settle(2, "c", Outcome::Unknown, Some("QUARANTINED"), 180),
        record(ask(1, 100, None), granted(2, &[(1, "d")], 99), 200, 210),
        record(ask(1, 100, None), granted(2, &[(3, "e")], 99), 220, 230),
        settle(1, "b", Outcome::NeverSent, Some("stale_hold"), 240),
        record(ask(3, 60_000, Some("k1")), refused(409, "stale_hold"), 260, 270),
        record(ask(1, 60_000, None), unknown(), 500, 900),
        record(ask(1, 60_000, Some("k2")), unknown(), 1_000, 2_000),
        record(ask(1, 60_000, Some("k2")), refused(503, "ledger_unavailable"), 2_100, 2_200),
        record(ask(1, 60_000, Some("k2")), granted(3, &[(4, "g")], 58_000), 2_300, 2_310),
        settle(4, "g", Outcome::Consumed, Some("CONSUMED"), 2_400),
    ];
    let tokens = [("signer:x", 1), ("signer:y", 5), ("signer:x", 1), ("signer:x", 4)];
    let tokens = tokens.map(|(resource, token)| TokenSeen { resource: resource.into(), token }).to_vec();
    let rows = vec![
        row(0, "CONSUMED", "a", Some("0xa")),
        row(1, "HELD", "d", None),
        row(2, "QUARANTINED", "c", None),
        row(3, "HELD", "f", None),
        row(4, "CONSUMED", "g", Some("0xg")),
    ];
    let next_nonce = BTreeMap::from([(S.to_owned(), 5)]);
    let tables = Tables { rows, next_nonce, ..Tables::default() };
    Run { records, tokens, tables }
}

/// Puts a crime into the lawful run and asserts that exactly this rule is named.
fn convicts(rule: Rule, crime: impl FnOnce(&mut Run)) {
    let mut run = lawful();
    crime(&mut run);
    let found = run.verify();
    assert!(found.iter().any(|violation| violation.rule == rule), "{rule:?} was not found, but: {found:#?}");
}

#[test]
fn a_lawful_run_is_acquitted() {
    assert_eq!(lawful().verify(), []);
}

/// The first settlement of nonce 0 names no transaction, and a second one does.
fn named_later(run: &mut Run) {
    let Asked::Settle { settlements, .. } = &mut run.records[2].asked else { panic!("no settlement") };
    settlements[0].tx_hash = None;
}

#[test]
fn a_transaction_that_is_named_later_is_recorded() {
    let mut run = lawful();
    named_later(&mut run);
    assert_eq!(run.verify(), []);
    convicts(Rule::AnsweredIsDurable, |run| {
        named_later(run);
        run.tables.rows[0].tx_hash = None;
    });
    convicts(Rule::LiveHoldServes, |run| {
        named_later(run);
        run.records[3] = settle(0, "a", Outcome::Consumed, Some("already_settled"), 120);
        run.tables.rows[0].tx_hash = None;
    });
    convicts(Rule::NothingFromNowhere, |run| {
        named_later(run);
        run.records.remove(3);
        run.tables.rows[0].tx_hash = Some("0xother".into());
    });
}

#[test]
fn two_live_holds_of_one_nonce_are_found() {
    convicts(Rule::OneLiveHold, |run| {
        run.records.push(record(ask(1, 60_000, None), granted(1, &[(1, "z")], 60_000), 50, 60));
    });
}

#[test]
fn a_hold_that_is_granted_again_before_it_can_have_run_out_is_found() {
    convicts(Rule::OneLiveHold, |run| {
        // "e" was granted at 220 ms at the earliest, for 100 ms.
        run.records.push(record(ask(1, 60_000, None), granted(2, &[(3, "z")], 60_000), 250, 290));
        run.tables.rows[3].hold = "z".into();
    });
}

#[test]
fn a_hold_that_two_callers_are_given_is_found() {
    for key in [None, Some("k3")] {
        convicts(Rule::OneLiveHold, |run| {
            run.records.push(record(ask(1, 60_000, key), granted(3, &[(4, "g")], 57_900), 2_320, 2_330));
        });
    }
}

#[test]
fn a_hold_of_two_nonces_is_found() {
    convicts(Rule::OneLiveHold, |run| {
        run.records.push(record(ask(1, 60_000, None), granted(3, &[(5, "g")], 60_000), 2_320, 2_330));
        run.tables.rows.push(row(5, "HELD", "g", None));
        run.tables.next_nonce.insert(S.to_owned(), 6);
    });
}

#[test]
fn a_consumed_nonce_that_is_granted_again_is_found() {
    convicts(Rule::ConsumedStays, |run| {
        run.records.push(record(ask(1, 60_000, None), granted(2, &[(0, "z")], 60_000), 300, 310));
        run.tables.rows[0] = row(0, "HELD", "z", None);
    });
}

#[test]
fn a_consumed_nonce_that_the_table_gives_to_somebody_unknown_is_found() {
    convicts(Rule::ConsumedStays, |run| run.tables.rows[0] = row(0, "HELD", "z", None));
}

#[test]
fn a_quarantined_nonce_that_is_granted_again_is_found() {
    convicts(Rule::QuarantineHolds, |run| {
        run.records.push(record(ask(1, 60_000, None), granted(2, &[(2, "z")], 60_000), 300, 310));
        run.tables.rows[2] = row(2, "HELD", "z", None);
    });
}

#[test]
fn a_settlement_by_a_hold_that_is_not_the_last_is_found() {
    convicts(Rule::StaleSettleRefused, |run| {
        run.records.push(settle(1, "b", Outcome::NeverSent, Some("RELEASED"), 250));
    });
    convicts(Rule::StaleSettleRefused, |run| {
        run.records.push(settle(4, "invented", Outcome::NeverSent, Some("RELEASED"), 2_600));
    });
}

#[test]
fn a_missing_row_in_the_middle_is_found() {
    convicts(Rule::NoGap, |run| {
        run.tables.rows.remove(3);
    });
}

#[test]
fn numbering_that_does_not_begin_at_the_first_nonce_is_found() {
    convicts(Rule::NoGap, |run| {
        run.tables.first_nonce.insert(S.into(), 1);
    });
}

#[test]
fn two_rows_of_one_nonce_are_found() {
    convicts(Rule::NoGap, |run| run.tables.rows.push(row(3, "HELD", "f", None)));
}

#[test]
fn a_next_nonce_that_the_rows_do_not_reach_is_found() {
    convicts(Rule::NoGap, |run| {
        run.tables.next_nonce.insert(S.into(), 6);
    });
}

#[test]
fn an_answered_grant_without_its_row_is_found() {
    convicts(Rule::AnsweredIsDurable, |run| {
        run.tables.rows.pop();
        run.tables.next_nonce.clear();
    });
}

#[test]
fn an_answered_grant_over_which_the_table_kept_an_older_hold_is_found() {
    convicts(Rule::AnsweredIsDurable, |run| run.tables.rows[1].hold = "b".into());
}

#[test]
fn an_answered_settlement_that_the_table_lost_is_found() {
    convicts(Rule::AnsweredIsDurable, |run| run.tables.rows[0] = row(0, "HELD", "a", None));
    convicts(Rule::AnsweredIsDurable, |run| run.tables.rows[0].tx_hash = Some("0xother".into()));
    convicts(Rule::AnsweredIsDurable, |run| run.tables.rows[2].status = "RELEASED".into());
}

/// Nonce 5 is held until 62,490 ms at least, and the rows are read at this moment, in milliseconds.
fn held_when_read_at(run: &mut Run, read_ms: u64) -> &mut NonceRow {
    run.records.push(record(ask(1, 60_000, None), granted(3, &[(5, "h")], 59_980), 2_500, 2_510));
    run.tables.rows.push(row(5, "HELD", "h", None));
    run.tables.next_nonce.insert(S.to_owned(), 6);
    run.tables.read_us = Some(read_ms * 1_000);
    &mut run.tables.rows[5]
}

#[test]
fn a_live_hold_that_the_table_has_not_is_found_though_a_grant_was_not_heard_of() {
    let mut held = lawful();
    held_when_read_at(&mut held, 10_000);
    assert_eq!(held.verify(), []);
    convicts(Rule::AnsweredIsDurable, |run| held_when_read_at(run, 10_000).hold = "unheard".into());
    convicts(Rule::AnsweredIsDurable, |run| held_when_read_at(run, 10_000).status = "RELEASED".into());
    let mut over = lawful();
    held_when_read_at(&mut over, 62_000).status = "RELEASED".into();
    assert_eq!(over.verify(), []);
    let mut let_go = lawful();
    held_when_read_at(&mut let_go, 10_000).status = "RELEASED".into();
    let_go.records.push(settle(5, "h", Outcome::NeverSent, None, 3_000));
    assert_eq!(let_go.verify(), []);
}

#[test]
fn a_row_that_nobody_asked_for_is_found() {
    convicts(Rule::NothingFromNowhere, |run| {
        // Without the two attempts that nobody heard of, the row of nonce 3 has no author.
        run.records.retain(|record| !record.answer.leaves_doubt());
    });
}

/// A grant under a key is refused as stale at first: it was done without an answer, as nonce 5, and its hold ran out.
fn stale_at_first(run: &mut Run) {
    run.records.push(record(ask(1, 100, Some("k3")), refused(409, "stale_hold"), 2_500, 2_700));
    run.tables.rows.push(row(5, "RELEASED", "h", None));
    run.tables.next_nonce.insert(S.to_owned(), 6);
}

#[test]
fn more_rows_than_were_asked_for_unheard_are_found() {
    let mut run = lawful();
    stale_at_first(&mut run);
    assert_eq!(run.verify(), []);
    // One nonce of the signer counts as unanswered already, and one request for one nonce had no answer.
    convicts(Rule::NothingFromNowhere, |run| {
        stale_at_first(run);
        run.records.pop();
    });
    convicts(Rule::NothingFromNowhere, |run| {
        stale_at_first(run);
        run.tables.rows.push(row(6, "RELEASED", "i", None));
        run.tables.next_nonce.insert(S.to_owned(), 7);
    });
}

#[test]
fn a_state_that_nobody_asked_for_is_found() {
    convicts(Rule::NothingFromNowhere, |run| run.tables.rows[1].status = "QUARANTINED".into());
    convicts(Rule::NothingFromNowhere, |run| run.tables.rows[1] = row(1, "CONSUMED", "d", Some("0xd")));
}

#[test]
fn a_retry_with_another_answer_is_found() {
    convicts(Rule::RetryAnswersTheSame, |run| {
        run.records[1].answer = granted(1, &[(0, "a"), (1, "b"), (2, "zz")], 59_000);
    });
}

#[test]
fn a_retry_that_is_granted_after_it_was_stale_is_found() {
    convicts(Rule::RetryAnswersTheSame, |run| {
        run.records.push(record(ask(3, 60_000, Some("k1")), run.records[0].answer.clone(), 300, 310));
    });
}

#[test]
fn a_retry_that_is_given_a_hold_that_ran_out_is_found() {
    convicts(Rule::RetryAnswersTheSame, |run| {
        run.records[8].asked = ask(1, 100, Some("k3"));
        run.records.push(record(ask(1, 100, Some("k3")), granted(2, &[(3, "e")], 0), 350, 360));
    });
}

/// "g" was settled so at 2,400 ms, which was answered 10 ms later, or never. Its grant is asked for again at this moment, and
/// answered as before.
fn asked_again_when_settled(run: &mut Run, outcome: Outcome, is_answered: bool, sent: u64) {
    run.records[15] = settle(4, "g", outcome, is_answered.then(|| outcome.status()), 2_400);
    let tx_hash = (outcome == Outcome::Consumed).then_some("0xg");
    run.tables.rows[4] = row(4, outcome.status(), "g", tx_hash);
    run.records.push(record(ask(1, 60_000, Some("k2")), granted(3, &[(4, "g")], 57_000), sent, sent + 10));
}

#[test]
fn a_retry_that_is_given_a_hold_that_was_settled_is_found() {
    for outcome in [Outcome::Consumed, Outcome::NeverSent, Outcome::Unknown] {
        convicts(Rule::RetryAnswersTheSame, |run| asked_again_when_settled(run, outcome, true, 2_411));
        // Nobody knew that it was settled when the retry was sent, or ever.
        for (is_answered, sent) in [(true, 2_410), (false, 2_411)] {
            let mut run = lawful();
            asked_again_when_settled(&mut run, outcome, is_answered, sent);
            assert_eq!(run.verify(), [], "{outcome:?}");
        }
    }
}

#[test]
fn a_consumed_settlement_that_is_refused_when_repeated_is_found() {
    convicts(Rule::RetryAnswersTheSame, |run| {
        run.records.push(settle(0, "a", Outcome::Consumed, Some("stale_hold"), 300));
    });
}

#[test]
fn a_live_hold_that_is_called_stale_is_found() {
    convicts(Rule::LiveHoldServes, |run| {
        run.records[15] = settle(4, "g", Outcome::Consumed, Some("stale_hold"), 2_400);
    });
    convicts(Rule::LiveHoldServes, |run| run.records[1].answer = refused(409, "stale_hold"));
    convicts(Rule::LiveHoldServes, |run| {
        run.records[15] = settle(4, "g", Outcome::Consumed, Some("already_settled"), 2_400);
    });
}

#[test]
fn a_hold_that_has_less_left_than_a_repetition_took_may_be_called_stale() {
    // "e" lives until 320 ms at least.
    let repeated = |run: &mut Run, sent, ended| {
        run.records[8].asked = ask(1, 100, Some("k3"));
        run.records.push(record(ask(1, 100, Some("k3")), refused(409, "stale_hold"), sent, ended));
    };
    let mut slow = lawful();
    repeated(&mut slow, 240, 290);
    assert_eq!(slow.verify(), []);
    convicts(Rule::LiveHoldServes, |run| repeated(run, 285, 290));
}

#[test]
fn a_token_that_goes_back_is_found() {
    convicts(Rule::TokenRises, |run| run.tokens.push(TokenSeen { resource: "signer:x".into(), token: 3 }));
    convicts(Rule::TokenRises, |run| run.records[7].answer = granted(0, &[(1, "d")], 99));
}

#[test]
fn answers_outside_the_contract_are_found() {
    convicts(Rule::ContractKept, |run| {
        run.records.push(record(
            ask(1, 1_000, None),
            Answer::Malformed { status: 500, body: "?".into() },
            3_000,
            3_010,
        ));
    });
    convicts(Rule::ContractKept, |run| {
        run.records.push(record(ask(1, 1_000, None), refused(500, "internal"), 3_000, 3_010));
    });
    convicts(Rule::ContractKept, |run| run.records[14].answer = granted(3, &[(4, "g"), (5, "h")], 58_000));
    convicts(Rule::ContractKept, |run| {
        run.records[4] = settle(1, "b", Outcome::NeverSent, Some("QUARANTINED"), 140);
    });
}
