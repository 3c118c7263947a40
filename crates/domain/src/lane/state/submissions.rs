//! The submissions that are in no round yet. Their callers take turns, with one submission each; those of one caller, and all
//! of one session, keep their order. A submission that is larger than its caller's turn takes as many turns as it is large: its
//! caller is passed over afterwards, while others wait.
//!
//! A command, which is one caller's, may have more of them than one round takes in: those that are left are the rest of a command
//! that was begun.

use std::collections::VecDeque;

use crate::lane::limits::{ROUND_BYTES_MAX, ROUND_NEW_JOBS_MAX};
use crate::lane::messages::{Callers, PendingSubmission, Submitter};

/// Bytes of texts that are one turn: a round is full of as many of them as of jobs.
const TURN_BYTES: usize = ROUND_BYTES_MAX / ROUND_NEW_JOBS_MAX;

/// The submissions of one lane that are in no round yet.
pub(super) struct Submissions<C: Callers> {
    /// Whether callers take turns. If not, all of them are one.
    has_turns: bool,
    /// One for each caller with submissions that wait. The first one has its turn.
    lines: VecDeque<Line<C>>,
}

/// What waits of one caller: never nothing.
struct Line<C: Callers> {
    of: Option<Submitter>,
    /// So many bytes the caller has had beyond its turns. It is passed over, with a turn each time, until that is nothing.
    debt: usize,
    waiting: VecDeque<PendingSubmission<C>>,
    /// So many of the first are of commands that were begun: a round has looked at one of their submissions.
    begun: usize,
    /// How many submissions each of the commands behind them has.
    commands: VecDeque<usize>,
}

impl<C: Callers> Submissions<C> {
    pub(super) const fn new(has_turns: bool) -> Self {
        Self { has_turns, lines: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingSubmission<C>> {
        self.lines.iter().flat_map(|line| &line.waiting)
    }

    /// Adds the submissions of one command.
    pub(super) fn push(&mut self, new: Vec<PendingSubmission<C>>) {
        if let Some(first) = new.first() {
            let line = self.line_of(first.submitter);
            line.commands.push_back(new.len());
            line.waiting.extend(new);
        }
    }

    /// The first one of the caller whose turn it is. Its command is begun with that.
    pub(super) fn pop_next(&mut self) -> Option<PendingSubmission<C>> {
        // One that is alone is passed over for itself.
        while let Some(first) = self.lines.front_mut()
            && first.debt > 0
        {
            first.debt = first.debt.saturating_sub(TURN_BYTES);
            self.lines.rotate_left(1);
        }
        let mut line = self.lines.pop_front()?;
        let next = line.pop_front();
        if !line.waiting.is_empty() {
            self.lines.push_back(line);
        }
        next
    }

    /// Puts submissions back, which are the first of their callers again.
    pub(super) fn put_back(&mut self, first: impl DoubleEndedIterator<Item = PendingSubmission<C>>) {
        for submission in first.rev() {
            let line = self.line_of(submission.submitter);
            line.waiting.push_front(submission);
            line.begun += 1;
        }
    }

    /// Takes out all of them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PendingSubmission<C>> {
        self.lines.drain(..).flat_map(|line| line.waiting)
    }

    /// Takes out those of the commands of which no round has looked at any.
    pub(super) fn drain_not_begun(&mut self) -> Vec<PendingSubmission<C>> {
        let mut not_begun = Vec::new();
        for line in &mut self.lines {
            line.commands.clear();
            not_begun.extend(line.waiting.drain(line.begun..));
        }
        self.lines.retain(|line| !line.waiting.is_empty());
        not_begun
    }

    /// The line of a caller, to which something is added at once.
    fn line_of(&mut self, submitter: Option<Submitter>) -> &mut Line<C> {
        let of = submitter.filter(|_| self.has_turns);
        let at = self.lines.iter().position(|line| line.of == of).unwrap_or_else(|| {
            let (waiting, commands) = (VecDeque::new(), VecDeque::new());
            self.lines.push_back(Line { of, debt: 0, waiting, begun: 0, commands });
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }
}

impl<C: Callers> Line<C> {
    fn pop_front(&mut self) -> Option<PendingSubmission<C>> {
        if self.begun == 0 {
            self.begun = self.commands.pop_front()?;
        }
        self.begun -= 1;
        let next = self.waiting.pop_front()?;
        self.debt = next.submission.spec.text_bytes().saturating_sub(TURN_BYTES);
        Some(next)
    }
}
