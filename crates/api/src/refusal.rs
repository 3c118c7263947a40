//! Refusals: the problem that the caller sees for each internal error.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::{HttpResponse, ResponseError};
use domain::nonce::SettleRefusal;
use domain::plan::Refused;
use domain::{HoldId, InstanceId, Nonce, TaskId};
use ledger::{LastTold, Locker};
use rand::RngExt;
use wire::health::Check;
use wire::problem::{GrantedBefore, MEDIA_TYPE};
use wire::{Code, Problem};

use crate::limits::{DETAIL_CHARS_MAX, TOO_MANY_SESSIONS_FOR};
use crate::request_id::{RequestId, X_REQUEST_ID};

/// What the details say of a ledger that did not answer.
const SILENT: &str = "the ledger did not answer in time";

/// What the details say, behind the reason, where the outcome of a write is unknown.
const UNSURE: &str = "It is not known whether anything was written; send the same request again (under the same \
                      Idempotency-Key, where it takes one; if it had none, look first: the repetition may do it twice)";

/// What a handler answers.
pub type Answer = Result<HttpResponse, Refusal>;

/// Marks an answer that another instance has made. If a defect made it, that one has counted and logged it.
pub struct PassedOn;

/// The refusal of a request, and the error type of the handlers. `gate` writes the request's id into it.
#[derive(Clone, Debug)]
pub struct Refusal {
    code: Code,
    problem: Box<Problem>,
    allow: Option<&'static str>,
    close: bool,
    /// Whether another instance has made it.
    is_passed_on: bool,
}

