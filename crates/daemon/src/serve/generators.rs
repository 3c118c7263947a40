//! The generators of ids. They exist as long as the process; the worker number changes with the incarnation.

use std::sync::Arc;

use domain::InstanceId;
use ids::snowflake::{Keeping, Layout, LedgerNumbers, Numbers, Options};
use ids::{Scramble, Segments, Sequences, Snowflakes, SystemClock};

use super::endpoint::Endpoint;
use crate::config::Config;

/// Starts what makes snowflakes: by the local file at first, if that proves a worker number. A number is
/// acquired on the first request for a snowflake.
pub fn snowflakes(config: &Config) -> (Snowflakes, Keeping) {
    Snowflakes::start(options(config), Arc::new(SystemClock))
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

/// Where an incarnation gets its worker number.
pub fn numbers(
    config: &Config,
    ledger: &ledger::Handle,
    endpoint: &Endpoint,
    owner: &InstanceId,
) -> Arc<dyn Numbers> {
    Arc::new(LedgerNumbers {
        ledger: ledger.clone(),
        owner: owner.clone(),
        node: endpoint.node_name.clone(),
        lease_ms: config.ids.lease_ms,
    })
}

fn options(config: &Config) -> Options {
    let ids = &config.ids;
    Options {
        layout: Layout::since(ids.epoch_ms),
        choice: ids.choice().expect("the choice is checked"),
        lead_ms: ids.lead_ms,
        lease_ms: ids.lease_ms,
        clock_skew_ms: ids.clock_skew_max_ms,
        file: (!ids.file.is_empty()).then(|| ids.file.clone().into()),
    }
}
