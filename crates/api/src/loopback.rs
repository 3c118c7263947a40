//! Which requests a daemon without tokens serves. Every program that reaches such a daemon may do everything, and a
//! browser on the same machine reaches it too. So this file refuses what a web page of another site makes a browser
//! send, also a page whose name was made to resolve to this machine (DNS rebinding), and what a reverse proxy has marked.

use std::net::{Ipv4Addr, Ipv6Addr};

use actix_web::http::Uri;
use actix_web::http::header::{
    FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, VIA, X_FORWARDED_FOR, X_FORWARDED_HOST,
};
use wire::Code;

use crate::refusal::Refusal;

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// By which of these a request shows that a proxy has passed it on, whose callers may be anywhere.
static PROXIED: [HeaderName; 5] =
    [FORWARDED, X_FORWARDED_FOR, X_FORWARDED_HOST, HeaderName::from_static("x-real-ip"), VIA];

/// Lets a request pass that a program of this machine, or a page of this daemon itself, has sent. A probe may come through a
/// proxy, and name another host or none, as load balancers send it.
///
/// # Errors
/// `invalid` for several hosts, and without one; `forbidden` for a host that is no loopback name, for what a proxy has passed on,
/// for a foreign origin, and for what a browser marks as sent by another site.
pub fn admit(uri: &Uri, headers: &HeaderMap, is_probe: bool) -> Result<(), Refusal> {
    if !is_probe && let Some(name) = PROXIED.iter().find(|name| headers.contains_key(*name)) {
        let detail = format!(
            "the request came through a proxy (it has the header {name}): this daemon has no tokens and serves this machine \
             only; set tokens (auth.tokens) to serve it through a proxy"
        );
        return Err(Refusal::new(Code::Forbidden, detail));
    }
    let host = host(uri, headers)?;
    let named = host.and_then(Authority::parse);
    if !is_probe {
        let host = host.ok_or_else(not_one_host)?;
        if !named.is_some_and(Authority::is_loopback) {
            return Err(forbidden(&format!(
                "the request's host is {host:?}. Without tokens the host must be a loopback name: localhost, \
                 127.0.0.1 or [::1], with any port"
            )));
        }
    }
    if let Some(site) = headers.get_all(&SEC_FETCH_SITE).find(|site| !is_own_site(site.as_bytes())) {
        return Err(forbidden(&format!(
            "a web page of another origin sent this request (Sec-Fetch-Site: {site:?}). Without tokens only \
             programs and the daemon's own pages may send requests",
        )));
    }
    let is_own = |origin: &HeaderValue| named.is_some_and(|named| is_of(origin.as_bytes(), named));
    if let Some(foreign) = headers.get_all(ORIGIN).find(|origin| !is_own(origin)) {
        let host = host.unwrap_or_default();
        return Err(forbidden(&format!(
            "a web page of {foreign:?} sent this request, and the daemon is {host:?}. Without tokens the header \
             Origin must be absent or name the request's own host",
        )));
    }
    Ok(())
}

/// Whether a request names this machine by a loopback name. What does not may be a page's whose name was made to resolve to it.
pub fn is_named(uri: &Uri, headers: &HeaderMap) -> bool {
    host(uri, headers).ok().flatten().and_then(Authority::parse).is_some_and(Authority::is_loopback)
}

fn forbidden(what: &str) -> Refusal {
    Refusal::new(Code::Forbidden, format!("{what}; or configure auth.tokens"))
}

fn not_one_host() -> Refusal {
    Refusal::invalid("name the host once, in the header Host, such as Host: localhost:7070")
}

/// The one host that a request names: in its target, or else in its header; `None` where it names none.
fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Result<Option<&'r str>, Refusal> {
    let mut all = headers.get_all(HOST);
    let (first, second) = (all.next(), all.next());
    let header = first.map(|value| value.to_str().unwrap_or_default());
    match (uri.authority(), header, second) {
        // A host in the target goes before the header; RFC 9112 has clients send the same twice.
        (Some(target), None, _) => Ok(Some(target.as_str())),
        (Some(target), Some(header), None) if target.as_str().eq_ignore_ascii_case(header) => {
            Ok(Some(header))
        }
        (None, header, None) => Ok(header),
        _ => Err(not_one_host()),
    }
}

/// Whether a `Sec-Fetch-Site` is that of the daemon's own pages, or of a user who typed the address. A site has all ports
/// of its host, so `same-site` is also said of a page that another program of this machine serves.
fn is_own_site(site: &[u8]) -> bool {
    [&b"same-origin"[..], b"none"].iter().any(|own| site.eq_ignore_ascii_case(own))
}

/// Whether an `Origin` is the host that was asked.
fn is_of(origin: &[u8], host: Authority<'_>) -> bool {
    let Some((scheme, origin)) = std::str::from_utf8(origin).ok().and_then(|text| text.split_once("://"))
    else {
        return false;
    };
    let port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    Authority::parse(origin).is_some_and(|origin| {
        origin.name.eq_ignore_ascii_case(host.name)
            && origin.port.unwrap_or(port) == host.port.unwrap_or(port)
    })
}

/// A name or address, and a port.
#[derive(Clone, Copy)]
struct Authority<'t> {
    /// An IPv6 address is in brackets.
    name: &'t str,
    port: Option<u16>,
}

