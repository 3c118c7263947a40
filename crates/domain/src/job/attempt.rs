//! The attempts of one job: what may happen to the newest, and what follows from it. Pure; the caller draws
//! the delay before the next one.

use super::{Attempt, Outcome, State};

/// What is known of an unfinished job's newest attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CurrentAttempt {
    /// CREATED, DISPATCHED or RUNNING.
    pub state: State,
    /// Its number; in CREATED, the number of the last one that is over.
    pub attempt: Attempt,
    /// How many attempts that are over count towards `max_attempts`.
    pub charged_attempts: u32,
}

impl CurrentAttempt {
    /// The first attempt of a job that begins as it is written.
    pub const FIRST: Self =
        Self { state: State::Dispatched, attempt: Attempt::NONE.next(), charged_attempts: 0 };
}

/// What happens to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A slot is reserved for the next attempt.
    Place,
    /// The node has it.
    Acknowledged(Attempt),
    /// The node has done it.
    Succeeded(Attempt),
    /// The node could not do it.
    Failed {
        /// Which attempt.
        attempt: Attempt,
        /// Whether trying again may help.
        retryable: bool,
    },
    /// The attempt is taken from the node.
    Revoked {
        /// Which attempt.
        attempt: Attempt,
        /// The reason.
        why: Revoked,
    },
    /// A caller cancels the job.
    Cancelled,
}

/// Why an attempt is taken from its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revoked {
    /// No acknowledgement came in time.
    NotAcknowledged,
    /// The node would not take it.
    Rejected,
    /// It never left: its holder was gone, its inbox full, or its reservation had run out.
    Undeliverable,
    /// The node is gone, and the attempt was never sent to it.
    NodeLostUnsent,
    /// The node is gone, or its connection is, and it had been sent the attempt, or may have been: the attempt may have
    /// crashed the node.
    NodeLost,
    /// The node had acknowledged it and does not know of it any more.
    Unlisted,
    /// It ran for too long.
    TimedOut,
}

impl Revoked {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::NotAcknowledged,
        Self::Rejected,
        Self::Undeliverable,
        Self::NodeLostUnsent,
        Self::NodeLost,
        Self::Unlisted,
        Self::TimedOut,
    ];

    /// The name in metrics and in a job's list of attempts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotAcknowledged => "not_acknowledged",
            Self::Rejected => "rejected",
            Self::Undeliverable => "undeliverable",
            Self::NodeLostUnsent => "node_lost_unsent",
            Self::NodeLost => "node_lost",
            Self::Unlisted => "unlisted",
            Self::TimedOut => "timed_out",
        }
    }

    /// Whether it counts towards `max_attempts`: the node may have run it.
    #[must_use]
    pub const fn counts(self) -> bool {
        matches!(self, Self::NodeLost | Self::Unlisted | Self::TimedOut)
    }

    /// Whether it can also happen to an attempt that was acknowledged. The other reasons mean that the node
    /// did not answer; if it has answered meanwhile, they have no effect.
    #[must_use]
    pub const fn reaches_running(self) -> bool {
        self.counts()
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// With the job's result.
    Succeeded,
    /// The node said that it failed.
    Failed,
    /// It was taken from its node.
    Revoked(Revoked),
    /// The job was cancelled.
    Cancelled,
}

impl Ended {
    /// The name in a job's list of attempts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Revoked(why) => why.as_str(),
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the attempt may have ended without having been sent to its node, so that its reservation may stand.
    #[must_use]
    pub const fn may_be_unsent(self) -> bool {
        match self {
            Self::Revoked(why) => !why.counts(),
            Self::Cancelled => true,
            Self::Succeeded | Self::Failed => false,
        }
    }

    /// Whether its node may have gone on with it.
    #[must_use]
    pub const fn may_go_on(self) -> bool {
        matches!(self, Self::Revoked(Revoked::TimedOut | Revoked::NodeLost) | Self::Cancelled)
    }

    /// Reads the name; `None` for any other.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let others = [Self::Succeeded, Self::Failed, Self::Cancelled];
        let all = others.into_iter().chain(Revoked::ALL.map(Self::Revoked));
        all.into_iter().find(|ended| ended.as_str() == text)
    }
}

