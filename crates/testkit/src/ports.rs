//! Free TCP ports for private servers.

use std::fs::{File, TryLockError};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};
use parking_lot::Mutex;
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
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && is_ours(port)? {
            return Ok(port);
        }
    }
    bail!("no free port between 12000 and 32000 on 127.0.0.1")
}

/// Reserves a port among all processes of the harness, until this one ends: between the look and the use of
/// a port another test could draw the same.
fn is_ours(port: u16) -> Result<bool> {
    static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = std::env::temp_dir().join("fencepost-ports");
    std::fs::create_dir_all(&folder)?;
    // Another user's reservations cannot be looked at; his tests are his own.
    let Ok(file) = File::options().create(true).append(true).open(folder.join(port.to_string())) else {
        return Ok(true);
    };
    match file.try_lock() {
        Ok(()) => {
            RESERVED.lock().push(file);
            Ok(true)
        }
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}
