//! Reads of jobs: of a whole one, of the states of some alone, or of unfinished ones with what they carry.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ledger::{Error, Result};

use crate::flaky::lost;

/// How many there were, and what becomes of the next ones.
#[derive(Default)]
pub struct JobReads {
    /// So many of the next reads of a whole job fail.
    pub failing: AtomicUsize,
    /// Reads of states are never answered.
    pub states_stall: AtomicBool,
    /// Reads of what unfinished jobs carry are never answered.
    pub unfinished_stall: AtomicBool,
    of_whole: AtomicUsize,
    of_settled: AtomicUsize,
    of_states: AtomicUsize,
    of_unfinished: AtomicUsize,
}

impl JobReads {
    /// A whole job is to be read.
    pub fn of_whole(&self) -> Result<()> {
        self.of_whole.fetch_add(1, Ordering::SeqCst);
        let left = |left: usize| left.checked_sub(1);
        match self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Ok(_) => Err(Error::unavailable(lost())),
            Err(_) => Ok(()),
        }
    }

    /// A whole job is to be read, and to be what a standby has.
    pub fn of_settled(&self) -> Result<()> {
        self.of_settled.fetch_add(1, Ordering::SeqCst);
        self.of_whole()
    }

    /// The states of some jobs are to be read.
    pub async fn of_states(&self) {
        self.of_states.fetch_add(1, Ordering::SeqCst);
        if self.states_stall.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// What some unfinished jobs carry is to be read.
    pub async fn of_unfinished(&self) {
        self.of_unfinished.fetch_add(1, Ordering::SeqCst);
        if self.unfinished_stall.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// How often unfinished jobs were read with what they carry.
    pub fn unfinished(&self) -> usize {
        self.of_unfinished.load(Ordering::SeqCst)
    }

    /// How many jobs were read that were to be what a standby has.
    pub fn settled(&self) -> usize {
        self.of_settled.load(Ordering::SeqCst)
    }

    /// How many whole jobs were read, and how often states.
    pub fn counted(&self) -> (usize, usize) {
        (self.of_whole.load(Ordering::SeqCst), self.of_states.load(Ordering::SeqCst))
    }
}
