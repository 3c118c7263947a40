//! What nodes ran, and when they were out of reach, as their diaries say.

use std::collections::HashMap;

use testkit::fault_nodes::{Diary, Run, Said, Stage, Wrote};

/// How long a node that is back may take until it hears that it lost an attempt, or until it has read what lay in its
/// socket.
const HEARS_WITHIN_US: u64 = 2_000_000;
/// How long a node takes at most until it gives up a connection on which it hears nothing: three heartbeats, and some.
const PARTS_WITHIN_US: u64 = 10_000_000;

/// One attempt, as its node wrote it down.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'d> {
    /// The node.
    pub node: &'d str,
    /// The attempt.
    pub run: &'d Run,
    /// What the node was told of the plan whose stage this is.
    pub stage: Option<&'d Stage>,
    /// When it began, in microseconds since 1970.
    pub began_us: u64,
    /// When it ended, with what the node says; nothing if the node died.
    pub ended: Option<(u64, Option<&'d Said>)>,
}

/// From when to when, in microseconds since 1970.
type Interval = (u64, u64);

/// When a node could not be heard. Of a node that does not write down when it is welcome: always.
#[derive(Debug, Default)]
pub struct Absences {
    /// It had no connection, or stood still.
    out: Vec<Interval>,
    /// It stood still.
    still: Vec<Interval>,
}

/// All that a node ran.
#[must_use]
pub fn read(diary: &Diary) -> Vec<Ran<'_>> {
    let mut all = Vec::new();
    let mut running: HashMap<&Run, (Option<&Stage>, u64)> = HashMap::new();
    let ran = |run, (stage, began_us), ended| Ran { node: &diary.node, run, stage, began_us, ended };
    for line in &diary.lines {
        match &line.wrote {
            Wrote::Began { run, stage, .. } => {
                running.insert(run, (stage.as_deref(), line.at_us));
            }
            Wrote::Ended { run, said } => {
                if let Some((run, began)) = running.remove_entry(run) {
                    all.push(ran(run, began, Some((line.at_us, Some(said)))));
                }
            }
            Wrote::Died => {
                all.extend(running.drain().map(|(run, began)| ran(run, began, Some((line.at_us, None)))));
            }
            _ => {}
        }
    }
    all.extend(running.into_iter().map(|(run, began)| ran(run, began, None)));
    all
}

impl Ran<'_> {
    /// Whether both ran at some moment.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.began_us < other.ended_us() && other.began_us < self.ended_us()
    }

    fn ended_us(&self) -> u64 {
        self.ended.map_or(u64::MAX, |(at, _)| at)
    }

    /// Until when its node may have been lost with it: until it was told to stop. It may owe a result for as long as it likes.
    fn listed_until_us(&self) -> u64 {
        match self.ended {
            Some((at, Some(Said::Nothing))) => at,
            _ => u64::MAX,
        }
    }
}

impl Absences {
    /// Those of one node.
    #[must_use]
    pub fn read(diary: &Diary) -> Self {
        let mut absences = Self::default();
        // Nobody has welcomed it yet.
        let (mut parted, mut stopped) = (Some(0), None);
        for line in &diary.lines {
            match &line.wrote {
                Wrote::Joined => absences.out.extend(parted.take().map(|from| (from, line.at_us))),
                Wrote::Parted | Wrote::Died => parted = parted.or(Some(line.at_us)),
                Wrote::Stopped => stopped = Some(line.at_us),
                Wrote::Woke => {
                    let still = stopped.take().map(|from| (from, line.at_us));
                    absences.out.extend(still);
                    absences.still.extend(still);
                }
                _ => {}
            }
        }
        // It is so still.
        absences.out.extend(parted.into_iter().chain(stopped).map(|from| (from, u64::MAX)));
        absences
    }

    /// Whether the node was out of reach between these times for so long, or until a moment before the second one, in which the
    /// node had yet to hear that it lost an attempt.
    #[must_use]
    pub fn was_out(&self, from_us: u64, until_us: u64, for_us: u64) -> bool {
        self.out.iter().any(|(from, to)| {
            let is_meanwhile = *from <= until_us && *to >= from_us;
            is_meanwhile && (to - from >= for_us || to.saturating_add(HEARS_WITHIN_US) >= until_us)
        })
    }

    /// Whether the node was out of reach while it had the attempt, and before this was decided to be lost; at any time, if nobody
    /// knows when. The one that decides so may hear of the absence before the node does, whose instance stands still, and the
    /// node hears of the decision later.
    #[must_use]
    pub fn may_lose(&self, one: &Ran<'_>, decided_us: Option<u64>) -> bool {
        let decided_us = one.listed_until_us().min(decided_us.unwrap_or(u64::MAX));
        let until = decided_us.saturating_add(PARTS_WITHIN_US);
        self.out.iter().any(|(from, to)| *from <= until && to.saturating_add(HEARS_WITHIN_US) >= one.began_us)
    }

    /// Whether nobody knows when the node could be heard, nor just when it had an attempt: it is a process of its own, and its
    /// commands write down when they begin.
    #[must_use]
    pub fn are_unknown(&self) -> bool {
        self.out.contains(&(0, u64::MAX))
    }

    /// Whether the node stood still until a moment before, so that what it does was said long before.
    #[must_use]
    pub fn has_just_woken(&self, at_us: u64) -> bool {
        self.still.iter().any(|(_, woke)| *woke <= at_us && woke + HEARS_WITHIN_US >= at_us)
    }
}