/// What follows from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// DISPATCHED, under this number.
    Dispatch(Attempt),
    /// RUNNING.
    Run,
    /// Back to CREATED; the next attempt is due after a pause for so many failures of its kind.
    Retry {
        /// Whether the attempt that is over counts.
        counts: bool,
        /// How many of its kind there were, this one included: the pause grows with them.
        failures: u32,
    },
    /// FINISHED.
    Finish {
        /// How the job ended.
        outcome: Outcome,
        /// All its attempts are used up: it is dead.
        dead: bool,
    },
}

/// Why an event has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unfit {
    /// It is about an attempt that is over or was never made.
    Stale,
    /// The job has its result.
    Finished,
    /// It would have an effect at another time: nothing is to be placed while an attempt is under way, and an
    /// attempt that is acknowledged is not taken away for want of an acknowledgement.
    NotNow,
}

/// What follows from an event for a job of so many attempts; `newest` is `None` once the job is finished.
///
/// # Errors
/// [`Unfit`] when nothing does.
pub const fn decide(newest: Option<CurrentAttempt>, max_attempts: u32, event: Event) -> Result<Step, Unfit> {
    let Some(newest) = newest else { return Err(Unfit::Finished) };
    let of = match event {
        Event::Cancelled => return Ok(Step::Finish { outcome: Outcome::Cancelled, dead: false }),
        Event::Place => {
            return match newest.state {
                State::Created => Ok(Step::Dispatch(newest.attempt.next())),
                State::Dispatched | State::Running => Err(Unfit::NotNow),
                State::Finished => Err(Unfit::Finished),
            };
        }
        Event::Acknowledged(of)
        | Event::Succeeded(of)
        | Event::Failed { attempt: of, .. }
        | Event::Revoked { attempt: of, .. } => of,
    };
    match newest.state {
        State::Finished => return Err(Unfit::Finished),
        State::Created => return Err(Unfit::Stale),
        State::Dispatched | State::Running if of.get() != newest.attempt.get() => return Err(Unfit::Stale),
        State::Dispatched | State::Running => {}
    }
    let is_running = matches!(newest.state, State::Running);
    match event {
        Event::Acknowledged(_) if is_running => Err(Unfit::NotNow),
        Event::Acknowledged(_) => Ok(Step::Run),
        Event::Succeeded(_) => Ok(Step::Finish { outcome: Outcome::Succeeded, dead: false }),
        Event::Failed { retryable: false, .. } => Ok(Step::Finish { outcome: Outcome::Failed, dead: false }),
        Event::Failed { .. } => Ok(again(newest, max_attempts, true, Outcome::Failed)),
        Event::Revoked { why, .. } if is_running && !why.reaches_running() => Err(Unfit::NotNow),
        Event::Revoked { why: Revoked::TimedOut, .. } => {
            Ok(again(newest, max_attempts, true, Outcome::TimedOut))
        }
        Event::Revoked { why, .. } => Ok(again(newest, max_attempts, why.counts(), Outcome::Failed)),
        Event::Cancelled | Event::Place => Err(Unfit::NotNow),
    }
}

