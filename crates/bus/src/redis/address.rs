//! The URL: one server, or several of a Cluster, with one user and password. And which servers are on this machine.

use std::future::ready;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use redis::io::AsyncDNSResolver;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisFuture, TlsCertificates,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{Error as PemError, PemObject};

use crate::limits::HOSTS_MAX;
use crate::{Error, Result};

const EXPECTED: &str =
    "redis://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]]…[/DATABASE], or rediss://… for TLS";

/// Where Redis is.
#[derive(Clone)]
pub(super) struct Address {
    /// At least one.
    pub(super) hosts: Vec<ConnectionInfo>,
    /// The authorities to trust, in PEM; `None` for the system's.
    pub(super) authorities: Option<Vec<u8>>,
}

impl Address {
    /// Reads the URL. What is refused is never shown: nobody knows where in it a password begins.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refused("it has no scheme"))?;
        if !matches!(scheme, "redis" | "rediss") {
            return Err(refused("its scheme is another"));
        }
        if rest.contains(['?', '#']) {
            return Err(refused("it has a query or a fragment (in a password, write %3F and %23)"));
        }
        // A password may hold a comma, and a slash that was not escaped must not cut it in two.
        let (user, place) = rest.rsplit_once('@').map_or(("", rest), |(user, place)| (user, place));
        let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
        if hosts.split(',').count() > HOSTS_MAX {
            return Err(refused(&format!("it names more than {HOSTS_MAX} hosts")));
        }
        let at = if rest.contains('@') { "@" } else { "" };
        let one = |host: &str| {
            let url = format!("{scheme}://{user}{at}{host}/{database}");
            let server = url.as_str().into_connection_info();
            let server = server.map_err(|_| refused("a host, a port or the database cannot be read"))?;
            Ok(server.set_tcp_settings(at_once()))
        };
        Ok(Self { hosts: hosts.split(',').map(one).collect::<Result<_>>()?, authorities: None })
    }

    /// The same address, trusting the authorities of this file alone.
    pub(super) fn trusting(self, file: Option<&Path>) -> Result<Self> {
        let Some(file) = file else { return Ok(self) };
        let unusable =
            |why: String| Error::Address(format!("bus.tls_ca_file = \"{}\": {why}", file.display()));
        let pem = std::fs::read(file).map_err(|error| unusable(format!("it cannot be read: {error}")))?;
        let found =
            CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<CertificateDer<'_>>, _>>();
        if found.map_err(|error| unusable(of_pem(&error)))?.is_empty() {
            return Err(unusable("it has no certificate in PEM (-----BEGIN CERTIFICATE-----)".to_owned()));
        }
        let with = |host: ConnectionInfo| {
            let certificates = TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) };
            let client = Client::build_with_tls(host, certificates);
            let client = client.map_err(|error| unusable(format!("it cannot be used: {error}")))?;
            Ok(client.get_connection_info().clone())
        };
        let hosts = self.hosts.into_iter().map(with).collect::<Result<_>>()?;
        Ok(Self { hosts, authorities: Some(pem) })
    }

    /// Whether all of it stays on this machine, or goes over TLS.
    pub(super) fn is_private(&self) -> bool {
        self.hosts.iter().all(|host| match host.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => !insecure,
            ConnectionAddr::Tcp(host, _) => is_here(host),
            _ => true,
        })
    }

    /// Whether connections are encrypted.
    pub(super) fn is_tls(&self) -> bool {
        self.hosts.iter().any(|host| matches!(host.addr(), ConnectionAddr::TcpTls { .. }))
    }

    /// Another server of the same Cluster, reached in the same way.
    pub(super) fn beside(&self, host: &str, port: u16) -> ConnectionInfo {
        let host = host.to_owned();
        let address = match self.hosts[0].addr() {
            ConnectionAddr::TcpTls { tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.hosts[0].clone().set_addr(address)
    }
}

/// What is wrong with a file of certificates, as the daemon says it of others.
fn of_pem(error: &PemError) -> String {
    match error {
        PemError::MissingSectionEnd { end_marker } => {
            format!(
                "it breaks off: its line -----END {}----- is missing",
                String::from_utf8_lossy(end_marker)
            )
        }
        PemError::IllegalSectionStart { .. } => {
            "it has a line that begins with -----BEGIN and does not end with -----".to_owned()
        }
        PemError::Base64Decode(_) => "what stands between its lines BEGIN and END is no base64".to_owned(),
        error => format!("it is no readable PEM file: {error}"),
    }
}

/// Whether a server is on this machine: it is called by a loopback address, or `localhost`.
pub(super) fn is_here(host: &str) -> bool {
    !loopback(host).is_empty()
}

/// The addresses of a host on this machine; none for another host.
fn loopback(host: &str) -> Vec<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    host.parse::<IpAddr>().into_iter().filter(|at| at.to_canonical().is_loopback()).collect()
}

