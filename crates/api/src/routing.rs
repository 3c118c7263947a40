//! The way of a request to the owner of its key. Whoever holds the live lease serves, whatever the ring
//! says; a wrong route costs a hop, never correctness.
//!
//! A request that comes in is served here when the lease is here, or when this is where the ring puts the
//! key; otherwise it is sent on, or its caller is told where to. Whoever is asked and does not own the key
//! names who does, and that one is asked once. A request that was sent on is never sent on again.

use std::time::Instant;

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse};
use actors::jobs::{self, Jobs};
use actors::signers::{self, Signers};
use client::{Error, Passed, PassedBack, Peers};
use cluster::{Member, Place};
use dashmap::DashMap;
use domain::{IdempotencyKey, InstanceId, Mode, Resource, SessionId, SignerId};
use tokio::sync::Semaphore;
use wire::{Code, FORWARDED_BY, FORWARDED_PLACES, FORWARDED_TO, Problem};

use crate::limits::{ACQUAINTANCE_MAX, FORWARD_SLACK, FORWARDS_MAX, HINT_AGE_MAX, HINTS_MAX};
use crate::refusal::Refusal;
use crate::request_id::X_REQUEST_ID_NAME;
use crate::server::Incarnation;
use crate::state::State;

/// What becomes of a request that comes to an instance that does not own its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMisroute {
    /// It is sent on to the owner.
    Forward,
    /// It is answered with the owner's address.
    Redirect,
}

impl OnMisroute {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Forward, Self::Redirect];

    /// The name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Redirect => "redirect",
        }
    }
}

/// What the routing keeps between requests.
pub struct Routing {
    peers: Peers,
    places: Semaphore,
    /// Who was found to own a key that the ring puts elsewhere, and when.
    hints: DashMap<Resource, (Member, Instant)>,
}

impl Routing {
    pub fn new(peers: Peers) -> Self {
        Self { peers, places: Semaphore::new(FORWARDS_MAX), hints: DashMap::new() }
    }

    fn hint(&self, key: &Resource) -> Option<Member> {
        let hint = self.hints.get(key)?;
        let (member, found) = hint.value();
        (found.elapsed() < HINT_AGE_MAX).then(|| member.clone())
    }

    fn found(&self, key: &Resource, member: &Member) {
        if self.hints.len() >= HINTS_MAX {
            self.hints.clear();
        }
        self.hints.insert(key.clone(), (member.clone(), Instant::now()));
    }
}

/// What is to be brought to the owner of a key: a request that came in, or what somebody here asks in its place.
pub struct Errand {
    passed: Passed,
    is_sent_on: bool,
    sent_to: Option<Vec<u8>>,
}

impl Errand {
    /// A request, as it came in.
    pub fn of(request: &HttpRequest, body: Vec<u8>) -> Self {
        let header = |name| request.headers().get(name).map(|value| value.as_bytes().to_vec());
        let passed = Passed {
            method: request.method().to_string(),
            path: request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            headers: passed_headers(request.headers()),
            body,
        };
        Self { passed, is_sent_on: header(FORWARDED_BY).is_some(), sent_to: header(FORWARDED_TO) }
    }

    /// Something else that is asked in a request's name.
    pub fn within(&self, method: &str, path: String, body: Vec<u8>, key: Option<&IdempotencyKey>) -> Self {
        let asks = |name: &str| name == "authorization" || name == X_REQUEST_ID_NAME;
        let kept = self.passed.headers.iter().filter(|(name, _)| asks(name)).cloned();
        let typed = [("content-type", b"application/json".to_vec())];
        let key = key.map(|key| ("idempotency-key", key.as_str().as_bytes().to_vec()));
        let headers = kept.chain(typed).chain(key).collect();
        let passed = Passed { method: method.to_owned(), path, headers, body };
        Self { passed, is_sent_on: self.is_sent_on, sent_to: self.sent_to.clone() }
    }

    /// A part of a batch: only these of its jobs.
    pub fn part(&self, places: &[usize], body: Vec<u8>) -> Self {
        let mut passed = Passed { body, ..self.passed.clone() };
        let places: Vec<_> = places.iter().map(ToString::to_string).collect();
        passed.headers.push((FORWARDED_PLACES, places.join(",").into_bytes()));
        Self { passed, is_sent_on: self.is_sent_on, sent_to: self.sent_to.clone() }
    }
}

