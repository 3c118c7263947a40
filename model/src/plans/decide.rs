//! What an owner decides: a task's row and lock go in, and what is to be written comes out, as in `domain::plan`. What must
//! never live here: the ledger, and whether the decision may still be written.

use super::STAGES;
use super::command::Command;
use super::rules::{Rules, Takeover};
use super::state::{JobNumber, PlanRows, Record, Row, Stage, Status, Token};

/// What becomes of the tenant's lock in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockChange {
    /// Nothing.
    None,
    /// The task takes it, if it is to be had.
    Take,
    /// The task gives it back.
    Free,
    /// The owner knows now that the task does not have it.
    Forget,
}

/// What a step writes.
pub(super) struct Decision {
    /// The row.
    pub next: Row,
    /// The token at which the task must have its lock.
    pub claims: Option<Token>,
    /// What becomes of the lock.
    pub lock: LockChange,
    /// The stage that begins.
    pub begins: Option<u8>,
    /// Whether it writes the next checkpoint.
    pub is_checkpoint: bool,
}

/// What follows from a command; `None` where it changes nothing or is refused. The jobs say how those ended that the
/// command is about; `new_job` is the number of the one that a stage begins with.
pub(super) fn decide(
    rules: &Rules,
    (row, lock): (Row, Option<Token>),
    command: Command,
    plan: &PlanRows,
    new_job: JobNumber,
) -> Option<Decision> {
    let mut builder = StepBuilder {
        rules,
        known: lock,
        new_job,
        decision: Decision {
            next: row,
            claims: None,
            lock: LockChange::None,
            begins: None,
            is_checkpoint: false,
        },
    };
    builder.apply(command, plan)?;
    if command != Command::TakenOver {
        builder.advance();
    }
    let mut decision = builder.decision;
    if decision.next == row && decision.lock == LockChange::None {
        return None;
    }
    decision.next.version = row.version + 1;
    Some(decision)
}

struct StepBuilder<'a> {
    rules: &'a Rules,
    /// The lock that the owner knows.
    known: Option<Token>,
    new_job: JobNumber,
    decision: Decision,
}

impl StepBuilder<'_> {
    fn row(&mut self) -> &mut Row {
        &mut self.decision.next
    }

    fn apply(&mut self, command: Command, plan: &PlanRows) -> Option<()> {
        let Row { status, stage, waits_for, .. } = self.decision.next;
        match command {
            Command::Advance => {}
            Command::TakenOver => self.taken_over(),
            Command::StageEnded => {
                let job = stage.in_flight()?;
                match plan.job(job).record {
                    Record::Open => return None,
                    _ if self.rules.end_wants_lock && self.known.is_none() => self.interrupt(),
                    Record::Succeeded => self.complete(),
                    Record::GivenUp => {
                        self.decision.claims = self.known;
                        (self.row().stage, self.row().status) = (Stage::Failed, Status::Failed);
                        // Its attempt may still run.
                        self.row().waits_for = self.waits(job);
                    }
                }
            }
            Command::OlderEnded => {
                waits_for.filter(|older| plan.is_over(*older))?;
                self.row().waits_for = None;
                if status.is_over() {
                    // The lock that it took for the word about its last stage.
                    self.end(status);
                }
            }
            Command::LockLost => {
                self.known?;
                (self.known, self.decision.lock) = (None, LockChange::Forget);
                if status.needs_lock() {
                    self.interrupt();
                }
            }
            Command::Resume => {
                if status != Status::Paused {
                    return None;
                }
                self.row().status = Status::Pending;
                self.decision.claims = self.known;
            }
            Command::ResolveDone | Command::ResolveNotDone => {
                let Stage::Unknown(job) = stage else { return None };
                self.decision.claims = self.known;
                self.row().waits_for = self.waits(job);
                if command == Command::ResolveDone {
                    if self.rules.end_wants_lock && self.known.is_none() {
                        self.decision.lock = LockChange::Take;
                    }
                    self.complete();
                } else {
                    self.row().stage = Stage::Pending;
                }
            }
            Command::Retry => {
                use Status::{Cancelled, Failed, Interrupted, Paused};
                let needs_word = self.rules.retry_wants_word && self.decision.next.wants_word();
                if needs_word || !matches!(status, Failed | Interrupted | Paused | Cancelled) {
                    return None;
                }
                self.row().waits_for = stage.in_flight().or(waits_for).and_then(|older| self.waits(older));
                (self.row().stage, self.row().status) = (Stage::Pending, Status::Pending);
                // The lock is taken anew, with a token that no attempt before has; nothing begins without it.
                (self.known, self.decision.lock) = (None, LockChange::Take);
            }
            Command::Cancel => {
                if status.is_over() || stage.in_flight().is_some() {
                    return None;
                }
                self.end(Status::Cancelled);
            }
        }
        Some(())
    }

    fn taken_over(&mut self) {
        let row = self.decision.next;
        let is_lost = self.rules.read_looks_for_lock && self.known.is_none() && row.status.needs_lock();
        match (row.status, row.stage, self.rules.takeover) {
            (Status::Running, Stage::Running(_), Takeover::BeginsAgain) if self.known.is_some() => {
                self.row().stage = Stage::Pending;
                self.begin();
            }
            (Status::Running, ..) => self.interrupt(),
            _ if is_lost => self.interrupt(),
            // Somebody has to say once more that it goes on.
            (Status::Pending, ..) => self.row().status = Status::Paused,
            _ => {}
        }
    }

    /// Begins what may begin.
    fn advance(&mut self) {
        let row = self.decision.next;
        if self.known.is_none() {
            return;
        }
        if row.status == Status::Pending {
            self.row().status = Status::Running;
        }
        let runs = self.decision.next.status == Status::Running;
        if runs && row.stage == Stage::Pending && row.waits_for.is_none() {
            self.begin();
        }
    }

    fn begin(&mut self) {
        self.decision.claims = self.known;
        self.decision.begins = Some(self.decision.next.completed);
        self.row().stage = Stage::Running(self.new_job);
    }

    fn complete(&mut self) {
        self.decision.claims = self.known;
        self.decision.is_checkpoint = true;
        self.row().completed += 1;
        self.row().stage = Stage::Pending;
        if self.row().completed == STAGES {
            self.end(Status::Succeeded);
        }
    }

    fn end(&mut self, status: Status) {
        self.row().status = status;
        self.decision.claims = self.known;
        if self.known.take().is_some() {
            self.decision.lock = LockChange::Free;
        }
    }

    /// Nothing begins. The job in flight may still give a result.
    fn interrupt(&mut self) {
        if let Stage::Running(job) = self.row().stage {
            self.row().stage = Stage::Unknown(job);
        }
        self.row().status = Status::Interrupted;
    }

    fn waits(&self, older: JobNumber) -> Option<JobNumber> {
        self.rules.waits_for_older.then_some(older)
    }
}
