//! The connection on which an owner waits for what comes into its inbox, made again when it is lost, by one task; and when
//! commands go by another connection to a single server, since that may lead to another server, to which the others send. When it
//! is lost itself, commands follow it for the same reason.
//!
//! Anything but an answer costs the connection, since entries may have been given out in an answer that never came;
//! on the next one, what was given out and not settled is read first. So a loss gives entries out twice, and skips
//! none. (A server that has not noticed the loss may go on giving to the old connection for as long as one read waits;
//! those entries idle, and are given out again as such.)

use std::sync::Arc;
use std::time::Duration;

use domain::InstanceId;
use redis::{Cmd, RedisResult, Value, cmd};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Shared;
use super::commands::{self, Connection};
use super::failure::{self, Effect};
use super::inbox_stream::{Found, GROUP, list, make, open_entries, page};
use super::logged_reasons::LoggedReasons;
use super::pause::Pause;
use crate::limits::{INBOX_BATCH_ENTRIES_MAX, INBOX_BLOCK_MS, INBOX_UNUSED_MS, RECONNECT_SETTLED_MS};
use crate::{Entry, EntryId, Result};

/// The one consumer of the group.
const CONSUMER: &str = "owner";
/// Before the first entry; from where a look begins, and what it says when it is through.
const BEGINNING: EntryId = EntryId { ms: 0, sequence: 0 };

/// Reads one owner's inbox.
pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: InstanceId,
    /// How long after its delivery an unsettled entry is delivered again.
    pub(super) idle_ms: u64,
    pub(super) batches: mpsc::Sender<Vec<Entry>>,
}

/// Why reading on one connection has ended, where nothing failed.
enum Over {
    /// The inbox is closed, or nobody wants what is read.
    Inbox,
    /// Commands go by another connection than when this one was made.
    Connection,
}

/// What is asked for next.
#[derive(Clone, Copy)]
enum Look {
    /// What was given out before and never settled, after this entry.
    GivenOut(EntryId),
    /// What has been given out for too long, from this entry on.
    Idle(EntryId),
    /// What nobody was given yet.
    New,
}

impl Reader {
    /// Reads until the inbox is closed, or nobody wants what is read.
    pub(super) async fn feed(self) {
        let mut pause = Pause::default();
        let mut logged = LoggedReasons::default();
        loop {
            let began = Instant::now();
            match self.read_on(&mut logged).await {
                Ok(Over::Inbox) => return,
                Ok(Over::Connection) => tracing::debug!("the inbox is read where commands go now"),
                Err(error) if error.is_retryable() => {
                    tracing::debug!(%error, "the inbox cannot be read");
                    self.shared.commands.suspect_apart();
                }
                Err(error) if logged.is_new(&error) => tracing::warn!(%error, "the inbox cannot be read"),
                Err(error) => tracing::debug!(%error, "the inbox still cannot be read"),
            }
            self.shared.commands.suspect();
            if began.elapsed() >= Duration::from_millis(RECONNECT_SETTLED_MS) {
                pause = Pause::default();
            }
            pause.wait().await;
        }
    }

