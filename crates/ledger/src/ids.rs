//! The durable state of ids: worker numbers with their time marks, ranges of segments, sequences.

use std::ops::Range;

use domain::limits::{SEGMENT_STEP_DEFAULT, SEQUENCE_GRANT_MAX};
use domain::{AuditEntry, InstanceId, SegmentTag, SequenceName, Timestamp, Token, WorkerNumber, shard_of};

use crate::train::{CommitBatch, FenceClaim};
use crate::{Error, Result};

/// The default start of a tag or sequence.
const START_DEFAULT: u64 = 1;

/// A worker number that was acquired at least once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRecord {
    /// The number.
    pub number: WorkerNumber,
    /// Whose it is, also where the lease has run out; `None` once it is given back.
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
    /// Whether it never comes back: its `instance:` lease is another's by now, or nobody's. One that neither lives nor is gone
    /// may be about to renew itself.
    pub is_gone: bool,
    /// How long its lease of the number still runs, in milliseconds; 0 when it ran out.
    pub expires_in_ms: u64,
}

/// One owner's claim to one worker number, by its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerClaim {
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

/// The answer to a request for a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeTaken {
    /// A range that no other instance has.
    Taken {
        /// Its ids.
        range: Range<u64>,
        /// The step that the tag names now.
        step: u64,
    },
    /// The tag does not exist.
    Unknown,
    /// A range of that length would go beyond 2^63 − 1.
    Exhausted,
}

/// The answer to a request for numbers of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceGrant {
    /// As many as were asked for: `first`, `first + increment`, and so on.
    Granted {
        /// The lowest.
        first: u64,
        /// From each to the next.
        increment: u64,
    },
    /// The sequence does not exist.
    Unknown,
    /// The numbers asked for would go beyond 2^63 − 1.
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
    /// The ledger does not know it, and may have lost it: it was recovered from an older state, and nobody has said since that
    /// unknown signers are new. No start is named, and the first one may have been given out. Nothing changed.
    StartUnknown,
    /// There are too many of them.
    Full,
}

/// The durable state of ids.
#[async_trait::async_trait]
pub trait Ids: Send + Sync {
    /// The database's time, in milliseconds since 1970.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn clock_ms(&self) -> Result<u64>;

    /// Whether the ledger is as far as this process knows. One that is not grants nothing, but leases: look before one is
    /// acquired that would be of no use. A SQLite file is, unless it was seen to have lost its name.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn is_current(&self) -> Result<bool>;

    /// The worker numbers that were ever acquired, or have a mark ahead of the clock, in no order.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and defects.
    async fn id_workers(&self) -> Result<Vec<WorkerRecord>>;

    /// Records a new holder and returns the mark of the holders before it: no id may have an earlier time.
    /// `None` if another instance holds the lease by now. Call this after the acquire was answered.
    ///
    /// # Errors
    /// [`Error`]; repeating is harmless. [`Error::WentBack`] where the ledger is behind what this process knows.
    async fn open_id_worker(&self, claim: &WorkerClaim, node: &str) -> Result<Option<Marked>>;

    /// Raises the mark to `mark_ms`, though no further than `ahead_max_ms` ahead of the database's clock, and
    /// never lowers it. Answers where it is then; `None` where the lease is another's by now.
    ///
    /// # Errors
    /// [`Error`]; after [`Error::Unknown`] it may be raised all the same. [`Error::WentBack`] where the ledger is behind what
    /// this process knows.
    async fn mark_id_worker(
        &self,
        claim: &WorkerClaim,
        mark_ms: u64,
        ahead_max_ms: u64,
    ) -> Result<Option<Marked>>;

    /// Lowers the mark to `mark_ms`, for a holder that makes no ids any more. `None` where the lease is another's
    /// by now.
    ///
    /// # Errors
    /// [`Error`]; the mark may then be lowered or not.
    async fn lower_id_worker(&self, claim: &WorkerClaim, mark_ms: u64) -> Result<Option<Marked>>;

    /// Takes the next range of a tag: as long as its step, or `at_least` numbers if that is more.
    ///
    /// # Errors
    /// [`Error`]; after [`Error::Unknown`] a range may have been taken that is then never used.
    async fn take_range(&self, tag: &SegmentTag, at_least: u64) -> Result<RangeTaken>;

