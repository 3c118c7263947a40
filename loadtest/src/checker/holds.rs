//! What the history alone says about holds of one nonce: one lives at a time, consumed is final,
//! quarantine holds, only the last one settles, and a live one is served.

use super::evidence::{Evidence, Hold};
use super::{Rule, Violation, accuse};
use crate::history::{Outcome, Settlement, Verdict};

pub(super) fn check(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    for holds in evidence.by_nonce() {
        for (index, one) in holds.iter().enumerate() {
            for other in &holds[index + 1..] {
                pair(one, other, found);
            }
            for (this, later) in ordered(one, &holds) {
                succession(this, later, found);
            }
        }
    }
    for hold in evidence.holds.values() {
        alone(hold, found);
    }
    for stray in &evidence.strays {
        if stray.is_done() {
            accuse(
                found,
                Rule::StaleSettleRefused,
                format!(
                    "hold {} of nonce {} was never granted, yet it settled",
                    stray.line.hold, stray.line.nonce
                ),
            );
        }
    }
}

/// The holds that were certainly granted after `this` was.
fn ordered<'h, 'a>(
    this: &'h Hold<'a>,
    holds: &'h [&'h Hold<'a>],
) -> impl Iterator<Item = (&'h Hold<'a>, &'h Hold<'a>)> {
    holds.iter().filter(move |later| later.sent_us > this.answered_us).map(move |later| (this, *later))
}

fn pair(one: &Hold<'_>, other: &Hold<'_>, found: &mut Vec<Violation>) {
    // Each certainly lives from its answer to its earliest possible end.
    let begin = one.answered_us.max(other.answered_us);
    let end = one.lives_until_us().min(other.lives_until_us());
    if begin < end {
        accuse(found, Rule::OneLiveHold, format!("{} and {} live together", one.name(), other.name()));
    }
}

fn succession(this: &Hold<'_>, later: &Hold<'_>, found: &mut Vec<Violation>) {
    if let Some(done) = this.first_done(Outcome::Consumed)
        && later.sent_us > done.ended_us
    {
        accuse(
            found,
            Rule::ConsumedStays,
            format!("{} was consumed, then granted as {}", this.name(), later.name()),
        );
    }
    if let Some(done) = this.first_done(Outcome::Unknown)
        && later.sent_us > done.ended_us
        && this.first_sent(Outcome::NeverSent).is_none_or(|sent| later.answered_us < sent)
    {
        accuse(
            found,
            Rule::QuarantineHolds,
            format!("{} was quarantined, then granted as {}", this.name(), later.name()),
        );
    }
    for settle in this.settles.iter().filter(|settle| settle.is_done()) {
        if later.answered_us < settle.sent_us {
            accuse(
                found,
                Rule::StaleSettleRefused,
                format!(
                    "{} settled at {} µs, after the grant of {}",
                    this.name(),
                    settle.sent_us,
                    later.name()
                ),
            );
        }
    }
}

fn alone(hold: &Hold<'_>, found: &mut Vec<Violation>) {
    for settle in &hold.settles {
        match settle.verdict {
            Some(Verdict::Done(status)) if status != settle.line.outcome.status() => accuse(
                found,
                Rule::ContractKept,
                format!("{} settled {} and is {status}", hold.name(), settle.line.outcome.as_str()),
            ),
            Some(Verdict::Refused(code)) if code != "stale_hold" && code != "already_settled" => {
                accuse(found, Rule::ContractKept, format!("{} was refused {code}", hold.name()));
            }
            _ => {}
        }
        let others = || hold.settles.iter().filter(|other| !std::ptr::eq(*other, settle));
        let undisturbed = others().all(|other| other.sent_us > settle.ended_us);
        if settle.is_refused_as("stale_hold") && settle.ended_us < hold.expires_us && undisturbed {
            accuse(
                found,
                Rule::LiveHoldServes,
                format!("{} lived and was called stale at {} µs", hold.name(), settle.ended_us),
            );
        }
        if settle.is_refused_as("already_settled")
            && others().all(|other| other.sent_us > settle.ended_us || agree(other.line, settle.line))
        {
            accuse(
                found,
                Rule::LiveHoldServes,
                format!("{} was called settled before anybody settled it", hold.name()),
            );
        }
        // A consumed nonce is final, so the same word again must be answered the same, for ever.
        if settle.verdict.is_some() && !settle.is_done() && settle.line.outcome == Outcome::Consumed {
            let done = others().find(|other| {
                other.line == settle.line && other.is_done() && other.ended_us < settle.sent_us
            });
            if done.is_some() {
                accuse(
                    found,
                    Rule::RetryAnswersTheSame,
                    format!("{} was consumed, and refused when it said so again", hold.name()),
                );
            }
        }
    }
}

/// Whether two settlements of one hold are both accepted, in any order: they say the same, or that the nonce was used, and one
/// of them names no transaction.
fn agree(one: &Settlement, other: &Settlement) -> bool {
    let are_consumed = [one, other].iter().all(|line| line.outcome == Outcome::Consumed);
    one == other || (are_consumed && (one.tx_hash.is_none() || other.tx_hash.is_none()))
}
