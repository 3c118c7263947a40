//! What instances say to each other about watches: which topics are listened to, and the events of those. It goes over
//! Pub/Sub, so it may be lost. An instance repeats its topics; the others send events of a topic for a while after they
//! heard it last.

use std::sync::{Arc, Weak};
use std::time::Instant;

use bus::{Channel, Event, Subscription};
use domain::job::{Attempt, Outcome, State};
use domain::limits::PROGRESS_NOTE_CHARS_MAX;
use domain::{InstanceId, JobId, LaneId, NodeId};
use ledger::jittered;
use nodes::connection::{Percent, Progress};
use panic_guard::{guarded, guarded_call};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::finish_interest::Listed;
use super::{JobEvent, JobEventKind, Topic, Watches};
use crate::jobs::limits::WANTED_AGAIN_EVERY;

/// What stands among an instance's topics before a lane whose session it has closed. An instance that does not know the word
/// takes it for no topic.
const CLOSED: &str = "closed ";
/// Notices that are sent at once.
const NOTICES_SENT_AT_ONCE: usize = 512;
/// Topics of one word.
pub(super) const TOPICS_AT_ONCE: usize = 256;
/// Bytes of the words of one message. No word is larger.
const WORDS_BYTES_MAX: usize = 60 << 10;
/// A topic with a name at its longest.
const TOPIC_BYTES_MAX: usize = 170;
/// The largest notice: the longest note, with each character escaped.
const WORD_BYTES_MAX: usize = 1_000 + 6 * PROGRESS_NOTE_CHARS_MAX;

const _: () = assert!(TOPICS_AT_ONCE * TOPIC_BYTES_MAX + 300 <= WORDS_BYTES_MAX);
const _: () = assert!(WORD_BYTES_MAX <= WORDS_BYTES_MAX);
const _: () = assert!(WORDS_BYTES_MAX + 300 <= bus::limits::NOTICE_BYTES_MAX);

/// One message: who says it, and its words.
#[derive(Serialize, Deserialize)]
pub(super) struct Message {
    from: String,
    pub(super) notices: Vec<Notice>,
}

/// One notice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::jobs) enum Notice {
    /// The sending instance listens to these topics.
    Want {
        topics: Vec<String>,
        /// The instance that must answer with the job's progress, or that it knows none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ask: Option<String>,
        /// Whether this repeats an earlier announcement.
        #[serde(default, skip_serializing_if = "is_false")]
        again: bool,
    },
    /// An event of a job.
    #[serde(rename = "seen")]
    Event(JobNotice),
    /// The answer of an instance that knows no progress of this job.
    Nothing { job: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::jobs) struct JobNotice {
    job: String,
    attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lane: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    percent: Option<u8>,
    /// The percentage where it is no whole number. Instances before 0.2.0 read `percent` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exact_percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

const fn is_false(value: &bool) -> bool {
    !*value
}

impl Notice {
    pub(super) fn of(seen: &JobEvent) -> Self {
        let (state, outcome, progress) = match &seen.kind {
            JobEventKind::Changed(state, outcome) => (Some(*state), *outcome, None),
            JobEventKind::Progressed(progress) => (None, None, Some(progress)),
        };
        let percent = progress.and_then(|progress| progress.percent).map(Percent::get);
        Self::Event(JobNotice {
            job: seen.job.to_string(),
            attempt: seen.attempt.get(),
            lane: seen.lane.as_ref().map(ToString::to_string),
            node: seen.node.as_ref().map(ToString::to_string),
            state: state.map(|state| state.as_str().to_owned()),
            outcome: outcome.map(|outcome| outcome.as_str().to_owned()),
            percent: percent.map(|percent| percent.round() as u8),
            exact_percent: percent.filter(|percent| percent.fract() != 0.0),
            note: progress.and_then(|progress| progress.note.clone()),
        })
    }
}

impl JobNotice {
    pub(super) fn read(self) -> Option<JobEvent> {
        let kind = match self.state {
            Some(state) => {
                let outcome = self.outcome.map(|outcome| Outcome::parse(&outcome)).transpose().ok()?;
                JobEventKind::Changed(State::parse(&state).ok()?, outcome)
            }
            None => {
                let percent = self.exact_percent.or(self.percent.map(f64::from)).and_then(Percent::new);
                JobEventKind::Progressed(Progress { percent, note: self.note })
            }
        };
        Some(JobEvent {
            job: JobId::parse(&self.job)?,
            attempt: Attempt::new(self.attempt),
            lane: self.lane.map(|lane| LaneId::parse(&lane)).transpose().ok()?,
            node: self.node.map(|node| NodeId::parse(&node)).transpose().ok()?,
            kind,
        })
    }
}

impl Topic {
    pub(super) fn written(&self) -> String {
        match self {
            Self::Job(job) => format!("job {job}"),
            Self::Lane(lane) => format!("lane {lane}"),
            Self::All => "all".to_owned(),
        }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            Some(("job", job)) => JobId::parse(job).map(Self::Job),
            Some(("lane", lane)) => LaneId::parse(lane).ok().map(Self::Lane),
            None if text == "all" => Some(Self::All),
            _ => None,
        }
    }
}

