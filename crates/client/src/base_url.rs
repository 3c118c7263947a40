//! The base URLs of instances: how one is read, how it is shown, and how a path is joined to it.

use std::fmt;

use reqwest::Url;

use crate::error::{is_no_http, root_cause};
use crate::{Error, Result};

/// Longest segment of a path, in bytes. No id is as long, and a URL ends at 64 KiB.
const SEGMENT_BYTES_MAX: usize = 1_024;

/// Reads a base URL; one without a scheme, such as `db-1:7070`, is `http://`. Blanks and line breaks around it do not count. A
/// text that is no base URL is [`Error::Unusable`].
pub(crate) fn parse(text: &str) -> Result<Url> {
    let text = text.trim();
    let unusable = |why: &dyn fmt::Display| {
        // What stands before an @ may be a password.
        let shown = text.rsplit('@').next().unwrap_or_default();
        Error::Unusable(format!("{shown:?} is no URL such as http://127.0.0.1:7070: {why}"))
    };
    // A URL leaves some of these out, and would lead elsewhere.
    if text.contains(char::is_control) {
        return Err(unusable(&"it has a control character"));
    }
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&whole).map_err(|error| unusable(&error))?;
    let plain = url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !plain {
        return Err(Error::Unusable(
            "a base URL is http:// or https:// with a host, without user, query and fragment, such as \
             http://127.0.0.1:7070"
                .to_owned(),
        ));
    }
    Ok(url)
}

/// A base URL as it was given, without the slash that parsing adds.
pub(crate) fn shown(base: &Url) -> String {
    base.as_str().trim_end_matches('/').to_owned()
}

/// The same host and port by `https://`.
pub(crate) fn secured(base: &Url) -> Url {
    let (mut url, port) = (base.clone(), base.port_or_known_default());
    // Neither can fail for a base URL.
    let _ = url.set_scheme("https").and_then(|()| url.set_port(port));
    url
}

/// What a request to this base URL failed of.
pub(crate) fn reason(base: &Url, error: &(dyn std::error::Error + 'static)) -> String {
    let said = root_cause(error);
    if !is_no_http(error) {
        return said;
    }
    let hint = match base.scheme() {
        "http" => format!("; if it speaks TLS, use {}", shown(&secured(base))),
        _ => String::new(),
    };
    format!("what answers there does not speak HTTP ({said}){hint}")
}

/// Joins a base URL and path segments, escaping what needs it. A segment that cannot be an id is [`Error::Unusable`].
pub(crate) fn target(base: &Url, path: &[&str]) -> Result<Url> {
    path.iter().try_for_each(|segment| check(segment))?;
    let mut url = base.clone();
    url.path_segments_mut()
        .map_err(|()| Error::Unusable(format!("{base} cannot be a base URL")))?
        .pop_if_empty()
        .extend(path);
    Ok(url)
}

/// Refuses a segment with which a URL would lead to something else.
fn check(segment: &str) -> Result<()> {
    let length = segment.len();
    if length > SEGMENT_BYTES_MAX {
        return Err(Error::Unusable(format!(
            "what a request is about is named in at most {SEGMENT_BYTES_MAX} bytes, not in {length}"
        )));
    }
    // An empty segment or one of dots would make this another path. Of the control characters, a URL leaves out tabs and line
    // breaks: `a\tb` would be `ab`.
    if matches!(segment, "" | "." | "..") || segment.contains(char::is_control) {
        return Err(Error::Unusable(format!("{segment:?} names nothing that a request could be about")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_scheme_is_http() {
        for (text, read) in [
            ("localhost:7070", "http://localhost:7070/"),
            ("10.0.0.7", "http://10.0.0.7/"),
            ("[::1]:7070", "http://[::1]:7070/"),
            ("h/behind/a/proxy", "http://h/behind/a/proxy"),
            ("https://h", "https://h/"),
            (" http://h\n", "http://h/"),
        ] {
            assert_eq!(parse(text).unwrap().as_str(), read);
        }
        let Err(Error::Unusable(said)) = parse("http://user:secret@h:99999") else {
            panic!("no port is that high")
        };
        assert!(said.contains("h:99999") && !said.contains("secret"), "{said}");
        for bad in ["", "ftp://h", "h?x=1", "user@h", "://h", "a\tb:7070", "http://a\nb"] {
            assert!(matches!(parse(bad), Err(Error::Unusable(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_path_is_joined_to_a_base_and_stays_below_it() {
        let base = parse("http://h/behind/a/proxy/").unwrap();
        assert_eq!(target(&base, &["v1", "a b/c:d"]).unwrap().path(), "/behind/a/proxy/v1/a%20b%2Fc:d");
    }

    #[test]
    fn what_a_url_would_leave_out_or_cannot_hold_names_nothing() {
        let base = parse("http://h").unwrap();
        let long = "x".repeat(SEGMENT_BYTES_MAX);
        assert!(target(&base, &["v1", "jobs", &long]).is_ok());
        let longer = "x".repeat(70_000);
        for bad in ["", ".", "..", "..\r", ".\n", "a\tb", "a\rb", "a\nb", "\n", "a\u{7f}", "a\0b", &longer] {
            let refused = target(&base, &["v1", "jobs", bad, "cancel"]).unwrap_err();
            assert!(matches!(&refused, Error::Unusable(said) if said.len() < 200), "{bad:?}: {refused}");
        }
    }
}
