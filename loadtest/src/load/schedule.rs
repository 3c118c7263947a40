//! When requests are to begin, decided before the run and by nothing that happens in it: that is what
//! makes a load open. Pure, but for the thread that keeps the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Semaphore;

/// Arrivals of a schedule at most, so that a slip of the keyboard does not fill the memory.
const ARRIVALS_MAX: f64 = 50e6;
/// The keeper of time looks at the clock no more often than this.
const TICK: Duration = Duration::from_micros(150);

/// How arrivals are spread over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Spread {
    /// One after the other at equal distances.
    Even,
    /// As independent callers do it: the distances are exponentially distributed.
    Poisson,
}

/// The moments at which requests are to begin, in microseconds since the start, rising.
#[derive(Clone, Debug)]
pub struct Schedule {
    moments_us: Vec<u64>,
}

impl Schedule {
    /// `rate` arrivals per second over `length`. The seed decides the distances.
    #[must_use]
    pub fn new(spread: Spread, rate: f64, length: Duration, seed: u64) -> Self {
        let count = (rate * length.as_secs_f64()).round().clamp(0.0, ARRIVALS_MAX) as usize;
        let step_us = 1e6 / rate;
        let end_us = length.as_micros() as f64;
        let mut dice = StdRng::seed_from_u64(seed);
        let mut at = 0.0;
        let moments = (0..count).map(|index| match spread {
            Spread::Even => index as f64 * step_us,
            Spread::Poisson => {
                at += -(1.0 - dice.random::<f64>()).ln() * step_us;
                at
            }
        });
        Self { moments_us: moments.take_while(|at| *at < end_us).map(|at| at as u64).collect() }
    }

    /// When request number `index` is to begin; `None` after the last one.
    #[must_use]
    pub fn moment_us(&self, index: usize) -> Option<u64> {
        self.moments_us.get(index).copied()
    }

    /// How many requests it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.moments_us.len()
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.moments_us.is_empty()
    }

    /// How many requests are due at this moment.
    fn due(&self, at_us: u64) -> usize {
        self.moments_us.partition_point(|moment| *moment <= at_us)
    }

    /// Adds a permit to `gate` for each arrival when its moment has come, on a thread of its own: the
    /// runtime's timers count whole milliseconds, which is longer than many an answer takes.
    pub fn keep_time(
        self: &Arc<Self>,
        began: Instant,
        gate: &Arc<Semaphore>,
        stop: &Arc<AtomicBool>,
    ) -> JoinHandle<()> {
        let (schedule, gate, stop) = (Arc::clone(self), Arc::clone(gate), Arc::clone(stop));
        thread::spawn(move || {
            let mut let_in = 0;
            while let Some(next) = schedule.moment_us(let_in) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let wait = (began + Duration::from_micros(next)).saturating_duration_since(Instant::now());
                thread::sleep(wait.clamp(TICK, Duration::from_millis(200)));
                let due = schedule.due(began.elapsed().as_micros() as u64);
                gate.add_permits(due - let_in.min(due));
                let_in = let_in.max(due);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_arrivals_keep_their_distance() {
        let schedule = Schedule::new(Spread::Even, 4.0, Duration::from_secs(2), 0);
        assert_eq!(
            schedule.moments_us,
            [0, 250_000, 500_000, 750_000, 1_000_000, 1_250_000, 1_500_000, 1_750_000]
        );
        assert_eq!((schedule.due(0), schedule.due(249_999), schedule.due(250_000)), (1, 1, 2));
        assert_eq!(schedule.moment_us(8), None);
    }

    #[test]
    fn independent_arrivals_come_at_the_rate_and_in_bursts() {
        let schedule = Schedule::new(Spread::Poisson, 10_000.0, Duration::from_secs(5), 9);
        let moments = &schedule.moments_us;
        assert!((48_500..=50_000).contains(&moments.len()), "{}", moments.len());
        assert!(moments.is_sorted());
        // Of exponential distances with the mean m, those beyond 3 m are one in twenty.
        let long = moments.windows(2).filter(|pair| pair[1] - pair[0] > 300).count();
        assert!((2_000..3_000).contains(&long), "{long}");
        assert_eq!(moments, &Schedule::new(Spread::Poisson, 10_000.0, Duration::from_secs(5), 9).moments_us);
        assert_ne!(moments, &Schedule::new(Spread::Poisson, 10_000.0, Duration::from_secs(5), 10).moments_us);
    }

    #[test]
    fn nobody_is_let_in_before_the_time_and_everybody_after() {
        let schedule = Arc::new(Schedule::new(Spread::Even, 500.0, Duration::from_millis(100), 0));
        let gate = Arc::new(Semaphore::new(0));
        let began = Instant::now();
        let keeper = schedule.keep_time(began, &gate, &Arc::default());
        while !keeper.is_finished() {
            // Read before the clock, so that the clock can only be later.
            let let_in = gate.available_permits();
            assert!(let_in <= schedule.due(began.elapsed().as_micros() as u64));
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(gate.available_permits(), 50);
    }
}
