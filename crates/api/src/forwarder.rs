//! Brings each request to the owner of its key. The instance that holds the live lease serves, whatever the ring says; a
//! wrong route costs a hop, never correctness.
//!
//! This instance serves a request when it has the lease, or when the ring puts the key here. Otherwise it forwards the
//! request, or answers with the owner's address. An instance that is asked and does not own the key names the owner, and
//! that one is asked once. A forwarded request is never forwarded again.

mod others;
mod outages;
mod request;
mod snowflakes;

use std::cell::LazyCell;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Instant;

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::{self, Jobs};
use actors::plans::{self, Plans};
use actors::signers::{self, Signers};
use arc_swap::ArcSwapOption;
use client::{Error, Passed, PassedBack};
use cluster::{KeyOwner, Member};
use dashmap::DashMap;
use domain::{InstanceId, Mode, PlanId, Resource, SessionId, SignerId};
use wire::{Code, FORWARDED_BY, FORWARDED_CREDENTIAL, FORWARDED_LEAVING, FORWARDED_TO, Problem};

use crate::limits::{ACQUAINTANCE_MAX, FORWARD_SLACK, HINT_AGE_MAX, HINTS_MAX, LEAVING_NAMED_MAX};
use crate::peer_credential::{self, Subject};
use crate::refusal::{PassedOn, Refusal};
use crate::services::Incarnation;
use crate::settings::OnMisroute;
use crate::shares::Kind;
use crate::state::State;
use outages::{Failure, Outages};
pub use request::ForwardedRequest;

/// The forwarder, as a handler gets it.
pub type Forwarding = web::Data<Forwarder>;

/// Brings requests to the owners of keys.
pub struct Forwarder {
    state: Arc<State>,
    /// The owners that were found elsewhere than the ring puts the key, and when.
    hints: DashMap<Resource, (Member, Instant)>,
    /// The instance that made snowflakes for this one last, and when.
    right_clock: ArcSwapOption<(InstanceId, Instant)>,
    outages: Outages,
}

/// Logs that a forwarded request failed: at this level if it is news, else at DEBUG.
macro_rules! log_failure {
    ($level:ident, $is_news:expr, $($line:tt)+) => {
        if $is_news {
            tracing::$level!($($line)+);
        } else {
            tracing::debug!($($line)+);
        }
    };
}

/// The refusal of the owners of one kind of key.
pub trait OwnersRefusal: Into<Refusal> {
    /// The instance that owns the key.
    fn owner(&self) -> Option<InstanceId>;
    /// The refusal for an answer that did not come in time.
    fn late() -> Self;
}

macro_rules! owners_refusal {
    ($($refusal:ty),+ $(,)?) => {
        $(impl OwnersRefusal for $refusal {
            fn owner(&self) -> Option<InstanceId> {
                match self {
                    Self::NotOwner { owner, .. } => Some(owner.clone()),
                    _ => None,
                }
            }

            fn late() -> Self {
                Self::LedgerUnavailable
            }
        })+
    };
}

owners_refusal!(signers::Refusal, jobs::Refusal, plans::Refusal);

/// The instance that served a request.
pub enum Routed<T> {
    /// This instance, with this result.
    Here(T),
    /// Another instance, with this answer.
    Elsewhere(HttpResponse),
}

/// The outcome of asking another instance.
enum Asked {
    /// Its answer, for the caller.
    Answered(HttpResponse),
    /// It does not own the key. It names this owner, if it knows one, in this answer.
    NotOwner(Option<InstanceId>, HttpResponse),
    /// It could not be reached. It did nothing.
    Away,
    /// It is leaving. It did nothing.
    Leaving,
    /// It did nothing, and may be asked again.
    Again,
    /// It did nothing, because it does not accept this instance's credential, or does not know the caller's token.
    Distrusts,
    /// It is not known whether it did anything.
    Lost,
}

