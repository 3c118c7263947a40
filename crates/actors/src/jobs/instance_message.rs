//! The entries that one instance puts into the inbox of another, and their format. They name jobs and attempts; what a job
//! carries is in the ledger alone.
//!
//! An entry is handled at least once, so each of these may be handled twice: a slot is sent once, an attempt
//! is cancelled once, and a report repeats what the ledger has already.

use domain::job::{Assignment, Attempt, Revoked};
use domain::{InstanceId, JobId, LaneId, NodeId};
use serde::{Deserialize, Serialize};

use super::delivery::{DispatchNotice, Withdrawal};
use super::messages::AttemptEvent;

/// An entry of an instance's inbox.
#[derive(Debug)]
pub(super) enum InstanceMessage {
    /// An attempt for a node whose socket the instance holds.
    Dispatch(DispatchNotice),
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
    /// A session with unfinished jobs whose lease the sender has released, and which belongs to the instance now. It would find
    /// the session itself, at its next look.
    Left(LaneId),
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
const REASON_CHARS_MAX: usize = 500;

// Names of at most 128 characters, and a reason of which each character is escaped.
const _: () = assert!(REPORTS_PER_ENTRY * (600 + 6 * REASON_CHARS_MAX) <= bus::limits::INBOX_ENTRY_BYTES_MAX);

impl InstanceMessage {
    /// As it lies in the inbox. `me` is the instance that sends it.
    pub(super) fn to_bytes(&self, me: &InstanceId) -> Vec<u8> {
        let written = match self {
            Self::Dispatch(DispatchNotice { job, attempt, placed, lane, owner }) => Written::Dispatch {
                job: job.to_string(),
                attempt: attempt.get(),
                node: placed.node.to_string(),
                holder: placed.holder.to_string(),
                lane: lane.to_string(),
                owner: owner.as_ref().unwrap_or(me).to_string(),
            },
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
            Self::Left(lane) => Written::Left { lane: lane.to_string() },
        };
        serde_json::to_vec(&written).expect("it has text keys only")
    }

    /// Reads what lies in the inbox; `None` for what no version of Fencepost wrote.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match serde_json::from_slice(bytes).ok()? {
            Written::Dispatch { job, attempt, node, holder, lane, owner } => {
                Some(Self::Dispatch(DispatchNotice {
                    job: JobId::parse(&job)?,
                    attempt: Attempt::new(attempt),
                    placed: assignment(&node, &holder)?,
                    lane: LaneId::parse(&lane).ok()?,
                    owner: Some(InstanceId::parse(&owner).ok()?),
                }))
            }
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
            Written::Left { lane } => Some(Self::Left(LaneId::parse(&lane).ok()?)),
        }
    }
}

fn assignment(node: &str, holder: &str) -> Option<Assignment> {
    Some(Assignment { node: NodeId::parse(node).ok()?, holder: InstanceId::parse(holder).ok()? })
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Written {
    Dispatch { job: String, attempt: u32, node: String, holder: String, lane: String, owner: String },
    Withdrawal { job: String, attempt: u32, node: String, holder: String },
    Reports { forwarded: bool, reports: Vec<WrittenReport> },
    Share { node: String },
    Left { lane: String },
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
    use super::*;

    fn me() -> InstanceId {
        InstanceId::parse("i-9").unwrap()
    }

    fn read_back(message: &InstanceMessage) -> InstanceMessage {
        InstanceMessage::from_bytes(&message.to_bytes(&me())).unwrap()
    }

    #[test]
    fn a_dispatch_reads_back_with_the_instance_that_sent_it_as_its_owner() {
        let notice = DispatchNotice {
            job: JobId::from_u128(7),
            attempt: Attempt::new(3),
            placed: assignment("n1", "i-1").unwrap(),
            lane: LaneId::parse("instance:i-1").unwrap(),
            owner: None,
        };
        let message = InstanceMessage::Dispatch(notice.clone());
        let entry = r#"{"type":"dispatch","job":"00000000-0000-0000-0000-000000000007","attempt":3,"node":"n1","holder":"i-1","lane":"instance:i-1","owner":"i-9"}"#;
        assert_eq!(String::from_utf8(message.to_bytes(&me())).unwrap(), entry);
        let read = read_back(&message);
        let sent = InstanceMessage::Dispatch(DispatchNotice { owner: Some(me()), ..notice });
        assert_eq!(format!("{read:?}"), format!("{sent:?}"));
        assert_eq!(format!("{:?}", read_back(&read)), format!("{sent:?}"), "passed on, its owner stays");
    }

    #[test]
    fn a_session_that_is_left_reads_back() {
        let message = InstanceMessage::Left(LaneId::parse("session:s").unwrap());
        let entry = r#"{"type":"left","lane":"session:s"}"#;
        assert_eq!(String::from_utf8(message.to_bytes(&me())).unwrap(), entry);
        assert_eq!(format!("{:?}", read_back(&message)), format!("{message:?}"));
        assert!(InstanceMessage::from_bytes(br#"{"type":"left","lane":"no lane"}"#).is_none());
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
