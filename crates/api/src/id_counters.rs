//! Counters of the ids that were made, by kind. They are found once: a request makes its ids in less time than a counter
//! is looked up.

use metrics::Counter;

/// One counter for each kind.
pub struct IdCounters {
    pub snowflake: Counter,
    pub segment: Counter,
    pub sequence: Counter,
    pub uuid: Counter,
}

impl Default for IdCounters {
    fn default() -> Self {
        let of = |kind: &'static str| metrics::counter!("fencepost_ids_total", "kind" => kind);
        Self {
            snowflake: of("snowflake"),
            segment: of("segment"),
            sequence: of("sequence"),
            uuid: of("uuid"),
        }
    }
}
