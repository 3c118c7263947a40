//! `fencepost token new`: a secret for a caller, and its entry for the daemon, which never sees the secret itself.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::Timestamp;
use rand::RngExt as _;
use serde::Serialize;

use super::shown;
use crate::cli::Token;
use crate::config::AuthToken;
use crate::exit::{Exit, Failure};

/// How many random bytes a secret has.
const SECRET_BYTES: usize = 32;

#[derive(Serialize)]
struct NewToken {
    /// For the caller; it is kept nowhere else.
    token: String,
    /// For `auth.tokens`.
    entry: AuthToken,
}

/// Runs the command.
///
/// # Errors
/// Wrong usage: a time that cannot be read, or that is past.
pub fn run(command: Token) -> Result<(), Failure> {
    let Token::New { name, scopes, tenants, signers, pools, nodes, expires_at, json } = command;
    let secret: [u8; SECRET_BYTES] = rand::rng().random();
    let token = format!("fp_{}", URL_SAFE_NO_PAD.encode(secret));
    let digest = api::digest(token.as_bytes());
    let never_expires = expires_at.is_none();
    let some = |patterns: Vec<String>| (!patterns.is_empty()).then_some(patterns);
    let entry = AuthToken {
        name,
        token: String::new(),
        sha256: vec![digest.iter().map(|byte| format!("{byte:02x}")).collect()],
        scopes: if scopes.is_empty() { vec!["submit".to_owned()] } else { scopes },
        tenants: some(tenants),
        signers: some(signers),
        pools: some(pools),
        nodes: some(nodes),
        expires_at: expires_at.unwrap_or_default(),
    };
    // In an entry an empty time is none; one that was given is to be a time.
    let Some(expiry) = entry.expiry().ok().filter(|expiry| expiry.is_none() == never_expires) else {
        let message = format!("--expires-at {:?} is no time such as 2027-01-31T00:00:00Z", entry.expires_at);
        return Err(Failure::new(Exit::Usage, message));
    };
    if expiry.is_some_and(|expiry| expiry <= Timestamp::from_micros(now_micros())) {
        let message = format!("--expires-at {} is past: the token would never be good", entry.expires_at);
        return Err(Failure::new(Exit::Usage, message));
    }
    shown::answer(json, &NewToken { token, entry }, |new| {
        format!(
            "The secret, for the caller ({}); it is shown once:\n  {}\n\nThe entry, for the daemon's configuration file \
             (delete the line `tokens = []` there, if it has one):\n{}{}",
            new.entry.name,
            new.token,
            toml(&new.entry),
            unlimited(&new.entry)
        )
    });
    Ok(())
}

fn now_micros() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

/// The entry as a table of a TOML file. What JSON escapes in a text TOML escapes alike.
fn toml(entry: &AuthToken) -> String {
    let fields = serde_json::to_value(entry).expect("an entry is plain data");
    let mut text = "  [[auth.tokens]]\n".to_owned();
    for (key, value) in fields.as_object().into_iter().flatten() {
        let _ = writeln!(text, "  {key} = {value}");
    }
    text
}

/// What the caller sees all of although its entry limits something else, in words; empty where it limits nothing, or everything.
fn unlimited(entry: &AuthToken) -> String {
    let kinds = entry.patterns();
    let all: Vec<_> =
        kinds.iter().filter(|(_, patterns)| patterns.is_none()).map(|(kind, _)| *kind).collect();
    if all.is_empty() || all.len() == kinds.len() {
        return String::new();
    }
    format!("\nWithout patterns for them, the caller sees all {}.\n", all.join(", all "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_limits_something_says_what_it_does_not_limit() {
        let some = || Some(vec!["acme".to_owned()]);
        let of_tenant = AuthToken { tenants: some(), ..AuthToken::default() };
        let says = "\nWithout patterns for them, the caller sees all signers, all pools, all nodes.\n";
        assert_eq!(unlimited(&of_tenant), says);
        let limited = AuthToken { signers: some(), pools: some(), nodes: some(), ..of_tenant };
        assert_eq!((unlimited(&limited).as_str(), unlimited(&AuthToken::default()).as_str()), ("", ""));
    }

    #[test]
    fn a_token_that_would_never_be_good_is_refused() {
        let new = |expires_at: &str| {
            run(Token::New {
                name: "caller".to_owned(),
                scopes: Vec::new(),
                tenants: Vec::new(),
                signers: Vec::new(),
                pools: Vec::new(),
                nodes: Vec::new(),
                expires_at: Some(expires_at.to_owned()),
                json: true,
            })
        };
        for (expires_at, says) in [
            ("", "--expires-at \"\" is no time such as 2027-01-31T00:00:00Z"),
            ("soon", "--expires-at \"soon\" is no time such as 2027-01-31T00:00:00Z"),
            (
                "2020-01-31T00:00:00Z",
                "--expires-at 2020-01-31T00:00:00Z is past: the token would never be good",
            ),
        ] {
            let failure = new(expires_at).unwrap_err();
            assert_eq!((failure.exit, failure.message.as_str()), (Exit::Usage, says));
        }
        assert!(new("9999-12-31T23:59:59Z").is_ok());
    }
}
