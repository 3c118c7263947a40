//! A moment on the database's clock. Nothing here reads a clock.

/// Microseconds since 1970-01-01T00:00:00Z by the *database's* clock, the only one that the
/// instances share. Durations travel as plain milliseconds (`…_ms: u64`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment that lies `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This moment, `ms` milliseconds later (saturating).
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        let micros = ms.saturating_mul(1_000);
        Self(self.0.saturating_add(if micros > i64::MAX as u64 { i64::MAX } else { micros as i64 }))
    }

    /// Whole milliseconds from `earlier` until this moment; 0 when it is not later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        let micros = self.0.saturating_sub(earlier.0);
        if micros <= 0 { 0 } else { (micros / 1_000) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_add_and_subtract_without_wrapping() {
        let t = Timestamp::from_micros(1_500);
        assert_eq!(t.plus_ms(2).as_micros(), 3_500);
        assert_eq!(t.plus_ms(2).ms_since(t), 2);
        assert_eq!(t.ms_since(t.plus_ms(2)), 0);
        assert_eq!(t.plus_ms(u64::MAX).as_micros(), i64::MAX);
    }
}
