//! Which results a session's client was sent. Pure: no I/O and no clock.

use std::collections::BTreeSet;

/// Up to where.
#[derive(Debug, PartialEq, Eq)]
pub enum Cursor {
    /// Results come in the order of their places: all up to this one were sent.
    Ordered(u64),
    /// Each comes when it is there.
    Free {
        /// All up to this place were sent.
        low: u64,
        /// And these: as many as are unfinished lie between them, no more.
        sent: BTreeSet<u64>,
    },
}

impl Cursor {
    /// All behind this place are to be sent.
    pub const fn behind(seq: u64, is_ordered: bool) -> Self {
        if is_ordered { Self::Ordered(seq) } else { Self::Free { low: seq, sent: BTreeSet::new() } }
    }

    /// Behind which place to look.
    pub const fn low(&self) -> u64 {
        match self {
            Self::Ordered(low) | Self::Free { low, .. } => *low,
        }
    }

    /// Whether the result of this place is still to be sent.
    pub fn lacks(&self, seq: u64) -> bool {
        match self {
            Self::Ordered(low) => seq > *low,
            Self::Free { low, sent } => seq > *low && !sent.contains(&seq),
        }
    }

    /// The result of this place was sent.
    pub fn sent(&mut self, seq: u64) {
        match self {
            Self::Ordered(low) => *low = seq.max(*low),
            Self::Free { low, sent } => {
                if seq > *low {
                    sent.insert(seq);
                }
            }
        }
    }

    /// All results up to this place were sent that there ever will be.
    pub fn settle(&mut self, up_to: u64) {
        match self {
            Self::Ordered(_) => {}
            Self::Free { low, sent } => {
                *low = up_to.max(*low);
                *sent = sent.split_off(&(*low + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_results_are_sent_up_to_a_place() {
        let mut cursor = Cursor::behind(3, true);
        assert!(!cursor.lacks(3) && cursor.lacks(4) && cursor.lacks(9));
        cursor.sent(5);
        assert_eq!((cursor.low(), cursor.lacks(5), cursor.lacks(6)), (5, false, true));
    }

    #[test]
    fn free_results_are_sent_one_by_one_and_forgotten_behind_the_first_that_is_not() {
        let mut cursor = Cursor::behind(0, false);
        for seq in [7, 2, 4] {
            cursor.sent(seq);
        }
        assert!(cursor.lacks(1) && !cursor.lacks(2) && cursor.lacks(3) && !cursor.lacks(7));
        // 3 was a place that nobody has.
        cursor.settle(5);
        assert_eq!(cursor, Cursor::Free { low: 5, sent: BTreeSet::from([7]) });
        assert!(!cursor.lacks(1) && cursor.lacks(6) && !cursor.lacks(7));
    }
}
