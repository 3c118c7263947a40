//! Purges: what is old is deleted step by step, so that nobody waits for long for what one step holds. SQLite has one writer, and
//! a thousand jobs with payloads of a mebibyte take it for seconds.

use std::time::{Duration, Instant};

/// A step that takes longer than this, or fails, is followed by one of a quarter …
const LONG: Duration = Duration::from_millis(200);
/// … and one that takes less than this by one of twice as much.
const SHORT: Duration = Duration::from_millis(50);

/// How much the next step of a purge deletes at most.
#[derive(Debug)]
pub(crate) struct Step {
    size: u32,
    size_max: u32,
}

impl Step {
    /// Of rows.
    pub(crate) const fn of_rows() -> Self {
        Self { size: 100, size_max: 1_000 }
    }

    /// Of plans, which have many rows.
    pub(crate) const fn of_plans() -> Self {
        Self { size: 10, size_max: 100 }
    }

    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// Notes how long a step of this size took; `None` where it failed.
    fn note(&mut self, took: Option<Duration>) {
        self.size = match took {
            Some(took) if took < SHORT => (self.size * 2).min(self.size_max),
            Some(took) if took <= LONG => self.size,
            _ => (self.size / 4).max(1),
        };
    }
}

/// Deletes step by step until one finds less than it may delete, or `is_serving` says no. Half of the time is for others.
///
/// # Errors
/// That of a step; the next purge begins with a smaller one.
pub(crate) async fn purge(
    step: &mut Step,
    is_serving: impl Fn() -> bool,
    mut delete: impl AsyncFnMut(u32) -> ledger::Result<u64>,
) -> ledger::Result<()> {
    while is_serving() {
        let (begun, size) = (Instant::now(), step.size());
        let deleted = delete(size).await;
        let took = begun.elapsed();
        step.note(deleted.is_ok().then_some(took));
        if deleted? < u64::from(size) {
            break;
        }
        tokio::time::sleep(took).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_fails_or_takes_long_is_followed_by_smaller_ones_which_grow_again() {
        let mut step = Step::of_plans();
        let mut sizes = vec![step.size()];
        let (short, fair, long) = (SHORT / 2, SHORT * 2, LONG * 2);
        for took in [short, short, fair, short, short, long, fair].map(Some) {
            step.note(took);
            sizes.push(step.size());
        }
        for _ in 0..3 {
            step.note(None);
            sizes.push(step.size());
        }
        step.note(Some(short));
        sizes.push(step.size());
        assert_eq!(sizes, [10, 20, 40, 40, 80, 100, 25, 25, 6, 1, 1, 2]);
    }

    #[tokio::test]
    async fn a_purge_ends_with_a_step_that_finds_less_with_one_that_fails_and_with_the_service() {
        let mut step = Step::of_rows();
        let mut left = 250_u64;
        let delete = async |limit| {
            let deleted = left.min(u64::from(limit));
            left -= deleted;
            Ok(deleted)
        };
        purge(&mut step, || true, delete).await.unwrap();
        assert_eq!(left, 0);

        let mut asked = 0;
        let failing = async |_| {
            asked += 1;
            Err(ledger::Error::WentBack)
        };
        purge(&mut step, || true, failing).await.unwrap_err();
        assert_eq!(asked, 1);

        let mut asked = 0;
        let never = async |_| {
            asked += 1;
            Ok(0)
        };
        purge(&mut step, || false, never).await.unwrap();
        assert_eq!(asked, 0);
    }
}
