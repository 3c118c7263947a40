//! Inboxes as Redis Streams: `{instance:<id>}:inbox`, with one consumer group of one consumer, the owner.

use std::time::Duration;

use domain::InstanceId;
use redis::cmd;

use super::Redis;
use super::failure::{self, Effect};
use super::inbox_stream::{Found, make, open_entries, page, remove};
use super::reader::Reader;
use super::script::{Script, script};
use super::seal::Place;
use crate::inbox::{check_entries, check_idle, check_settled};
use crate::limits::{INBOX_BATCH_ENTRIES_MAX, INBOX_CLOSED_MS, INBOX_ENTRIES_MAX, INBOX_UNUSED_MS};
use crate::{Delivery, Entry, EntryId, Inbox, Inboxes, Result};

static APPEND: Script = script!("inbox_append");
static CLOSE: Script = script!("inbox_close");

#[async_trait::async_trait]
impl Inboxes for Redis {
    async fn open_inbox(&self, owner: &InstanceId, idle: Duration) -> Result<Inbox> {
        let idle_ms = check_idle(idle)?;
        self.refuse_if_closed()?;
        // If it was closed for good, the reader finds that out too and ends.
        make(&self.shared, owner).await?;
        self.shared.inbox_seals.opened(owner);
        let (shared, owner) = (self.shared.clone(), owner.clone());
        Ok(Inbox::fed_by(&self.shared.closed, move |batches| {
            Reader { shared: shared.clone(), owner: owner.clone(), idle_ms, batches }.feed()
        }))
    }

    async fn send(&self, to: &InstanceId, entries: &[&[u8]]) -> Result<Vec<Delivery>> {
        check_entries(entries)?;
        let keys = [self.shared.names.inbox(to)];
        let seal = |entry: &&[u8]| self.shared.sealer.seal(Place::Inbox(to), entry);
        let sealed: Vec<_> = entries.iter().map(seal).collect();
        let fill = |call: &mut redis::Cmd| {
            call.arg(INBOX_ENTRIES_MAX).arg(INBOX_UNUSED_MS).arg(&sealed);
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
        self.shared.inbox_seals.settle(of, entries);
        self.refuse_if_closed()?;
        remove(&self.shared, of, entries).await
    }

    async fn read_inbox(&self, of: &InstanceId, after: Option<EntryId>) -> Result<Vec<Entry>> {
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let mut range = cmd("XRANGE");
        range.arg(self.shared.names.inbox(of)).arg(from).arg("+").arg("COUNT").arg(INBOX_BATCH_ENTRIES_MAX);
        let page = page(self.ask(&range, Effect::Reads).await?).ok_or_else(failure::unreadable)?;
        let found = page.into_iter().filter_map(Found::entry).collect();
        Ok(open_entries(&self.shared, of, found).await)
    }

    async fn close_inbox(&self, of: &InstanceId) -> Result<bool> {
        let keys = self.shared.names.inbox_and_mark(of);
        let fill = |call: &mut redis::Cmd| {
            call.arg(INBOX_CLOSED_MS);
        };
        let is_closed = self.run(&CLOSE, &keys, fill, Effect::Writes).await?;
        if is_closed {
            self.shared.inbox_seals.closed(of);
        }
        Ok(is_closed)
    }

    async fn reopen_inbox(&self, owner: &InstanceId) -> Result<()> {
        let [_, mark] = self.shared.names.inbox_and_mark(owner);
        let mut del = cmd("DEL");
        del.arg(mark);
        self.ask(&del, Effect::Writes).await
    }

    async fn inbox_len(&self, of: &InstanceId) -> Result<u64> {
        let mut len = cmd("XLEN");
        len.arg(self.shared.names.inbox(of));
        self.ask(&len, Effect::Reads).await
    }
}