/// What the owners of some kind of keys refuse with.
pub trait OwnersRefusal: Into<Refusal> {
    /// Who owns the key instead.
    fn owner(&self) -> Option<InstanceId>;
    /// That there was no answer in time.
    fn late() -> Self;
}

impl OwnersRefusal for signers::Refusal {
    fn owner(&self) -> Option<InstanceId> {
        match self {
            Self::NotOwner { owner, .. } => Some(owner.clone()),
            _ => None,
        }
    }

    fn late() -> Self {
        Self::LedgerUnavailable
    }
}

impl OwnersRefusal for jobs::Refusal {
    fn owner(&self) -> Option<InstanceId> {
        match self {
            Self::NotOwner { owner } => Some(owner.clone()),
            _ => None,
        }
    }

    fn late() -> Self {
        Self::LedgerUnavailable
    }
}

/// Who served a request.
pub enum Routed<T> {
    /// This instance, with this result.
    Here(T),
    /// Another, with this answer.
    There(HttpResponse),
}

/// What asking another instance came to.
enum Asked {
    /// Its answer, for the caller.
    Answered(HttpResponse),
    /// It does not own the key. This one does, as far as it knows; and that is what it answered.
    NotOwner(Option<InstanceId>, HttpResponse),
    /// It could not be reached, or is leaving: nothing was done.
    Away,
    /// Nothing was done, and it is there.
    Again,
    /// Whether it did anything is not known.
    Lost,
}

impl State {
    /// Brings a request to the owner of a signer. `serve` asks this instance's own owners.
    pub async fn to_signer<T>(
        &self,
        request: &HttpRequest,
        body: Vec<u8>,
        signer: &SignerId,
        serve: impl AsyncFn(&Signers) -> Result<T, signers::Refusal>,
    ) -> Result<Routed<T>, Refusal> {
        let key = Resource::signer(signer);
        let is_here = |incarnation: &Incarnation| {
            incarnation.outlook.mode(&key) == Mode::Basic || incarnation.signers.owns(signer)
        };
        let serve = async |incarnation: &Incarnation| serve(&incarnation.signers).await;
        self.to_owner(&Errand::of(request, body), &key, is_here, serve).await
    }

    /// Brings what is asked to the owner of a session. `serve` asks this instance's own owners.
    pub async fn to_session<T>(
        &self,
        errand: &Errand,
        session: &SessionId,
        serve: impl AsyncFn(&Jobs) -> Result<T, jobs::Refusal>,
    ) -> Result<Routed<T>, Refusal> {
        let is_here = |incarnation: &Incarnation| incarnation.jobs.serves_session(session);
        let serve = async |incarnation: &Incarnation| serve(&incarnation.jobs).await;
        self.to_owner(errand, &Resource::session(session), is_here, serve).await
    }

    /// Brings what is asked to the owner of a key, which may be known to be here.
    async fn to_owner<T, R: OwnersRefusal>(
        &self,
        errand: &Errand,
        key: &Resource,
        is_here: impl Fn(&Incarnation) -> bool,
        serve: impl AsyncFn(&Incarnation) -> Result<T, R>,
    ) -> Result<Routed<T>, Refusal> {
        // One for the whole way, whoever serves in the end.
        let deadline = Instant::now() + self.settings.request_timeout + FORWARD_SLACK;
        let incarnation = self.incarnation();
        let outlook = &incarnation.outlook;
        if errand.sent_to.as_deref().is_some_and(|to| to != incarnation.identity.id.as_str().as_bytes()) {
            let detail =
                format!("this is {}, and the request was sent on to another", incarnation.identity.id);
            return Err(Refusal::new(Code::NotOwner, detail));
        }
        let mut tries = 2;
        let mut place = if errand.is_sent_on {
            // Sent on once, it is served or refused.
            tries = 1;
            Place::Here
        } else if is_here(&incarnation) {
            Place::Here
        } else {
            self.routing.hint(key).map_or_else(|| outlook.place(key), Place::There)
        };
        let mut first = true;
        loop {
            tries -= 1;
            let first = std::mem::take(&mut first);
            place = match place {
                Place::Here => match self.serve_here(serve(&incarnation), deadline, first).await {
                    Ok(served) => return Ok(Routed::Here(served)),
                    Err(refusal) => {
                        let known =
                            refusal.owner().and_then(|owner| outlook.view().member(owner.as_str()).cloned());
                        match known.filter(|member| tries > 0 && member.id != incarnation.identity.id) {
                            Some(member) => Place::There(member),
                            None => return Err(self.refusal(refusal).await),
                        }
                    }
                },
                Place::There(member) if self.settings.on_misroute == OnMisroute::Redirect => {
                    metrics::counter!("fencepost_forward_total", "result" => "redirected").increment(1);
                    return Err(redirect(&member));
                }
                Place::There(member) => {
                    match self.ask_there(&incarnation, errand, &member, deadline).await? {
                        Asked::Answered(answer) => {
                            if tries == 0 {
                                self.routing.found(key, &member);
                            }
                            return Ok(Routed::There(answer));
                        }
                        Asked::NotOwner(owner, answer) => {
                            let known =
                                owner.and_then(|owner| outlook.view().member(owner.as_str()).cloned());
                            match known.filter(|_| tries > 0) {
                                Some(owner) if owner.id == incarnation.identity.id => Place::Here,
                                Some(owner) => Place::There(owner),
                                None => return Ok(Routed::There(answer)),
                            }
                        }
                        Asked::Away => {
                            outlook.avoid(&member.id);
                            if tries == 0 {
                                return Err(redirect(&member));
                            }
                            outlook.place(key)
                        }
                        Asked::Again if tries > 0 => Place::There(member),
                        Asked::Again => return Err(redirect(&member)),
                        Asked::Lost => return Err(lost(&member)),
                    }
                }
            };
        }
    }

