//! One call with all its attempts. They come in rounds: those of one round follow each other at once, each to
//! another instance; between rounds there is a pause.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use reqwest::{Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::{Answer, Call, Client};
use crate::base_url::shown;
use crate::routes::Routes;
use crate::unreached::Unreached;
use crate::{Doubt, Error, Result, Retry};

/// While an instance keeps requests waiting: between two checks whether it still lives, and between two looks
/// at the ring for that, which all calls share.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

type Attempted<T> = std::result::Result<T, Failure>;

/// What one call has cost so far, and what it may still cost.
struct Effort<'a> {
    retry: &'a Retry,
    /// One id for all attempts, so that they can be found together in the logs.
    request_id: String,
    started: Instant,
    probe: bool,
    once: bool,
    /// Whether it asks for a change.
    changes: bool,
    /// The attempts of a change that may have been carried out.
    doubt: Doubt,
    /// Where nobody was found.
    unreached: Unreached,
    /// What the last attempt that was not cut off was refused for, unless the owner that it names was asked then.
    refusal: Option<Error>,
    /// Whether the call's time ended in the middle of the last attempt.
    is_cut_off: bool,
    /// Whether anybody was reached who speaks HTTP.
    reached: bool,
    /// Attempts that count towards [`Retry::attempts_max`].
    counted: u32,
    pauses: u32,
    /// How long the last attempt took.
    took: Duration,
    /// The longest that connecting took in vain, since anybody was reached.
    connecting: Duration,
}

impl<'a> Effort<'a> {
    fn new<B>(client: &'a Client, call: &Call<'_, B>) -> Self {
        Self {
            retry: &client.retry,
            request_id: client.request_id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            started: Instant::now(),
            probe: call.probe,
            once: call.once,
            changes: !call.method.is_safe() && !call.changes_nothing,
            doubt: Doubt::default(),
            unreached: Unreached::default(),
            refusal: None,
            is_cut_off: false,
            reached: false,
            counted: 0,
            pauses: 0,
            took: Duration::ZERO,
            connecting: Duration::ZERO,
        }
    }

    fn left(&self) -> Duration {
        self.retry.total_max.saturating_sub(self.started.elapsed())
    }

    fn ended(&mut self, to: &Url, sent_at: Instant, failure: Option<&Failure>) {
        self.took = sent_at.elapsed();
        self.connecting = match failure {
            Some(Failure { error: Error::Unreachable { .. }, .. }) => self.connecting.max(self.took),
            _ => Duration::ZERO,
        };
        let is_lost = failure.is_some_and(|failure| matches!(failure.error, Error::Lost { .. }));
        self.is_cut_off = is_lost && self.left().is_zero();
        if !self.is_cut_off {
            self.refusal = match failure {
                Some(Failure { error: Error::Refused(problem), .. }) => Some(Error::Refused(problem.clone())),
                _ => None,
            };
        }
        if let Some(failure) = failure.filter(|_| self.changes) {
            self.doubt.note(&failure.error, || shown(to));
        }
        self.unreached.note(to, failure.map(|failure| &failure.error));
        self.reached |= !failure.is_some_and(Failure::is_nobody);
        // Where no instance answers at all, a URL may be wrong: the call then ends soon.
        let counts = |failure: &Failure| self.probe || !self.reached || !failure.is_moving();
        self.counted += u32::from(failure.is_some_and(counts));
    }

    /// The error of a call whose last failure was this one. Where its time ended in the middle of an attempt, a refusal of
    /// the one before says why there is no answer. A change may have been carried out all the same, whatever it was refused for.
    fn over(self, failure: Failure) -> Error {
        let refusal = self.refusal.filter(|_| self.is_cut_off);
        let last = match (refusal, failure.error) {
            (None, error) => error,
            (Some(refusal), Error::Lost { url, reason, source }) if self.changes => {
                let reason = format!("{reason}; the attempt before was refused: {refusal}");
                Error::Lost { url, reason, source }
            }
            (Some(refusal), _) => refusal,
        };
        self.doubt.over(self.unreached.over(last))
    }

    /// Whether this failure may be followed by another attempt.
    fn may_go_on(&self, failure: &Failure) -> bool {
        failure.error.is_retryable()
            && !(self.once && failure.error.may_be_done())
            && self.retry.attempts_max > 1
            && self.counted < self.retry.attempts_max
            && !self.left().is_zero()
    }

    /// The pause after a round that ended with this failure; `None` if it was the last round.
    fn pause(&mut self, failure: &Failure) -> Option<Duration> {
        if !self.may_go_on(failure) {
            return None;
        }
        self.pauses += 1;
        let pause = self.retry.pause(self.pauses, failure.hint, rand::random());
        // An attempt that there is no time for would only turn a refusal that says why into silence, and a connection that
        // cannot be made into an answer that may be lost.
        let took = if failure.error.problem().is_some() { self.took } else { self.connecting };
        (pause + took < self.left()).then_some(pause)
    }

