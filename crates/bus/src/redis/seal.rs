//! Seals: what shows that an entry or a notice comes from an instance of this cluster, and was not seen before.
//!
//! A stranger who can write to Redis could otherwise revoke attempts, or send them to nodes. Each message carries its sender, the
//! sender's number for it, and an HMAC-SHA256 (RFC 2104, cut to 128 bits) over these, the place that the message is for,
//! and its text. The key is derived from the cluster's secret and the ledger's id, so no message of one cluster is taken in
//! another, no entry of one inbox in another, and no notice on another channel. [`Replays`] remembers the numbers; entries
//! and notices have their own.
//!
//! What a sealed message looks like: version (1 byte), sender (16), number (8, big-endian), seal (16), text.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::InstanceId;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::limits::{INBOX_ENTRY_BYTES_MAX, NOTICE_BYTES_MAX};
use crate::{Channel, Cluster};

/// The version of the form.
const VERSION: u8 = 1;
const SENDER_BYTES: usize = 16;
const NUMBER_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
/// By how much a sealed message is longer than its text.
pub(super) const SEAL_BYTES: usize = 1 + SENDER_BYTES + NUMBER_BYTES + TAG_BYTES;

/// What a message is for. It counts nowhere else.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// An instance's inbox.
    Inbox(&'a InstanceId),
    /// A channel of notices.
    Channel(Channel),
}

impl Place<'_> {
    fn parts(&self) -> (u8, &str) {
        match self {
            Self::Inbox(owner) => (b'i', owner.as_str()),
            Self::Channel(channel) => (b'c', channel.as_str()),
        }
    }

    /// Where messages for it are numbered: see [`Sealer::next`].
    const fn numbering(&self) -> usize {
        match self {
            Self::Inbox(_) => 0,
            Self::Channel(_) => 1,
        }
    }

    /// The longest text of a message for it.
    const fn text_bytes_max(&self) -> usize {
        match self {
            Self::Inbox(_) => INBOX_ENTRY_BYTES_MAX,
            Self::Channel(_) => NOTICE_BYTES_MAX,
        }
    }
}

/// A message, by who sent it as which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) sender: u128,
    pub(super) number: u64,
}

/// Seals what one handle sends, and opens what any handle of the cluster sent.
pub(super) struct Sealer {
    keyed: Hmac<Sha256>,
    sender: u128,
    /// The next numbers of an entry and of a notice. Each kind counts for itself, so that many notices move no window of
    /// entries on.
    next: [AtomicU64; 2],
}

impl Sealer {
    /// A sealer of its own name. A process that starts again has another one.
    pub(super) fn new(cluster: &Cluster) -> Self {
        let mut derive = keyed(cluster.secret.expose().as_bytes());
        derive.update(b"fencepost bus 1\0");
        derive.update(cluster.id.as_bytes());
        let key = derive.finalize().into_bytes();
        Self { keyed: keyed(&key), sender: rand::random(), next: [AtomicU64::new(1), AtomicU64::new(1)] }
    }

    pub(super) fn seal(&self, place: Place<'_>, text: &[u8]) -> Vec<u8> {
        let number = self.next[place.numbering()].fetch_add(1, Ordering::Relaxed);
        let mut sealed = Vec::with_capacity(SEAL_BYTES + text.len());
        sealed.push(VERSION);
        sealed.extend(self.sender.to_be_bytes());
        sealed.extend(number.to_be_bytes());
        let tag = self.mac(place, &sealed, text).finalize().into_bytes();
        sealed.extend(&tag[..TAG_BYTES]);
        sealed.extend(text);
        sealed
    }

    /// The text and its origin; `None` for what no instance of this cluster sealed for this place.
    pub(super) fn open<'m>(&self, place: Place<'_>, sealed: &'m [u8]) -> Option<(Origin, &'m [u8])> {
        let (head, rest) = sealed.split_at_checked(SEAL_BYTES - TAG_BYTES)?;
        let (tag, text) = rest.split_at_checked(TAG_BYTES)?;
        let (version, origin) = head.split_first()?;
        if *version != VERSION || text.len() > place.text_bytes_max() {
            return None;
        }
        self.mac(place, head, text).verify_truncated_left(tag).ok()?;
        let (sender, number) = origin.split_first_chunk()?;
        let sender = u128::from_be_bytes(*sender);
        Some((Origin { sender, number: u64::from_be_bytes(number.try_into().ok()?) }, text))
    }

    fn mac(&self, place: Place<'_>, head: &[u8], text: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        let (kind, name) = place.parts();
        mac.update(&[kind]);
        mac.update(&(name.len() as u64).to_be_bytes());
        mac.update(name.as_bytes());
        mac.update(head);
        mac.update(text);
        mac
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of HMAC has any length")
}

/// Words of a window.
const WINDOW_WORDS: usize = 128;
/// How far a message may be behind the newest of its sender. One that is further behind counts as seen.
const WINDOW: u64 = (WINDOW_WORDS * u64::BITS as usize) as u64;
/// Senders that are remembered. Beyond that the one that was heard of longest ago is forgotten.
const SENDERS_MAX: usize = 1_024;

/// Which numbers of one sender were seen: the newest, and those of a window behind it (as RFC 6479 does for packets).
struct Window {
    newest: u64,
    words: Box<[u64; WINDOW_WORDS]>,
    /// When it was last noted, as [`Replays`] counts.
    noted: u64,
}

impl Window {
    fn has(&self, number: u64) -> bool {
        if number > self.newest {
            return false;
        }
        let (word, bit) = place_in_window(number);
        self.newest - number >= WINDOW || self.words[word] & bit != 0
    }

