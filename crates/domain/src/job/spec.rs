//! What was submitted: the fields of a job, and which of them its node is given.
//!
//! This file decides what the fields are and which values they may have. How they are written is for the ledger and the
//! wire: docs/a-new-job-field.md lists those places.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::id::{Invalid, JobId, JobKind, Label, Language, PoolName, SessionId, TenantId};
use crate::limits::{
    BACKOFF_FACTOR_PERCENT_MAX, BACKOFF_FACTOR_PERCENT_MIN, BACKOFF_MS_MAX, JOB_TIMEOUT_MS_DEFAULT,
    MAX_ATTEMPTS_DEFAULT, METADATA_ENTRIES_MAX, METADATA_KEY_BYTES_MAX, METADATA_VALUE_BYTES_MAX,
    PRIORITY_MAX, PRIORITY_MIN,
};
use crate::time::Timestamp;
use crate::trace_parent::TraceParent;

/// What was submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The input that the node gets: JSON text, at most [`crate::limits::PAYLOAD_BYTES_MAX`] bytes.
    pub payload: Arc<str>,
    /// What the job does, in its client's word. It decides nothing.
    pub kind: Option<JobKind>,
    /// The client's own strings. They do not affect how the job is handled.
    pub metadata: Metadata,
    /// The session that the job belongs to.
    pub session: Option<SessionId>,
    /// The tenant that the job is for.
    pub tenant: Option<TenantId>,
    /// What the job requires of its node.
    pub needs: Requirements,
    /// The job's rank among the waiting jobs of its pool.
    pub priority: Priority,
    /// How long one attempt may run, in milliseconds.
    pub timeout_ms: u64,
    /// How many attempts may fail before the job is dead.
    pub max_attempts: u32,
    /// The delay before the next attempt.
    pub backoff: Backoff,
    /// What happens to the job when its lane gets a new owner.
    pub on_recovery: OnRecovery,
    /// Of a job that is a plan's stage: what its node gets of the plan, as JSON text. The limits of a context and of a
    /// tenant's configuration bound it. No client gives it.
    pub stage: Option<Arc<str>>,
    /// The span of the request that submitted the job. The job's attempts continue it.
    pub traceparent: Option<TraceParent>,
}

/// What the node of a job is given. It passes unchanged from the job's lane to the node's socket within an instance; between
/// instances only the attempt is named, and the one with the socket reads the job from the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeJob {
    /// See [`Spec::payload`].
    pub payload: Arc<str>,
    /// See [`Spec::kind`].
    pub kind: Option<JobKind>,
    /// See [`Spec::metadata`].
    pub metadata: Metadata,
    /// The session that the job belongs to, and its place there.
    pub session: Option<(SessionId, u64)>,
    /// See [`Spec::timeout_ms`].
    pub timeout_ms: u64,
    /// See [`Spec::stage`].
    pub stage: Option<Arc<str>>,
    /// The span that the node's work continues.
    pub traceparent: Option<TraceParent>,
    /// The job that it repeats by hand.
    pub retry_of: Option<JobId>,
}

impl NodeJob {
    /// The bytes of its long texts, by which queues are bounded.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        text_bytes(&self.payload, &self.metadata, self.stage.as_deref())
    }
}

impl Spec {
    /// A job with this payload that asks for nothing else.
    #[must_use]
    pub fn new(payload: impl Into<Arc<str>>) -> Self {
        Self {
            payload: payload.into(),
            kind: None,
            metadata: Metadata::default(),
            session: None,
            tenant: None,
            needs: Requirements::default(),
            priority: Priority::default(),
            timeout_ms: JOB_TIMEOUT_MS_DEFAULT,
            max_attempts: MAX_ATTEMPTS_DEFAULT,
            backoff: Backoff::default(),
            on_recovery: OnRecovery::default(),
            stage: None,
            traceparent: None,
        }
    }

    /// What the node of the job is given. `seq` is the job's place in its session, `retry_of` the job that it repeats by hand.
    #[must_use]
    pub fn node_job(&self, seq: Option<u64>, retry_of: Option<JobId>) -> NodeJob {
        NodeJob {
            payload: Arc::clone(&self.payload),
            kind: self.kind.clone(),
            metadata: self.metadata.clone(),
            session: self.session.clone().zip(seq),
            timeout_ms: self.timeout_ms,
            stage: self.stage.clone(),
            traceparent: self.traceparent,
            retry_of,
        }
    }

