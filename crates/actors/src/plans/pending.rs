//! What waits for a step of a plan.

use std::time::Instant;

use domain::plan::{self, Command, PlanState, PlanStatus, Resolution, Retry, StageEnd, TaskStatus};
use domain::{AuditEntry, JobId, TaskId};
use tokio::sync::oneshot;

use super::{By, Refusal};

/// A command that waits for its commit.
pub(super) struct Pending {
    pub(super) command: Command,
    /// Who asks for it.
    pub(super) by: By,
    pub(super) reply: Option<oneshot::Sender<Result<(), Refusal>>>,
    /// When it came.
    pub(super) since: Instant,
    /// Whether it was taken up before, so that its wait is noted.
    pub(super) was_taken_up: bool,
    /// Whether it shares its step with no other, since a step that it shared was not written.
    pub(super) is_alone: bool,
}

impl Pending {
    /// What the owner itself has to do.
    pub(super) fn own(command: Command) -> Self {
        let (by, since) = (By::default(), Instant::now());
        Self { command, by, reply: None, since, was_taken_up: false, is_alone: false }
    }

    /// What somebody asks for.
    pub(super) fn asked(command: Command, by: By, reply: oneshot::Sender<Result<(), Refusal>>) -> Self {
        Self { by, reply: Some(reply), ..Self::own(command) }
    }

    /// Who asks for it, with what the audit says of it where it is decided on this state.
    pub(super) fn by_on(&self, plan: &PlanState) -> By {
        By { audit: entry(&self.command, &self.by, plan), ..self.by.clone() }
    }

    /// The end of a stage that may share its step with others.
    pub(super) fn shared_end(&self) -> Option<(TaskId, JobId, &StageEnd)> {
        match &self.command {
            Command::StageEnded { task, job, end } if self.reply.is_none() && !self.is_alone => {
                Some((*task, *job, end))
            }
            _ => None,
        }
    }

