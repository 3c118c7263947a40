//! Why a job waits, for people. It is found out when somebody asks, from the ledger and from the nodes that this instance
//! knows, and kept nowhere: by the time it is read it may be otherwise.

use domain::job::{OnRecovery, Requirements, State};
use domain::session::Ordering;
use domain::{PoolName, PoolPause, Timestamp};
use ledger::JobRecord;
use nodes::{Explanation, Pools, Reason, Wanted};

use super::Jobs;

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingFor {
    /// The reason, of which there is one at a time: the first in the order of [`WaitingReason`].
    pub reason: WaitingReason,
    /// The reason in words, with names and numbers.
    pub detail: String,
    /// When the wait for this reason ends by itself, if that is known.
    pub until: Option<Timestamp>,
}

/// The reasons, in the order in which they are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingReason {
    /// The stage is held until a person decides about its plan.
    Held,
    /// It is not due yet: it was submitted so, or its last attempt did not succeed.
    NotDue,
    /// An earlier job of its strict session comes first.
    SessionOrder,
    /// No live instance owns its lane; one adopts it within seconds.
    NoOwner,
    /// Another instance owns its lane, and this one does not know that one's nodes.
    OwnerElsewhere,
    /// The pool that it names is paused, or all pools are in which a node could run it.
    PoolPaused,
    /// No node is in a pool that serves it.
    NoNode,
    /// No node in its pools has its labels and languages.
    Labels,
    /// The nodes that could run it are full.
    NoFreeSlot,
    /// The nodes that could run it take no more jobs.
    Draining,
    /// The nodes that could run it cannot be reached, are not ready or do not answer.
    NotReady,
    /// A node has a free slot: jobs before it go first, or it goes in a moment.
    Queued,
}

impl WaitingReason {
    /// The name in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::NotDue => "not_due",
            Self::SessionOrder => "session_order",
            Self::NoOwner => "no_owner",
            Self::OwnerElsewhere => "owner_elsewhere",
            Self::PoolPaused => "pool_paused",
            Self::NoNode => "no_node",
            Self::Labels => "labels",
            Self::NoFreeSlot => "no_free_slot",
            Self::Draining => "draining",
            Self::NotReady => "not_ready",
            Self::Queued => "queued",
        }
    }
}

impl Jobs {
    /// Why the job waits, in words for somebody who may know of the pools that `sees` says; `None` for a job that does not wait,
    /// or where the ledger does not answer.
    pub async fn waiting_for(&self, job: &JobRecord, sees: impl Fn(&PoolName) -> bool) -> Option<WaitingFor> {
        if job.state != State::Created {
            return None;
        }
        if let Some(waits) = by_itself(job, self.clock.now()) {
            return Some(waits);
        }
        match self.waits_for_others(job).await {
            Ok(Some(waits)) => return Some(waits),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, job = %job.id, "why the job waits could not be found out");
                return None;
            }
        }
        let registry = &self.statistics.registry;
        let explained = registry.explain(&Wanted::new(&job.spec.needs), &mut rand::rng());
        Some(for_a_node(&job.spec.needs, &explained, &registry.pools(), &registry.pauses(), sees))
    }

    /// What the ledger knows: the order of its session, and the owner of its lane.
    async fn waits_for_others(&self, job: &JobRecord) -> ledger::Result<Option<WaitingFor>> {
        let ledger = &self.callers.ledger;
        if let (Some(id), Some(seq)) = (&job.spec.session, job.seq) {
            let session = ledger.session(id).await?;
            let is_strict = session.is_some_and(|session| session.spec.ordering == Ordering::Strict);
            // No result lies behind the highest place.
            let first = match is_strict {
                true => ledger.session_results(id, i64::MAX.unsigned_abs(), 1).await?.first_unfinished,
                false => None,
            };
            if let Some(first) = first.filter(|first| *first < seq) {
                let detail = format!("job {first} of the session comes before job {seq} and is unfinished");
                return Ok(Some(WaitingFor { reason: WaitingReason::SessionOrder, detail, until: None }));
            }
        }
        let lease = ledger.lease(job.lane.lease()).await?;
        let owner = lease.filter(ledger::Lease::is_live).and_then(|lease| lease.owner);
        Ok(match owner {
            None => {
                let detail = format!("no live instance owns {}; one adopts it within seconds", job.lane);
                Some(WaitingFor { reason: WaitingReason::NoOwner, detail, until: None })
            }
            Some(owner) if owner != *self.me() && !self.scheduler.knows_all_nodes() => {
                let detail =
                    format!("{owner} owns {}, and this instance does not know its nodes; ask it", job.lane);
                Some(WaitingFor { reason: WaitingReason::OwnerElsewhere, detail, until: None })
            }
            Some(_) => None,
        })
    }
}

