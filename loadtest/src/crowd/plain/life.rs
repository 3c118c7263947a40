//! What a plain node has: attempts that it runs, and results that nobody has confirmed. No socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::frame;
use crate::crowd::diary::now_us;
use crate::crowd::{Chore, Diary, Line, Run, Said, Wrote};

/// One in so many dispatches is not taken, and one in so many is acknowledged by its result alone.
const UNWILLING: u32 = 50;
const TACITURN: u32 = 20;

pub(super) struct Life {
    node: String,
    held: BTreeMap<Run, Held>,
    diary: Arc<Mutex<Diary>>,
    dice: StdRng,
}

enum Held {
    /// Until then, if it ends by itself; and what it is.
    Runs(Option<Instant>, Chore),
    /// Its result, as the frame that says so.
    Owed(String),
}

impl Life {
    pub(super) fn new(node: String, diary: Arc<Mutex<Diary>>, dice: StdRng) -> Self {
        Self { node, held: BTreeMap::new(), diary, dice }
    }

    /// What `hello` and `heartbeat` list.
    pub(super) fn listed(&self) -> Value {
        self.held.keys().map(of).collect()
    }

    /// The results that nobody has confirmed.
    pub(super) fn owed(&self) -> Vec<String> {
        let owed = self.held.values().filter_map(|held| match held {
            Held::Owed(frame) => Some(frame.clone()),
            Held::Runs(..) => None,
        });
        owed.collect()
    }

    /// When the next run ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let ends = self.held.values().filter_map(|held| match held {
            Held::Runs(end, _) => *end,
            Held::Owed(_) => None,
        });
        ends.min()
    }

    pub(super) fn die(&mut self) {
        self.held.clear();
        self.write(Wrote::Died);
    }

    /// The scheduler has said something of an attempt. What is answered; `None` for what makes no sense.
    pub(super) fn heard(&mut self, said: &Value) -> Option<Vec<String>> {
        let run = Run { job: said["job"].as_str()?.to_owned(), attempt: said["attempt"].as_u64()? };
        match said["type"].as_str()? {
            "dispatch" => Some(self.dispatched(run, said)),
            "cancel" => {
                if let Some(Held::Runs(..)) = self.held.get(&run) {
                    self.held.remove(&run);
                    self.write(Wrote::Ended { run, said: Said::Nothing });
                }
                Some(vec![])
            }
            "committed" | "stale" => {
                match self.held.remove(&run) {
                    Some(Held::Runs(..)) => self.write(Wrote::Ended { run, said: Said::Nothing }),
                    Some(Held::Owed(_)) => self.write(Wrote::Settled(run)),
                    None => {}
                }
                Some(vec![])
            }
            _ => None,
        }
    }

    fn dispatched(&mut self, run: Run, said: &Value) -> Vec<String> {
        let ack = frame("ack", of(&run));
        if self.held.contains_key(&run) {
            return vec![ack];
        }
        if self.dice.random_ratio(1, UNWILLING) {
            let mut reject = of(&run);
            reject["reason"] = json!("unable");
            return vec![frame("reject", reject)];
        }
        let place = said["session"].as_str().zip(said["seq"].as_u64());
        let place = place.map(|(session, seq)| (session.to_owned(), seq));
        self.write(Wrote::Began { run: run.clone(), place });
        let chore = Chore::read(&said["payload"]);
        let hangs = run.attempt <= chore.hangs;
        let end = (!hangs).then(|| Instant::now() + Duration::from_millis(chore.take_ms));
        let mut answer = match chore.take_ms == 0 && !hangs && self.dice.random_ratio(1, TACITURN) {
            true => vec![],
            false => vec![ack],
        };
        if hangs && !answer.is_empty() {
            let mut progress = of(&run);
            progress["percent"] = json!(50);
            answer.push(frame("progress", progress));
        }
        self.held.insert(run, Held::Runs(end, chore));
        answer
    }

    /// Ends what is due; the results.
    pub(super) fn end_due(&mut self) -> Vec<String> {
        let now = Instant::now();
        let is_due = |held: &Held| matches!(held, Held::Runs(Some(end), _) if *end <= now);
        let due: Vec<_> =
            self.held.iter().filter(|(_, held)| is_due(held)).map(|(run, _)| run.clone()).collect();
        due.into_iter().filter_map(|run| self.end(run)).collect()
    }

    fn end(&mut self, run: Run) -> Option<String> {
        let Held::Runs(_, chore) = self.held.get(&run)? else { return None };
        let mut result = of(&run);
        let said = if chore.is_broken || run.attempt <= chore.fails {
            result["ok"] = json!(false);
            result["error"] = json!({ "message": "as it was told", "retryable": !chore.is_broken });
            Said::Failure
        } else {
            let once = self.dice.random::<u64>().to_string();
            let output =
                json!({ "number": chore.number, "by": self.node, "attempt": run.attempt, "once": once });
            result["ok"] = json!(true);
            result["output"] = output.clone();
            Said::Output(output)
        };
        let result = frame("result", result);
        self.held.insert(run.clone(), Held::Owed(result.clone()));
        self.write(Wrote::Ended { run, said });
        Some(result)
    }

    fn write(&self, wrote: Wrote) {
        let line = Line { at_us: now_us(), wrote };
        self.diary.lock().unwrap_or_else(PoisonError::into_inner).lines.push(line);
    }
}

fn of(run: &Run) -> Value {
    json!({ "job": run.job, "attempt": run.attempt })
}
