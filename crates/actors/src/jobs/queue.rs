//! What waits for a slot on this instance, in the order in which it is to be served: by priority, and among equals
//! fairly, first between those that need different things, then between tenants, then first come first served.
//!
//! Pure: nothing here knows a node. Jobs that need the same are one *class*: where one of them finds no node, none of
//! them does, so a pass asks once per class and not once per job.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use domain::job::{Priority, Requirements};
use domain::{JobId, TenantId};

/// What decides about a job's turn.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) job: JobId,
    /// Its place in its session; 0 without one.
    pub(super) seq: u64,
    pub(super) priority: Priority,
    pub(super) tenant: Option<TenantId>,
}

/// When it was submitted, in milliseconds; its place in its session; its id.
type Order = (u128, u64, JobId);
type ClassId = u64;

/// The queue, with something of the caller's for each job.
pub(super) struct Queue<T> {
    classes: HashMap<ClassId, Class<T>>,
    ids: HashMap<Arc<Requirements>, ClassId>,
    /// The classes by the priority of their first job; among equals, who was served longest ago comes first.
    ready: BTreeSet<(Reverse<Priority>, u64, ClassId)>,
    /// Those that found no node in this pass. They are not ready until it is over.
    blocked: HashSet<ClassId>,
    places: HashMap<JobId, Place>,
    class_count: ClassId,
    served_count: u64,
}

struct Class<T> {
    needs: Arc<Requirements>,
    /// Its place among the ready ones.
    key: (Reverse<Priority>, u64),
    served: u64,
    levels: BTreeMap<Reverse<Priority>, Level<T>>,
}

/// The jobs of one class and priority. Each tenant in `turns` has jobs, and each that has jobs is in it once.
struct Level<T> {
    tenants: HashMap<Option<TenantId>, BTreeMap<Order, T>>,
    turns: VecDeque<Option<TenantId>>,
}

struct Place {
    class: ClassId,
    priority: Priority,
    tenant: Option<TenantId>,
    order: Order,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            classes: HashMap::new(),
            ids: HashMap::new(),
            ready: BTreeSet::new(),
            blocked: HashSet::new(),
            places: HashMap::new(),
            class_count: 0,
            served_count: 0,
        }
    }
}

impl<T> Queue<T> {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// How many classes wait.
    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// What the classes that wait need.
    pub(super) fn needs(&self) -> impl Iterator<Item = &Arc<Requirements>> {
        self.ids.keys()
    }

    /// The jobs of one class, in no certain order.
    pub(super) fn jobs(&self, needs: &Requirements) -> impl Iterator<Item = &T> {
        let tenants = self.levels(needs).flat_map(|level| level.tenants.values());
        tenants.flat_map(BTreeMap::values)
    }

