//! What is known of one node, and the form in which it is kept on the bus.
//!
//! The parts that never change while a connection lives are its [`Profile`]; they come with its hello, and a new
//! hello is a new connection with a new epoch. What changes with every heartbeat is its [`Status`] and [`Load`].

use std::sync::Arc;

use bus::{Epoch, NodeRecord, NodeState, Report, Version};
use domain::limits::{NODE_CAPACITY_MAX, NODE_LABELS_MAX, NODE_POOLS_MAX};
use domain::{InstanceId, Invalid, Label, Language, NodeId, NodeTimeouts, PoolName};
use serde::{Deserialize, Serialize};

use crate::limits::{DOCUMENT_BYTES_MAX, HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN, SOFTWARE_CHARS_MAX};

/// Stands before the source language in the label of a node that hears it.
pub(crate) const HEARS: &str = "asr:";
/// Stands before the target language in the label of a node that speaks it.
pub(crate) const SPEAKS: &str = "tts:";
/// Stands before a language in the label of a node that understands it.
const UNDERSTANDS: &str = "semantic:";

/// The form of the document that is written here.
const DOCUMENT_FORM: u32 = 1;

/// When something was so: a newer one is never less, over all connections of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The connection; what an older one says loses.
    pub epoch: Epoch,
    /// The record's version.
    pub version: Version,
}

/// What a node says that it can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Services; each is a label as it is.
    pub services: Vec<Label>,
    /// Languages that it hears: `asr:zh`.
    pub hears: Vec<Language>,
    /// Languages that it speaks: `tts:en`.
    pub speaks: Vec<Language>,
    /// Languages that it understands: `semantic:zh`.
    pub understands: Vec<Language>,
    /// Labels as they are.
    pub labels: Vec<Label>,
}

impl Abilities {
    /// All of it as labels: sorted, each once.
    ///
    /// # Errors
    /// [`Invalid`] beyond [`NODE_LABELS_MAX`].
    pub fn into_labels(self) -> Result<Arc<[Label]>, Invalid> {
        let Self { services, hears, speaks, understands, labels } = self;
        let of = |prefix: &'static str, languages: Vec<Language>| {
            languages.into_iter().map(move |language| {
                Label::parse(&format!("{prefix}{language}")).expect("a language is shorter than a label")
            })
        };
        let mut all: Vec<_> = services.into_iter().chain(labels).collect();
        all.extend(of(HEARS, hears).chain(of(SPEAKS, speaks)).chain(of(UNDERSTANDS, understands)));
        all.sort_unstable();
        all.dedup();
        if all.len() > NODE_LABELS_MAX {
            let expected = format!("at most {NODE_LABELS_MAX}, those of services and languages included");
            return Err(Invalid { what: "labels", expected });
        }
        Ok(all.into())
    }
}

/// What stays the same while a connection lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The node.
    pub node: NodeId,
    /// The instance that holds its socket.
    pub holder: InstanceId,
    /// What it can do: sorted, each once.
    pub labels: Arc<[Label]>,
    /// Those of its labels that are services, as it said: sorted, each once.
    pub services: Arc<[Label]>,
    /// The only pools that it joins; `None` for all whose requirements it meets.
    pub pools: Option<Arc<[PoolName]>>,
    /// How often it is to send a heartbeat, in milliseconds.
    pub heartbeat_ms: u64,
    /// What it calls its software; at most [`SOFTWARE_CHARS_MAX`] characters of it are kept.
    pub software: Option<Arc<str>>,
    /// Whose token connected it; empty where there are no tokens.
    pub principal: Arc<str>,
}

impl Profile {
    /// The profile of a node that says nothing of itself but its id, and is to send a heartbeat every `heartbeat_ms`.
    #[must_use]
    pub fn new(node: NodeId, holder: InstanceId, heartbeat_ms: u64) -> Self {
        let (labels, services, principal) = Default::default();
        Self { node, holder, labels, services, pools: None, heartbeat_ms, software: None, principal }
    }

    /// Whether it has this label.
    #[must_use]
    pub fn has(&self, label: &Label) -> bool {
        self.labels.binary_search(label).is_ok()
    }
}

