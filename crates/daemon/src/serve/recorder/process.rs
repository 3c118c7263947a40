//! What the kernel tells of this process, under the names that Prometheus' own clients use.

use procfs::process::{LimitValue, Process};
use procfs::{ProcResult, boot_time_secs, page_size, ticks_per_second};

/// Shows how much of the machine the process uses now.
///
/// # Errors
/// The kernel's files cannot be read.
pub fn show() -> ProcResult<()> {
    let process = Process::myself()?;
    let (stat, limits) = (process.stat()?, process.limits()?);
    let ticks = ticks_per_second();
    metrics::counter!("process_cpu_seconds_total").absolute((stat.utime + stat.stime) / ticks);
    metrics::gauge!("process_start_time_seconds")
        .set(boot_time_secs()? as f64 + stat.starttime as f64 / ticks as f64);
    metrics::gauge!("process_resident_memory_bytes").set((stat.rss * page_size()) as f64);
    metrics::gauge!("process_virtual_memory_bytes").set(stat.vsize as f64);
    metrics::gauge!("process_virtual_memory_max_bytes").set(limit(&limits.max_address_space.soft_limit));
    metrics::gauge!("process_open_fds").set(process.fd_count()? as f64);
    metrics::gauge!("process_max_fds").set(limit(&limits.max_open_files.soft_limit));
    metrics::gauge!("process_threads").set(stat.num_threads as f64);
    Ok(())
}

/// A limit as a number.
fn limit(limit: &LimitValue) -> f64 {
    match limit {
        LimitValue::Value(value) => *value as f64,
        LimitValue::Unlimited => f64::INFINITY,
    }
}