    /// Those jobs of one class that are wanted: by priority, and within a priority one of each tenant in turn. The tenant at
    /// place `first` begins.
    pub(super) fn jobs_in_turn<'q>(
        &'q self,
        needs: &Requirements,
        first: usize,
        wanted: impl Fn(&T) -> bool + Copy + 'q,
    ) -> impl Iterator<Item = (JobId, &'q T)> {
        self.levels(needs).flat_map(move |level| level.jobs_in_turn(first, wanted))
    }

    fn levels(&self, needs: &Requirements) -> impl Iterator<Item = &Level<T>> {
        let class = self.ids.get(needs).and_then(|id| self.classes.get(id));
        class.into_iter().flat_map(|class| class.levels.values())
    }

    /// Whether a job with these needs would have to wait behind others of at least its priority.
    pub(super) fn has_before(&self, needs: &Requirements, priority: Priority) -> bool {
        let class = self.ids.get(needs).and_then(|id| self.classes.get(id));
        class.is_some_and(|class| class.key.0.0 >= priority)
    }

    /// Puts a job back that was taken out for nothing: its class and its tenant have their turns again.
    pub(super) fn put_back(&mut self, needs: &Arc<Requirements>, turn: Turn, item: T) {
        let (priority, tenant) = (turn.priority, turn.tenant.clone());
        self.push(needs, turn, item);
        let class = self.ids.get(needs).and_then(|id| self.classes.get_mut(id));
        if let Some(level) = class.and_then(|class| class.levels.get_mut(&Reverse(priority))) {
            level.turns.retain(|other| *other != tenant);
            level.turns.push_front(tenant);
        }
        if let Some(id) = self.ids.get(needs).copied() {
            // Before all that were served.
            self.classes.entry(id).and_modify(|class| class.served = 0);
            self.reorder(id);
        }
    }

    /// Puts a job in. One that is in already stays where it is.
    pub(super) fn push(&mut self, needs: &Arc<Requirements>, turn: Turn, item: T) {
        let Turn { job, seq, priority, tenant } = turn;
        if self.places.contains_key(&job) {
            return;
        }
        let id = match self.ids.get(needs) {
            Some(id) => *id,
            None => self.open(needs),
        };
        let order = (submitted_ms(job), seq, job);
        let class = self.classes.get_mut(&id).expect("a class that has an id is there");
        let level = class.levels.entry(Reverse(priority)).or_insert_with(Level::new);
        level.push(tenant.clone(), order, item);
        self.places.insert(job, Place { class: id, priority, tenant, order });
        self.reorder(id);
    }

    /// Takes a job out, wherever it waits.
    pub(super) fn remove(&mut self, job: JobId) -> Option<T> {
        let Place { class: id, priority, tenant, order } = self.places.remove(&job)?;
        let class = self.classes.get_mut(&id)?;
        let level = class.levels.get_mut(&Reverse(priority))?;
        let item = level.remove(&tenant, order);
        if level.turns.is_empty() {
            class.levels.remove(&Reverse(priority));
        }
        self.reorder(id);
        item
    }

    /// The needs of the class whose turn it is, leaving out those that found no node.
    pub(super) fn turn(&self) -> Option<(ClassTurn, Arc<Requirements>)> {
        let (_, _, id) = self.ready.first()?;
        Some((ClassTurn(*id), Arc::clone(&self.classes[id].needs)))
    }

    /// The jobs of the tenant whose turn it is in the class, in their order.
    pub(super) fn next(&self, ClassTurn(id): ClassTurn) -> impl Iterator<Item = (JobId, &T)> {
        let level = self.classes.get(&id).and_then(|class| class.levels.values().next());
        let jobs = level.and_then(|level| level.tenants.get(level.turns.front()?));
        jobs.into_iter().flatten().map(|((_, _, job), item)| (*job, item))
    }

    /// What each class needs, with the job of it that is next.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (&Arc<Requirements>, &T)> {
        let first = |id: &ClassId| self.next(ClassTurn(*id)).next().map(|(_, item)| item);
        self.classes.iter().filter_map(move |(id, class)| Some((&class.needs, first(id)?)))
    }

    /// The class found no node: none of its jobs has a turn before the pass is over.
    pub(super) fn block(&mut self, ClassTurn(id): ClassTurn) {
        if let Some(class) = self.classes.get(&id) {
            self.ready.remove(&(class.key.0, class.key.1, id));
            self.blocked.insert(id);
        }
    }

    /// The pass is over.
    pub(super) fn unblock(&mut self) {
        for id in std::mem::take(&mut self.blocked) {
            self.reorder(id);
        }
    }

    /// Takes out the job whose turn it is in the class.
    pub(super) fn pop(&mut self, turn: ClassTurn) -> Option<(JobId, T)> {
        let (job, _) = self.next(turn).next()?;
        self.pop_instead(turn, job)
    }

    /// Takes out a job of the tenant whose turn it is in the class; the tenant has had its turn then.
    pub(super) fn pop_instead(&mut self, ClassTurn(id): ClassTurn, job: JobId) -> Option<(JobId, T)> {
        let order = self.places.get(&job)?.order;
        let class = self.classes.get_mut(&id)?;
        let mut first = class.levels.first_entry()?;
        let item = first.get_mut().pop(order)?;
        if first.get().turns.is_empty() {
            first.remove();
        }
        self.served_count += 1;
        class.served = self.served_count;
        self.places.remove(&job);
        self.reorder(id);
        Some((job, item))
    }

    /// Takes all out that the caller wants out.
    pub(super) fn remove_if(&mut self, mut unwanted: impl FnMut(&T) -> bool) {
        let all = self.classes.values().flat_map(|class| class.levels.values());
        let items = all.flat_map(|level| level.tenants.values()).flatten();
        let gone: Vec<_> = items.filter(|(_, item)| unwanted(item)).map(|((_, _, job), _)| *job).collect();
        for job in gone {
            self.remove(job);
        }
    }

    fn open(&mut self, needs: &Arc<Requirements>) -> ClassId {
        self.class_count += 1;
        let id = self.class_count;
        // Not ready before its first job is in.
        let key = (Reverse(Priority::default()), 0);
        // Behind those that wait already: one that empties and comes again would otherwise always be the first.
        let class =
            Class { needs: Arc::clone(needs), key, served: self.served_count, levels: BTreeMap::new() };
        self.classes.insert(id, class);
        self.ids.insert(Arc::clone(needs), id);
        id
    }

    /// After a change: puts the class where it belongs now; an empty one goes.
    fn reorder(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        self.ready.remove(&(class.key.0, class.key.1, id));
        match class.levels.first_key_value() {
            Some((priority, _)) => {
                class.key = (*priority, class.served);
                if !self.blocked.contains(&id) {
                    self.ready.insert((class.key.0, class.key.1, id));
                }
            }
            None => {
                let needs = Arc::clone(&class.needs);
                self.ids.remove(&needs);
                self.classes.remove(&id);
            }
        }
    }
}

