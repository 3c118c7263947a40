//! The entries that one instance puts into the inbox of another, and their format.
//!
//! An entry is handled at least once, so each of these may be handled twice: a slot is sent once, an attempt
//! is cancelled once, and a report repeats what the ledger has already.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::job::{Assignment, Attempt, Backoff, Metadata, NodeJob, Revoked};
use domain::{InstanceId, JobId, LaneId, NodeId, PoolName, SessionId};
use serde::{Deserialize, Serialize};

use super::delivery::{Dispatch, RetryPolicy, Withdrawal};
use super::messages::AttemptEvent;

/// An entry of an instance's inbox.
#[derive(Debug)]
pub(super) enum InstanceMessage {
    /// An attempt for a node whose socket the instance holds.
    Dispatch(Box<Dispatch>),
    /// An attempt that its node must stop.
    Withdrawal(Withdrawal),
    /// Reports on attempts of lanes that the instance owns.
    Reports {
        /// Whether an instance that does not own the lanes has forwarded them. They are forwarded once.
        is_forwarded: bool,
        /// In the order in which they happened.
        reports: Vec<AttemptReport>,
    },
    /// A slot is wanted of a node whose socket the instance holds: the bus is to give the node's slots.
    Share(NodeId),
}

/// A report on an attempt, for the owner of its lane. The ledger is the truth; a report only arrives earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttemptReport {
    pub(super) lane: LaneId,
    pub(super) job: JobId,
    pub(super) attempt: Attempt,
    pub(super) event: AttemptEvent,
}

/// Reports in one entry.
pub(super) const REPORTS_PER_ENTRY: usize = 256;
/// Characters of a reason that a report carries; the rest is left out.
const REASON_CHARS_MAX: usize = 1_000;

// Names of at most 128 characters, and a reason of which each character is escaped.
const _: () = assert!(REPORTS_PER_ENTRY * (600 + 6 * REASON_CHARS_MAX) <= bus::limits::INBOX_ENTRY_BYTES_MAX);

impl InstanceMessage {
    /// As it lies in the inbox. `me` is the instance that sends it.
    pub(super) fn to_bytes(&self, me: &InstanceId) -> Vec<u8> {
        let written = match self {
            Self::Dispatch(dispatch) => {
                let Dispatch { job, attempt, placed, node_job, policy } = &**dispatch;
                let Backoff { initial_ms, factor_percent, max_ms } = policy.backoff;
                Written::Dispatch {
                    job: job.to_string(),
                    attempt: attempt.get(),
                    node: placed.node.to_string(),
                    holder: placed.holder.to_string(),
                    node_job: Box::new(WrittenNodeJob::of(node_job)),
                    lane: policy.lane.to_string(),
                    owner: Some(policy.owner.as_ref().unwrap_or(me).to_string()),
                    pool: policy.pool.as_ref().map(ToString::to_string),
                    counted: policy.charged_attempts,
                    max_attempts: policy.max_attempts,
                    backoff: (initial_ms, factor_percent, max_ms),
                }
            }
            Self::Withdrawal(Withdrawal { job, attempt, placed }) => Written::Withdrawal {
                job: job.to_string(),
                attempt: attempt.get(),
                node: placed.node.to_string(),
                holder: placed.holder.to_string(),
            },
            Self::Reports { is_forwarded, reports } => Written::Reports {
                forwarded: *is_forwarded,
                reports: reports.iter().map(WrittenReport::of).collect(),
            },
            Self::Share(node) => Written::Share { node: node.to_string() },
        };
        serde_json::to_vec(&written).expect("it has text keys only")
    }