impl Watches {
    /// Asks the other instances for events of a topic, at first or because a listener asks for progress.
    pub(super) fn want(&self, topic: &Topic, ask: Option<InstanceId>) {
        let ask = ask.map(|asked| asked.to_string());
        self.put(Notice::Want { topics: vec![topic.written()], ask, again: false });
    }

    pub(super) fn want_all(&self, topics: &[Topic], again: bool) {
        for topics in topics.chunks(TOPICS_AT_ONCE) {
            let topics = topics.iter().map(Topic::written).collect();
            self.put(Notice::Want { topics, ask: None, again });
        }
    }

    /// Says again what is listened to here.
    fn repeat(&self) {
        let topics = self.sweep();
        self.want_all(&topics, true);
        self.announce_finish_interest();
    }

    /// Announces whether callers wait here.
    fn announce_finish_interest(&self) {
        self.finish_interest.repeat(Instant::now(), |topic| self.announce(topic));
    }

    pub(super) fn announce(&self, topic: &str) {
        self.put(Notice::Want { topics: vec![topic.to_owned()], ask: None, again: true });
    }

    /// The one that was asked has nothing to say.
    fn nothing(&self, job: JobId) {
        self.missed_in(&Topic::Job(job));
    }

    /// Tells the other instances that the session of a lane is closed.
    pub(super) fn tell_closed(&self, lane: &LaneId) {
        self.announce(&format!("{CLOSED}{lane}"));
    }

    /// Reads a topic that another instance has listed, if it says that a lane's session is closed.
    fn hear_closed(&self, topic: &str) -> bool {
        let Some(lane) = topic.strip_prefix(CLOSED) else { return false };
        if let Ok(lane) = LaneId::parse(lane) {
            self.missed_in(&Topic::Lane(lane));
        }
        true
    }
}

/// What is known here of how far a job is, whose node is connected to this instance.
pub(in crate::jobs) type ProgressSource = Box<dyn Fn(JobId) -> Option<JobEvent> + Send + Sync>;

/// What hears the other instances.
pub(super) struct Hearing<'h> {
    pub(super) watches: &'h Watches,
    pub(super) me: &'h InstanceId,
    pub(super) progress: &'h ProgressSource,
}