impl Refusal {
    /// A refusal of this code. A retryable one says when to come back, spread at random.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let mut problem = Box::new(Problem::new(code, shortened(detail.into())));
        problem.retry_after_ms = retry_after_ms(code);
        Self { code, problem, allow: None, close: false, is_passed_on: false }
    }

    /// `overloaded`, for a limit that holds for so long.
    pub fn overloaded_for(left: Duration, detail: impl Into<String>) -> Self {
        let wait_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        Self::new(Code::Overloaded, detail)
            .with(|problem| problem.retry_after_ms = problem.retry_after_ms.max(Some(wait_ms)))
    }

    /// `invalid`, with what is wrong and what would be right.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::Invalid, detail)
    }

    /// What cannot be read, with the reader's message and the place before it: `too_large` if that is why, else `invalid`.
    pub fn unreadable(place: &str, message: &str) -> Self {
        let code = if wire::is_too_large(message) { Code::TooLarge } else { Code::Invalid };
        Self::new(code, format!("{place}{message}"))
    }

    /// `method_not_allowed`, with the methods that the path takes.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        let mut refusal = Self::new(Code::MethodNotAllowed, format!("this path takes {allow}"));
        refusal.allow = Some(allow);
        refusal
    }

    /// What another instance refused, by the body of its answer; `None` for what is no refusal that is known here.
    pub fn passed_back(body: &[u8]) -> Option<Self> {
        let problem: Problem = serde_json::from_slice(body).ok()?;
        let code = problem.known_code()?;
        let Problem { detail, owner, owner_url, .. } = problem;
        let refusal = Self { is_passed_on: true, ..Self::new(code, detail) };
        Some(refusal.with(|passed| (passed.owner, passed.owner_url) = (owner, owner_url)))
    }

    /// `internal`. The details go to the log, not to the caller.
    pub fn internal() -> Self {
        Self::new(Code::Internal, "this is a defect; the log has more under the request id")
    }

    /// `ledger_unavailable` for what has written nothing.
    pub fn not_read() -> Self {
        Self::new(Code::LedgerUnavailable, format!("{SILENT}; try again"))
    }

    /// `ledger_unavailable` for what may have been written.
    pub fn perhaps_written() -> Self {
        Self::new(Code::LedgerUnavailable, format!("{SILENT}. {UNSURE}"))
    }

    /// `ledger_unavailable` for what the owner of the key may have written, which was lost with the request.
    pub fn owner_lost(owner: &InstanceId) -> Self {
        let why = format!("the owner, {owner}, was lost with the request; the ledger need not be the cause");
        Self::new(Code::LedgerUnavailable, format!("{why}. {UNSURE}"))
    }

    /// The same refusal; its detail says why the ledger takes no writes, not that the ledger did not answer.
    pub fn with_reason_of_ledger(self, reason: ledger::Unwritable) -> Self {
        self.with(|problem| problem.detail = problem.detail.replacen(SILENT, &reason.to_string(), 1))
    }

    /// The refusal of one item of a list, with its place before the detail, which begins with a field of the item.
    pub fn within(self, list: &str, at: usize) -> Self {
        let (code, detail) = self.code_and_detail();
        Self::new(code, format!("{list}[{at}].{detail}"))
    }

    /// Closes the connection after the answer.
    pub fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// Sets further fields of the problem.
    pub fn with(mut self, set: impl FnOnce(&mut Problem)) -> Self {
        set(&mut self.problem);
        self
    }

    /// The code.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Whether a defect of this instance made it. Another instance has counted and logged its own.
    pub const fn is_own_defect(&self) -> bool {
        matches!(self.code, Code::Internal) && !self.is_passed_on
    }

    /// The owner of the key, if another instance owns it.
    pub fn owner(&self) -> Option<&str> {
        self.problem.owner.as_deref()
    }

    /// The owner of the key and its URL, as far as they are known, for one answer of many.
    pub fn owner_and_url(&self) -> (Option<String>, Option<String>) {
        (self.problem.owner.clone(), self.problem.owner_url.clone())
    }

    /// The refusal of an error, in work that no caller waits for and that is tried again and again: a final one is in the log
    /// once a minute for each `told`.
    pub fn of_background(error: ledger::Error, told: &LastTold) -> Self {
        let is_final = !error.is_retryable() && !matches!(error, ledger::Error::WentBack);
        if is_final && !told.is_due() {
            tracing::debug!(%error, "the ledger refused");
            return Self::internal();
        }
        error.into()
    }

    /// The task that has a tenant's lock, where that is why the request is refused.
    pub fn locking_task(&self) -> Option<TaskId> {
        let task = self.problem.task.as_deref().filter(|_| self.code == Code::TenantLocked)?;
        TaskId::parse(task)
    }

    /// `tenant_locked` without the task that has the lock, and without its plan.
    pub fn without_locking_task(self) -> Self {
        self.with(|problem| {
            problem.detail = locked_by(problem.tenant.as_deref().unwrap_or_default(), "another task");
            (problem.plan, problem.task) = (None, None);
        })
    }

    /// The checks of `/readyz` that it names.
    pub fn checks(self) -> Option<BTreeMap<String, Check>> {
        self.problem.checks
    }

    /// The code and the detail, for one answer of many.
    pub fn code_and_detail(self) -> (Code, String) {
        (self.code, self.problem.detail)
    }

    /// The whole answer.
    pub fn respond(&self, id: &RequestId) -> HttpResponse {
        self.clone().with(|problem| problem.request_id = id.to_string()).answer(Some(id))
    }

    fn answer(&self, id: Option<&RequestId>) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        response.insert_header((CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)));
        if let Some(id) = id {
            response.insert_header((X_REQUEST_ID.clone(), id.value()));
        }
        if let Some(ms) = self.problem.retry_after_ms {
            response.insert_header((RETRY_AFTER, ms.div_ceil(1_000).max(1)));
        }
        if self.code == Code::Unauthorized {
            response.insert_header((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        if let Some(allow) = self.allow {
            response.insert_header((ALLOW, HeaderValue::from_static(allow)));
        }
        if self.close {
            response.force_close();
        }
        // For the log.
        response.extensions_mut().insert(self.code);
        if self.is_passed_on {
            response.extensions_mut().insert(PassedOn);
        }
        let mut body = serde_json::to_vec(&self.problem).expect("a problem has text keys only");
        body.push(b'\n');
        response.body(body)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.problem.detail)
    }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).expect("the table holds HTTP statuses")
    }

    fn error_response(&self) -> HttpResponse<BoxBody> {
        self.answer(None)
    }
}