/// What remains to be done once an owner was asked.
enum Next {
    /// The owner has answered the caller.
    Answered(HttpResponse),
    /// The instance does not own the key. The owner that it names is to be asked; without one the caller gets this answer.
    NotOwner(Option<Member>, HttpResponse),
    /// The same instance is to be asked again.
    Again,
    /// The instance is avoided, and another one may own the key.
    Away,
}

impl Forwarder {
    /// A forwarder with the services and settings of `state`.
    pub fn new(state: Arc<State>) -> Self {
        Self {
            state,
            hints: DashMap::new(),
            right_clock: ArcSwapOption::empty(),
            outages: Outages::default(),
        }
    }

    /// What all requests share.
    pub const fn state(&self) -> &Arc<State> {
        &self.state
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
            incarnation.cluster_view.mode(&key) == Mode::Basic || incarnation.signers.owns(signer)
        };
        let serve = async |incarnation: &Incarnation| serve(&incarnation.signers).await;
        let is_forwarded = peer_credential::is_forwarded(request);
        // Most requests are served here, and are not copied.
        let forwarded = LazyCell::new(|| ForwardedRequest::of(request, body));
        self.to_owner(forwarded, is_forwarded, &key, is_here, serve).await
    }

    /// Brings a request to the owner of a session. `serve` asks this instance's own owners.
    pub async fn to_session<T>(
        &self,
        forwarded: impl Deref<Target = ForwardedRequest>,
        is_forwarded: bool,
        session: &SessionId,
        serve: impl AsyncFn(&Jobs) -> Result<T, jobs::Refusal>,
    ) -> Result<Routed<T>, Refusal> {
        let is_here = |incarnation: &Incarnation| incarnation.jobs.serves_session(session);
        let serve = async |incarnation: &Incarnation| serve(&incarnation.jobs).await;
        self.to_owner(forwarded, is_forwarded, &Resource::session(session), is_here, serve).await
    }

    /// Brings a request to the owner of a plan. `serve` asks this instance's own owners.
    pub async fn to_plan<T>(
        &self,
        forwarded: &ForwardedRequest,
        plan: PlanId,
        serve: impl AsyncFn(&Plans) -> Result<T, plans::Refusal>,
    ) -> Result<Routed<T>, Refusal> {
        let is_here = |incarnation: &Incarnation| incarnation.plans.owns(plan);
        let serve = async |incarnation: &Incarnation| serve(&incarnation.plans).await;
        self.to_owner(forwarded, forwarded.is_forwarded(), &Resource::plan(plan), is_here, serve).await
    }

    /// Brings a request to the owner of a key. `is_forwarded` says whether another instance has forwarded it; `is_here`
    /// whether this one is known to own the key.
    async fn to_owner<T, R: OwnersRefusal>(
        &self,
        forwarded: impl Deref<Target = ForwardedRequest>,
        is_forwarded: bool,
        key: &Resource,
        is_here: impl Fn(&Incarnation) -> bool,
        serve: impl AsyncFn(&Incarnation) -> Result<T, R>,
    ) -> Result<Routed<T>, Refusal> {
        // One deadline for all tries, whichever instance serves in the end.
        let deadline = Instant::now() + self.state.settings.request_timeout + FORWARD_SLACK;
        let incarnation = self.state.incarnation();
        let cluster_view = &incarnation.cluster_view;
        let mut place = if is_forwarded || is_here(&incarnation) {
            KeyOwner::Here
        } else {
            self.hint(key).map_or_else(|| cluster_view.owner_of(key), KeyOwner::Elsewhere)
        };
        let mut is_first = true;
        loop {
            // A forwarded request is served or refused here, any other one after two tries.
            let is_last = is_forwarded || !is_first;
            place = match place {
                KeyOwner::Here => {
                    let served = self.serve_here(pin!(serve(&incarnation)), deadline, is_first).await;
                    match served {
                        Ok(served) => return Ok(Routed::Here(served)),
                        Err(refusal) => {
                            let known = refusal
                                .owner()
                                .and_then(|owner| cluster_view.view().member(owner.as_str()).cloned());
                            match known.filter(|member| !is_last && member.id != incarnation.identity.id) {
                                Some(member) => KeyOwner::Elsewhere(member),
                                None => return Err(self.state.refusal(refusal).await),
                            }
                        }
                    }
                }
                KeyOwner::Elsewhere(member) => {
                    // Boxed: most requests stay here, and the future of each would have room for it, and be copied with it.
                    let asked =
                        Box::pin(self.ask_owner(&incarnation, &forwarded, &member, deadline, is_last));
                    let next = asked.await?;
                    match next {
                        Next::Answered(answer) => {
                            // The first try would have missed it.
                            if !is_first {
                                self.found(key, &member);
                            }
                            return Ok(Routed::Elsewhere(answer));
                        }
                        Next::NotOwner(Some(owner), _) if owner.id == incarnation.identity.id => {
                            KeyOwner::Here
                        }
                        Next::NotOwner(Some(owner), _) => KeyOwner::Elsewhere(owner),
                        Next::NotOwner(None, answer) => return Ok(Routed::Elsewhere(answer)),
                        Next::Again => KeyOwner::Elsewhere(member),
                        Next::Away => cluster_view.owner_of(key),
                    }
                }
            };
            is_first = false;
        }
    }

    /// Brings a request to the instance that can serve it, unless it was forwarded before. If that one names another instance,
    /// this one is asked once.
    pub async fn to_instance(
        &self,
        forwarded: &ForwardedRequest,
        to: &InstanceId,
    ) -> Result<HttpResponse, Refusal> {
        let deadline = Instant::now() + self.state.settings.request_timeout + FORWARD_SLACK;
        let incarnation = self.state.incarnation();
        let member = if forwarded.is_forwarded() { None } else { self.acquainted(&incarnation, to).await };
        let Some(mut member) = member else {
            let refusal = Refusal::new(Code::NotOwner, format!("{to} owns the key; ask it"));
            let refusal = refusal.with(|problem| problem.owner = Some(to.to_string()));
            return Err(self.state.refusal(refusal).await);
        };
        let mut is_last = false;
        loop {
            let next = self.ask_owner(&incarnation, forwarded, &member, deadline, is_last).await?;
            member = match next {
                Next::Answered(answer) => return Ok(answer),
                // What this instance can serve its caller has tried here.
                Next::NotOwner(Some(owner), _) if owner.id != incarnation.identity.id => owner,
                Next::NotOwner(_, answer) => return Ok(answer),
                Next::Again => member,
                Next::Away => return Err(away(&member)),
            };
            is_last = true;
        }
    }

    /// Asks the owner of a key, unless the caller is redirected there. After the last try nothing remains to be asked.
    async fn ask_owner(
        &self,
        incarnation: &Incarnation,
        forwarded: &ForwardedRequest,
        owner: &Member,
        deadline: Instant,
        is_last: bool,
    ) -> Result<Next, Refusal> {
        if forwarded.may_be_redirected && self.state.settings.on_misroute == OnMisroute::Redirect {
            metrics::counter!("fencepost_forward_total", "result" => "redirected").increment(1);
            return Err(redirect(owner));
        }
        match self.ask_there(incarnation, forwarded, owner, deadline).await? {
            Asked::Answered(answer) => Ok(Next::Answered(answer)),
            Asked::NotOwner(named, answer) => {
                let view = incarnation.cluster_view.view();
                let known = named.and_then(|named| view.member(named.as_str()).cloned());
                Ok(Next::NotOwner(known.filter(|_| !is_last), answer))
            }
            Asked::Away => {
                incarnation.cluster_view.avoid(&owner.id);
                passed_over(owner, is_last)
            }
            Asked::Leaving => {
                incarnation.cluster_view.avoid_leaving(&owner.id);
                passed_over(owner, is_last)
            }
            Asked::Again if !is_last => Ok(Next::Again),
            Asked::Again | Asked::Distrusts => Err(redirect(owner)),
            Asked::Lost => Err(Refusal::owner_lost(&owner.id)),
        }
    }

    /// Another instance, as soon as this one knows it: one of the two may have joined a moment ago.
    async fn acquainted(&self, incarnation: &Incarnation, with: &InstanceId) -> Option<Member> {
        let mut changes = incarnation.cluster_view.changes();
        let seen = async {
            loop {
                let member = incarnation.cluster_view.view().member(with.as_str()).cloned();
                if member.is_some() || changes.changed().await.is_err() {
                    return member;
                }
            }
        };
        tokio::time::timeout(ACQUAINTANCE_MAX, seen).await.ok().flatten()
    }

    /// Asks this instance's own owners. On the first try they keep the deadline themselves. What is asked is pinned: each future
    /// around it would have room for it twice.
    async fn serve_here<T, R: OwnersRefusal>(
        &self,
        served: Pin<&mut impl Future<Output = Result<T, R>>>,
        deadline: Instant,
        first: bool,
    ) -> Result<T, R> {
        if first {
            return self.state.call(served).await;
        }
        let served = self.state.call(async { tokio::time::timeout_at(deadline.into(), served).await });
        served.await.unwrap_or_else(|_late| Err(R::late()))
    }

    /// Asks another instance, and counts what came of it.
    async fn ask_there(
        &self,
        incarnation: &Incarnation,
        forwarded: &ForwardedRequest,
        member: &Member,
        deadline: Instant,
    ) -> Result<Asked, Refusal> {
        let (result, asked) = match self.state.shares.take(Kind::Forwards, forwarded.principal().used(), 1) {
            Ok(_share) => {
                let (result, asked) = self.pass_there(incarnation, forwarded, member, deadline).await;
                (result, Ok(asked))
            }
            Err(reached) => ("overloaded", Err(reached.into())),
        };
        metrics::counter!("fencepost_forward_total", "result" => result).increment(1);
        asked
    }

    /// Passes a request to another instance. The outcome has the word under which it is counted.
    async fn pass_there(
        &self,
        incarnation: &Incarnation,
        forwarded: &ForwardedRequest,
        member: &Member,
        deadline: Instant,
    ) -> (&'static str, Asked) {
        if !same_scheme(&incarnation.identity.url, &member.url) {
            // A request that came over TLS is not forwarded without TLS. Nobody was asked.
            let (owner, caller) = (&member.id, forwarded.principal().name());
            log_failure!(
                error, self.outages.is_news(owner, caller, Failure::OtherScheme, Instant::now()),
                %owner, url = member.url, "an instance is advertised under another scheme"
            );
            return ("unreachable", Asked::Away);
        }
        let mut passed = forwarded.passed.clone();
        let way = [(FORWARDED_BY, &incarnation.identity.id), (FORWARDED_TO, &member.id)];
        passed.headers.extend(way.map(|(name, id)| (name, id.as_str().as_bytes().to_vec())));
        let credential = self.credential(incarnation, member, forwarded);
        passed.headers.push((FORWARDED_CREDENTIAL, credential.into_bytes()));
        let leaving = leaving(incarnation);
        if !leaving.is_empty() {
            passed.headers.push((FORWARDED_LEAVING, leaving.into_bytes()));
        }
        let timeout = deadline.saturating_duration_since(Instant::now());
        // Subscribed before the look, so that a change in between is not missed.
        let mut changes = incarnation.cluster_view.changes();
        let cluster_view = &incarnation.cluster_view;
        if cluster_view.view().member(member.id.as_str()).is_none() {
            return ("unreachable", Asked::Away);
        }
        let answer = self.state.call(async {
            let mut passing = pin!(self.state.peers.pass(&member.url, passed, timeout));
            loop {
                tokio::select! {
                    answer = &mut passing => return Some(answer),
                    // An instance that died or hangs does not answer, and another one takes its lease. One whose lease has only
                    // run out may answer yet.
                    Ok(()) = changes.changed() => {
                        if cluster_view.view().has_ended(&member.id) {
                            return None;
                        }
                    }
                }
            }
        });
        self.outcome(answer.await, &member.id, forwarded.principal().name())
    }

    /// What an owner's answer means, for a request of this caller; the log has what failed. No answer comes from an owner that
    /// left.
    fn outcome(
        &self,
        answer: Option<Result<PassedBack, Error>>,
        owner: &InstanceId,
        caller: &str,
    ) -> (&'static str, Asked) {
        let is_news = |failure| self.outages.is_news(owner, caller, failure, Instant::now());
        match answer {
            Some(Ok(answer)) if answer.status == StatusCode::UNAUTHORIZED.as_u16() => {
                // The caller's token was good here.
                log_failure!(
                    error, is_news(Failure::Distrusted),
                    %owner,
                    said = problem_text(&answer),
                    "an instance did not accept a forwarded request; the instances need the same cluster.secret, the same \
                     tokens"
                );
                ("distrusted", Asked::Distrusts)
            }
            Some(Ok(answer)) if is_of_another(&answer) => {
                log_failure!(
                    warn, is_news(Failure::Mistaken),
                    %owner,
                    said = problem_text(&answer),
                    "another instance answers at an owner's address: the owner has ended, or several instances advertise this \
                     address"
                );
                ("mistaken", Asked::Away)
            }
            Some(Ok(answer)) => {
                if self.outages.is_end(owner, caller, Instant::now()) {
                    tracing::info!(%owner, "an owner answers forwarded requests again");
                }
                read(answer)
            }
            Some(Err(Error::Unreachable { url, reason, .. })) => {
                log_failure!(
                    warn, is_news(Failure::Unreachable),
                    %owner, url, reason, "an owner could not be reached"
                );
                ("unreachable", Asked::Away)
            }
            Some(Err(error)) => {
                log_failure!(
                    warn, is_news(Failure::Unanswered),
                    %error, %owner, "a forwarded request got no answer"
                );
                ("lost", Asked::Lost)
            }
            None => {
                log_failure!(
                    warn, is_news(Failure::Left),
                    %owner, "an owner left while a forwarded request waited"
                );
                ("lost", Asked::Lost)
            }
        }
    }

    /// Proves to another instance that this one forwards the request, and names the caller.
    fn credential(&self, incarnation: &Incarnation, to: &Member, forwarded: &ForwardedRequest) -> String {
        let Passed { method, path, headers, body } = &forwarded.passed;
        let subject = Subject {
            by: incarnation.identity.id.as_str().as_bytes(),
            to: to.id.as_str().as_bytes(),
            method,
            path,
            principal: forwarded.principal().name(),
        };
        self.state.credentials.make(subject, headers, body)
    }
}

