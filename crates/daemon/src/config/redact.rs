//! What may be shown of values that hold secrets.
//!
//! Every configured value that reaches a log, a message or `check-config` passes through here.

use std::ops::Range;

use serde_json::Value;
use url::{Position, Url};

use super::Config;

/// Stands where a secret was.
pub const HIDDEN: &str = "***";

/// A URL without its password. A text that is no URL, or has a password that is not escaped, shows its scheme at most: nobody
/// knows where in it a secret begins.
pub fn url(text: &str) -> String {
    // A file has no password, and `Url` would normalise its path beyond recognition. Without an @, a colon and an equals sign
    // there is no room for one either.
    if text.starts_with("sqlite:") || !text.contains(['@', ':', '=']) {
        return text.to_owned();
    }
    // Without the slashes `user:password@host` would read as a URL of the scheme `user`.
    let Some((scheme, _)) = text.split_once("://") else { return HIDDEN.to_owned() };
    if !scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+') {
        return HIDDEN.to_owned();
    }
    without_secrets(text).unwrap_or_else(|| format!("{scheme}://{HIDDEN}"))
}

/// Whether this, which may be quoted, shows nothing of a URL but its scheme.
pub fn is_hidden(shown: &str) -> bool {
    shown.trim_matches('"').ends_with(&format!("://{HIDDEN}"))
}

/// The URL without its secrets; `None` where nobody knows where they begin and end.
fn without_secrets(text: &str) -> Option<String> {
    let hosts = hosts(text);
    let mut parsed = match &hosts {
        Some(at) => Url::parse(&format!("{}hosts{}", &text[..at.start], &text[at.end..])).ok()?,
        None => Url::parse(text).ok()?,
    };
    // A /, ? or # in a password that is not escaped ends the host for the parser: the rest, and the @, are then behind it.
    let is_torn = parsed.path().contains('@') || parsed.query().is_some_and(|query| query.contains('@'));
    // The same of a # or & in a password of the query.
    let has_rest = parsed
        .query()
        .is_some_and(|query| query.split('&').any(|pair| !pair.is_empty() && !pair.contains('=')));
    if is_torn || has_rest || parsed.fragment().is_some() {
        return None;
    }
    if parsed.password().is_some() {
        parsed.set_password(Some(HIDDEN)).ok()?;
    }
    if parsed.query().is_some() {
        let pairs: Vec<(String, String)> = parsed
            .query_pairs()
            .map(|(key, value)| {
                let value = if sounds_secret(&key) { HIDDEN.to_owned() } else { value.into_owned() };
                (key.into_owned(), value)
            })
            .collect();
        parsed.query_pairs_mut().clear().extend_pairs(pairs);
    }
    Some(match hosts {
        Some(at) => {
            format!("{}{}{}", &parsed[..Position::BeforeHost], &text[at], &parsed[Position::AfterHost..])
        }
        None => parsed.to_string(),
    })
}

/// Where in a URL a list of hosts stands, as `redis://:password@a:1,b:2` has one: `Url` reads none whose hosts have ports.
fn hosts(text: &str) -> Option<Range<usize>> {
    let from = text.find("://")? + 3;
    let to = text[from..].find(['/', '?', '#']).map_or(text.len(), |at| from + at);
    let from = text[from..to].rfind('@').map_or(from, |at| from + at + 1);
    let list = &text[from..to];
    let is_host = |host: &str| Url::parse(&format!("redis://{host}")).is_ok_and(|url| url.has_host());
    (list.contains(',') && list.split(',').all(is_host)).then_some(from..to)
}

/// The sections in which no key is a secret, or has one in it.
const OPEN_SECTIONS: [&str; 9] =
    ["audit", "basic", "jobs", "lease", "log", "nodes", "nonce", "plans", "worker_queue"];

/// A value given for a key that does not exist, fit to be shown. `None` for a text that may be a secret under a misspelt name
/// (`[cluster] secert = "…"`): in a section that has secrets, and no number.
pub fn unknown(key: &str, given: &Value) -> Option<String> {
    let is_open = key.split_once('.').is_some_and(|(section, _)| OPEN_SECTIONS.contains(&section));
    let is_number = |text: &str| text.len() <= 16 && text.parse::<f64>().is_ok();
    let may_be_secret = given.as_str().is_some_and(|text| !is_open && !is_number(text));
    (!may_be_secret).then(|| value(key, given))
}

