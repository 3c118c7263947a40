//! The commands, one room each. `serve` is not here: it is the daemon itself.

pub mod check_config;
pub mod cluster;
pub mod health;
pub mod lease;
pub mod migrate;
pub mod nonce;
mod shown;

use client::{Client, Retry};

use crate::cli::Remote;
use crate::exit::{Exit, Failure};

/// How long a command tries at most. A person waits for it.
const TOTAL_S_MAX: u64 = 12;

/// The client that a command speaks through.
fn connect(remote: &Remote) -> Result<Client, Failure> {
    let retry =
        Retry { attempts_max: 5, total_max: std::time::Duration::from_secs(TOTAL_S_MAX), ..Retry::default() };
    let token = remote.token.as_deref().filter(|token| !token.is_empty());
    Ok(Client::new(remote.url.iter().map(String::as_str), token)?.with_retry(retry))
}

/// Runs a command's calls on this thread.
///
/// # Errors
/// The command's own.
pub fn run(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Software, format!("no runtime: {error}")))?
        .block_on(command)
}
