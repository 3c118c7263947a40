//! Idempotency keys on their way into the tables: what is kept, and which batches are rejected when a key was taken.

use crate::train::Fence;
use crate::{Batch, KeyScope, NewKey, Verdict, records};

/// A key to keep, and the text to keep under it.
pub(crate) struct Keeping<'a> {
    pub(crate) scope: &'a KeyScope,
    pub(crate) body_hash: &'a [u8; 32],
    pub(crate) answer: String,
}

/// A batch's key, to be kept.
pub(crate) fn keeping(key: &NewKey) -> Keeping<'_> {
    Keeping { scope: &key.scope, body_hash: &key.body_hash, answer: records::kept_text(&key.answer) }
}

/// The batches of a train of nonces that are written, by their places in the train, and the verdicts on the others.
pub(crate) struct Admitted<'a> {
    batches: &'a [Batch],
    pub(crate) places: Vec<usize>,
    pub(crate) verdicts: Vec<Verdict>,
}

impl<'a> Admitted<'a> {
    /// Those whose lease the fence has locked; they are committed at that time.
    pub(crate) fn of(batches: &'a [Batch], fences: &[Fence], at: domain::Timestamp) -> Self {
        let verdict = |fence: &Fence| match fence {
            Fence::Holds => Verdict::Committed { at },
            Fence::Again => Verdict::Again,
            Fence::Fenced => Verdict::Fenced,
        };
        let verdicts = fences.iter().map(verdict).collect();
        let places = (0..batches.len()).filter(|&n| fences[n] == Fence::Holds).collect();
        Self { batches, places, verdicts }
    }

    /// The batches that are written.
    pub(crate) fn batches(&self) -> impl Iterator<Item = &'a Batch> {
        self.places.iter().map(|&n| &self.batches[n])
    }

    /// Their keys, in order.
    pub(crate) fn keys(&self) -> Vec<Keeping<'a>> {
        self.batches().flat_map(|batch| &batch.keys).map(keeping).collect()
    }

    /// Rejects the batches of which a key was taken. `is_new` is of [`Self::keys`], in their order. Answers the keys
    /// that were kept for nothing and must be taken back.
    pub(crate) fn reject_taken_keys(&mut self, is_new: &[bool]) -> Vec<&'a KeyScope> {
        let (mut is_new, mut back) = (is_new.iter(), Vec::new());
        let (batches, verdicts) = (self.batches, &mut self.verdicts);
        self.places.retain(|&n| {
            let keys = &batches[n].keys;
            let kept: Vec<_> =
                keys.iter().zip(&mut is_new).filter_map(|(key, new)| new.then_some(&key.scope)).collect();
            let taken = kept.len() < keys.len();
            if taken {
                verdicts[n] = Verdict::KeyTaken;
                back.extend(kept);
            }
            !taken
        });
        back
    }
}
