//! The commands that wait, and how many nonces they ask for together.

use std::collections::VecDeque;

use super::command::QueuedCommand;

/// Commands in the order of their numbers.
pub(super) struct WaitingCommands<R> {
    queue: VecDeque<QueuedCommand<R>>,
    /// Nonces that they may touch.
    nonces: usize,
}

impl<R> WaitingCommands<R> {
    pub(super) const fn new() -> Self {
        Self { queue: VecDeque::new(), nonces: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) const fn nonces(&self) -> usize {
        self.nonces
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuedCommand<R>> {
        self.queue.iter()
    }

    pub(super) fn push_back(&mut self, queued: QueuedCommand<R>) {
        self.nonces += queued.command.nonces();
        self.queue.push_back(queued);
    }

    pub(super) fn push_front(&mut self, queued: QueuedCommand<R>) {
        self.nonces += queued.command.nonces();
        self.queue.push_front(queued);
    }

    pub(super) fn pop_front(&mut self) -> Option<QueuedCommand<R>> {
        let queued = self.queue.pop_front()?;
        self.nonces -= queued.command.nonces();
        Some(queued)
    }

    /// Takes all of them out.
    pub(super) fn take(&mut self) -> VecDeque<QueuedCommand<R>> {
        self.nonces = 0;
        std::mem::take(&mut self.queue)
    }

    /// Puts commands back to where they were.
    pub(super) fn put_back(&mut self, commands: impl IntoIterator<Item = QueuedCommand<R>>) {
        let waiting = self.queue.len();
        for queued in commands {
            self.push_back(queued);
        }
        if self.queue.len() > waiting {
            self.queue.make_contiguous().sort_by_key(|queued| queued.number);
        }
    }

    /// Gives back the room for more than so many.
    pub(super) fn shrink_to(&mut self, commands_max: usize) {
        if self.queue.capacity() > commands_max {
            self.queue.shrink_to(commands_max);
        }
    }
}
