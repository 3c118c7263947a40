//! The generators of ids. They exist as long as the process; the worker number changes with the incarnation.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actors::database_clock::SharedClock;
use domain::InstanceId;
use ids::snowflake::{Keeping, KnownLedger, Layout, LedgerNumbers, Numbers, Options, why_file_refused};
use ids::{Scramble, Segments, Sequences, Snowflakes, SystemClock};

use super::endpoint::Endpoint;
use super::incarnation::Incarnation;
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// Looks whether `ids.file` may be written; makes and changes nothing.
///
/// # Errors
/// [`Exit::Config`] for a file with something else in it, a link, and what is no file.
pub fn check_ids_file(config: &Config) -> Result<(), Failure> {
    let file = &config.ids.file;
    if file.is_empty() {
        return Ok(());
    }
    why_file_refused(Path::new(file)).map_or(Ok(()), |why| {
        let what =
            format!("ids.file {file} cannot be used: {why}, and would be lost; name a file of its own");
        Err(Failure::new(Exit::Config, what))
    })
}

/// Starts what makes snowflakes: by the local file at first, if that proves a worker number. A number is
/// acquired on the first request for a snowflake, or at once after a recovery. `cluster` is the ledger that was known before.
///
/// # Errors
/// For a URL of the ledger that cannot be used.
pub fn snowflakes(config: &Config, cluster: Option<&str>) -> Result<(Snowflakes, Keeping), Failure> {
    let ledger =
        KnownLedger { address: ledger::address(&config.ledger.url)?, cluster: cluster.map(str::to_owned) };
    Ok(Snowflakes::start(options(config, ledger), Arc::new(SystemClock)))
}

/// Starts the others.
pub fn start(config: &Config, ledger: &ledger::Handle) -> api::Generators {
    let key = &config.ids.scramble_key.0;
    api::Generators {
        segments: Segments::new(ledger.clone()),
        sequences: Sequences::new(ledger.clone()),
        scramble: (!key.is_empty()).then(|| Scramble::from_hex(key).expect("the key is checked")),
    }
}

/// The ids that this instance gives without asking the ledger for them.
pub struct InMemory {
    pub snowflakes: Snowflakes,
    pub segments: Segments,
}

impl InMemory {
    /// Others may be given them: none of them is given here.
    pub fn drop_all(&self) {
        self.snowflakes.recall();
        self.segments.drop_ranges();
    }
}

/// Where an incarnation gets its worker number: from the ledger of this id.
pub fn numbers(
    config: &Config,
    (ledger, cluster): (&ledger::Handle, &str),
    endpoint: &Endpoint,
    incarnation: &Incarnation,
    clock: &SharedClock,
) -> Arc<dyn Numbers> {
    // A SQLite file has one process: nobody else lives.
    let is_alone = ledger.kind() == ledger::Kind::Sqlite;
    let (others, clock) = (incarnation.membership.failure_detector(), clock.clone());
    let lease = Duration::from_millis(config.ids.lease_ms);
    Arc::new(LedgerNumbers {
        ledger: ledger.clone(),
        cluster: cluster.to_owned(),
        owner: incarnation.identity.id.clone(),
        node: endpoint.node_name.clone(),
        lease_ms: config.ids.lease_ms,
        may_take_from: Box::new(move |other: &InstanceId, is_over: bool| {
            let is_lapsed = || is_over && others.may_take() && !clock.has_stepped_forward(lease);
            is_alone || others.is_forgotten(other) || is_lapsed()
        }),
        // By then this instance finds an instance dead that nobody else has found dead.
        inherits_until: Instant::now() + 2 * Duration::from_millis(config.lease.instance_ms),
    })
}

fn options(config: &Config, ledger: KnownLedger) -> Options {
    let ids = &config.ids;
    Options {
        layout: Layout::since(ids.epoch_ms),
        choice: ids.choice().expect("the choice is checked"),
        lead_ms: ids.lead_ms,
        lease_ms: ids.lease_ms,
        clock_skew_ms: ids.clock_skew_max_ms,
        ledger,
        file: (!ids.file.is_empty()).then(|| ids.file.clone().into()),
    }
}
