//! What waits to be sent to other instances, in a queue for each. Calls to one instance follow each other; an instance whose
//! inbox does not answer holds up nothing that is for another. Pure.

use std::collections::HashMap;

use domain::InstanceId;

/// What waits to be sent, in a queue for each instance.
#[derive(Debug)]
pub(super) struct InstanceQueues<T> {
    queues: HashMap<InstanceId, Queue<T>>,
    /// How much may wait for one instance.
    waiting_max: usize,
}

#[derive(Debug)]
struct Queue<T> {
    waiting: Vec<T>,
    /// A call is under way, and the next one waits for it.
    is_busy: bool,
}

impl<T> InstanceQueues<T> {
    /// Queues in which `waiting_max` things may wait for one instance.
    pub(super) fn new(waiting_max: usize) -> Self {
        Self { queues: HashMap::new(), waiting_max }
    }

    /// Something is to be sent; it comes back if too much waits for that instance.
    pub(super) fn add(&mut self, to: InstanceId, what: T) -> Result<(), (InstanceId, T)> {
        if self.queues.get(&to).is_some_and(|queue| queue.waiting.len() >= self.waiting_max) {
            return Err((to, what));
        }
        let queue = self.queues.entry(to).or_insert(Queue { waiting: Vec::new(), is_busy: false });
        queue.waiting.push(what);
        Ok(())
    }

    /// What is to be sent now, in its order: all that waits for each instance to which no call is under way. From now on a call
    /// to each of them is under way.
    pub(super) fn take_ready(&mut self) -> Vec<(InstanceId, Vec<T>)> {
        let ready = self.queues.iter_mut().filter(|(_, queue)| !queue.is_busy);
        let ready = ready.map(|(to, queue)| {
            queue.is_busy = true;
            (to.clone(), std::mem::take(&mut queue.waiting))
        });
        ready.collect()
    }

    /// The call to this instance is answered, or given up.
    pub(super) fn answered(&mut self, to: &InstanceId) {
        let Some(queue) = self.queues.get_mut(to) else { return };
        queue.is_busy = false;
        if queue.waiting.is_empty() {
            self.queues.remove(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::fixture::instance;

    #[test]
    fn calls_to_one_instance_follow_each_other_and_hold_up_no_other() {
        let mut queues = InstanceQueues::new(2);
        queues.add(instance("a"), 1).unwrap();
        queues.add(instance("a"), 2).unwrap();
        assert_eq!(queues.add(instance("a"), 3), Err((instance("a"), 3)), "too much waits");
        assert_eq!(queues.take_ready(), [(instance("a"), vec![1, 2])]);
        queues.add(instance("a"), 4).unwrap();
        queues.add(instance("b"), 5).unwrap();
        assert_eq!(queues.take_ready(), [(instance("b"), vec![5])], "the call to the other one is under way");
        queues.answered(&instance("b"));
        queues.answered(&instance("a"));
        queues.answered(&instance("unknown"));
        assert_eq!(queues.take_ready(), [(instance("a"), vec![4])]);
        queues.answered(&instance("a"));
        assert!(queues.queues.is_empty(), "instances come and go");
    }
}
