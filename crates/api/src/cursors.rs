//! Cursors of lists that leave something out for some callers. The key in a cursor may be that of a record that the caller
//! does not see: a page that took too long ends between two records that are seen. So a caller with patterns gets the key
//! sealed, and no other form is taken from it: it neither reads a name in a cursor, nor asks what lies behind a name of its
//! choice.
//!
//! A sealed key is `~`, and then in base64 a nonce, the key encrypted by AES-256-GCM, and the tag, which covers the list and the
//! name of the caller's token too. The nonce is an HMAC-SHA256 of key, list and name, cut to 96 bits: a synthetic IV, as in RFC
//! 5297. So a page that has not changed has the same cursor each time, and no two keys have one nonce. The keys of the cipher and
//! of the HMAC are derived from the cluster's secret: any instance answers the next page.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::ClusterSecret;
use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use sha2::Sha256;

use crate::auth::Principal;
use crate::extract::{self, Page, Query};
use crate::limits::CURSOR_CHARS_MAX;
use crate::refusal::Refusal;

/// What the cipher's key is for. Another form of sealed keys has another one.
const CIPHER_PURPOSE: &[u8] = b"fencepost list cursor v1";
/// What the key of the nonces' HMAC is for.
const NONCE_PURPOSE: &[u8] = b"fencepost list cursor nonce v1";
/// Stands before a sealed key. No key has it.
const MARK: char = '~';
/// By how much a sealed key is longer than the key, in bytes before base64.
const SEAL_BYTES: usize = NONCE_LEN + MAX_TAG_LEN;

const _: () = assert!(
    // A kind of resources stands before the longest key, and the list, a dot and the mark before the sealed one.
    (wire::limits::SIGNER_ID_CHARS_MAX + 16 + SEAL_BYTES).div_ceil(3) * 4 + 8 <= CURSOR_CHARS_MAX,
    "a cursor holds a resource's name, sealed"
);

/// Seals the keys in cursors, and opens them.
pub struct CursorSeal {
    cipher: LessSafeKey,
    /// Makes the nonces.
    nonces: Hmac<Sha256>,
}

impl CursorSeal {
    /// That of all instances that share this secret.
    pub fn new(secret: &ClusterSecret) -> Self {
        let derived = |purpose: &[u8]| {
            let mut derive = keyed(secret.expose().as_bytes());
            derive.update(purpose);
            derive.finalize().into_bytes()
        };
        let cipher = UnboundKey::new(&AES_256_GCM, &derived(CIPHER_PURPOSE));
        let cipher = LessSafeKey::new(cipher.expect("the key has 256 bits"));
        Self { cipher, nonces: keyed(&derived(NONCE_PURPOSE)) }
    }

    fn seal(&self, list: &str, caller: &str, key: &str) -> String {
        let covered = covered(list, caller);
        let nonce = self.nonce(&covered, key);
        let mut sealed = [&nonce[..], key.as_bytes()].concat();
        let (nonce, covered) = (Nonce::assume_unique_for_key(nonce), Aad::from(covered));
        let tag = self.cipher.seal_in_place_separate_tag(nonce, covered, &mut sealed[NONCE_LEN..]);
        sealed.extend_from_slice(tag.expect("a key is shorter than what the cipher takes").as_ref());
        format!("{MARK}{}", URL_SAFE_NO_PAD.encode(sealed))
    }

    /// The nonce of this key: it is no other key's, and none of this key under another cover.
    fn nonce(&self, covered: &str, key: &str) -> [u8; NONCE_LEN] {
        let mut mac = self.nonces.clone();
        mac.update(&(covered.len() as u64).to_be_bytes());
        mac.update(covered.as_bytes());
        mac.update(key.as_bytes());
        let tag = mac.finalize().into_bytes();
        *tag.first_chunk().expect("a tag of SHA-256 is longer than a nonce")
    }

    /// The key; `None` for what was not sealed for this caller and this list.
    fn open(&self, list: &str, caller: &str, sealed: &str) -> Option<String> {
        let mut sealed = URL_SAFE_NO_PAD.decode(sealed.strip_prefix(MARK)?).ok()?;
        let (nonce, sealed) = sealed.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let key = self.cipher.open_in_place(nonce, Aad::from(covered(list, caller)), sealed).ok()?;
        std::str::from_utf8(key).ok().map(str::to_owned)
    }
}

/// What the tag covers beside the key. No list has a dot in its name.
fn covered(list: &str, caller: &str) -> String {
    format!("{list}.{caller}")
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// The cursors of a list, as one caller gets and sends them.
pub struct Cursors<'s> {
    list: &'static str,
    /// What seals them, and the name of the caller's token; `None` for a caller that sees everything.
    sealed: Option<(&'s CursorSeal, &'s str)>,
}

