//! Bearer tokens: whose they are, what their callers may do, and what they may see.
//!
//! Tokens are kept as SHA-256 digests only. A digest is compared with every entry in constant time, so the time that a
//! refusal takes reveals nothing about any token.

use std::sync::{Arc, LazyLock, OnceLock};

use actix_web::HttpMessage;
use actix_web::HttpRequest;
use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use actors::database_clock::{SharedClock, machine_now};
use actors::jobs::TokenSubmissions;
use arc_swap::ArcSwapOption;
use domain::{Names, Timestamp};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use wire::Code;

use crate::limits::TOKEN_LOOK_EVERY;
use crate::refusal::Refusal;
use crate::shares::Used;

/// A scope of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// See what there is.
    Read,
    /// Make and change jobs, sessions, nonces, ids and plans. Includes [`Scope::Read`].
    Submit,
    /// Connect as a worker node.
    Node,
    /// Decide as an operator. Includes every other scope.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Submit, Self::Node, Self::Admin];

    /// The name in configuration and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Node => "node",
            Self::Admin => "admin",
        }
    }

    /// Reads the name; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }

    /// Whether a token with this scope may do what the other one allows.
    const fn includes(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Admin, _)
                | (Self::Read | Self::Submit, Self::Read)
                | (Self::Submit, Self::Submit)
                | (Self::Node, Self::Node)
        )
    }
}

/// The access that a request requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None: probes, and the files of the dashboard.
    Open,
    /// Any known token.
    Known,
    /// A token with this scope.
    Scope(Scope),
}

impl Access {
    /// Checks that a caller has it.
    ///
    /// # Errors
    /// `forbidden` for a token without the scope.
    pub(crate) fn check(self, principal: &Principal) -> Result<(), Refusal> {
        match self {
            Self::Open | Self::Known => Ok(()),
            Self::Scope(scope) => principal.require(scope),
        }
    }
}

/// What a token sees of each kind of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sees {
    /// Tenants, with their jobs, sessions and plans.
    pub tenants: Names,
    /// Signers, with their nonces.
    pub signers: Names,
    /// Pools, with the jobs and sessions that ask for them.
    pub pools: Names,
    /// Nodes.
    pub nodes: Names,
}

impl Sees {
    /// Whether it is everything.
    #[must_use]
    pub const fn everything(&self) -> bool {
        let Self { tenants, signers, pools, nodes } = self;
        tenants.is_all() && signers.is_all() && pools.is_all() && nodes.is_all()
    }
}

/// A configured token.
#[derive(Clone)]
pub struct Token {
    /// The caller's name, for the log, the history, and what it owns.
    pub name: String,
    /// The SHA-256 digests of its secrets; each of them is good.
    pub digests: Vec<[u8; 32]>,
    /// What its caller may do.
    pub scopes: Vec<Scope>,
    /// What its caller may see.
    pub sees: Sees,
    /// From when on it is good no more, by the database's clock.
    pub expires_at: Option<Timestamp>,
}

/// The digest of a secret, as a token keeps it.
#[must_use]
pub fn digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Who sends a request.
#[derive(Debug)]
pub struct Principal {
    name: Arc<str>,
    scopes: Vec<Scope>,
    sees: Sees,
    /// What it has in use; `None` without tokens, where one caller may use everything.
    used: Option<Arc<Used>>,
    /// The digest of the secret that it showed; `None` without tokens.
    digest: Option<[u8; 32]>,
}

/// The caller of a daemon without tokens.
static ANYBODY: LazyLock<Arc<Principal>> = LazyLock::new(|| {
    Arc::new(Principal {
        name: Arc::from(""),
        scopes: vec![Scope::Admin],
        sees: Sees::default(),
        used: None,
        digest: None,
    })
});

/// The callers of what needs no token, of a daemon with tokens: together they may use what one token may.
static STRANGERS: LazyLock<Arc<Principal>> = LazyLock::new(|| {
    Arc::new(Principal {
        name: Arc::from(""),
        scopes: Vec::new(),
        sees: Sees::default(),
        used: Some(Arc::default()),
        digest: None,
    })
});