/// What its row says.
fn by_itself(job: &JobRecord, now: Timestamp) -> Option<WaitingFor> {
    if job.spec.on_recovery == OnRecovery::Held {
        let detail = "the stage is held until somebody decides about its plan".to_owned();
        return Some(WaitingFor { reason: WaitingReason::Held, detail, until: None });
    }
    let due_at = job.due_at.filter(|due| *due > now)?;
    let detail = match job.attempts.last() {
        Some(past) => format!("attempt {} did not succeed; the next one is due later", past.attempt),
        None => "the job is due later".to_owned(),
    };
    Some(WaitingFor { reason: WaitingReason::NotDue, detail, until: Some(due_at) })
}

/// What keeps nodes from running it.
fn for_a_node(
    needs: &Requirements,
    explained: &Explanation,
    pools: &Pools,
    pauses: &[PoolPause],
    sees: impl Fn(&PoolName) -> bool,
) -> WaitingFor {
    let waits = |reason, detail| WaitingFor { reason, detail, until: None };
    let nodes = |reason: Reason| {
        explained.rejected.iter().find(|(of, _)| *of == reason).map_or(0, |(_, count)| *count)
    };
    if explained.chosen.is_some() {
        let detail = "a node has a free slot; jobs that came before go first".to_owned();
        return waits(WaitingReason::Queued, detail);
    }
    let (full, draining) = (nodes(Reason::Full), nodes(Reason::Draining));
    let away = nodes(Reason::Unreachable)
        + nodes(Reason::NotReady)
        + nodes(Reason::Unhealthy)
        + nodes(Reason::Excluded);
    if full > 0 {
        return waits(
            WaitingReason::NoFreeSlot,
            format!("{} could run it, and all of them are full", counted(full)),
        );
    }
    if draining > 0 {
        return waits(
            WaitingReason::Draining,
            format!("{} could run it, and all of them drain", counted(draining)),
        );
    }
    if away > 0 {
        let detail = format!("{} could run it, and none of them is ready and answers", counted(away));
        return waits(WaitingReason::NotReady, detail);
    }
    let in_paused = nodes(Reason::Paused);
    let pause = match &needs.pool {
        Some(pool) => pauses.iter().find(|pause| pause.pool == *pool),
        // Which of several it is that serve the job is not known: none is named then.
        None if in_paused > 0 && pauses.len() == 1 => pauses.first(),
        None => None,
    };
    if let Some(PoolPause { pool, reason, until, .. }) = pause.filter(|pause| sees(&pause.pool)) {
        let detail = format!("the pool {pool} is paused: {reason}");
        return WaitingFor { reason: WaitingReason::PoolPaused, detail, until: *until };
    }
    if pause.is_some() || in_paused > 0 {
        let detail =
            format!("the pools that serve it are paused; {} in them could run it", counted(in_paused));
        return waits(WaitingReason::PoolPaused, detail);
    }
    if nodes(Reason::Labels) > 0 {
        let labels: Vec<_> = needs.requires.iter().map(ToString::to_string).collect();
        let route = needs.route.as_ref().map(|route| format!("the languages of {route}"));
        let lacks: Vec<_> =
            (!labels.is_empty()).then(|| labels.join(", ")).into_iter().chain(route).collect();
        let detail = format!("no node in its pools has all of: {}", lacks.join(", "));
        return waits(WaitingReason::Labels, detail);
    }
    if let Some(pool) = needs.pool.as_ref().filter(|pool| !pools.has(pool)) {
        let detail = format!("there is no pool {pool}: it is not configured");
        return waits(WaitingReason::NoNode, detail);
    }
    let what = match (&needs.pool, &needs.route) {
        (Some(pool), _) => format!(" in the pool {pool}"),
        (None, Some(route)) => format!(" in a pool that serves {route}"),
        (None, None) => String::new(),
    };
    let elsewhere = match explained.considered {
        0 => String::new(),
        considered => format!("; {} elsewhere", counted(considered)),
    };
    waits(WaitingReason::NoNode, format!("no node is connected{what}{elsewhere}"))
}

