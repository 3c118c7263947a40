//! The bytes of the plans that an instance owns, which are in its memory as long as it does: its tasks and stages, with their
//! texts, configurations and contexts.
//!
//! They bound what is started here. What must never be refused for their sake: the takeover of a plan that was started
//! before, which nobody else may be there for.

use std::collections::HashMap;
use std::sync::Arc;

use domain::job::Requirements;
use domain::plan::{PlanState, StageSpec, StageState, TaskSpec, TaskState};
use domain::{Label, Language, PoolName};
use parking_lot::Mutex;

/// The bytes of plans that one instance owns, beyond which it starts no further plan: 1 GiB. Half of that is for the plans that
/// one token has started there.
pub const OWNED_PLANS_BYTES_MAX: usize = 1 << 30;
/// Plans that one instance reads at the same time. The others wait.
pub(super) const LOADS_MAX: usize = 4;

/// What an instance owns, and may.
pub(super) struct OwnedBytes {
    counts: Arc<Mutex<Counts>>,
    max: usize,
}

/// What one plan has of it. Dropping it gives that back.
pub(super) struct PlanShare {
    counts: Arc<Mutex<Counts>>,
    /// The token that has started the plan here; `None` without tokens, and where that was before it was owned here.
    token: Option<Arc<str>>,
    bytes: usize,
}

#[derive(Default)]
struct Counts {
    total: usize,
    /// Those of the plans that each token has started here, by its name.
    of_tokens: HashMap<Arc<str>, usize>,
}

impl OwnedBytes {
    pub(super) fn new(max: usize) -> Self {
        Self { counts: Arc::default(), max }
    }

    /// The share of a plan that is owned whatever its bytes. It is no token's.
    pub(super) fn share(&self, plan: &PlanState) -> PlanShare {
        let mut share = PlanShare { counts: Arc::clone(&self.counts), token: None, bytes: 0 };
        share.set(plan);
        share
    }

    /// The share of a plan that this token is about to start; `None` if there is no room for it.
    pub(super) fn reserve(&self, plan: &PlanState, token: Option<&Arc<str>>) -> Option<PlanShare> {
        let mut share = self.share(plan);
        self.may_start(&mut share, token).then_some(share)
    }

    /// Whether this token may start the plan that has this share: neither all plans nor those that it has started have more
    /// bytes than may be. If so, the share is the token's. Without a token only the limit of all holds.
    pub(super) fn may_start(&self, share: &mut PlanShare, token: Option<&Arc<str>>) -> bool {
        let mut counts = self.counts.lock();
        counts.change(share.token.take().as_ref(), share.bytes, 0);
        let of_token = token.and_then(|token| counts.of_tokens.get(token)).copied().unwrap_or(0);
        let fits = counts.total + share.bytes <= self.max
            && (token.is_none() || of_token + share.bytes <= self.max / 2);
        share.token = token.filter(|_| fits).cloned();
        counts.change(share.token.as_ref(), 0, share.bytes);
        fits
    }
}

impl Counts {
    /// A share of this token has so many bytes in place of those before.
    fn change(&mut self, token: Option<&Arc<str>>, before: usize, after: usize) {
        self.total = self.total + after - before;
        let Some(token) = token else { return };
        let of_token = self.of_tokens.entry(Arc::clone(token)).or_default();
        *of_token = *of_token + after - before;
        if *of_token == 0 {
            self.of_tokens.remove(token);
        }
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
        self.counts.lock().change(self.token.as_ref(), self.bytes, bytes);
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

    fn is_exceeded(owned: &OwnedBytes) -> bool {
        owned.counts.lock().total > owned.max
    }

    #[test]
    fn a_plan_has_its_bytes_until_its_share_is_dropped() {
        let owned = OwnedBytes::new(2 * besides() + 100);
        let first = owned.reserve(&plan(60), None).expect("there is room");
        assert!(owned.reserve(&plan(41), None).is_none());
        let second = owned.reserve(&plan(40), None).expect("what was refused takes no room");
        drop(first);
        assert!(owned.reserve(&plan(60), None).is_some());
        // A plan that is taken over is owned all the same, and keeps others from being started.
        let taken_over = owned.share(&plan(61));
        assert!(is_exceeded(&owned) && owned.reserve(&plan(1), None).is_none());
        drop((second, taken_over));
        assert!(!is_exceeded(&owned));
    }

    #[test]
    fn a_token_starts_plans_of_half_the_bytes_and_those_that_are_taken_over_are_nobodys() {
        let (owned, plan) = (OwnedBytes::new(4 * (besides() + 100)), plan(100));
        let [one, other] = ["one", "other"].map(Arc::<str>::from);
        let mut left = owned.share(&plan);
        let first = owned.reserve(&plan, Some(&one)).expect("what is taken over is not its own");
        let second = owned.reserve(&plan, Some(&one)).expect("it is half");
        assert!(owned.reserve(&plan, Some(&one)).is_none());
        assert!(!owned.may_start(&mut left, Some(&one)));
        for _ in 0..2 {
            assert!(owned.may_start(&mut left, Some(&other)), "it counts once");
        }
        let last = owned.reserve(&plan, Some(&other)).expect("what is refused takes no room");
        drop(first);
        assert!(owned.may_start(&mut left, Some(&one)), "it is another's then");
        assert!(owned.reserve(&plan, Some(&one)).is_none());
        assert!(owned.reserve(&plan, Some(&other)).is_some());
        drop((left, second, last));
        assert!(owned.counts.lock().of_tokens.is_empty());
        let all: Vec<_> = std::iter::from_fn(|| owned.reserve(&plan, None)).collect();
        assert_eq!(all.len(), 4, "without tokens a caller may have everything");
    }

    #[test]
    fn stages_count_with_all_that_is_asked_of_them() {
        let label = Label::parse(&"l".repeat(LABEL_CHARS_MAX)).unwrap();
        let needs = Requirements { requires: vec![label; JOB_LABELS_MAX], ..Requirements::default() };
        let stage = |n: usize| StageSpec { needs: needs.clone(), ..StageSpec::new(n.to_string(), "1") };
        let plan = plan_of((0..PLAN_STAGES_MAX).map(stage).collect());
        assert!(OwnedBytes::new(100_000).reserve(&plan, None).is_none());
    }

    #[test]
    fn the_context_of_a_checkpoint_counts_in_place_of_the_one_before() {
        let (owned, before) = (OwnedBytes::new(besides() + of_text("") + 100), plan(50));
        let mut share = owned.share(&before);
        let mut last = before;
        for (length, expected) in [(50, false), (51, true), (10, false)] {
            let mut next = last.clone();
            let context = Arc::from("1".repeat(length));
            Arc::make_mut(&mut next.tasks[0]).checkpoint =
                Some(Checkpoint { version: 1, completed: 1, context });
            share.follow(&last, &next, &[0]);
            assert_eq!(is_exceeded(&owned), expected, "{length}");
            last = next;
        }
    }
}