impl From<domain::Invalid> for Refusal {
    fn from(invalid: domain::Invalid) -> Self {
        Self::invalid(invalid.to_string())
    }
}

impl From<ledger::Error> for Refusal {
    fn from(error: ledger::Error) -> Self {
        if error.is_retryable() {
            tracing::debug!(%error, "the ledger did not answer");
            return Self::not_read();
        }
        if matches!(error, ledger::Error::WentBack) {
            return Self::new(Code::LedgerWentBack, "the ledger is behind what this instance knew of it");
        }
        tracing::error!(%error, "the ledger refused");
        Self::internal()
    }
}

impl From<actors::jobs::Refusal> for Refusal {
    fn from(refusal: actors::jobs::Refusal) -> Self {
        use actors::jobs::Refusal as Inside;
        let detail = refusal.to_string();
        match refusal {
            Inside::NotOwner { owner } => {
                Self::new(Code::NotOwner, detail).with(|problem| problem.owner = Some(owner.to_string()))
            }
            Inside::NoOwner { .. } | Inside::Fenced => Self::new(Code::Fenced, detail),
            // `State::look_up` says of a read that it is one.
            Inside::LedgerUnavailable => Self::perhaps_written(),
            Inside::KeyReused => Self::new(Code::KeyReused, detail),
            Inside::Overloaded | Inside::TooManyWatched => Self::new(Code::Overloaded, detail),
            Inside::UnknownJob | Inside::UnknownSession => Self::new(Code::NotFound, detail),
            Inside::NotFinished(_) | Inside::AlreadyRetried | Inside::SessionClosed => {
                Self::new(Code::Conflict, detail)
            }
            Inside::SessionFull => Self::new(Code::Overloaded, detail),
            Inside::TooManySessions => Self::overloaded_for(TOO_MANY_SESSIONS_FOR, detail),
            Inside::StrictPriority | Inside::TooManyLabels => Self::invalid(detail),
            Inside::NoBus => Self::new(Code::BusUnavailable, detail),
            Inside::Internal => Self::internal(),
        }
    }
}

impl From<actors::plans::Refusal> for Refusal {
    fn from(refusal: actors::plans::Refusal) -> Self {
        use actors::plans::Refusal as Inside;
        let detail = refusal.to_string();
        match refusal {
            Inside::UnknownPlan | Inside::UnknownTask => Self::new(Code::NotFound, detail),
            Inside::NotLocked | Inside::OtherToken(_) => Self::new(Code::Conflict, detail),
            Inside::Refused(refused) => Self::new(code_of_refused(&refused), detail)
                .with(|problem| problem.stage = stage_of(&refused)),
            Inside::TenantLocked(locker) => tenant_locked(&locker),
            Inside::Unfit(_) => Self::invalid(detail),
            Inside::TooLarge(_) => Self::new(Code::TooLarge, detail),
            Inside::NotOwner { owner } => {
                Self::new(Code::NotOwner, detail).with(|problem| problem.owner = Some(owner.to_string()))
            }
            Inside::NoOwner | Inside::Fenced => Self::new(Code::Fenced, detail),
            Inside::KeyReused => Self::new(Code::KeyReused, detail),
            Inside::Overloaded => Self::new(Code::Overloaded, detail),
            Inside::LedgerUnavailable => Self::new(
                Code::LedgerUnavailable,
                format!(
                    "{SILENT}. It is not known whether anything was written; look, then send the same request again (a plan \
                     or a retry under the same Idempotency-Key, a retry without one with the same `expect`)"
                ),
            ),
            Inside::Internal => Self::internal(),
        }
    }
}

