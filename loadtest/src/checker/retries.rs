//! Attempts of one grant under one key: one answer, until its holds moved on. And what one grant gives, no other does.

use std::collections::HashMap;

use super::evidence::{Attempts, Evidence};
use super::{Rule, SLACK_US, Violation, accuse};
use crate::history::{Answer, Asked, Granted, Record};

pub(super) fn check(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    for grant in &evidence.attempts {
        same_answer(grant, found);
        stale_is_true(evidence, grant, found);
        dead_is_stale(evidence, grant, found);
    }
    given_once(evidence, found);
}

/// Each hold is of one nonce, and of one grant: of two callers that have it both may send.
fn given_once(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    let mut given: HashMap<&str, (&str, u64, usize)> = HashMap::new();
    for (which, grant) in evidence.attempts.iter().enumerate() {
        for record in &grant.records {
            let Answer::Granted { grants, .. } = &record.answer else { continue };
            for one in grants {
                let now = (grant.signer, one.nonce, which);
                let first = *given.entry(one.hold.as_str()).or_insert(now);
                if first != now {
                    let (signer, nonce, other) = first;
                    accuse(
                        found,
                        Rule::OneLiveHold,
                        format!(
                            "hold {} of {signer} nonce {nonce}, given to {:?}, is given to {:?} as well, of nonce {}",
                            one.hold, evidence.attempts[other].records[0].asked, record.asked, one.nonce
                        ),
                    );
                }
            }
        }
    }
}

fn same_answer(grant: &Attempts<'_>, found: &mut Vec<Violation>) {
    let name = |grants: &[Granted]| -> Vec<(u64, String)> {
        grants.iter().map(|one| (one.nonce, one.hold.clone())).collect()
    };
    let Some((_, first)) = grant.grants() else { return };
    let first = name(first);
    let mut nonces: Vec<u64> = first.iter().map(|(nonce, _)| *nonce).collect();
    nonces.sort_unstable();
    nonces.dedup();
    if nonces.len() as u64 != grant.count {
        accuse(
            found,
            Rule::ContractKept,
            format!("{}: asked for {} nonces, got {first:?}", grant.signer, grant.count),
        );
    }
    let mut stale_at = None;
    for record in &grant.records {
        match &record.answer {
            Answer::Granted { grants, .. } => {
                if name(grants) != first {
                    accuse(
                        found,
                        Rule::RetryAnswersTheSame,
                        format!("{:?}: first {first:?}, then {:?}", record.asked, name(grants)),
                    );
                }
                if stale_at.is_some_and(|stale| record.sent_us > stale) {
                    accuse(
                        found,
                        Rule::RetryAnswersTheSame,
                        format!("{:?} was stale, then granted", record.asked),
                    );
                }
            }
            Answer::Refused { code, .. } if code == "stale_hold" => {
                stale_at = Some(stale_at.map_or(record.ended_us, |at: u64| at.min(record.ended_us)));
            }
            _ => {}
        }
    }
}

/// `stale_hold` is an answer only under a key, and only when a hold may have moved on by then. It may be the
/// first answer: an instance that does not hear what became of its commit asks the ledger again.
///
/// The owner reads how long the hold has left, and subtracts all the time since it began to read: so it may call a hold
/// stale that has less left than the attempt took.
fn stale_is_true(evidence: &Evidence<'_>, grant: &Attempts<'_>, found: &mut Vec<Violation>) {
    for record in &grant.records {
        if !matches!(&record.answer, Answer::Refused { code, .. } if code == "stale_hold") {
            continue;
        }
        let keyed = matches!(&record.asked, Asked::Grant { key: Some(_), .. });
        let may_be = match grant.grants() {
            None => record.ended_us + SLACK_US >= grant.first_sent_us() + grant.hold_ms * 1_000,
            Some((_, grants)) => grants.iter().any(|one| {
                let hold = &evidence.holds[&(grant.signer, one.nonce, one.hold.as_str())];
                let settled = hold.settles.iter().any(|settle| settle.sent_us < record.ended_us);
                let took_us = record.ended_us - record.sent_us;
                settled || hold.expires_us <= record.ended_us + took_us
            }),
        };
        if !keyed || !may_be {
            accuse(
                found,
                Rule::LiveHoldServes,
                format!(
                    "{:?} was called stale at {} µs, yet nothing moved on; its attempts: {}",
                    record.asked,
                    record.ended_us,
                    told(grant).join(", ")
                ),
            );
        }
    }
}

/// When each attempt was sent and answered, and with what.
fn told(grant: &Attempts<'_>) -> Vec<String> {
    let answer = |answer: &Answer| match answer {
        Answer::Granted { token, grants } => {
            let left = grants.first().map_or(0, |one| one.held_for_ms);
            format!("granted under token {token} for {left} ms")
        }
        Answer::Refused { status, code } => format!("{status} {code}"),
        other => format!("{other:?}"),
    };
    let told =
        |record: &&Record| format!("{} to {} µs {}", record.sent_us, record.ended_us, answer(&record.answer));
    grant.records.iter().map(told).collect()
}

/// A replay never hands out a hold that is over: it may be somebody else's nonce by now.
fn dead_is_stale(evidence: &Evidence<'_>, grant: &Attempts<'_>, found: &mut Vec<Violation>) {
    for record in &grant.records {
        let Answer::Granted { grants, .. } = &record.answer else { continue };
        for one in grants {
            let hold = &evidence.holds[&(grant.signer, one.nonce, one.hold.as_str())];
            // Granted by `answered_us` at the latest, so run out by then.
            let ran_out = hold.answered_us + hold.hold_ms * 1_000 + SLACK_US;
            let over = hold.settled_us().map_or(ran_out, |settled| settled.min(ran_out));
            if record.sent_us > over {
                accuse(
                    found,
                    Rule::RetryAnswersTheSame,
                    format!(
                        "{:?} sent at {} µs was given {}, which was over",
                        record.asked,
                        record.sent_us,
                        hold.name()
                    ),
                );
            }
        }
    }
}
