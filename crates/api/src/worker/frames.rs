//! Frames of the worker socket: from the wire's words to those of the domain, and back; and the messages that they are sent in.

use std::collections::VecDeque;

use bus::Slot;
use domain::job::Attempt;
use domain::{Invalid, JobId, Label, Language, NodeId, PoolName, TraceParent};
use nodes::connection::{CloseCode, End, FromNode, Hello, Percent, Progress, ToNode};
use nodes::{Abilities, Load};
use wire::limits::{MESSAGE_BYTES_MAX, MESSAGE_FRAMES_MAX};
use wire::worker::{
    AttemptOutcome, AttemptRef, HeartbeatOk, Hello as WireHello, NodeFrame, Notice, SchedulerFrame, Welcome,
    close,
};

use crate::job_fields;

/// What a node has sent, with this caller's token.
///
/// # Errors
/// In words fit for the node: what is wrong, and what would be right.
pub fn from_wire(frame: NodeFrame, principal: &str) -> Result<FromNode, String> {
    Ok(match frame {
        NodeFrame::Hello(hello) => FromNode::Hello(read_hello(hello, principal)?),
        NodeFrame::Heartbeat(heartbeat) => FromNode::Heartbeat {
            load: heartbeat.load.map(load).unwrap_or_default(),
            running: slots(&heartbeat.running)?,
        },
        NodeFrame::Ready(_) => FromNode::Ready,
        NodeFrame::Drain(_) => FromNode::Drain,
        NodeFrame::Ack(of) => FromNode::Ack(slot(&of.job, of.attempt)?),
        NodeFrame::Reject(reject) => {
            FromNode::Reject { slot: slot(&reject.job, reject.attempt)?, reason: reject.reason }
        }
        NodeFrame::Progress(progress) => FromNode::Progress {
            slot: slot(&progress.job, progress.attempt)?,
            progress: Progress { percent: progress.percent.and_then(Percent::new), note: progress.note },
        },
        NodeFrame::Result(result) => FromNode::Result {
            slot: slot(&result.job, result.attempt)?,
            end: match result.outcome {
                AttemptOutcome::Done(output) => End::Succeeded { output: output.as_str().to_owned() },
                AttemptOutcome::Failed(failure) => {
                    End::Failed { message: failure.message, is_retryable: failure.retryable }
                }
            },
        },
    })
}

/// The node's own span that a result names.
pub fn trace_of(frame: &NodeFrame) -> Option<TraceParent> {
    match frame {
        NodeFrame::Result(result) => result.traceparent.as_deref().and_then(TraceParent::parse),
        _ => None,
    }
}

/// What a node is to be sent, with `pools` for its welcome; `None` for a payload that is not JSON, which the ledger never has.
pub fn to_wire(frame: ToNode, pools: impl FnOnce() -> Option<Vec<String>>) -> Option<SchedulerFrame> {
    Some(match frame {
        ToNode::Welcome { node, instance, heartbeat_ms } => SchedulerFrame::Welcome(Welcome {
            node_id: node.to_string(),
            instance: instance.to_string(),
            heartbeat_ms,
            pools: pools(),
        }),
        ToNode::HeartbeatOk { is_drained: draining } => SchedulerFrame::HeartbeatOk(HeartbeatOk { draining }),
        ToNode::Dispatch(dispatch) => SchedulerFrame::Dispatch(job_fields::dispatch(dispatch)?),
        ToNode::Cancel(slot) => SchedulerFrame::Cancel(notice(slot)),
        ToNode::Committed(slot) => SchedulerFrame::Committed(notice(slot)),
        ToNode::Stale(slot) => SchedulerFrame::Stale(notice(slot)),
    })
}

/// The close code by which a node learns why its connection is closed.
pub const fn close_code(why: CloseCode) -> u16 {
    match why {
        CloseCode::GoingAway => close::GOING_AWAY,
        CloseCode::Protocol => close::PROTOCOL,
        CloseCode::Unauthorized => close::UNAUTHORIZED,
        CloseCode::Replaced => close::REPLACED,
        CloseCode::SlowReader => close::SLOW_READER,
        CloseCode::Overloaded => close::OVERLOADED,
    }
}

/// The attempt that a frame dispatches, if it dispatches one.
pub fn dispatched(frame: &SchedulerFrame) -> Option<Slot> {
    match frame {
        SchedulerFrame::Dispatch(dispatch) => slot(&dispatch.job, dispatch.attempt).ok(),
        _ => None,
    }
}

/// The next message, of the first frames that wait, and how many it has: as many as one may have, for a node that takes several
/// in one, else one.
pub fn message(waiting: &VecDeque<SchedulerFrame>, takes_batches: bool) -> (String, usize) {
    let count = if takes_batches { waiting.len().min(MESSAGE_FRAMES_MAX) } else { 1 };
    let mut text = if count > 1 { vec![b'['] } else { Vec::new() };
    let mut taken = 0;
    for frame in waiting.iter().take(count) {
        let end = text.len();
        if taken > 0 {
            text.push(b',');
        }
        serde_json::to_writer(&mut text, frame).expect("frames have text keys only");
        // A bracket comes behind it.
        if taken > 0 && text.len() >= MESSAGE_BYTES_MAX {
            text.truncate(end);
            break;
        }
        taken += 1;
    }
    if count > 1 {
        if taken > 1 {
            text.push(b']');
        } else {
            text.remove(0);
        }
    }
    (String::from_utf8(text).expect("JSON is UTF-8"), taken)
}