    /// Notes in the log why the call goes on after this pause. Its caller sees only that it takes long.
    fn note<B>(&self, call: &Call<'_, B>, failure: &Failure, pause: Duration) {
        tracing::debug!(
            request_id = self.request_id,
            method = %call.method,
            path = call.path.join("/"),
            error = %failure.error,
            again_in_ms = pause.as_millis() as u64,
            "a request is repeated"
        );
    }
}

impl Client {
    /// Sends until there is an answer, a lasting refusal, or no time or attempt left. A change of which an attempt may
    /// have been carried out ends with a failure that says so, whatever became of the later attempts.
    pub(crate) async fn call<B: Serialize, T: DeserializeOwned>(&self, call: &Call<'_, B>) -> Result<T> {
        Ok(self.answer(call).await?.body)
    }

    /// The same, with when the attempt that was answered was sent.
    pub(crate) async fn answer<B: Serialize, T: DeserializeOwned>(
        &self,
        call: &Call<'_, B>,
    ) -> Result<Answer<T>> {
        let mut effort = Effort::new(self, call);
        loop {
            let failure = match self.round(call, &mut effort).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let Some(pause) = effort.pause(&failure) else { return Err(effort.over(failure)) };
            effort.note(call, &failure, pause);
            tokio::time::sleep(pause).await;
        }
    }

    /// Opens an answer that is read as it comes, at whichever of the URLs gives one; which one it was.
    pub(crate) async fn open<B: Serialize>(&self, call: &Call<'_, B>) -> Result<(Url, Response)> {
        let mut effort = Effort::new(self, call);
        loop {
            let mut before: Option<Failure> = None;
            for _ in self.bases.iter() {
                let at = self.current.load(Ordering::Relaxed);
                let (base, sent_at) = (&self.bases[at], Instant::now());
                let limit = effort.left().min(self.retry.attempt_max);
                let opening = async {
                    let answer = self.respond(base, call, &effort.request_id, None);
                    let Ok(answered) = tokio::time::timeout(limit, answer).await else {
                        let reason = "no answer in time".to_owned();
                        return Err(Failure::unanswered(Error::Lost {
                            url: shown(base),
                            reason,
                            source: None,
                        }));
                    };
                    answered
                };
                let outcome = self.while_it_lives(base, false, sent_at, call.expected, opening).await;
                effort.ended(base, sent_at, outcome.as_ref().err());
                let failure = match outcome {
                    Ok(response) => return Ok((base.clone(), response)),
                    Err(failure) => failure,
                };
                let goes_on = self.leave(at, &failure, &effort);
                before = Some(failure.after(before));
                if !goes_on {
                    break;
                }
            }
            let failure = before.expect("there is a URL");
            let Some(pause) = effort.pause(&failure) else { return Err(effort.over(failure)) };
            effort.note(call, &failure, pause);
            tokio::time::sleep(pause).await;
        }
    }

    /// Asks the owner, if it is known, and then the given URLs, until an answer is one that the others would
    /// not improve.
    async fn round<B: Serialize, T: DeserializeOwned>(
        &self,
        call: &Call<'_, B>,
        effort: &mut Effort<'_>,
    ) -> Attempted<Answer<T>> {
        let mut asked: Option<(Url, Failure)> = None;
        if let Some(owner) = self.owner(call.signer) {
            match self.send(&owner, true, call, effort).await {
                Ok(answer) => return Ok(answer),
                Err(failure) if failure.elsewhere && effort.may_go_on(&failure) => {
                    asked = Some((owner, failure));
                }
                Err(failure) => return self.follow(&owner, failure, None, call, effort).await,
            }
        }
        let (straight, mut before) = asked.unzip();
        for _ in self.bases.iter() {
            let at = self.current.load(Ordering::Relaxed);
            let base = &self.bases[at];
            if straight.as_ref() == Some(base) {
                self.rotate(at);
                continue;
            }
            let failure = match self.send(base, false, call, effort).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if !self.leave(at, &failure, effort) {
                return self.follow(base, failure, straight.as_ref(), call, effort).await;
            }
            before = Some(failure.after(before));
        }
        // There is a URL: if it was passed over, it was because the owner is there, and failed.
        Err(before.unwrap_or_else(|| Error::Unusable("a client needs at least one URL".to_owned()).into()))
    }

    /// Goes on to the next of the given URLs, if another instance may succeed: the next call does not begin with this one
    /// either. Whether this call may ask it.
    fn leave(&self, at: usize, failure: &Failure, effort: &Effort<'_>) -> bool {
        if failure.elsewhere {
            self.rotate(at);
        }
        failure.elsewhere && effort.may_go_on(failure)
    }

