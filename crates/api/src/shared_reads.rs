//! Reads that several callers share. A caller whose `Cache-Control` accepts an answer of a second's age (`max-age=1`), as the
//! dashboard does for its polls, gets the answer of another such caller's read if that read began less than
//! [`SHARED_READ_AGE_MAX`] ago. Every other caller's read goes to the ledger.
//!
//! Only callers with the same scopes who both see everything share, or those with the same token. An answer that is no
//! success is not kept. Callers who waited for it share it where the daemon or the ledger has failed, and read themselves
//! otherwise: so a stalled ledger keeps no caller for longer than its own read would have.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::HttpResponse;
use actix_web::body::{BoxBody, MessageBody as _};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{CACHE_CONTROL, HeaderMap};
use actix_web::http::{Method, StatusCode};
use actix_web::web::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::auth::{Principal, Scope};
use crate::extract::Query;
use crate::limits::{
    SHARED_READ_AGE_MAX, SHARED_READ_BYTES_MAX, SHARED_READ_TARGET_BYTES_MAX, SHARED_READS_BYTES_MAX,
    SHARED_READS_MAX,
};
use crate::refusal::Refusal;
use crate::routes::Route;

/// The question of a read, and the callers who may share its answer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    viewer: Viewer,
    /// The path and the query, as they were sent.
    target: String,
}

/// The callers who get the same answers.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Viewer {
    /// Those who see everything, with these of [`Scope::ALL`].
    Everything([bool; Scope::ALL.len()]),
    /// Those with one token.
    Token(ByAddress),
}

/// A caller's token, as it was configured when the caller was let in: another configuration makes another one.
#[derive(Clone)]
struct ByAddress(Arc<Principal>);

impl PartialEq for ByAddress {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ByAddress {}

impl Hash for ByAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl Key {
    /// The key of a request whose answer may be shared.
    pub fn of(route: Option<Route>, request: &ServiceRequest, principal: &Arc<Principal>) -> Option<Self> {
        if *request.method() != Method::GET || !accepts_shared(request.headers()) {
            return None;
        }
        let target = request.uri().path_and_query()?.as_str();
        // A request that waits for a change wants no earlier answer.
        let is_shared = route?.is_shared()
            && target.len() <= SHARED_READ_TARGET_BYTES_MAX
            && !Query::names(request.query_string(), "wait_ms");
        is_shared.then(|| Self::new(principal, target))
    }

    fn new(principal: &Arc<Principal>, target: &str) -> Self {
        let viewer = if principal.sees().everything() {
            Viewer::Everything(Scope::ALL.map(|scope| principal.has(scope)))
        } else {
            Viewer::Token(ByAddress(Arc::clone(principal)))
        };
        Self { viewer, target: target.to_owned() }
    }
}

/// Whether the caller accepts an answer of a second's age.
fn accepts_shared(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(CACHE_CONTROL).filter_map(|value| value.to_str().ok());
    let mut accepts = false;
    for directive in texts.flat_map(|text| text.split(',')).map(str::trim) {
        match directive.split_once('=') {
            Some((name, seconds)) if name.eq_ignore_ascii_case("max-age") => {
                if !seconds.parse().is_ok_and(|seconds| Duration::from_secs(seconds) >= SHARED_READ_AGE_MAX) {
                    return false;
                }
                accepts = true;
            }
            _ if ["no-cache", "no-store"].iter().any(|word| directive.eq_ignore_ascii_case(word)) => {
                return false;
            }
            _ => {}
        }
    }
    accepts
}

/// An answer to several callers.
#[derive(Clone)]
pub struct SharedAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl SharedAnswer {
    /// The answer to one more caller.
    pub fn respond(&self) -> HttpResponse {
        let mut answer = HttpResponse::new(self.status);
        *answer.headers_mut() = self.headers.clone();
        answer.set_body(BoxBody::new(self.body.clone()))
    }
}

/// What came of a read. A refusal is of those that say that the daemon or the ledger has failed.
type Outcome = Result<SharedAnswer, Refusal>;

/// The reads under way, and the answers of those that began a moment ago.
pub struct SharedReads {
    age_max: Duration,
    reads: Mutex<Reads>,
}

#[derive(Default)]
struct Reads {
    by_key: HashMap<Key, Read>,
    /// The bytes of all answers.
    bytes: usize,
    last_id: u64,
}

struct Read {
    id: u64,
    began: Instant,
    /// The bytes of the answer. 0 while the read is under way.
    bytes: usize,
    /// The sender is dropped without an outcome when the callers are to read themselves.
    answer: watch::Receiver<Option<Outcome>>,
}

impl Default for SharedReads {
    fn default() -> Self {
        Self::new(SHARED_READ_AGE_MAX)
    }
}

/// The way to the answer of a request.
pub enum Turn<'s> {
    /// Another caller's answer.
    Shared(SharedAnswer),
    /// Another caller's read has failed just now.
    Failed(Refusal),
    /// The request is served, and others wait for its answer.
    Read(Reading<'s>),
    /// The request is served as if there were no others.
    Alone,
}

/// A read that others wait for. They read themselves when it is dropped.
pub struct Reading<'s> {
    shared: &'s SharedReads,
    key: Key,
    id: u64,
    out: watch::Sender<Option<Outcome>>,
}

