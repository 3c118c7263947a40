//! What ids are made of: worker numbers with their time marks, ranges of segments, sequences.

use std::ops::Range;

use domain::limits::{SEGMENT_STEP_DEFAULT, SEQUENCE_GRANT_MAX};
use domain::{InstanceId, SegmentTag, SequenceName, Timestamp, Token, WorkerNumber};

use crate::train::{Cargo, Tenure};
use crate::{Error, Result};

/// Where a tag or sequence begins when nobody says.
pub(crate) const START_DEFAULT: u64 = 1;
/// Each round of a change that comes to nothing is one in which somebody else changed the same.
const CHANGE_ROUNDS_MAX: usize = 8;

/// A worker number that was acquired at least once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRecord {
    /// The number.
    pub number: WorkerNumber,
    /// Who has a live lease of it.
    pub holder: Option<WorkerHolder>,
    /// The node of its last holder.
    pub node: Option<String>,
    /// No id of it has this time or a later one, in milliseconds since 1970.
    pub mark_ms: u64,
}

/// Who has a worker number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerHolder {
    /// The instance.
    pub id: InstanceId,
    /// Whether it lives: its own `instance:` lease is live.
    pub lives: bool,
    /// How long its lease of the number still runs, in milliseconds.
    pub expires_in_ms: u64,
}

/// One owner's time with one worker number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerTenure {
    /// The number.
    pub number: WorkerNumber,
    /// Who acquired it.
    pub owner: InstanceId,
    /// Under which token.
    pub token: Token,
}

/// Where a number's mark is, and what time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// No id has this time or a later one, in milliseconds since 1970.
    pub mark_ms: u64,
    /// The database's time, in milliseconds since 1970.
    pub database_ms: u64,
}

/// The answer to a wish for a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeTaken {
    /// A range that is in nobody else's hands.
    Taken {
        /// Its ids.
        range: Range<u64>,
        /// The step that the tag names now.
        step: u64,
    },
    /// Nobody has made the tag.
    Unknown,
    /// A range of that length would go beyond 2^63 − 1.
    Exhausted,
}

/// The answer to a wish for numbers of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceGrant {
    /// As many as were asked for: `first`, `first + increment`, and so on.
    Granted {
        /// The lowest.
        first: u64,
        /// From each to the next.
        increment: u64,
    },
    /// Nobody has made the sequence.
    Unknown,
    /// So many would go beyond 2^63 − 1.
    Exhausted,
}

/// A tag, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Its name.
    pub tag: SegmentTag,
    /// Where it began, as was last asked for.
    pub start: u64,
    /// The first id that is in no range yet.
    pub next: u64,
    /// The shortest range.
    pub step: u64,
    /// What people say of it.
    pub description: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When a range was taken or something changed last.
    pub updated_at: Timestamp,
}

/// A sequence, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceRecord {
    /// Its name.
    pub sequence: SequenceName,
    /// Where it began, as was last asked for.
    pub start: u64,
    /// The next number to be granted.
    pub next: u64,
    /// From each number to the next.
    pub increment: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When numbers were granted or something changed last.
    pub updated_at: Timestamp,
}

/// What to change of a tag. What is not named stays, or begins with its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentChange {
    /// Where it goes on. Only rises, past all that is given out.
    pub start: Option<u64>,
    /// The shortest range.
    pub step: Option<u64>,
    /// What people say of it.
    pub description: Option<String>,
}

/// What to change of a sequence. What is not named stays, or begins with its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceChange {
    /// Where it goes on. Only rises, past all that is granted.
    pub start: Option<u64>,
    /// From each number to the next.
    pub increment: Option<u64>,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put<Record> {
    /// It is so now.
    Done(Record),
    /// The start named is below what is given out already. Nothing changed; so it stands.
    StartTaken(Record),
    /// There are too many of them.
    Full,
}

/// What ids are made of.
#[async_trait::async_trait]
pub trait Ids: Send + Sync {
    /// The database's time, in milliseconds since 1970.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn clock_ms(&self) -> Result<u64>;

    /// The worker numbers that were ever acquired, in no order.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and defects.
    async fn id_workers(&self) -> Result<Vec<WorkerRecord>>;

    /// Begins a tenure and answers the mark that those before have left: no id may have an earlier time. `None`
    /// where the lease is another's by now. To be called after the acquire was answered.
    ///
    /// # Errors
    /// [`Error`]; repeating is harmless.
    async fn open_id_worker(&self, tenure: &WorkerTenure, node: &str) -> Result<Option<Marked>>;

    /// Raises the mark to `mark_ms`, though no further than `ahead_max_ms` ahead of the database's clock, and
    /// never lowers it. Answers where it is then; `None` where the lease is another's by now.
    ///
    /// # Errors
    /// [`Error`]; after [`Error::Unknown`] it may be raised all the same.
    async fn mark_id_worker(
        &self,
        tenure: &WorkerTenure,
        mark_ms: u64,
        ahead_max_ms: u64,
    ) -> Result<Option<Marked>>;

    /// Lowers the mark to `mark_ms`, for a tenure that makes no ids any more. `None` where the lease is another's
    /// by now.
    ///
    /// # Errors
    /// [`Error`]; the mark may then be lowered or not.
    async fn lower_id_worker(&self, tenure: &WorkerTenure, mark_ms: u64) -> Result<Option<Marked>>;

    /// Takes the next range of a tag: as long as its step, and `at_least` so long.
    ///
    /// # Errors
    /// [`Error`]; after [`Error::Unknown`] a range may be taken that nobody knows of. It is never used.
    async fn take_range(&self, tag: &SegmentTag, at_least: u64) -> Result<RangeTaken>;

