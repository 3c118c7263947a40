//! The commands, one module each. `serve` is not here: it is the daemon itself.

mod absence;
pub mod audit;
pub mod backup;
pub mod check_config;
pub mod cluster;
pub mod completions;
mod confirm;
mod each;
pub mod health;
pub mod id;
pub mod job;
mod jobs_shown;
mod json_file;
pub mod lease;
mod look;
pub mod migrate;
mod new_items;
pub mod node;
pub mod nodes;
pub mod nonce;
mod once;
pub mod plan;
pub mod pool;
mod progress_bar;
pub mod recover;
mod screen;
pub mod session;
pub mod shown;
pub mod stats;
pub mod submit;
mod task_retry;
mod tasks_shown;
pub mod tenant;
pub mod token;
pub mod top;

use std::time::Duration;

use client::wire::List;
use client::wire::limits::LIST_ITEMS_MAX;
use client::{Client, Page, Retry};

use crate::cli::{Paged, Remote};
use crate::exit::{Exit, Failure};

/// How long a command tries at most. It is longer than the failover of a killed instance's keys.
const TOTAL: Duration = Duration::from_secs(12);
/// How long it waits for one of several instances.
const ATTEMPT_OF_SEVERAL: Duration = Duration::from_secs(4);
/// How long it takes at most until another instance serves a killed instance's keys.
const FAILOVER_MAX: Duration = Duration::from_secs(5);
const _: () = assert!(TOTAL.as_secs() >= 2 * FAILOVER_MAX.as_secs(), "a command outlives a failover");

/// The client that a command uses.
fn connect(remote: &Remote) -> Result<Client, Failure> {
    let mut retry = Retry { attempts_max: 5, total_max: TOTAL, ..Retry::default() };
    if remote.url.len() > 1 {
        // One that does not answer leaves time for the others.
        retry.attempt_max = ATTEMPT_OF_SEVERAL;
    }
    let token = remote.bearer.read()?;
    let urls = remote.url.iter().map(String::as_str);
    // A person names the one to ask first.
    Ok(Client::with_tls(urls, token.as_deref(), &remote.tls.clone().options())?.in_order().with_retry(retry))
}

/// The part of a list that is asked for.
fn page(paged: Paged) -> Page {
    Page { limit: paged.limit, cursor: paged.cursor }
}

/// The items of a list, page by page, until there are `most` of them; and whether there are more.
async fn all_pages<T>(
    most: usize,
    list: impl AsyncFn(&Page) -> client::Result<List<T>>,
) -> client::Result<(Vec<T>, bool)> {
    let mut page = Page { limit: Some(LIST_ITEMS_MAX), cursor: None };
    let mut items = Vec::new();
    loop {
        let list = list(&page).await?;
        items.extend(list.items);
        if list.next_cursor.is_none() || items.len() >= most {
            return Ok((items, list.next_cursor.is_some()));
        }
        page.cursor = list.next_cursor;
    }
}

/// Runs a command's calls on this thread. What the command has left behind ends with it: nothing is waited for.
///
/// # Errors
/// The command's own.
pub fn run(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Software, format!("no runtime: {error}")))?;
    let ended = runtime.block_on(command);
    // The system's look-up of a host's name cannot be cut off, and may take a minute.
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;

    /// Longer than anything takes that is right.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_that_is_over_waits_for_no_call_of_the_system() {
        let (let_go, waits) = mpsc::channel::<()>();
        let (tell, ended) = mpsc::channel();
        thread::spawn(move || {
            let command = async move {
                let (begins, has_begun) = oneshot::channel();
                // As the look-up of a name is made.
                tokio::task::spawn_blocking(move || {
                    let _ = begins.send(());
                    let _ = waits.recv();
                });
                has_begun.await.expect("it begins");
                Ok(())
            };
            let _ = tell.send(run(command).is_ok());
        });
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(true));
        drop(let_go);
    }
}
