//! What a plain node has: attempts that it runs, and results that nobody has settled. No socket.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fault_nodes::diary::now_us;
use crate::fault_nodes::{Chore, Diary, Line, Run, Said, Stage, Wrote};
use crate::node::attempts::{Attempts, Held};
use crate::node::frames::{Attempt, Messages, Received};

/// One in so many dispatches is not taken, and one in so many is acknowledged by its result alone.
const UNWILLING: u32 = 50;
const TACITURN: u32 = 20;

pub(super) struct Life {
    node: String,
    attempts: Attempts<Work, Ended>,
    diary: Arc<Mutex<Diary>>,
    dice: StdRng,
}

#[derive(Clone)]
struct Work {
    /// When it ends, if it ends by itself.
    ends_at: Option<Instant>,
    chore: Chore,
    /// Of a plan's stage: the run of its task, and which stage it is.
    stage: Option<(u64, u64)>,
}

/// A result that is owed.
enum Ended {
    Output(String),
    Failure { retryable: bool },
}

impl Life {
    pub(super) fn new(node: String, diary: Arc<Mutex<Diary>>, dice: StdRng) -> Self {
        Self { node, attempts: Attempts::default(), diary, dice }
    }

    /// What `hello` and `heartbeat` list.
    pub(super) fn listed(&self) -> impl Iterator<Item = Attempt> {
        self.attempts.listed()
    }

    /// Says the results that nobody has settled.
    pub(super) fn say_owed(&self, messages: &mut Messages) {
        for (attempt, ended) in self.attempts.owed() {
            ended.say(attempt, messages);
        }
    }

    /// When the next run ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.attempts.running().filter_map(|(_, work)| work.ends_at).min()
    }

    pub(super) fn die(&mut self) {
        self.attempts.clear();
        self.write(Wrote::Died);
    }

    /// The scheduler has said something of an attempt; what is answered goes into the messages.
    ///
    /// # Errors
    /// It makes no sense.
    pub(super) fn received(&mut self, frame: &Received<'_>, messages: &mut Messages) -> Result<()> {
        let attempt = frame.attempt()?;
        match frame.kind {
            "dispatch" => self.dispatched(attempt, frame, messages)?,
            "cancel" => {
                if self.attempts.cancel(attempt).is_some() {
                    self.write(Wrote::Ended { run: run(attempt), said: Said::Nothing });
                }
            }
            "committed" | "stale" => self.settled(attempt, frame.kind == "committed")?,
            other => anyhow::bail!("a frame {other:?}"),
        }
        Ok(())
    }

    /// The scheduler has confirmed an attempt, or does not want it. Before it has said a result there is nothing to confirm.
    fn settled(&mut self, attempt: Attempt, is_committed: bool) -> Result<()> {
        let run = run(attempt);
        match self.attempts.settle(attempt) {
            Some(Held::Running(_)) => {
                self.write(Wrote::Ended { run, said: Said::Nothing });
                ensure!(!is_committed, "it is committed, and has not ended");
            }
            Some(Held::Owed(_)) => self.write(Wrote::Settled { run, is_committed }),
            None => {}
        }
        Ok(())
    }

    fn dispatched(&mut self, attempt: Attempt, frame: &Received<'_>, messages: &mut Messages) -> Result<()> {
        if self.attempts.has(attempt) {
            messages.ack(attempt);
            return Ok(());
        }
        if self.dice.random_ratio(1, UNWILLING) {
            messages.reject(attempt, "unable");
            return Ok(());
        }
        let place = frame.session.as_deref().zip(frame.seq);
        let place = place.map(|(session, seq)| (session.to_owned(), seq));
        let stage = frame.stage.map(|stage| serde_json::from_str::<Stage>(stage.get()));
        let stage = stage.transpose().context("the stage of a plan")?;
        let run_and_number = stage.as_ref().map(|stage| (stage.run, stage.number));
        self.write(Wrote::Began { run: run(attempt), place, stage: stage.map(Box::new) });
        let payload: Value = serde_json::from_str(frame.payload.context("a payload")?.get())?;
        let chore = Chore::read(&payload);
        let hangs = u64::from(attempt.number) <= chore.hangs;
        let ends_at = (!hangs).then(|| Instant::now() + Duration::from_millis(chore.take_ms));
        let is_taciturn = chore.take_ms == 0 && !hangs && self.dice.random_ratio(1, TACITURN);
        if !is_taciturn {
            messages.ack(attempt);
        }
        if hangs {
            messages.progress(attempt, 50);
        }
        self.attempts.begin(attempt, Work { ends_at, chore, stage: run_and_number });
        Ok(())
    }

    /// Ends what is due, and says the results.
    pub(super) fn end_due(&mut self, messages: &mut Messages) {
        let now = Instant::now();
        let due = self.attempts.running().filter(|(_, work)| work.ends_at.is_some_and(|at| at <= now));
        let due: Vec<_> = due.map(|(attempt, work)| (attempt, work.clone())).collect();
        for (attempt, work) in due {
            let ended = self.end(attempt, &work);
            ended.say(attempt, messages);
            self.attempts.end(attempt, ended);
        }
    }

    fn end(&mut self, attempt: Attempt, Work { chore, stage, .. }: &Work) -> Ended {
        let number = u64::from(attempt.number);
        let (ended, said) = if chore.is_broken || number <= chore.fails {
            (Ended::Failure { retryable: !chore.is_broken }, Said::Failure)
        } else {
            let once = self.dice.random::<u64>().to_string();
            let mut output =
                json!({ "number": chore.number, "by": self.node, "attempt": number, "once": once });
            if let Some((run, stage)) = stage.filter(|_| !chore.is_silent) {
                output["context"] = json!({ "run": run, "stage": stage, "once": once });
            }
            (Ended::Output(output.to_string()), Said::Output(output))
        };
        self.write(Wrote::Ended { run: run(attempt), said });
        ended
    }

    pub(super) fn write(&self, wrote: Wrote) {
        let line = Line { at_us: now_us(), wrote };
        self.diary.lock().lines.push(line);
    }
}

