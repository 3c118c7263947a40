//! What a load costs: the processor time of each program that takes part in it.

use anyhow::{Context as _, Result};
use serde::Serialize;
use testkit::fleet::Fleet;
use testkit::instance::cpu_seconds;

/// Processor time in seconds, of all of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Costs {
    /// The instances.
    pub daemon: f64,
    /// PostgreSQL, its server processes included.
    pub postgres: f64,
    /// Redis.
    pub redis: f64,
    /// This program.
    pub generator: f64,
}

impl Costs {
    /// As used until now.
    ///
    /// # Errors
    /// A program has ended.
    pub async fn read(fleet: &Fleet) -> Result<Self> {
        let mut daemon = 0.0;
        for at in 0..fleet.urls().len() {
            daemon += cpu_seconds(fleet.instance(at).await.process().pid())?;
        }
        let (postgres, redis) = fleet.server_pids();
        Ok(Self {
            daemon,
            postgres: postgres.map_or(Ok(0.0), with_children)?,
            redis: redis.map_or(Ok(0.0), cpu_seconds)?,
            generator: cpu_seconds(std::process::id())?,
        })
    }

    /// What was added since an earlier look, for each 1,000 of `count`.
    #[must_use]
    pub fn per_1000(self, earlier: Self, count: usize) -> Self {
        let part = |now: f64, then: f64| (now - then) * 1_000.0 / count.max(1) as f64;
        Self {
            daemon: part(self.daemon, earlier.daemon),
            postgres: part(self.postgres, earlier.postgres),
            redis: part(self.redis, earlier.redis),
            generator: part(self.generator, earlier.generator),
        }
    }

    /// What was used for each 1,000, as a line of a table: its name and its figures.
    #[must_use]
    pub fn line_per_1000(self) -> (String, String) {
        let Self { daemon, postgres, redis, generator } = self;
        let figures = format!("{daemon:.3}, {postgres:.3}, {redis:.3}, {generator:.3}");
        ("CPU s per 1,000: daemons, PostgreSQL, Redis, generator".to_owned(), figures)
    }

    /// All together.
    #[must_use]
    pub fn sum(self) -> f64 {
        self.daemon + self.postgres + self.redis + self.generator
    }
}

/// Of a process, its children, and those of its children that have ended.
fn with_children(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("a name in brackets")?;
    let ended = rest.split_whitespace().skip(13).take(2).map(str::parse::<u64>);
    let ended = ended.sum::<std::result::Result<u64, _>>()? as f64 / 100.0;
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    // One that ends meanwhile is counted with those that ended, the next time.
    let children: f64 =
        children.split_whitespace().filter_map(|child| cpu_seconds(child.parse().ok()?).ok()).sum();
    Ok(cpu_seconds(pid)? + ended + children)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_that_have_ended_counts() {
        let before = with_children(std::process::id()).unwrap();
        let line = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", line]).status().unwrap().success());
        assert!(with_children(std::process::id()).unwrap() > before);
    }
}
