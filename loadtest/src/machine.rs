//! How much of the whole machine a load used, from `/proc/stat`: what no process is charged for is in it, and so is what
//! a neighbour on the same host took.

use anyhow::{Context as _, Result};
use serde::Serialize;

/// A run in which the host gave more percent of the machine to others does not count.
const STOLEN_PERCENT_MAX: f64 = 5.0;

/// The machine's counters at one moment.
#[derive(Clone, Copy, Debug)]
pub struct MachineCounters {
    /// In ticks: all, idle or waiting for the disk, and stolen.
    all: u64,
    idle: u64,
    stolen: u64,
    switches: u64,
}

/// What the machine did between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MachineUse {
    /// Percent of all cores' time that was idle, or waited for the disk.
    pub idle_percent: f64,
    /// Percent that the host gave to other machines.
    pub stolen_percent: f64,
    /// Changes of context for each of what was counted, those of all processes.
    pub switches_each: f64,
}

impl MachineCounters {
    /// As of now.
    ///
    /// # Errors
    /// `/proc/stat` cannot be read.
    pub fn read() -> Result<Self> {
        parse(&std::fs::read_to_string("/proc/stat")?)
    }

    /// What was done since an earlier moment, for so many of what is counted.
    #[must_use]
    pub fn since(self, earlier: Self, count: usize) -> MachineUse {
        let all = (self.all - earlier.all).max(1) as f64;
        MachineUse {
            idle_percent: (self.idle - earlier.idle) as f64 * 100.0 / all,
            stolen_percent: (self.stolen - earlier.stolen) as f64 * 100.0 / all,
            switches_each: (self.switches - earlier.switches) as f64 / count.max(1) as f64,
        }
    }
}

impl MachineUse {
    /// Whether the machine was ours, so that the run counts.
    #[must_use]
    pub fn counts(self) -> bool {
        self.stolen_percent <= STOLEN_PERCENT_MAX
    }

    /// Percent idle, percent stolen and changes of context, for a table.
    #[must_use]
    pub fn cells(self) -> [String; 3] {
        let Self { idle_percent, stolen_percent, switches_each } = self;
        [format!("{idle_percent:.1}"), format!("{stolen_percent:.1}"), format!("{switches_each:.2}")]
    }
}

/// The first line is the sum of all cores: user, nice, system, idle, iowait, irq, softirq, steal. (The two behind these
/// are parts of the first two.)
fn parse(stat: &str) -> Result<MachineCounters> {
    let line = |name: &str| {
        stat.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no line {name}"))
    };
    let ticks = line("cpu ")?.split_ascii_whitespace().take(8).map(str::parse::<u64>);
    let ticks = ticks.collect::<std::result::Result<Vec<_>, _>>()?;
    let [_, _, _, idle, waits, _, _, stolen] = ticks[..] else { anyhow::bail!("eight kinds of time") };
    let switches = line("ctxt ")?.trim().parse()?;
    Ok(MachineCounters { all: ticks.iter().sum(), idle: idle + waits, stolen, switches })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_stolen_and_switches_are_of_what_was_added() {
        let before = parse("cpu  100 0 50 200 10 0 5 0 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nctxt 1000\n").unwrap();
        let after = parse("cpu  160 0 70 210 20 0 5 10 9 0\nctxt 1500\n").unwrap();
        let used = after.since(before, 250);
        // 110 ticks were added: 60 user, 20 system, 10 idle, 10 waiting, 10 stolen.
        assert!((used.idle_percent - 2_000.0 / 110.0).abs() < 1e-9);
        assert!((used.stolen_percent - 1_000.0 / 110.0).abs() < 1e-9);
        assert!((used.switches_each - 2.0).abs() < 1e-9);
        assert_eq!(used.cells(), ["18.2", "9.1", "2.00"]);
        assert!(!used.counts() && MachineUse::default().counts());
        assert!(parse("cpu  1 2 3\nctxt 1\n").is_err());
        assert!(MachineCounters::read().is_ok());
    }
}
