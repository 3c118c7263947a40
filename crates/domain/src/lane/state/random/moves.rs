//! What moves jobs that wait: from one lane to another, from one owner to the next, and from those that are delayed to the
//! others. And where attempts are of which nothing is heard.

use super::World;
use crate::job::{Attempt, Due, PromotedJob, State};
use crate::lane::jobs::group_of;
use crate::lane::messages::{Command, CommitFailure, NodeFound};
use crate::lane::testing::{settings, submission};
use crate::lane::{LaneSettings, LaneState};
use crate::{JobId, Token};

impl World {
    /// The owner gets `Stop` while submissions and results go on coming. It ends with what is under way, and another one
    /// begins.
    pub(super) fn hand_on(&mut self) {
        self.has_stopped = false;
        self.give(Command::Stop);
        for _ in 0..1_000 {
            if self.has_stopped {
                break;
            }
            if self.loads > 0 {
                self.load();
            }
            self.submitted.insert(self.next);
            self.give(Command::Submit(vec![submission(self.next, Due::Now, None, self.now)]));
            assert!(!self.submitted.contains(&self.next), "it takes nothing in");
            self.next += 1;
            self.work(false);
            self.go_on();
            assert!(self.queue.is_empty(), "it lets no job wait");
        }
        assert!(self.has_stopped && self.is_quiet() && self.loads == 0, "it does not stop");
        let effects = self.lane.end();
        self.take(effects);
        assert!(self.submitted.is_empty() && self.cancelling.is_empty(), "somebody waits still");
        let lane = self.lane.lane.clone();
        let settings = LaneSettings { waiting: self.memory.clone(), ..settings(1) };
        self.lane = LaneState::new(lane, Token::new(self.token), self.is_session, settings, self.now);
        // Their answers are nobody's.
        self.pages.clear();
        self.searches.clear();
        self.stranded = None;
        (self.flushes, self.loads) = (0, 1);
        self.load();
    }

    /// All that is under way comes further, and nothing fails.
    pub(super) fn go_on(&mut self) {
        self.flush();
        self.look_for_nodes();
        self.look_for_slots();
        self.find(100);
        self.read(false);
        self.page(false);
        self.transfer(false);
        self.promote(false);
        self.write_next(false);
        self.answer();
    }

    /// Of attempts of which nothing is heard it is found out where they are.
    fn look_for_nodes(&mut self) {
        let silent = std::mem::take(&mut self.silent).into_iter();
        let found = silent.map(|(id, attempt)| {
            let has_it = self.at_nodes.get(&id).is_some_and(|(there, _)| *there == attempt);
            let found = match self.rows[&id].live.newest.state {
                State::Running => NodeFound::Running,
                _ if has_it => NodeFound::There,
                _ => NodeFound::Gone,
            };
            (id, attempt, found)
        });
        let found: Vec<_> = found.collect();
        if !found.is_empty() {
            let effects = self.lane.node_looked_for(found, self.now);
            self.take(effects);
        }
    }

    /// The bus says which of the attempts that were asked for have no slot.
    pub(super) fn look_for_slots(&mut self) {
        let Some(nodes) = self.stranded.take() else { return };
        let asked = nodes.into_iter().flat_map(|(_, attempts)| attempts);
        let has_slot =
            |id: &JobId, of: &Attempt| self.at_nodes.get(id).is_some_and(|(attempt, _)| attempt == of);
        let lost = asked.filter(|(id, attempt, ..)| !has_slot(id, attempt));
        let lost = lost.map(|(id, attempt, state, _)| (id, attempt, state, false)).collect();
        let effects = self.lane.stranded_read(lost, self.now);
        self.take(effects);
    }

    /// The ledger moves jobs to another lane, or does not, or nobody knows. They are over for this lane.
    pub(super) fn transfer(&mut self, may_fail: bool) {
        let Some(jobs) = self.leaving.take() else { return };
        let fails = may_fail && self.chance(20);
        let mut moved = Vec::new();
        if !fails || self.chance(50) {
            for id in jobs {
                let row = self.rows.get_mut(&id).unwrap();
                let waits = !row.is_finished && row.live.placed.is_none();
                if waits && row.due.is_none_or(|due| due <= self.now) {
                    row.is_finished = true;
                    moved.push(id);
                }
            }
        }
        let answer = if fails { Err(CommitFailure::Unknown) } else { Ok(moved) };
        let effects = self.lane.transferred(answer, self.now);
        self.take(effects);
    }

    /// Jobs that are due wait from now on, or do not, or nobody knows.
    pub(super) fn promote(&mut self, may_fail: bool) {
        if !std::mem::take(&mut self.is_promoting) {
            return;
        }
        let fails = may_fail && self.chance(20);
        let mut promoted = Vec::new();
        if !fails || self.chance(50) {
            let now = self.now;
            let waits = self.rows.values_mut().filter(|row| !row.is_finished && row.live.placed.is_none());
            for row in waits.filter(|row| row.due.is_some_and(|due| due <= now)) {
                (row.due, row.live.due_at) = (None, None);
                let (job, priority) = (row.live.id, row.live.spec.priority);
                promoted.push(PromotedJob { job, priority, group: group_of(&row.live.spec) });
            }
        }
        let answer = if fails { Err(CommitFailure::Unknown) } else { Ok(promoted) };
        let effects = self.lane.promoted(answer, self.now);
        self.take(effects);
    }
}
