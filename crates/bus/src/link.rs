//! The link to the bus: whether it is up now, and since when.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::limits::{LINK_AGAIN_MS, LINK_TRIAL_MS_MAX, LINK_TRIAL_MS_MIN};

const AGAIN: Duration = Duration::from_millis(LINK_AGAIN_MS);
const TRIAL_MIN: Duration = Duration::from_millis(LINK_TRIAL_MS_MIN);
const TRIAL_MAX: Duration = Duration::from_millis(LINK_TRIAL_MS_MAX);

/// Whether the bus can be reached: it takes what is written *and* what is published is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It can, without a break since then.
    Up {
        /// This process's monotonic clock.
        since: Instant,
    },
    /// It cannot; tries go on.
    Down {
        /// This process's monotonic clock.
        since: Instant,
    },
}

impl Link {
    /// Whether it is up.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self, Self::Up { .. })
    }

    /// Since when it has been up without a break; `None` while it is down.
    #[must_use]
    pub const fn up_since(&self) -> Option<Instant> {
        match self {
            Self::Up { since } => Some(*since),
            Self::Down { .. } => None,
        }
    }

    /// How long it has been up without a break; `None` while it is down.
    #[must_use]
    pub fn up_for(&self) -> Option<Duration> {
        self.up_since().map(|since| since.elapsed())
    }
}

/// How long a bus must answer without a break before it is used again, after it went down again soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Redis comes and goes; it is used again once it has answered for {} s without a break", .0.as_secs())]
pub struct Trial(Duration);

/// The two connections that the link is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Commands,
    Listener,
}

/// Puts the link together from its parts.
#[derive(Debug)]
pub(crate) struct Gauge {
    parts: Mutex<Parts>,
    link: watch::Sender<Link>,
    /// Whether commands are answered as they should be, writes included, and not on trial. A doubt leaves it as it is: the next
    /// look says.
    commands: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Parts {
    steadiness: [Steadiness; 2],
    /// Whether commands were doubted, and not found to be answered since.
    is_doubted: bool,
    /// How often everything was doubted.
    doubts: u64,
}

/// How often everything had been doubted when a look began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look(u64);

/// How steadily a part is well. It is down as soon as it is found ill. One that comes back is up at once, but after it went down
/// again soon it is on trial first: the longer, the more often that happened. Pure: time comes in as an argument.
#[derive(Debug, Default)]
struct Steadiness {
    is_up: bool,
    /// Since when it was found well each time; `None` since it was found ill.
    well_since: Option<Instant>,
    /// How long it is to be well until it is up.
    trial: Duration,
    /// When it came back last, or, while it has not, went down; `None` before the first outage.
    changed_at: Option<Instant>,
}

impl Steadiness {
    fn well(&mut self, now: Instant) {
        let since = *self.well_since.get_or_insert(now);
        if !self.is_up && now.saturating_duration_since(since) >= self.trial {
            self.is_up = true;
            self.changed_at = self.changed_at.map(|_| now);
        }
    }

    fn ill(&mut self, now: Instant) {
        self.well_since = None;
        if std::mem::take(&mut self.is_up) {
            let is_again = self.changed_at.is_some_and(|at| now.saturating_duration_since(at) < AGAIN);
            self.trial = if is_again { (self.trial * 2).clamp(TRIAL_MIN, TRIAL_MAX) } else { Duration::ZERO };
            self.changed_at = Some(now);
        }
    }

    /// The trial that it is on.
    fn trial(&self) -> Option<Trial> {
        (self.well_since.is_some() && !self.is_up).then_some(Trial(self.trial))
    }
}

impl Parts {
    fn of(&mut self, part: Part) -> &mut Steadiness {
        &mut self.steadiness[part as usize]
    }

    fn found_up(&mut self, look: Look, now: Instant) {
        self.is_doubted &= self.doubts != look.0;
        self.of(Part::Commands).well(now);
        // The listener reports only changes, so each look at commands also advances its trial.
        let listener = self.of(Part::Listener);
        if listener.well_since.is_some() {
            listener.well(now);
        }
    }

    fn up(&mut self, part: Part, now: Instant) {
        self.is_doubted &= !matches!(part, Part::Commands);
        self.of(part).well(now);
    }

    fn doubt(&mut self, now: Instant) {
        self.of(Part::Listener).ill(now);
        self.is_doubted = true;
        self.doubts += 1;
    }