/// When a job was submitted, in milliseconds since 1970: its id begins with that.
pub(super) const fn submitted_ms(job: JobId) -> u128 {
    job.as_u128() >> 80
}

/// A class that was found to be next.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassTurn(ClassId);

impl<T> Level<T> {
    fn new() -> Self {
        Self { tenants: HashMap::new(), turns: VecDeque::new() }
    }

    /// One wanted job of each tenant in turn, until there are no more. The tenant at place `first` begins.
    fn jobs_in_turn<'q>(
        &'q self,
        first: usize,
        wanted: impl Fn(&T) -> bool + Copy + 'q,
    ) -> impl Iterator<Item = (JobId, &'q T)> {
        let (behind, before) = (self.turns.iter().skip(first % self.turns.len().max(1)), self.turns.iter());
        let tenants =
            behind.chain(before).take(self.turns.len()).filter_map(|tenant| self.tenants.get(tenant));
        let mut turns: VecDeque<_> =
            tenants.map(|jobs| jobs.iter().filter(move |(_, item)| wanted(item))).collect();
        std::iter::from_fn(move || {
            loop {
                let mut jobs = turns.pop_front()?;
                if let Some(((_, _, job), item)) = jobs.next() {
                    turns.push_back(jobs);
                    return Some((*job, item));
                }
            }
        })
    }

    fn push(&mut self, tenant: Option<TenantId>, order: Order, item: T) {
        let jobs = self.tenants.entry(tenant.clone()).or_default();
        if jobs.is_empty() {
            self.turns.push_back(tenant);
        }
        jobs.insert(order, item);
    }

    /// Takes a job out of those of the tenant whose turn it is.
    fn pop(&mut self, order: Order) -> Option<T> {
        let jobs = self.tenants.get_mut(self.turns.front()?)?;
        let item = jobs.remove(&order)?;
        let is_empty = jobs.is_empty();
        let tenant = self.turns.pop_front()?;
        if is_empty {
            self.tenants.remove(&tenant);
        } else {
            self.turns.push_back(tenant);
        }
        Some(item)
    }

    fn remove(&mut self, tenant: &Option<TenantId>, order: Order) -> Option<T> {
        let jobs = self.tenants.get_mut(tenant)?;
        let item = jobs.remove(&order);
        if jobs.is_empty() {
            self.tenants.remove(tenant);
            self.turns.retain(|other| other != tenant);
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use domain::{Label, PoolName};

    use super::*;

    fn needs(pool: &str) -> Arc<Requirements> {
        Arc::new(Requirements { pool: Some(PoolName::parse(pool).unwrap()), ..Requirements::default() })
    }

    fn turn(job: u128, priority: i64, tenant: &str) -> Turn {
        let tenant = (!tenant.is_empty()).then(|| TenantId::parse(tenant).unwrap());
        Turn { job: JobId::from_u128(job), seq: 0, priority: Priority::new(priority).unwrap(), tenant }
    }

    /// All jobs in the order in which they are served.
    fn drained(queue: &mut Queue<()>) -> Vec<u128> {
        let mut order = Vec::new();
        while let Some((class, _)) = queue.turn() {
            order.push(queue.pop(class).unwrap().0.as_u128());
        }
        assert_eq!((queue.len(), queue.classes.len(), queue.ids.len(), queue.ready.len()), (0, 0, 0, 0));
        order
    }

    #[test]
    fn higher_priority_comes_first_then_who_came_first() {
        let mut queue = Queue::default();
        for (job, priority) in [(1, 0), (2, 5), (4, -10), (3, 0), (5, 5)] {
            queue.push(&needs("a"), turn(job, priority, ""), ());
        }
        assert!(queue.has_before(&needs("a"), Priority::new(5).unwrap()));
        assert!(!queue.has_before(&needs("a"), Priority::new(6).unwrap()));
        assert!(!queue.has_before(&needs("b"), Priority::new(-10).unwrap()));
        assert_eq!(drained(&mut queue), [2, 5, 1, 3, 4]);
    }

    #[test]
    fn jobs_of_sessions_wait_no_longer_than_others() {
        let at = |ms: u128, n: u128| (ms << 80) + n;
        let mut queue = Queue::default();
        for (job, seq) in [(at(3, 1), 0), (at(1, 2), 7), (at(2, 1), 2), (at(1, 1), 8), (at(2, 0), 0)] {
            queue.push(&needs("a"), Turn { seq, ..turn(job, 0, "") }, ());
        }
        // Within a millisecond by their places.
        assert_eq!(drained(&mut queue), [at(1, 2), at(1, 1), at(2, 0), at(2, 1), at(3, 1)]);
    }

    #[test]
    fn a_backlog_of_one_tenant_does_not_keep_anothers_single_job_waiting() {
        let mut queue = Queue::default();
        for job in 0..1_000 {
            queue.push(&needs("a"), turn(job, 0, "big"), ());
        }
        queue.push(&needs("a"), turn(5_000, 0, "small"), ());
        queue.push(&needs("a"), turn(5_001, 0, ""), ());
        assert_eq!(drained(&mut queue)[..5], [0, 5_000, 5_001, 1, 2]);
    }

    #[test]
    fn who_was_taken_out_for_nothing_is_next_again() {
        let mut queue = Queue::default();
        for (job, tenant) in [(1, "big"), (2, "big"), (3, "small")] {
            queue.push(&needs("a"), turn(job, 0, tenant), ());
        }
        let (class, of) = queue.turn().unwrap();
        assert_eq!(queue.pop(class).unwrap().0.as_u128(), 1);
        queue.put_back(&of, turn(1, 0, "big"), ());
        assert_eq!(drained(&mut queue), [1, 3, 2]);
    }

    #[test]
    fn classes_take_turns_and_one_without_a_node_does_not_hold_up_the_others() {
        let mut queue = Queue::default();
        for job in [1, 2, 3] {
            queue.push(&needs("a"), turn(job, 0, ""), ());
            queue.push(&needs("b"), turn(job + 10, 0, ""), ());
        }
        let (first, of) = queue.turn().unwrap();
        assert_eq!(of, needs("a"));
        queue.block(first);
        assert_eq!(queue.turn().unwrap().1, needs("b"));
        // One that comes meanwhile does not change that.
        queue.push(&needs("a"), turn(4, 0, ""), ());
        assert_eq!(queue.turn().unwrap().1, needs("b"));
        queue.remove(JobId::from_u128(4));
        queue.unblock();
        assert_eq!(queue.turn().unwrap().1, needs("a"));
        assert_eq!(drained(&mut queue), [1, 11, 2, 12, 3, 13]);
    }

    #[test]
    fn a_class_that_empties_and_comes_again_leaves_the_others_their_turns() {
        let mut queue = Queue::default();
        let serve = |queue: &mut Queue<()>| {
            let (class, of) = queue.turn().unwrap();
            (queue.pop(class).unwrap(), of).1
        };
        for job in 0..100 {
            queue.push(&needs("backlog"), turn(job, 0, ""), ());
        }
        assert_eq!(serve(&mut queue), needs("backlog"));
        // A client that keeps one job waiting, and another that needs something new each time.
        for n in 0..20 {
            queue.push(&needs("one"), turn(1_000 + n, 0, ""), ());
            queue.push(&needs(&format!("new{n}")), turn(2_000 + n, 0, ""), ());
            let mut served: Vec<_> =
                (0..3).map(|_| serve(&mut queue).pool.clone().unwrap().to_string()).collect();
            served.sort_unstable();
            assert_eq!(served, ["backlog".to_owned(), format!("new{n}"), "one".to_owned()]);
        }
    }

    #[test]
    fn a_class_whose_job_was_taken_out_for_nothing_has_its_turn_again() {
        let mut queue = Queue::default();
        for (class, job) in [("a", 1), ("b", 2), ("a", 3), ("b", 4)] {
            queue.push(&needs(class), turn(job, 0, ""), ());
        }
        let (class, of) = queue.turn().unwrap();
        assert_eq!(queue.pop(class).unwrap().0.as_u128(), 1);
        queue.put_back(&of, turn(1, 0, ""), ());
        assert_eq!(drained(&mut queue), [1, 2, 3, 4]);
    }

    #[test]
    fn who_is_removed_is_not_served_and_who_is_in_is_not_put_in_twice() {
        let mut queue = Queue::default();
        for job in [1, 2, 3, 2] {
            queue.push(&needs("a"), turn(job, 0, "t"), job);
        }
        assert_eq!(queue.len(), 3);
        assert_eq!(queue.remove(JobId::from_u128(2)), Some(2));
        assert_eq!(queue.remove(JobId::from_u128(2)), None);
        queue.remove_if(|item| *item == 3);
        assert_eq!(queue.len(), 1);
        let (class, _) = queue.turn().unwrap();
        assert_eq!(queue.pop(class), Some((JobId::from_u128(1), 1)));
    }

    #[test]
    fn needs_that_differ_in_anything_are_classes_of_their_own() {
        let mut queue = Queue::default();
        let gpu = Arc::new(Requirements {
            requires: vec![Label::parse("gpu").unwrap()],
            ..Requirements::default()
        });
        queue.push(&gpu, turn(1, 0, ""), ());
        queue.push(&Arc::new(Requirements::default()), turn(2, 1, ""), ());
        assert_eq!(queue.classes.len(), 2);
        assert_eq!(drained(&mut queue), [2, 1]);
    }

    #[test]
    fn wanted_jobs_are_shown_by_priority_and_one_of_each_tenant_in_turn() {
        let mut queue = Queue::default();
        for (job, priority, tenant) in [
            (1, 0, "a"),
            (2, 0, "a"),
            (3, 0, "a"),
            (4, 0, "b"),
            (5, 0, ""),
            (6, 0, "b"),
            (7, 1, "a"),
            (8, 0, "c"),
        ] {
            queue.push(&needs("a"), turn(job, priority, tenant), job);
        }
        queue.push(&needs("b"), turn(9, 0, ""), 9);
        let shown = |first, unwanted: u128| -> Vec<_> {
            let of = needs("a");
            let jobs = queue.jobs_in_turn(&of, first, |item| *item != unwanted);
            jobs.map(|(job, item)| (job.as_u128(), *item))
                .inspect(|(job, item)| assert_eq!(job, item))
                .collect()
        };
        let shown =
            |first, unwanted| shown(first, unwanted).into_iter().map(|(job, _)| job).collect::<Vec<_>>();
        assert_eq!(shown(0, 0), [7, 1, 4, 5, 8, 2, 6, 3]);
        assert_eq!(shown(2, 0), [7, 5, 8, 1, 4, 2, 6, 3]);
        assert_eq!(shown(7, 0), [7, 8, 1, 4, 5, 2, 6, 3]);
        assert_eq!(shown(0, 1), [7, 2, 4, 5, 8, 3, 6]);
        assert_eq!(queue.jobs_in_turn(&needs("c"), 1, |_| true).count(), 0);
        let mut all: Vec<_> = queue.jobs(&needs("a")).copied().collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    /// Whatever is pushed, popped and removed: each job comes out once, and the counts add up.
    #[test]
    fn nothing_is_lost_or_served_twice() {
        use std::collections::BTreeSet;

        use rand::rngs::StdRng;
        use rand::{RngExt, SeedableRng};

        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut queue, mut inside) = (Queue::default(), BTreeSet::new());
        for job in 0..20_000_u128 {
            let class = needs(["a", "b", "c"][rng.random_range(0..3)]);
            queue.push(
                &class,
                turn(job, rng.random_range(-2..3), ["", "x", "y"][rng.random_range(0..3)]),
                job,
            );
            inside.insert(job);
            match rng.random_range(0..4) {
                0 => {
                    let gone = rng.random_range(0..=job);
                    assert_eq!(
                        queue.remove(JobId::from_u128(gone)).is_some(),
                        inside.remove(&gone),
                        "seed {seed}"
                    );
                }
                1 | 2 => {
                    let (class, _) = queue.turn().unwrap();
                    let (_, item) = queue.pop(class).unwrap();
                    assert!(inside.remove(&item), "seed {seed}");
                }
                _ => {}
            }
            assert_eq!(queue.len(), inside.len(), "seed {seed}");
            if inside.is_empty() {
                assert!(queue.turn().is_none());
            }
        }
    }
}
