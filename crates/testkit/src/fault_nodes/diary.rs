//! What a node writes down of itself.

use std::collections::HashSet;
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

impl Diary {
    /// What it tells of the stages of plans, or of all other jobs. Only nodes in this process know a stage.
    #[must_use]
    pub fn only(&self, stages: bool) -> Self {
        let of_stages: HashSet<&Run> =
            self.lines.iter().filter_map(|line| line.wrote.began_stage()).collect();
        let is_kept = |line: &&Line| match &line.wrote {
            Wrote::Began { run, .. } | Wrote::Ended { run, .. } | Wrote::Settled { run, .. } => {
                of_stages.contains(run) == stages
            }
            _ => true,
        };
        Self { lines: self.lines.iter().filter(is_kept).cloned().collect(), ..self.clone() }
    }

    /// Whether the node stands still at the end of it. Only nodes in this process write that down.
    #[must_use]
    pub fn ends_standing_still(&self) -> bool {
        let still = self.lines.iter().rev().find_map(|line| match line.wrote {
            Wrote::Stopped => Some(true),
            Wrote::Woke => Some(false),
            _ => None,
        });
        still.unwrap_or_default()
    }
}

/// A line of a diary.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// When, in microseconds since 1970.
    pub at_us: u64,
    /// What the node wrote.
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
    Settled {
        /// The attempt.
        run: Run,
        /// Whether it was confirmed (`committed`), or is not wanted (`stale`).
        is_committed: bool,
    },
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
    fn began_stage(&self) -> Option<&Run> {
        match self {
            Self::Began { run, stage: Some(_), .. } => Some(run),
            _ => None,
        }
    }

    /// Whether it is about this job.
    #[must_use]
    pub fn is_of(&self, job: &str) -> bool {
        match self {
            Self::Began { run, .. } | Self::Ended { run, .. } | Self::Settled { run, .. } => run.job == job,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diary_tells_of_stages_or_of_all_else_and_always_of_the_node() {
        let run = |job: &str| Run { job: job.to_owned(), attempt: 1 };
        let stage = Stage {
            plan: "p".to_owned(),
            task: "t".to_owned(),
            tenant: "x".to_owned(),
            run: 1,
            name: "s".to_owned(),
            number: 1,
            context: Value::Null,
            config: Value::Null,
            tenant_token: 1,
        };
        let wrote = [
            Wrote::Joined,
            Wrote::Began { run: run("stage"), place: None, stage: Some(Box::new(stage)) },
            Wrote::Began { run: run("job"), place: None, stage: None },
            Wrote::Ended { run: run("stage"), said: Said::Failure },
            Wrote::Settled { run: run("job"), is_committed: true },
            Wrote::Parted,
        ];
        let lines = wrote.iter().zip(0..).map(|(wrote, at_us)| Line { at_us, wrote: wrote.clone() });
        let diary = Diary { lines: lines.collect(), ..Diary::default() };
        let at = |stages| diary.only(stages).lines.iter().map(|line| line.at_us).collect::<Vec<_>>();
        assert_eq!((at(true), at(false)), (vec![0, 1, 3, 5], vec![0, 2, 4, 5]));
    }

    #[test]
    fn a_node_stands_still_until_it_wakes() {
        let still = |wrote: &[Wrote]| {
            let lines = wrote.iter().map(|wrote| Line { at_us: 1, wrote: wrote.clone() });
            Diary { lines: lines.collect(), ..Diary::default() }.ends_standing_still()
        };
        assert!(!still(&[Wrote::Joined]));
        assert!(still(&[Wrote::Joined, Wrote::Stopped]));
        assert!(!still(&[Wrote::Stopped, Wrote::Woke, Wrote::Parted]));
        assert!(still(&[Wrote::Stopped, Wrote::Woke, Wrote::Stopped]));
    }
}
