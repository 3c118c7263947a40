//! Transfers of jobs between instances, while the bus does not join all instances or does not serve the records of some nodes.
//! Each instance says in the ledger what its nodes can do. Where it reaches no node for a waiting job, it gives the job to an
//! instance whose nodes can run it. So no job stays where nothing runs it.
//!
//! A job of an instance's lane is moved into the first lane of the other instance, a session moves as a whole: its owner
//! passes the lease on, and the other instance adopts the lane. A plan's jobs stay where its owner is. One rule decides both what
//! an instance says that its nodes serve, and what it gives away. So two instances give each other a job back and forth only
//! if nodes move between them, and then once in [`UNSERVED_MAX`].
//!
//! While all instances use one bus, which is up and serves all records of nodes, nothing is written and nothing read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use domain::job::Requirements;
use domain::{InstanceId, JobId, LaneId};
use ledger::{NODES_NOTE_BYTES_MAX, TRANSFER_JOBS_MAX, jittered};
use nodes::{NodesElsewhere, Registry, Spare};
use panic_guard::again_after_panics;

use super::keeper::LaneKeeper;
use super::lifetime::Lifetime;
use super::limits::{
    CLASSES_AT_ONCE, SESSIONS_ASKED_MAX, TRANSFERS_EVERY, UNSERVED_MAX, UNSERVED_REMEMBERED,
};
use super::messages::{LaneCommand, LaneHandle};
use super::scheduler::Scheduler;

/// What one instance gives and is given through the ledger.
pub(super) struct Transfers {
    pub(super) ledger: ledger::Handle,
    pub(super) registry: Registry,
    pub(super) keeper: Arc<LaneKeeper>,
    pub(super) lifetime: Lifetime,
}

/// What earlier looks came to.
#[derive(Default)]
struct Known {
    /// What the ledger has of this instance's nodes.
    noted: Noted,
    /// Transfers to this instance that its lane was sent to look for.
    given: u64,
    unserved: Unserved,
    turns: Turns,
}

/// A note in the ledger, as far as is known.
#[derive(Default)]
struct Noted {
    note: Option<String>,
    /// A write had no answer: the ledger may have that note, or may have it yet.
    is_unsure: bool,
}

/// Where the next look begins, so that each tenant and each session has its turn though one look does not reach all.
#[derive(Default)]
struct Turns {
    tenant: usize,
    /// The session that was asked last to move.
    session: Option<LaneId>,
}

/// What jobs need that no node serves that this instance reaches: since when, and when such a job was seen last.
#[derive(Default)]
struct Unserved(HashMap<Arc<Requirements>, (Instant, Instant)>);

/// Other instances, with what their nodes can do.
type Others = Vec<(InstanceId, NodesElsewhere)>;

impl Transfers {
    /// Gives and takes as long as the instance serves.
    pub(super) fn start(self) {
        let this = Arc::new(self);
        tokio::spawn(again_after_panics("the transfers of jobs", move || Arc::clone(&this).run()));
    }

    async fn run(self: Arc<Self>) {
        let mut known = Known::default();
        loop {
            tokio::time::sleep(jittered(TRANSFERS_EVERY)).await;
            let is_serving = self.lifetime.is_serving();
            // A node whose record is missing is reached by its holder alone, as one on another bus is.
            let is_apart = self.keeper.services.reach.is_apart() || self.registry.lacks_records();
            let passes = is_apart && is_serving && self.lifetime.takes_work();
            if let Err(error) = self.look(&mut known, passes).await {
                tracing::debug!(%error, "jobs could not be passed through the ledger");
            }
            if !is_serving {
                return;
            }
        }
    }

