//! The recorder behind `/metrics`: it knows every metric of the [table], and shows most of them from the start.

mod process;
mod table;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::Label;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use panic_guard::guarded;

use self::table::{Kind, METRICS, Metric};
use super::version;
use crate::exit::{Exit, Failure};

/// How often the metrics' histograms are tidied and the process is looked at.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// How often the machine's clock is compared with the database's.
const CLOCK_EVERY: Duration = Duration::from_secs(10);

/// Starts the recorder; the API serves what it renders. Once for the process, within a Tokio runtime.
///
/// # Errors
/// [`Exit::Software`]: there is a recorder already.
pub fn start() -> Result<PrometheusHandle, Failure> {
    let defect = |error| Failure::new(Exit::Software, format!("metrics cannot be recorded: {error}"));
    let handle = with_buckets().and_then(PrometheusBuilder::install_recorder).map_err(defect)?;
    show_from_the_start();
    show_process();
    tokio::spawn(keep_up(handle.clone()));
    Ok(handle)
}

fn with_buckets() -> Result<PrometheusBuilder, BuildError> {
    METRICS.iter().try_fold(PrometheusBuilder::new(), |builder, metric| match metric.kind {
        Kind::Histogram(buckets) => {
            builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)
        }
        Kind::Counter | Kind::Gauge => Ok(builder),
    })
}

fn show_from_the_start() {
    for metric in METRICS {
        let Metric { name, help, .. } = *metric;
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(name, help),
            Kind::Gauge => metrics::describe_gauge!(name, help),
            Kind::Histogram(_) => metrics::describe_histogram!(name, help),
        }
        for values in metric.combinations() {
            let named = metric.labels.iter().zip(values);
            let labels: Vec<_> = named.map(|(name, value)| Label::from_static_parts(name, value)).collect();
            match metric.kind {
                Kind::Counter => drop(metrics::counter!(name, labels)),
                Kind::Gauge => drop(metrics::gauge!(name, labels)),
                Kind::Histogram(_) => drop(metrics::histogram!(name, labels)),
            }
        }
    }
    metrics::gauge!("fencepost_build_info", "version" => version()).set(1.0);
}

async fn keep_up(handle: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP_EVERY).await;
        let handle = handle.clone();
        // It reads files of the kernel's.
        let done = tokio::task::spawn_blocking(move || {
            handle.run_upkeep();
            show_process();
        });
        if let Err(error) = done.await {
            tracing::error!(%error, "the upkeep of the metrics failed");
        }
    }
}

fn show_process() {
    if let Err(error) = process::show() {
        tracing::debug!(%error, "the kernel does not tell about this process");
    }
}

/// Shows how far the machine's clock is from the database's, again and again.
pub async fn compare_clocks(ledger: ledger::Handle) {
    let mut looks = tokio::time::interval(CLOCK_EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        guarded("the comparison of the clocks", compare(&ledger)).await;
    }
}

async fn compare(ledger: &ledger::Handle) {
    let asked = SystemTime::now();
    match ledger.clock_ms().await {
        Ok(database_ms) => {
            let offset = offset_seconds(asked, SystemTime::now(), database_ms);
            metrics::gauge!("fencepost_clock_offset_seconds").set(offset);
        }
        Err(error) => tracing::debug!(%error, "the database's clock could not be read"),
    }
}

/// The machine's clock minus the database's, which was read between these two moments of the machine's.
fn offset_seconds(asked: SystemTime, answered: SystemTime, database_ms: u64) -> f64 {
    let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    f64::midpoint(seconds(asked), seconds(answered)) - Duration::from_millis(database_ms).as_secs_f64()
}

#[cfg(test)]
mod tests;