/// Whether a node may get work, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Attempts that it may run at once.
    pub capacity: u32,
    /// Slots that are taken, reserved ones included.
    pub used: u32,
    /// Its slots are all known; until they are, none can be reserved.
    pub is_complete: bool,
    /// Whether it gets work.
    pub state: NodeState,
}

/// How busy a node says that its machine is, in units of its operators' choice. Shown, never judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Its processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Its accelerators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<f64>,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
}

/// Everything that is known of a node at one version.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Which version of which connection.
    pub stamp: Stamp,
    /// What stays.
    pub profile: Arc<Profile>,
    /// What changes and is judged by.
    pub status: Status,
    /// What changes and is shown.
    pub load: Load,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// They were new.
    New,
    /// The version is known; it was refreshed since.
    Repeated,
    /// Newer ones are known.
    Stale,
    /// They speak of a connection whose record is not known; it is to be read.
    Unknown,
    /// There are [`crate::limits::NODES_MAX`] nodes already.
    TooMany,
}

impl Record {
    /// What its holder says of it to the bus, for as long as it is not offline for want of an update.
    #[must_use]
    pub fn report(&self, timeouts: &NodeTimeouts, is_lent: bool) -> Report {
        let Status { capacity, state, .. } = self.status;
        let document = Document::of(&self.profile, self.load).to_bytes().into();
        Report {
            capacity,
            state,
            document,
            ttl: timeouts.offline,
            vouched: (!is_lent).then_some(timeouts.vouched),
        }
    }

    /// What the bus keeps of a node, whose document must be one of these. Whether it is online is another question.
    #[must_use]
    pub fn from_kept(node: NodeId, kept: &NodeRecord) -> Option<Self> {
        let (profile, load) = Document::from_bytes(&kept.document)?.into_profile(node, kept.holder.clone());
        let NodeRecord { capacity, used, is_complete, state, .. } = *kept;
        Some(Self {
            stamp: Stamp { epoch: kept.epoch, version: kept.version },
            profile: Arc::new(profile),
            status: Status { capacity, used, is_complete, state },
            load,
        })
    }
}

/// What the bus keeps of a node without reading it: all of the record that the bus has no field for.
#[derive(Clone, Debug, PartialEq)]
struct Document {
    labels: Arc<[Label]>,
    services: Arc<[Label]>,
    pools: Option<Arc<[PoolName]>>,
    heartbeat_ms: u64,
    software: Option<Arc<str>>,
    principal: Arc<str>,
    load: Load,
}

/// The document as JSON. Fields that a newer form added are passed over.
#[derive(Serialize, Deserialize)]
struct Form {
    form: u32,
    labels: Vec<String>,
    /// Which of the labels are services, by their places in the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    services: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pools: Option<Vec<String>>,
    heartbeat_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    software: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    principal: String,
    #[serde(default)]
    load: Load,
}

impl Document {
    /// The document of a node with this profile and load.
    fn of(profile: &Profile, load: Load) -> Self {
        let Profile { node: _, holder: _, labels, services, pools, heartbeat_ms, software, principal } =
            profile;
        Self {
            labels: Arc::clone(labels),
            services: Arc::clone(services),
            pools: pools.clone(),
            heartbeat_ms: *heartbeat_ms,
            software: software.clone(),
            principal: Arc::clone(principal),
            load,
        }
    }

    /// Its bytes, at most [`DOCUMENT_BYTES_MAX`] for every node that the limits allow.
    fn to_bytes(&self) -> Vec<u8> {
        let form = Form {
            form: DOCUMENT_FORM,
            labels: self.labels.iter().map(ToString::to_string).collect(),
            services: self.services.iter().filter_map(|one| self.labels.binary_search(one).ok()).collect(),
            pools: self.pools.as_ref().map(|pools| pools.iter().map(ToString::to_string).collect()),
            heartbeat_ms: self.heartbeat_ms,
            software: self.software.as_ref().map(|text| text.chars().take(SOFTWARE_CHARS_MAX).collect()),
            principal: self.principal.to_string(),
            load: self.load,
        };
        serde_json::to_vec(&form).expect("texts and numbers can be written")
    }

