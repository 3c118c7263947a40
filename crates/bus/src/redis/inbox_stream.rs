//! The stream behind an inbox: how it is made, and how the server's answers are read. Both sides of an inbox use it.

use std::sync::Arc;

use domain::InstanceId;
use redis::Value;

use super::failure::Effect;
use super::script::{Script, script};
use super::{Shared, commands};
use crate::limits::INBOX_UNUSED_MS;
use crate::{Entry, EntryId, Result};

/// The consumer group.
pub(super) const GROUP: &str = "scheduler";

static OPEN: Script = script!("inbox_open");
static SETTLE: Script = script!("inbox_settle");

/// Makes the stream and its group, unless they are there. Says whether the inbox is open: not if it was closed for
/// good.
pub(super) async fn make(shared: &Shared, owner: &InstanceId) -> Result<bool> {
    let keys = shared.names.inbox_and_mark(owner);
    let fill = |call: &mut redis::Cmd| {
        call.arg(GROUP).arg(INBOX_UNUSED_MS);
    };
    commands::run(shared, &OPEN, &keys, fill, Effect::Writes).await
}

/// Acknowledges and deletes entries, in one step.
pub(super) async fn remove(shared: &Shared, of: &InstanceId, entries: &[EntryId]) -> Result<()> {
    let keys = [shared.names.inbox(of)];
    let fill = |call: &mut redis::Cmd| {
        call.arg(INBOX_UNUSED_MS).arg(GROUP);
        for entry in entries {
            call.arg(entry.to_string());
        }
    };
    commands::run::<()>(shared, &SETTLE, &keys, fill, Effect::Writes).await?;
    shared.inbox_seals.removed(of, entries);
    Ok(())
}

/// Opens the seals of entries. Those that are to take no effect are removed, and counted if another hand put them there.
pub(super) async fn open_entries(shared: &Shared, of: &InstanceId, found: Vec<Entry>) -> Vec<Entry> {
    let (mut entries, mut rejected) = (Vec::new(), Vec::new());
    for entry in found {
        match shared.inbox_seals.open(&shared.sealer, of, &entry) {
            Ok(entry) => entries.push(entry),
            Err(why) => {
                match why.reported_as() {
                    Some(why) => shared.rejected("entry", why),
                    None => tracing::debug!(inbox = %of, entry = %entry.id, "an entry was settled before"),
                }
                rejected.push(entry.id);
            }
        }
    }
    // What cannot be removed now is read again, and rejected again.
    if !rejected.is_empty()
        && let Err(error) = remove(shared, of, &rejected).await
    {
        tracing::debug!(%error, "rejected entries could not be removed");
    }
    entries
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