impl Ended {
    fn say(&self, attempt: Attempt, messages: &mut Messages) {
        match self {
            Self::Output(output) => messages.output(attempt, output),
            Self::Failure { retryable } => messages.failure(attempt, "as it was told", *retryable),
        }
    }
}

/// As the diary names it.
fn run(attempt: Attempt) -> Run {
    Run { job: attempt.job_id(), attempt: u64::from(attempt.number) }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;
    use crate::node::frames;

    fn hear(life: &mut Life, kind: &str, attempt: Attempt) -> Result<()> {
        let text = format!(r#"{{"type":"{kind}",{attempt},"payload":{{"hangs":99}}}}"#);
        let frames = frames::read(&text)?;
        life.received(&frames[0], &mut Messages::new(false))
    }

    #[test]
    fn an_attempt_that_runs_may_be_stale_and_is_not_committed() {
        let diary = Arc::new(Mutex::new(Diary::default()));
        let mut life = Life::new("p-0".to_owned(), Arc::clone(&diary), StdRng::seed_from_u64(7));
        // One or the other is not taken.
        for number in 1..=9 {
            hear(&mut life, "dispatch", Attempt { job: 7, number }).unwrap();
        }
        let taken: Vec<_> = life.listed().collect();
        hear(&mut life, "stale", taken[0]).unwrap();
        assert!(hear(&mut life, "committed", taken[1]).is_err());
        assert_eq!(life.listed().collect::<Vec<_>>(), taken[2..]);
        let diary = diary.lock();
        let ended = |attempt| Wrote::Ended { run: run(attempt), said: Said::Nothing };
        let last = diary.lines.iter().rev().take(2).map(|line| line.wrote.clone()).collect::<Vec<_>>();
        assert_eq!(last, [ended(taken[1]), ended(taken[0])]);
    }
}