impl SharedReads {
    /// Answers are shared for this long from the beginning of the read.
    pub fn new(age_max: Duration) -> Self {
        Self { age_max, reads: Mutex::default() }
    }

    /// The answer of a read that began a moment ago, once it is there; otherwise the caller reads.
    pub async fn turn(&self, key: Key) -> Turn<'_> {
        let mut answer = {
            let mut reads = self.reads.lock();
            match reads.by_key.get(&key) {
                Some(read) if read.began.elapsed() < self.age_max => read.answer.clone(),
                _ => return self.begin(&mut reads, key),
            }
        };
        match answer.wait_for(Option::is_some).await {
            Ok(found) => match found.clone() {
                Some(Ok(answer)) => Turn::Shared(answer),
                Some(Err(refusal)) => Turn::Failed(refusal),
                None => Turn::Alone,
            },
            Err(_dropped) => Turn::Alone,
        }
    }

    fn begin(&self, reads: &mut Reads, key: Key) -> Turn<'_> {
        reads.remove(&key, |_| true);
        if reads.by_key.len() >= SHARED_READS_MAX {
            reads.forget_older(self.age_max);
            if reads.by_key.len() >= SHARED_READS_MAX {
                return Turn::Alone;
            }
        }
        reads.last_id += 1;
        let (id, (out, answer)) = (reads.last_id, watch::channel(None));
        reads.by_key.insert(key.clone(), Read { id, began: Instant::now(), bytes: 0, answer });
        Turn::Read(Reading { shared: self, key, id, out })
    }
}

impl Reads {
    fn remove(&mut self, key: &Key, is_it: impl Fn(&Read) -> bool) {
        if self.by_key.get(key).is_some_and(is_it)
            && let Some(read) = self.by_key.remove(key)
        {
            self.bytes -= read.bytes;
        }
    }

    fn forget_older(&mut self, age_max: Duration) {
        self.by_key.retain(|_, read| read.began.elapsed() < age_max);
        self.bytes = self.by_key.values().map(|read| read.bytes).sum();
    }
}

