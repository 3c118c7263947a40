//! The frames of the worker socket as types of the domain. Their JSON form is in `wire`.

use std::sync::Arc;

use bus::Slot;
use domain::job::NodeJob;
use domain::{InstanceId, Label, NodeId, PoolName};

use crate::record::Load;

/// What a node sends.
#[derive(Clone, Debug, PartialEq)]
pub enum FromNode {
    /// Who it is. The first frame, and never again.
    Hello(Hello),
    /// A heartbeat.
    Heartbeat {
        /// How busy its machine is.
        load: Load,
        /// What it runs, or has the unanswered result of.
        running: Vec<Slot>,
    },
    /// It takes work again.
    Ready,
    /// It takes no more work.
    Drain,
    /// It begins this attempt.
    Ack(Slot),
    /// It does not begin this attempt.
    Reject {
        /// The attempt.
        slot: Slot,
        /// The reason, in the node's words.
        reason: String,
    },
    /// Progress of an attempt.
    Progress {
        /// The attempt.
        slot: Slot,
        /// How far it is.
        progress: Progress,
    },
    /// An attempt has ended.
    Result {
        /// The attempt.
        slot: Slot,
        /// How it ended.
        end: End,
    },
}

/// Who a node is and what it can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The node.
    pub node: NodeId,
    /// Attempts that it may run at once, at least one.
    pub capacity: u32,
    /// Whether several frames may be sent in one message.
    pub takes_batches: bool,
    /// See [`crate::Abilities::into_labels`].
    pub labels: Arc<[Label]>,
    /// Those of the labels that are services.
    pub services: Arc<[Label]>,
    /// The only pools that it joins.
    pub pools: Option<Arc<[PoolName]>>,
    /// What it calls its software.
    pub software: Option<Arc<str>>,
    /// Whether an operator drains it, as its last connection said.
    pub is_drained: bool,
    /// What it runs, or has the unanswered result of.
    pub running: Vec<Slot>,
    /// Whose token connects it; empty where there are no tokens.
    pub principal: Arc<str>,
}

/// A percentage from 0 to 100, as the node sent it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(f64);

/// It is never NaN.
impl Eq for Percent {}

impl Percent {
    /// The percentage; `None` for a number that is none.
    #[must_use]
    pub fn new(percent: f64) -> Option<Self> {
        (0.0..=100.0).contains(&percent).then_some(Self(percent))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// How far an attempt is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How much of it is done.
    pub percent: Option<Percent>,
    /// In words.
    pub note: Option<String>,
}

/// How an attempt ended, as the node reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this output: JSON text.
    Succeeded {
        /// The text.
        output: String,
    },
    /// Without an output.
    Failed {
        /// What went wrong.
        message: String,
        /// Whether trying again may help.
        is_retryable: bool,
    },
}

impl End {
    /// The bytes of its text.
    #[must_use]
    pub const fn text_bytes(&self) -> usize {
        match self {
            Self::Succeeded { output } => output.len(),
            Self::Failed { message, .. } => message.len(),
        }
    }
}

/// What a node is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToNode {
    /// It is registered.
    Welcome {
        /// As it called itself.
        node: NodeId,
        /// Who holds its socket.
        instance: InstanceId,
        /// How often it is to send a heartbeat, in milliseconds.
        heartbeat_ms: u64,
    },
    /// Its heartbeat was heard, or an operator has changed whether it is drained.
    HeartbeatOk {
        /// Whether an operator drains it.
        is_drained: bool,
    },
    /// A job to run.
    Dispatch(Dispatch),
    /// An attempt to stop.
    Cancel(Slot),
    /// The result is durable: forget it.
    Committed(Slot),
    /// Not this attempt any more: forget it.
    Stale(Slot),
}

/// A job to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Which attempt of which job.
    pub slot: Slot,
    /// What the node is given.
    pub node_job: NodeJob,
}