/// The instances that are leaving, as [`FORWARDED_LEAVING`] names them.
fn leaving(incarnation: &Incarnation) -> String {
    let view = incarnation.cluster_view.view();
    let named: Vec<_> = view.leaving().iter().take(LEAVING_NAMED_MAX).map(InstanceId::as_str).collect();
    named.join(",")
}

fn same_scheme(mine: &str, theirs: &str) -> bool {
    let scheme = |url: &str| url.split_once(':').map(|(scheme, _)| scheme.to_owned());
    scheme(mine) == scheme(theirs)
}

fn read(answer: PassedBack) -> (&'static str, Asked) {
    let code = problem_of(&answer).and_then(|problem| Some((problem.known_code()?, problem)));
    let (result, owner) = match code {
        Some((Code::Draining, _)) => return ("draining", Asked::Leaving),
        Some((Code::NotOwner, problem)) => ("not_owner", Some(problem.owner)),
        _ => ("answered", None),
    };
    // The other side closed the connection before it read the request.
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
    if let Some(location) = answer.location {
        response.insert_header((LOCATION, location.as_slice()));
    }
    let mut response = response.body(answer.body);
    response.extensions_mut().insert(PassedOn);
    match owner {
        Some(owner) => {
            (result, Asked::NotOwner(owner.and_then(|owner| InstanceId::parse(&owner).ok()), response))
        }
        None => (result, Asked::Answered(response)),
    }
}

