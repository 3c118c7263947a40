//! How many rows a statement reads that looks for the jobs of a bulk operation: more where few of them match, fewer after one
//! that took too long.

use domain::BulkId;

use crate::limits::{BULK_SCAN_ROWS, BULK_SCAN_ROWS_MIN, BULK_SCANS_IN_TIME};
use crate::refusal::Refusal;
use crate::state::answered;

/// How many rows the statements read that look for the jobs of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanSize {
    /// In the next one: more where few of them match.
    pub rows: u32,
    /// At most.
    rows_max: u32,
    /// Statements that were answered in time under this bound.
    in_time: u32,
}

impl ScanSize {
    /// That of the first statement, which reads so many rows.
    pub const fn first(rows: u32) -> Self {
        Self { rows, rows_max: BULK_SCAN_ROWS, in_time: 0 }
    }

    /// The next statement after one that found as many jobs as it looked for, or fewer. The bound rises where enough of them were
    /// answered in time.
    pub fn adapt(&mut self, is_full: bool) {
        self.in_time += 1;
        if self.in_time >= BULK_SCANS_IN_TIME {
            self.in_time = 0;
            self.rows_max = (self.rows_max * 2).min(BULK_SCAN_ROWS);
        }
        let rows = if is_full { self.rows / 2 } else { self.rows.saturating_mul(4) };
        self.rows = rows.clamp(BULK_SCAN_ROWS_MIN, self.rows_max);
    }

    /// The same after one that took too long: whether none had lowered the bound before. `None` where it read the fewest rows
    /// already.
    fn shrink(&mut self) -> Option<bool> {
        if self.rows <= BULK_SCAN_ROWS_MIN {
            return None;
        }
        let is_first = self.rows_max == BULK_SCAN_ROWS;
        self.rows = (self.rows / 4).max(BULK_SCAN_ROWS_MIN);
        self.rows_max = self.rows;
        self.in_time = 0;
        Some(is_first)
    }
}

/// The answer of a statement that reads so many rows. If it takes too long, it is sent again for fewer rows. Where that does not
/// help, the number of rows is not the reason, and the bound stays as it was.
pub async fn in_time<T>(
    bulk: BulkId,
    size: &mut ScanSize,
    look: impl AsyncFn(u32) -> Option<ledger::Result<T>>,
) -> Result<T, Refusal> {
    let rows_max = size.rows_max;
    loop {
        let rows = size.rows;
        let found = look(rows).await;
        let is_late = found.as_ref().is_none_or(|found| found.as_ref().is_err_and(ledger::Error::is_late));
        if is_late && let Some(is_first) = size.shrink() {
            if is_first {
                tracing::warn!(
                    %bulk, rows,
                    "a statement that looks for the jobs of a bulk operation took too long, and is sent again for fewer rows"
                );
            }
            continue;
        }
        let found = answered(found);
        if found.is_err() {
            size.rows_max = rows_max;
        }
        return found;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_scan_reads_more_rows_where_few_match_and_fewer_after_a_time_out() {
        let mut size = ScanSize::first(BULK_SCAN_ROWS_MIN);
        assert_eq!(size.shrink(), None, "fewer rows would not help");
        let mut sizes = |is_full: &[bool]| {
            is_full.iter().for_each(|is_full| size.adapt(*is_full));
            size.rows
        };
        assert_eq!(sizes(&[true]), BULK_SCAN_ROWS_MIN);
        assert_eq!(sizes(&[false, false]), 16 * BULK_SCAN_ROWS_MIN);
        assert_eq!(sizes(&[false; 9]), BULK_SCAN_ROWS);
        assert_eq!(size.shrink(), Some(true), "it is warned of");
        assert_eq!(size.rows, BULK_SCAN_ROWS / 4);
        size.adapt(false);
        assert_eq!(size.rows, BULK_SCAN_ROWS / 4, "no more for a while");
        assert_eq!(size.shrink(), Some(false), "once");
        while size.shrink().is_some() {}
        assert_eq!(size.rows, BULK_SCAN_ROWS_MIN);
    }

    #[actix_web::test]
    async fn a_statement_that_takes_too_long_is_sent_for_fewer_rows_until_it_is_answered() {
        let failed = |kind: ErrorKind| Some(Err(ledger::Error::unavailable(std::io::Error::from(kind))));
        for (late, rows_max) in [(None, BULK_SCAN_ROWS_MIN), (failed(ErrorKind::TimedOut), 700)] {
            let mut size = ScanSize::first(BULK_SCAN_ROWS);
            let look = async |rows: u32| if rows > rows_max { late.clone() } else { Some(Ok(rows)) };
            let Ok(rows) = in_time(BulkId::from_u128(1), &mut size, look).await else { panic!("{size:?}") };
            assert!(rows <= rows_max && rows == size.rows && rows == size.rows_max, "{rows} {size:?}");
        }
        let mut size = ScanSize::first(BULK_SCAN_ROWS);
        let away = async |_: u32| failed(ErrorKind::ConnectionReset);
        assert!(in_time(BulkId::from_u128(1), &mut size, away).await.is_err());
        assert_eq!(size.rows, BULK_SCAN_ROWS, "that says nothing of their number");
    }

    #[actix_web::test]
    async fn a_ledger_that_hangs_for_a_while_leaves_the_scans_of_an_operation_as_large_as_they_were() {
        let late = || Some(Err(ledger::Error::unavailable(std::io::Error::from(ErrorKind::TimedOut))));
        let mut size = ScanSize::first(BULK_SCAN_ROWS);
        let hangs = async |_: u32| -> Option<ledger::Result<u32>> { late() };
        assert!(in_time(BulkId::from_u128(1), &mut size, hangs).await.is_err());
        assert_eq!((size.rows, size.rows_max), (BULK_SCAN_ROWS_MIN, BULK_SCAN_ROWS));

        // It answers before the fewest rows are late.
        let (mut size, late_left) = (ScanSize::first(BULK_SCAN_ROWS), Cell::new(2_u32));
        let answers = async |rows: u32| match late_left.get() {
            0 => Some(Ok(rows)),
            left => {
                late_left.set(left - 1);
                late()
            }
        };
        let found = in_time(BulkId::from_u128(1), &mut size, answers).await;
        assert_eq!(found.ok(), Some(BULK_SCAN_ROWS / 16));
        (1..BULK_SCANS_IN_TIME).for_each(|_| size.adapt(false));
        assert_eq!(size.rows_max, BULK_SCAN_ROWS / 16);
        (0..=3 * BULK_SCANS_IN_TIME).for_each(|_| size.adapt(false));
        assert_eq!((size.rows, size.rows_max), (BULK_SCAN_ROWS, BULK_SCAN_ROWS));
    }
}
