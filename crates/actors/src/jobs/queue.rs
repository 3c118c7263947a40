//! What waits for a slot on this instance, in the order in which it is to be served: by priority, and among equals
//! fairly, first between the pools that jobs name, then between tenants, then between what a tenant's jobs need, then first
//! come first served.
//!
//! Pure: nothing here knows a node. Jobs that need the same are one *class*: where one of them finds no node, none of
//! them does, so a pass asks once per class and not once per job. A class that no node serves, be it full, is *parked*: it is
//! not asked for again before there are other nodes.
//!
//! A tenant with jobs of one priority in a class has a *turn* there. The turns of a pool and priority are served by their
//! numbers, the lowest first. The turns of a tenant are numbered one after the other, each behind the highest number that was
//! served there: so a tenant has no more turns for being in more classes, and a tenant that comes waits for one turn of each
//! other tenant. Turns whose classes find no node keep their numbers: what a tenant is served on some nodes does not keep its
//! jobs for other nodes waiting. But a tenant that is served by a turn that was passed over has its other ones numbered anew
//! when they come first and find a node: its backlog does not come before those who came meanwhile. A turn that was numbered anew
//! waits for one job of its class, and is due then, however often its tenant is served elsewhere. (Start-time fair queueing:
//! Goyal, Vin, Cheng, 1996, with a tag for each class of a tenant.)

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use domain::job::{Priority, Requirements};
use domain::{JobId, PoolName, TenantId};

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
/// The number of a turn; and how many were given in its pool and priority by then, which decides among equals.
type TurnNumber = (u64, u64);

/// The queue, with something of the caller's for each job.
pub(super) struct Queue<T> {
    classes: HashMap<ClassId, Class<T>>,
    ids: HashMap<Arc<Requirements>, ClassId>,
    /// By the pool that the jobs name.
    pools: HashMap<Option<PoolName>, Pool>,
    /// The pools by the priority of their first job; among equals, what was served longest ago comes first.
    ready: BTreeSet<(Reverse<Priority>, u64, Option<PoolName>)>,
    /// Those that found no node in this pass. They are not ready until it is over.
    blocked: BTreeSet<ClassId>,
    /// Those that no node serves, each behind the nodes that it was compared with last. They are not ready.
    parked: BTreeSet<(u64, ClassId)>,
    places: HashMap<JobId, Place>,
    class_count: ClassId,
    served_count: u64,
}

struct Class<T> {
    needs: Arc<Requirements>,
    /// Its place among the ready ones of its pool.
    key: (Reverse<Priority>, TurnNumber),
    levels: BTreeMap<Reverse<Priority>, Level<T>>,
    /// The nodes that it was compared with last, by their version; 0 if it never was.
    nodes: u64,
    is_parked: bool,
}

/// The jobs of one class and priority. Each tenant in `turns` has jobs, and each that has jobs is in it once.
struct Level<T> {
    tenants: HashMap<Option<TenantId>, Waiting<T>>,
    turns: BTreeMap<TurnNumber, Option<TenantId>>,
    /// How many jobs were served there.
    served: u64,
}

/// What a tenant has waiting there.
struct Waiting<T> {
    turn: TurnNumber,
    /// How many jobs were served there when the turn was numbered anew without being served.
    renumbered: Option<u64>,
    jobs: BTreeMap<Order, T>,
}

/// The jobs that name one pool, or those that name none.
#[derive(Default)]
struct Pool {
    /// The classes by the priority of their first job; among equals, by the turn that comes first there.
    ready: BTreeSet<(Reverse<Priority>, TurnNumber, ClassId)>,
    /// Its place among the ready ones, if it has a ready class.
    key: Option<(Reverse<Priority>, u64)>,
    /// How many jobs of all pools were served when it was last.
    served: u64,
    /// The turns at each priority at which jobs wait.
    turns: BTreeMap<Reverse<Priority>, Turns>,
}

/// Numbers the turns of one pool and priority.
#[derive(Default)]
struct Turns {
    tenants: HashMap<Option<TenantId>, Tenant>,
    /// The highest number that was served.
    reached: u64,
    given: u64,
}

