//! The tables against the history: no gap, nothing lost, nothing from nowhere.

use std::collections::BTreeMap;

use super::evidence::{Evidence, Hold};
use super::{NonceRow, READ_MARGIN_US, Rule, Tables, Violation, accuse};
use crate::history::Outcome;

type Rows<'t> = BTreeMap<(&'t str, u64), &'t NonceRow>;

pub(super) fn check(evidence: &Evidence<'_>, tables: &Tables, found: &mut Vec<Violation>) {
    let rows = gaps(tables, found);
    // By signer, how many nonces may have been granted without anybody knowing their holds.
    let mut unheard: BTreeMap<&str, u64> = BTreeMap::new();
    for grant in evidence.attempts.iter().filter(|grant| grant.unheard() > 0) {
        *unheard.entry(grant.signer).or_default() += grant.unheard();
    }
    for hold in evidence.holds.values() {
        let Some(row) = rows.get(&(hold.signer, hold.nonce)) else {
            accuse(found, Rule::AnsweredIsDurable, format!("{} has no row", hold.name()));
            continue;
        };
        alive(hold, row, tables, found);
        if row.hold == hold.id {
            settled(hold, row, found);
        } else {
            overtaken(evidence, hold, row, &unheard, found);
        }
    }
    let mut left = unheard.clone();
    for row in rows.values() {
        if evidence.holds.contains_key(&(row.signer.as_str(), row.nonce, row.hold.as_str())) {
            continue;
        }
        match left.get_mut(row.signer.as_str()) {
            Some(left) if *left > 0 => *left -= 1,
            _ => {
                let most = unheard.get(row.signer.as_str()).copied().unwrap_or_default();
                accuse(
                    found,
                    Rule::NothingFromNowhere,
                    format!(
                        "nobody was granted {row:?}; {most} of the signer's may be unheard of, and no more"
                    ),
                );
            }
        }
    }
}

fn gaps<'t>(tables: &'t Tables, found: &mut Vec<Violation>) -> Rows<'t> {
    let mut rows = Rows::new();
    let mut signers: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for row in &tables.rows {
        if rows.insert((&row.signer, row.nonce), row).is_some() {
            accuse(found, Rule::NoGap, format!("{} nonce {} has two rows", row.signer, row.nonce));
        }
        signers.entry(&row.signer).or_default().push(row.nonce);
    }
    for (signer, mut nonces) in signers {
        nonces.sort_unstable();
        nonces.dedup();
        let first = tables.first_nonce.get(signer).copied().unwrap_or(0);
        for (expected, nonce) in (first..).zip(&nonces) {
            if expected != *nonce {
                accuse(found, Rule::NoGap, format!("{signer}: nonce {expected} has no row, {nonce} has one"));
                break;
            }
        }
        let next = nonces.last().map_or(first, |last| last + 1);
        if let Some(answer) = tables.next_nonce.get(signer)
            && *answer != next
        {
            accuse(
                found,
                Rule::NoGap,
                format!("{signer}: next_nonce is told as {answer}, the rows end before {next}"),
            );
        }
    }
    rows
}

/// A hold that lives has its row, whatever else may have been done without an answer.
fn alive(hold: &Hold<'_>, row: &NonceRow, tables: &Tables, found: &mut Vec<Violation>) {
    let Some(read_us) = tables.read_us else { return };
    let is_over = row.hold != hold.id || row.status == "RELEASED";
    if is_over && hold.lives_until_us() > read_us + READ_MARGIN_US {
        accuse(
            found,
            Rule::AnsweredIsDurable,
            format!("{} lived at {read_us} µs, when the table had {row:?}", hold.name()),
        );
    }
}

/// The row's last hold is this one: its state must follow from what this hold said.
fn settled(hold: &Hold<'_>, row: &NonceRow, found: &mut Vec<Violation>) {
    let name = || format!("{}, row {} {:?}", hold.name(), row.status, row.tx_hash);
    let said = |outcome| hold.first_sent(outcome).is_some();
    let done = |outcome| hold.first_done(outcome).is_some();
    // One that names no transaction leaves it to another.
    let lost = hold.settles.iter().filter(|settle| settle.line.outcome == Outcome::Consumed).find(|settle| {
        let is_hash_lost = settle.line.tx_hash.is_some() && row.tx_hash != settle.line.tx_hash;
        settle.is_done() && (row.status != "CONSUMED" || is_hash_lost)
    });
    if let Some(settle) = lost {
        accuse(
            found,
            Rule::AnsweredIsDurable,
            format!("answered CONSUMED {:?}: {}", settle.line.tx_hash, name()),
        );
        return;
    }
    let lost = match row.status.as_str() {
        "HELD" => done(Outcome::NeverSent) || done(Outcome::Unknown),
        "RELEASED" => done(Outcome::Unknown) && !said(Outcome::NeverSent),
        "QUARANTINED" => done(Outcome::NeverSent) && !said(Outcome::Unknown),
        _ => false,
    };
    if lost {
        accuse(found, Rule::AnsweredIsDurable, format!("its settlement is not there: {}", name()));
    }
    let from_nowhere = match row.status.as_str() {
        "HELD" | "RELEASED" => row.tx_hash.is_some(),
        "QUARANTINED" => !said(Outcome::Unknown),
        "CONSUMED" => {
            let mut lines = hold.settles.iter().map(|settle| settle.line);
            !lines.any(|line| line.outcome == Outcome::Consumed && line.tx_hash == row.tx_hash)
        }
        _ => true,
    };
    if from_nowhere {
        accuse(found, Rule::NothingFromNowhere, format!("nobody said so: {}", name()));
    }
}

/// The row's last hold is another one: it must be a later one, and this one's end must allow it.
fn overtaken(
    evidence: &Evidence<'_>,
    hold: &Hold<'_>,
    row: &NonceRow,
    unheard: &BTreeMap<&str, u64>,
    found: &mut Vec<Violation>,
) {
    if hold.first_done(Outcome::Consumed).is_some() {
        accuse(
            found,
            Rule::ConsumedStays,
            format!("{} was consumed; the row has another hold: {row:?}", hold.name()),
        );
    }
    if hold.first_done(Outcome::Unknown).is_some() && hold.first_sent(Outcome::NeverSent).is_none() {
        accuse(
            found,
            Rule::QuarantineHolds,
            format!("{} was quarantined; the row has another hold: {row:?}", hold.name()),
        );
    }
    match evidence.holds.get(&(hold.signer, hold.nonce, row.hold.as_str())) {
        Some(last) if last.answered_us < hold.sent_us => {
            accuse(
                found,
                Rule::AnsweredIsDurable,
                format!("{} is lost; the row has the older {}", hold.name(), last.name()),
            );
        }
        None if !unheard.contains_key(hold.signer) => {
            accuse(found, Rule::AnsweredIsDurable, format!("{} is lost; the row has {row:?}", hold.name()));
        }
        _ => {}
    }
}