    /// Makes a tag, or changes what is named of it. The audit entry gets all that operators set of the tag, as it was and as it
    /// becomes. Where all of it is so already, nothing is changed, nor noted. A recovered ledger that may have lost the tag makes
    /// it with a start alone ([`Put::StartUnknown`]).
    ///
    /// # Errors
    /// [`Error`]; repeating is harmless.
    async fn put_segment(
        &self,
        tag: &SegmentTag,
        change: &SegmentChange,
        by: &AuditEntry,
    ) -> Result<Put<SegmentRecord>>;

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
    /// [`Error`]; after [`Error::Unknown`] numbers may have been granted that no caller gets.
    async fn grant_sequence(&self, sequence: &SequenceName, count: u64) -> Result<SequenceGrant>;

    /// Makes a sequence, or changes what is named of it, as [`Self::put_segment`] does.
    ///
    /// # Errors
    /// [`Error`]; repeating is harmless.
    async fn put_sequence(
        &self,
        sequence: &SequenceName,
        change: &SequenceChange,
        by: &AuditEntry,
    ) -> Result<Put<SequenceRecord>>;

    /// Reads a sequence.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and defects.
    async fn sequence(&self, sequence: &SequenceName) -> Result<Option<SequenceRecord>>;

    /// Lists sequences in the order of their names.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and defects.
    async fn sequences(&self, after: Option<&SequenceName>, limit: u32) -> Result<Vec<SequenceRecord>>;
}

/// A request for numbers of a sequence, as a batch.
pub(crate) struct Grant {
    pub(crate) sequence: SequenceName,
    pub(crate) count: u64,
}

impl CommitBatch for Grant {
    type Verdict = SequenceGrant;
    type Claim = SequenceName;

    const NAME: &'static str = "sequences";

    fn check(&self) -> Result<()> {
        if (1..=SEQUENCE_GRANT_MAX).contains(&self.count) {
            return Ok(());
        }
        let what = format!("{} numbers are asked for; 1 to {SEQUENCE_GRANT_MAX} are allowed", self.count);
        Err(Error::refused(sqlx::Error::InvalidArgument(what)))
    }

    fn line(&self) -> Option<SequenceName> {
        Some(self.sequence.clone())
    }

    fn shard(&self, committers: usize) -> Option<usize> {
        Some(shard_of(self.sequence.as_str(), committers))
    }

    fn claims(&self) -> impl Iterator<Item = SequenceName> {
        std::iter::empty()
    }

    fn rows(&self) -> usize {
        1
    }

    /// A sequence has no owner: its row is the truth, and is changed where it is.
    fn fence_claim(&self) -> Option<FenceClaim<'_>> {
        None
    }
}

/// As the condition in the statements has it.
fn may_start(wanted: Option<u64>, start: u64, next: u64) -> bool {
    wanted.is_none_or(|wanted| wanted == start || (wanted > start && wanted >= next))
}

impl SegmentRecord {
    /// What operators set of it, for the audit. The description comes last, as it may be any text.
    pub(crate) fn settings(&self) -> String {
        let numbers = format!("start={} step={}", self.start, self.step);
        match self.description.as_str() {
            "" => numbers,
            description => format!("{numbers} description={description}"),
        }
    }
}

impl SequenceRecord {
    /// What operators set of it, for the audit.
    pub(crate) fn settings(&self) -> String {
        format!("start={} increment={}", self.start, self.increment)
    }
}

impl SegmentChange {
    /// Whether the tag is as it is to become.
    pub(crate) fn is_done_in(&self, record: &SegmentRecord) -> bool {
        self.start.is_none_or(|start| start == record.start)
            && self.step.is_none_or(|step| step == record.step)
            && self.description.as_ref().is_none_or(|description| *description == record.description)
    }

    /// Whether the tag takes it.
    pub(crate) fn is_admitted_by(&self, record: &SegmentRecord) -> bool {
        may_start(self.start, record.start, record.next)
    }

    /// Start, step and description of a tag that is made with this.
    pub(crate) fn made(&self) -> (i64, i64, String) {
        let start = self.start.unwrap_or(START_DEFAULT) as i64;
        let step = self.step.unwrap_or(SEGMENT_STEP_DEFAULT) as i64;
        (start, step, self.description.clone().unwrap_or_default())
    }
}

impl SequenceChange {
    /// Whether the sequence is as it is to become.
    pub(crate) fn is_done_in(&self, record: &SequenceRecord) -> bool {
        self.start.is_none_or(|start| start == record.start)
            && self.increment.is_none_or(|increment| increment == record.increment)
    }

    /// Whether the sequence takes it.
    pub(crate) fn is_admitted_by(&self, record: &SequenceRecord) -> bool {
        may_start(self.start, record.start, record.next)
    }

    /// Start and increment of a sequence that is made with this.
    pub(crate) fn made(&self) -> (i64, i64) {
        (self.start.unwrap_or(START_DEFAULT) as i64, self.increment.unwrap_or(1) as i64)
    }
}
