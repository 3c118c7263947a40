//! How many jobs of each kind ended, as a metric. Clients make kinds up, so only the first ones that this process meets have
//! a label of their own: a label with any number of values would fill the memory of the process and of what reads it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use domain::JobKind;
use domain::job::Outcome;
use metrics::SharedString;
use parking_lot::RwLock;

use super::job_metrics::OutcomeCounters;
use super::limits::KINDS_COUNTED_MAX;

/// The label of kinds that came after the first [`KINDS_COUNTED_MAX`].
const OTHER: &str = "other";

/// The counters of this process: its metrics are the process's, too.
pub(super) static KINDS: LazyLock<KindCounters> = LazyLock::new(KindCounters::default);

/// The counters of the kinds that have a label, of jobs without a kind, and of the other kinds.
pub(super) struct KindCounters {
    known: RwLock<HashMap<JobKind, Arc<OutcomeCounters>>>,
    none: OutcomeCounters,
    other: Arc<OutcomeCounters>,
}

impl Default for KindCounters {
    fn default() -> Self {
        let label = |label| labelled(&SharedString::const_str(label));
        Self { known: RwLock::default(), none: label(""), other: Arc::new(label(OTHER)) }
    }
}

impl KindCounters {
    /// A job has ended.
    pub(super) fn count(&self, kind: Option<&JobKind>, outcome: Outcome) {
        match kind {
            None => self.none.of(outcome).increment(1),
            Some(kind) => self.counters(kind).of(outcome).increment(1),
        }
    }

    fn counters(&self, kind: &JobKind) -> Arc<OutcomeCounters> {
        if let Some(counters) = self.known.read().get(kind) {
            return Arc::clone(counters);
        }
        let mut known = self.known.write();
        if known.len() >= KINDS_COUNTED_MAX && !known.contains_key(kind) {
            return Arc::clone(&self.other);
        }
        let new = || Arc::new(labelled(&SharedString::from_shared(kind.as_str().into())));
        Arc::clone(known.entry(kind.clone()).or_insert_with(new))
    }
}

/// The counters of a label.
fn labelled(kind: &SharedString) -> OutcomeCounters {
    OutcomeCounters::new(
        |outcome| metrics::counter!("fencepost_job_kinds_total", "kind" => kind.clone(), "outcome" => outcome),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_kinds_have_counters_of_their_own_and_keep_them() {
        let kinds = KindCounters::default();
        let counters = |n: usize| kinds.counters(&JobKind::parse(&format!("kind-{n}")).unwrap());
        let first: Vec<_> = (0..KINDS_COUNTED_MAX).map(counters).collect();
        assert!(first.iter().all(|own| !Arc::ptr_eq(own, &kinds.other)));
        assert!(Arc::ptr_eq(&counters(KINDS_COUNTED_MAX), &kinds.other));
        assert!(Arc::ptr_eq(&counters(0), &first[0]));
        assert!(Arc::ptr_eq(&counters(KINDS_COUNTED_MAX + 7), &kinds.other));
    }
}
