//! What was asked of a plan.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::status::{OnFailure, OnUnknown};
use crate::id::{Invalid, TenantId};
use crate::job::{Backoff, Requirements};
use crate::limits::{
    JOB_TIMEOUT_MS_MAX, MAX_ATTEMPTS_MAX, PAYLOAD_BYTES_MAX, PLAN_CONCURRENCY_DEFAULT, PLAN_CONCURRENCY_MAX,
    PLAN_NAME_CHARS_MAX, PLAN_STAGES_MAX, PLAN_TASKS_MAX, PLAN_TIMEOUT_MS_DEFAULT, PLAN_TIMEOUT_MS_MAX,
    STAGE_TIMEOUT_MS_DEFAULT, TASK_CONFIG_BYTES_MAX, TASK_TIMEOUT_MS_DEFAULT,
};

/// What was asked of a plan, without its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSpec {
    /// A name for people.
    pub name: Option<Arc<str>>,
    /// How many tasks may run at once, 1 to [`PLAN_CONCURRENCY_MAX`].
    pub max_concurrency: u32,
    /// What happens to the other tasks once one failed or was interrupted.
    pub on_failure: OnFailure,
    /// How long after its start the plan starts no further task, in milliseconds.
    pub timeout_ms: u64,
}

/// What was asked of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// The tenant that it is for. One plan has one task for a tenant.
    pub tenant: TenantId,
    /// A name for people.
    pub name: Option<Arc<str>>,
    /// The tenant's configuration, which every stage is given: JSON text.
    pub config: Option<Arc<str>>,
    /// How long one run may take, in milliseconds.
    pub timeout_ms: u64,
    /// What is done, in order: 1 to [`PLAN_STAGES_MAX`].
    pub stages: Arc<[StageSpec]>,
}

/// What was asked of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSpec {
    /// Its name, which no other stage of the task has.
    pub name: Arc<str>,
    /// The input that the node gets: JSON text.
    pub payload: Arc<str>,
    /// Who may run it.
    pub needs: Requirements,
    /// How long one attempt may take, in milliseconds.
    pub timeout_ms: u64,
    /// How many attempts may fail before the stage has failed.
    pub max_attempts: u32,
    /// The pause between two attempts.
    pub backoff: Backoff,
    /// Whether a retry may run it again without knowing what it did.
    pub on_unknown: OnUnknown,
}

impl Default for PlanSpec {
    fn default() -> Self {
        Self {
            name: None,
            max_concurrency: PLAN_CONCURRENCY_DEFAULT,
            on_failure: OnFailure::StopNew,
            timeout_ms: PLAN_TIMEOUT_MS_DEFAULT,
        }
    }
}

impl TaskSpec {
    /// A task with these stages that asks for nothing else.
    #[must_use]
    pub fn new(tenant: TenantId, stages: impl Into<Arc<[StageSpec]>>) -> Self {
        Self { tenant, name: None, config: None, timeout_ms: TASK_TIMEOUT_MS_DEFAULT, stages: stages.into() }
    }
}

impl StageSpec {
    /// Whether it does what another one does: its name, payload and needs. How patiently it is tried may differ, and so may the
    /// blanks between the parts of its payload.
    #[must_use]
    pub fn does_as(&self, other: &Self) -> bool {
        (&self.name, &self.needs) == (&other.name, &other.needs)
            && without_blanks(&self.payload).eq(without_blanks(&other.payload))
    }

    /// A stage with this payload that asks for nothing else.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, payload: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            payload: payload.into(),
            needs: Requirements::default(),
            timeout_ms: STAGE_TIMEOUT_MS_DEFAULT,
            max_attempts: 1,
            backoff: Backoff::default(),
            on_unknown: OnUnknown::Confirm,
        }
    }
}

/// A field of a plan, a task or a stage that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidAt {
    /// The path of what has the field, counted from 0: `tasks[0].stages[1].`, or nothing.
    pub place: String,
    /// The field, and what would have been right.
    pub invalid: Invalid,
}

impl InvalidAt {
    fn within(self, list: &str, at: usize) -> Self {
        Self { place: format!("{list}[{at}].{}", self.place), ..self }
    }
}

impl From<Invalid> for InvalidAt {
    fn from(invalid: Invalid) -> Self {
        Self { place: String::new(), invalid }
    }
}

impl fmt::Display for InvalidAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.place, self.invalid)
    }
}

impl std::error::Error for InvalidAt {}