/// A tenant that has a turn.
#[derive(Default)]
struct Tenant {
    /// How many turns it has.
    turns: u64,
    /// The number of its last one.
    last: u64,
    /// What was reached when it was served by a turn that was passed over. Its other turns with lower numbers are due no more.
    floor: u64,
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
            pools: HashMap::new(),
            ready: BTreeSet::new(),
            blocked: BTreeSet::new(),
            parked: BTreeSet::new(),
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

    /// How many classes wait, but for the parked ones.
    pub(super) fn classes(&self) -> usize {
        self.classes.len() - self.parked.len()
    }

    /// What the classes that wait need.
    pub(super) fn needs(&self) -> impl Iterator<Item = &Arc<Requirements>> {
        self.ids.keys()
    }

    /// The jobs of one class, in no certain order.
    pub(super) fn jobs(&self, needs: &Requirements) -> impl Iterator<Item = &T> {
        let tenants = self.levels(needs).flat_map(|level| level.tenants.values());
        tenants.flat_map(|waiting| waiting.jobs.values())
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

    /// Puts a job back that was taken out for nothing: its pool and its tenant have their turns again.
    pub(super) fn put_back(&mut self, needs: &Arc<Requirements>, turn: Turn, item: T) {
        let (priority, tenant) = (turn.priority, turn.tenant.clone());
        self.push(needs, turn, item);
        let Some(id) = self.ids.get(needs).copied() else { return };
        let level = self.classes.get_mut(&id).and_then(|class| class.levels.get_mut(&Reverse(priority)));
        if let (Some(level), Some(pool)) = (level, self.pools.get_mut(&needs.pool)) {
            if let Some(turns) = pool.turns.get_mut(&Reverse(priority)) {
                level.put_first(&tenant, turns);
            }
            // Before all that were served.
            pool.served = 0;
        }
        self.reorder(id);
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
        let pool = self.pools.get_mut(&needs.pool).expect("a pool that has a class is there");
        let level = class.levels.entry(Reverse(priority)).or_insert_with(Level::new);
        level.push(tenant.clone(), order, item, pool.turns.entry(Reverse(priority)).or_default());
        self.places.insert(job, Place { class: id, priority, tenant, order });
        self.reorder(id);
    }

    /// Takes a job out, wherever it waits.
    pub(super) fn remove(&mut self, job: JobId) -> Option<T> {
        let Place { class: id, priority, tenant, order } = self.places.remove(&job)?;
        let class = self.classes.get_mut(&id)?;
        let pool = self.pools.get_mut(&class.needs.pool)?;
        let level = class.levels.get_mut(&Reverse(priority))?;
        let item = level.remove(&tenant, order, pool.turns.get_mut(&Reverse(priority))?);
        if level.turns.is_empty() {
            class.levels.remove(&Reverse(priority));
        }
        pool.forget_unused(Reverse(priority));
        self.reorder(id);
        item
    }

    /// The class whose turn it is of those that find a node, what it needs, and what `find` found for it. Those for which
    /// it found none have no turn before the pass is over. Each of them takes one of the looks; without any there is no
    /// answer.
    pub(super) fn turn<N>(
        &mut self,
        looks: &mut usize,
        mut find: impl FnMut(&Requirements) -> Option<N>,
    ) -> Option<(ClassTurn, Arc<Requirements>, N)> {
        let mut known = None;
        while *looks > 0 {
            let (_, _, pool) = self.ready.first()?;
            let pool = self.pools.get_mut(pool)?;
            let (_, _, id) = *pool.ready.first()?;
            let class = self.classes.get_mut(&id)?;
            let (priority, level) = class.levels.iter_mut().next()?;
            // What was found for another class is given up before anything else is looked for.
            let known_here = known.take().filter(|(of, _)| *of == id).map(|(_, found)| found);
            match known_here.or_else(|| find(&class.needs)) {
                None => {
                    self.blocked.insert(id);
                    *looks -= 1;
                }
                // Only a turn that would be served: one that finds no node costs its tenant nothing.
                Some(found) if !level.renumber_first(pool.turns.get_mut(priority)?) => {
                    return Some((ClassTurn(id), Arc::clone(&class.needs), found));
                }
                // It may still be the first.
                Some(found) => known = Some((id, found)),
            }
            self.reorder(id);
        }
        None
    }

    /// The jobs of the tenant whose turn it is in the class, in their order.
    pub(super) fn next(&self, ClassTurn(id): ClassTurn) -> impl Iterator<Item = (JobId, &T)> {
        let level = self.classes.get(&id).and_then(|class| class.levels.values().next());
        let jobs = level.and_then(|level| Some(&level.tenants.get(level.turns.first_key_value()?.1)?.jobs));
        jobs.into_iter().flatten().map(|((_, _, job), item)| (*job, item))
    }

    /// What each class needs that is not parked, with the job of it that is next.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (&Arc<Requirements>, &T)> {
        let first = |id: &ClassId| self.next(ClassTurn(*id)).next().map(|(_, item)| item);
        let classes = self.classes.iter().filter(|(_, class)| !class.is_parked);
        classes.filter_map(move |(id, class)| Some((&class.needs, first(id)?)))
    }