impl<'t> Authority<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let end = match text.strip_prefix('[') {
            Some(rest) => rest.find(']')? + 2,
            None => text.find(':').unwrap_or(text.len()),
        };
        let (name, port) = text.split_at(end);
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            None => return None,
            Some("") => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
            Some(_) => return None,
        };
        Some(Self { name, port })
    }

    fn is_loopback(self) -> bool {
        if let Some(address) = self.name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return address.parse::<Ipv6Addr>().is_ok_and(|address| address.to_canonical().is_loopback());
        }
        let is_address = self.name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        is_address || self.name.eq_ignore_ascii_case("localhost")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(target: &str, given: &[(&'static str, &str)]) -> Option<Code> {
        code_of(target, given, false)
    }

    fn code_of(target: &str, given: &[(&'static str, &str)], is_probe: bool) -> Option<Code> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        admit(&target.parse().unwrap(), &headers, is_probe).err().map(|refusal| refusal.code())
    }

    #[test]
    fn only_loopback_names_are_hosts() {
        for host in [
            "localhost",
            "LocalHost:7070",
            "localhost:",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.255.0.9:65535",
            "[::1]",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert_eq!(code("/", &[("host", host)]), None, "{host}");
        }
        for host in [
            "",
            "test",
            "evil.example",
            "evil.example:7070",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "128.0.0.1",
            "10.0.0.1:7070",
            "0.0.0.0",
            "[::2]:80",
            "[::]",
            "::1",
            "[::1",
            "[::1]x",
            "localhost:x",
            "localhost:99999",
            "localhost:+1",
            "user@localhost",
            "localhost@evil.example",
            "localhost evil.example",
        ] {
            assert_eq!(code("/", &[("host", host)]), Some(Code::Forbidden), "{host}");
        }
    }

    #[test]
    fn a_request_names_its_host_once() {
        for (target, given, expected) in [
            ("/", &[][..], Some(Code::Invalid)),
            ("/", &[("host", "localhost"), ("host", "localhost")], Some(Code::Invalid)),
            ("/", &[("host", "localhost"), ("host", "evil.example")], Some(Code::Invalid)),
            ("http://localhost:1/", &[("host", "evil.example")], Some(Code::Invalid)),
            ("http://evil.example/", &[("host", "localhost")], Some(Code::Invalid)),
            ("http://evil.example/", &[("host", "evil.example")], Some(Code::Forbidden)),
            ("http://evil.example/", &[], Some(Code::Forbidden)),
            ("http://localhost:1/", &[("host", "localhost:1")], None),
            ("http://localhost:1/", &[], None),
        ] {
            assert_eq!(code(target, given), expected, "{target} {given:?}");
        }
    }

    #[test]
    fn a_probe_may_name_any_host_or_none_and_a_page_may_send_none() {
        for (target, given, expected) in [
            ("/", &[][..], None),
            ("/", &[("host", "")], None),
            ("/", &[("host", "x")], None),
            ("/", &[("host", "evil.example:7070")], None),
            ("http://evil.example/", &[], None),
            ("/", &[("host", "localhost"), ("host", "localhost")], Some(Code::Invalid)),
            ("/", &[("host", "localhost"), ("origin", "https://evil.example")], Some(Code::Forbidden)),
            ("/", &[("host", "x"), ("origin", "https://evil.example")], Some(Code::Forbidden)),
            ("/", &[("origin", "null")], Some(Code::Forbidden)),
            ("/", &[("host", "x"), ("sec-fetch-site", "cross-site")], Some(Code::Forbidden)),
        ] {
            assert_eq!(code_of(target, given, true), expected, "{target} {given:?}");
        }
    }

    #[test]
    fn what_came_through_a_proxy_is_refused_but_a_probe() {
        for name in ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"] {
            let given = [("host", "127.0.0.1:7070"), (name, "1.1 edge")];
            assert_eq!(code("/", &given), Some(Code::Forbidden), "{name}");
            assert_eq!(code_of("/", &given, true), None, "{name}");
        }
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        for (host, origin, is_own) in [
            ("localhost:7070", "http://localhost:7070", true),
            ("LOCALHOST:7070", "http://localhost:7070", true),
            ("localhost", "http://localhost", true),
            ("localhost:80", "http://localhost", true),
            ("localhost", "https://localhost:443", true),
            ("[::1]:7070", "http://[::1]:7070", true),
            ("localhost:7070", "http://localhost:3000", false),
            ("localhost:7070", "http://localhost", false),
            ("localhost:7070", "http://127.0.0.1:7070", false),
            ("localhost:7070", "https://evil.example", false),
            ("localhost:7070", "http://evil.example:7070", false),
            ("localhost:7070", "null", false),
            ("localhost:7070", "", false),
            ("localhost:7070", "file://localhost:7070", false),
            ("localhost:7070", "localhost:7070", false),
        ] {
            let expected = (!is_own).then_some(Code::Forbidden);
            assert_eq!(code("/", &[("host", host), ("origin", origin)]), expected, "{host} {origin}");
        }
        let two = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example")];
        assert_eq!(code("/", &two), Some(Code::Forbidden));
    }

    #[test]
    fn what_a_browser_marks_as_sent_by_another_origin_is_refused() {
        for (site, expected) in [
            ("cross-site", Some(Code::Forbidden)),
            ("Cross-Site", Some(Code::Forbidden)),
            ("same-site", Some(Code::Forbidden)),
            ("", Some(Code::Forbidden)),
            ("new-word", Some(Code::Forbidden)),
            ("same-origin", None),
            ("Same-Origin", None),
            ("none", None),
        ] {
            assert_eq!(code("/", &[("host", "localhost"), ("sec-fetch-site", site)]), expected, "{site}");
        }
    }
}
