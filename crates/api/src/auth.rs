//! Bearer tokens: whose they are, what their callers may do, and what they may see.
//!
//! Tokens are kept as SHA-256 digests only. A digest is compared with every entry in constant time, so the time that a
//! refusal takes reveals nothing about any token.

use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use actix_web::HttpMessage;
use actix_web::HttpRequest;
use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use arc_swap::ArcSwapOption;
use domain::{Names, Timestamp};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use wire::Code;

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
    /// None: probes.
    Open,
    /// Any known token.
    Known,
    /// A token with this scope.
    Scope(Scope),
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
    /// From when on it is good no more.
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
}

/// The caller of a daemon without tokens.
static ANYBODY: LazyLock<Arc<Principal>> = LazyLock::new(|| {
    Arc::new(Principal { name: Arc::from(""), scopes: vec![Scope::Admin], sees: Sees::default(), used: None })
});

impl Principal {
    /// The caller of this request, whom the gate has let in.
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

    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|one| one.includes(scope))
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
pub struct Auth(Arc<ArcSwapOption<Vec<Entry>>>);

struct Entry {
    digests: Vec<[u8; 32]>,
    expires_at: Option<Timestamp>,
    principal: Arc<Principal>,
}

impl Auth {
    /// Every caller may do everything. The daemon then listens on loopback only, and the gate refuses what web pages
    /// send.
    #[must_use]
    pub fn open() -> Self {
        Self(Arc::new(ArcSwapOption::empty()))
    }

    /// Whether no tokens are configured.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load().is_none()
    }

    /// Only callers with one of these tokens.
    #[must_use]
    pub fn tokens(tokens: Vec<Token>) -> Self {
        Self(Arc::new(ArcSwapOption::from_pointee(entries(tokens, &[]))))
    }

    /// From now on only callers with one of these tokens. Sockets that are open ask by [`Self::knows`].
    pub fn replace(&self, tokens: Vec<Token>) {
        let before = self.0.load();
        let before = before.as_ref().map_or(&[][..], |before| before.as_slice());
        self.0.store(Some(Arc::new(entries(tokens, before))));
    }

    /// Checks a request's token against the access that its route requires.
    ///
    /// # Errors
    /// `unauthorized` without a known token, `forbidden` with one of another scope.
    pub(crate) fn admit(&self, headers: &HeaderMap, access: Access) -> Result<Arc<Principal>, Refusal> {
        let entries = self.0.load();
        let (Some(entries), false) = (&*entries, access == Access::Open) else {
            return Ok(Arc::clone(&ANYBODY));
        };
        let token = bearer(headers).ok_or_else(|| {
            Refusal::new(Code::Unauthorized, "send the header Authorization: Bearer <token>, once")
        })?;
        let Some(entry) = find(entries, token) else {
            return Err(Refusal::new(Code::Unauthorized, "no such token is configured"));
        };
        entry.admit(access)
    }

    /// Checks the access of a caller whose token another instance has checked: the name must be that of a token here too.
    ///
    /// # Errors
    /// `unauthorized` for a name that no good token has, `forbidden` for one of another scope.
    pub(crate) fn admit_named(&self, name: &str, access: Access) -> Result<Arc<Principal>, Refusal> {
        let entries = self.0.load();
        let Some(entries) = &*entries else {
            return match name {
                "" => Ok(Arc::clone(&ANYBODY)),
                name => Err(unknown_here(name)),
            };
        };
        let entry = entries.iter().find(|entry| &*entry.principal.name == name);
        entry.ok_or_else(|| unknown_here(name))?.admit(access)
    }

    /// Whether a caller that was let in would be let in again: its token is configured and has not expired.
    pub(crate) fn knows(&self, principal: &Principal) -> bool {
        let entries = self.0.load();
        let is_its = |entry: &Entry| entry.principal.name == principal.name && entry.is_good();
        entries.as_ref().is_none_or(|entries| entries.iter().any(is_its))
    }
}

fn unknown_here(name: &str) -> Refusal {
    let detail = format!(
        "another instance forwarded this request for the token {name:?}, which is not configured here"
    );
    Refusal::new(Code::Unauthorized, detail)
}

impl Entry {
    fn admit(&self, access: Access) -> Result<Arc<Principal>, Refusal> {
        if !self.is_good() {
            return Err(Refusal::new(Code::Unauthorized, "the token has expired"));
        }
        if let Access::Scope(scope) = access {
            self.principal.require(scope)?;
        }
        Ok(Arc::clone(&self.principal))
    }

    fn is_good(&self) -> bool {
        self.expires_at.is_none_or(|end| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(end.as_micros()).is_ok_and(|end| now.as_micros() < u128::from(end))
        })
    }
}

/// What a token of the same name had in use before stays in use.
fn entries(tokens: Vec<Token>, before: &[Entry]) -> Vec<Entry> {
    let entry = |Token { name, digests, scopes, sees, expires_at }: Token| {
        let known = before.iter().find(|known| *known.principal.name == *name);
        let used = known.and_then(|known| known.principal.used.clone()).unwrap_or_default();
        let principal = Principal { name: Arc::from(name), scopes, sees, used: Some(used) };
        Entry { digests, expires_at, principal: Arc::new(principal) }
    };
    tokens.into_iter().map(entry).collect()
}

/// The entry of a token.
fn find<'e>(entries: &'e [Entry], token: &[u8]) -> Option<&'e Entry> {
    let shown = digest(token);
    let mut found = None;
    for entry in entries {
        // Every digest is compared, also after a match.
        for known in &entry.digests {
            if bool::from(known.ct_eq(&shown)) {
                found = Some(entry);
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

    use super::*;

    fn code(auth: &Auth, header: Option<&str>, access: Access) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(text) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(text).unwrap());
        }
        auth.admit(&headers, access).err().map(|refusal| refusal.code().to_string())
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
            shared.admit(&headers, Access::Known).unwrap()
        };
        let before = admitted("secret-a");
        // A new secret beside the old one, then alone.
        let both = Token { digests: vec![digest(b"new"), digest(b"secret-a")], ..token("a", Scope::Read) };
        auth.replace(vec![both]);
        assert_eq!((asks("secret-a"), asks("new")), (None, None));
        assert!(shared.knows(&before), "its name is configured");
        auth.replace(vec![Token { digests: vec![digest(b"new")], ..token("a", Scope::Read) }]);
        assert_eq!((asks("secret-a").as_deref(), asks("new")), (Some("unauthorized"), None));
        auth.replace(vec![token("b", Scope::Read)]);
        assert!(!shared.knows(&before), "its token was taken away");
    }

    #[test]
    fn a_name_that_another_instance_vouches_for_has_its_own_token_here() {
        let ended = Token { expires_at: Some(Timestamp::from_micros(0)), ..token("ended", Scope::Admin) };
        let auth = Auth::tokens(vec![token("r", Scope::Read), token("a", Scope::Admin), ended]);
        let named = |auth: &Auth, name: &str, access| {
            auth.admit_named(name, access).map(|it| it.name().to_owned()).map_err(|refusal| refusal.code())
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