    /// What up to `limit` next classes need, without the parked ones; each with the priority of its first job.
    /// The highest come first, among equals about those whose turns do.
    pub(super) fn first_classes(&self, limit: usize) -> Vec<(Priority, Arc<Requirements>)> {
        // Further pools begin behind so many classes.
        let pools = self.ready.iter().take(limit).filter_map(|(_, _, pool)| self.pools.get(pool));
        let mut first: Vec<_> = pools.flat_map(|pool| pool.ready.iter().take(limit)).collect();
        first.sort_by_key(|(priority, ..)| *priority);
        let needs = |id: &ClassId| self.classes.get(id).map(|class| Arc::clone(&class.needs));
        let first = first.into_iter().take(limit);
        first.filter_map(|(priority, _, id)| Some((priority.0, needs(id)?))).collect()
    }

    /// Whether it cannot be said which class is next on a node: a pass is not over, or some of the parked classes were not
    /// compared with the nodes of this version.
    pub(super) fn is_unsettled(&self, nodes: u64) -> bool {
        !self.blocked.is_empty() || self.parked.first().is_some_and(|(known, _)| *known < nodes)
    }

    /// Compares the parked classes with the nodes of this version, unless that was done; those that one of them serves are
    /// ready again. Each takes one of the looks; where none is left, there may be more.
    pub(super) fn look_at_parked(
        &mut self,
        nodes: u64,
        looks: &mut usize,
        is_served: impl Fn(&Requirements) -> bool,
    ) {
        while *looks > 0
            && self.parked.first().is_some_and(|(known, _)| *known < nodes)
            && let Some((_, id)) = self.parked.pop_first()
        {
            *looks -= 1;
            self.compare(id, nodes, &is_served);
        }
    }

    /// Ends the pass. Of the classes that found no node, those are parked that no node of this version serves. Each class
    /// takes one of the looks; where none is left, the pass may not be over.
    pub(super) fn end_pass(
        &mut self,
        nodes: u64,
        looks: &mut usize,
        is_served: impl Fn(&Requirements) -> bool,
    ) {
        while *looks > 0
            && let Some(id) = self.blocked.pop_first()
        {
            *looks -= 1;
            self.compare(id, nodes, &is_served);
        }
    }

    /// Compares a class, which is not among the parked ones, with these nodes, if that was not done.
    fn compare(&mut self, id: ClassId, nodes: u64, is_served: impl Fn(&Requirements) -> bool) {
        if let Some(class) = self.classes.get_mut(&id)
            && class.nodes < nodes
        {
            class.nodes = nodes;
            class.is_parked = !is_served(&class.needs);
            if class.is_parked {
                self.parked.insert((nodes, id));
            }
        }
        self.reorder(id);
    }