    /// One look; if jobs are to pass through the ledger, what is not served here is given away.
    async fn look(&self, known: &mut Known, passes: bool) -> ledger::Result<()> {
        let note = if passes { self.registry.note_of_own(NODES_NOTE_BYTES_MAX) } else { None };
        self.note(known, note).await?;
        if !passes {
            known.unserved = Unserved::default();
            return Ok(());
        }
        let scheduler = &self.keeper.services.scheduler;
        let is_served = |needs: &Requirements| self.registry.is_served(needs);
        let unserved = known.unserved.look(scheduler.needs(), is_served, Instant::now()).await;
        if unserved.is_empty() {
            return Ok(());
        }
        let notes = self.ledger.nodes_elsewhere(self.keeper.me()).await?;
        let read = |(id, note): (InstanceId, String)| {
            let nodes = self.registry.read_note(&id, &note);
            (id, nodes)
        };
        let others: Others = notes.into_iter().map(read).collect();
        if !others.is_empty() {
            // Every live instance but the receiver may pass sessions on to it.
            let givers = self.keeper.services.cluster_view.view().members().count().saturating_sub(1);
            self.keeper.services.passing_on.begin(givers, others.iter().map(|(id, _)| id));
            give_jobs(scheduler, &unserved, &others, &mut known.turns).await;
            pass_sessions_on(scheduler, &unserved, &others, &mut known.turns).await;
        }
        Ok(())
    }

    /// Says what the nodes of this instance can do, if that is new, and has its lane look for what was given to it.
    async fn note(&self, known: &mut Known, note: Option<String>) -> ledger::Result<()> {
        let given = if known.noted.lacks(note.as_deref()) {
            let given = self.ledger.note_nodes(self.keeper.me(), note.as_deref()).await;
            known.noted.wrote(note, &given);
            given?
        } else if known.noted.note.is_some() {
            self.ledger.transfers_to(self.keeper.me()).await?
        } else {
            return Ok(());
        };
        if given != known.given
            && let Some(lane) = self.keeper.directory().get(&LaneId::instance(self.keeper.me(), 0))
        {
            lane.send(LaneCommand::LookForTransferred);
            known.given = given;
        }
        Ok(())
    }
}

impl Noted {
    /// Whether this is to be written: the ledger has another note, or may have.
    fn lacks(&self, note: Option<&str>) -> bool {
        self.is_unsure || self.note.as_deref() != note
    }

    /// Notes what the write of this came to.
    fn wrote<T>(&mut self, note: Option<String>, answer: &ledger::Result<T>) {
        match answer {
            Ok(_) => *self = Self { note, is_unsure: false },
            Err(error) => self.is_unsure |= error.may_have_written(),
        }
    }
}

impl Unserved {
    /// Those of the `waiting` jobs' needs that no node has served for [`UNSERVED_MAX`].
    async fn look(
        &mut self,
        waiting: Vec<Arc<Requirements>>,
        is_served: impl Fn(&Requirements) -> bool,
        now: Instant,
    ) -> HashSet<Arc<Requirements>> {
        let mut long = HashSet::new();
        for (at, needs) in waiting.into_iter().enumerate() {
            give_way(at).await;
            if is_served(&needs) {
                self.0.remove(&needs);
                continue;
            }
            let (since, seen) = self.0.entry(Arc::clone(&needs)).or_insert((now, now));
            *seen = now;
            if now.duration_since(*since) >= UNSERVED_MAX {
                long.insert(needs);
            }
        }
        self.0.retain(|_, (_, seen)| now.duration_since(*seen) < UNSERVED_REMEMBERED);
        long
    }
}

/// Between two classes: lets others have the thread now and then. There may be as many classes as jobs.
async fn give_way(at: usize) {
    if (at + 1).is_multiple_of(CLASSES_AT_ONCE) {
        tokio::task::yield_now().await;
    }
}

/// Has the lanes of instances give the jobs that no node serves here to instances whose nodes serve them.
async fn give_jobs(
    scheduler: &Scheduler,
    unserved: &HashSet<Arc<Requirements>>,
    others: &Others,
    turns: &mut Turns,
) {
    let mut jobs: BTreeMap<LaneId, (LaneHandle, Vec<(JobId, InstanceId)>)> = BTreeMap::new();
    for (at, needs) in unserved.iter().enumerate() {
        give_way(at).await;
        let able = able(needs, others);
        // To those that have room first.
        let free: Vec<_> =
            able.iter().filter(|(_, spare)| *spare == Spare::Free).map(|(id, _)| *id).collect();
        let to = if free.is_empty() { able.iter().map(|(id, _)| *id).collect() } else { free };
        if to.is_empty() {
            continue;
        }
        let first = rand::random_range(0..to.len());
        let given = scheduler.instance_jobs(needs, turns.tenant, TRANSFER_JOBS_MAX);
        for (at, (job, lane, handle)) in given.into_iter().enumerate() {
            let (_, of_lane) = jobs.entry(lane).or_insert((handle, Vec::new()));
            if of_lane.len() < TRANSFER_JOBS_MAX {
                of_lane.push((job, to[(first + at) % to.len()].clone()));
            }
        }
    }
    turns.tenant = turns.tenant.wrapping_add(TRANSFER_JOBS_MAX);
    for (handle, jobs) in jobs.into_values() {
        handle.send(LaneCommand::Transfer(jobs));
    }
}