    /// Reads it. `None` for one that nobody of this kind can have written.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > DOCUMENT_BYTES_MAX {
            return None;
        }
        let form: Form = serde_json::from_slice(bytes).ok()?;
        let mut labels =
            form.labels.iter().map(|text| Label::parse(text)).collect::<Result<Vec<_>, _>>().ok()?;
        // Places are those of the list as it was written.
        let mut services: Vec<_> = form.services.iter().filter_map(|at| labels.get(*at)).cloned().collect();
        services.sort_unstable();
        services.dedup();
        labels.sort_unstable();
        labels.dedup();
        let pools = match form.pools {
            None => None,
            Some(names) => {
                let read: Result<Arc<[_]>, _> = names.iter().map(|name| PoolName::parse(name)).collect();
                Some(read.ok()?)
            }
        };
        let few = labels.len() <= NODE_LABELS_MAX && pools.as_ref().is_none_or(|p| p.len() <= NODE_POOLS_MAX);
        few.then_some(Self {
            labels: labels.into(),
            services: services.into(),
            pools,
            heartbeat_ms: form.heartbeat_ms.clamp(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX),
            software: form.software.map(Arc::from),
            principal: Arc::from(form.principal),
            load: form.load,
        })
    }

    /// The rest of what it says about this node.
    fn into_profile(self, node: NodeId, holder: InstanceId) -> (Profile, Load) {
        let Self { labels, services, pools, heartbeat_ms, software, principal, load } = self;
        (Profile { node, holder, labels, services, pools, heartbeat_ms, software, principal }, load)
    }
}

impl Status {
    const CAPACITY_SHIFT: u32 = 20;
    const COUNT_MASK: u64 = (1 << Self::CAPACITY_SHIFT) - 1;
    const INCOMPLETE: u64 = 1 << 40;
    const DRAINING: u64 = 1 << 41;
    const UNHEALTHY: u64 = 1 << 42;

    /// In one word, so that it is read and replaced as a whole.
    pub(crate) fn to_word(self) -> u64 {
        let count = |n: u32| u64::from(n).min(Self::COUNT_MASK);
        let state = match self.state {
            NodeState::Accepting => 0,
            NodeState::Draining => Self::DRAINING,
            NodeState::Unhealthy => Self::UNHEALTHY,
        };
        let slots = if self.is_complete { 0 } else { Self::INCOMPLETE };
        count(self.used) | count(self.capacity) << Self::CAPACITY_SHIFT | state | slots
    }

    /// Reads the word; bits beyond it say nothing.
    pub(crate) fn from_word(word: u64) -> Self {
        let count = |word: u64| u32::try_from(word & Self::COUNT_MASK).expect("twenty bits fit");
        let state = match word & (Self::DRAINING | Self::UNHEALTHY) {
            0 => NodeState::Accepting,
            Self::UNHEALTHY => NodeState::Unhealthy,
            _ => NodeState::Draining,
        };
        Self {
            used: count(word),
            capacity: count(word >> Self::CAPACITY_SHIFT),
            is_complete: word & Self::INCOMPLETE == 0,
            state,
        }
    }
}