    /// Whether the one who asked for it waits no more: they may have been answered that the ledger is away. Nobody gives up what
    /// an unlock has to tell the plan: it is done already.
    pub(super) fn is_given_up(&self) -> bool {
        !matches!(self.command, Command::RenewLocks)
            && self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Answers. The caller may be gone.
    pub(super) fn answer(self, answer: Result<(), Refusal>) {
        if let Some(reply) = self.reply {
            let _ = reply.send(answer);
        }
    }
}

/// What the audit says of a command: that an UNKNOWN stage is resolved, or a task retried, and what else an operator does to a
/// plan or a task. Of that, `after` is the status that was asked for.
pub(super) fn entry(command: &Command, by: &By, plan: &PlanState) -> Option<AuditEntry> {
    let author = &by.author;
    let found = |task| plan.place_of(task).map(|place| &plan.tasks[place]);
    let of_plan = |action, after: PlanStatus| {
        (action, format!("plan:{}", plan.id), plan.status().as_str(), Some(after.as_str().to_owned()))
    };
    let of_task = |action, task: TaskId, after: TaskStatus| {
        let before = found(task)?.status.as_str();
        Some((action, format!("task:{task}"), before, Some(after.as_str().to_owned())))
    };
    let (action, subject, before, after) = match command {
        Command::Resolve { task, stage, resolution, .. } => {
            let before = found(*task)?.stages.get(*stage)?.status.as_str();
            let after = match resolution {
                Resolution::Done(_) => "done",
                Resolution::NotDone => "not_done",
            };
            ("resolve_stage", format!("task:{task} stage {}", stage + 1), before, Some(after.to_owned()))
        }
        Command::Retry(task, retry) => {
            ("retry_task", format!("task:{task}"), found(*task)?.status.as_str(), Some(wanted(retry)))
        }
        _ if !by.is_operator => return None,
        Command::Start => of_plan("start_plan", PlanStatus::Running),
        Command::Pause => of_plan("pause_plan", PlanStatus::Paused),
        Command::Resume | Command::ResumeButPaused => of_plan("resume_plan", PlanStatus::Running),
        Command::Cancel => of_plan("cancel_plan", PlanStatus::Cancelled),
        Command::PauseTask(task) => of_task("pause_task", *task, TaskStatus::Paused)?,
        Command::ResumeTask(task) => of_task("resume_task", *task, TaskStatus::Running)?,
        Command::CancelTask(task) | Command::CancelRun(task, _) => {
            of_task("cancel_task", *task, TaskStatus::Cancelled)?
        }
        _ => return None,
    };
    Some(AuditEntry {
        principal: author.principal.clone().unwrap_or_default(),
        action,
        subject,
        before: Some(before.to_owned()),
        after,
        reason: author.reason.clone(),
        request_id: author.request_id.clone(),
    })
}

/// Where a retry continues, and which fields it was given beside. What these hold may be long, or secret.
fn wanted(retry: &Retry) -> String {
    let mut text = match &retry.from {
        plan::From::Checkpoint => "from checkpoint".to_owned(),
        plan::From::Start => "from start".to_owned(),
        plan::From::Version { checkpoint, .. } => format!("from checkpoint_version {}", checkpoint.version),
    };
    let fields = [
        ("context_patch", retry.context.is_some()),
        ("stages", retry.stages.is_some()),
        ("config", retry.config.is_some()),
    ];
    let mut given: Vec<_> =
        fields.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| (*name).to_owned()).collect();
    given.extend(retry.max_attempts.map(|max| format!("max_attempts {max}")));
    if !given.is_empty() {
        text += &format!(", with {}", given.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::plan::{Checkpoint, StageSpec, TaskSpec, TaskState};
    use domain::{PlanId, TenantId};
    use ledger::Author;

    use super::*;

    #[test]
    fn the_audit_has_what_operators_do_to_plans_and_tasks_and_not_what_others_do() {
        let id = TaskId::from_u128(2);
        let spec = TaskSpec::new(TenantId::parse("t").unwrap(), [StageSpec::new("s", "1")]);
        let task = TaskState::new(id, Arc::new(spec));
        let plan = PlanState::new(PlanId::from_u128(1), Arc::default(), vec![task]);
        let author = Author {
            principal: Some("ops".into()),
            request_id: Some("r-1".into()),
            reason: Some("why".into()),
            ..Author::default()
        };
        let by = |is_operator| By { author: author.clone(), is_operator, ..By::default() };
        let (of_plan, of_task) = (format!("plan:{}", plan.id), format!("task:{id}"));
        for (command, action, subject, before, after) in [
            (Command::Start, "start_plan", &of_plan, "CREATED", "RUNNING"),
            (Command::Pause, "pause_plan", &of_plan, "CREATED", "PAUSED"),
            (Command::Resume, "resume_plan", &of_plan, "CREATED", "RUNNING"),
            (Command::ResumeButPaused, "resume_plan", &of_plan, "CREATED", "RUNNING"),
            (Command::Cancel, "cancel_plan", &of_plan, "CREATED", "CANCELLED"),
            (Command::PauseTask(id), "pause_task", &of_task, "PENDING", "PAUSED"),
            (Command::ResumeTask(id), "resume_task", &of_task, "PENDING", "RUNNING"),
            (Command::CancelTask(id), "cancel_task", &of_task, "PENDING", "CANCELLED"),
            (Command::CancelRun(id, 1), "cancel_task", &of_task, "PENDING", "CANCELLED"),
        ] {
            let expected = AuditEntry {
                principal: "ops".into(),
                action,
                subject: subject.clone(),
                before: Some(before.to_owned()),
                after: Some(after.to_owned()),
                reason: Some("why".into()),
                request_id: Some("r-1".into()),
            };
            assert_eq!(entry(&command, &by(true), &plan), Some(expected));
            assert_eq!(entry(&command, &by(false), &plan), None, "{command:?}");
        }
        assert_eq!(entry(&Command::RenewLocks, &by(true), &plan), None, "nobody asks for it");
    }

    #[test]
    fn the_audit_of_a_retry_says_where_it_continues_and_what_it_was_given_beside() {
        let retry = |from| Retry {
            from,
            expect: None,
            context: None,
            stages: None,
            config: None,
            max_attempts: None,
            reason: "r".into(),
        };
        assert_eq!(wanted(&retry(plan::From::Checkpoint)), "from checkpoint");
        assert_eq!(wanted(&retry(plan::From::Start)), "from start");
        let checkpoint = Checkpoint { version: 4, completed: 1, context: "{}".into() };
        let whole = Retry {
            context: Some(r#"{"password":"p"}"#.into()),
            stages: Some([].into()),
            config: Some("1".into()),
            max_attempts: Some(3),
            ..retry(plan::From::Version { checkpoint, stages: [].into() })
        };
        let told = "from checkpoint_version 4, with context_patch, stages, config, max_attempts 3";
        assert_eq!(wanted(&whole), told);
    }

    #[test]
    fn a_command_is_given_up_with_its_caller_but_for_what_is_done_already() {
        for (command, is_given_up) in [(Command::Resume, true), (Command::RenewLocks, false)] {
            let (reply, answer) = oneshot::channel();
            let pending = Pending::asked(command.clone(), By::default(), reply);
            assert!(!pending.is_given_up(), "{command:?}");
            drop(answer);
            assert_eq!(pending.is_given_up(), is_given_up, "{command:?}");
        }
        assert!(!Pending::own(Command::Resume).is_given_up());
    }
}
