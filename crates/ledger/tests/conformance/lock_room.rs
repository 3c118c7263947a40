//! What a server is said to have too few locks for. Only PostgreSQL has a number of them.

use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::{Connection, PgConnection};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::bench::Bench;

const DAYS: u64 = 365;
const DAY_MS: u64 = 24 * 3_600_000;

/// The warnings of a thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut warning = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| warning += &format!("{field}={value:?} "));
        self.0.lock().push(warning);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// All of it is on one thread, whose warnings are kept. A process warns once, and no other case keeps jobs for so long.
#[tokio::test]
async fn a_purge_warns_where_the_server_has_too_few_locks_for_the_days_that_jobs_are_kept() {
    let b = Bench::postgres().await;
    let room = "SELECT current_setting('max_locks_per_transaction')::bigint,
                       current_setting('max_connections')::bigint";
    let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
    let (locks, connections): (i64, i64) = sqlx::query_as(room).fetch_one(&mut hand).await.unwrap();
    // Seven for each day, if all sessions share those of 100 connections: docs/operations.md says so.
    let needed = (7 * DAYS * 100).div_ceil(connections.unsigned_abs());
    assert!(connections > 100 && locks.unsigned_abs() < needed, "{locks} for each of {connections}");
    let warnings = Warnings::default();
    let _kept = tracing::subscriber::set_default(warnings.clone());
    assert_eq!(b.ledger.purge_jobs(DAYS * DAY_MS, 100).await.unwrap(), 0);
    let warned = warnings.0.lock();
    let fields = [format!("days={DAYS} "), format!("needed={needed} "), format!("found={locks} ")];
    let is_it = |warning: &String| {
        warning.contains("max_locks_per_transaction") && fields.iter().all(|field| warning.contains(field))
    };
    assert!(warned.iter().any(is_it), "{warned:?}");
}