    /// Sends a request on to the instance that can serve it; never a second time.
    pub async fn pass_on(
        &self,
        request: &HttpRequest,
        body: Vec<u8>,
        to: &InstanceId,
    ) -> Result<HttpResponse, Refusal> {
        let deadline = Instant::now() + self.settings.request_timeout + FORWARD_SLACK;
        let incarnation = self.incarnation();
        let errand = Errand::of(request, body);
        let member = if errand.is_sent_on { None } else { self.acquainted(&incarnation, to).await };
        let Some(member) = member else {
            let refusal = Refusal::new(Code::NotOwner, format!("this belongs to {to}; ask it"));
            return Err(refusal.with(|problem| problem.owner = Some(to.to_string())));
        };
        if self.settings.on_misroute == OnMisroute::Redirect {
            return Err(redirect(&member));
        }
        match self.ask_there(&incarnation, &errand, &member, deadline).await? {
            Asked::Answered(answer) | Asked::NotOwner(_, answer) => Ok(answer),
            Asked::Away | Asked::Again => Err(redirect(&member)),
            Asked::Lost => Err(lost(&member)),
        }
    }

    /// Another instance, once this one has seen it: one of the two may have joined a moment ago.
    async fn acquainted(&self, incarnation: &Incarnation, with: &InstanceId) -> Option<Member> {
        let mut changes = incarnation.outlook.changes();
        let seen = async {
            loop {
                let member = incarnation.outlook.view().member(with.as_str()).cloned();
                if member.is_some() || changes.changed().await.is_err() {
                    return member;
                }
            }
        };
        tokio::time::timeout(ACQUAINTANCE_MAX, seen).await.ok().flatten()
    }

    /// Asks this instance's own owners. The first time they keep the deadline by themselves.
    async fn serve_here<T, R: OwnersRefusal>(
        &self,
        served: impl Future<Output = Result<T, R>>,
        deadline: Instant,
        first: bool,
    ) -> Result<T, R> {
        if first {
            return self.call(served).await;
        }
        let served = self.call(async { tokio::time::timeout_at(deadline.into(), served).await });
        served.await.unwrap_or_else(|_late| Err(R::late()))
    }

