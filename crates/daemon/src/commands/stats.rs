//! `fencepost stats`: jobs, plans and tasks by state, and the rates of jobs.

use std::cmp::Reverse;

use client::wire::stats::{JobRate, JobRates, JobStates, Stats, TenantStats};

use super::look::Look;
use super::{connect, shown};
use crate::cli::Statistics;
use crate::exit::Failure;

/// The most tenants in the table for people. JSON has them all.
const TENANTS_SHOWN: usize = 20;

/// One of the rates over a length of time.
type RateOf = fn(&JobRate) -> f64;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Statistics) -> Result<(), Failure> {
    let client = connect(&command.shown.remote)?;
    Look::one(people).run(&command.shown, async || client.stats().await).await
}

/// The slots, and tables: pools, tenants if there are any, rates, plans and tasks.
fn people(stats: &Stats) -> String {
    let [unfinished, plans] = [stats.counted_ms_ago, stats.plans_counted_ms_ago].map(shown::length);
    let finished = stats.finished_counted_ms_ago.map_or_else(|| "not yet".to_owned(), shown::length);
    let counted =
        format!("cluster, counted {unfinished} ago (FINISHED: {finished}; plans and tasks: {plans})\n");
    let slots = match stats.slots {
        Some(slots) => format!("slots: {} of {} taken\n", slots.used, slots.all),
        None => "slots: the server does not tell\n".to_owned(),
    };
    let tables = [counted + &slots, pools(stats)].into_iter().chain(tenants(stats));
    tables.chain([rates(stats), statuses(stats)]).collect::<Vec<_>>().join("\n")
}

const fn unfinished(of: &TenantStats) -> u64 {
    of.jobs.created + of.jobs.dispatched + of.jobs.running
}

/// Jobs by state for each tenant, those with the most unfinished jobs first; `None` if no job has a tenant.
fn tenants(stats: &Stats) -> Option<String> {
    if stats.tenants.iter().all(|of| of.tenant.is_none()) {
        return None;
    }
    let mut tenants: Vec<_> = stats.tenants.iter().collect();
    tenants.sort_by_key(|of| Reverse(unfinished(of)));
    let left_out = tenants.len().saturating_sub(TENANTS_SHOWN);
    let row = |of: &&TenantStats| {
        let ended = of.rates.one_minute.finished_per_second;
        let ended = ended.succeeded + ended.failed + ended.cancelled + ended.timed_out;
        [
            shown::or_none(of.tenant.as_ref()),
            of.jobs.created.to_string(),
            of.delayed.to_string(),
            of.jobs.dispatched.to_string(),
            of.jobs.running.to_string(),
            shown::or_none(of.jobs.finished),
            shown::or_none(of.oldest_waiting_ms.map(shown::length)),
            format!("{:.2}", of.rates.one_minute.accepted_per_second),
            format!("{ended:.2}"),
        ]
    };
    let headings = [
        "TENANT",
        "CREATED",
        "DELAYED",
        "DISPATCHED",
        "RUNNING",
        "FINISHED",
        "OLDEST",
        "ACCEPTED/S",
        "FINISHED/S",
    ];
    let table = shown::table(headings, tenants.iter().take(TENANTS_SHOWN).map(row));
    Some(if left_out == 0 { table } else { format!("{table}and {left_out} more tenants\n") })
}

/// Jobs by state, in all and for each pool.
pub fn pools(stats: &Stats) -> String {
    let row = |name: &str, paused: &str, jobs: &JobStates, delayed: u64, oldest_ms: Option<u64>| {
        [
            format!("{name}{paused}"),
            jobs.created.to_string(),
            delayed.to_string(),
            jobs.dispatched.to_string(),
            jobs.running.to_string(),
            shown::or_none(jobs.finished),
            shown::or_none(oldest_ms.map(shown::length)),
        ]
    };
    let all = row("all", "", &stats.jobs, stats.delayed, stats.oldest_waiting_ms);
    let of_pools = stats.pools.iter().map(|pool| {
        let paused = if pool.paused { " (paused)" } else { "" };
        let name = pool.pool.as_deref().unwrap_or(shown::NONE);
        row(name, paused, &pool.jobs, pool.delayed, pool.oldest_waiting_ms)
    });
    let headings = ["POOL", "CREATED", "DELAYED", "DISPATCHED", "RUNNING", "FINISHED", "OLDEST"];
    shown::table(headings, std::iter::once(all).chain(of_pools))
}