    /// Reads what lies in the inbox; `None` for what no version of Fencepost wrote.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match serde_json::from_slice(bytes).ok()? {
            Written::Dispatch {
                job,
                attempt,
                node,
                holder,
                node_job,
                lane,
                owner,
                pool,
                counted,
                max_attempts,
                backoff: (initial_ms, factor_percent, max_ms),
            } => Some(Self::Dispatch(Box::new(Dispatch {
                job: JobId::parse(&job)?,
                attempt: Attempt::new(attempt),
                placed: assignment(&node, &holder)?,
                node_job: node_job.read()?,
                policy: RetryPolicy {
                    lane: LaneId::parse(&lane).ok()?,
                    owner: owner.map(|owner| InstanceId::parse(&owner)).transpose().ok()?,
                    pool: pool.map(|pool| PoolName::parse(&pool)).transpose().ok()?,
                    charged_attempts: counted,
                    max_attempts,
                    backoff: Backoff { initial_ms, factor_percent, max_ms },
                },
            }))),
            Written::Withdrawal { job, attempt, node, holder } => Some(Self::Withdrawal(Withdrawal {
                job: JobId::parse(&job)?,
                attempt: Attempt::new(attempt),
                placed: assignment(&node, &holder)?,
            })),
            Written::Reports { forwarded, reports } => Some(Self::Reports {
                is_forwarded: forwarded,
                reports: reports.into_iter().map(WrittenReport::read).collect::<Option<_>>()?,
            }),
            Written::Share { node } => Some(Self::Share(NodeId::parse(&node).ok()?)),
        }
    }
}

