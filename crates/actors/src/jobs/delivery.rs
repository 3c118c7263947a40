//! How an attempt gets from its lane's owner to the instance that holds its node's socket: straight where that is the
//! same instance, through its inbox otherwise. Delivered twice is harmless: the slot is sent once.

use std::sync::Arc;

use domain::job::{Attempt, Backoff, Newest, Placed};
use domain::{InstanceId, JobId, NodeId, Resource, SessionId};
use ledger::LiveJob;
use serde::{Deserialize, Serialize};

/// An attempt on its way to its node.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The job.
    pub job: JobId,
    /// Which attempt.
    pub attempt: Attempt,
    /// Who gets it, and who holds its socket.
    pub placed: Placed,
    /// What the node is given: JSON text.
    pub payload: Arc<str>,
    /// The conversation it belongs to.
    pub session: Option<SessionId>,
    /// Its place there.
    pub seq: Option<u64>,
    /// How long it may run, in milliseconds.
    pub timeout_ms: u64,
    /// What the holder must know to say what a failure leads to.
    pub(super) terms: Terms,
}

/// What decides about a job whose attempt failed.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) lane: Resource,
    pub(super) counted: u32,
    pub(super) max_attempts: u32,
    pub(super) backoff: Backoff,
}

/// An attempt that its node is not to go on with.
#[derive(Clone, Debug)]
pub(super) struct Withdrawal {
    pub(super) job: JobId,
    pub(super) attempt: Attempt,
    pub(super) placed: Placed,
}

/// What lies in an instance's inbox.
#[derive(Debug)]
pub(super) enum Letter {
    Dispatch(Box<Dispatch>),
    Withdrawal(Withdrawal),
}

impl Dispatch {
    pub(super) fn new(job: &LiveJob, newest: Newest, placed: Placed) -> Self {
        let spec = &job.spec;
        Self {
            job: job.id,
            attempt: newest.attempt,
            placed,
            payload: Arc::clone(&spec.payload),
            session: spec.session.clone(),
            seq: job.seq,
            timeout_ms: spec.timeout_ms,
            terms: Terms {
                lane: job.lane.clone(),
                counted: newest.counted,
                max_attempts: spec.max_attempts,
                backoff: spec.backoff,
            },
        }
    }
}

impl Letter {
    /// Who is to get it.
    pub(super) const fn holder(&self) -> &InstanceId {
        match self {
            Self::Dispatch(dispatch) => &dispatch.placed.holder,
            Self::Withdrawal(withdrawal) => &withdrawal.placed.holder,
        }
    }

    /// As it lies in the inbox.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let written = match self {
            Self::Dispatch(dispatch) => {
                let Dispatch { job, attempt, placed, payload, session, seq, timeout_ms, terms } = &**dispatch;
                let Backoff { initial_ms, factor_percent, max_ms } = terms.backoff;
                serde_json::to_vec(&Written::Dispatch {
                    job: job.to_string(),
                    attempt: attempt.get(),
                    node: placed.node.to_string(),
                    holder: placed.holder.to_string(),
                    payload: payload.to_string(),
                    session: session.as_ref().map(ToString::to_string),
                    seq: *seq,
                    timeout_ms: *timeout_ms,
                    lane: terms.lane.to_string(),
                    counted: terms.counted,
                    max_attempts: terms.max_attempts,
                    backoff: (initial_ms, factor_percent, max_ms),
                })
            }
            Self::Withdrawal(Withdrawal { job, attempt, placed }) => {
                serde_json::to_vec(&Written::Withdrawal {
                    job: job.to_string(),
                    attempt: attempt.get(),
                    node: placed.node.to_string(),
                    holder: placed.holder.to_string(),
                })
            }
        };
        written.expect("it has text keys only")
    }

    /// Reads what lies in the inbox; `None` for what no version of Fencepost wrote.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match serde_json::from_slice(bytes).ok()? {
            Written::Dispatch {
                job,
                attempt,
                node,
                holder,
                payload,
                session,
                seq,
                timeout_ms,
                lane,
                counted,
                max_attempts,
                backoff: (initial_ms, factor_percent, max_ms),
            } => Some(Self::Dispatch(Box::new(Dispatch {
                job: JobId::parse(&job)?,
                attempt: Attempt::new(attempt),
                placed: placed(&node, &holder)?,
                payload: Arc::from(payload),
                session: session.map(|session| SessionId::parse(&session)).transpose().ok()?,
                seq,
                timeout_ms,
                terms: Terms {
                    lane: Resource::parse(&lane).ok()?,
                    counted,
                    max_attempts,
                    backoff: Backoff { initial_ms, factor_percent, max_ms },
                },
            }))),
            Written::Withdrawal { job, attempt, node, holder } => Some(Self::Withdrawal(Withdrawal {
                job: JobId::parse(&job)?,
                attempt: Attempt::new(attempt),
                placed: placed(&node, &holder)?,
            })),
        }
    }
}

fn placed(node: &str, holder: &str) -> Option<Placed> {
    Some(Placed { node: NodeId::parse(node).ok()?, holder: InstanceId::parse(holder).ok()? })
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Written {
    Dispatch {
        job: String,
        attempt: u32,
        node: String,
        holder: String,
        payload: String,
        session: Option<String>,
        seq: Option<u64>,
        timeout_ms: u64,
        lane: String,
        counted: u32,
        max_attempts: u32,
        backoff: (u64, u32, u64),
    },
    Withdrawal {
        job: String,
        attempt: u32,
        node: String,
        holder: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_read_back_what_they_say() {
        let placed = placed("n1", "i-1").unwrap();
        let dispatch = Dispatch {
            job: JobId::from_u128(7),
            attempt: Attempt::new(3),
            placed: placed.clone(),
            payload: Arc::from(r#"{"text":"\u0000 ü","n":12345678901234567890}"#),
            session: Some(SessionId::parse("s").unwrap()),
            seq: Some(9),
            timeout_ms: 60_000,
            terms: Terms {
                lane: Resource::parse("instance:i-1").unwrap(),
                counted: 1,
                max_attempts: 5,
                backoff: Backoff::default(),
            },
        };
        let read = Letter::from_bytes(&Letter::Dispatch(Box::new(dispatch.clone())).to_bytes()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", Letter::Dispatch(Box::new(dispatch))));
        let withdrawal = Withdrawal { job: JobId::from_u128(7), attempt: Attempt::new(3), placed };
        let read = Letter::from_bytes(&Letter::Withdrawal(withdrawal.clone()).to_bytes()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", Letter::Withdrawal(withdrawal)));
        for bad in [
            "",
            "{}",
            r#"{"type":"dispatch"}"#,
            r#"{"type":"withdrawal","job":"x","attempt":1,"node":"n","holder":"h"}"#,
        ] {
            assert!(Letter::from_bytes(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
