//! Counts what an instance accepts and another one carries out, because that one can. The metric is named here alone.

/// So many of this kind were handed on: a value of the metric's label `kind`.
pub fn count(kind: &'static str, amount: u64) {
    metrics::counter!("fencepost_handed_on_total", "kind" => kind).increment(amount);
}
