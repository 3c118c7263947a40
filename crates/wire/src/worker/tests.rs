//! Every frame both ways, and what is refused.

use proptest::prelude::*;

use super::*;
use crate::Json;
use crate::limits::{
    ERROR_MESSAGE_CHARS_MAX, MESSAGE_FRAMES_MAX, NODE_CAPACITY_MAX, PAYLOAD_BYTES_MAX,
    PROGRESS_NOTE_CHARS_MAX, REJECT_REASON_CHARS_MAX,
};

fn node(text: &str) -> Result<Message<NodeFrame>, String> {
    Message::read(text).map_err(|error| error.to_string())
}

fn scheduler(text: &str) -> Result<Message<SchedulerFrame>, String> {
    Message::read(text).map_err(|error| error.to_string())
}

#[test]
fn every_frame_of_a_node_is_written_as_it_is_read() {
    for text in [
        r#"{"type":"hello","node_id":"n","capacity":1,"batch":false,"running":[]}"#,
        r#"{"type":"hello","node_id":"n","capacity":10000,"batch":true,"services":["x"],"languages":{"asr":["zh"],"tts":["en"],"semantic":["zh"]},"labels":["gpu"],"pools":["p"],"version":"1","drained":true,"running":[{"job":"j","attempt":1}]}"#,
        r#"{"type":"heartbeat","load":{"cpu":0.5,"gpu":80.0,"memory":0.0},"running":[{"job":"j","attempt":4294967295}]}"#,
        r#"{"type":"heartbeat","running":[]}"#,
        r#"{"type":"ready"}"#,
        r#"{"type":"drain"}"#,
        r#"{"type":"reject","job":"j","attempt":1,"reason":"full"}"#,
        r#"{"type":"ack","job":"j","attempt":1}"#,
        r#"{"type":"progress","job":"j","attempt":1,"percent":99.5,"note":"soon"}"#,
        r#"{"type":"progress","job":"j","attempt":1}"#,
        r#"{"type":"result","job":"j","attempt":1,"ok":true,"output":{ "a" : 1.50 }}"#,
        r#"{"type":"result","job":"j","attempt":1,"ok":true,"output":null}"#,
        r#"{"type":"result","job":"j","attempt":1,"ok":true,"output":1,"traceparent":"any text"}"#,
        r#"{"type":"result","job":"j","attempt":1,"ok":false,"error":{"message":"m","retryable":false}}"#,
        r#"[{"type":"drain"},{"type":"ack","job":"j","attempt":1}]"#,
    ] {
        assert_eq!(node(text).expect(text).to_text(), text);
    }
}

#[test]
fn every_frame_of_the_scheduler_is_written_as_it_is_read() {
    for text in [
        r#"{"type":"welcome","node_id":"n","instance":"i","heartbeat_ms":2000}"#,
        r#"{"type":"welcome","node_id":"n","instance":"i","heartbeat_ms":2000,"pools":["p"]}"#,
        r#"{"type":"heartbeat_ok"}"#,
        r#"{"type":"dispatch","job":"j","attempt":1,"payload":[1, 2],"timeout_ms":5}"#,
        r#"{"type":"dispatch","job":"j","attempt":1,"payload":null,"session":"s","seq":7,"timeout_ms":5}"#,
        r#"{"type":"dispatch","job":"j","attempt":1,"payload":1,"kind":"k","metadata":{"":"\n","k":"v"},"timeout_ms":5}"#,
        r#"{"type":"dispatch","job":"j","attempt":1,"payload":1,"timeout_ms":5,"traceparent":"00-1-2-01"}"#,
        r#"{"type":"dispatch","job":"j","attempt":1,"payload":1,"timeout_ms":5,"retry_of":"i"}"#,
        r#"{"type":"cancel","job":"j","attempt":1}"#,
        r#"{"type":"committed","job":"j","attempt":1}"#,
        r#"{"type":"stale","job":"j","attempt":1}"#,
        r#"{"type":"problem","code":"invalid","detail":"d"}"#,
        r#"[{"type":"heartbeat_ok"}]"#,
    ] {
        assert_eq!(scheduler(text).expect(text).to_text(), text);
    }
}