/// Whether another instance than the one that was asked has answered: it did nothing, and names no owner.
fn is_of_another(answer: &PassedBack) -> bool {
    let problem = problem_of(answer);
    problem.is_some_and(|problem| problem.known_code() == Some(Code::NotOwner) && problem.owner.is_none())
}

/// What a refusal says, for the log.
fn problem_text(answer: &PassedBack) -> String {
    let problem = serde_json::from_slice::<Problem>(&answer.body).ok();
    problem.map(|problem| problem.detail).unwrap_or_default()
}

/// The problem in an answer, for the statuses that tell about routing.
fn problem_of(answer: &PassedBack) -> Option<Problem> {
    if matches!(answer.status, 409 | 503) { serde_json::from_slice(&answer.body).ok() } else { None }
}

/// What remains to be done where an owner is avoided.
fn passed_over(owner: &Member, is_last: bool) -> Result<Next, Refusal> {
    if is_last { Err(away(owner)) } else { Ok(Next::Away) }
}

fn redirect(member: &Member) -> Refusal {
    not_owner(member, format!("{} owns the key; ask it at owner_url", member.id))
}

fn away(member: &Member) -> Refusal {
    let detail = format!(
        "{} owns the key, and could not be reached from here or is shutting down; send the same request again: another instance takes \
         the key over if it does not come back",
        member.id
    );
    not_owner(member, detail)
}