/// Checks a plan: the ranges of its numbers, the lengths of its texts, and that no two tasks are for one tenant and no two
/// stages of a task have one name.
///
/// # Errors
/// [`InvalidAt`], naming the field with its task and stage.
pub fn check(plan: &PlanSpec, tasks: &[TaskSpec]) -> Result<(), InvalidAt> {
    name("name", plan.name.as_deref())?;
    range("max_concurrency", u64::from(plan.max_concurrency), 1, u64::from(PLAN_CONCURRENCY_MAX))?;
    range("timeout_ms", plan.timeout_ms, 1, PLAN_TIMEOUT_MS_MAX)?;
    if tasks.is_empty() || tasks.len() > PLAN_TASKS_MAX {
        return invalid("tasks", format!("a list of 1 to {PLAN_TASKS_MAX}"));
    }
    let mut tenants = HashSet::new();
    for (at, task) in tasks.iter().enumerate() {
        let is_new = tenants.insert(&task.tenant);
        check_task(task, is_new).map_err(|refused| refused.within("tasks", at))?;
    }
    Ok(())
}

fn check_task(task: &TaskSpec, is_new_tenant: bool) -> Result<(), InvalidAt> {
    if !is_new_tenant {
        return invalid("tenant", "another one for each task of a plan".to_owned());
    }
    name("name", task.name.as_deref())?;
    range("timeout_ms", task.timeout_ms, 1, PLAN_TIMEOUT_MS_MAX)?;
    if task.config.as_ref().is_some_and(|config| config.len() > TASK_CONFIG_BYTES_MAX) {
        return invalid("config", format!("JSON of at most {TASK_CONFIG_BYTES_MAX} bytes"));
    }
    check_stages(&task.stages)
}

/// Checks the stages of a task.
///
/// # Errors
/// As [`check`].
pub fn check_stages(stages: &[StageSpec]) -> Result<(), InvalidAt> {
    if stages.is_empty() || stages.len() > PLAN_STAGES_MAX {
        return invalid("stages", format!("a list of 1 to {PLAN_STAGES_MAX}"));
    }
    let mut names = HashSet::new();
    for (at, stage) in stages.iter().enumerate() {
        let is_new = names.insert(&stage.name);
        check_stage(stage, is_new).map_err(|refused| refused.within("stages", at))?;
    }
    Ok(())
}

fn check_stage(stage: &StageSpec, is_new_name: bool) -> Result<(), InvalidAt> {
    name("name", Some(&stage.name))?;
    // A stage is resolved by its name in a path, from which normalisation takes these.
    if matches!(&*stage.name, "." | "..") {
        return invalid("name", format!("{}, but not . or .. alone", name_chars()));
    }
    if !is_new_name {
        return invalid("name", "another one for each stage of a task".to_owned());
    }
    if stage.payload.len() > PAYLOAD_BYTES_MAX {
        return invalid("payload", format!("JSON of at most {PAYLOAD_BYTES_MAX} bytes"));
    }
    range("timeout_ms", stage.timeout_ms, 1, JOB_TIMEOUT_MS_MAX)?;
    range("max_attempts", u64::from(stage.max_attempts), 1, u64::from(MAX_ATTEMPTS_MAX))?;
    stage.backoff.check()?;
    Ok(())
}

/// The bytes of a JSON text but for the blanks between its parts: programs that read a file and write it again change those.
fn without_blanks(json: &str) -> impl Iterator<Item = u8> {
    let (mut is_in_text, mut is_escaped) = (false, false);
    json.bytes().filter(move |&byte| {
        let was_in_text = is_in_text;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_in_text,
            b'"' => is_in_text = !is_in_text,
            _ => {}
        }
        was_in_text || !matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
    })
}

fn invalid<E: From<Invalid>>(what: &'static str, expected: String) -> Result<(), E> {
    Err(Invalid { what, expected }.into())
}

fn name(what: &'static str, text: Option<&str>) -> Result<(), Invalid> {
    let fits = |text: &str| {
        let chars = text.chars().count();
        (1..=PLAN_NAME_CHARS_MAX).contains(&chars) && !text.chars().any(char::is_control)
    };
    if text.is_none_or(fits) {
        return Ok(());
    }
    invalid(what, name_chars())
}

fn name_chars() -> String {
    format!("1 to {PLAN_NAME_CHARS_MAX} characters without control characters")
}

