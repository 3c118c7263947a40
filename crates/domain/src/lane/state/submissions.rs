//! The submissions that are in no round yet, in their order. A command may have more of them than one round takes in: those
//! that are left are the rest of a command that was begun.

use std::collections::VecDeque;

use crate::lane::messages::{Callers, PendingSubmission};

/// Of one lane.
pub(super) struct Submissions<C: Callers> {
    waiting: VecDeque<PendingSubmission<C>>,
    /// So many of the first are of commands that were begun: a round has looked at one of their submissions.
    begun: usize,
    /// How many submissions each of the commands behind them has.
    commands: VecDeque<usize>,
}

impl<C: Callers> Submissions<C> {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::new(), begun: 0, commands: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingSubmission<C>> {
        self.waiting.iter()
    }

    /// Adds the submissions of one command.
    pub(super) fn push(&mut self, new: Vec<PendingSubmission<C>>) {
        if !new.is_empty() {
            self.commands.push_back(new.len());
            self.waiting.extend(new);
        }
    }

    /// The first one, whose command is begun with that.
    pub(super) fn pop_front(&mut self) -> Option<PendingSubmission<C>> {
        if self.begun == 0 {
            self.begun = self.commands.pop_front()?;
        }
        self.begun -= 1;
        self.waiting.pop_front()
    }

    /// Puts submissions back, which are the first again.
    pub(super) fn put_back(&mut self, first: impl DoubleEndedIterator<Item = PendingSubmission<C>>) {
        for submission in first.rev() {
            self.waiting.push_front(submission);
            self.begun += 1;
        }
    }

    /// Takes out all of them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PendingSubmission<C>> {
        self.begun = 0;
        self.drain_not_begun()
    }

    /// Takes out those of the commands of which no round has looked at any.
    pub(super) fn drain_not_begun(&mut self) -> impl Iterator<Item = PendingSubmission<C>> {
        self.commands.clear();
        self.waiting.drain(self.begun..)
    }
}