#[test]
fn what_is_wrong_with_a_frame_is_said() {
    let many = vec![r#"{"type":"ready"}"#; MESSAGE_FRAMES_MAX + 1].join(",");
    for (text, says) in [
        ("", "EOF"),
        ("7", "a frame, or a list of 1 to 1000 frames"),
        ("[]", "a frame, or a list of 1 to 1000 frames"),
        ("{}", "a frame has a field \"type\""),
        ("[[]]", "a frame: an object with a field \"type\""),
        (r#"{"job":"j","attempt":1}"#, "a frame has a field \"type\""),
        (r#"{"job":"j","type":"acked","attempt":1}"#, "one of \"hello\""),
        (r#"{"job":"j","type":"ack"}"#, "missing field `attempt`"),
        (r#"{"job":"j","type":"ack","attempt":1,"job":"j"}"#, "duplicate field `job`"),
        (r#"{"job":"j","type":"ack","attempt":0}"#, "from 1 to 4294967295"),
        (r#"{"job":"j","type":"ack","attempt":1,"now":true}"#, "unknown field `now`"),
        (r#"{"job":"j","type":"ack","type":"ack","attempt":1}"#, "unknown field `type`"),
        (r#"{"job":{"a":[}],"type":"ack","attempt":1}"#, "expected value"),
        (r#"{"type":"welcome","node_id":"n","instance":"i","heartbeat_ms":1}"#, "one of \"hello\""),
        (r#"{"type":7}"#, "one of \"hello\""),
        (r#"{"type":"ready","type":"ready"}"#, "unknown field `type`"),
        (r#"{"type":"ready"} {"type":"ready"}"#, "trailing characters"),
        (r#"{"type":"ready","now":true}"#, "unknown field `now`"),
        (r#"{"type":"ack","job":"j"}"#, "missing field `attempt`"),
        (r#"{"type":"ack","job":"j","job":"j","attempt":1}"#, "duplicate field `job`"),
        (r#"{"type":"ack","job":"j","attempt":0}"#, "from 1 to 4294967295"),
        (r#"{"type":"ack","job":"","attempt":1}"#, "1 to 128 characters"),
        (r#"{"type":"hello","node_id":"n","capacity":0,"running":[]}"#, "from 1 to 10000"),
        (r#"{"type":"hello","node_id":"n","capacity":1}"#, "missing field `running`"),
        (r#"{"type":"hello","node_id":"n","capacity":1,"running":[["j",1]]}"#, "an object"),
        (r#"{"type":"hello","node_id":"n","capacity":1,"languages":null,"running":[]}"#, "an object"),
        (
            r#"{"type":"hello","node_id":"n","capacity":1,"labels":[1],"running":[]}"#,
            "a text of 1 to 64 characters",
        ),
        (r#"{"type":"heartbeat","load":{"cpu":-1},"running":[]}"#, "a number from 0 to 1000000"),
        (r#"{"type":"progress","job":"j","attempt":1,"percent":100.5}"#, "a number from 0 to 100"),
        (r#"{"type":"reject","job":"j","attempt":1,"reason":7}"#, "a text"),
        (r#"{"type":"progress","job":"j","attempt":1,"note":null}"#, "a text"),
        (r#"{"type":"result","job":"j","attempt":1,"ok":true}"#, "has an output and no error"),
        (r#"{"type":"result","job":"j","attempt":1,"ok":false}"#, "has an error and no output"),
        (r#"{"type":"result","job":"j","attempt":1,"ok":false,"error":"m"}"#, "an object"),
        (
            r#"{"type":"result","job":"j","attempt":1,"ok":true,"output":1,"error":{"message":"m"}}"#,
            "has an output and no error",
        ),
        (&format!("[{many}]"), "a list of 1 to 1000 frames"),
    ] {
        let message = node(text).expect_err(text);
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn a_frame_whose_type_comes_late_has_few_fields() {
    let many = |count: usize| "\"\":0,".repeat(count);
    let before = |count| node(&format!("{{{}\"type\":\"ready\"}}", many(count))).unwrap_err();
    let behind = |count| node(&format!("{{\"\":0,\"type\":\"ready\",{}\"\":0}}", many(count))).unwrap_err();
    for wrong in [before(3), behind(3)] {
        assert!(wrong.contains("unknown field"), "{wrong}");
    }
    for wrong in [before(100_000), behind(100_000)] {
        assert!(wrong.contains("64 fields at most"), "{wrong}");
    }
}

#[test]
fn the_type_may_stand_anywhere_in_a_frame() {
    for text in [
        r#"{"type":"result","job":"j","attempt":1,"ok":true,"output":{"b":1.50,"a":"é\n"}}"#,
        r#"{"type":"hello","node_id":"n","capacity":2,"languages":{"asr":["zh"]},"labels":["gpu"],"running":[{"job":"j","attempt":1}]}"#,
        r#"{"type":"heartbeat","load":{"cpu":0.25},"running":[]}"#,
        r#"{"type":"result","job":"j","attempt":1,"ok":false,"error":{"message":"m"}}"#,
    ] {
        let (first, _) = text.trim_matches(['{', '}']).split_once(',').unwrap();
        let rest = &text[1 + first.len() + 1..text.len() - 1];
        let last = format!("{{{rest},{first}}}");
        assert_eq!(node(&last), node(text), "{last}");
        let (second, others) = rest.split_once(',').unwrap();
        let between = format!("[{{{second},{first},{others}}}]");
        let Ok(Message::Batch(frames)) = node(&between) else { panic!("{between}") };
        assert_eq!(Ok(Message::One(frames[0].clone())), node(text), "{between}");
    }
    let dispatch = r#"{"payload":{ "n": 1.0 },"type":"dispatch","job":"j","attempt":1,"timeout_ms":5}"#;
    let Ok(Message::One(SchedulerFrame::Dispatch(dispatch))) = scheduler(dispatch) else {
        panic!("{dispatch}")
    };
    assert_eq!(dispatch.payload.as_str(), r#"{ "n": 1.0 }"#, "as it was written");
}

#[test]
fn a_node_ignores_fields_of_newer_schedulers_and_no_repeated_ones() {
    assert_eq!(
        scheduler(r#"{"type":"committed","job":"j","attempt":1,"new":1}"#),
        scheduler(r#"{"type":"committed","job":"j","attempt":1}"#)
    );
    let text = r#"{"type":"dispatch","new":{"a":[1]},"job":"j","attempt":1,"payload":1,"timeout_ms":5}"#;
    assert!(matches!(scheduler(text), Ok(Message::One(SchedulerFrame::Dispatch(_)))));
    let twice = r#"{"type":"dispatch","job":"j","attempt":1,"payload":1,"payload":2,"timeout_ms":5}"#;
    assert!(scheduler(twice).unwrap_err().contains("duplicate field `payload`"));
    assert!(scheduler(r#"{"type":"hello"}"#).unwrap_err().contains("one of \"welcome\""));
}

#[test]
fn a_failure_is_retryable_unless_it_says_otherwise() {
    let text = r#"{"type":"result","job":"j","attempt":1,"ok":false,"error":{"message":"m"}}"#;
    let Ok(Message::One(NodeFrame::Result(result))) = node(text) else { panic!("{text}") };
    let failure = AttemptFailure { message: "m".to_owned(), retryable: true };
    assert_eq!(result.outcome, AttemptOutcome::Failed(failure));
}

#[test]
fn a_text_of_a_node_may_be_empty_and_is_cut_off_where_it_is_too_long() {
    for (frame, chars_max) in [
        (r#"{"type":"reject","job":"j","attempt":1,"reason":"TEXT"}"#, REJECT_REASON_CHARS_MAX),
        (r#"{"type":"progress","job":"j","attempt":1,"note":"TEXT"}"#, PROGRESS_NOTE_CHARS_MAX),
        (
            r#"{"type":"result","job":"j","attempt":1,"ok":false,"error":{"message":"TEXT"}}"#,
            ERROR_MESSAGE_CHARS_MAX,
        ),
    ] {
        let read = |text: &str| match node(&frame.replace("TEXT", text)).expect(frame) {
            Message::One(NodeFrame::Reject(reject)) => reject.reason,
            Message::One(NodeFrame::Progress(progress)) => progress.note.expect(frame),
            Message::One(NodeFrame::Result(AttemptResult {
                outcome: AttemptOutcome::Failed(failure),
                ..
            })) => failure.message,
            other => panic!("{other:?}"),
        };
        assert_eq!(read(""), "", "{frame}");
        let longest = "é".repeat(chars_max);
        assert!(read(&longest) == longest, "{frame}");
        assert!(read(&format!("{longest}é")) == longest, "{frame}");
    }
}

#[test]
fn an_output_over_the_limit_is_a_failure_that_another_attempt_would_have_again() {
    for (chars, is_good) in [(PAYLOAD_BYTES_MAX - 2, true), (PAYLOAD_BYTES_MAX - 1, false)] {
        let output = "x".repeat(chars);
        let text = format!(r#"{{"type":"result","job":"j","attempt":1,"ok":true,"output":"{output}"}}"#);
        let Message::One(NodeFrame::Result(result)) = node(&text).unwrap() else { panic!("it is a result") };
        match result.outcome {
            AttemptOutcome::Done(_) => assert!(is_good),
            AttemptOutcome::Failed(failure) => {
                assert!(!is_good && !failure.retryable);
                assert!(
                    failure.message.contains("1048577 bytes of JSON text; the limit is 1048576"),
                    "{failure:?}"
                );
            }
        }
    }
}

#[test]
fn the_largest_list_of_attempts_is_taken_and_a_longer_one_is_not() {
    let running = |count: u64| {
        let list: Vec<_> = (0..count).map(|i| format!(r#"{{"job":"j{i}","attempt":1}}"#)).collect();
        format!(r#"{{"type":"heartbeat","running":[{}]}}"#, list.join(","))
    };
    assert!(node(&running(NODE_CAPACITY_MAX)).is_ok());
    assert!(node(&running(NODE_CAPACITY_MAX + 1)).unwrap_err().contains("0 to 10000 objects"));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in ".{0,200}") {
        let _ = node(&text);
        let _ = scheduler(&text);
    }

    #[test]
    fn results_of_any_words_come_back_as_they_were(job in "[!-~]{1,128}", message in ".{0,100}", retryable: bool) {
        let outcome = AttemptOutcome::Failed(AttemptFailure { message, retryable });
        let failed = NodeFrame::Result(AttemptResult { job: job.clone(), attempt: 1, outcome, traceparent: None });
        let done = AttemptOutcome::Done(Json::of(&job).unwrap());
        let done = NodeFrame::Result(AttemptResult { job, attempt: 2, outcome: done, traceparent: None });
        let message = Message::Batch(vec![failed, done]);
        prop_assert_eq!(node(&message.to_text()).unwrap(), message);
    }
}