const fn code_of_refused(refused: &Refused) -> Code {
    match refused {
        Refused::UnknownTask | Refused::UnknownStage | Refused::UnknownCheckpoint => Code::NotFound,
        Refused::Status(_) | Refused::NotAsSeen | Refused::TooMany(..) => Code::Conflict,
        Refused::StillRunning => Code::StillRunning,
        Refused::StageUnknown(_) => Code::StageUnknown,
        Refused::DefinitionChanged(_) => Code::DefinitionChanged,
    }
}

/// The number of the stage that is UNKNOWN, counted from 1.
fn stage_of(refused: &Refused) -> Option<u32> {
    match refused {
        Refused::StageUnknown(at) => u32::try_from(at + 1).ok(),
        _ => None,
    }
}

fn tenant_locked(locker: &Locker) -> Refusal {
    let tenant = &locker.tenant;
    let detail = match locker.task {
        Some(task) => locked_by(tenant.as_str(), &format!("task {task}")),
        None => locked_by(tenant.as_str(), "another task"),
    };
    Refusal::new(Code::TenantLocked, detail).with(|problem| {
        problem.tenant = Some(tenant.to_string());
        problem.plan = locker.plan.map(|plan| plan.to_string());
        problem.task = locker.task.map(|task| task.to_string());
    })
}

/// Why a tenant's lock is not to be had, and when it is: no request waits for one.
fn locked_by(tenant: &str, holder: &str) -> String {
    format!(
        "the tenant {tenant} is locked by {holder}; send the request again once that is SUCCEEDED or CANCELLED, and no attempt \
         of it runs any more"
    )
}

impl From<ids::snowflake::Refusal> for Refusal {
    fn from(refusal: ids::snowflake::Refusal) -> Self {
        use ids::snowflake::Refusal as Inside;
        let (detail, wait_ms) = (refusal.to_string(), refusal.wait_ms());
        match refusal {
            // The file keeps the mark that the clock must not pass, and a wrong epoch is a wrong clock.
            Inside::MarkAhead { .. }
            | Inside::ClockBack { .. }
            | Inside::ClockStill
            | Inside::ClockOff { .. }
            | Inside::NotBegun { .. }
            | Inside::OtherEpoch { .. }
            | Inside::File(_) => Self::new(Code::ClockBehind, detail)
                .with(|problem| problem.retry_after_ms = problem.retry_after_ms.max(wait_ms)),
            // A number comes free when its holder ends, and this instance looks for one every second.
            Inside::NoNumber { .. } => Self::new(Code::Exhausted, detail)
                .with(|problem| problem.retry_after_ms = Some(rand::rng().random_range(1_000..=2_000))),
            Inside::Ended { .. } => Self::new(Code::Exhausted, detail),
            Inside::Ledger(error) => error.into(),
            Inside::Late | Inside::Unreached => Self::new(Code::LedgerUnavailable, detail),
            Inside::Stopped => Self::new(Code::Draining, detail),
        }
    }
}

impl From<ids::segment::Refusal> for Refusal {
    fn from(refusal: ids::segment::Refusal) -> Self {
        use ids::segment::Refusal as Inside;
        let detail = refusal.to_string();
        match refusal {
            Inside::Unknown => Self::new(Code::NotFound, detail),
            Inside::Exhausted | Inside::TagExhausted => Self::new(Code::Exhausted, detail),
            Inside::Ledger(error) => error.into(),
            Inside::Late => Self::new(Code::LedgerUnavailable, detail),
            Inside::Overloaded => Self::new(Code::Overloaded, detail),
        }
    }
}