fn assignment(node: &str, holder: &str) -> Option<Assignment> {
    Some(Assignment { node: NodeId::parse(node).ok()?, holder: InstanceId::parse(holder).ok()? })
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Written {
    Dispatch {
        job: String,
        attempt: u32,
        node: String,
        holder: String,
        #[serde(flatten)]
        node_job: Box<WrittenNodeJob>,
        lane: String,
        #[serde(default)]
        owner: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<String>,
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
    Reports {
        forwarded: bool,
        reports: Vec<WrittenReport>,
    },
    Share {
        node: String,
    },
}

/// What a node is given. An entry of an older instance lacks the fields that came later, so these have defaults.
#[derive(Serialize, Deserialize)]
struct WrittenNodeJob {
    payload: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    session: Option<String>,
    seq: Option<u64>,
    timeout_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stage: Option<String>,
}

impl WrittenNodeJob {
    fn of(job: &NodeJob) -> Self {
        let NodeJob { payload, metadata, session, timeout_ms, stage } = job;
        let (session, seq) = session.as_ref().map(|(session, seq)| (session.to_string(), *seq)).unzip();
        let metadata = metadata.strings().cloned().unwrap_or_default();
        let stage = stage.as_ref().map(ToString::to_string);
        Self { payload: payload.to_string(), metadata, session, seq, timeout_ms: *timeout_ms, stage }
    }

    fn read(self) -> Option<NodeJob> {
        let Self { payload, metadata, session, seq, timeout_ms, stage } = self;
        let metadata = Metadata::new(metadata).ok()?;
        let session = session.map(|session| SessionId::parse(&session)).transpose().ok()?;
        let (payload, stage) = (Arc::from(payload), stage.map(Arc::from));
        Some(NodeJob { payload, metadata, session: session.zip(seq), timeout_ms, stage })
    }
}

#[derive(Serialize, Deserialize)]
struct WrittenReport {
    lane: String,
    job: String,
    attempt: u32,
    event: WrittenEvent,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenEvent {
    Acknowledged,
    ConnectionLost,
    NodeElsewhere,
    Finished,
    Failed { due_in_ms: u64 },
    Revoked { why: String, reason: String },
}

impl WrittenReport {
    fn of(report: &AttemptReport) -> Self {
        let AttemptReport { lane, job, attempt, event } = report;
        let event = match event {
            AttemptEvent::Acknowledged => WrittenEvent::Acknowledged,
            AttemptEvent::ConnectionLost => WrittenEvent::ConnectionLost,
            AttemptEvent::NodeElsewhere => WrittenEvent::NodeElsewhere,
            AttemptEvent::Finished => WrittenEvent::Finished,
            AttemptEvent::Failed { due_in_ms } => WrittenEvent::Failed { due_in_ms: *due_in_ms },
            AttemptEvent::Revoked(why, reason) => WrittenEvent::Revoked {
                why: why.as_str().to_owned(),
                reason: reason.chars().take(REASON_CHARS_MAX).collect(),
            },
        };
        Self { lane: lane.to_string(), job: job.to_string(), attempt: attempt.get(), event }
    }

    fn read(self) -> Option<AttemptReport> {
        let event = match self.event {
            WrittenEvent::Acknowledged => AttemptEvent::Acknowledged,
            WrittenEvent::ConnectionLost => AttemptEvent::ConnectionLost,
            WrittenEvent::NodeElsewhere => AttemptEvent::NodeElsewhere,
            WrittenEvent::Finished => AttemptEvent::Finished,
            WrittenEvent::Failed { due_in_ms } => AttemptEvent::Failed { due_in_ms },
            WrittenEvent::Revoked { why, reason } => {
                AttemptEvent::Revoked(Revoked::ALL.into_iter().find(|known| known.as_str() == why)?, reason)
            }
        };
        Some(AttemptReport {
            lane: LaneId::parse(&self.lane).ok()?,
            job: JobId::parse(&self.job)?,
            attempt: Attempt::new(self.attempt),
            event,
        })
    }
}

#[cfg(test)]
mod tests {
    use domain::limits::{
        METADATA_ENTRIES_MAX, METADATA_KEY_BYTES_MAX, METADATA_VALUE_BYTES_MAX, PAYLOAD_BYTES_MAX,
        STAGE_BYTES_MAX,
    };

    use super::*;

    fn me() -> InstanceId {
        InstanceId::parse("i-9").unwrap()
    }

    fn read_back(message: &InstanceMessage) -> InstanceMessage {
        InstanceMessage::from_bytes(&message.to_bytes(&me())).unwrap()
    }

    fn dispatch(metadata: &[(&str, &str)]) -> Dispatch {
        let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Dispatch {
            job: JobId::from_u128(7),
            attempt: Attempt::new(3),
            placed: assignment("n1", "i-1").unwrap(),
            node_job: NodeJob {
                payload: Arc::from(r#"{"text":"\u0000 ü","n":12345678901234567890}"#),
                metadata: Metadata::new(metadata.collect()).unwrap(),
                session: Some((SessionId::parse("s").unwrap(), 9)),
                timeout_ms: 60_000,
                stage: None,
            },
            policy: RetryPolicy {
                lane: LaneId::parse("instance:i-1").unwrap(),
                owner: None,
                pool: None,
                charged_attempts: 1,
                max_attempts: 5,
                backoff: Backoff::default(),
            },
        }
    }

    #[test]
    fn a_dispatch_reads_back_with_the_instance_that_sent_it_as_its_owner() {
        let mut staged = dispatch(&[]);
        staged.node_job.stage = Some(r#"{"context":{"a":"\u0000"}}"#.into());
        let mut pooled = dispatch(&[]);
        pooled.policy.pool = Some(PoolName::parse("p").unwrap());
        for dispatch in [dispatch(&[]), dispatch(&[("k", "\0 \"é\""), ("l", "")]), staged, pooled] {
            let read = read_back(&InstanceMessage::Dispatch(Box::new(dispatch.clone())));
            let policy = RetryPolicy { owner: Some(me()), ..dispatch.policy.clone() };
            let sent = InstanceMessage::Dispatch(Box::new(Dispatch { policy, ..dispatch }));
            assert_eq!(format!("{read:?}"), format!("{sent:?}"));
            assert_eq!(format!("{:?}", read_back(&read)), format!("{sent:?}"), "passed on, its owner stays");
        }
    }

    #[test]
    fn an_entry_without_metadata_is_as_older_instances_write_and_read_it() {
        let message = InstanceMessage::Dispatch(Box::new(dispatch(&[])));
        let entry = r#"{"type":"dispatch","job":"00000000-0000-0000-0000-000000000007","attempt":3,"node":"n1","holder":"i-1","payload":"{\"text\":\"\\u0000 ü\",\"n\":12345678901234567890}","session":"s","seq":9,"timeout_ms":60000,"lane":"instance:i-1","owner":"i-9","counted":1,"max_attempts":5,"backoff":[1000,200,60000]}"#;
        assert_eq!(String::from_utf8(message.to_bytes(&me())).unwrap(), entry);
        let Some(InstanceMessage::Dispatch(read)) = InstanceMessage::from_bytes(entry.as_bytes()) else {
            panic!("{entry}")
        };
        assert_eq!(read.node_job, dispatch(&[]).node_job);
    }

    #[test]
    fn the_largest_dispatch_fits_an_entry() {
        let key = |n: usize| format!("{n:02}{}", "\u{1}".repeat(METADATA_KEY_BYTES_MAX - 2));
        let value = "\u{1}".repeat(METADATA_VALUE_BYTES_MAX);
        let entries: Vec<_> = (0..METADATA_ENTRIES_MAX).map(|n| (key(n), value.clone())).collect();
        let entries: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let mut largest = dispatch(&entries);
        // JSON within JSON: each character of this is escaped.
        largest.node_job.payload = format!("\"{}\"", r"\\".repeat(PAYLOAD_BYTES_MAX / 2 - 1)).into();
        largest.node_job.stage = Some(format!("\"{}\"", r"\\".repeat(STAGE_BYTES_MAX / 2 - 1)).into());
        let bytes = InstanceMessage::Dispatch(Box::new(largest)).to_bytes(&me()).len();
        assert!(bytes <= bus::limits::INBOX_ENTRY_BYTES_MAX, "{bytes}");
    }

    #[test]
    fn withdrawals_and_reports_read_back() {
        let (job, attempt) = (JobId::from_u128(7), Attempt::new(3));
        let placed = assignment("n1", "i-1").unwrap();
        let events = [
            AttemptEvent::Acknowledged,
            AttemptEvent::ConnectionLost,
            AttemptEvent::NodeElsewhere,
            AttemptEvent::Finished,
            AttemptEvent::Failed { due_in_ms: u64::MAX },
        ];
        let revoked = Revoked::ALL.map(|why| AttemptEvent::Revoked(why, "so \"it\" is".to_owned()));
        let lane = LaneId::parse("session:s").unwrap();
        let report = |event| AttemptReport { lane: lane.clone(), job, attempt, event };
        let reports: Vec<_> = events.into_iter().chain(revoked).map(report).collect();
        for message in [
            InstanceMessage::Withdrawal(Withdrawal { job, attempt, placed }),
            InstanceMessage::Reports { is_forwarded: false, reports: reports.clone() },
            InstanceMessage::Reports { is_forwarded: true, reports: vec![] },
        ] {
            assert_eq!(format!("{:?}", read_back(&message)), format!("{message:?}"));
        }
    }

    #[test]
    fn a_full_entry_fits_whatever_its_reasons_are() {
        let reason = "\u{1}".repeat(5_000);
        let report = AttemptReport {
            lane: LaneId::parse(&format!("session:{}", "s".repeat(128))).unwrap(),
            job: JobId::from_u128(u128::MAX),
            attempt: Attempt::new(u32::MAX),
            event: AttemptEvent::Revoked(Revoked::NotAcknowledged, reason),
        };
        let reports = vec![report; REPORTS_PER_ENTRY];
        let bytes = InstanceMessage::Reports { is_forwarded: false, reports }.to_bytes(&me());
        assert!(bytes.len() <= bus::limits::INBOX_ENTRY_BYTES_MAX, "{}", bytes.len());
    }

    #[test]
    fn what_is_no_message_is_none() {
        for bad in [
            "",
            "{}",
            r#"{"type":"dispatch"}"#,
            r#"{"type":"withdrawal","job":"x","attempt":1,"node":"n","holder":"h"}"#,
            r#"{"type":"reports","forwarded":false,"reports":[{"lane":"x","job":"y","attempt":1,"event":"finished"}]}"#,
        ] {
            assert!(InstanceMessage::from_bytes(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
