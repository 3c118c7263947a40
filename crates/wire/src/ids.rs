//! Distributed ids: snowflakes, segments, sequences, UUIDs. Ids of 64 bits travel as texts of digits, since not
//! every JSON reader keeps such numbers exact.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::{ID_NUMBER_MAX, SEGMENT_DESCRIPTION_BYTES_MAX, SEGMENT_STEP_MAX, SEQUENCE_INCREMENT_MAX};
use crate::strict;

/// Snowflakes, made for this request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snowflakes {
    /// The ids, rising.
    #[schema(max_items = 10000)]
    pub ids: Vec<String>,
    /// The worker number that they were made under, all ten bits of it.
    #[schema(maximum = 1023)]
    pub worker: u16,
}

/// What a snowflake is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnowflakeParts {
    /// The id.
    pub id: String,
    /// When it was made, by the clock of the instance that made it, to the millisecond.
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
    /// Which one of that worker and millisecond it is.
    #[schema(maximum = 4095)]
    pub sequence: u16,
}

/// Ids of a tag, taken for this request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentIds {
    /// The tag.
    pub tag: String,
    /// The ids, rising; with `scrambled=true` their scrambled forms, in the order of `plain`.
    #[schema(max_items = 10000)]
    pub ids: Vec<String>,
    /// With `scrambled=true`: the ids whose forms these are, rising. Not for the eyes of whoever gets the forms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<Vec<String>>,
}

/// What to make or change of a tag. What is not named stays, or begins with its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentRequest {
    /// The shortest range that an instance takes, in ids; 1,000 where nobody says. Under load ranges grow by
    /// themselves.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, SEGMENT_STEP_MAX, _>"
    )]
    #[schema(nullable = false, default = 1000, minimum = 1, maximum = 1000000000)]
    pub step: Option<u64>,
    /// Where it begins, 1 where nobody says, or goes on: a whole number, or one as a text. Of a tag that is there it
    /// only rises, past all that is given out.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_id::<ID_NUMBER_MAX, _>"
    )]
    #[schema(nullable = false, default = 1, minimum = 0, maximum = 9223372036854775807u64)]
    pub start: Option<u64>,
    /// What people say of it; 1,024 bytes at most.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_short_text::<SEGMENT_DESCRIPTION_BYTES_MAX, _>"
    )]
    #[schema(nullable = false, max_length = 1024)]
    pub description: Option<String>,
}

/// A tag: as the ledger has it, and how it stands in the instance asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Segment {
    /// Its name.
    pub tag: String,
    /// Where it began, as was last asked for.
    pub start: String,
    /// The highest id of any range that an instance took since `start`; `null` before the first.
    #[schema(required)]
    pub max: Option<String>,
    /// The shortest range that an instance takes, in ids.
    pub step: u64,
    /// What people say of it.
    pub description: String,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When a range was taken or something changed last.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// How long the next range of this instance will be, in ids; `null` where it has given out none.
    #[schema(required)]
    pub next_step: Option<u64>,
    /// Ids that this instance has in memory.
    pub left: u64,
    /// Ids that this instance gave out in a second, of late.
    pub rate: f64,
    /// For how long those in memory will do at that rate, in seconds; `null` while none are asked for.
    #[schema(required)]
    pub seconds_left: Option<f64>,
}

/// Numbers of a sequence, granted to this request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SequenceIds {
    /// The sequence.
    pub name: String,
    /// The numbers, rising, and higher than any that were granted before.
    #[schema(max_items = 10000)]
    pub ids: Vec<String>,
}

/// What to make or change of a sequence. What is not named stays, or begins with its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SequenceRequest {
    /// Where it begins, 1 where nobody says, or goes on: a whole number, or one as a text. Of a sequence that is
    /// there it only rises, past all that is granted.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_id::<ID_NUMBER_MAX, _>"
    )]
    #[schema(nullable = false, default = 1, minimum = 0, maximum = 9223372036854775807u64)]
    pub start: Option<u64>,
    /// From each number to the next; 1 where nobody says.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, SEQUENCE_INCREMENT_MAX, _>"
    )]
    #[schema(nullable = false, default = 1, minimum = 1, maximum = 1000000000)]
    pub increment: Option<u64>,
}

/// A sequence, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sequence {
    /// Its name.
    pub name: String,
    /// Where it began, as was last asked for.
    pub start: String,
    /// The next number to be granted. Past 2^63 − 1 there is none.
    pub next: String,
    /// From each number to the next.
    pub increment: u64,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When numbers were granted or something changed last.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// UUIDs, made for this request.
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
            (r#"{"description":"\u0000"}"#, "at most 1024 bytes"),
            (r#"{"stepp":1}"#, "unknown field"),
            (r#"{"step":1,"step":1}"#, "duplicate field"),
        ] {
            let message = serde_json::from_str::<SegmentRequest>(body).expect_err(body).to_string();
            assert!(message.contains(says), "{message}");
        }
        let long = format!(r#"{{"description":"{}"}}"#, "x".repeat(SEGMENT_DESCRIPTION_BYTES_MAX + 1));
        assert!(serde_json::from_str::<SegmentRequest>(&long).is_err());
        let empty = serde_json::from_str::<SegmentRequest>(r#"{"description":""}"#).unwrap();
        assert_eq!(serde_json::to_string(&empty).unwrap(), r#"{"description":""}"#);
    }
}
