//! The layout of a snowflake id: one zero bit, 41 bits of milliseconds since an epoch, ten bits of worker number,
//! twelve bits of sequence.

use domain::{Invalid, WorkerNumber};

use crate::limits::EPOCH_MS_DEFAULT;

/// Bits of the sequence.
pub(super) const SEQUENCE_BITS: u32 = 12;
/// Ids that one worker can make in one millisecond.
pub const PER_MS: u32 = 1 << SEQUENCE_BITS;
/// Bits of the worker number.
const WORKER_BITS: u32 = 10;
/// Bits of the time.
const TIME_BITS: u32 = 41;
/// Milliseconds since the epoch that the layout has room for.
pub(super) const TIME_END: u64 = 1 << TIME_BITS;

const _: () = assert!(1 + TIME_BITS + WORKER_BITS + SEQUENCE_BITS == 64);
const _: () = assert!(domain::limits::ID_WORKER_MAX == (1 << WORKER_BITS) - 1);

/// The layout, which is the same everywhere but for its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    epoch_ms: u64,
}

/// What an id is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// When it was made, in milliseconds since 1970, by the clock of its worker.
    pub time_ms: u64,
    /// Who made it.
    pub worker: WorkerNumber,
    /// Which one of that millisecond it is, 0 to 4,095.
    pub sequence: u16,
}

impl Default for Layout {
    fn default() -> Self {
        Self { epoch_ms: EPOCH_MS_DEFAULT }
    }
}

impl Layout {
    /// The layout whose time counts from `epoch_ms`, in milliseconds since 1970.
    #[must_use]
    pub const fn since(epoch_ms: u64) -> Self {
        Self { epoch_ms }
    }

    /// From when on its time counts, in milliseconds since 1970.
    #[must_use]
    pub const fn epoch_ms(self) -> u64 {
        self.epoch_ms
    }

    /// The first millisecond since 1970 that it has no room for.
    #[must_use]
    pub const fn ends_at_ms(self) -> u64 {
        self.epoch_ms.saturating_add(TIME_END)
    }

    /// Puts an id together. Refuses a time before the epoch or past the end, and a sequence above 4,095.
    #[cfg(test)]
    fn compose(self, parts: Parts) -> Result<u64, Invalid> {
        let time = parts.time_ms.checked_sub(self.epoch_ms).filter(|time| *time < TIME_END);
        let time = time.ok_or_else(|| Invalid {
            what: "time",
            expected: format!("{} to {} ms since 1970", self.epoch_ms, self.ends_at_ms() - 1),
        })?;
        if u32::from(parts.sequence) >= PER_MS {
            return Err(Invalid { what: "sequence", expected: format!("0 to {}", PER_MS - 1) });
        }
        Ok(id(time << SEQUENCE_BITS | u64::from(parts.sequence), parts.worker))
    }

    /// Takes an id apart.
    ///
    /// # Errors
    /// [`Invalid`] for a number of 64 bits: snowflakes have 63.
    pub fn decode(self, id: u64) -> Result<Parts, Invalid> {
        if id > i64::MAX as u64 {
            return Err(Invalid { what: "id", expected: format!("0 to {}", i64::MAX) });
        }
        let worker = (id >> SEQUENCE_BITS) as u16 & domain::limits::ID_WORKER_MAX;
        Ok(Parts {
            time_ms: self.epoch_ms.saturating_add(id >> (SEQUENCE_BITS + WORKER_BITS)),
            worker: WorkerNumber::new(worker).expect("ten bits are a worker number"),
            sequence: (id & u64::from(PER_MS - 1)) as u16,
        })
    }
}

/// The id with this time and sequence, side by side as a generator counts them.
pub(super) fn id(counted: u64, worker: WorkerNumber) -> u64 {
    let (time, sequence) = (counted >> SEQUENCE_BITS, counted & u64::from(PER_MS - 1));
    time << (WORKER_BITS + SEQUENCE_BITS) | u64::from(worker.get()) << SEQUENCE_BITS | sequence
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAYOUT: Layout = Layout::since(EPOCH_MS_DEFAULT);

    fn parts(time: u64, worker: u16, sequence: u16) -> Parts {
        let worker = WorkerNumber::new(worker).unwrap();
        Parts { time_ms: EPOCH_MS_DEFAULT.saturating_add(time), worker, sequence }
    }

    #[test]
    fn the_fields_lie_where_the_layout_says() {
        for (parts, id) in [
            (parts(0, 0, 0), 0),
            (parts(1, 0, 0), 1 << 22),
            (parts(0, 1, 0), 1 << 12),
            (parts(0, 0, 1), 1),
            (parts(TIME_END - 1, 1_023, 4_095), i64::MAX as u64),
        ] {
            assert_eq!(LAYOUT.compose(parts), Ok(id));
            assert_eq!(LAYOUT.decode(id), Ok(parts));
        }
        let data_center = WorkerNumber::in_data_center(5, 9).unwrap();
        let id = LAYOUT.compose(Parts { worker: data_center, ..parts(7, 0, 3) }).unwrap();
        assert_eq!(id, 7 << 22 | 5 << 17 | 9 << 12 | 3);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for bad in [
            parts(TIME_END, 0, 0),
            parts(u64::MAX, 0, 0),
            parts(0, 0, 4_096),
            Parts { time_ms: EPOCH_MS_DEFAULT - 1, ..parts(0, 0, 0) },
        ] {
            assert!(LAYOUT.compose(bad).is_err(), "{bad:?}");
        }
        assert!(LAYOUT.decode(1 << 63).is_err());
        assert_eq!(LAYOUT.ends_at_ms(), EPOCH_MS_DEFAULT + (1 << 41));
    }

    fn edges(bits: u32) -> impl Strategy<Value = u64> {
        let end = 1_u64 << bits;
        prop_oneof![Just(0), Just(1), Just(end - 1), Just(end / 2), 0..end]
    }

    proptest! {
        #[test]
        fn every_id_reads_back_as_it_was_put_together(
            time in edges(41), worker in edges(10), sequence in edges(12), epoch in edges(45),
        ) {
            let layout = Layout::since(epoch);
            let worker = WorkerNumber::new(worker as u16).unwrap();
            let parts = Parts { time_ms: epoch + time, worker, sequence: sequence as u16 };
            let id = layout.compose(parts).unwrap();
            prop_assert!(id <= i64::MAX as u64);
            prop_assert_eq!(layout.decode(id), Ok(parts));
        }

        #[test]
        fn every_number_of_63_bits_is_somebodys_id(id in 0..=i64::MAX as u64) {
            let parts = LAYOUT.decode(id).unwrap();
            prop_assert_eq!(LAYOUT.compose(parts), Ok(id));
        }
    }
}