impl<'s> Cursors<'s> {
    /// Those of this list for this caller.
    pub fn of(list: &'static str, seal: &'s CursorSeal, principal: &'s Principal) -> Self {
        let is_sealed = !principal.sees().everything();
        Self { list, sealed: is_sealed.then(|| (seal, principal.name())) }
    }

    /// Those of a list that leaves nothing out: no caller gets them sealed.
    pub const fn in_clear(list: &'static str) -> Self {
        Self { list, sealed: None }
    }

    /// The key behind which the page begins, where the request has a cursor.
    ///
    /// # Errors
    /// `invalid` for a cursor of another list, or of another caller.
    pub fn read<T>(&self, query: &Query, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Refusal> {
        match self.sealed {
            None => query.cursor(self.list, read),
            Some((seal, caller)) => {
                query.cursor(self.list, |sealed| read(&seal.open(self.list, caller, sealed)?))
            }
        }
    }

    /// A page as it is answered.
    pub fn page<R, K, T>(
        &self,
        page: Page<R, K>,
        key: impl FnOnce(&K) -> String,
        show: impl FnMut(&R) -> T,
    ) -> wire::List<T> {
        extract::seen_page(self.list, page, |next| self.key(key(next)), show)
    }

    /// The cursor of the page behind this key.
    pub fn cursor(&self, key: String) -> String {
        format!("{}.{}", self.list, self.key(key))
    }

    /// The key as this caller gets it.
    fn key(&self, key: String) -> String {
        match self.sealed {
            None => key,
            Some((seal, caller)) => seal.seal(self.list, caller, &key),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use regex_lite::Regex;
    use serde_json::Value;

    use super::*;

    fn seal(secret: char) -> CursorSeal {
        CursorSeal::new(&ClusterSecret::parse(&secret.to_string().repeat(32)).unwrap())
    }

    #[test]
    fn a_sealed_key_is_opened_for_its_own_list_and_caller_on_every_instance() {
        for key in ["", "a", "signer:eip155:1:0xab", &"ä".repeat(100)] {
            let sealed = seal('s').seal("l", "acme", key);
            assert_eq!(seal('s').open("l", "acme", &sealed).as_deref(), Some(key));
            for (secret, list, caller) in [
                ('t', "l", "acme"),
                ('s', "s", "acme"),
                ('s', "l", "evil"),
                ('s', "l", ""),
                ('s', "l.acme", ""),
            ] {
                assert_eq!(seal(secret).open(list, caller, &sealed), None, "{secret} {list} {caller}");
            }
            assert_eq!(seal('s').seal("l", "acme", key), sealed, "the same page has the same cursor");
        }
    }

    #[test]
    fn a_nonce_is_used_for_one_text_alone() {
        let of = |secret, list, caller, key| seal(secret).nonce(&covered(list, caller), key);
        let nonces: HashSet<_> = [
            of('s', "l", "acme", "a"),
            of('t', "l", "acme", "a"),
            of('s', "s", "acme", "a"),
            of('s', "l", "evil", "a"),
            of('s', "l", "acme", "b"),
            of('s', "l", "acme", ""),
            of('s', "l", "acmea", ""),
            of('s', "l", "", "acmea"),
        ]
        .into();
        assert_eq!(nonces.len(), 8);
    }

    #[test]
    fn every_change_of_a_sealed_key_is_refused() {
        let seal = seal('s');
        let sealed = seal.seal("n", "acme", "acme-1");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'Q' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(seal.open("n", "acme", &changed), None, "{changed}");
            assert_eq!(seal.open("n", "acme", &sealed[..at]), None, "{at}");
        }
        for other in ["", "~", "~~", "acme-1", &sealed[1..], &format!("{sealed}A")] {
            assert_eq!(seal.open("n", "acme", other), None, "{other}");
        }
    }

    #[test]
    fn the_document_has_the_form_of_sealed_cursors() {
        let document: Value = serde_json::from_str(&crate::openapi::document()).unwrap();
        for (path, list, chars) in [
            ("/v1/jobs", "j", 36),
            ("/v1/leases", "l", "instance:".len() + domain::limits::INSTANCE_ID_CHARS_MAX),
            ("/v1/nodes", "n", 1),
            ("/v1/plans", "p", 36),
            ("/v1/sessions", "ses", domain::limits::SESSION_ID_CHARS_MAX),
            ("/v1/signers", "s", 1),
            ("/v1/tenants/{tenant}/tasks", "h", 36),
        ] {
            let parameters = document["paths"][path]["get"]["parameters"].as_array().unwrap();
            let cursor = parameters.iter().find(|parameter| parameter["name"] == "cursor").unwrap();
            let schema = &cursor["schema"];
            let text = format!("{list}.{}", seal('s').seal(list, "acme", &"x".repeat(chars)));
            assert!(
                Regex::new(schema["pattern"].as_str().unwrap()).unwrap().is_match(&text),
                "{path}: {text}"
            );
            assert!(text.len() as u64 <= schema["maxLength"].as_u64().unwrap(), "{path}: {text}");
        }
    }
}