    async fn ask_there(
        &self,
        incarnation: &Incarnation,
        errand: &Errand,
        member: &Member,
        deadline: Instant,
    ) -> Result<Asked, Refusal> {
        let Ok(_place) = self.routing.places.try_acquire() else {
            metrics::counter!("fencepost_forward_total", "result" => "overloaded").increment(1);
            return Err(Refusal::new(
                Code::Overloaded,
                "too many requests are being sent on to other instances",
            ));
        };
        if !same_scheme(&incarnation.identity.url, &member.url) {
            // What came in over TLS does not leave without.
            tracing::error!(owner = %member.id, url = member.url, "an instance is advertised under another scheme");
            return Ok(Asked::Away);
        }
        let mut passed = errand.passed.clone();
        let way = [(FORWARDED_BY, &incarnation.identity.id), (FORWARDED_TO, &member.id)];
        passed.headers.extend(way.map(|(name, id)| (name, id.as_str().as_bytes().to_vec())));
        let timeout = deadline.saturating_duration_since(Instant::now());
        // Listened to before the look, so that a change in between is not missed.
        let mut changes = incarnation.outlook.changes();
        let is_gone = || incarnation.outlook.view().member(member.id.as_str()).is_none();
        if is_gone() {
            metrics::counter!("fencepost_forward_total", "result" => "unreachable").increment(1);
            return Ok(Asked::Away);
        }
        let answer = self.call(async {
            let mut passing = std::pin::pin!(self.routing.peers.pass(&member.url, passed, timeout));
            loop {
                tokio::select! {
                    answer = &mut passing => return Some(answer),
                    // An instance that died, or stands still, answers no more.
                    Ok(()) = changes.changed() => {
                        if is_gone() {
                            return None;
                        }
                    }
                }
            }
        });
        let (result, asked) = match answer.await {
            Some(Ok(answer)) => read(answer),
            Some(Err(Error::Unreachable { url, reason, .. })) => {
                tracing::warn!(url, reason, "an owner could not be reached");
                ("unreachable", Asked::Away)
            }
            Some(Err(error)) => {
                tracing::warn!(%error, owner = %member.id, "a request that was sent on had no answer");
                ("lost", Asked::Lost)
            }
            None => {
                tracing::warn!(owner = %member.id, "an owner died with a request that was sent on");
                ("lost", Asked::Lost)
            }
        };
        metrics::counter!("fencepost_forward_total", "result" => result).increment(1);
        Ok(asked)
    }
}

fn same_scheme(mine: &str, theirs: &str) -> bool {
    let scheme = |url: &str| url.split_once(':').map(|(scheme, _)| scheme.to_owned());
    scheme(mine) == scheme(theirs)
}

/// What travels with a request that is sent on: who asks, and under which names.
fn passed_headers(headers: &HeaderMap) -> Vec<(&'static str, Vec<u8>)> {
    let names = ["authorization", "content-type", "idempotency-key", X_REQUEST_ID_NAME];
    names.into_iter().filter_map(|name| Some((name, headers.get(name)?.as_bytes().to_vec()))).collect()
}

fn read(answer: PassedBack) -> (&'static str, Asked) {
    let code = problem_of(&answer).and_then(|problem| Some((problem.known_code()?, problem)));
    let (result, owner) = match code {
        Some((Code::Draining, _)) => return ("draining", Asked::Away),
        // Somebody else is reached at that address by now.
        Some((Code::NotOwner, problem)) if problem.owner.is_none() => return ("mistaken", Asked::Away),
        Some((Code::NotOwner, problem)) => ("not_owner", Some(problem.owner)),
        _ => ("answered", None),
    };
    // A connection that was given up before the request was read on it.
    if answer.status == StatusCode::REQUEST_TIMEOUT.as_u16() {
        return ("late", Asked::Again);
    }
    let Ok(status) = StatusCode::from_u16(answer.status) else { return ("lost", Asked::Lost) };
    let mut response = HttpResponse::build(status);
    if let Some(content_type) = answer.content_type {
        response.insert_header((CONTENT_TYPE, content_type.as_slice()));
    }
    if let Some(retry_after) = answer.retry_after {
        response.insert_header((RETRY_AFTER, retry_after.as_slice()));
    }
    let response = response.body(answer.body);
    match owner {
        Some(owner) => {
            (result, Asked::NotOwner(owner.and_then(|owner| InstanceId::parse(&owner).ok()), response))
        }
        None => (result, Asked::Answered(response)),
    }
}

/// Only refusals that say something about the way are looked into.
fn problem_of(answer: &PassedBack) -> Option<Problem> {
    if matches!(answer.status, 409 | 503) { serde_json::from_slice(&answer.body).ok() } else { None }
}

fn redirect(member: &Member) -> Refusal {
    let detail = format!("the key belongs to {}; ask it at owner_url", member.id);
    Refusal::new(Code::NotOwner, detail).with(|problem| {
        problem.owner = Some(member.id.to_string());
        problem.owner_url = Some(member.url.clone());
    })
}

fn lost(member: &Member) -> Refusal {
    let detail = format!(
        "the owner, {}, was lost with the request. Whether anything was written is not known; send the same again \
         (a grant under the same Idempotency-Key)",
        member.id
    );
    Refusal::new(Code::LedgerUnavailable, detail)
}