    /// What the job is counted by.
    #[must_use]
    pub fn class(&self) -> Class {
        Class { pool: self.needs.pool.clone(), tenant: self.tenant.clone(), kind: self.kind.clone() }
    }

    /// The bytes of its long texts, by which queues and batches are bounded.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        text_bytes(&self.payload, &self.metadata, self.stage.as_deref())
    }
}

/// The bytes of the texts of a job that may be long.
fn text_bytes(payload: &str, metadata: &Metadata, stage: Option<&str>) -> usize {
    payload.len() + metadata.bytes() + stage.map_or(0, str::len)
}

/// What jobs are counted by, for people. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Class {
    /// The pool that the job names.
    pub pool: Option<PoolName>,
    /// See [`Spec::tenant`].
    pub tenant: Option<TenantId>,
    /// See [`Spec::kind`].
    pub kind: Option<JobKind>,
}

/// Strings of a client under keys of its choice: at most [`METADATA_ENTRIES_MAX`]. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(Option<Arc<BTreeMap<String, String>>>);

impl Metadata {
    /// Checks the number of strings and the bytes of each. An empty map is no metadata.
    ///
    /// # Errors
    /// [`Invalid`], naming the limit.
    pub fn new(strings: BTreeMap<String, String>) -> Result<Self, Invalid> {
        let invalid = |expected| Err(Invalid { what: "metadata", expected });
        if strings.len() > METADATA_ENTRIES_MAX {
            return invalid(format!("a map of at most {METADATA_ENTRIES_MAX} strings"));
        }
        if strings.keys().any(|key| key.is_empty() || key.len() > METADATA_KEY_BYTES_MAX) {
            return invalid(format!("a map whose keys have 1 to {METADATA_KEY_BYTES_MAX} bytes each"));
        }
        if strings.values().any(|value| value.len() > METADATA_VALUE_BYTES_MAX) {
            return invalid(format!("a map whose values have at most {METADATA_VALUE_BYTES_MAX} bytes each"));
        }
        Ok(Self((!strings.is_empty()).then(|| Arc::new(strings))))
    }

    /// The strings by their keys; `None` without any.
    #[must_use]
    pub fn strings(&self) -> Option<&BTreeMap<String, String>> {
        self.0.as_deref()
    }

    fn bytes(&self) -> usize {
        self.strings().into_iter().flatten().map(|(key, value)| key.len() + value.len()).sum()
    }
}

/// Who is served first among the waiting jobs of a pool: −10 to 10, higher first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(i8);

impl Priority {
    /// Checks the range.
    ///
    /// # Errors
    /// [`Invalid`] outside it.
    pub fn new(number: i64) -> Result<Self, Invalid> {
        match i8::try_from(number) {
            Ok(number) if (PRIORITY_MIN..=PRIORITY_MAX).contains(&number) => Ok(Self(number)),
            _ => Err(Invalid { what: "priority", expected: format!("{PRIORITY_MIN} to {PRIORITY_MAX}") }),
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> i8 {
        self.0
    }
}

/// From which language to which: a node must hear the one and speak the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The language that comes in.
    pub source: Language,
    /// The language that goes out.
    pub target: Language,
}

impl Route {
    /// Reads `source:target`, the form that pools are configured in.
    ///
    /// # Errors
    /// [`Invalid`] for anything else.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let (source, target) = text
            .split_once(':')
            .ok_or_else(|| Invalid { what: "route", expected: "source:target, such as zh:en".to_owned() })?;
        Ok(Self { source: Language::parse(source)?, target: Language::parse(target)? })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.target)
    }
}

/// What a job requires of the node that runs it. A job without requirements may run anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requirements {
    /// Only nodes of this pool.
    pub pool: Option<PoolName>,
    /// Only pools that serve this route.
    pub route: Option<Route>,
    /// Only nodes that have all of these.
    pub requires: Vec<Label>,
}

