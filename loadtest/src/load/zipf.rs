//! Zipf's law: the k-th most wanted of n is wanted in proportion to 1 / k^s. Pure.

use rand::{Rng, RngExt as _};

/// Draws 0 to n - 1, 0 most often.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Up to which point of 0 to 1 each number's share reaches; rises to 1.
    upto: Vec<f64>,
}

impl Zipf {
    /// The law for `n` things (at least 1) with the exponent `s`; 0 makes all of them alike.
    #[must_use]
    pub fn new(n: usize, s: f64) -> Self {
        let mut sum = 0.0;
        let mut upto: Vec<f64> = (1..=n.max(1))
            .map(|k| {
                sum += (k as f64).powf(-s);
                sum
            })
            .collect();
        upto.iter_mut().for_each(|edge| *edge /= sum);
        Self { upto }
    }

    /// The next one.
    pub fn draw(&self, dice: &mut impl Rng) -> usize {
        let point: f64 = dice.random();
        self.upto.partition_point(|edge| *edge <= point).min(self.upto.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    fn counts(zipf: &Zipf, n: usize, draws: usize) -> Vec<f64> {
        let mut dice = StdRng::seed_from_u64(5);
        let mut counts = vec![0.0; n];
        (0..draws).for_each(|_| counts[zipf.draw(&mut dice)] += 1.0);
        counts
    }

    #[test]
    fn the_second_is_wanted_half_as_often_as_the_first() {
        let counts = counts(&Zipf::new(1_000, 1.0), 1_000, 400_000);
        for k in [2, 4, 10] {
            let share = counts[0] / counts[k - 1];
            assert!((share - k as f64).abs() < 0.15 * k as f64, "number {k}: 1 to {share}");
        }
        assert!(counts[999] > 0.0, "the last one is wanted too");
    }

    #[test]
    fn without_an_exponent_all_are_wanted_alike() {
        let counts = counts(&Zipf::new(10, 0.0), 10, 100_000);
        assert!(counts.iter().all(|count| (count - 10_000.0).abs() < 500.0), "{counts:?}");
    }

    #[test]
    fn a_single_thing_is_always_drawn() {
        assert_eq!(counts(&Zipf::new(1, 1.0), 1, 10), [10.0]);
    }
}
