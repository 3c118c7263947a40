//! Distributed ids: snowflakes, segments, sequences, UUIDs. Ids of 64 bits travel as texts of digits, since not
//! every JSON reader keeps such numbers exact.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::{ID_NUMBER_MAX, SEGMENT_DESCRIPTION_BYTES_MAX, SEGMENT_STEP_MAX, SEQUENCE_INCREMENT_MAX};
use crate::strict;

/// The snowflakes that this request gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snowflakes {
    /// The ids, rising.
    #[schema(max_items = 10000)]
    pub ids: Vec<String>,
    /// The worker number of the snowflakes, all ten bits.
    #[schema(maximum = 1023)]
    pub worker: u16,
}

/// The parts of a snowflake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnowflakeParts {
    /// The id.
    pub id: String,
    /// When the id was made, to the millisecond, by the clock of the instance that made it.
    #[schema(format = DateTime)]
    pub timestamp: String,
    /// The same, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The upper five bits of the worker number.
    #[schema(maximum = 31)]
    pub data_center: u8,
    /// The lower five bits of the worker number.
    #[schema(maximum = 31)]
    pub worker: u8,
    /// The worker number, all ten bits of it.
    #[schema(maximum = 1023)]
    pub worker_number: u16,
    /// The id's number among those of the same worker and millisecond.
    #[schema(maximum = 4095)]
    pub sequence: u16,
}

/// The ids of a tag that this request gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentIds {
    /// The tag.
    pub tag: String,
    /// The ids, rising. With `scrambled=true`, their scrambled forms, in the order of `plain`.
    #[schema(max_items = 10000)]
    pub ids: Vec<String>,
    /// With `scrambled=true`: the ids of the scrambled forms, rising. Do not show them to readers of the scrambled forms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<Vec<String>>,
}

/// A tag to create or change. Absent fields keep their values, or get their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentRequest {
    /// The shortest range that an instance takes, in ids; 1,000 by default. Under load ranges grow by themselves.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, SEGMENT_STEP_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 1000000000)]
    pub step: Option<u64>,
    /// The next id, 1 by default: a whole number, or one as a text. For an existing tag it can only rise,
    /// past all ids that were given out.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_id::<ID_NUMBER_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 0, maximum = 9223372036854775807u64)]
    pub start: Option<u64>,
    /// A description for people, at most 1,024 bytes.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_short_text::<SEGMENT_DESCRIPTION_BYTES_MAX, _>"
    )]
    #[schema(nullable = false, max_length = 1024)]
    pub description: Option<String>,
}

/// A tag: as the ledger has it, and the buffers of the instance that answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Segment {
    /// Its name.
    pub tag: String,
    /// The start that was last set.
    pub start: String,
    /// The highest id of any range that an instance took since `start`. `null` before the first.
    #[schema(required)]
    pub max: Option<String>,
    /// The shortest range that an instance takes, in ids.
    pub step: u64,
    /// The description.
    pub description: String,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When a range was last taken or a setting last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// The length of the next range of this instance, in ids. `null` where it has given out no id.
    #[schema(required)]
    pub next_step: Option<u64>,
    /// The number of ids that this instance has in memory.
    pub left: u64,
    /// The number of ids that this instance gave out per second over the last 10 s.
    pub rate: f64,
    /// How long the ids in memory last at that rate, in seconds. `null` while the rate is zero.
    #[schema(required)]
    pub seconds_left: Option<f64>,
}

/// The numbers of a sequence that this request gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SequenceIds {
    /// The sequence.
    pub name: String,
    /// The numbers, rising, and higher than any granted before.
    #[schema(max_items = 10000)]
    pub ids: Vec<String>,
}

/// A sequence to create or change. Absent fields keep their values, or get their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SequenceRequest {
    /// The next number, 1 by default: a whole number, or one as a text. For an existing sequence it can only
    /// rise, past all numbers that were granted.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_id::<ID_NUMBER_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 0, maximum = 9223372036854775807u64)]
    pub start: Option<u64>,
    /// The distance from each number to the next; 1 by default.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, SEQUENCE_INCREMENT_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 1000000000)]
    pub increment: Option<u64>,
}

/// A sequence, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sequence {
    /// Its name.
    pub name: String,
    /// The start that was last set.
    pub start: String,
    /// The next number to be granted. A sequence ends at 2^63 − 1.
    pub next: String,
    /// The difference between a number and the next.
    pub increment: u64,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When numbers were last granted or a setting last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// The UUIDs that this request gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Uuids {
    /// The UUIDs. Those of version 7 rise.
    #[schema(max_items = 10000)]
    pub ids: Vec<String>,
    /// Their version, 4 or 7.
    pub version: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_a_number_or_a_text_of_digits() {
        let start = |text: &str| serde_json::from_str::<SequenceRequest>(&format!(r#"{{"start":{text}}}"#));
        for (good, number) in [
            ("0", 0),
            ("\"0\"", 0),
            ("7", 7),
            ("9223372036854775807", ID_NUMBER_MAX),
            ("\"9223372036854775807\"", ID_NUMBER_MAX),
        ] {
            assert_eq!(start(good).unwrap().start, Some(number), "{good}");
        }
        for bad in [
            "-1",
            "1.5",
            "1e3",
            "9223372036854775808",
            "\"9223372036854775808\"",
            "\"\"",
            "\"01\"",
            "\"+1\"",
            "\" 1\"",
            "\"x\"",
            "null",
            "[]",
            "{}",
            "true",
        ] {
            let message = start(bad).expect_err(bad).to_string();
            assert!(message.contains("a whole number from 0 to 9223372036854775807"), "{bad}: {message}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_change_is_said() {
        for (body, says) in [
            (r#"{"step":0}"#, "from 1 to 1000000000"),
            (r#"{"step":1000000001}"#, "from 1 to 1000000000"),
            (r#"{"step":null}"#, "from 1 to"),
            (r#"{"description":null}"#, "at most 1024 bytes"),
            (
                r#"{"description":"\u0000"}"#,
                "a text with the character NUL, expected a text of at most 1024 bytes without it",
            ),
            (r#"{"stepp":1}"#, "unknown field"),
            (r#"{"step":1,"step":1}"#, "duplicate field"),
        ] {
            let message = serde_json::from_str::<SegmentRequest>(body).expect_err(body).to_string();
            assert!(message.contains(says), "{message}");
        }
        let long = format!(r#"{{"description":"{}"}}"#, "x".repeat(SEGMENT_DESCRIPTION_BYTES_MAX + 1));
        let message = serde_json::from_str::<SegmentRequest>(&long).expect_err("it is long").to_string();
        assert!(
            message.contains("a text of 1025 bytes, expected a text of at most 1024 bytes at"),
            "{message}"
        );
        let empty = serde_json::from_str::<SegmentRequest>(r#"{"description":""}"#).unwrap();
        assert_eq!(serde_json::to_string(&empty).unwrap(), r#"{"description":""}"#);
    }
}