    fn note(&mut self, number: u64) {
        if number > self.newest {
            let passed = (number - self.newest).min(WINDOW);
            for skipped in (number - passed + 1)..=number {
                let (word, bit) = place_in_window(skipped);
                self.words[word] &= !bit;
            }
            self.newest = number;
        } else if self.newest - number >= WINDOW {
            return;
        }
        let (word, bit) = place_in_window(number);
        self.words[word] |= bit;
    }
}

const fn place_in_window(number: u64) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / u64::BITS as u64) as usize, 1 << (at % u64::BITS as u64))
}

/// Which messages of one place were seen, by their senders.
#[derive(Default)]
pub(super) struct Replays {
    senders: HashMap<u128, Window>,
    clock: u64,
}

impl Replays {
    /// Whether the message was noted before, or is too old to know.
    pub(super) fn has(&self, origin: Origin) -> bool {
        self.senders.get(&origin.sender).is_some_and(|window| window.has(origin.number))
    }

    /// Notes the message.
    pub(super) fn note(&mut self, origin: Origin) {
        self.clock += 1;
        if self.senders.len() >= SENDERS_MAX && !self.senders.contains_key(&origin.sender) {
            let oldest =
                self.senders.iter().min_by_key(|(_, window)| window.noted).map(|(sender, _)| *sender);
            oldest.map(|sender| self.senders.remove(&sender));
        }
        let window = self.senders.entry(origin.sender).or_insert_with(|| Window {
            newest: 0,
            words: Box::new([0; WINDOW_WORDS]),
            noted: 0,
        });
        window.note(origin.number);
        window.noted = self.clock;
    }

    /// Notes the message; whether it is new.
    pub(super) fn is_new(&mut self, origin: Origin) -> bool {
        let is_new = !self.has(origin);
        if is_new {
            self.note(origin);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use domain::ClusterSecret;

    use super::*;

    fn sealer(secret: &str, id: &str) -> Sealer {
        let secret = ClusterSecret::parse(&secret.repeat(32)).unwrap();
        Sealer::new(&Cluster { id: id.to_owned(), secret })
    }

    #[test]
    fn a_message_opens_where_it_was_sealed_for_and_nowhere_else() {
        let (here, there) = (sealer("s", "c"), sealer("s", "c"));
        let [one, two] = ["i-1", "i-2"].map(|id| InstanceId::parse(id).unwrap());
        let sealed = here.seal(Place::Inbox(&one), b"text");
        assert_eq!(sealed.len(), SEAL_BYTES + 4);
        let (origin, text) = there.open(Place::Inbox(&one), &sealed).unwrap();
        assert_eq!((origin.number, text), (1, &b"text"[..]));
        for number in 1..=3 {
            let notice = here.seal(Place::Channel(Channel::Jobs), b"text");
            let (origin, _) = there.open(Place::Channel(Channel::Jobs), &notice).unwrap();
            assert_eq!(origin.number, number);
        }
        let second = here.seal(Place::Inbox(&two), b"text");
        let (origin, _) = there.open(Place::Inbox(&two), &second).unwrap();
        assert_eq!(origin.number, 2, "notices count for themselves");
        assert!(there.open(Place::Inbox(&two), &sealed).is_none());
        let notice = here.seal(Place::Channel(Channel::Jobs), b"text");
        assert!(there.open(Place::Channel(Channel::Jobs), &notice).is_some());
        assert!(there.open(Place::Channel(Channel::Nodes), &notice).is_none());
        for stranger in [sealer("t", "c"), sealer("s", "d")] {
            assert!(stranger.open(Place::Inbox(&one), &sealed).is_none());
        }
    }

    #[test]
    fn no_changed_byte_and_no_cut_opens() {
        let here = sealer("s", "c");
        let place = Place::Channel(Channel::Cluster);
        let sealed = here.seal(place, b"mode");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(here.open(place, &changed).is_none(), "byte {at}");
            assert!(here.open(place, &sealed[..at]).is_none(), "cut at {at}");
        }
        assert!(here.open(place, &[sealed, vec![0]].concat()).is_none());
        let largest = vec![0; NOTICE_BYTES_MAX + 1];
        assert!(here.open(place, &here.seal(place, &largest[1..])).is_some());
        assert!(here.open(place, &here.seal(place, &largest)).is_none(), "it is too large");
    }

    #[test]
    fn a_message_is_new_once_in_any_order_within_the_window() {
        let origin = |number| Origin { sender: 7, number };
        let mut replays = Replays::default();
        for number in [1, 3, 2, 70, WINDOW + 69, 71] {
            assert!(replays.is_new(origin(number)), "{number}");
            assert!(!replays.is_new(origin(number)), "{number} again");
        }
        assert!(!replays.is_new(origin(69)), "too old to know");
        assert!(replays.is_new(origin(72)));
        assert!(replays.is_new(origin(u64::MAX)) && !replays.is_new(origin(u64::MAX)));
        assert!(replays.is_new(Origin { sender: 8, number: 1 }), "each sender counts for itself");
    }

    #[test]
    fn the_sender_that_was_heard_of_longest_ago_is_forgotten() {
        let mut replays = Replays::default();
        let origin = |sender| Origin { sender, number: 1 };
        for sender in 0..SENDERS_MAX as u128 {
            assert!(replays.is_new(origin(sender)));
        }
        assert!(replays.is_new(Origin { sender: 0, number: 2 }), "heard of again");
        assert!(replays.is_new(origin(u128::MAX)));
        assert_eq!(replays.senders.len(), SENDERS_MAX);
        assert!(!replays.is_new(origin(0)) && replays.is_new(origin(1)), "the second was forgotten");
    }
}
