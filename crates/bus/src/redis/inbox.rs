//! Inboxes as Redis Streams: `{instance:<id>}:inbox`, with one consumer group of one consumer, the owner.

use std::sync::Arc;
use std::time::Duration;

use domain::InstanceId;
use redis::{Value, cmd};

use super::failure::{self, Effect};
use super::reader::Reader;
use super::script::{Script, script};
use super::{Redis, Shared, commands};
use crate::inbox::{check_entries, check_idle, check_settled};
use crate::limits::{INBOX_BATCH_ENTRIES_MAX, INBOX_CLOSED_MS, INBOX_ENTRIES_MAX};
use crate::{Delivery, Entry, EntryId, Inbox, Inboxes, Result};

/// The consumer group.
pub(super) const GROUP: &str = "scheduler";

static OPEN: Script = script!("inbox_open");
static APPEND: Script = script!("inbox_append");
static SETTLE: Script = script!("inbox_settle");
static CLOSE: Script = script!("inbox_close");

#[async_trait::async_trait]
impl Inboxes for Redis {
    async fn open_inbox(&self, owner: &InstanceId, idle: Duration) -> Result<Inbox> {
        let idle_ms = check_idle(idle)?;
        self.refuse_if_closed()?;
        // If it was closed for good, the reader finds that out too and ends.
        make(&self.shared, owner).await?;
        let (shared, owner) = (self.shared.clone(), owner.clone());
        Ok(Inbox::fed_by(&self.shared.closed, |batches| Reader { shared, owner, idle_ms, batches }.feed()))
    }

    async fn send(&self, to: &InstanceId, entries: &[&[u8]]) -> Result<Vec<Delivery>> {
        check_entries(entries)?;
        let keys = [self.shared.names.inbox(to)];
        let fill = |call: &mut redis::Cmd| {
            call.arg(INBOX_ENTRIES_MAX).arg(entries);
        };
        let sent: i64 = self.run(&APPEND, &keys, fill, Effect::Writes).await?;
        Ok(match usize::try_from(sent) {
            Err(_) => vec![Delivery::Undeliverable; entries.len()],
            Ok(sent) => {
                let became = |n| if n < sent { Delivery::Sent } else { Delivery::Full };
                (0..entries.len()).map(became).collect()
            }
        })
    }

    async fn settle(&self, of: &InstanceId, entries: &[EntryId]) -> Result<()> {
        check_settled(entries)?;
        if entries.is_empty() {
            return self.refuse_if_closed();
        }
        let keys = [self.shared.names.inbox(of)];
        let fill = |call: &mut redis::Cmd| {
            call.arg(GROUP);
            for entry in entries {
                call.arg(entry.to_string());
            }
        };
        self.run(&SETTLE, &keys, fill, Effect::Writes).await
    }

    async fn read_inbox(&self, of: &InstanceId, after: Option<EntryId>) -> Result<Vec<Entry>> {
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let mut range = cmd("XRANGE");
        range.arg(self.shared.names.inbox(of)).arg(from).arg("+").arg("COUNT").arg(INBOX_BATCH_ENTRIES_MAX);
        let page = page(self.ask(&range, Effect::Reads).await?).ok_or_else(failure::unreadable)?;
        Ok(page.into_iter().filter_map(Found::entry).collect())
    }

    async fn close_inbox(&self, of: &InstanceId) -> Result<bool> {
        let keys = self.shared.names.inbox_and_mark(of);
        let fill = |call: &mut redis::Cmd| {
            call.arg(INBOX_CLOSED_MS);
        };
        self.run(&CLOSE, &keys, fill, Effect::Writes).await
    }

    async fn inbox_len(&self, of: &InstanceId) -> Result<u64> {
        let mut len = cmd("XLEN");
        len.arg(self.shared.names.inbox(of));
        self.ask(&len, Effect::Reads).await
    }
}

/// Makes the stream and its group, unless they are there. Says whether the inbox is open: not if it was closed for
/// good.
pub(super) async fn make(shared: &Shared, owner: &InstanceId) -> Result<bool> {
    let keys = shared.names.inbox_and_mark(owner);
    let fill = |call: &mut redis::Cmd| {
        call.arg(GROUP);
    };
    commands::run(shared, &OPEN, &keys, fill, Effect::Writes).await
}

/// One place in a page of a stream.
pub(super) struct Found {
    pub(super) id: EntryId,
    /// `None` if it was deleted by another hand, or if no instance can have written it.
    payload: Option<Arc<[u8]>>,
}

impl Found {
    pub(super) fn entry(self) -> Option<Entry> {
        let Self { id, payload } = self;
        payload.map(|payload| Entry { id, payload })
    }
}

/// Reads `[[id, [name, payload]]…]`. `None` for anything else.
pub(super) fn page(answer: Value) -> Option<Vec<Found>> {
    let found = |place: Value| {
        let [id, fields] = <[Value; 2]>::try_from(list(place)?).ok()?;
        let Value::BulkString(id) = id else { return None };
        let payload = match list(fields).unwrap_or_default().into_iter().nth(1) {
            Some(Value::BulkString(payload)) => Some(Arc::from(payload)),
            _ => None,
        };
        Some(Found { id: EntryId::parse(std::str::from_utf8(&id).ok()?)?, payload })
    };
    list(answer)?.into_iter().map(found).collect()
}

/// What is in an array; nothing in none.
pub(super) fn list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) => Some(items),
        Value::Nil => Some(vec![]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_and_what_was_deleted_in_it_is_passed_over() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let entry = |id, payload| {
            let fields = Value::Array(vec![text("e"), text(payload)]);
            Value::Array(vec![text(id), fields])
        };
        let deleted = Value::Array(vec![text("1-2"), Value::Nil]);
        let found = page(Value::Array(vec![entry("1-1", "one"), deleted])).unwrap();
        assert_eq!(found.iter().map(|it| it.id.to_string()).collect::<Vec<_>>(), ["1-1", "1-2"]);
        let entries: Vec<_> = found.into_iter().filter_map(Found::entry).collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(&*entries[0].payload, b"one");
        assert!(page(Value::Nil).unwrap().is_empty());
        assert!(page(text("no page")).is_none() && page(Value::Array(vec![entry("x", "y")])).is_none());
    }
}