fn counted(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

#[cfg(test)]
mod tests {
    use domain::Label;
    use domain::job::Route;

    use super::*;

    fn needs(pool: Option<&str>, requires: &[&str], route: Option<&str>) -> Requirements {
        Requirements {
            pool: pool.map(|pool| PoolName::parse(pool).unwrap()),
            route: route.map(|route| Route::parse(route).unwrap()),
            requires: requires.iter().map(|label| Label::parse(label).unwrap()).collect(),
        }
    }

    fn explained(rejected: &[(Reason, usize)]) -> Explanation {
        let considered = rejected.iter().map(|(_, count)| count).sum();
        Explanation { chosen: None, considered, rejected: rejected.to_vec() }
    }

    #[test]
    fn the_reason_is_what_the_nodes_that_come_nearest_lack() {
        let pause = |pool: &str| PoolPause {
            pool: PoolName::parse(pool).unwrap(),
            reason: "repair".into(),
            principal: "".into(),
            since: Timestamp::from_micros(1),
            until: Some(Timestamp::from_micros(9)),
        };
        let pools = Pools::from_json(
            1,
            r#"[{"name": "a", "weight": 1}, {"name": "b", "weight": 1}, {"name": "secret", "weight": 1}]"#,
        );
        let pools = pools.unwrap();
        let (any, a) = (needs(None, &[], None), needs(Some("a"), &["gpu"], Some("zh:en")));
        use WaitingReason as W;
        type Case<'c> = (&'c Requirements, &'c [(Reason, usize)], &'c [PoolPause], W, &'c str);
        let table: [Case<'_>; 11] = [
            (&any, &[], &[], W::NoNode, "no node is connected"),
            (&a, &[(Reason::Pool, 3)], &[], W::NoNode, "in the pool a; 3 nodes elsewhere"),
            (&a, &[(Reason::Pool, 3)], &[pause("b")], W::NoNode, "in the pool a"),
            (&a, &[(Reason::Pool, 3)], &[pause("a")], W::PoolPaused, "the pool a is paused: repair"),
            (&a, &[(Reason::Paused, 1), (Reason::Labels, 1)], &[pause("a")], W::PoolPaused, "repair"),
            (&any, &[(Reason::Paused, 1)], &[pause("b")], W::PoolPaused, "the pool b"),
            (&a, &[(Reason::Labels, 2), (Reason::Pool, 1)], &[], W::Labels, "gpu, the languages of zh:en"),
            (&a, &[(Reason::Labels, 2), (Reason::Full, 4)], &[], W::NoFreeSlot, "4 nodes could"),
            (&any, &[(Reason::Draining, 2), (Reason::Unhealthy, 1)], &[], W::Draining, "2 nodes could"),
            (&any, &[(Reason::Unreachable, 2), (Reason::NotReady, 1)], &[], W::NotReady, "3 nodes could"),
            (&any, &[(Reason::Paused, 2), (Reason::Full, 1)], &[pause("b")], W::NoFreeSlot, "1 node could"),
        ];
        for (needs, rejected, pauses, reason, says) in table {
            let found = for_a_node(needs, &explained(rejected), &pools, pauses, |_| true);
            assert_eq!(found.reason, reason, "{rejected:?}: {found:?}");
            assert!(found.detail.contains(says), "{rejected:?}: {found:?}");
            assert_eq!(found.until.is_some(), reason == W::PoolPaused);
        }
        let unknown = for_a_node(&a, &explained(&[(Reason::Pool, 3)]), &Pools::unconfigured(), &[], |_| true);
        assert_eq!(
            (unknown.reason, &*unknown.detail),
            (W::NoNode, "there is no pool a: it is not configured")
        );
        let node = domain::NodeId::parse("n").unwrap();
        let chosen = Explanation { chosen: Some((node, PoolName::parse("a").unwrap())), ..explained(&[]) };
        assert_eq!(for_a_node(&any, &chosen, &pools, &[], |_| true).reason, W::Queued);
        // Nobody hears of a pool that is none of theirs, nor of one of which it is not known whether it serves the job.
        let paused = explained(&[(Reason::Paused, 2)]);
        let of_one = for_a_node(&any, &paused, &pools, &[pause("secret")], |pool| pool.as_str() != "secret");
        let both = [pause("secret"), pause("b")];
        let of_two = for_a_node(&any, &paused, &pools, &both, |_| true);
        assert!(of_two.detail.ends_with("are paused; 2 nodes in them could run it"), "{of_two:?}");
        let single = for_a_node(&any, &explained(&[(Reason::Paused, 1)]), &pools, &both, |_| true);
        assert!(single.detail.ends_with("are paused; 1 node in them could run it"), "{single:?}");
        for found in [of_one, of_two] {
            assert_eq!((found.reason, found.until), (W::PoolPaused, None));
            assert!(!found.detail.contains("secret") && !found.detail.contains("repair"), "{found:?}");
        }
    }
}