impl From<actors::signers::Refusal> for Refusal {
    /// [`crate::state::State::refusal`] adds the owner's address.
    fn from(refusal: actors::signers::Refusal) -> Self {
        use actors::signers::Refusal as Inside;
        let detail = refusal.to_string();
        match refusal {
            Inside::LeaseHeld { owner, expires_in_ms } => {
                Self::new(Code::LeaseHeld, detail).with(|problem| {
                    problem.owner = Some(owner.to_string());
                    problem.expires_in_ms = Some(expires_in_ms);
                })
            }
            Inside::NotOwner { owner, expires_in_ms } => Self::new(Code::NotOwner, detail).with(|problem| {
                problem.owner = Some(owner.to_string());
                problem.expires_in_ms = Some(expires_in_ms);
            }),
            Inside::LedgerUnavailable => Self::perhaps_written(),
            Inside::Fenced => Self::new(Code::Fenced, detail),
            Inside::WindowFull { in_flight, max_in_flight, asked } => {
                Self::new(Code::WindowFull, detail).with(|problem| {
                    problem.in_flight = Some(in_flight);
                    problem.max_in_flight = Some(max_in_flight);
                    // No wait makes room for more than the whole window.
                    problem.retry_after_ms = problem.retry_after_ms.filter(|_| asked <= max_in_flight);
                })
            }
            Inside::Exhausted { .. } => Self::new(Code::Exhausted, detail),
            Inside::Recovering => Self::new(Code::Recovering, detail),
            Inside::StaleReplay { grants } => Self::new(Code::StaleHold, detail).with(|problem| {
                // Its caller may not have stored the holds before it crashed, and can settle with them.
                let before = |(nonce, hold): (Nonce, HoldId)| GrantedBefore {
                    nonce: nonce.get(),
                    hold: hold.to_string(),
                };
                problem.granted_before = Some(grants.into_iter().map(before).collect());
            }),
            Inside::KeyReused => Self::new(Code::KeyReused, detail),
            Inside::Overloaded => Self::new(Code::Overloaded, detail),
            Inside::UnknownSigner | Inside::UnknownNonce => Self::new(Code::NotFound, detail),
            Inside::StaleHold => Self::new(Code::StaleHold, detail),
            Inside::NotQuarantined(state) => {
                let consumed = state.0 == domain::nonce::Status::Consumed;
                Self::new(if consumed { Code::AlreadySettled } else { Code::Conflict }, detail)
            }
            Inside::FirstNonceFixed { first_nonce } => Self::new(
                Code::Conflict,
                format!("first_nonce is fixed since the first grant or confirmation: nonces begin at {first_nonce}"),
            )
            .with(|problem| problem.first_nonce = Some(first_nonce.get())),
            Inside::Internal => Self::internal(),
        }
    }
}

/// Counts and logs a defect, if this refusal says that this instance had one, which is answered for one job of many. `gate` does
/// so for answers to whole requests.
pub fn count_defect(refusal: &Refusal) {
    if refusal.is_own_defect() {
        count_defects(1);
    }
}

/// Counts and logs defects of this instance for which so many jobs were refused.
pub fn count_defects(jobs: u64) {
    for _ in 0..jobs {
        metrics::counter!("fencepost_internal_errors_total").increment(1);
        tracing::error!("a job was refused because of a defect");
    }
}

/// The code and text of a settlement that is refused.
pub fn settlement(nonce: Nonce, refusal: &SettleRefusal) -> (Code, String) {
    match refusal {
        SettleRefusal::NeverGranted => (
            Code::StaleHold,
            format!(
                "nonce {nonce} was never granted, or a recovered ledger has lost the grant; nothing changed"
            ),
        ),
        SettleRefusal::StaleHold => (
            Code::StaleHold,
            format!(
                "the hold is not the last one of nonce {nonce}; nothing changed. If it was, the nonce was granted again since, \
                 or the ledger was recovered: look on the chain which transaction has it"
            ),
        ),
        SettleRefusal::AlreadySettled(None) => {
            (Code::AlreadySettled, format!("nonce {nonce} is CONSUMED already, by an unnamed transaction"))
        }
        SettleRefusal::AlreadySettled(Some(tx_hash)) => {
            (Code::AlreadySettled, format!("nonce {nonce} is CONSUMED already, by {tx_hash}"))
        }
    }
}

