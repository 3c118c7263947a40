//! The bytes of the plans that an instance owns, which are in its memory as long as it does: its tasks and stages, with their
//! texts, configurations and contexts.
//!
//! They bound what is started here. What must never be refused for their sake: the takeover of a plan that was started
//! before, which nobody else may be there for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::job::Requirements;
use domain::plan::{PlanState, StageSpec, StageState, TaskSpec, TaskState};
use domain::{Label, Language, PoolName};

/// The bytes of plans that one instance owns, beyond which it starts no further plan: 1 GiB.
pub const OWNED_PLANS_BYTES_MAX: usize = 1 << 30;
/// Plans that one instance reads at the same time. The others wait.
pub(super) const LOADS_MAX: usize = 4;

/// What an instance owns, and may.
pub(super) struct OwnedBytes {
    total: Arc<AtomicUsize>,
    max: usize,
}

/// What one plan has of it. Dropping it gives that back.
pub(super) struct PlanShare {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl OwnedBytes {
    pub(super) fn new(max: usize) -> Self {
        Self { total: Arc::default(), max }
    }

    /// The share of a plan that is owned whatever its bytes.
    pub(super) fn share(&self, plan: &PlanState) -> PlanShare {
        let mut share = PlanShare { total: Arc::clone(&self.total), bytes: 0 };
        share.set(plan);
        share
    }

    /// The share of a plan that is about to be started; `None` if there is no room for it.
    pub(super) fn reserve(&self, plan: &PlanState) -> Option<PlanShare> {
        let share = self.share(plan);
        (!self.is_exceeded()).then_some(share)
    }

    /// Whether there are more than may be, so that no further plan starts.
    pub(super) fn is_exceeded(&self) -> bool {
        self.total.load(Ordering::Acquire) > self.max
    }
}

impl PlanShare {
    /// It is this plan now.
    pub(super) fn set(&mut self, plan: &PlanState) {
        self.resize(plan.tasks.iter().map(|task| of_task(task)).sum());
    }

    /// These tasks of the plan, by their places, have changed.
    pub(super) fn follow(&mut self, before: &PlanState, after: &PlanState, tasks: &[usize]) {
        let of = |plan: &PlanState| tasks.iter().map(|at| of_task(&plan.tasks[*at])).sum::<usize>();
        self.resize((self.bytes + of(after)).saturating_sub(of(before)));
    }

    fn resize(&mut self, bytes: usize) {
        self.total.fetch_add(bytes, Ordering::AcqRel);
        self.total.fetch_sub(self.bytes, Ordering::AcqRel);
        self.bytes = bytes;
    }
}

impl Drop for PlanShare {
    fn drop(&mut self) {
        self.resize(0);
    }
}

fn of_task(task: &TaskState) -> usize {
    let TaskSpec { tenant, name, config, stages, .. } = &*task.spec;
    let context = task.checkpoint.as_ref().map(|checkpoint| &*checkpoint.context);
    let texts = [Some(tenant.as_str()), name.as_deref(), config.as_deref(), context].into_iter().flatten();
    size_of::<TaskSpec>()
        + size_of::<TaskState>()
        + texts.map(of_text).sum::<usize>()
        + stages.iter().map(of_stage).sum::<usize>()
}

fn of_stage(stage: &StageSpec) -> usize {
    let Requirements { pool, route, requires } = &stage.needs;
    let languages = route.iter().flat_map(|route| [&route.source, &route.target]);
    let texts = [&*stage.name, &*stage.payload]
        .into_iter()
        .chain(pool.iter().map(PoolName::as_str))
        .chain(languages.map(Language::as_str))
        .chain(requires.iter().map(Label::as_str));
    size_of::<StageSpec>()
        + size_of::<StageState>()
        + requires.len() * size_of::<Label>()
        + texts.map(of_text).sum::<usize>()
}

/// A text that is shared has two counters before it.
fn of_text(text: &str) -> usize {
    2 * size_of::<usize>() + text.len()
}

#[cfg(test)]
mod tests {
    use domain::limits::{JOB_LABELS_MAX, LABEL_CHARS_MAX, PLAN_STAGES_MAX};
    use domain::plan::{Checkpoint, PlanSpec};
    use domain::{PlanId, TaskId, TenantId};

    use super::*;

    /// A plan of one task with these stages.
    fn plan_of(stages: Vec<StageSpec>) -> PlanState {
        let task = TaskSpec::new(TenantId::parse("t").unwrap(), stages);
        let task = TaskState::new(TaskId::from_u128(1), Arc::new(task));
        PlanState::new(PlanId::from_u128(1), Arc::new(PlanSpec::default()), vec![task])
    }

    /// A plan of one stage with a payload of so many bytes.
    fn plan(bytes: usize) -> PlanState {
        plan_of(vec![StageSpec::new("a", "1".repeat(bytes))])
    }

    /// The bytes that such a plan has besides its payload.
    fn besides() -> usize {
        of_task(&plan(0).tasks[0])
    }

    #[test]
    fn a_plan_has_its_bytes_until_its_share_is_dropped() {
        let owned = OwnedBytes::new(2 * besides() + 100);
        let first = owned.reserve(&plan(60)).expect("there is room");
        assert!(owned.reserve(&plan(41)).is_none());
        let second = owned.reserve(&plan(40)).expect("what was refused takes no room");
        drop(first);
        assert!(owned.reserve(&plan(60)).is_some());
        // A plan that is taken over is owned all the same, and keeps others from being started.
        let taken_over = owned.share(&plan(61));
        assert!(owned.is_exceeded() && owned.reserve(&plan(1)).is_none());
        drop((second, taken_over));
        assert!(!owned.is_exceeded());
    }

    #[test]
    fn stages_count_with_all_that_is_asked_of_them() {
        let label = Label::parse(&"l".repeat(LABEL_CHARS_MAX)).unwrap();
        let needs = Requirements { requires: vec![label; JOB_LABELS_MAX], ..Requirements::default() };
        let stage = |n: usize| StageSpec { needs: needs.clone(), ..StageSpec::new(n.to_string(), "1") };
        let plan = plan_of((0..PLAN_STAGES_MAX).map(stage).collect());
        assert!(OwnedBytes::new(100_000).reserve(&plan).is_none());
    }

    #[test]
    fn the_context_of_a_checkpoint_counts_in_place_of_the_one_before() {
        let (owned, before) = (OwnedBytes::new(besides() + of_text("") + 100), plan(50));
        let mut share = owned.share(&before);
        let mut last = before;
        for (length, is_exceeded) in [(50, false), (51, true), (10, false)] {
            let mut next = last.clone();
            let context = Arc::from("1".repeat(length));
            Arc::make_mut(&mut next.tasks[0]).checkpoint =
                Some(Checkpoint { version: 1, completed: 1, context });
            share.follow(&last, &next, &[0]);
            assert_eq!(owned.is_exceeded(), is_exceeded, "{length}");
            last = next;
        }
    }
}