const _: () = assert!((NODE_CAPACITY_MAX as u64) < Status::COUNT_MASK);

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> Label {
        Label::parse(text).unwrap()
    }

    fn languages(texts: &[&str]) -> Vec<Language> {
        texts.iter().map(|text| Language::parse(text).unwrap()).collect()
    }

    #[test]
    fn services_and_languages_become_labels_each_once() {
        let abilities = Abilities {
            services: vec![label("asr"), label("gpu")],
            hears: languages(&["zh", "en"]),
            speaks: languages(&["en"]),
            understands: languages(&["zh"]),
            labels: vec![label("gpu"), label("asr:zh")],
        };
        let labels = abilities.into_labels().unwrap();
        let texts: Vec<_> = labels.iter().map(Label::as_str).collect();
        assert_eq!(texts, ["asr", "asr:en", "asr:zh", "gpu", "semantic:zh", "tts:en"]);
    }

    #[test]
    fn too_many_labels_are_refused() {
        let many = (0..=NODE_LABELS_MAX).map(|n| label(&format!("l{n}"))).collect();
        let refusal = Abilities { labels: many, ..Abilities::default() }.into_labels().unwrap_err();
        assert!(refusal.to_string().contains("at most 256"), "{refusal}");
    }

    #[test]
    fn documents_read_back_and_newer_fields_are_passed_over() {
        let document = Document {
            labels: vec![label("asr:zh"), label("gpu"), label("ocr")].into(),
            services: vec![label("ocr")].into(),
            pools: Some(vec![PoolName::parse("zh-en").unwrap()].into()),
            heartbeat_ms: 2_000,
            software: Some("worker 1.2".into()),
            principal: "ops".into(),
            load: Load { cpu: Some(0.25), gpu: None, memory: Some(1.0) },
        };
        let bytes = document.to_bytes();
        assert_eq!(Document::from_bytes(&bytes), Some(document.clone()));
        let newer = String::from_utf8(bytes).unwrap().replacen('{', r#"{"colour":"blue","#, 1);
        assert_eq!(Document::from_bytes(newer.as_bytes()), Some(document.clone()));
        let older = newer.replace(r#""services":[2],"#, "");
        let read = Document::from_bytes(older.as_bytes()).expect("what an older release wrote");
        assert!(older.len() < newer.len() && read.services.is_empty());
        let wrong = newer.replace(r#""services":[2],"#, r#""services":[2,7,2],"#);
        assert_eq!(
            Document::from_bytes(wrong.as_bytes()),
            Some(document),
            "a place that does not exist is passed over"
        );
        for bad in ["", "{}", "null", r#"{"form":1,"labels":["a b"],"heartbeat_ms":1}"#] {
            assert_eq!(Document::from_bytes(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Document::from_bytes(&vec![b' '; DOCUMENT_BYTES_MAX + 1]), None);
    }

    #[test]
    fn the_largest_node_that_is_allowed_has_a_document_that_is_allowed() {
        let labels: Vec<_> = (0..NODE_LABELS_MAX).map(|n| label(&format!("{n:0>64}"))).collect();
        let pools: Vec<_> =
            (0..NODE_POOLS_MAX).map(|n| PoolName::parse(&format!("{n:0>64}")).unwrap()).collect();
        let document = Document {
            services: labels.clone().into(),
            labels: labels.into(),
            pools: Some(pools.into()),
            heartbeat_ms: HEARTBEAT_MS_MAX,
            software: Some("\u{1}".repeat(10_000).into()),
            principal: "\u{1}".repeat(64).into(),
            load: Load { cpu: Some(f64::MAX), gpu: Some(f64::MIN), memory: Some(f64::MIN_POSITIVE) },
        };
        let bytes = document.to_bytes();
        assert!(
            bytes.len() <= DOCUMENT_BYTES_MAX && Document::from_bytes(&bytes).is_some(),
            "{}",
            bytes.len()
        );
    }

    #[test]
    fn a_record_reads_back_from_what_the_bus_keeps_of_its_report() {
        let record = crate::fixture::record("n").labelled(&["gpu"]).used(2).held_by("b");
        let Report { capacity, state, document, ttl, vouched: _ } =
            record.report(&NodeTimeouts::DEFAULT, false);
        let kept = NodeRecord {
            holder: record.profile.holder.clone(),
            epoch: record.stamp.epoch,
            version: record.stamp.version,
            is_online: true,
            is_complete: true,
            capacity,
            used: 2,
            state,
            document,
            ttl,
        };
        let node = &record.profile.node;
        assert_eq!(Record::from_kept(node.clone(), &kept), Some(record.clone()));
        let foreign = NodeRecord { document: (*b"something else").into(), ..kept };
        assert_eq!(Record::from_kept(node.clone(), &foreign), None);
    }

    #[test]
    fn a_status_fits_into_one_word() {
        let base =
            Status { capacity: NODE_CAPACITY_MAX, used: 7, is_complete: true, state: NodeState::Accepting };
        for status in [
            base,
            Status { used: NODE_CAPACITY_MAX, ..base },
            Status { is_complete: false, ..base },
            Status { state: NodeState::Draining, ..base },
            Status { state: NodeState::Unhealthy, ..base },
        ] {
            assert_eq!(Status::from_word(status.to_word()), status);
        }
    }
}