impl Hearing<'_> {
    fn take(&self, event: Event) {
        match event {
            Event::Message(payload) => self.hear(&payload),
            Event::Resumed | Event::Lagged { .. } => {
                // What is listened to may not have been heard elsewhere either.
                let topics = self.watches.sweep();
                self.watches.want_all(&topics, false);
                self.watches.finish_interest.missed();
                self.watches.announce_finish_interest();
                self.watches.missed();
            }
        }
    }

    pub(super) fn hear(&self, payload: &[u8]) {
        let Some(Message { from, notices }) = read(payload) else {
            tracing::warn!("a notice about listeners cannot be read");
            return;
        };
        // Watches on this instance had it without the bus.
        if from == self.me.as_str() {
            return;
        }
        let Ok(from) = InstanceId::parse(&from) else { return };
        for notice in notices {
            match notice {
                Notice::Want { topics, ask, again } => {
                    let is_asked = ask.is_some_and(|asked| asked == self.me.as_str());
                    for topic in topics {
                        if self.watches.hear_closed(&topic) {
                            continue;
                        }
                        match self.watches.finish_interest.receive(&from, &topic, Instant::now()) {
                            Listed::First => self.watches.announce_finish_interest(),
                            Listed::Again => {}
                            Listed::Other => self.hear_wanted(&topic, again, is_asked),
                        }
                    }
                }
                Notice::Event(word) => {
                    if let Some(event) = word.read() {
                        self.watches.hand_out(event);
                    }
                }
                Notice::Nothing { job } => {
                    if let Some(job) = JobId::parse(&job) {
                        self.watches.nothing(job);
                    }
                }
            }
        }
    }

    /// Another instance listens to a topic.
    fn hear_wanted(&self, topic: &str, again: bool, is_asked: bool) {
        let Some(topic) = Topic::read(topic) else { return };
        self.watches.wanted_by_another(topic.clone());
        if let (Topic::Job(job), false) = (topic, again) {
            self.answer_with_progress(job, is_asked);
        }
    }

    /// How far a job is whose node is connected here, for an instance that has begun to listen.
    fn answer_with_progress(&self, job: JobId, is_asked: bool) {
        match (self.progress)(job) {
            Some(event) => self.watches.put(Notice::of(&event)),
            None if is_asked => self.watches.put(Notice::Nothing { job: job.to_string() }),
            None => {}
        }
    }
}

/// Receives and sends notices, as long as another handle to the watches exists.
pub(in crate::jobs) fn start(
    watches: &Arc<Watches>,
    bus: &bus::Handle,
    me: &InstanceId,
    to_tell: mpsc::Receiver<Notice>,
    progress: ProgressSource,
) {
    let weak = Arc::downgrade(watches);
    tokio::spawn(async move {
        while let Some(watches) = weak.upgrade() {
            guarded_call("the repetition of what is listened to", || watches.repeat());
            drop(watches);
            tokio::time::sleep(jittered(WANTED_AGAIN_EVERY)).await;
        }
    });
    if bus.kind() == bus::Kind::Local {
        return;
    }
    tokio::spawn(tell(bus.clone(), me.clone(), to_tell));
    tokio::spawn(hear(bus.subscribe(Channel::Watches), Arc::downgrade(watches), me.clone(), progress));
}

/// Takes what the other instances say, as long as another handle to the watches exists.
pub(super) async fn hear(
    mut heard: Subscription,
    watches: Weak<Watches>,
    me: InstanceId,
    progress: ProgressSource,
) {
    while let Some(event) = heard.next().await {
        let Some(watches) = watches.upgrade() else { return };
        let hearing = Hearing { watches: &watches, me: &me, progress: &progress };
        guarded_call("the notices about listeners", || hearing.take(event));
    }
}

async fn tell(bus: bus::Handle, me: InstanceId, mut to_tell: mpsc::Receiver<Notice>) {
    let mut gathered = Vec::new();
    while to_tell.recv_many(&mut gathered, NOTICES_SENT_AT_ONCE).await > 0 {
        let publish = async {
            for payload in messages(&me, gathered.drain(..)) {
                if let Err(error) = bus.publish(Channel::Watches, &payload).await {
                    tracing::debug!(%error, "notices of job events were lost; listeners read the ledger");
                }
            }
        };
        guarded("the notices of job events", publish).await;
    }
}

/// `None` for what no version of Fencepost wrote.
pub(super) fn read(payload: &[u8]) -> Option<Message> {
    serde_json::from_slice(payload).ok()
}

/// Packs these notices into as few messages as the bus's size limit allows.
pub(super) fn messages(me: &InstanceId, notices: impl Iterator<Item = Notice>) -> Vec<Vec<u8>> {
    let (mut written, mut words, mut bytes) = (Vec::new(), Vec::new(), 0);
    let close = |words: &mut Vec<Notice>| {
        let message = Message { from: me.to_string(), notices: std::mem::take(words) };
        serde_json::to_vec(&message).expect("it has text keys only")
    };
    for notice in notices {
        let length = serde_json::to_vec(&notice).expect("it has text keys only").len() + 1;
        if bytes + length > WORDS_BYTES_MAX && !words.is_empty() {
            written.push(close(&mut words));
            bytes = 0;
        }
        bytes += length;
        words.push(notice);
    }
    if !words.is_empty() {
        written.push(close(&mut words));
    }
    written
}