    fn is_up(&self, part: Part) -> bool {
        let is_doubted = matches!(part, Part::Commands) && self.is_doubted;
        self.steadiness[part as usize].is_up && !is_doubted
    }

    fn are_up(&self) -> bool {
        self.is_up(Part::Commands) && self.is_up(Part::Listener)
    }
}

impl Gauge {
    /// A link that is down.
    pub(crate) fn new() -> Self {
        let (link, _) = watch::channel(Link::Down { since: Instant::now() });
        Self { parts: Mutex::default(), link, commands: watch::Sender::new(false) }
    }

    /// Begins to look whether commands are answered.
    pub(crate) fn look(&self) -> Look {
        Look(self.parts.lock().doubts)
    }

    /// They are. That is no evidence of the link if everything was doubted since the look began.
    pub(crate) fn found_up(&self, look: Look) {
        self.change(|parts, now| parts.found_up(look, now));
    }

    /// This part was made new and is well.
    pub(crate) fn up(&self, part: Part) {
        self.change(|parts, now| parts.up(part, now));
    }

    /// This part is down.
    pub(crate) fn down(&self, part: Part) {
        self.change(|parts, now| parts.of(part).ill(now));
    }

    /// The connection that hears is lost. What took it may have taken the other: that is down until it is found up.
    pub(crate) fn doubt(&self) {
        self.change(Parts::doubt);
    }

    /// The bus is closed: both are down, for good.
    pub(crate) fn close(&self) {
        self.doubt();
        self.down(Part::Commands);
    }

    pub(crate) fn is_up(&self, part: Part) -> bool {
        self.parts.lock().is_up(part)
    }

    /// Whether this part was well when it was looked at last, be it on trial or doubted.
    pub(crate) fn is_well(&self, part: Part) -> bool {
        self.parts.lock().of(part).well_since.is_some()
    }

    /// The trial that commands are on, if they are.
    pub(crate) fn trial_of_commands(&self) -> Option<Trial> {
        self.parts.lock().of(Part::Commands).trial()
    }

    /// The trial that a part is on, if one is.
    pub(crate) fn trial(&self) -> Option<Trial> {
        let mut parts = self.parts.lock();
        parts.of(Part::Commands).trial().or_else(|| parts.of(Part::Listener).trial())
    }