    /// Reads on one connection, until that fails.
    async fn read_on(&self, logged: &mut LoggedReasons) -> Result<Over> {
        let generation = self.shared.commands.generation();
        let limit = self.shared.limit + Duration::from_millis(INBOX_BLOCK_MS);
        let connection = commands::connect_apart(&self.shared, limit).await?;
        let mut look = Look::GivenOut(BEGINNING);
        let mut look_for_idle = self.next_look_for_idle();
        let mut was_gone = false;
        loop {
            if self.shared.commands.generation() != generation {
                return Ok(Over::Connection);
            }
            let found = match failure::in_time(limit, self.ask(&connection, look)).await? {
                Ok(answer) => answer,
                // The inbox is gone: Redis lost it, or a survivor closed it. Twice in a row, and this connection is
                // to a server that has no say.
                Err(error) if !was_gone && matches!(error.code(), Some("NOGROUP" | "UNBLOCKED")) => {
                    was_gone = true;
                    if !make(&self.shared, &self.owner).await? {
                        tracing::warn!("this instance's inbox was closed by another");
                        return Ok(Over::Inbox);
                    }
                    look = Look::GivenOut(BEGINNING);
                    continue;
                }
                Err(error) => return Err(failure::of(error, Effect::Reads)),
            };
            let (places, next) = read(look, found).ok_or_else(failure::unreadable)?;
            if logged.ends() {
                tracing::info!("the inbox is read again");
            }
            let found = places.into_iter().filter_map(Found::entry).collect();
            let entries = open_entries(&self.shared, &self.owner, found).await;
            if !entries.is_empty() && self.batches.send(entries).await.is_err() {
                return Ok(Over::Inbox);
            }
            was_gone = false;
            look = match (look, next) {
                (Look::Idle(_), Look::New) => {
                    look_for_idle = self.next_look_for_idle();
                    self.keep(&connection).await?;
                    Look::New
                }
                (_, Look::New) if Instant::now() >= look_for_idle => Look::Idle(BEGINNING),
                (_, next) => next,
            };
        }
    }

    /// Has the stream stay, though nothing may come into it for long.
    async fn keep(&self, connection: &Connection) -> Result<()> {
        let mut expire = cmd("PEXPIRE");
        expire.arg(self.shared.names.inbox(&self.owner)).arg(INBOX_UNUSED_MS);
        let kept = failure::in_time(self.shared.limit, connection.ask(&expire)).await?;
        kept.map(drop).map_err(|error| failure::of(error, Effect::Reads))
    }

    fn next_look_for_idle(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.idle_ms / 2)
    }

    async fn ask(&self, connection: &Connection, look: Look) -> RedisResult<Value> {
        let key = self.shared.names.inbox(&self.owner);
        let command = match look {
            Look::GivenOut(after) => read_group(&key, None, &after.to_string()),
            Look::New => read_group(&key, Some(INBOX_BLOCK_MS), ">"),
            Look::Idle(from) => {
                let mut claim = cmd("XAUTOCLAIM");
                claim.arg(key).arg(GROUP).arg(CONSUMER).arg(self.idle_ms).arg(from.to_string());
                claim.arg("COUNT").arg(INBOX_BATCH_ENTRIES_MAX);
                claim
            }
        };
        connection.ask(&command).await
    }
}

fn read_group(key: &str, block_ms: Option<u64>, from: &str) -> Cmd {
    let mut read = cmd("XREADGROUP");
    read.arg("GROUP").arg(GROUP).arg(CONSUMER).arg("COUNT").arg(INBOX_BATCH_ENTRIES_MAX);
    if let Some(ms) = block_ms {
        read.arg("BLOCK").arg(ms);
    }
    read.arg("STREAMS").arg(key).arg(from);
    read
}

/// What was found, and what to look for after it. `None` for an answer of another kind.
fn read(look: Look, answer: Value) -> Option<(Vec<Found>, Look)> {
    let mut parts = list(answer)?.into_iter();
    if let Look::Idle(_) = look {
        // [where to go on, entries, ids of what is no more]
        let Some(Value::BulkString(on)) = parts.next() else { return None };
        let on = EntryId::parse(std::str::from_utf8(&on).ok()?)?;
        let next = if on == BEGINNING { Look::New } else { Look::Idle(on) };
        return Some((page(parts.next()?)?, next));
    }
    // [[key, entries]], or nothing when nothing came
    let found = match parts.next() {
        Some(stream) => page(list(stream)?.into_iter().nth(1)?)?,
        None => vec![],
    };
    let next = match (look, found.last()) {
        (Look::GivenOut(_), Some(last)) => Look::GivenOut(last.id),
        _ => Look::New,
    };
    Some((found, next))
}
