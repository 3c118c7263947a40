//! A recorder for tests: what was recorded of counters and gauges.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;

/// The value of each series by its name, as in `a_total{x=y}`; a gauge has the bits of its number.
#[derive(Default)]
pub(crate) struct Recorded(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Recorded {
    /// What a counter has; 0 where nothing was recorded.
    pub(crate) fn counter(&self, series: &str) -> u64 {
        self.0.lock().get(series).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// What a gauge has; `None` where nothing was recorded.
    pub(crate) fn gauge(&self, series: &str) -> Option<f64> {
        self.0.lock().get(series).map(|value| f64::from_bits(value.load(Ordering::Relaxed)))
    }

    fn value(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let series = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::clone(self.0.lock().entry(series).or_default())
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
