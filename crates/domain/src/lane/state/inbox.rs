//! The commands that are in no round yet, in their order; which jobs they are about, and how many submissions they have.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::written_job;
use crate::JobId;
use crate::lane::messages::{Callers, Command};

/// The commands of one lane that are in no round yet.
pub(super) struct Inbox<C: Callers> {
    commands: VecDeque<Command<C>>,
    /// How many of them are about each job.
    named: HashMap<JobId, usize>,
    /// How many of them submit jobs, and how many jobs they submit.
    submit_commands: usize,
    submissions: usize,
}

impl<C: Callers> Inbox<C> {
    pub(super) fn new() -> Self {
        Self { commands: VecDeque::new(), named: HashMap::new(), submit_commands: 0, submissions: 0 }
    }

    /// How many submissions and other commands there are.
    pub(super) fn waiting(&self) -> usize {
        self.submissions + self.commands.len() - self.submit_commands
    }

    pub(super) const fn submissions(&self) -> usize {
        self.submissions
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Whether one of them cancels this job, has its result or tells of an attempt of it.
    pub(super) fn names(&self, job: JobId) -> bool {
        self.named.contains_key(&job)
    }

    pub(super) fn push_back(&mut self, command: Command<C>) {
        self.count(&command);
        self.commands.push_back(command);
    }

    /// Puts commands back, which are the first again.
    pub(super) fn put_back(&mut self, first: impl DoubleEndedIterator<Item = Command<C>>) {
        for command in first.rev() {
            self.count(&command);
            self.commands.push_front(command);
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<Command<C>> {
        let command = self.commands.pop_front()?;
        if let Command::Submit(new) = &command {
            self.submit_commands -= 1;
            self.submissions -= new.len();
        }
        if let Some(job) = written_job(&command)
            && let Entry::Occupied(mut count) = self.named.entry(job)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(command)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Command<C>> {
        self.named.clear();
        (self.submit_commands, self.submissions) = (0, 0);
        self.commands.drain(..)
    }

    fn count(&mut self, command: &Command<C>) {
        if let Command::Submit(new) = command {
            self.submit_commands += 1;
            self.submissions += new.len();
        }
        if let Some(job) = written_job(command) {
            *self.named.entry(job).or_default() += 1;
        }
    }
}
