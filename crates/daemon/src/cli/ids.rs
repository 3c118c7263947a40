//! The commands about ids.

use clap::{Args, Subcommand};
use wire::limits::{ID_BATCH_MAX, ID_NUMBER_MAX, SEGMENT_STEP_MAX, SEQUENCE_INCREMENT_MAX};

use super::{Paged, Remote};

/// As an option is read.
const COUNT_MAX: u32 = ID_BATCH_MAX as u32;

/// How many ids.
#[derive(Args, Clone, Copy, Debug)]
pub struct Counted {
    /// How many
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=i64::from(COUNT_MAX)))]
    pub count: u32,
}

/// `fencepost id …`
#[derive(Debug, Subcommand)]
pub enum Id {
    /// Make snowflakes
    Snowflake {
        #[command(flatten)]
        counted: Counted,
        #[command(flatten)]
        remote: Remote,
    },
    /// Take ids of a tag
    Segment {
        /// The tag, which `set-segment` makes
        tag: String,
        /// In their unguessable form
        #[arg(long)]
        scrambled: bool,
        #[command(flatten)]
        counted: Counted,
        #[command(flatten)]
        remote: Remote,
    },
    /// Take numbers of a sequence
    Sequence {
        /// The sequence, which `set-sequence` makes
        name: String,
        #[command(flatten)]
        counted: Counted,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make UUIDs
    Uuid {
        /// 7 (sorted by time) or 4 (random)
        #[arg(long, value_name = "4|7", default_value = "7", value_parser = version)]
        version: u8,
        #[command(flatten)]
        counted: Counted,
        #[command(flatten)]
        remote: Remote,
    },
    /// Take a snowflake apart
    Decode {
        /// The id
        #[arg(value_parser = number())]
        id: u64,
        #[command(flatten)]
        remote: Remote,
    },
    /// List the tags of segments
    Segments {
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a tag of segments, or change it; what is not named stays
    SetSegment {
        /// The tag
        tag: String,
        /// The shortest range that an instance takes, in ids [default: 1000]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SEGMENT_STEP_MAX))]
        step: Option<u64>,
        /// Where it begins or goes on; only rises [default: 1]
        #[arg(long, value_name = "ID", value_parser = number())]
        start: Option<u64>,
        /// What it is for
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a sequence, or change it; what is not named stays
    SetSequence {
        /// The sequence
        name: String,
        /// Where it begins or goes on; only rises [default: 1]
        #[arg(long, value_name = "NUMBER", value_parser = number())]
        start: Option<u64>,
        /// From each number to the next [default: 1]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SEQUENCE_INCREMENT_MAX))]
        increment: Option<u64>,
        #[command(flatten)]
        remote: Remote,
    },
}

fn number() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(0..=ID_NUMBER_MAX)
}

fn version(text: &str) -> Result<u8, &'static str> {
    match text {
        "4" => Ok(4),
        "7" => Ok(7),
        _ => Err("4 or 7"),
    }
}