/// A Cluster names a server to which nothing may be sent that is not encrypted.
pub(super) fn elsewhere(host: &str, port: u16) -> Error {
    Error::Address(format!(
        "the Redis Cluster names the server {host}:{port}, which is on another machine: the URL must be one of rediss://, or \
         bus.insecure = true if the network is trusted"
    ))
}

/// Has the driver connect to servers on this machine alone, whichever the Cluster names and when.
pub(super) struct HereOnly;

impl AsyncDNSResolver for HereOnly {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        let found = loopback(host);
        let answer = if found.is_empty() {
            Err(RedisError::from(io::Error::new(io::ErrorKind::NotConnected, elsewhere(host, port))))
        } else {
            let found = found.into_iter().map(move |at| SocketAddr::new(at, port));
            Ok(Box::new(found) as Box<dyn Iterator<Item = SocketAddr> + Send + 'a>)
        };
        Box::pin(ready(answer))
    }
}

/// A command leaves at once, also while another is under way.
pub(super) fn at_once() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// The URL cannot be used.
pub(super) fn refused(why: &str) -> Error {
    Error::Address(format!("the Redis URL must be {EXPECTED}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> Vec<String> {
        Address::parse(url).unwrap().hosts.iter().map(|host| host.addr().to_string()).collect()
    }

    #[test]
    fn one_url_names_one_server_or_several() {
        assert_eq!(shown("redis://h"), ["h:6379"]);
        assert_eq!(shown("rediss://h:1,[::1]:2,k"), ["h:1", "::1:2", "k:6379"]);
        let address = Address::parse("redis://me:a,b%2F%40c@h:1,k:2/3").unwrap();
        assert_eq!(address.hosts.len(), 2);
        for host in &address.hosts {
            let settings = host.redis_settings();
            assert_eq!((settings.username(), settings.password()), (Some("me"), Some("a,b/@c")));
            assert_eq!(settings.db(), 3);
        }
        assert!(Address::parse("rediss://h").unwrap().is_tls() && !address.is_tls());
        let beside = address.beside("other", 9);
        assert_eq!(beside.addr().to_string(), "other:9");
        assert_eq!(beside.redis_settings().password(), Some("a,b/@c"));
    }

    #[test]
    fn only_loopback_and_tls_are_private() {
        for (url, is_private) in [
            ("redis://localhost", true),
            ("redis://127.0.0.1:7,[::1]:8", true),
            ("rediss://h,k", true),
            ("redis://h", false),
            ("redis://127.0.0.1,h", false),
            ("redis://:p@10.0.0.1:6379/1", false),
            ("redis://localhost.example", false),
        ] {
            assert_eq!(Address::parse(url).unwrap().is_private(), is_private, "{url}");
        }
    }

    #[tokio::test]
    async fn the_driver_connects_to_this_machine_alone_where_it_must_stay() {
        let resolver = HereOnly;
        for (host, addresses) in [
            ("localhost", "127.0.0.1:7 [::1]:7"),
            ("127.3.2.1", "127.3.2.1:7"),
            ("::1", "[::1]:7"),
            ("192.0.2.1", ""),
            ("0.0.0.0", ""),
            ("localhost.example", ""),
        ] {
            let found = resolver.resolve(host, 7).await.into_iter().flatten();
            let found: Vec<String> = found.map(|at| at.to_string()).collect();
            assert_eq!(found.join(" "), addresses, "{host}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_not_shown() {
        let many = format!("redis://{}", vec!["secret"; HOSTS_MAX + 1].join(","));
        for bad in [
            "",
            "secret",
            "http://secret",
            "redis://",
            "redis:///1",
            "redis://secret:port",
            "redis://secret,,h",
            "redis://h/secret",
            "redis://h?password=secret",
            "redis://secret#insecure",
            "redis://secret@",
            &many,
            "unix:///secret",
        ] {
            let Err(Error::Address(said)) = Address::parse(bad) else { panic!("{bad} was taken") };
            assert!(said.contains("rediss://") && !said.contains("secret"), "{bad}: {said}");
        }
    }
}
