//! Brings the statistics of several instances together: rates and histories add up, everything else was counted in the same
//! ledger.

use wire::stats::{InstanceRates, JobHistory, JobRate, JobRates, OutcomeRates, Stats};

/// Most pools in the statistics, and most tenants.
const NAMES_MAX: usize = 1_000;

/// Adds what another instance says of itself, or why it says nothing.
pub fn add(to: &mut Stats, instance: &str, said: &Result<Stats, String>) {
    let stats = match said {
        Ok(stats) => stats,
        Err(problem) => {
            let (counting_since, rates, problem) = (None, None, Some(problem.clone()));
            to.instances.push(InstanceRates {
                instance: instance.to_owned(),
                counting_since,
                rates,
                problem,
            });
            return;
        }
    };
    let counting_since = stats.instances.first().and_then(|own| own.counting_since.clone());
    let (instance, rates) = (instance.to_owned(), Some(stats.rates));
    to.instances.push(InstanceRates { instance, counting_since, rates, problem: None });
    // Times of one form sort as texts do. An instance of an earlier release says none.
    if let Some(since) = &stats.history_since
        && to.history_since.as_ref().is_none_or(|earliest| since < earliest)
    {
        to.history_since = Some(since.clone());
    }
    to.rates = sum(&to.rates, &stats.rates);
    if stats.history.step_ms == to.history.step_ms {
        add_history(&mut to.history, &stats.history);
    }
    add_named(&mut to.pools, &stats.pools, |pool| &pool.pool, |pool| &mut pool.rates);
    add_named(&mut to.tenants, &stats.tenants, |tenant| &tenant.tenant, |tenant| &mut tenant.rates);
}

/// Adds the rates of another instance to those of the same names. Both are in the order of the names.
fn add_named<T: Clone>(
    to: &mut Vec<T>,
    others: &[T],
    name: fn(&T) -> &Option<String>,
    rates: fn(&mut T) -> &mut JobRates,
) {
    for other in others {
        match to.binary_search_by(|known| name(known).cmp(name(other))) {
            Ok(at) => {
                let mut also = other.clone();
                let known = rates(&mut to[at]);
                *known = sum(known, rates(&mut also));
            }
            Err(at) if to.len() < NAMES_MAX => to.insert(at, other.clone()),
            Err(_) => {}
        }
    }
}

fn sum(one: &JobRates, other: &JobRates) -> JobRates {
    JobRates {
        one_minute: sum_of(&one.one_minute, &other.one_minute),
        five_minutes: sum_of(&one.five_minutes, &other.five_minutes),
        fifteen_minutes: sum_of(&one.fifteen_minutes, &other.fifteen_minutes),
    }
}

fn sum_of(one: &JobRate, other: &JobRate) -> JobRate {
    let (ended, also) = (&one.finished_per_second, &other.finished_per_second);
    JobRate {
        accepted_per_second: one.accepted_per_second + other.accepted_per_second,
        finished_per_second: OutcomeRates {
            succeeded: ended.succeeded + also.succeeded,
            failed: ended.failed + also.failed,
            cancelled: ended.cancelled + also.cancelled,
            timed_out: ended.timed_out + also.timed_out,
        },
    }
}