    /// Makes a tag, or changes what is named of it.
    ///
    /// # Errors
    /// [`Error`]; repeating is harmless.
    async fn put_segment(&self, tag: &SegmentTag, change: &SegmentChange) -> Result<Put<SegmentRecord>>;

    /// Reads a tag.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and defects.
    async fn segment(&self, tag: &SegmentTag) -> Result<Option<SegmentRecord>>;

    /// Lists tags in the order of their names.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and defects.
    async fn segments(&self, after: Option<&SegmentTag>, limit: u32) -> Result<Vec<SegmentRecord>>;

    /// Grants the next `count` numbers of a sequence, 1 to [`SEQUENCE_GRANT_MAX`]. It leaves with the next train.
    ///
    /// # Errors
    /// [`Error`]; after [`Error::Unknown`] numbers may be granted that nobody knows of.
    async fn grant_sequence(&self, sequence: &SequenceName, count: u64) -> Result<SequenceGrant>;

    /// Makes a sequence, or changes what is named of it.
    ///
    /// # Errors
    /// [`Error`]; repeating is harmless.
    async fn put_sequence(
        &self,
        sequence: &SequenceName,
        change: &SequenceChange,
    ) -> Result<Put<SequenceRecord>>;

    /// Reads a sequence.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and defects.
    async fn sequence(&self, sequence: &SequenceName) -> Result<Option<SequenceRecord>>;
}

/// A wish for numbers of a sequence, as it rides.
pub(crate) struct Grant {
    pub(crate) sequence: SequenceName,
    pub(crate) count: u64,
}

impl Cargo for Grant {
    type Verdict = SequenceGrant;
    type Claim = SequenceName;

    const NAME: &'static str = "sequences";

    fn check(&self) -> Result<()> {
        if (1..=SEQUENCE_GRANT_MAX).contains(&self.count) {
            return Ok(());
        }
        let what = format!("a grant of {} numbers, {SEQUENCE_GRANT_MAX} at most", self.count);
        Err(Error::refused(sqlx::Error::InvalidArgument(what)))
    }

    fn line(&self) -> Option<SequenceName> {
        Some(self.sequence.clone())
    }

    fn claims(&self) -> impl Iterator<Item = SequenceName> {
        std::iter::empty()
    }

    fn rows(&self) -> usize {
        1
    }

    /// A sequence has no owner: its row is the truth, and is changed where it is.
    fn tenure(&self) -> Option<Tenure<'_>> {
        None
    }
}

/// What came of one statement of a change: the row as it is now, or none where its condition did not hold.
#[async_trait::async_trait]
pub(crate) trait Changing<Change: Sync> {
    type Name: Sync;
    type Record: Standing<Change>;

    async fn show(&self, name: &Self::Name) -> Result<Option<Self::Record>>;
    async fn change(&self, name: &Self::Name, change: &Change) -> Result<Option<Self::Record>>;
    async fn create(&self, name: &Self::Name, change: &Change) -> Result<Option<Self::Record>>;
}

/// A row that holds a change against itself.
pub(crate) trait Standing<Change> {
    fn admits(&self, change: &Change) -> bool;
}

impl Standing<SegmentChange> for SegmentRecord {
    fn admits(&self, change: &SegmentChange) -> bool {
        may_start(change.start, self.start, self.next)
    }
}

impl Standing<SequenceChange> for SequenceRecord {
    fn admits(&self, change: &SequenceChange) -> bool {
        may_start(change.start, self.start, self.next)
    }
}

/// As the condition in the statements has it.
fn may_start(wanted: Option<u64>, start: u64, next: u64) -> bool {
    wanted.is_none_or(|wanted| wanted == start || (wanted > start && wanted >= next))
}

/// Changes, else looks why not, else makes. Nothing is held between the steps; whoever wins a race wins it in one
/// statement.
pub(crate) async fn put<Change: Sync, L: Changing<Change>>(
    ledger: &L,
    name: &L::Name,
    change: &Change,
) -> Result<Put<L::Record>> {
    for _ in 0..CHANGE_ROUNDS_MAX {
        if let Some(record) = ledger.change(name, change).await? {
            return Ok(Put::Done(record));
        }
        match ledger.show(name).await? {
            Some(record) if !record.admits(change) => return Ok(Put::StartTaken(record)),
            // Made, or moved on, between the two looks.
            Some(_) => {}
            None => match ledger.create(name, change).await? {
                Some(record) => return Ok(Put::Done(record)),
                None if ledger.show(name).await?.is_none() => return Ok(Put::Full),
                None => {}
            },
        }
    }
    Err(Error::aborted(std::io::Error::other("it changed too quickly")))
}

impl SegmentChange {
    /// Start, step and description of a tag that is made with this.
    pub(crate) fn made(&self) -> (i64, i64, String) {
        let start = self.start.unwrap_or(START_DEFAULT) as i64;
        let step = self.step.unwrap_or(SEGMENT_STEP_DEFAULT) as i64;
        (start, step, self.description.clone().unwrap_or_default())
    }
}

impl SequenceChange {
    /// Start and increment of a sequence that is made with this.
    pub(crate) fn made(&self) -> (i64, i64) {
        (self.start.unwrap_or(START_DEFAULT) as i64, self.increment.unwrap_or(1) as i64)
    }
}

/// What the fenced statements on a worker number are bound to.
pub(crate) fn columns(tenure: &WorkerTenure) -> (i32, i64, String) {
    (i32::from(tenure.number.get()), tenure.token.get(), tenure.owner.to_string())
}
