//! The endpoint of this process: its socket, its machine's name, and the URL at which others reach it.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::config::{self, Config, NODE_NAME_CHARS_MAX};
use crate::exit::{Exit, Failure};

/// Where the kernel keeps the machine's name.
const HOSTNAME_FILES: [&str; 2] = ["/proc/sys/kernel/hostname", "/etc/hostname"];
/// The name of a machine that has none.
const HOSTNAME_UNKNOWN: &str = "localhost";

/// The kernel cuts a connection off whose other side has read nothing for this long.
const UNREAD_MAX: Duration = Duration::from_secs(30);

/// Binds the address that this key of the configuration has.
///
/// # Errors
/// [`Exit::Unavailable`] when another process has the port, [`Exit::Config`] when this machine or user
/// cannot have the address at all.
pub fn listen(key: &str, listen: &str) -> Result<TcpListener, Failure> {
    let address = config::address(listen).expect("the address is checked");
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Failure::new(
            Exit::Unavailable,
            format!("{key} = {listen:?}: another process listens there; choose another port or stop it"),
        ),
        _ => Failure::new(Exit::Config, format!("{key} = {listen:?}: {error}")),
    })?;
    // Connections have it from their listener.
    let unread_ms = UNREAD_MAX.as_millis() as u32;
    if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(&listener, unread_ms) {
        tracing::warn!(%error, "the timeout for clients that do not read could not be set");
    }
    Ok(listener)
}

/// Where this process is.
#[derive(Debug)]
pub struct Endpoint {
    /// The URL of the bound address, for the ready line.
    pub url: String,
    /// The URL that others use.
    pub advertise: String,
    /// The machine's name.
    pub hostname: String,
    /// First part of the instance's id.
    pub node_name: String,
}

impl Endpoint {
    /// Fills in what the configuration left open.
    ///
    /// # Errors
    /// [`Exit::Software`] when the socket does not know its own address.
    pub fn of(config: &Config, listener: &TcpListener) -> Result<Self, Failure> {
        let bound = listener
            .local_addr()
            .map_err(|error| Failure::new(Exit::Software, format!("the socket has no address: {error}")))?;
        Ok(Self::at(config, bound, hostname()))
    }

    /// The same for a socket that is bound there, on the machine of this name.
    pub fn at(config: &Config, bound: SocketAddr, hostname: String) -> Self {
        let chosen = |text: &String| (!text.is_empty()).then(|| text.clone());
        let scheme = if config.server.tls().is_some() { "https" } else { "http" };
        let advertise = chosen(&config.server.advertise)
            .map(|url| url.trim_end_matches('/').to_owned())
            .unwrap_or_else(|| {
                if bound.ip().is_unspecified() {
                    format!("{scheme}://{hostname}:{}", bound.port())
                } else {
                    format!("{scheme}://{bound}")
                }
            });
        let node_name = chosen(&config.server.node_name).unwrap_or_else(|| hostname.clone());
        Self { url: format!("{scheme}://{bound}"), advertise, hostname, node_name }
    }
}

/// The machine's name, fit for an id.
pub fn hostname() -> String {
    HOSTNAME_FILES
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .map(|name| safe(&name))
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| HOSTNAME_UNKNOWN.to_owned())
}

/// The name, with what an instance id cannot hold replaced or cut off.
fn safe(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' };
    name.trim().chars().map(kept).take(NODE_NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(advertise: &str, node_name: &str, bound: &str) -> Endpoint {
        let mut config = Config::default();
        config.server.advertise = advertise.to_owned();
        config.server.node_name = node_name.to_owned();
        Endpoint::at(&config, bound.parse().unwrap(), "machine".to_owned())
    }

    #[test]
    fn what_is_not_configured_is_made_from_the_address_and_the_machine() {
        let here = endpoint("", "", "127.0.0.1:7070");
        assert_eq!((here.advertise.as_str(), here.node_name.as_str()), ("http://127.0.0.1:7070", "machine"));
        assert_eq!(endpoint("", "", "0.0.0.0:81").advertise, "http://machine:81");
        assert_eq!(endpoint("", "", "[::]:81").advertise, "http://machine:81");
        assert_eq!(endpoint("", "", "[::1]:81").url, "http://[::1]:81");
        let mut config = Config::default();
        (config.server.tls_certificate, config.server.tls_key) = ("c".to_owned(), "k".to_owned());
        let at = |bound: &str| Endpoint::at(&config, bound.parse().unwrap(), "machine".to_owned());
        assert_eq!(at("0.0.0.0:81").advertise, "https://machine:81");
        assert_eq!(at("127.0.0.1:81").url, "https://127.0.0.1:81");
        let named = endpoint("https://f.example/", "n", "0.0.0.0:81");
        assert_eq!((named.advertise.as_str(), named.node_name.as_str()), ("https://f.example", "n"));
    }

    #[test]
    fn any_machines_name_fits_an_instance_id() {
        for name in ["a host\n", "ü.example", &"x".repeat(300), "n{1}/2"] {
            let id = cluster::Identity::new(&safe(name), String::new());
            assert!(id.is_ok(), "{name}");
        }
        assert!(cluster::Identity::new(&hostname(), String::new()).is_ok());
    }

    #[test]
    fn a_port_in_use_is_told_as_a_service_in_the_way() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        for key in ["server.listen", "server.probe_listen"] {
            let failure = listen(key, &address).unwrap_err();
            assert_eq!(failure.exit, Exit::Unavailable);
            assert!(failure.message.contains(&format!("{key} = {address:?}")), "{}", failure.message);
        }
        assert_eq!(listen("server.listen", "192.0.2.1:7070").unwrap_err().exit, Exit::Config);
    }
}