fn add_history(to: &mut JobHistory, other: &JobHistory) {
    for (to, other) in [
        (&mut to.accepted, &other.accepted),
        (&mut to.succeeded, &other.succeeded),
        (&mut to.failed, &other.failed),
        (&mut to.cancelled, &other.cancelled),
        (&mut to.timed_out, &other.timed_out),
    ] {
        // The newest steps are the same ones.
        let missing = other.len().saturating_sub(to.len());
        to.splice(0..0, std::iter::repeat_n(0, missing));
        for (to, other) in to.iter_mut().rev().zip(other.iter().rev()) {
            *to += other;
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::stats::{PoolStats, TenantStats};

    use super::*;

    fn rates(accepted_per_second: f64) -> JobRates {
        let finished_per_second = OutcomeRates { succeeded: 1.0, ..OutcomeRates::default() };
        let rate = JobRate { accepted_per_second, finished_per_second };
        JobRates { one_minute: rate, five_minutes: rate, fifteen_minutes: rate }
    }

    fn pool(name: Option<&str>, accepted: f64) -> PoolStats {
        PoolStats {
            pool: name.map(str::to_owned),
            jobs: wire::stats::JobStates { created: 7, ..Default::default() },
            delayed: 0,
            oldest_waiting_ms: None,
            rates: rates(accepted),
            paused: false,
        }
    }

    fn tenant(name: Option<&str>, accepted: f64) -> TenantStats {
        TenantStats {
            tenant: name.map(str::to_owned),
            jobs: wire::stats::JobStates { created: 7, ..Default::default() },
            delayed: 0,
            oldest_waiting_ms: None,
            rates: rates(accepted),
        }
    }

    fn stats(instance: &str, accepted: f64, steps: &[u64], since: &str, pools: Vec<PoolStats>) -> Stats {
        let column = || steps.to_vec();
        let tenants =
            pools.iter().map(|pool| tenant(pool.pool.as_deref(), pool.rates.one_minute.accepted_per_second));
        let tenants = tenants.collect();
        Stats {
            instance: instance.to_owned(),
            jobs: wire::stats::JobStates { created: 7, ..Default::default() },
            delayed: 3,
            oldest_waiting_ms: Some(5),
            rates: rates(accepted),
            instances: vec![InstanceRates {
                instance: instance.to_owned(),
                counting_since: Some(since.to_owned()),
                rates: Some(rates(accepted)),
                problem: None,
            }],
            history_since: Some(since.to_owned()),
            history: JobHistory {
                step_ms: 5_000,
                ended_ms_ago: 1,
                accepted: column(),
                succeeded: column(),
                failed: column(),
                cancelled: column(),
                timed_out: column(),
            },
            pools,
            tenants,
            slots: Default::default(),
            plans: Default::default(),
            tasks: Default::default(),
            unknown_stages: 0,
            counted_ms_ago: 1,
            finished_counted_ms_ago: Some(1),
            plans_counted_ms_ago: 1,
        }
    }

    #[test]
    fn rates_and_histories_add_up_and_a_silent_instance_is_named() {
        let (early, late) = ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:09.000000Z");
        let mut all = stats("a", 1.0, &[1, 2], late, vec![pool(None, 1.0), pool(Some("m"), 1.0)]);
        let pools = vec![pool(None, 1.5), pool(Some("b"), 4.0), pool(Some("m"), 2.0)];
        add(&mut all, "b", &Ok(stats("b", 2.5, &[10, 20, 30], early, pools)));
        add(&mut all, "c", &Err("it did not answer in time".to_owned()));
        assert_eq!(all.rates, sum(&rates(1.0), &rates(2.5)));
        assert_eq!(all.rates.one_minute.accepted_per_second, 3.5);
        assert_eq!((all.jobs.created, all.delayed), (7, 3), "the ledger's counts are not added");
        assert_eq!(all.history.accepted, [10, 21, 32]);
        assert_eq!(all.history.timed_out, [10, 21, 32]);
        assert_eq!(all.history_since.as_deref(), Some(early));
        let names: Vec<_> = all.pools.iter().map(|pool| pool.pool.as_deref()).collect();
        assert_eq!(names, [None, Some("b"), Some("m")]);
        let accepted: Vec<_> =
            all.pools.iter().map(|pool| pool.rates.one_minute.accepted_per_second).collect();
        assert_eq!(accepted, [2.5, 4.0, 3.0]);
        assert_eq!(all.pools[2].jobs.created, 7);
        let tenants: Vec<_> = all
            .tenants
            .iter()
            .map(|of| (of.tenant.as_deref(), of.jobs.created, of.rates.one_minute.accepted_per_second))
            .collect();
        assert_eq!(tenants, [(None, 7, 2.5), (Some("b"), 7, 4.0), (Some("m"), 7, 3.0)]);
        let told: Vec<_> = all
            .instances
            .iter()
            .map(|one| (one.instance.as_str(), one.rates.is_some(), one.problem.is_some()))
            .collect();
        assert_eq!(told, [("a", true, false), ("b", true, false), ("c", false, true)]);
    }

    #[test]
    fn an_instance_of_an_earlier_release_adds_its_rates() {
        let mut old = serde_json::to_value(stats("b", 2.0, &[9], "x", Vec::new())).unwrap();
        for field in ["instances", "history_since", "history", "tenants"] {
            old.as_object_mut().unwrap().remove(field);
        }
        let mut all = stats("a", 1.0, &[1], "y", Vec::new());
        add(&mut all, "b", &Ok(serde_json::from_value(old).unwrap()));
        assert_eq!(all.rates.one_minute.accepted_per_second, 3.0);
        assert_eq!((all.history.accepted, all.history_since.as_deref()), (vec![1], Some("y")));
        assert_eq!(all.instances[1].counting_since, None);
    }
}
