//! The commands that are in no round yet, in their order, and which jobs they are about.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::written_job;
use crate::JobId;
use crate::lane::messages::{Callers, Command};

/// Of one lane.
pub(super) struct Inbox<C: Callers> {
    commands: VecDeque<Command<C>>,
    /// How many of them are about each job.
    named: HashMap<JobId, usize>,
}

impl<C: Callers> Inbox<C> {
    pub(super) fn new() -> Self {
        Self { commands: VecDeque::new(), named: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.commands.len()
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

    pub(super) fn push_front(&mut self, command: Command<C>) {
        self.count(&command);
        self.commands.push_front(command);
    }

    pub(super) fn pop_front(&mut self) -> Option<Command<C>> {
        let command = self.commands.pop_front()?;
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
        self.commands.drain(..)
    }

    fn count(&mut self, command: &Command<C>) {
        if let Some(job) = written_job(command) {
            *self.named.entry(job).or_default() += 1;
        }
    }
}
