//! A ledger for tests.

use tempfile::TempDir;

/// A new SQLite ledger in this folder.
pub(crate) async fn open(folder: &TempDir) -> ledger::Handle {
    let options = ledger::Options {
        url: format!("sqlite:{}", folder.path().join("ledger.db").display()),
        connections_max: 2,
        connect_timeout_ms: 5_000,
        call_timeout_ms: 5_000,
        expected_id: None,
    };
    ledger::open(&options).await.unwrap()
}