impl Principal {
    /// The caller of this request, which the gate has let in.
    pub(crate) fn of(request: &HttpRequest) -> Arc<Self> {
        request.extensions().get::<Arc<Self>>().map_or_else(|| Arc::clone(&ANYBODY), Arc::clone)
    }

    /// The name of its token; empty without tokens. Idempotency keys of different callers never meet.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What it may see.
    pub(crate) const fn sees(&self) -> &Sees {
        &self.sees
    }

    /// What it has in use of what callers share.
    pub(crate) const fn used(&self) -> Option<&Arc<Used>> {
        self.used.as_ref()
    }

    /// What it has in use of the room for submissions.
    pub(crate) fn submissions(&self) -> Option<&TokenSubmissions> {
        self.used.as_ref().map(|used| &used.submissions)
    }

    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|one| one.includes(scope))
    }

    /// Whether it is the same caller with the same secret, and may do and see all that the earlier one could.
    fn covers(&self, earlier: &Self) -> bool {
        let Sees { tenants, signers, pools, nodes } = &self.sees;
        self.name == earlier.name
            && self.digest == earlier.digest
            && earlier.scopes.iter().all(|scope| self.has(*scope))
            && tenants.include(&earlier.sees.tenants)
            && signers.include(&earlier.sees.signers)
            && pools.include(&earlier.sees.pools)
            && nodes.include(&earlier.sees.nodes)
    }

    /// Checks a scope.
    ///
    /// # Errors
    /// `forbidden`.
    pub(crate) fn require(&self, scope: Scope) -> Result<(), Refusal> {
        if self.has(scope) {
            return Ok(());
        }
        Err(Refusal::new(Code::Forbidden, format!("this needs a token with the scope {}", scope.as_str())))
    }
}

/// The callers that may use the API. Clones share what [`Auth::replace`] changes.
#[derive(Clone)]
pub struct Auth {
    entries: Arc<ArcSwapOption<Vec<Entry>>>,
    /// The database's clock, by which tokens expire once it is set.
    clock: Arc<OnceLock<SharedClock>>,
}

struct Entry {
    expires_at: Option<Timestamp>,
    /// For each secret, the principal of who shows it.
    secrets: Vec<([u8; 32], Arc<Principal>)>,
}

impl Auth {
    /// Every caller may do everything. The daemon then listens on loopback only, and the gate refuses what web pages
    /// send.
    #[must_use]
    pub fn open() -> Self {
        Self { entries: Arc::new(ArcSwapOption::empty()), clock: Arc::default() }
    }

    /// Whether no tokens are configured.
    pub(crate) fn is_open(&self) -> bool {
        self.entries.load().is_none()
    }

    /// Only callers with one of these tokens.
    #[must_use]
    pub fn tokens(tokens: Vec<Token>) -> Self {
        let entries = Arc::new(ArcSwapOption::from_pointee(entries(tokens, &[])));
        Self { entries, clock: Arc::default() }
    }