/// The delay before the next try, in milliseconds, spread at random so that callers do not return together.
fn retry_after_ms(code: Code) -> Option<u64> {
    let range = match code {
        // In basic mode a lease is released after at most 100 ms.
        Code::LeaseHeld => 100..=300,
        // If the owner is dead, another instance takes the key within seconds.
        Code::NotOwner => 200..=600,
        Code::Fenced => 50..=150,
        Code::Overloaded => 100..=500,
        Code::WindowFull => 250..=1_000,
        Code::LedgerUnavailable | Code::Draining | Code::ClockBehind => 500..=1_500,
        other => {
            debug_assert!(!other.is_retryable(), "a retryable code needs a time");
            return None;
        }
    };
    Some(rand::rng().random_range(range))
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(DETAIL_CHARS_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use actors::plans::Refusal as Inside;
    use domain::{PlanId, TenantId, Token};

    use super::*;

    #[test]
    fn every_refusal_that_may_end_by_itself_says_when_to_ask_again() {
        for code in Code::ALL {
            let answer = Refusal::new(*code, "no").error_response();
            assert_eq!(answer.status().as_u16(), code.status());
            assert_eq!(answer.headers().contains_key(RETRY_AFTER), code.is_retryable(), "{code}");
        }
    }

    #[test]
    fn every_refusal_of_a_plan_has_its_code() {
        let locker = Locker { tenant: TenantId::parse("t").unwrap(), task: None, plan: None };
        let owner = InstanceId::parse("a-1").unwrap();
        for (refusal, code) in [
            (Inside::UnknownPlan, Code::NotFound),
            (Inside::UnknownTask, Code::NotFound),
            (Inside::NotLocked, Code::Conflict),
            (Inside::OtherToken(Token::new(7)), Code::Conflict),
            (Inside::Refused(Refused::UnknownTask), Code::NotFound),
            (Inside::Refused(Refused::UnknownStage), Code::NotFound),
            (Inside::Refused(Refused::UnknownCheckpoint), Code::NotFound),
            (Inside::Refused(Refused::Status("no".to_owned())), Code::Conflict),
            (Inside::Refused(Refused::NotAsSeen), Code::Conflict),
            (Inside::Refused(Refused::TooMany("runs", 100)), Code::Conflict),
            (Inside::Refused(Refused::StillRunning), Code::StillRunning),
            (Inside::Refused(Refused::StageUnknown(0)), Code::StageUnknown),
            (Inside::Refused(Refused::DefinitionChanged(0)), Code::DefinitionChanged),
            (Inside::TenantLocked(locker), Code::TenantLocked),
            (Inside::Unfit("no".to_owned()), Code::Invalid),
            (Inside::TooLarge("no".to_owned()), Code::TooLarge),
            (Inside::NotOwner { owner }, Code::NotOwner),
            (Inside::NoOwner, Code::Fenced),
            (Inside::KeyReused, Code::KeyReused),
            (Inside::Overloaded, Code::Overloaded),
            (Inside::LedgerUnavailable, Code::LedgerUnavailable),
            (Inside::Fenced, Code::Fenced),
            (Inside::Internal, Code::Internal),
        ] {
            let shown = Refusal::from(refusal.clone());
            assert_eq!((shown.code(), shown.problem.status), (code, code.status()), "{refusal:?}");
            assert!(shown.owner().is_none_or(|owner| owner == "a-1"), "{refusal:?}");
        }
    }

    #[test]
    fn a_refusal_of_snowflakes_whose_wait_is_known_names_the_wait() {
        use ids::snowflake::Refusal as Inside;
        let wait_ms = |refusal: Inside| Refusal::from(refusal).problem.retry_after_ms;
        let number = domain::WorkerNumber::new(7).unwrap();
        for refusal in [
            Inside::MarkAhead { number, wait_ms: 293_000 },
            Inside::ClockBack { by_ms: 293_000 },
            Inside::NotBegun { epoch_ms: 300_000, wait_ms: 293_000 },
        ] {
            assert_eq!(wait_ms(refusal), Some(293_000));
        }
        assert!(wait_ms(Inside::ClockBack { by_ms: 6 }).is_some_and(|ms| ms >= 500), "callers are spread");
        assert!(wait_ms(Inside::ClockStill).is_some_and(|ms| ms <= 1_500));
    }

    #[test]
    fn a_grant_of_more_than_the_whole_window_is_not_told_to_wait() {
        use actors::signers::Refusal as Inside;
        for (asked, waits) in [(1, true), (2, true), (3, false)] {
            let full = Refusal::from(Inside::WindowFull { in_flight: 2, max_in_flight: 2, asked });
            assert_eq!((full.code(), full.problem.retry_after_ms.is_some()), (Code::WindowFull, waits));
            assert_eq!(full.error_response().headers().contains_key(RETRY_AFTER), waits, "{asked}");
        }
    }

    #[test]
    fn a_token_with_too_many_sessions_is_told_to_wait_for_longer_than_a_jobs_end() {
        let wait_ms = |refusal: actors::jobs::Refusal| Refusal::from(refusal).problem.retry_after_ms;
        assert_eq!(wait_ms(actors::jobs::Refusal::TooManySessions), Some(5_000));
        assert!(wait_ms(actors::jobs::Refusal::SessionFull).is_some_and(|ms| ms <= 500));
    }

    #[test]
    fn a_final_error_of_work_that_no_caller_waits_for_takes_the_turn_in_the_log_and_no_other_does() {
        let code = |error, told: &LastTold| Refusal::of_background(error, told).code();
        let (others, told) = (LastTold::never(), LastTold::never());
        let lost = ledger::Error::unavailable(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        assert_eq!(code(lost, &others), Code::LedgerUnavailable);
        assert_eq!(code(ledger::Error::WentBack, &others), Code::LedgerWentBack);
        assert!(others.is_due());
        for _ in 0..2 {
            assert_eq!(code(ledger::Error::Impossible("spoilt".into()), &told), Code::Internal);
            assert!(!told.is_due());
        }
    }

    #[test]
    fn what_a_ledger_that_takes_no_writes_did_not_answer_is_refused_for_its_reason() {
        let silent = [
            Refusal::not_read(),
            Refusal::perhaps_written(),
            actors::jobs::Refusal::LedgerUnavailable.into(),
            actors::signers::Refusal::LedgerUnavailable.into(),
            Inside::LedgerUnavailable.into(),
            ids::segment::Refusal::Late.into(),
        ];
        for refusal in silent {
            let told = refusal.clone().with_reason_of_ledger(ledger::Unwritable::Denied).to_string();
            let is_told =
                told.starts_with("ledger_unavailable: the ledger's database denies its role a right");
            assert!(is_told && !told.contains(SILENT), "{told}");
            assert_eq!(told.contains("not known"), refusal.to_string().contains("not known"), "{told}");
        }
    }

    #[test]
    fn a_refusal_of_unknown_outcome_says_to_look_before_a_repetition_without_a_key() {
        let owner = InstanceId::parse(&"i".repeat(domain::limits::INSTANCE_ID_CHARS_MAX)).unwrap();
        let lost = Refusal::owner_lost(&owner);
        assert!(!lost.to_string().contains(SILENT), "the ledger is not known to be away: {lost}");
        let without_a_key = "if it had none, look first: the repetition may do it twice";
        let unsure = [
            (lost, without_a_key),
            (Refusal::perhaps_written(), without_a_key),
            (actors::jobs::Refusal::LedgerUnavailable.into(), without_a_key),
            (actors::signers::Refusal::LedgerUnavailable.into(), without_a_key),
            (Inside::LedgerUnavailable.into(), "look, then send"),
            (Inside::LedgerUnavailable.into(), "a plan or a retry under the same Idempotency-Key"),
            (Inside::LedgerUnavailable.into(), "a retry without one with the same `expect`"),
        ];
        for (refusal, said_too) in unsure {
            let (code, detail) = refusal.code_and_detail();
            assert_eq!(code, Code::LedgerUnavailable);
            for said in ["not known whether anything was written", "under the same Idempotency-Key", said_too]
            {
                assert!(detail.contains(said), "{detail}");
            }
            assert!(!detail.contains("a grant") && !detail.ends_with('…'), "{detail}");
        }
    }

    #[test]
    fn a_refusal_of_a_key_that_was_used_says_what_would_be_right() {
        let of_job = Refusal::from(actors::jobs::Refusal::KeyReused);
        assert!(of_job.to_string().contains("or a job's ref in its session"), "{of_job}");
        for refusal in [of_job, actors::signers::Refusal::KeyReused.into(), Inside::KeyReused.into()] {
            let (code, detail) = refusal.code_and_detail();
            assert_eq!(code, Code::KeyReused);
            for said in ["Idempotency-Key", "repeat the first request unchanged", "send it under a new key"] {
                assert!(detail.contains(said), "{detail}");
            }
        }
    }

    #[test]
    fn a_refusal_of_a_stale_hold_names_what_may_be_the_reason() {
        let nonce = Nonce::new(7).unwrap();
        for (refusal, reasons) in [
            (SettleRefusal::NeverGranted, ["nonce 7 was never granted", "a recovered ledger"]),
            (SettleRefusal::StaleHold, ["granted again since", "the ledger was recovered"]),
        ] {
            let (code, detail) = settlement(nonce, &refusal);
            assert_eq!(code, Code::StaleHold);
            assert!(reasons.iter().all(|reason| detail.contains(reason)), "{detail}");
            assert!(
                detail.contains("nothing changed") && detail.chars().count() <= DETAIL_CHARS_MAX,
                "{detail}"
            );
        }
    }

    #[test]
    fn a_repetition_of_a_grant_that_is_stale_is_answered_with_its_nonces_and_holds() {
        let (nonce, hold) = (Nonce::new(7).unwrap(), HoldId::from_u128(1));
        let refusal = Refusal::from(actors::signers::Refusal::StaleReplay { grants: vec![(nonce, hold)] });
        assert_eq!(refusal.code(), Code::StaleHold);
        let before = vec![GrantedBefore { nonce: 7, hold: hold.to_string() }];
        assert_eq!(refusal.problem.granted_before, Some(before));
        assert_eq!(Refusal::from(actors::signers::Refusal::StaleHold).problem.granted_before, None);
    }

    #[test]
    fn a_defect_of_another_instance_is_none_of_the_one_that_passes_its_answer_on() {
        let own = Refusal::internal();
        let theirs = Refusal::passed_back(&serde_json::to_vec(&own.problem).unwrap()).unwrap();
        assert_eq!(theirs.code(), Code::Internal);
        assert!(own.is_own_defect() && !theirs.is_own_defect());
        let is_marked = |refusal: &Refusal| refusal.error_response().extensions().contains::<PassedOn>();
        assert!(is_marked(&theirs) && !is_marked(&own));
        assert!(!Refusal::not_read().is_own_defect());
    }

    #[test]
    fn a_locked_tenant_is_named_with_the_plan_and_the_task_that_have_the_lock() {
        let (task, plan) = (TaskId::from_u128(1), PlanId::from_u128(2));
        let locker = Locker { tenant: TenantId::parse("t").unwrap(), task: Some(task), plan: Some(plan) };
        let problem = Refusal::from(Inside::TenantLocked(locker)).problem;
        assert_eq!(problem.tenant.as_deref(), Some("t"));
        assert_eq!(problem.task, Some(task.to_string()));
        assert_eq!(problem.plan, Some(plan.to_string()));
        let why = format!("the tenant t is locked by task {task}; send the request again once");
        assert!(problem.detail.starts_with(&why), "{}", problem.detail);
    }
}