/// Another attempt, or the end where there is none left.
const fn again(newest: CurrentAttempt, max_attempts: u32, counts: bool, otherwise: Outcome) -> Step {
    if !counts {
        // Those that are over and did not count, this one included.
        return Step::Retry {
            counts,
            failures: newest.attempt.get().saturating_sub(newest.charged_attempts),
        };
    }
    let failures = newest.charged_attempts.saturating_add(1);
    if failures >= max_attempts {
        Step::Finish { outcome: otherwise, dead: true }
    } else {
        Step::Retry { counts, failures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 3;

    fn newest(state: State, attempt: u32, charged_attempts: u32) -> Option<CurrentAttempt> {
        Some(CurrentAttempt { state, attempt: Attempt::new(attempt), charged_attempts })
    }

    /// Every state against every event: what is not in this table is not allowed.
    #[test]
    fn each_event_does_this_in_each_state() {
        use Event::{Acknowledged, Cancelled, Failed, Place, Succeeded};
        use State::{Created, Dispatched, Running};
        use Unfit::{Finished, NotNow, Stale};
        let (now, before, next) = (Attempt::new(2), Attempt::new(1), Attempt::new(3));
        let failed = |attempt, retryable| Failed { attempt, retryable };
        let revoked = |attempt, why| Event::Revoked { attempt, why };
        let finish = |outcome, dead| Ok(Step::Finish { outcome, dead });
        let retry = |counts, failures| Ok(Step::Retry { counts, failures });
        let table: &[(Event, [Result<Step, Unfit>; 4])] = &[
            (Place, [Ok(Step::Dispatch(next)), Err(NotNow), Err(NotNow), Err(Finished)]),
            (Acknowledged(now), [Err(Stale), Ok(Step::Run), Err(NotNow), Err(Finished)]),
            (
                Succeeded(now),
                [
                    Err(Stale),
                    finish(Outcome::Succeeded, false),
                    finish(Outcome::Succeeded, false),
                    Err(Finished),
                ],
            ),
            (
                failed(now, false),
                [Err(Stale), finish(Outcome::Failed, false), finish(Outcome::Failed, false), Err(Finished)],
            ),
            (failed(now, true), [Err(Stale), retry(true, 2), retry(true, 2), Err(Finished)]),
            (
                revoked(now, Revoked::NotAcknowledged),
                [Err(Stale), retry(false, 1), Err(NotNow), Err(Finished)],
            ),
            (revoked(now, Revoked::Rejected), [Err(Stale), retry(false, 1), Err(NotNow), Err(Finished)]),
            (revoked(now, Revoked::Undeliverable), [Err(Stale), retry(false, 1), Err(NotNow), Err(Finished)]),
            (
                revoked(now, Revoked::NodeLostUnsent),
                [Err(Stale), retry(false, 1), Err(NotNow), Err(Finished)],
            ),
            (revoked(now, Revoked::NodeLost), [Err(Stale), retry(true, 2), retry(true, 2), Err(Finished)]),
            (revoked(now, Revoked::Unlisted), [Err(Stale), retry(true, 2), retry(true, 2), Err(Finished)]),
            (revoked(now, Revoked::TimedOut), [Err(Stale), retry(true, 2), retry(true, 2), Err(Finished)]),
            (
                Cancelled,
                [
                    finish(Outcome::Cancelled, false),
                    finish(Outcome::Cancelled, false),
                    finish(Outcome::Cancelled, false),
                    Err(Finished),
                ],
            ),
        ];
        for (event, answers) in table {
            let states = [newest(Created, 2, 1), newest(Dispatched, 2, 1), newest(Running, 2, 1), None];
            for (state, answer) in states.into_iter().zip(answers) {
                assert_eq!(decide(state, MAX, *event), *answer, "{event:?} in {state:?}");
            }
        }
        for of in [before, next] {
            for event in [Acknowledged(of), Succeeded(of), failed(of, true), revoked(of, Revoked::NodeLost)] {
                for state in [Dispatched, Running] {
                    assert_eq!(decide(newest(state, 2, 0), MAX, event), Err(Stale), "{event:?} in {state:?}");
                }
            }
        }
    }

    #[test]
    fn the_last_attempt_that_counts_is_the_end() {
        let last = newest(State::Running, 7, 2);
        let attempt = Attempt::new(7);
        let dead = |outcome| Ok(Step::Finish { outcome, dead: true });
        assert_eq!(decide(last, MAX, Event::Failed { attempt, retryable: true }), dead(Outcome::Failed));
        let revoked = |why| Event::Revoked { attempt, why };
        assert_eq!(decide(last, MAX, revoked(Revoked::NodeLost)), dead(Outcome::Failed));
        assert_eq!(decide(last, MAX, revoked(Revoked::TimedOut)), dead(Outcome::TimedOut));
        let unsent = decide(newest(State::Dispatched, 7, 2), MAX, revoked(Revoked::NodeLostUnsent));
        assert_eq!(
            unsent,
            Ok(Step::Retry { counts: false, failures: 5 }),
            "what does not count never ends it"
        );
    }

    #[test]
    fn ends_read_back_what_they_print() {
        for ended in [Ended::Succeeded, Ended::Failed, Ended::Cancelled, Ended::Revoked(Revoked::TimedOut)] {
            assert_eq!(Ended::parse(ended.as_str()), Some(ended));
        }
        assert_eq!(Ended::parse("gone"), None);
    }
}
