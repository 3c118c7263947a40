//! The commands about ids.

use clap::{Args, Subcommand};
use wire::limits::{ID_BATCH_MAX, ID_NUMBER_MAX, SEGMENT_STEP_MAX, SEQUENCE_INCREMENT_MAX};

use super::{Paged, Remote, Shown};

/// In the type of a command-line option.
const COUNT_MAX: u32 = ID_BATCH_MAX as u32;

/// A number of ids.
#[derive(Args, Clone, Copy, Debug)]
pub struct Counted {
    /// Number of ids
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=i64::from(COUNT_MAX)))]
    pub count: u32,
}

/// `fencepost id …`
#[derive(Debug, Subcommand)]
pub enum Id {
    /// Issue snowflakes
    Snowflake {
        #[command(flatten)]
        counted: Counted,
        #[command(flatten)]
        remote: Remote,
    },
    /// Issue ids of a segment
    Segment {
        /// The tag, created by `set-segment`
        tag: String,
        /// Print the unguessable form of each id
        #[arg(long)]
        scrambled: bool,
        #[command(flatten)]
        counted: Counted,
        #[command(flatten)]
        remote: Remote,
    },
    /// Issue numbers of a sequence
    Sequence {
        /// The sequence, created by `set-sequence`
        name: String,
        #[command(flatten)]
        counted: Counted,
        #[command(flatten)]
        remote: Remote,
    },
    /// Issue UUIDs
    Uuid {
        /// 7 (sorted by time) or 4 (random)
        #[arg(long, value_name = "4|7", default_value = "7", value_parser = version)]
        version: u8,
        #[command(flatten)]
        counted: Counted,
        #[command(flatten)]
        remote: Remote,
    },
    /// Decode a snowflake
    Decode {
        /// The id
        #[arg(value_parser = number())]
        id: u64,
        #[command(flatten)]
        remote: Remote,
    },
    /// List the segments
    Segments {
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// List the sequences; no number is taken
    Sequences {
        /// Only the sequence of this name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Create or change a segment (scope admin); options that are not given keep their values
    SetSegment {
        /// The tag
        tag: String,
        /// The smallest range that an instance takes, in ids [default: 1000]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SEGMENT_STEP_MAX))]
        step: Option<u64>,
        /// The next number; it can only rise. Other instances first use up the ids in their memory [default: 1]
        #[arg(long, value_name = "ID", value_parser = number())]
        start: Option<u64>,
        /// A description
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Create or change a sequence (scope admin); options that are not given keep their values
    SetSequence {
        /// The sequence
        name: String,
        /// The next number; it can only rise [default: 1]
        #[arg(long, value_name = "NUMBER", value_parser = number())]
        start: Option<u64>,
        /// The difference between two numbers [default: 1]
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