fn notice(slot: Slot) -> Notice {
    Notice { job: slot.job.to_string(), attempt: slot.attempt.get() }
}

fn read_hello(hello: WireHello, principal: &str) -> Result<Hello, String> {
    let abilities = Abilities {
        services: each("services", &hello.services, Label::parse)?,
        hears: each("languages.asr", &hello.languages.asr, Language::parse)?,
        speaks: each("languages.tts", &hello.languages.tts, Language::parse)?,
        understands: each("languages.semantic", &hello.languages.semantic, Language::parse)?,
        labels: each("labels", &hello.labels, Label::parse)?,
    };
    let mut services = abilities.services.clone();
    services.sort_unstable();
    services.dedup();
    let pools = each("pools", &hello.pools, PoolName::parse)?;
    Ok(Hello {
        node: NodeId::parse(&hello.node_id).map_err(|e| e.to_string())?,
        capacity: hello.capacity,
        takes_batches: hello.batch,
        labels: abilities.into_labels().map_err(|e| e.to_string())?,
        services: services.into(),
        pools: (!pools.is_empty()).then(|| pools.into()),
        software: hello.version.as_deref().map(Into::into),
        is_drained: hello.drained,
        running: slots(&hello.running)?,
        principal: principal.into(),
    })
}

/// The names in a list.
///
/// # Errors
/// Names the place of the first wrong name, such as `labels[1]`, and what would be right.
fn each<T>(
    list: &str,
    names: &[String],
    parse: impl Fn(&str) -> Result<T, Invalid>,
) -> Result<Vec<T>, String> {
    let read = |(at, name): (usize, &String)| {
        parse(name).map_err(|Invalid { expected, .. }| format!("{list}[{at}] must be {expected}"))
    };
    names.iter().enumerate().map(read).collect()
}

fn slots(running: &[AttemptRef]) -> Result<Vec<Slot>, String> {
    running.iter().map(|of| slot(&of.job, of.attempt)).collect()
}

fn slot(job: &str, attempt: u32) -> Result<Slot, String> {
    let job = JobId::parse(job).ok_or_else(|| format!("{job:?} is no job's id"))?;
    Ok(Slot { job, attempt: Attempt::new(attempt) })
}

const fn load(load: wire::worker::Load) -> Load {
    let wire::worker::Load { cpu, gpu, memory } = load;
    Load { cpu, gpu, memory }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wire::Json;
    use wire::worker::Dispatch;

    use super::*;

    /// A dispatch with a payload of so many characters.
    fn dispatch(chars: usize) -> SchedulerFrame {
        let payload = Json::of(&"x".repeat(chars)).unwrap();
        SchedulerFrame::Dispatch(Dispatch::new("j", 1, payload, 1_000))
    }

    #[test]
    fn a_message_has_as_many_frames_as_its_node_takes_and_one_frame_alone_is_no_list() {
        let three: VecDeque<_> = [1, 2, 3].map(dispatch).into();
        let first = serde_json::to_string(&three[0]).unwrap();
        assert_eq!(message(&three, false), (first.clone(), 1));
        assert_eq!(message(&three, true), (serde_json::to_string(&three).unwrap(), 3));
        assert_eq!(message(&[dispatch(1)].into(), true), (first, 1));
        let many: VecDeque<_> = vec![dispatch(1); MESSAGE_FRAMES_MAX + 1].into();
        assert_eq!(message(&many, true).1, MESSAGE_FRAMES_MAX);
    }

    #[test]
    fn a_message_is_as_long_as_it_may_be_and_no_longer() {
        let two = |chars| VecDeque::from([dispatch(1), dispatch(chars)]);
        let left = MESSAGE_BYTES_MAX - message(&two(0), true).0.len();
        let (longest, taken) = message(&two(left), true);
        assert_eq!((longest.len(), taken), (MESSAGE_BYTES_MAX, 2));
        assert_eq!(message(&two(left + 1), true), message(&[dispatch(1)].into(), true));
    }

    #[test]
    fn a_node_learns_why_its_connection_is_closed_by_the_number_that_the_guide_names() {
        for (why, number) in [
            (CloseCode::GoingAway, 1001),
            (CloseCode::Overloaded, 1013),
            (CloseCode::Protocol, 4400),
            (CloseCode::Unauthorized, 4401),
            (CloseCode::Replaced, 4409),
            (CloseCode::SlowReader, 4429),
        ] {
            assert_eq!(close_code(why), number, "{why:?}");
        }
    }

    #[test]
    fn a_bad_name_in_a_hello_is_refused_by_its_place() {
        for (field, value, says) in [
            ("pools", json!(["p", "é"]), "pools[1] must be 1 to 64 characters"),
            ("labels", json!(["a b"]), "labels[0] must be 1 to "),
            ("services", json!(["a", "b", "/"]), "services[2] must be 1 to "),
            ("languages", json!({"tts": ["é"]}), "languages.tts[0] must be 1 to "),
            ("languages", json!({"asr": ["zh", "é"]}), "languages.asr[1] must be 1 to "),
            ("languages", json!({"semantic": ["é"]}), "languages.semantic[0] must be 1 to "),
        ] {
            let mut hello = json!({"node_id": "n", "capacity": 1, "running": []});
            hello[field] = value;
            let refused = read_hello(serde_json::from_value(hello).unwrap(), "").unwrap_err();
            assert!(refused.starts_with(says), "{field}: {refused}");
        }
    }
}