/// The delay before the next attempt: `initial_ms` at first, then each time `factor_percent` of the last
/// delay, up to `max_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure, in milliseconds.
    pub initial_ms: u64,
    /// How much longer each time, in percent; 200 doubles.
    pub factor_percent: u32,
    /// Never longer than this, in milliseconds.
    pub max_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial_ms: 1_000, factor_percent: 200, max_ms: 60_000 }
    }
}

impl Backoff {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Invalid`], naming what is out of range.
    pub fn check(self) -> Result<Self, Invalid> {
        let invalid = |what, expected| Err(Invalid { what, expected });
        if self.initial_ms > BACKOFF_MS_MAX {
            return invalid("backoff.initial_ms", format!("0 to {BACKOFF_MS_MAX}"));
        }
        if !(BACKOFF_FACTOR_PERCENT_MIN..=BACKOFF_FACTOR_PERCENT_MAX).contains(&self.factor_percent) {
            let (min, max) = (BACKOFF_FACTOR_PERCENT_MIN / 100, BACKOFF_FACTOR_PERCENT_MAX / 100);
            return invalid("backoff.factor", format!("{min} to {max}"));
        }
        if self.max_ms > BACKOFF_MS_MAX || self.max_ms < self.initial_ms {
            return invalid(
                "backoff.max_ms",
                format!("at least backoff.initial_ms, and at most {BACKOFF_MS_MAX}"),
            );
        }
        Ok(self)
    }

    /// The pause after so many failures, in whole milliseconds, rounded up. `spread` (0 to 1, drawn by the caller) takes up to
    /// half of it away, so that what failed together does not come back together.
    #[must_use]
    pub fn pause_ms(self, failures: u32, spread: f64) -> u64 {
        let mut pause = self.initial_ms;
        for _ in 1..failures.min(64) {
            pause = pause.saturating_mul(u64::from(self.factor_percent)).div_ceil(100);
            if pause >= self.max_ms {
                break;
            }
        }
        let pause = pause.min(self.max_ms);
        pause - (pause as f64 / 2.0 * spread.clamp(0.0, 1.0)) as u64
    }
}

/// What happens to a job once its lane has a new owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRecovery {
    /// It is dispatched again.
    #[default]
    Run,
    /// It will be held. Until then it is dispatched like any other.
    Hold,
    /// It is held: its lane has had a new owner. No attempt of it begins any more, whatever follows: a failure, a lost
    /// node, a third owner. A result of an attempt that began before still counts. No job is submitted so.
    Held,
}

impl OnRecovery {
    /// The name that tables show.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Hold => "hold",
            Self::Held => "held",
        }
    }

    /// Whether an attempt is revoked only on evidence that no node runs it. That nothing is heard of it is none: word of
    /// it may be late.
    #[must_use]
    pub const fn wants_evidence(self) -> bool {
        !matches!(self, Self::Run)
    }

    /// Reads the name of one that a job is submitted with.
    ///
    /// # Errors
    /// [`Invalid`], naming the two.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        match text {
            "run" => Ok(Self::Run),
            "hold" => Ok(Self::Hold),
            _ => Err(Invalid { what: "on_recovery", expected: "run or hold".to_owned() }),
        }
    }
}

/// When a job may be dispatched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// So many milliseconds after its commit.
    InMs(u64),
    /// Not before this moment.
    At(Timestamp),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_are_spread_over_half_of_it() {
        let backoff = Backoff { initial_ms: 100, factor_percent: 200, max_ms: 1_000 };
        let pauses: Vec<_> = (1..=6).map(|failures| backoff.pause_ms(failures, 0.0)).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(backoff.pause_ms(3, 1.0), 200);
        assert_eq!(backoff.pause_ms(u32::MAX, 0.5), 750);
        assert_eq!(Backoff { initial_ms: 0, ..backoff }.pause_ms(9, 0.5), 0);
        let short = Backoff { initial_ms: 1, factor_percent: 150, ..backoff };
        assert_eq!([1, 2, 3, 4, 5].map(|failures| short.pause_ms(failures, 0.0)), [1, 2, 3, 5, 8]);
    }

    #[test]
    fn backoffs_out_of_range_are_refused_by_name() {
        let good = Backoff::default();
        assert_eq!(good.check(), Ok(good));
        for (bad, what) in [
            (Backoff { initial_ms: BACKOFF_MS_MAX + 1, ..good }, "backoff.initial_ms"),
            (Backoff { factor_percent: 99, ..good }, "backoff.factor"),
            (Backoff { max_ms: 999, ..good }, "backoff.max_ms"),
        ] {
            assert_eq!(bad.check().unwrap_err().what, what);
        }
    }

    #[test]
    fn metadata_has_few_short_strings_or_is_none() {
        let of = |entries: &[(String, String)]| Metadata::new(entries.iter().cloned().collect());
        let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let many = |count: usize| (0..count).map(|n| entry(&n.to_string(), "")).collect::<Vec<_>>();
        for good in [
            vec![],
            many(METADATA_ENTRIES_MAX),
            vec![entry("k", ""), entry(&"k".repeat(METADATA_KEY_BYTES_MAX), "\0")],
            vec![entry("\u{10ffff}", &"v".repeat(METADATA_VALUE_BYTES_MAX))],
        ] {
            let metadata = of(&good).unwrap();
            let expected = good.iter().cloned().collect::<BTreeMap<_, _>>();
            assert_eq!(metadata.strings().cloned().unwrap_or_default(), expected);
            assert_eq!(metadata.strings().is_none(), good.is_empty());
        }
        for (bad, says) in [
            (many(METADATA_ENTRIES_MAX + 1), "at most 16 strings"),
            (vec![entry("", "v")], "keys have 1 to 64 bytes"),
            (vec![entry(&"k".repeat(METADATA_KEY_BYTES_MAX + 1), "v")], "keys have 1 to 64 bytes"),
            // Bytes count, not characters.
            (vec![entry(&"ü".repeat(METADATA_KEY_BYTES_MAX / 2 + 1), "v")], "keys have 1 to 64 bytes"),
            (vec![entry("k", &"v".repeat(METADATA_VALUE_BYTES_MAX + 1))], "values have at most 256 bytes"),
            (
                vec![entry("k", &"ü".repeat(METADATA_VALUE_BYTES_MAX / 2 + 1))],
                "values have at most 256 bytes",
            ),
        ] {
            let refused = of(&bad).unwrap_err();
            assert_eq!(refused.what, "metadata");
            assert!(refused.expected.contains(says), "{refused}");
        }
    }

    #[test]
    fn the_bytes_of_a_job_are_those_of_its_payload_and_its_metadata() {
        let metadata = Metadata::new(BTreeMap::from([("key".to_owned(), "value".to_owned())])).unwrap();
        let spec = Spec { metadata, ..Spec::new("{}") };
        assert_eq!((spec.text_bytes(), Spec::new("{}").text_bytes()), (10, 2));
        let traceparent = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let spec = Spec { stage: Some("[1]".into()), traceparent, ..spec };
        assert_eq!(spec.text_bytes(), 13);
        let spec = Spec { kind: Some(JobKind::parse("render").unwrap()), ..spec };
        let first = JobId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
        let given = spec.node_job(None, Some(first));
        assert_eq!(
            (given.kind, given.metadata, given.stage, given.traceparent, given.retry_of),
            (spec.kind, spec.metadata, spec.stage, traceparent, Some(first))
        );
    }

    #[test]
    fn routes_read_back_what_they_print_and_priorities_have_a_range() {
        let route = Route::parse("zh:en-GB").unwrap();
        assert_eq!(
            (route.source.as_str(), route.target.as_str(), route.to_string().as_str()),
            ("zh", "en-GB", "zh:en-GB")
        );
        for bad in ["zh", "", ":", "zh:", "z h:en"] {
            assert!(Route::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Priority::new(10).is_ok() && Priority::new(-10).is_ok());
        assert!(Priority::new(11).is_err() && Priority::new(-300).is_err());
    }

    #[test]
    fn a_job_is_submitted_to_run_or_to_be_held_and_never_held_already() {
        for asked in [OnRecovery::Run, OnRecovery::Hold] {
            assert_eq!(OnRecovery::parse(asked.as_str()), Ok(asked));
        }
        assert!(OnRecovery::parse(OnRecovery::Held.as_str()).is_err());
    }
}
