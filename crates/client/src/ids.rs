//! Distributed ids: issuing and decoding them, and configuring tags and sequences.

use wire::List;
use wire::ids::{
    Segment, SegmentIds, SegmentRequest, Sequence, SequenceIds, SequenceRequest, SnowflakeParts, Snowflakes,
    Uuids,
};

use crate::observe::Page;
use crate::transport::Call;
use crate::{Client, Result};

/// The calls about ids. Those but UUIDs are texts of digits, as in the API, and each fits a `u64`. A call that is tried
/// again or dropped may leave a gap; no id is ever issued twice.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use client::Client;
/// use client::wire::ids::SequenceRequest;
///
/// let fencepost = Client::new(["http://127.0.0.1:7070"], None)?;
/// // Snowflakes need no setup, and rise by time. Ask for many at once: each call is a request.
/// let orders = fencepost.ids().snowflakes(1_000).await?.ids;
/// // A sequence is made once, with the scope `admin`; to make it again changes nothing.
/// fencepost.ids().set_sequence("ticket", &SequenceRequest::default()).await?;
/// let ticket: u64 = fencepost.ids().sequence("ticket", 1).await?.ids[0].parse()?;
/// println!("{} ids of orders, and ticket {ticket}", orders.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ids<'a>(&'a Client);

impl Client {
    /// The calls about ids.
    #[must_use]
    pub const fn ids(&self) -> Ids<'_> {
        Ids(self)
    }
}

impl Ids<'_> {
    /// `count` snowflakes, 1 to 10,000, rising.
    ///
    /// # Errors
    /// [`crate::Error`]; `clock_behind` while the clock of the instance asked could lead to a duplicate,
    /// `exhausted` while other instances hold all worker numbers that the instance asked may use.
    pub async fn snowflakes(&self, count: u32) -> Result<Snowflakes> {
        self.0.call(&Call::get(&["v1", "ids", "snowflake"], &[counted(count)])).await
    }

    /// The parts of a snowflake, by the daemon's epoch.
    ///
    /// # Errors
    /// [`crate::Error`]; `invalid` for a number of more than 63 bits.
    pub async fn decode(&self, id: &str) -> Result<SnowflakeParts> {
        self.0.call(&Call::get(&["v1", "ids", "snowflake", id], &[])).await
    }

    /// `count` ids of a tag, 1 to 10,000, optionally with their scrambled forms. The ids of one instance
    /// rise.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a tag that does not exist.
    pub async fn segment(&self, tag: &str, count: u32, scrambled: bool) -> Result<SegmentIds> {
        let mut query = vec![counted(count)];
        query.extend(scrambled.then(|| ("scrambled", true.to_string())));
        self.0.call(&Call::get(&["v1", "ids", "segments", tag], &query)).await
    }

    /// Creates a tag, or changes the fields that the request names.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` for a start that is not above all ids given out.
    pub async fn set_segment(&self, tag: &str, change: &SegmentRequest) -> Result<Segment> {
        self.0.call(&Call::put(&["v1", "ids", "segments", tag], change)).await
    }

    /// The tags, in the order of their names, as the answering instance sees them.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn segments(&self, page: &Page) -> Result<List<Segment>> {
        self.0.call(&Call::get(&["v1", "ids", "segments"], &page.query())).await
    }

    /// `count` numbers of a sequence, 1 to 10,000, each higher than all that were granted before.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a sequence that does not exist, `exhausted` at its end.
    pub async fn sequence(&self, name: &str, count: u32) -> Result<SequenceIds> {
        self.0.call(&Call::get(&["v1", "ids", "sequences", name], &[counted(count)])).await
    }

    /// The sequences, in the order of their names, or the one of this name alone, if it exists. No number is taken.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` from a daemon of 0.1.0.
    pub async fn sequences(&self, name: Option<&str>, page: &Page) -> Result<List<Sequence>> {
        let mut query = page.query();
        query.extend(name.map(|name| ("name", name.to_owned())));
        self.0.call(&Call::get(&["v1", "ids", "sequences"], &query)).await
    }

    /// Creates a sequence, or changes the fields that the request names.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` for a start that is not above all granted numbers.
    pub async fn set_sequence(&self, name: &str, change: &SequenceRequest) -> Result<Sequence> {
        self.0.call(&Call::put(&["v1", "ids", "sequences", name], change)).await
    }

    /// `count` UUIDs, 1 to 10,000, of version 4 or 7.
    ///
    /// # Errors
    /// [`crate::Error`]; `invalid` for another version.
    pub async fn uuids(&self, version: u8, count: u32) -> Result<Uuids> {
        let query = [("version", version.to_string()), counted(count)];
        self.0.call(&Call::get(&["v1", "ids", "uuid"], &query)).await
    }
}

fn counted(count: u32) -> (&'static str, String) {
    ("count", count.to_string())
}