    /// Whether commands are answered, as was found last, and not on trial.
    pub(crate) fn answers(&self) -> bool {
        *self.commands.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    pub(crate) fn watch_commands(&self) -> watch::Receiver<bool> {
        self.commands.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut Parts, Instant)) {
        let mut parts = self.parts.lock();
        let now = Instant::now();
        change(&mut parts, now);
        let (answers, all_up) = (parts.of(Part::Commands).is_up, parts.are_up());
        // Told under the lock, so that the last word is the newest one. Who hears that the link is up finds commands answered.
        self.commands.send_if_modified(|before| std::mem::replace(before, answers) != answers);
        self.link.send_if_modified(|link| {
            if link.is_up() == all_up {
                return false;
            }
            *link = if all_up { Link::Up { since: now } } else { Link::Down { since: now } };
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_up_when_both_parts_are_and_remembers_since_when() {
        let gauge = Gauge::new();
        let seen = || *gauge.watch().borrow();
        let began = seen();
        gauge.up(Part::Commands);
        assert_eq!(seen(), began, "half a link is none");
        gauge.up(Part::Listener);
        let up = seen();
        assert!(up.is_up() && up.up_for().is_some());
        gauge.up(Part::Listener);
        assert_eq!(seen(), up, "no change, no new beginning");
        gauge.down(Part::Commands);
        assert!(!seen().is_up() && seen() != began && seen().up_for().is_none());
    }

    #[test]
    fn commands_are_answered_also_while_nothing_is_heard() {
        let gauge = Gauge::new();
        let answers = || *gauge.watch_commands().borrow();
        assert!(!answers());
        gauge.up(Part::Listener);
        assert!(!answers());
        gauge.found_up(gauge.look());
        assert!(answers());
        let look = gauge.look();
        gauge.doubt();
        assert!(answers() && !gauge.watch().borrow().is_up(), "a doubt is no evidence");
        gauge.down(Part::Commands);
        assert!(!answers());
        gauge.found_up(look);
        assert!(answers(), "they were answered, whatever is heard");
        gauge.close();
        assert!(!answers() && !gauge.watch().borrow().is_up());
    }

    #[test]
    fn a_look_that_began_before_a_doubt_shows_nothing() {
        let gauge = Gauge::new();
        gauge.up(Part::Commands);
        gauge.up(Part::Listener);
        let early = gauge.look();
        gauge.doubt();
        gauge.up(Part::Listener);
        gauge.found_up(early);
        assert!(!gauge.watch().borrow().is_up());
        gauge.found_up(gauge.look());
        assert!(gauge.watch().borrow().is_up());
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Both parts are well for the first time.
    fn begun(now: Instant) -> Parts {
        let mut parts = Parts::default();
        parts.up(Part::Listener, now);
        parts.found_up(Look(0), now);
        assert!(parts.are_up(), "at once");
        parts
    }

    #[test]
    fn a_link_that_comes_back_for_long_is_up_at_once_each_time() {
        let mut now = Instant::now();
        let mut parts = begun(now);
        // The first time it may go down soon after the start.
        for up_for in [SECOND, SECOND * 10, SECOND * 60] {
            now += up_for;
            parts.of(Part::Commands).ill(now);
            assert!(!parts.are_up());
            now += SECOND;
            parts.found_up(Look(0), now);
            assert!(parts.are_up(), "{up_for:?}");
        }
    }

    #[test]
    fn commands_that_are_answered_now_and_then_are_down_most_of_the_time() {
        let mut now = Instant::now();
        let mut parts = begun(now);
        let half = SECOND / 2;
        let (mut ups, mut down) = (0, 0);
        for looks in 0..600 {
            now += half;
            let was_up = parts.are_up();
            // For 2.5 s it does not answer, for 2.5 s it does, and so on for five minutes.
            match looks % 10 < 5 {
                true => parts.of(Part::Commands).ill(now),
                false => parts.found_up(Look(0), now),
            }
            ups += usize::from(!was_up && parts.are_up());
            down += usize::from(!parts.are_up());
        }
        assert!(ups <= 2 && down >= 580, "{ups} times up, {down} of 600 looks down");
        for _ in 0..LINK_TRIAL_MS_MAX / 500 {
            parts.found_up(Look(0), now);
            now += half;
        }
        parts.found_up(Look(0), now);
        assert!(parts.are_up(), "it is steady");
    }

    #[test]
    fn the_more_often_a_part_went_down_soon_the_longer_is_its_trial_up_to_the_longest() {
        let mut now = Instant::now();
        let mut trial = |part: &mut Steadiness| {
            now += SECOND;
            part.ill(now);
            let ended = now;
            while !part.is_up {
                part.well(now);
                now += SECOND;
            }
            now.duration_since(ended) - SECOND
        };
        let mut part = Steadiness::default();
        part.well(Instant::now());
        let trials: Vec<_> = (0..6).map(|_| trial(&mut part).as_secs()).collect();
        assert_eq!(trials, [0, 2, 4, 8, 8, 8]);
    }

    #[test]
    fn a_listener_that_is_lost_again_soon_is_on_trial_while_commands_are_answered() {
        let now = Instant::now();
        let mut parts = begun(now);
        for _ in 0..2 {
            parts.doubt(now);
            parts.up(Part::Listener, now);
            parts.found_up(Look(parts.doubts), now);
        }
        assert!(!parts.are_up() && parts.is_up(Part::Commands), "what was doubted was no outage");
        assert!(parts.of(Part::Commands).trial().is_none() && parts.of(Part::Listener).trial().is_some());
        parts.found_up(Look(parts.doubts), now + SECOND);
        assert!(!parts.are_up());
        parts.found_up(Look(parts.doubts), now + SECOND * 2);
        assert!(parts.are_up(), "the looks at commands say so");
    }

    #[test]
    fn commands_on_trial_are_well_and_not_answered() {
        let gauge = Gauge::new();
        gauge.up(Part::Listener);
        for _ in 0..2 {
            gauge.found_up(gauge.look());
            assert!(gauge.answers() && gauge.watch().borrow().is_up() && gauge.trial().is_none());
            gauge.down(Part::Commands);
            assert!(!gauge.answers() && !gauge.is_well(Part::Commands) && gauge.trial().is_none());
        }
        gauge.found_up(gauge.look());
        let said = "Redis comes and goes; it is used again once it has answered for 2 s without a break";
        assert_eq!(gauge.trial().map(|trial| trial.to_string()).as_deref(), Some(said));
        assert!(!gauge.answers() && !gauge.watch().borrow().is_up());
        assert!(gauge.is_well(Part::Commands) && gauge.is_well(Part::Listener));
    }
}
