//! What a node writes down of itself.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

/// One attempt of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The job's id.
    pub job: String,
    /// Which attempt.
    pub attempt: u64,
}

/// What the dispatch of a plan's stage says beside the payload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Stage {
    /// The plan's id.
    pub plan: String,
    /// The task's id.
    pub task: String,
    /// The tenant that the task is for.
    pub tenant: String,
    /// The number of the task's run.
    pub run: u64,
    /// The stage's name.
    pub name: String,
    /// Which stage of the task, counted from 1.
    pub number: u64,
    /// The context that the stages before have left.
    pub context: Value,
    /// The tenant's configuration.
    pub config: Value,
    /// The fencing token of the tenant's lock.
    pub tenant_token: i64,
}

/// A node's diary, in the order of its lines.
#[derive(Clone, Debug, Default)]
pub struct Diary {
    /// The node's name.
    pub node: String,
    /// How much it may run at once.
    pub capacity: usize,
    /// The lines.
    pub lines: Vec<Line>,
    /// What it was told to be wrong, which an honest node is not to hear.
    pub blames: Vec<String>,
    /// How often its socket was closed with which code.
    pub closes: std::collections::BTreeMap<u16, u64>,
}

/// A line of a diary.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// When, in microseconds since 1970.
    pub at_us: u64,
    /// What.
    pub wrote: Wrote,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrote {
    /// It began to run this.
    Began {
        /// The attempt.
        run: Run,
        /// The session that it belongs to, and its place there.
        place: Option<(String, u64)>,
        /// The stage that it runs, if the job is a plan's.
        stage: Option<Box<Stage>>,
    },
    /// It runs this no more.
    Ended {
        /// The attempt.
        run: Run,
        /// What it says of it.
        said: Said,
    },
    /// The scheduler has confirmed, or does not want, what it said.
    Settled(Run),
    /// It died with all that it had.
    Died,
    /// An instance has welcomed it. Only nodes in this process write down this and what follows.
    Joined,
    /// It has no connection any more.
    Parted,
    /// It stands still from now on.
    Stopped,
    /// It has woken.
    Woke,
}

impl Wrote {
    /// Whether it is about this job.
    #[must_use]
    pub fn is_of(&self, job: &str) -> bool {
        match self {
            Self::Began { run, .. } | Self::Ended { run, .. } | Self::Settled(run) => run.job == job,
            Self::Died | Self::Joined | Self::Parted | Self::Stopped | Self::Woke => false,
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// With this output.
    Output(Value),
    /// It failed.
    Failure,
    /// It was called off.
    Nothing,
}

/// Now, in microseconds since 1970.
pub(super) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
