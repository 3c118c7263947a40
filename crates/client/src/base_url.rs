//! The base URLs of instances: how one is read, how it is shown, and how a path is joined to it.

use reqwest::Url;

use crate::error::{is_no_http, root_cause};
use crate::{Error, Result};

/// Reads a base URL; one without a scheme, such as `db-1:7070`, is `http://`. A text that is no base URL is
/// [`Error::Unusable`].
pub(crate) fn parse(text: &str) -> Result<Url> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&whole).map_err(|error| {
        // What stands before an @ may be a password.
        let shown = text.rsplit('@').next().unwrap_or_default();
        Error::Unusable(format!("{shown:?} is no URL such as http://127.0.0.1:7070: {error}"))
    })?;
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

/// Joins a base URL and path segments, escaping what needs it.
pub(crate) fn target(base: &Url, path: &[&str]) -> Result<Url> {
    // An empty segment or one of dots would make this another path.
    if let Some(bad) = path.iter().find(|segment| matches!(**segment, "" | "." | "..")) {
        return Err(Error::Unusable(format!("{bad:?} names nothing that a request could be about")));
    }
    let mut url = base.clone();
    url.path_segments_mut()
        .map_err(|()| Error::Unusable(format!("{base} cannot be a base URL")))?
        .pop_if_empty()
        .extend(path);
    Ok(url)
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
        ] {
            assert_eq!(parse(text).unwrap().as_str(), read);
        }
        let Err(Error::Unusable(said)) = parse("http://user:secret@h:99999") else {
            panic!("no port is that high")
        };
        assert!(said.contains("h:99999") && !said.contains("secret"), "{said}");
        for bad in ["", "ftp://h", "h?x=1", "user@h", "://h"] {
            assert!(matches!(parse(bad), Err(Error::Unusable(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_path_is_joined_to_a_base_and_stays_below_it() {
        let base = parse("http://h/behind/a/proxy/").unwrap();
        assert_eq!(target(&base, &["v1", "a b/c:d"]).unwrap().path(), "/behind/a/proxy/v1/a%20b%2Fc:d");
        for bad in ["", ".", ".."] {
            assert!(target(&base, &["v1", bad]).is_err());
        }
    }
}