/// Jobs per second: all of them by outcome, those of a pool together.
pub fn rates(stats: &Stats) -> String {
    let row = |pool: &str, what: &str, of: &JobRates, rate: RateOf| {
        let [one, five, fifteen] =
            [&of.one_minute, &of.five_minutes, &of.fifteen_minutes].map(|of| format!("{:.2}", rate(of)));
        [pool.to_owned(), what.to_owned(), one, five, fifteen]
    };
    let mut rows = Vec::new();
    let kinds: [(&str, RateOf); 5] = [
        ("accepted", |of| of.accepted_per_second),
        ("succeeded", |of| of.finished_per_second.succeeded),
        ("failed", |of| of.finished_per_second.failed),
        ("cancelled", |of| of.finished_per_second.cancelled),
        ("timed_out", |of| of.finished_per_second.timed_out),
    ];
    rows.extend(kinds.map(|(what, rate)| row("all", what, &stats.rates, rate)));
    for pool in &stats.pools {
        let name = pool.pool.as_deref().unwrap_or(shown::NONE);
        rows.push(row(name, "accepted", &pool.rates, |of| of.accepted_per_second));
        rows.push(row(name, "finished", &pool.rates, |of| {
            let of = &of.finished_per_second;
            of.succeeded + of.failed + of.cancelled + of.timed_out
        }));
    }
    let silent: String = stats
        .instances
        .iter()
        .filter_map(|one| Some(format!("without instance {}: {}\n", one.instance, one.problem.as_ref()?)))
        .collect();
    let instances = match stats.instances.len() {
        // One of an earlier release answers for itself.
        0 | 1 => format!("instance {}", stats.instance),
        count => format!("{count} instances"),
    };
    format!("jobs per second, {instances}\n{silent}")
        + &shown::table(["POOL", "JOBS", "1 MIN", "5 MIN", "15 MIN"], rows)
}

fn statuses(stats: &Stats) -> String {
    let (plans, tasks) = (&stats.plans, &stats.tasks);
    let rows = [
        ("CREATED", Some(plans.created), None),
        ("PENDING", None, Some(tasks.pending)),
        ("RUNNING", Some(plans.running), Some(tasks.running)),
        ("PAUSED", Some(plans.paused), Some(tasks.paused)),
        ("ATTENTION", Some(plans.attention), None),
        ("INTERRUPTED", None, Some(tasks.interrupted)),
        ("FAILED", None, Some(tasks.failed)),
        ("SUCCEEDED", Some(plans.succeeded), Some(tasks.succeeded)),
        ("CANCELLED", Some(plans.cancelled), Some(tasks.cancelled)),
    ];
    let rows =
        rows.map(|(status, plans, tasks)| [status.to_owned(), shown::or_none(plans), shown::or_none(tasks)]);
    shown::table(["STATUS", "PLANS", "TASKS OF UNFINISHED PLANS"], rows)
        + &format!("unknown stages: {}\n", stats.unknown_stages)
}

#[cfg(test)]
mod tests {
    use client::wire::stats::{
        InstanceRates, JobHistory, OutcomeRates, PlanStatuses, PoolStats, SlotStats, TaskStatuses,
    };

    use super::*;