impl Reading<'_> {
    /// Gives those who wait the answer, if it is a success, and keeps it for those who come in a moment.
    pub fn answered(self, answer: ServiceResponse<BoxBody>) -> ServiceResponse<BoxBody> {
        let mut found = None;
        let answer = answer.map_body(|head, body| match body.try_into_bytes() {
            Ok(body) => {
                found = Some(SharedAnswer {
                    status: head.status,
                    headers: head.headers.clone(),
                    body: body.clone(),
                });
                BoxBody::new(body)
            }
            Err(stream) => stream,
        });
        if let Some(found) = found.filter(|found| found.status.is_success()) {
            self.keep(found);
        }
        answer
    }

    fn keep(self, found: SharedAnswer) {
        let bytes = found.body.len();
        {
            let age_max = self.shared.age_max;
            let mut reads = self.shared.reads.lock();
            if bytes <= SHARED_READ_BYTES_MAX && reads.bytes + bytes > SHARED_READS_BYTES_MAX {
                reads.forget_older(age_max);
            }
            if bytes <= SHARED_READ_BYTES_MAX
                && reads.bytes + bytes <= SHARED_READS_BYTES_MAX
                && let Some(read) = reads.by_key.get_mut(&self.key).filter(|read| read.id == self.id)
            {
                read.bytes = bytes;
                reads.bytes += bytes;
            } else {
                reads.remove(&self.key, |read| read.id == self.id);
            }
        }
        self.out.send_replace(Some(Ok(found)));
    }

    /// Tells those who wait that the read has failed, if the same would become of theirs.
    pub fn refused(self, refusal: &Refusal) {
        if StatusCode::from_u16(refusal.code().status()).is_ok_and(|status| status.is_server_error()) {
            self.shared.reads.lock().remove(&self.key, |read| read.id == self.id);
            self.out.send_replace(Some(Err(refusal.clone())));
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if self.out.borrow().is_none() {
            self.shared.reads.lock().remove(&self.key, |read| read.id == self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;
    use actix_web::test::TestRequest;
    use wire::Code;

    use super::*;
    use crate::auth::{Access, Auth, Sees, Token, digest};

    fn answer(body: &'static [u8]) -> SharedAnswer {
        SharedAnswer { status: StatusCode::OK, headers: HeaderMap::new(), body: Bytes::from_static(body) }
    }

    fn principals(tokens: &[(&str, Scope, Sees)]) -> Vec<Arc<Principal>> {
        let token = |(name, scope, sees): &(&str, Scope, Sees)| Token {
            name: (*name).to_owned(),
            digests: vec![digest(name.as_bytes())],
            scopes: vec![*scope],
            sees: sees.clone(),
            expires_at: None,
        };
        let auth = Auth::tokens(tokens.iter().map(token).collect());
        let named = |name: &str| {
            let mut headers = HeaderMap::new();
            let value = HeaderValue::from_str(&format!("Bearer {name}")).unwrap();
            headers.insert(actix_web::http::header::AUTHORIZATION, value);
            auth.identify(&headers, Access::Known).unwrap()
        };
        tokens.iter().map(|(name, ..)| named(name)).collect()
    }

    fn tenant(name: &str) -> Sees {
        let tenants = domain::Names::Some([domain::Pattern::parse(name).unwrap()].into());
        Sees { tenants, ..Sees::default() }
    }

    fn shared() -> SharedReads {
        SharedReads::new(Duration::from_secs(3_600))
    }

    async fn body(shared: &SharedReads, key: &Key) -> Option<Bytes> {
        match shared.turn(key.clone()).await {
            Turn::Shared(found) => Some(found.body),
            Turn::Read(_) | Turn::Failed(_) | Turn::Alone => None,
        }
    }

    async fn reading<'s>(shared: &'s SharedReads, key: &Key) -> Reading<'s> {
        match shared.turn(key.clone()).await {
            Turn::Read(reading) => reading,
            Turn::Shared(_) | Turn::Failed(_) | Turn::Alone => panic!("nobody has read it"),
        }
    }

    #[tokio::test]
    async fn callers_share_by_what_they_see_and_may() {
        let everything = Sees::default;
        let callers = principals(&[
            ("one", Scope::Read, everything()),
            ("other", Scope::Read, everything()),
            ("admin", Scope::Admin, everything()),
            ("a", Scope::Read, tenant("a")),
            ("b", Scope::Read, tenant("b")),
        ]);
        let key = |n: usize| Key::new(&callers[n], "/v1/jobs?limit=1");
        assert!(key(0) == key(0) && key(0) == key(1), "both see everything, and may do the same");
        for (one, other) in [(0, 2), (0, 3), (3, 4), (2, 3)] {
            assert!(key(one) != key(other), "{one} and {other}");
        }
        assert!(key(3) == key(3), "one token");
        assert!(key(0) != Key::new(&callers[0], "/v1/jobs?limit=2"), "other questions");
        let shared = shared();
        reading(&shared, &key(3)).await.keep(answer(b"of a"));
        assert_eq!(body(&shared, &key(3)).await.unwrap(), "of a");
        reading(&shared, &key(4)).await.keep(answer(b"of b"));
        assert_eq!(body(&shared, &key(4)).await.unwrap(), "of b");
    }

    #[tokio::test]
    async fn those_who_wait_share_a_failure_of_the_ledger_and_no_other_refusal() {
        let callers = principals(&[("one", Scope::Read, Sees::default())]);
        let (shared, key) = (shared(), Key::new(&callers[0], "/v1/jobs"));
        for (code, is_shared) in [(Code::LedgerUnavailable, true), (Code::NotFound, false)] {
            let first = reading(&shared, &key).await;
            let mut other = Box::pin(shared.turn(key.clone()));
            assert!(futures_util::poll!(&mut other).is_pending(), "the read is under way");
            first.refused(&Refusal::new(code, "why"));
            match other.await {
                Turn::Failed(refusal) => assert!(is_shared && refusal.code() == code),
                Turn::Alone => assert!(!is_shared),
                Turn::Shared(_) | Turn::Read(_) => panic!("{code}"),
            }
            // It is not kept: the next caller reads.
            drop(reading(&shared, &key).await);
        }
    }

    #[tokio::test]
    async fn those_who_wait_get_the_answer_and_read_themselves_after_a_failure() {
        let callers = principals(&[("one", Scope::Read, Sees::default())]);
        let (shared, key) = (shared(), Key::new(&callers[0], "/v1/jobs"));
        for is_success in [false, true] {
            let first = reading(&shared, &key).await;
            let mut others = [(); 3].map(|()| Box::pin(body(&shared, &key)));
            for other in &mut others {
                assert!(futures_util::poll!(other).is_pending(), "the read is under way");
            }
            if is_success {
                first.keep(answer(b"x"))
            } else {
                drop(first)
            }
            for other in others {
                assert_eq!(other.await.is_some(), is_success);
            }
        }
        assert!(body(&shared, &key).await.is_some(), "the success is kept");
    }

    #[tokio::test]
    async fn an_old_answer_is_not_shared() {
        let callers = principals(&[("one", Scope::Read, Sees::default())]);
        let (shared, key) = (SharedReads::new(Duration::ZERO), Key::new(&callers[0], "/v1/jobs"));
        for _ in 0..3 {
            reading(&shared, &key).await.keep(answer(b"x"));
        }
        assert_eq!(shared.reads.lock().bytes, 1, "the newest replaces the others");
    }

    #[tokio::test]
    async fn answers_are_bounded_in_number_and_bytes() {
        static LARGE: [u8; SHARED_READ_BYTES_MAX + 1] = [0; SHARED_READ_BYTES_MAX + 1];
        let callers = principals(&[("one", Scope::Read, Sees::default())]);
        let key = |n: usize| Key::new(&callers[0], &format!("/v1/jobs/{n}"));
        let shared = shared();
        reading(&shared, &key(0)).await.keep(answer(&LARGE));
        assert!(shared.reads.lock().by_key.is_empty(), "one answer is too large");
        let most = SHARED_READS_BYTES_MAX / SHARED_READ_BYTES_MAX;
        for n in 0..most + 5 {
            reading(&shared, &key(n)).await.keep(answer(&LARGE[1..]));
        }
        assert_eq!(shared.reads.lock().by_key.len(), most);
        assert_eq!(shared.reads.lock().bytes, SHARED_READS_BYTES_MAX);
        for n in most..SHARED_READS_MAX {
            reading(&shared, &key(n)).await.keep(answer(b""));
        }
        assert!(matches!(shared.turn(key(SHARED_READS_MAX)).await, Turn::Alone), "there are too many");
        assert!(body(&shared, &key(most)).await.is_some(), "those that are there stay");
    }

    #[test]
    fn a_request_that_waits_shares_no_answer_however_its_query_is_written() {
        let callers = principals(&[("one", Scope::Read, Sees::default())]);
        for (query, is_shared) in [
            ("", true),
            ("?kind=wait_ms", true),
            ("?wait_ms=1", false),
            ("?w%61it_ms=1", false),
            ("?%77%61%69%74%5F%6d%73=1", false),
            ("?limit=1&&wait_ms", false),
        ] {
            let request = TestRequest::get().uri(&format!("/v1/jobs/x{query}"));
            let request = request.insert_header((CACHE_CONTROL, "max-age=1")).to_srv_request();
            let key = Key::of(Some(Route::Job), &request, &callers[0]);
            assert_eq!(key.is_some(), is_shared, "{query}");
        }
    }

    #[test]
    fn only_a_caller_who_says_so_accepts_a_shared_answer() {
        for (sent, accepts) in [
            (&[][..], false),
            (&["max-age=1"], true),
            (&["Max-Age=60"], true),
            (&["max-age=0"], false),
            (&["max-age=-1"], false),
            (&["max-age=x"], false),
            (&["no-cache"], false),
            (&["max-age=1, no-cache"], false),
            (&["no-transform , max-age=1"], true),
            (&["max-age=1", "no-store"], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append(CACHE_CONTROL, HeaderValue::from_static(value));
            }
            assert_eq!(accepts_shared(&headers), accepts, "{sent:?}");
        }
    }
}
