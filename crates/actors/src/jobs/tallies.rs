//! How many events of jobs there were, on all instances, for callers that want no more than that: an event costs them one
//! addition, while a watch of all jobs costs a message for each.
//!
//! An instance with such a caller announces it every [`WANTED_AGAIN_EVERY`], on a channel of their own. The others send it
//! how many events they had since, once each [`TALLIED_EVERY`]. Either message may be lost; a loss that the bus knows of is
//! told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bus::{Channel, Event};
use domain::InstanceId;
use ledger::jittered;
use panic_guard::guarded;
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::limits::{TALLIED_EVERY, WANTED_AGAIN_EVERY, WANTED_FOR};

/// Numbers of events of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventNumbers {
    /// Changes of a job's state or attempt.
    pub changes: u64,
    /// Reports of progress.
    pub progress: u64,
}

/// Counts from its making on.
pub struct Tally {
    tallies: Arc<Tallies>,
    taken: EventNumbers,
    gaps_taken: u64,
}

impl Tally {
    /// The events since the last call, and whether some more may have been missed.
    pub fn take(&mut self) -> (EventNumbers, bool) {
        let (all, gaps) = (self.tallies.all(), self.tallies.gaps.load(Ordering::Relaxed));
        let new = all.since(&self.taken);
        let has_gap = gaps != self.gaps_taken;
        (self.taken, self.gaps_taken) = (all, gaps);
        (new, has_gap)
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.tallies.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counts of events that one instance knows of.
#[derive(Default)]
pub(super) struct Tallies {
    /// The events that this instance saw first.
    here: Counters,
    /// What the other instances sent.
    elsewhere: Counters,
    /// How often messages of other instances may have been lost.
    gaps: AtomicU64,
    /// The [`Tally`]s that there are.
    open: AtomicUsize,
}

#[derive(Default)]
struct Counters {
    changes: AtomicU64,
    progress: AtomicU64,
}

/// What one instance says to the others.
#[derive(Serialize, Deserialize)]
struct Message {
    from: String,
    /// It wants their numbers.
    #[serde(default)]
    wants: bool,
    /// Its own, since it sent some last.
    #[serde(default)]
    numbers: EventNumbers,
}

impl EventNumbers {
    fn and(&self, more: &Self) -> Self {
        Self {
            changes: self.changes.wrapping_add(more.changes),
            progress: self.progress.wrapping_add(more.progress),
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            changes: self.changes.wrapping_sub(earlier.changes),
            progress: self.progress.wrapping_sub(earlier.progress),
        }
    }
}

impl Counters {
    fn numbers(&self) -> EventNumbers {
        EventNumbers {
            changes: self.changes.load(Ordering::Relaxed),
            progress: self.progress.load(Ordering::Relaxed),
        }
    }

    fn add(&self, numbers: EventNumbers) {
        self.changes.fetch_add(numbers.changes, Ordering::Relaxed);
        self.progress.fetch_add(numbers.progress, Ordering::Relaxed);
    }
}

impl Tallies {
    pub(super) fn open(self: &Arc<Self>) -> Tally {
        self.open.fetch_add(1, Ordering::Relaxed);
        let gaps_taken = self.gaps.load(Ordering::Relaxed);
        Tally { tallies: Arc::clone(self), taken: self.all(), gaps_taken }
    }

    /// A job's state or attempt changed, as this instance saw first.
    pub(super) fn changed(&self) {
        self.here.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// A node that is connected here reported progress.
    pub(super) fn progressed(&self) {
        self.here.progress.fetch_add(1, Ordering::Relaxed);
    }

    fn all(&self) -> EventNumbers {
        let (here, elsewhere) = (self.here.numbers(), self.elsewhere.numbers());
        here.and(&elsewhere)
    }
}

/// Exchanges numbers with the other instances, as long as another handle exists.
pub(super) fn start(tallies: &Arc<Tallies>, bus: &bus::Handle, me: &InstanceId) {
    if bus.kind() == bus::Kind::Local {
        return;
    }
    let (weak, bus, me) = (Arc::downgrade(tallies), bus.clone(), me.clone());
    tokio::spawn(async move {
        let mut heard = bus.subscribe(Channel::Tallies);
        let mut ticks = interval(TALLIED_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut talk = Talk::default();
        loop {
            let event = tokio::select! {
                event = heard.next() => match event {
                    Some(event) => Some(event),
                    None => return,
                },
                _ = ticks.tick() => None,
            };
            let Some(tallies) = weak.upgrade() else { return };
            let turn = async {
                match event {
                    None => talk.say(&tallies, &bus, &me).await,
                    Some(Event::Message(payload)) => talk.hear(&tallies, &me, &payload, Instant::now()),
                    Some(Event::Resumed | Event::Lagged { .. }) => {
                        tallies.gaps.fetch_add(1, Ordering::Relaxed);
                        talk.say_again_at = None;
                    }
                }
            };
            if guarded("the numbers of job events", turn).await.is_none() {
                // They may have been those of another instance.
                tallies.gaps.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
}

async fn publish(bus: &bus::Handle, message: &Message) -> bool {
    let payload = serde_json::to_vec(message).expect("it has text keys only");
    let published = bus.publish(Channel::Tallies, &payload).await;
    if let Err(error) = &published {
        tracing::debug!(%error, "numbers of job events could not be sent yet");
    }
    published.is_ok()
}

/// What was said, and what is to be said.
#[derive(Default)]
struct Talk {
    /// When the others are to hear again that this instance wants their numbers.
    say_again_at: Option<Instant>,
    /// Until when another instance wants the numbers of this one.
    wanted_until: Option<Instant>,
    sent: EventNumbers,
}

impl Talk {
    /// Says what is due.
    async fn say(&mut self, tallies: &Tallies, bus: &bus::Handle, me: &InstanceId) {
        if let Some(message) = self.due(tallies, me, Instant::now()) {
            let is_sent = publish(bus, &message).await;
            self.tried(&message, is_sent);
        }
    }

    fn due(&mut self, tallies: &Tallies, me: &InstanceId, now: Instant) -> Option<Message> {
        let is_open = tallies.open.load(Ordering::Relaxed) > 0;
        let wants = is_open && self.say_again_at.is_none_or(|at| at <= now);
        if wants {
            self.say_again_at = Some(now + jittered(WANTED_AGAIN_EVERY));
        } else if !is_open {
            self.say_again_at = None;
        }
        let here = tallies.here.numbers();
        let is_wanted = self.wanted_until.is_some_and(|until| now < until);
        if !is_wanted {
            self.sent = here;
        }
        let numbers = here.since(&self.sent);
        let is_due = wants || numbers != EventNumbers::default();
        is_due.then(|| Message { from: me.to_string(), wants, numbers })
    }

    /// Numbers that could not be sent go with the next ones.
    fn tried(&mut self, message: &Message, is_sent: bool) {
        if is_sent {
            self.sent = self.sent.and(&message.numbers);
        } else {
            self.say_again_at = None;
        }
    }

    fn hear(&mut self, tallies: &Tallies, me: &InstanceId, payload: &[u8], now: Instant) {
        let Ok(Message { from, wants, numbers }) = serde_json::from_slice(payload) else {
            tracing::warn!("a message with numbers of job events cannot be read");
            return;
        };
        if from == me.as_str() {
            return;
        }
        if wants {
            self.wanted_until = Some(now + WANTED_FOR);
        }
        tallies.elsewhere.add(numbers);
    }
}

const _: () = assert!(TALLIED_EVERY.as_millis() <= Duration::from_secs(1).as_millis());

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str) -> (Arc<Tallies>, Talk, InstanceId) {
        (Arc::default(), Talk::default(), InstanceId::parse(name).unwrap())
    }

    fn numbers(changes: u64, progress: u64) -> EventNumbers {
        EventNumbers { changes, progress }
    }

    #[test]
    fn a_tally_has_what_happened_since_it_was_taken_last() {
        let tallies = Arc::<Tallies>::default();
        tallies.changed();
        let mut tally = tallies.open();
        assert_eq!(tally.take(), (numbers(0, 0), false), "it counts from its making on");
        tallies.changed();
        tallies.changed();
        tallies.progressed();
        tallies.elsewhere.add(numbers(10, 0));
        tallies.gaps.fetch_add(1, Ordering::Relaxed);
        assert_eq!(tally.take(), (numbers(12, 1), true));
        assert_eq!(tally.take(), (numbers(0, 0), false));
        drop(tally);
        assert_eq!(tallies.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn numbers_go_to_those_who_want_them_and_each_event_once() {
        let now = Instant::now();
        let (a, mut of_a, id_a) = instance("a");
        let (b, mut of_b, id_b) = instance("b");
        b.changed();
        assert!(of_b.due(&b, &id_b, now).is_none(), "nobody wants it");
        assert!(of_a.due(&a, &id_a, now).is_none(), "nobody counts here");

        let mut tally = a.open();
        let carry = |to: &Tallies, talk: &mut Talk, me: &InstanceId, message: &Message, at: Instant| {
            talk.hear(to, me, &serde_json::to_vec(message).unwrap(), at);
        };
        let want = of_a.due(&a, &id_a, now).unwrap();
        assert!(want.wants);
        carry(&a, &mut of_a, &id_a, &want, now);
        carry(&b, &mut of_b, &id_b, &want, now);
        assert!(of_a.due(&a, &id_a, now).is_none(), "it was said a moment ago");
        assert!(of_b.due(&b, &id_b, now).is_none(), "nothing has happened since");
        b.changed();
        b.progressed();
        let told = of_b.due(&b, &id_b, now).unwrap();
        assert_eq!((told.wants, told.numbers), (false, numbers(1, 1)));
        of_b.tried(&told, false);
        let told = of_b.due(&b, &id_b, now).unwrap();
        assert_eq!(told.numbers, numbers(1, 1), "it could not be sent the first time");
        of_b.tried(&told, true);
        carry(&a, &mut of_a, &id_a, &told, now);
        carry(&b, &mut of_b, &id_b, &told, now);
        assert_eq!(tally.take(), (numbers(1, 1), false));
        assert!(of_b.due(&b, &id_b, now).is_none(), "each event is told once");

        let later = now + 2 * WANTED_AGAIN_EVERY;
        assert!(of_a.due(&a, &id_a, later).unwrap().wants, "it is said again");
        b.changed();
        assert!(of_b.due(&b, &id_b, now + WANTED_FOR).is_none(), "it was wanted too long ago");
        drop(tally);
        assert!(of_a.due(&a, &id_a, later + 2 * WANTED_AGAIN_EVERY).is_none());
    }
}