/// Has sessions none of whose jobs is served here pass their leases on to instances whose nodes serve one of them.
async fn pass_sessions_on(
    scheduler: &Scheduler,
    unserved: &HashSet<Arc<Requirements>>,
    others: &Others,
    turns: &mut Turns,
) {
    let mut sessions: BTreeMap<LaneId, (LaneHandle, BTreeSet<InstanceId>)> = BTreeMap::new();
    for (at, needs) in unserved.iter().enumerate() {
        give_way(at).await;
        let able: Vec<_> = able(needs, others).into_iter().map(|(id, _)| id.clone()).collect();
        if able.is_empty() {
            continue;
        }
        for (lane, handle) in scheduler.sessions_with(needs) {
            sessions.entry(lane).or_insert((handle, BTreeSet::new())).1.extend(able.iter().cloned());
        }
    }
    if sessions.is_empty() {
        return;
    }
    // One that has a job that is served here stays until that one has run.
    let mut served = scheduler.needs();
    served.retain(|needs| !unserved.contains(needs));
    for (at, needs) in served.into_iter().enumerate() {
        give_way(at).await;
        for lane in scheduler.sessions_with(&needs).keys() {
            sessions.remove(lane);
        }
    }
    // One whose attempt is under way stays as well, which only its owner knows: the next look begins behind those asked now.
    let last = turns.session.take();
    let had_its_turn = |lane: &LaneId| last.as_ref().is_some_and(|last| lane <= last);
    let (before, behind): (Vec<_>, Vec<_>) = sessions.into_iter().partition(|(lane, _)| had_its_turn(lane));
    let mut rings = HashMap::new();
    for (lane, (handle, able)) in behind.into_iter().chain(before).take(SESSIONS_ASKED_MAX) {
        // All who look choose the same of those that are able.
        let owner_of = rings.entry(able).or_insert_with_key(cluster::owners_among);
        if let Some(to) = owner_of(lane.lease()) {
            handle.send(LaneCommand::PassOn(to));
        }
        turns.session = Some(lane);
    }
}

