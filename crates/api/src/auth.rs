//! Bearer tokens and their scopes.
//!
//! Tokens are kept as SHA-256 digests only. A digest is compared with every entry in constant time, so the time that a
//! refusal takes reveals nothing about any token.

use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use wire::Code;

use crate::refusal::Refusal;

/// A scope of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Use the API.
    Submit,
    /// Connect as a worker node.
    Node,
    /// Decide as an operator. Includes every other scope.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Submit, Self::Node, Self::Admin];

    /// The name in configuration and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
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
}

/// The access that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None: probes.
    Open,
    /// Any known token.
    Known,
    /// A token with this scope.
    Scope(Scope),
}

/// The callers that may use the API.
#[derive(Clone)]
pub struct Auth(Option<Vec<Entry>>);

#[derive(Clone)]
struct Entry {
    name: String,
    digest: [u8; 32],
    scopes: Vec<Scope>,
}

impl Auth {
    /// Every caller may do everything. The daemon then listens on loopback only, and the gate refuses what web pages
    /// send.
    #[must_use]
    pub const fn open() -> Self {
        Self(None)
    }

    /// Whether no tokens are configured.
    pub(crate) const fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// Only callers with one of these tokens: its name (for the log), the token, and its scopes.
    #[must_use]
    pub fn tokens(tokens: Vec<(String, String, Vec<Scope>)>) -> Self {
        let entry = |(name, token, scopes): (String, String, Vec<Scope>)| Entry {
            name,
            digest: digest(token.as_bytes()),
            scopes,
        };
        Self(Some(tokens.into_iter().map(entry).collect()))
    }

    /// Checks a request's token against the access that its route requires.
    ///
    /// # Errors
    /// `unauthorized` without a known token, `forbidden` with one of another scope.
    pub(crate) fn admit(&self, headers: &HeaderMap, access: Access) -> Result<(), Refusal> {
        let (Some(entries), false) = (&self.0, access == Access::Open) else { return Ok(()) };
        let token = bearer(headers).ok_or_else(|| {
            Refusal::new(Code::Unauthorized, "send the header Authorization: Bearer <token>, once")
        })?;
        let Some(entry) = find(entries, token) else {
            return Err(Refusal::new(Code::Unauthorized, "no such token is configured"));
        };
        let Access::Scope(scope) = access else { return Ok(()) };
        if entry.scopes.contains(&scope) || entry.scopes.contains(&Scope::Admin) {
            return Ok(());
        }
        tracing::debug!(token = entry.name, scope = scope.as_str(), "the token lacks the scope");
        Err(Refusal::new(Code::Forbidden, format!("this needs a token with the scope {}", scope.as_str())))
    }

    /// The caller, by the name of its token; empty without tokens. Idempotency keys of different callers never meet.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> &str {
        let entry = self.0.as_ref().zip(bearer(headers)).and_then(|(entries, token)| find(entries, token));
        entry.map_or("", |entry| entry.name.as_str())
    }
}

/// The entry of a token.
fn find<'e>(entries: &'e [Entry], token: &[u8]) -> Option<&'e Entry> {
    let shown = digest(token);
    let mut found = None;
    for entry in entries {
        // Every entry is compared, also after a match.
        if bool::from(entry.digest.ct_eq(&shown)) {
            found = Some(entry);
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

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
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

    #[test]
    fn a_token_opens_what_its_scopes_say_and_admin_opens_all() {
        let token = |name: &str, scope| (name.to_owned(), format!("secret-{name}"), vec![scope]);
        let auth =
            Auth::tokens(vec![token("s", Scope::Submit), token("n", Scope::Node), token("a", Scope::Admin)]);
        let submit = Access::Scope(Scope::Submit);
        let admin = Access::Scope(Scope::Admin);
        for (header, access, expected) in [
            (None, Access::Open, None),
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
}