fn not_owner(member: &Member, detail: String) -> Refusal {
    Refusal::new(Code::NotOwner, detail).with(|problem| {
        problem.owner = Some(member.id.to_string());
        problem.owner_url = Some(member.url.clone());
    })
}

#[cfg(test)]
mod tests {
    use actix_web::body::MessageBody as _;
    use actix_web::http::header::HeaderMap;

    use super::*;
    use crate::request_id::RequestId;

    #[test]
    fn the_answer_of_another_instance_is_marked_as_one() {
        let answer = |status| PassedBack {
            status,
            content_type: None,
            retry_after: None,
            location: None,
            body: Vec::new(),
        };
        for status in [200, 404, 500] {
            let ("answered", Asked::Answered(response)) = read(answer(status)) else { panic!("{status}") };
            assert_eq!(response.status().as_u16(), status);
            assert!(response.extensions().contains::<PassedOn>(), "{status}");
        }
    }

    #[test]
    fn the_refusal_of_another_instance_than_the_one_that_was_asked_is_told_from_the_owners() {
        let of_owner = not_owner(
            &Member { id: InstanceId::parse("b-1").unwrap(), url: "http://b".to_owned() },
            "b-1 owns the key".to_owned(),
        );
        let of_another = Refusal::new(Code::NotOwner, "this is a-1");
        let stopping = Refusal::new(Code::Draining, "this instance is stopping");
        for (refusal, expected) in [(of_another, true), (of_owner, false), (stopping, false)] {
            let code = refusal.code();
            let answer = refusal.respond(&RequestId::of(&HeaderMap::new()));
            let status = answer.status().as_u16();
            let body = answer.into_body().try_into_bytes().unwrap_or_default().to_vec();
            let (content_type, retry_after, location) = (None, None, None);
            let answer = PassedBack { status, content_type, retry_after, location, body };
            assert_eq!(is_of_another(&answer), expected, "{}", code.as_str());
        }
    }
}
