//! What a node has: attempts that it runs, and results that nobody has settled. Pure.

use std::collections::BTreeMap;

use super::frames::Attempt;

/// The attempts that a node lists: `W` is what it knows of one that runs, `R` of one whose result it owes.
#[derive(Debug)]
pub struct Attempts<W, R>(BTreeMap<Attempt, Held<W, R>>);

/// An attempt that a node has.
#[derive(Debug, PartialEq, Eq)]
pub enum Held<W, R> {
    /// It runs.
    Running(W),
    /// It is over, and its result is neither `committed` nor `stale` yet.
    Owed(R),
}

impl<W, R> Default for Attempts<W, R> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<W, R> Attempts<W, R> {
    /// All of them, as `hello` and `heartbeat` list them.
    pub fn listed(&self) -> impl Iterator<Item = Attempt> {
        self.0.keys().copied()
    }

    /// Whether it has this one.
    #[must_use]
    pub fn has(&self, attempt: Attempt) -> bool {
        self.0.contains_key(&attempt)
    }

    /// Those that run.
    pub fn running(&self) -> impl Iterator<Item = (Attempt, &W)> {
        self.0.iter().filter_map(|(attempt, held)| match held {
            Held::Running(work) => Some((*attempt, work)),
            Held::Owed(_) => None,
        })
    }

    /// The results that nobody has settled: a node that connects sends them again.
    pub fn owed(&self) -> impl Iterator<Item = (Attempt, &R)> {
        self.0.iter().filter_map(|(attempt, held)| match held {
            Held::Running(_) => None,
            Held::Owed(result) => Some((*attempt, result)),
        })
    }

    /// It begins to run this one.
    pub fn begin(&mut self, attempt: Attempt, work: W) {
        self.0.insert(attempt, Held::Running(work));
    }

    /// This one is over, with this result.
    pub fn end(&mut self, attempt: Attempt, result: R) {
        self.0.insert(attempt, Held::Owed(result));
    }

    /// `cancel`: it stops this one, if it runs, and says no more of it. A result is owed all the same.
    pub fn cancel(&mut self, attempt: Attempt) -> Option<W> {
        if !matches!(self.0.get(&attempt), Some(Held::Running(_))) {
            return None;
        }
        match self.0.remove(&attempt) {
            Some(Held::Running(work)) => Some(work),
            _ => None,
        }
    }

    /// `committed` or `stale`: it forgets this one. What it had.
    pub fn settle(&mut self, attempt: Attempt) -> Option<Held<W, R>> {
        self.0.remove(&attempt)
    }

    /// It dies with all that it has.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_listed_until_its_result_is_settled() {
        let (first, second) = (Attempt { job: 7, number: 1 }, Attempt { job: 7, number: 2 });
        let mut attempts = Attempts::<&str, &str>::default();
        attempts.begin(first, "work");
        assert_eq!(attempts.running().collect::<Vec<_>>(), [(first, &"work")]);
        attempts.end(first, "result");
        assert_eq!(attempts.cancel(first), None, "a result is owed all the same");
        assert_eq!(attempts.owed().collect::<Vec<_>>(), [(first, &"result")]);
        attempts.begin(second, "more");
        assert_eq!(attempts.listed().collect::<Vec<_>>(), [first, second]);
        assert_eq!(attempts.settle(first), Some(Held::Owed("result")));
        assert_eq!((attempts.cancel(second), attempts.cancel(second)), (Some("more"), None));
        assert_eq!((attempts.settle(second), attempts.has(second)), (None, false));
        attempts.begin(second, "again");
        attempts.clear();
        assert_eq!(attempts.listed().count(), 0);
    }
}
