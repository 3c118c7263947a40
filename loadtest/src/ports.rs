//! Free TCP ports for private servers.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};
use rand::RngExt as _;

/// A port of 127.0.0.1 on which nobody listens now.
///
/// It is drawn from below the range that the kernel gives to outgoing connections. A server that is
/// killed and started again on its port would otherwise find, once in a while, that a client's
/// connection has taken it.
///
/// # Errors
/// A hundred ports in a row were taken.
pub fn free() -> Result<u16> {
    for _ in 0..100 {
        let port = rand::rng().random_range(12_000..32_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between 12000 and 32000 on 127.0.0.1")
}