    #[test]
    fn people_see_pools_rates_and_statuses() {
        let rate = |accepted_per_second, succeeded| JobRate {
            accepted_per_second,
            finished_per_second: OutcomeRates { succeeded, failed: 0.25, ..OutcomeRates::default() },
        };
        let rates = JobRates {
            one_minute: rate(12.0, 3.0),
            five_minutes: rate(2.5, 2.0),
            fifteen_minutes: rate(0.125, 0.0),
        };
        let jobs = JobStates { created: 3, dispatched: 0, running: 1, finished: Some(1_234) };
        let of_pool = |pool: Option<&str>, rates| PoolStats {
            pool: pool.map(str::to_owned),
            jobs,
            delayed: 2,
            oldest_waiting_ms: None,
            rates,
            paused: pool.is_some(),
        };
        let stats = Stats {
            instance: "a-1".to_owned(),
            jobs,
            delayed: 2,
            oldest_waiting_ms: Some(61_000),
            rates,
            instances: [("a-1", None), ("b-2", Some("it did not answer in time".to_owned()))]
                .map(|(instance, problem)| InstanceRates {
                    instance: instance.to_owned(),
                    counting_since: None,
                    rates: None,
                    problem,
                })
                .to_vec(),
            history_since: None,
            history: JobHistory::default(),
            slots: Some(SlotStats { used: 3, all: 8 }),
            pools: vec![of_pool(None, JobRates::default()), of_pool(Some("zh-en"), rates)],
            tenants: Vec::new(),
            plans: PlanStatuses { attention: 1, ..PlanStatuses::default() },
            tasks: TaskStatuses { interrupted: 7, ..TaskStatuses::default() },
            unknown_stages: 5,
            counted_ms_ago: 1_500,
            finished_counted_ms_ago: Some(130_000),
            plans_counted_ms_ago: 7,
        };
        let expected = "\
cluster, counted 1.5 s ago (FINISHED: 2 min; plans and tasks: 7 ms)
slots: 3 of 8 taken

POOL            CREATED  DELAYED  DISPATCHED  RUNNING  FINISHED  OLDEST
all             3        2        0           1        1234      61.0 s
-               3        2        0           1        1234      -
zh-en (paused)  3        2        0           1        1234      -

jobs per second, 2 instances
without instance b-2: it did not answer in time
POOL   JOBS       1 MIN  5 MIN  15 MIN
all    accepted   12.00  2.50   0.12
all    succeeded  3.00   2.00   0.00
all    failed     0.25   0.25   0.25
all    cancelled  0.00   0.00   0.00
all    timed_out  0.00   0.00   0.00
-      accepted   0.00   0.00   0.00
-      finished   0.00   0.00   0.00
zh-en  accepted   12.00  2.50   0.12
zh-en  finished   3.25   2.25   0.25

STATUS       PLANS  TASKS OF UNFINISHED PLANS
CREATED      0      -
PENDING      -      0
RUNNING      0      0
PAUSED       0      0
ATTENTION    1      -
INTERRUPTED  -      7
FAILED       -      0
SUCCEEDED    0      0
CANCELLED    0      0
unknown stages: 5
";
        assert_eq!(people(&stats), expected);
        let mut of_old = serde_json::to_value(&stats).unwrap();
        of_old.as_object_mut().unwrap().remove("slots");
        let of_old = people(&serde_json::from_value(of_old).unwrap());
        assert_eq!(of_old, expected.replace("3 of 8 taken", "the server does not tell"));
        let of_tenant = |tenant: Option<&str>, created| TenantStats {
            tenant: tenant.map(str::to_owned),
            jobs: JobStates { created, ..jobs },
            delayed: 2,
            oldest_waiting_ms: Some(61_000),
            rates,
        };
        let tenants = vec![of_tenant(None, 3), of_tenant(Some("acme"), 9), of_tenant(Some("beta"), 4)];
        let with_tenants = people(&Stats { tenants, ..stats.clone() });
        let table = "
TENANT  CREATED  DELAYED  DISPATCHED  RUNNING  FINISHED  OLDEST  ACCEPTED/S  FINISHED/S
acme    9        2        0           1        1234      61.0 s  12.00       3.25
beta    4        2        0           1        1234      61.0 s  12.00       3.25
-       3        2        0           1        1234      61.0 s  12.00       3.25
";
        assert!(with_tenants.contains(table), "{with_tenants}");
        let tenants = (0..25).map(|n| of_tenant(Some("t"), n)).collect();
        let many = people(&Stats { tenants, ..stats.clone() });
        assert!(many.contains("\nand 5 more tenants\n") && !many.contains("\nt       4 "), "{many}");
        let jobs = JobStates { finished: None, ..jobs };
        let just_started = people(&Stats { jobs, finished_counted_ms_ago: None, ..stats });
        for line in [
            "cluster, counted 1.5 s ago (FINISHED: not yet; plans and tasks: 7 ms)",
            "all             3        2        0           1        -         61.0 s",
        ] {
            assert!(just_started.lines().any(|shown| shown == line), "{just_started}");
        }
    }
}