    /// From now on tokens expire by the database's clock, so on all instances at once. Until then, and while this process has
    /// not seen that clock, they expire by this machine's. Call it once.
    pub(crate) fn goes_by(&self, clock: SharedClock) {
        if self.clock.set(clock).is_err() {
            tracing::error!("the clock by which tokens expire is already set");
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.get().and_then(SharedClock::shows).unwrap_or_else(machine_now)
    }

    /// From now on only callers with one of these tokens. Sockets that are open ask by [`Self::knows`].
    pub fn replace(&self, tokens: Vec<Token>) {
        let before = self.entries.load();
        let before = before.as_ref().map_or(&[][..], |before| before.as_slice());
        self.entries.store(Some(Arc::new(entries(tokens, before))));
    }

    /// Finds out who sends a request. [`Access::check`] says what that caller may do.
    ///
    /// # Errors
    /// `unauthorized` without a known token.
    pub(crate) fn identify(&self, headers: &HeaderMap, access: Access) -> Result<Arc<Principal>, Refusal> {
        let entries = self.entries.load();
        let Some(entries) = &*entries else { return Ok(Arc::clone(&ANYBODY)) };
        if access == Access::Open {
            return Ok(Arc::clone(&STRANGERS));
        }
        let token = bearer(headers).ok_or_else(|| {
            Refusal::new(Code::Unauthorized, "send the header Authorization: Bearer <token>, once")
        })?;
        let Some((entry, principal)) = find(entries, token) else {
            return Err(Refusal::new(Code::Unauthorized, "no such token is configured"));
        };
        entry.check_good(|| self.now())?;
        Ok(Arc::clone(principal))
    }

    /// The caller whose token another instance has checked: the name must be that of a token here too.
    ///
    /// # Errors
    /// `unauthorized` for a name that no good token has.
    pub(crate) fn named(&self, name: &str) -> Result<Arc<Principal>, Refusal> {
        let entries = self.entries.load();
        let Some(entries) = &*entries else {
            return match name {
                "" => Ok(Arc::clone(&ANYBODY)),
                name => Err(unknown_here(name)),
            };
        };
        let named = |entry: &&Entry| entry.secrets.first().is_some_and(|(_, it)| &*it.name == name);
        let entry = entries.iter().find(named).ok_or_else(|| unknown_here(name))?;
        entry.check_good(|| self.now())?;
        // Which of its secrets the caller showed the other instance does not say; what they allow is the same.
        Ok(Arc::clone(&entry.secrets[0].1))
    }

    /// Whether a caller that was let in would be let in again, to as much: its secret is configured and has not expired,
    /// and its token has all the scopes and patterns that it had.
    pub(crate) fn knows(&self, principal: &Principal) -> bool {
        let entries = self.entries.load();
        let has_it = |entry: &Entry| entry.secrets.iter().any(|(_, now)| now.covers(principal));
        let is_good = |entry: &Entry| entry.is_good(|| self.now());
        entries.as_ref().is_none_or(|entries| entries.iter().any(|entry| is_good(entry) && has_it(entry)))
    }

    /// Resolves when a caller's token was taken away, has expired, or may do or see less: within [`TOKEN_LOOK_EVERY`].
    pub(crate) async fn until_less(&self, principal: &Principal) {
        while self.knows(principal) {
            tokio::time::sleep(TOKEN_LOOK_EVERY).await;
        }
    }

    /// A caller that was let in, as its secret would let it in again.
    ///
    /// # Errors
    /// `unauthorized` if its secret is not configured, or has expired.
    pub(crate) fn again(&self, earlier: &Arc<Principal>) -> Result<Arc<Principal>, Refusal> {
        let entries = self.entries.load();
        let Some(entries) = &*entries else { return Ok(Arc::clone(earlier)) };
        for entry in entries.iter() {
            let mut principals = entry.secrets.iter().map(|(_, principal)| principal);
            let same = principals.find(|now| now.name == earlier.name && now.digest == earlier.digest);
            if let Some(same) = same {
                entry.check_good(|| self.now())?;
                return Ok(Arc::clone(same));
            }
        }
        Err(Refusal::new(Code::Unauthorized, "the request's token is not configured any more"))
    }
}

fn unknown_here(name: &str) -> Refusal {
    let detail = format!(
        "another instance forwarded this request for the token {name:?}, which is not configured here"
    );
    Refusal::new(Code::Unauthorized, detail)
}

impl Entry {
    fn check_good(&self, now: impl FnOnce() -> Timestamp) -> Result<(), Refusal> {
        if self.is_good(now) {
            return Ok(());
        }
        Err(Refusal::new(Code::Unauthorized, "the token has expired"))
    }

    fn is_good(&self, now: impl FnOnce() -> Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now() < end)
    }
}

/// What a token of the same name had in use before stays in use.
fn entries(tokens: Vec<Token>, before: &[Entry]) -> Vec<Entry> {
    let entry = |Token { name, digests, scopes, sees, expires_at }: Token| {
        let name: Arc<str> = Arc::from(name);
        let known = before.iter().flat_map(|entry| entry.secrets.first());
        let known = known.map(|(_, principal)| principal).find(|principal| principal.name == name);
        let used = known.and_then(|known| known.used.clone()).unwrap_or_default();
        let principal = |digest| Principal {
            name: Arc::clone(&name),
            scopes: scopes.clone(),
            sees: sees.clone(),
            used: Some(Arc::clone(&used)),
            digest: Some(digest),
        };
        let secrets = digests.into_iter().map(|digest| (digest, Arc::new(principal(digest)))).collect();
        Entry { expires_at, secrets }
    };
    tokens.into_iter().map(entry).collect()
}