fn range(what: &'static str, number: u64, min: u64, max: u64) -> Result<(), Invalid> {
    if (min..=max).contains(&number) { Ok(()) } else { invalid(what, format!("{min} to {max}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str) -> StageSpec {
        StageSpec::new(name, "{}")
    }

    fn task(tenant: &str) -> TaskSpec {
        TaskSpec::new(TenantId::parse(tenant).unwrap(), [stage("a"), stage("b")])
    }

    #[test]
    fn a_stage_does_the_same_however_its_payload_is_laid_out() {
        let does_as = |one: &str, other: &str| StageSpec::new("s", one).does_as(&StageSpec::new("s", other));
        let payload = r#"{"sql":"a \"b\\","at":[1,null]}"#;
        let laid_out = payload.replace('{', "{\n  ").replace(':', ": ").replace(',', " ,\r\n\t");
        assert!(does_as(payload, &laid_out), "{laid_out}");
        for other in [
            r#"{"sql":"a\"b\\","at":[1,null]}"#,
            r#"{"sql":"a \" b\\","at":[1,null]}"#,
            r#"{"at":[1,null],"sql":"a \"b\\"}"#,
            r#"{"sql":"a \"b\\","at":[1.0,null]}"#,
        ] {
            assert!(!does_as(payload, other), "{other}");
        }
        assert!(!StageSpec::new("s", "1").does_as(&StageSpec::new("t", "1")));
    }

    #[test]
    fn a_plan_within_its_limits_is_taken() {
        let many: Vec<_> = (0..PLAN_TASKS_MAX).map(|n| task(&n.to_string())).collect();
        assert_eq!(check(&PlanSpec::default(), &many), Ok(()));
        let stages: Vec<_> = (0..PLAN_STAGES_MAX).map(|n| stage(&n.to_string())).collect();
        assert_eq!(check_stages(&stages), Ok(()));
        assert_eq!(check_stages(&["...", ".a", "a."].map(stage)), Ok(()));
    }

    #[test]
    fn every_limit_is_refused_by_the_name_of_its_field() {
        let plan = PlanSpec::default;
        let with = |change: fn(&mut TaskSpec)| {
            let mut task = task("t");
            change(&mut task);
            vec![task]
        };
        let with_stage = |change: fn(&mut StageSpec)| {
            let mut stage = stage("s");
            change(&mut stage);
            vec![TaskSpec::new(TenantId::parse("t").unwrap(), [stage])]
        };
        let long = || Some(Arc::from("x".repeat(PLAN_NAME_CHARS_MAX + 1)));
        for (plan, tasks, what) in [
            (PlanSpec { name: long(), ..plan() }, vec![task("t")], "name"),
            (PlanSpec { name: Some("".into()), ..plan() }, vec![task("t")], "name"),
            (PlanSpec { name: Some("a\nb".into()), ..plan() }, vec![task("t")], "name"),
            (PlanSpec { max_concurrency: 0, ..plan() }, vec![task("t")], "max_concurrency"),
            (
                PlanSpec { max_concurrency: PLAN_CONCURRENCY_MAX + 1, ..plan() },
                vec![task("t")],
                "max_concurrency",
            ),
            (PlanSpec { timeout_ms: 0, ..plan() }, vec![task("t")], "timeout_ms"),
            (PlanSpec { timeout_ms: PLAN_TIMEOUT_MS_MAX + 1, ..plan() }, vec![task("t")], "timeout_ms"),
            (plan(), vec![], "tasks"),
            (plan(), vec![task("t"); PLAN_TASKS_MAX + 1], "tasks"),
            (plan(), vec![task("t"), task("t")], "tenant"),
            (plan(), with(|task| task.name = Some("".into())), "name"),
            (plan(), with(|task| task.timeout_ms = 0), "timeout_ms"),
            (plan(), with(|task| task.config = Some("x".repeat(TASK_CONFIG_BYTES_MAX + 1).into())), "config"),
            (plan(), with(|task| task.stages = [].into()), "stages"),
            (plan(), with(|task| task.stages = vec![stage("s"); PLAN_STAGES_MAX + 1].into()), "stages"),
            (plan(), with(|task| task.stages = [stage("a"), stage("a")].into()), "name"),
            (plan(), with_stage(|stage| stage.name = "".into()), "name"),
            (plan(), with_stage(|stage| stage.name = ".".into()), "name"),
            (plan(), with_stage(|stage| stage.name = "..".into()), "name"),
            (plan(), with_stage(|stage| stage.timeout_ms = JOB_TIMEOUT_MS_MAX + 1), "timeout_ms"),
            (plan(), with_stage(|stage| stage.max_attempts = 0), "max_attempts"),
            (plan(), with_stage(|stage| stage.backoff.max_ms = 0), "backoff.max_ms"),
            (plan(), with_stage(|stage| stage.payload = "x".repeat(PAYLOAD_BYTES_MAX + 1).into()), "payload"),
        ] {
            assert_eq!(check(&plan, &tasks).unwrap_err().invalid.what, what);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_path() {
        let refused = |tasks: &[TaskSpec]| check(&PlanSpec::default(), tasks).unwrap_err().to_string();
        let same_tenant = refused(&[task("a"), task("b"), task("a")]);
        assert_eq!(same_tenant, "tasks[2].tenant must be another one for each task of a plan");
        let same_name = TaskSpec::new(TenantId::parse("b").unwrap(), [stage("a"), stage("a")]);
        let expected = "stages[1].name must be another one for each stage of a task";
        assert_eq!(check_stages(&same_name.stages).unwrap_err().to_string(), expected);
        assert_eq!(refused(&[task("a"), same_name]), format!("tasks[1].{expected}"));
        assert!(refused(&[]).starts_with("tasks must be a list"));
    }
}