/// A value given for a key, fit to be shown.
pub fn value(key: &str, value: &Value) -> String {
    if key.starts_with("auth") || sounds_secret(key) {
        return HIDDEN.to_owned();
    }
    match value {
        Value::String(text) if key.contains("url") || text.contains("://") || text.starts_with("sqlite:") => {
            format!("\"{}\"", url(text))
        }
        Value::String(text) => format!("{text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a section".to_owned(),
        plain => plain.to_string(),
    }
}

/// The same configuration with every secret replaced.
pub fn config(config: &Config) -> Config {
    let mut shown = config.clone();
    shown.ledger.url = url(&config.ledger.url);
    shown.bus.redis_url = url(&config.bus.redis_url);
    shown.server.advertise = url(&config.server.advertise);
    shown.traces.otlp_url = url(&config.traces.otlp_url);
    for secret in [&mut shown.ids.scramble_key, &mut shown.cluster.secret] {
        if !secret.0.is_empty() {
            secret.0 = HIDDEN.to_owned();
        }
    }
    for token in &mut shown.auth.tokens {
        if !token.token.is_empty() {
            token.token = HIDDEN.to_owned();
        }
        token.sha256.iter_mut().for_each(|digest| *digest = HIDDEN.to_owned());
    }
    shown
}

fn sounds_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let is_key =
        key == "key" || ["apikey", "api_key", "api-key", "access_key"].iter().any(|word| key.contains(word));
    is_key
        || ["token", "pass", "pwd", "secret", "credential", "scramble"].iter().any(|word| key.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_hidden_and_the_rest_is_kept() {
        assert_eq!(url("postgres://u:hunter2@db:5432/f"), "postgres://u:***@db:5432/f");
        assert_eq!(url("redis://:hunter2@r:6379/0"), "redis://:***@r:6379/0");
        assert_eq!(url("redis://:hunter2@r-1:1,r-2:2,[::1]:3/0"), "redis://:***@r-1:1,r-2:2,[::1]:3/0");
        assert_eq!(url("rediss://u:h,2@r-1:1,r-2"), "rediss://u:***@r-1:1,r-2");
        assert_eq!(url("redis://r-1:1,r-2:2"), "redis://r-1:1,r-2:2");
        assert_eq!(
            url("postgres:///f?host=/run/pg&password=hunter2"),
            "postgres:///f?host=%2Frun%2Fpg&password=***"
        );
        assert_eq!(url("sqlite:./fencepost-data/ledger.db"), "sqlite:./fencepost-data/ledger.db");
        assert_eq!(url("postgres://u:hunter2@db:notaport/f"), "postgres://***");
        assert_eq!(url("u:hunter2@db"), "***");
        assert_eq!(url("data/ledger.db"), "data/ledger.db");
        assert_eq!(url("host=db user=f password=hunter2"), "***");
        assert_eq!(url("https://c/v1/traces?api-key=hunter2&a=b"), "https://c/v1/traces?api-key=***&a=b");
        assert_eq!(
            url("postgres://u@h/f?pwd=hunter2&sslpassphrase=x"),
            "postgres://u@h/f?pwd=***&sslpassphrase=***"
        );
        assert_eq!(url("https://c/v1/traces?key=hunter2"), "https://c/v1/traces?key=***");
    }

    #[test]
    fn a_password_that_is_not_escaped_is_hidden_with_all_of_its_url() {
        for torn in ["/Ab+x", "12/x", "#Ab", "12#x", "?Ab", "12?x", "a@b/x", "/x?y#z"] {
            assert_eq!(url(&format!("postgres://u:{torn}@db:5432/f")), "postgres://***", "{torn}");
            assert_eq!(url(&format!("redis://:{torn}@r:6379/0")), "redis://***", "{torn}");
            assert_eq!(url(&format!("https://u:{torn}@c/v1/traces")), "https://***", "{torn}");
        }
        // Redis takes one password for all of a list, so that the comma and what is behind it are of the first password.
        assert_eq!(url("redis://:hunter2@h1,redis://:hunter3@h2"), "redis://***");
        assert_eq!(url("redis://:hunter2@h1,h2:6379/0"), "redis://:***@h1,h2:6379/0");
        for torn in ["/Ab+x", "#Ab", "?Ab", "a@b/x"] {
            assert_eq!(url(&format!("redis://:{torn}@h1:1,h2:2/0")), "redis://***", "{torn}");
        }
        assert_eq!(url("redis://:hunter2@h1:1,:hunter3@h2:2"), "redis://:***@h2:2");
        assert_eq!(url("redis://:hunter2@h1:1,h2:hunter3"), "redis://***");
        assert_eq!(url("postgres:///f?password=hunter2&3&user=u"), "postgres://***");
        assert_eq!(url("postgres:///f?password=hunter2#3"), "postgres://***");
        assert_eq!(url("hunter2:x@db://y"), "***");
    }

    #[test]
    fn values_of_unknown_keys_do_not_leak() {
        for key in ["auth.token", "server.api_token", "cluster.secert", "cluster.psk", "ledger.uri", "lonely"]
        {
            assert_eq!(unknown(key, &Value::from("hunter2")), None, "{key}");
        }
        assert_eq!(unknown("auth.token", &Value::from(5)).as_deref(), Some(HIDDEN));
        assert_eq!(unknown("lease.signr_ms", &Value::from(5)).as_deref(), Some("5"));
        // The environment has texts only.
        assert_eq!(unknown("nowhere.key", &Value::from("7")).as_deref(), Some("\"7\""));
        assert_eq!(unknown("lease.signr_ms", &Value::from("long")).as_deref(), Some("\"long\""));
        assert_eq!(unknown("lease.secret", &Value::from("hunter2")).as_deref(), Some(HIDDEN));
        assert_eq!(unknown("cluster.secerts", &Value::from(vec!["hunter2"])).as_deref(), Some("a list"));
    }

    #[test]
    fn values_of_keys_that_sound_secret_do_not_leak() {
        for key in ["auth.tokens", "cluster.secret", "ids.scramble_key"] {
            assert_eq!(value(key, &Value::from("hunter2")), HIDDEN);
        }
        assert_eq!(
            value("ledger.url", &Value::from("postgres://u:hunter2@db/f")),
            "\"postgres://u:***@db/f\""
        );
    }
}
