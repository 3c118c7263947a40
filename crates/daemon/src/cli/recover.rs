//! The command about a ledger that went back in time.

use std::path::PathBuf;

use ::ids::limits::LEAD_MS_MIN;
use clap::{ArgGroup, Args};
use ledger::{RECOVERED_NUMBERS_MAX, RECOVERED_NUMBERS_MIN};
use wire::limits::REASON_CHARS_MAX;

use crate::config::SNOWFLAKES_AHEAD_MS_MAX;

/// `fencepost recover`
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["dry_run", "confirm", "unknown_signers_are_new"]))]
pub struct Recover {
    /// Do it: end all leases, skip numbers, and have each signer wait for its next nonce
    #[arg(long)]
    pub confirm: bool,
    /// Say what would be changed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// From now on a signer that the ledger does not know grants from its first nonce. First confirm all signers that may have
    /// been granted nonces between the backup and the recovery, and set the segments and sequences again that were made by then
    #[arg(long, conflicts_with_all = ["ids", "lead_ms"])]
    pub unknown_signers_are_new: bool,
    /// Skip at least so many ids of each segment and numbers of each sequence: more than were given since the backup. (What
    /// instances may have in memory is skipped beside; but if a segment's step was raised above 1000000 since the backup, add
    /// 100 times the largest step that it has had since)
    #[arg(long, value_name = "N", default_value_t = RECOVERED_NUMBERS_MIN, value_parser = skipped())]
    pub ids: i64,
    /// The largest sum of ids.lead_ms and ids.clock_skew_max_ms that an instance has had since the backup. For so long after the
    /// recovery snowflakes wait. The default is the largest that can be configured
    #[arg(long, value_name = "MS", default_value_t = SNOWFLAKES_AHEAD_MS_MAX, value_parser = lead())]
    pub lead_ms: i64,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", value_parser = reason, conflicts_with = "dry_run")]
    pub reason: Option<String>,
    /// Configuration file (TOML) [default: none] [env: FENCEPOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// sqlite:PATH or postgres://… [default: sqlite:./fencepost-data/ledger.db] [env: FENCEPOST_DATABASE_URL]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

fn lead() -> clap::builder::RangedI64ValueParser {
    clap::value_parser!(i64).range(LEAD_MS_MIN as i64..=SNOWFLAKES_AHEAD_MS_MAX)
}

fn skipped() -> clap::builder::RangedI64ValueParser {
    clap::value_parser!(i64).range(RECOVERED_NUMBERS_MIN..=RECOVERED_NUMBERS_MAX)
}

fn reason(text: &str) -> Result<String, String> {
    if (1..=REASON_CHARS_MAX).contains(&text.chars().count()) {
        return Ok(text.to_owned());
    }
    Err(format!("1 to {REASON_CHARS_MAX} characters"))
}