/// The instances whose nodes serve such a job.
fn able<'o>(needs: &Requirements, others: &'o Others) -> Vec<(&'o InstanceId, Spare)> {
    others.iter().filter_map(|(id, nodes)| Some((id, nodes.serve(needs)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use domain::job::{Attempt, LiveJob, Priority, Spec};
    use domain::lane::Enqueue;
    use domain::{Label, NodeTimeouts, PoolName, TenantId, Timestamp, Token};

    use super::*;
    use crate::jobs::fixture::{self, ServedLane, instance, lane, serve, serve_all, spec};
    use crate::jobs::messages::Directory;
    use crate::jobs::progress_store::ProgressStore;

    fn needs(pool: &str) -> Arc<Requirements> {
        Arc::new(Requirements { pool: PoolName::parse(pool).ok(), ..Requirements::default() })
    }

    /// Else others would give jobs to an instance that has no node for them any more, or does not look for what it is given.
    #[test]
    fn after_a_write_without_an_answer_a_note_is_written_again_also_where_it_is_as_it_was_before() {
        let (mut noted, note) = (Noted::default(), "[]");
        assert!(!noted.lacks(None) && noted.lacks(Some(note)));
        let lost = || io::Error::from(ErrorKind::ConnectionReset);
        let failed = |noted: &mut Noted, error| noted.wrote(Some(note.to_owned()), &Err::<(), _>(error));
        failed(&mut noted, ledger::Error::unavailable(lost()));
        assert!(!noted.lacks(None), "nothing was written");
        failed(&mut noted, ledger::Error::unknown(lost()));
        failed(&mut noted, ledger::Error::unavailable(lost()));
        assert!(noted.lacks(None) && noted.lacks(Some(note)));
        noted.wrote(None, &Ok(()));
        assert!(!noted.lacks(None));
        noted.wrote(Some(note.to_owned()), &Ok(()));
        assert!(noted.lacks(None) && !noted.lacks(Some(note)));
    }

    #[tokio::test]
    async fn what_no_node_serves_is_given_away_after_a_while_and_counts_anew_once_it_was_served() {
        let (mut unserved, start) = (Unserved::default(), Instant::now());
        let (a, b) = (needs("a"), needs("b"));
        let mut look = async |waiting: &[&Arc<Requirements>], served: &Arc<Requirements>, after: Duration| {
            let waiting = waiting.iter().map(|needs| Arc::clone(needs)).collect();
            let long = unserved.look(waiting, |needs| needs == &**served, start + after).await;
            let mut pools: Vec<_> =
                long.iter().map(|needs| needs.pool.as_ref().unwrap().to_string()).collect();
            pools.sort_unstable();
            pools.join(" ")
        };
        let (second, none) = (Duration::from_secs(1), needs("none"));
        assert_eq!(look(&[&a, &b], &none, Duration::ZERO).await, "");
        assert_eq!(look(&[&a, &b], &b, second).await, "");
        assert_eq!(look(&[&a, &b], &none, UNSERVED_MAX).await, "a");
        // None waits in memory for a while: the others that come from the ledger do not wait again.
        assert_eq!(look(&[&b], &none, UNSERVED_MAX + second).await, "");
        assert_eq!(look(&[&a, &b], &none, UNSERVED_MAX + second * 2).await, "a b");
        let late = UNSERVED_MAX + second * 2 + UNSERVED_REMEMBERED;
        assert_eq!(look(&[&b], &none, late - second).await, "b");
        assert_eq!(look(&[&b], &none, late).await, "b");
        assert_eq!(look(&[&a, &b], &none, late).await, "b");
    }

    #[tokio::test]
    async fn a_look_at_many_classes_lets_others_have_the_thread() {
        let turns = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&turns);
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        });
        let pieces = 10;
        let waiting = (0..CLASSES_AT_ONCE * pieces).map(|n| needs(&format!("pool-{n}"))).collect();
        Unserved::default().look(waiting, |_| false, Instant::now()).await;
        let turns = turns.load(Ordering::SeqCst);
        assert!(turns + 1 >= pieces, "{turns} turns of another task");
        other.abort();
    }

    /// The queue of instance `a`. Only a node of instance `b` has the label `l`.
    struct Queued {
        scheduler: Scheduler,
        directory: Directory,
        others: Others,
        turns: Turns,
        _ledger: fixture::Ledger,
    }

    impl Queued {
        async fn new() -> Self {
            let ledger = fixture::Ledger::open().await;
            let registry = Registry::new(instance("a"), NodeTimeouts::DEFAULT);
            let gateway = fixture::gateway(&ledger, Arc::<ProgressStore>::default());
            let others = ["b", "c"].map(|id| {
                let note = if id == "b" { r#"[{"labels":["l"],"free":true}]"# } else { "[]" };
                (instance(id), registry.read_note(&instance(id), note))
            });
            let bus = bus::Hub::default().join();
            let scheduler = Scheduler::new(registry, bus.clone(), gateway, fixture::reach(&bus));
            Self {
                scheduler,
                directory: Directory::default(),
                others: others.into(),
                turns: Turns::default(),
                _ledger: ledger,
            }
        }

        /// A job of a lane that is served.
        fn push(&self, of: &str, number: u128, seq: Option<u64>, priority: i64, tenant: &str, label: &str) {
            let id = lane(of);
            let spec = Spec {
                priority: Priority::new(priority).unwrap(),
                tenant: TenantId::parse(tenant).ok(),
                needs: labelled(label),
                ..spec()
            };
            let created_at = Timestamp::from_micros(1);
            let job = LiveJob { seq, created_at, ..LiveJob::created(fixture::job(number), id.clone(), spec) };
            let enqueue = Enqueue {
                job: Arc::new(job),
                attempt: Attempt::new(1),
                token: Token::new(1),
                avoid: None,
                prefer: None,
                since: Instant::now(),
                is_back: false,
            };
            self.scheduler.enqueue(&self.directory.get(&id).unwrap(), &id, enqueue);
        }

        /// One look, while no node here has the label `l`.
        async fn look(&mut self) {
            let unserved = HashSet::from([Arc::new(labelled("l"))]);
            give_jobs(&self.scheduler, &unserved, &self.others, &mut self.turns).await;
            pass_sessions_on(&self.scheduler, &unserved, &self.others, &mut self.turns).await;
        }
    }

    fn labelled(label: &str) -> Requirements {
        Requirements { requires: vec![Label::parse(label).unwrap()], ..Requirements::default() }
    }

    /// The jobs that a lane is to give to instance `b`, which it was sent alone.
    async fn given(lane: &mut ServedLane) -> Vec<JobId> {
        assert_eq!(lane.left(), 1, "commands that it was sent");
        match lane.recv().await {
            Some(LaneCommand::Transfer(jobs)) => {
                assert!(jobs.iter().all(|(_, to)| *to == instance("b")));
                jobs.into_iter().map(|(job, _)| job).collect()
            }
            _ => panic!("it was to give jobs"),
        }
    }

    #[tokio::test]
    async fn jobs_that_cannot_move_take_no_places_of_those_that_can() {
        let mut queued = Queued::new().await;
        let (session, plan) = ("session:s", "plan:01890a5d-ac96-774b-bcce-b302099a8057");
        let mut of_session = serve(&queued.directory, session);
        let of_plan = serve(&queued.directory, plan);
        let mut of_instance = serve(&queued.directory, "instance:a");
        let many = TRANSFER_JOBS_MAX as u64 + 200;
        for n in 1..=many {
            queued.push(session, u128::from(n), Some(n), 1, "", "l");
            queued.push(plan, u128::from(many + n), None, 1, "", "l");
        }
        let last = 2 * many as u128 + 1;
        queued.push("instance:a", last, None, 0, "", "l");
        queued.look().await;
        assert_eq!(given(&mut of_instance).await, [fixture::job(last)]);
        assert!(matches!(of_session.recv().await, Some(LaneCommand::PassOn(to)) if to == instance("b")));
        assert_eq!((of_session.left(), of_plan.left()), (0, 0), "the session is asked once, the plan never");

        // The session has a job that is served here: it stays.
        queued.push(session, last + 1, Some(many + 1), 0, "", "served");
        queued.look().await;
        assert_eq!(given(&mut of_instance).await, [fixture::job(last)]);
        assert_eq!((of_session.left(), of_plan.left()), (0, 0));
    }

    #[tokio::test]
    async fn one_look_passes_on_a_bounded_number_of_jobs_and_all_tenants_have_their_turn() {
        let mut queued = Queued::new().await;
        let mut of_instance = serve(&queued.directory, "instance:a");
        let (jobs, tenants) = (TRANSFER_JOBS_MAX as u128 + 500, TRANSFER_JOBS_MAX + 100);
        for n in 0..jobs {
            queued.push("instance:a", n, None, 0, "big", "l");
        }
        for n in 1..tenants {
            queued.push("instance:a", jobs + n as u128, None, 0, &format!("small-{n}"), "l");
        }
        let mut small = HashSet::new();
        for look in 0..2 {
            queued.look().await;
            let given = given(&mut of_instance).await;
            assert_eq!(given.len(), TRANSFER_JOBS_MAX, "look {look}");
            small.extend(given.into_iter().filter(|job| job.as_u128() >= jobs));
        }
        assert_eq!(small.len(), tenants - 1, "of each small tenant");
    }

    #[tokio::test]
    async fn sessions_that_do_not_move_take_no_places_of_those_behind_them() {
        let mut queued = Queued::new().await;
        let count = SESSIONS_ASKED_MAX + 10;
        let names: Vec<_> = (0..count).map(|n| format!("session:{n:05}")).collect();
        let lanes = serve_all(&queued.directory, names.iter().map(String::as_str));
        for (n, name) in names.iter().enumerate() {
            queued.push(name, n as u128, Some(1), 0, "", "l");
        }
        let asked = |times| lanes.iter().filter(|lane| lane.left() == times).count();
        queued.look().await;
        assert_eq!((asked(0), asked(1)), (10, count - 10), "how many were asked");
        queued.look().await;
        assert_eq!((asked(0), asked(1), asked(2)), (0, 20, count - 20), "how many were asked");
    }
}