    /// A refusal as `not_owner` names the owner. The client asks that owner once, unless it has just
    /// `failed`. If the owner does not answer, its keys are about to move, so the refusal and its pause
    /// count.
    async fn follow<B: Serialize, T: DeserializeOwned>(
        &self,
        told_by: &Url,
        mut refusal: Failure,
        failed: Option<&Url>,
        call: &Call<'_, B>,
        effort: &mut Effort<'_>,
    ) -> Attempted<Answer<T>> {
        let owner = refusal
            .owner
            .take()
            .filter(|owner| self.may_ask(owner) && owner != told_by && Some(owner) != failed)
            .filter(|_| effort.may_go_on(&refusal));
        let Some(owner) = owner else { return Err(refusal) };
        let hint = refusal.hint;
        // The owner's silence is not explained by who named it.
        effort.refusal = None;
        self.send(&owner, true, call, effort).await.map_err(|failure| {
            let last = refusal.then(failure);
            Failure { hint: last.hint.or(hint), ..last }
        })
    }

    /// One attempt, as long as there is time and the instance is live. `direct` says that the address is one
    /// that the instance advertises.
    async fn send<B: Serialize, T: DeserializeOwned>(
        &self,
        to: &Url,
        direct: bool,
        call: &Call<'_, B>,
        effort: &mut Effort<'_>,
    ) -> Attempted<Answer<T>> {
        let sent_at = Instant::now();
        let limit = effort.left().min(self.retry.attempt_max);
        let attempt = self.attempt(to, call, &effort.request_id, limit);
        let outcome = self.while_it_lives(to, direct, sent_at, call.expected, attempt).await;
        effort.ended(to, sent_at, outcome.as_ref().err());
        if let (Some(routes), true) = (&self.routes, direct) {
            match &outcome {
                Err(failure) if failure.is_down() => routes.avoid(to),
                _ => routes.reached(to),
            }
        }
        outcome.map(|reply| Answer { body: reply.body, sent_at })
    }

    /// An attempt that is given up when its instance has left the cluster, where it is known to have been there. A paused
    /// instance keeps its connections open and does not answer, while others serve its keys. One that is asked to wait is
    /// looked after seldom before that is over. `direct` is as for [`Self::send`].
    async fn while_it_lives<T>(
        &self,
        to: &Url,
        direct: bool,
        sent_at: Instant,
        expected: Duration,
        attempt: impl Future<Output = Attempted<T>>,
    ) -> Attempted<T> {
        let Some(routes) = self.routes.as_ref().filter(|routes| direct || routes.lives_at(to)) else {
            return attempt.await;
        };
        let mut attempt = pin!(attempt);
        let mut wait = (self.look_after + expected).min(self.look_while_waiting);
        loop {
            if let Ok(outcome) = tokio::time::timeout(wait, attempt.as_mut()).await {
                return outcome;
            }
            if routes.is_gone(to, sent_at) {
                let reason = "no answer, and the instance left the cluster".to_owned();
                return Err(Failure::unanswered(Error::Lost { url: shown(to), reason, source: None }));
            }
            let left = expected.saturating_sub(sent_at.elapsed());
            wait = if left.is_zero() {
                self.look_after.min(LOOK_AGAIN)
            } else {
                (self.look_after + left).min(self.look_while_waiting)
            };
            self.look_past(routes, to, wait);
        }
    }

    /// Reads the ring from another instance than `to`, if no call did so within `every`.
    fn look_past(&self, routes: &Routes, to: &Url, every: Duration) {
        let mut others: Vec<Url> = self.bases.iter().cloned().chain(routes.alive()).collect();
        others.retain(|url| url != to && self.may_ask(url));
        if others.is_empty() || routes.is_refused() {
            return;
        }
        if let Some(looking) = routes.look(every) {
            let one = rand::random_range(0..others.len());
            self.look(others.swap_remove(one), looking);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::{Code, Problem};

    use super::*;
    use crate::base_url;

    #[test]
    fn no_attempt_begins_that_would_end_while_it_still_connects() {
        let total_max = Duration::from_secs(60);
        let retry = Retry { total_max, ..Retry::default() };
        let client = Client::new(["http://h"], None).unwrap().with_retry(retry);
        let (base, call) = (base_url::parse("http://h").unwrap(), Call::act(&["v1"]));
        let is_silent = || {
            let (url, reason, others) = (shown(&base), "no connection in time".to_owned(), Vec::new());
            Failure::unanswered(Error::Unreachable { url, reason, others, source: "late".into() })
        };
        let is_held = || Failure::refused(Problem::new(Code::LeaseHeld, "because"), None);
        let goes_on = |attempts: Vec<(Duration, Failure)>| {
            let mut effort = Effort::new(&client, &call);
            for (took, failure) in &attempts {
                effort.ended(&base, Instant::now() - *took, Some(failure));
            }
            effort.pause(&attempts.last().unwrap().1).is_some()
        };
        let none = Duration::ZERO;
        assert!(goes_on(vec![(none, is_silent())]), "the connection was refused at once");
        assert!(!goes_on(vec![(total_max, is_silent())]));
        assert!(!goes_on(vec![(total_max, is_silent()), (none, is_silent())]), "the silent one comes next");
        assert!(goes_on(vec![(total_max, is_silent()), (none, is_held())]), "another one was reached");
        assert!(!goes_on(vec![(total_max, is_held())]));
    }
}
