//! The ledger of a test, which fails as it plans.

use std::sync::Arc;

use ledger::Handle;

use crate::flaky::{Flaky, Plan};

/// A SQLite ledger in a folder of its own, and the one before it that fails as planned.
pub struct FlakyLedger {
    pub folder: tempfile::TempDir,
    pub real: Handle,
    pub plan: Arc<Plan>,
    pub ledger: Handle,
}

impl FlakyLedger {
    pub async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = ledger::Options {
            url: format!("sqlite:{}", folder.path().join("ledger.db").display()),
            connections_max: 4,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 10_000,
            expected_id: None,
        };
        let real = ledger::open(&options).await.unwrap();
        let plan = Arc::<Plan>::default();
        let ledger: Handle = Arc::new(Flaky { real: real.clone(), plan: plan.clone() });
        Self { folder, real, plan, ledger }
    }
}
