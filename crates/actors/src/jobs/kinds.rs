//! How many jobs of each kind ended, as a metric. Clients make kinds up, so only the first ones that this process meets have
//! a label of their own: a label with any number of values would fill the memory of the process and of what reads it.

use std::collections::HashMap;
use std::sync::{LazyLock, PoisonError, RwLock};

use domain::JobKind;
use domain::job::Outcome;
use metrics::SharedString;

use super::limits::KINDS_COUNTED_MAX;

/// The label of kinds that came after the first [`KINDS_COUNTED_MAX`].
const OTHER: &str = "other";

/// Of the process, as its metrics are.
pub(super) static KINDS: LazyLock<KindLabels> = LazyLock::new(KindLabels::default);

/// The kinds that have a label.
#[derive(Default)]
pub(super) struct KindLabels(RwLock<HashMap<JobKind, SharedString>>);

impl KindLabels {
    /// A job has ended.
    pub(super) fn count(&self, kind: Option<&JobKind>, outcome: Outcome) {
        let kind = kind.map_or(SharedString::const_str(""), |kind| self.label(kind));
        metrics::counter!("fencepost_job_kinds_total", "kind" => kind, "outcome" => outcome.as_str())
            .increment(1);
    }

    fn label(&self, kind: &JobKind) -> SharedString {
        if let Some(label) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(kind) {
            return label.clone();
        }
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KINDS_COUNTED_MAX && !known.contains_key(kind) {
            return SharedString::const_str(OTHER);
        }
        known.entry(kind.clone()).or_insert_with(|| SharedString::from_shared(kind.as_str().into())).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_kinds_have_labels_and_keep_them() {
        let labels = KindLabels::default();
        let label = |n: usize| labels.label(&JobKind::parse(&format!("kind-{n}")).unwrap());
        for n in 0..KINDS_COUNTED_MAX {
            assert_eq!(&*label(n), format!("kind-{n}"));
        }
        assert_eq!(&*label(KINDS_COUNTED_MAX), OTHER);
        assert_eq!((&*label(0), &*label(KINDS_COUNTED_MAX + 7)), ("kind-0", OTHER));
    }
}