/// The entry of a token, and who shows it.
fn find<'e>(entries: &'e [Entry], token: &[u8]) -> Option<(&'e Entry, &'e Arc<Principal>)> {
    let shown = digest(token);
    let mut found = None;
    for entry in entries {
        // Every digest is compared, also after a match.
        for (known, principal) in &entry.secrets {
            if bool::from(known.ct_eq(&shown)) {
                found = Some((entry, principal));
            }
        }
    }
    found
}

/// The one bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION);
    let value = all.next()?.as_bytes();
    if all.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn code(auth: &Auth, header: Option<&str>, access: Access) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(text) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(text).unwrap());
        }
        let admitted = auth.identify(&headers, access).and_then(|principal| access.check(&principal));
        admitted.err().map(|refusal| refusal.code().to_string())
    }

    fn token(name: &str, scope: Scope) -> Token {
        Token {
            name: name.to_owned(),
            digests: vec![digest(format!("secret-{name}").as_bytes())],
            scopes: vec![scope],
            sees: Sees::default(),
            expires_at: None,
        }
    }

    #[test]
    fn callers_of_what_needs_no_token_share_what_one_token_may_use() {
        let used =
            |auth: &Auth| auth.identify(&HeaderMap::new(), Access::Open).unwrap().used().map(Arc::as_ptr);
        let guarded = Auth::tokens(vec![token("a", Scope::Admin)]);
        assert!(used(&guarded).is_some_and(|one| used(&guarded) == Some(one)));
        assert!(used(&Auth::open()).is_none(), "one caller may use everything");
    }

    #[test]
    fn a_token_opens_what_its_scopes_say_and_admin_opens_all() {
        let auth = Auth::tokens(vec![
            token("r", Scope::Read),
            token("s", Scope::Submit),
            token("n", Scope::Node),
            token("a", Scope::Admin),
        ]);
        let read = Access::Scope(Scope::Read);
        let submit = Access::Scope(Scope::Submit);
        let admin = Access::Scope(Scope::Admin);
        for (header, access, expected) in [
            (None, Access::Open, None),
            (Some("Bearer secret-r"), read, None),
            (Some("Bearer secret-s"), read, None),
            (Some("Bearer secret-n"), read, Some("forbidden")),
            (Some("Bearer secret-a"), read, None),
            (Some("Bearer secret-r"), submit, Some("forbidden")),
            (None, Access::Known, Some("unauthorized")),
            (None, submit, Some("unauthorized")),
            (Some("Bearer secret-s"), submit, None),
            (Some("bearer secret-s"), submit, None),
            (Some("Bearer secret-s"), admin, Some("forbidden")),
            (Some("Bearer secret-n"), submit, Some("forbidden")),
            (Some("Bearer secret-n"), Access::Known, None),
            (Some("Bearer secret-a"), submit, None),
            (Some("Bearer secret-a"), admin, None),
            (Some("Bearer secret-"), submit, Some("unauthorized")),
            (Some("Bearer "), submit, Some("unauthorized")),
            (Some("Bearer"), submit, Some("unauthorized")),
            (Some("Basic secret-s"), submit, Some("unauthorized")),
            (Some("secret-s"), submit, Some("unauthorized")),
        ] {
            assert_eq!(code(&auth, header, access).as_deref(), expected, "{header:?} {access:?}");
        }
        assert_eq!(code(&Auth::open(), None, admin), None);
    }

    #[test]
    fn tokens_change_while_the_daemon_runs() {
        let auth = Auth::tokens(vec![token("a", Scope::Read)]);
        let shared = auth.clone();
        let asks = |secret: &str| code(&shared, Some(&format!("Bearer {secret}")), Access::Known);
        let admitted = |secret: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {secret}")).unwrap());
            shared.identify(&headers, Access::Known).unwrap()
        };
        let before = admitted("secret-a");
        // A new secret beside the old one, then alone.
        let both = Token { digests: vec![digest(b"new"), digest(b"secret-a")], ..token("a", Scope::Read) };
        auth.replace(vec![both]);
        assert_eq!((asks("secret-a"), asks("new")), (None, None));
        assert!(shared.knows(&before), "its secret is configured");
        let after = admitted("new");
        auth.replace(vec![Token { digests: vec![digest(b"new")], ..token("a", Scope::Read) }]);
        assert_eq!((asks("secret-a").as_deref(), asks("new")), (Some("unauthorized"), None));
        assert!(!shared.knows(&before), "its secret was taken away");
        assert!(shared.knows(&after), "its secret is still there");
        auth.replace(vec![token("b", Scope::Read)]);
        assert!(!shared.knows(&after), "its token was taken away");
    }

    #[test]
    fn a_caller_is_known_as_long_as_its_token_allows_no_less() {
        let sees = |patterns: &[&str]| {
            let patterns = patterns.iter().map(|text| domain::Pattern::parse(text).unwrap());
            Sees { nodes: Names::Some(patterns.collect()), ..Sees::default() }
        };
        let with = |scopes: &[Scope], sees: &Sees| {
            vec![Token { scopes: scopes.to_vec(), sees: sees.clone(), ..token("a", Scope::Read) }]
        };
        let (a, both) = (sees(&["a"]), sees(&["a", "b-*"]));
        let auth = Auth::tokens(with(&[Scope::Submit, Scope::Node], &both));
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer secret-a"));
        let caller = auth.identify(&headers, Access::Known).unwrap();
        for (scopes, sees, expected) in [
            (&[Scope::Submit, Scope::Node][..], &both, true),
            (&[Scope::Node, Scope::Submit, Scope::Read], &both, true),
            (&[Scope::Admin], &both, true),
            (&[Scope::Submit, Scope::Node], &Sees::default(), true),
            (&[Scope::Submit], &both, false),
            (&[Scope::Read, Scope::Node], &both, false),
            (&[Scope::Submit, Scope::Node], &a, false),
        ] {
            auth.replace(with(scopes, sees));
            assert_eq!(auth.knows(&caller), expected, "{scopes:?} {sees:?}");
        }
    }

    #[test]
    fn a_name_that_another_instance_vouches_for_has_its_own_token_here() {
        let ended = Token { expires_at: Some(Timestamp::from_micros(0)), ..token("ended", Scope::Admin) };
        let auth = Auth::tokens(vec![token("r", Scope::Read), token("a", Scope::Admin), ended]);
        let named = |auth: &Auth, name: &str, access: Access| {
            let found = auth.named(name).and_then(|it| access.check(&it).map(|()| it.name().to_owned()));
            found.map_err(|refusal| refusal.code())
        };
        let (read, submit) = (Access::Scope(Scope::Read), Access::Scope(Scope::Submit));
        for (name, access, expected) in [
            ("r", read, Ok("r".to_owned())),
            ("r", submit, Err(Code::Forbidden)),
            ("a", submit, Ok("a".to_owned())),
            ("ended", read, Err(Code::Unauthorized)),
            ("x", read, Err(Code::Unauthorized)),
            ("", read, Err(Code::Unauthorized)),
        ] {
            assert_eq!(named(&auth, name, access), expected, "{name:?} {access:?}");
        }
        assert_eq!(named(&Auth::open(), "", submit), Ok(String::new()));
        assert_eq!(named(&Auth::open(), "a", submit), Err(Code::Unauthorized), "the instances differ");
    }

    #[test]
    fn a_token_is_good_until_it_expires() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
        for (ends_in, expected) in [(3_600_000_000, None), (-1, Some("unauthorized"))] {
            let expires_at = Some(Timestamp::from_micros(now + ends_in));
            let auth = Auth::tokens(vec![Token { expires_at, ..token("a", Scope::Admin) }]);
            assert_eq!(code(&auth, Some("Bearer secret-a"), Access::Known).as_deref(), expected);
        }
    }
}