    /// The pass is over, which was about one node.
    pub(super) fn unblock(&mut self) {
        while let Some(id) = self.blocked.pop_first() {
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
        let pool = self.pools.get_mut(&class.needs.pool)?;
        let mut first = class.levels.first_entry()?;
        let priority = *first.key();
        let item = first.get_mut().pop(order, pool.turns.get_mut(&priority)?)?;
        if first.get().turns.is_empty() {
            first.remove();
        }
        pool.forget_unused(priority);
        self.served_count += 1;
        pool.served = self.served_count;
        self.places.remove(&job);
        self.reorder(id);
        Some((job, item))
    }

    /// Takes all out that the caller wants out.
    pub(super) fn remove_if(&mut self, mut unwanted: impl FnMut(&T) -> bool) {
        let all = self.classes.values().flat_map(|class| class.levels.values());
        let items = all.flat_map(|level| level.tenants.values()).flat_map(|waiting| &waiting.jobs);
        let gone: Vec<_> = items.filter(|(_, item)| unwanted(item)).map(|((_, _, job), _)| *job).collect();
        for job in gone {
            self.remove(job);
        }
    }

    fn open(&mut self, needs: &Arc<Requirements>) -> ClassId {
        self.class_count += 1;
        let id = self.class_count;
        // Not ready before its first job is in.
        let key = (Reverse(Priority::default()), (0, 0));
        let class =
            Class { needs: Arc::clone(needs), key, levels: BTreeMap::new(), nodes: 0, is_parked: false };
        self.classes.insert(id, class);
        self.ids.insert(Arc::clone(needs), id);
        // Behind those that wait already: one that empties and comes again would otherwise always be the first.
        let served = self.served_count;
        self.pools.entry(needs.pool.clone()).or_insert_with(|| Pool { served, ..Pool::default() });
        id
    }

    /// After a change: puts the class where it belongs now, and its pool; an empty one goes.
    fn reorder(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        let needs = Arc::clone(&class.needs);
        let Some(pool) = self.pools.get_mut(&needs.pool) else { return };
        pool.ready.remove(&(class.key.0, class.key.1, id));
        let first = class.levels.first_key_value();
        match first.and_then(|(priority, level)| Some((*priority, *level.turns.first_key_value()?.0))) {
            Some(key) => {
                class.key = key;
                if !class.is_parked && !self.blocked.contains(&id) {
                    pool.ready.insert((key.0, key.1, id));
                }
            }
            None => {
                if class.is_parked {
                    self.parked.remove(&(class.nodes, id));
                }
                self.ids.remove(&needs);
                self.classes.remove(&id);
            }
        }
        let key = pool.ready.first().map(|(priority, ..)| (*priority, pool.served));
        if pool.key != key {
            if let Some((priority, served)) = std::mem::replace(&mut pool.key, key) {
                self.ready.remove(&(priority, served, needs.pool.clone()));
            }
            if let Some((priority, served)) = key {
                self.ready.insert((priority, served, needs.pool.clone()));
            }
        }
        if pool.turns.is_empty() {
            self.pools.remove(&needs.pool);
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

impl Pool {
    /// Nothing is remembered of a priority at which no job waits.
    fn forget_unused(&mut self, priority: Reverse<Priority>) {
        if self.turns.get(&priority).is_some_and(|turns| turns.tenants.is_empty()) {
            self.turns.remove(&priority);
        }
    }
}

impl<T> Level<T> {
    fn new() -> Self {
        Self { tenants: HashMap::new(), turns: BTreeMap::new(), served: 0 }
    }

    /// One wanted job of each tenant in turn, until there are no more. The tenant at place `first` begins.
    fn jobs_in_turn<'q>(
        &'q self,
        first: usize,
        wanted: impl Fn(&T) -> bool + Copy + 'q,
    ) -> impl Iterator<Item = (JobId, &'q T)> {
        let (behind, before) =
            (self.turns.values().skip(first % self.turns.len().max(1)), self.turns.values());
        let tenants =
            behind.chain(before).take(self.turns.len()).filter_map(|tenant| self.tenants.get(tenant));
        let mut turns: VecDeque<_> =
            tenants.map(|waiting| waiting.jobs.iter().filter(move |(_, item)| wanted(item))).collect();
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

    fn push(&mut self, tenant: Option<TenantId>, order: Order, item: T, turns: &mut Turns) {
        let waiting = self.tenants.entry(tenant).or_insert_with_key(|tenant| {
            let turn = turns.give(tenant);
            self.turns.insert(turn, tenant.clone());
            Waiting { turn, renumbered: None, jobs: BTreeMap::new() }
        });
        waiting.jobs.insert(order, item);
    }

    /// The tenant, which has jobs there, has its turn before all others.
    fn put_first(&mut self, tenant: &Option<TenantId>, turns: &mut Turns) {
        if let Some(waiting) = self.tenants.get_mut(tenant)
            && waiting.turn.0 > 0
        {
            self.turns.remove(&waiting.turn);
            waiting.turn = turns.give_first_instead(tenant);
            waiting.renumbered = None;
            self.turns.insert(waiting.turn, tenant.clone());
        }
    }

    /// Numbers the first turn anew if it is due no more, and says whether it did.
    fn renumber_first(&mut self, turns: &mut Turns) -> bool {
        let Some(first) = self.turns.first_entry() else { return false };
        let Some(waiting) = self.tenants.get_mut(first.get()) else { return false };
        let has_waited = waiting.renumbered.is_some_and(|served| self.served > served);
        if has_waited || turns.is_due(first.get(), first.key().0) {
            return false;
        }
        let (_, tenant) = first.remove_entry();
        waiting.turn = turns.give_instead(&tenant);
        waiting.renumbered = Some(self.served);
        self.turns.insert(waiting.turn, tenant);
        true
    }

    /// Takes a job out of those of the tenant whose turn it is.
    fn pop(&mut self, order: Order, turns: &mut Turns) -> Option<T> {
        let first = self.turns.first_entry()?;
        let waiting = self.tenants.get_mut(first.get())?;
        let item = waiting.jobs.remove(&order)?;
        let (turn, tenant) = first.remove_entry();
        self.served += 1;
        turns.serve(&tenant, turn.0);
        if waiting.jobs.is_empty() {
            self.tenants.remove(&tenant);
            turns.take(&tenant);
        } else {
            waiting.turn = turns.give_instead(&tenant);
            waiting.renumbered = None;
            self.turns.insert(waiting.turn, tenant);
        }
        Some(item)
    }

    fn remove(&mut self, tenant: &Option<TenantId>, order: Order, turns: &mut Turns) -> Option<T> {
        let waiting = self.tenants.get_mut(tenant)?;
        let item = waiting.jobs.remove(&order);
        if waiting.jobs.is_empty() {
            if waiting.turn.0 > 0 {
                turns.give_up(tenant);
            }
            self.turns.remove(&waiting.turn);
            self.tenants.remove(tenant);
            turns.take(tenant);
        }
        item
    }
}

impl Turns {
    /// One more turn for the tenant.
    fn give(&mut self, tenant: &Option<TenantId>) -> TurnNumber {
        self.tenants.entry(tenant.clone()).or_default().turns += 1;
        self.give_instead(tenant)
    }

    /// Another turn, for one that was served.
    fn give_instead(&mut self, tenant: &Option<TenantId>) -> TurnNumber {
        let known = self.tenants.entry(tenant.clone()).or_default();
        known.last = known.last.max(self.reached) + 1;
        self.given += 1;
        (known.last, self.given)
    }

    /// Whether the tenant's turn with this number is due when it comes first.
    fn is_due(&self, tenant: &Option<TenantId>, number: u64) -> bool {
        self.tenants.get(tenant).is_none_or(|known| number >= known.floor)
    }

    /// The tenant's turn with this number is served.
    fn serve(&mut self, tenant: &Option<TenantId>, number: u64) {
        // One that was taken out for nothing has the number 0, also where nothing was served yet.
        if number < self.reached.max(1)
            && let Some(known) = self.tenants.get_mut(tenant)
        {
            known.floor = self.reached.max(1);
        }
        self.reached = self.reached.max(number);
    }

    /// A number of the tenant is given again: its turn was not served.
    fn give_up(&mut self, tenant: &Option<TenantId>) {
        if let Some(known) = self.tenants.get_mut(tenant) {
            known.last = known.last.saturating_sub(1);
        }
    }

    /// A turn before all others, for one that was not served. Its number is given again, and it has passed none over.
    fn give_first_instead(&mut self, tenant: &Option<TenantId>) -> TurnNumber {
        self.give_up(tenant);
        if let Some(known) = self.tenants.get_mut(tenant) {
            known.floor = 0;
        }
        self.given += 1;
        (0, self.given)
    }

    /// The tenant has one turn less. Nothing is remembered of one that has none.
    fn take(&mut self, tenant: &Option<TenantId>) {
        if let Some(known) = self.tenants.get_mut(tenant) {
            known.turns -= 1;
            if known.turns == 0 {
                self.tenants.remove(tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests;
