//! Random numbers for pauses: a small generator with a seed, so that a state stays a function of what it was given.

use std::time::Duration;

/// A SplitMix64 generator. Good enough to spread pauses; never a secret.
#[derive(Clone, Debug)]
pub(crate) struct Spread(u64);

impl Spread {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// At least 0 and less than 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Half to one and a half times as long.
    pub(crate) fn jittered(&mut self, length: Duration) -> Duration {
        length.mul_f64(0.5 + self.fraction())
    }

    /// At least 0 and less than `end`.
    #[cfg(test)]
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
