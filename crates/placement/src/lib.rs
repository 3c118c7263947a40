//! Which member of a cluster a key belongs to, by consistent hashing (Karger et al., 1997): a member that
//! joins or leaves moves only the keys that it takes or leaves.
//!
//! What lives here: the placement, on which servers and clients must agree. Each member has
//! [`POINTS_PER_MEMBER`] points on a circle of 64 bits; a key belongs to the member of the first point at
//! or after its own. A member's point `n` is SipHash-2-4, under a key of zeros, of its name followed by `n`
//! as four bytes, the lowest first; a key's point is the same hash of its bytes.
//! What must never: I/O, a clock, or an opinion on who is a member.

use std::hash::{BuildHasher, Hash, Hasher};

use hashring::{DefaultHashBuilder, HashRing};

/// Points of each member. With so many the busiest of ten members has about a fifth more keys than the
/// average.
pub const POINTS_PER_MEMBER: u32 = 160;

/// Bits of a version: any JSON reader takes numbers of this size as they are.
const VERSION_BITS: u32 = 53;

/// The members, and which keys belong to each. Immutable: a change of members makes another ring.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ring {
    /// Sorted, each once.
    members: Vec<String>,
    points: HashRing<Point>,
    version: u64,
}

/// One of a member's points.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    member: usize,
    name: String,
    number: u32,
}

impl Hash for Point {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.name.as_bytes());
        state.write(&self.number.to_le_bytes());
    }
}

/// A key, hashed as its bytes and nothing else.
struct Key<'k>(&'k str);

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0.as_bytes());
    }
}

impl Ring {
    /// The ring of these members, in whatever order they come.
    #[must_use]
    pub fn new<M: Into<String>>(members: impl IntoIterator<Item = M>) -> Self {
        let mut members: Vec<String> = members.into_iter().map(Into::into).collect();
        members.sort_unstable();
        members.dedup();
        let mut points = HashRing::new();
        let all = members.iter().enumerate().flat_map(|(member, name)| {
            (0..POINTS_PER_MEMBER).map(move |number| Point { member, name: name.clone(), number })
        });
        points.batch_add(all.collect());
        let version = version(&members);
        Self { members, points, version }
    }

    /// The member that a key belongs to; `None` where there is no member.
    #[must_use]
    pub fn owner(&self, key: &str) -> Option<&str> {
        self.points.get(&Key(key)).map(|point| self.members[point.member].as_str())
    }

    /// The members, sorted.
    #[must_use]
    pub fn members(&self) -> &[String] {
        &self.members
    }

    /// The same ring without some of its members.
    #[must_use]
    pub fn without(&self, gone: impl Fn(&str) -> bool) -> Self {
        Self::new(self.members.iter().filter(|member| !gone(member)).cloned())
    }

    /// Names the set of members: the same members have the same version, on every instance. It does not
    /// count. Below 2^53; 0 is the empty ring.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }
}

fn version(members: &[String]) -> u64 {
    if members.is_empty() {
        return 0;
    }
    let mut hasher = DefaultHashBuilder.build_hasher();
    for member in members {
        hasher.write(member.as_bytes());
        // No name has a line break.
        hasher.write(b"\n");
    }
    (hasher.finish() >> (u64::BITS - VERSION_BITS)).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn keys() -> impl Iterator<Item = String> {
        (0..20_000).map(|number| format!("signer:eip155:1:0x{number:x}"))
    }

    fn shares(ring: &Ring) -> HashMap<String, usize> {
        let mut shares = HashMap::new();
        for key in keys() {
            *shares.entry(ring.owner(&key).unwrap_or_default().to_owned()).or_default() += 1;
        }
        shares
    }

    #[test]
    fn every_member_gets_about_its_share() {
        let ring = Ring::new((0..10).map(|number| format!("node-{number}")));
        for (member, share) in shares(&ring) {
            assert!((1_400..=2_600).contains(&share), "{member} has {share} of 20000");
        }
    }

    #[test]
    fn a_newcomer_takes_its_share_and_moves_nothing_else() {
        let (before, after) = (Ring::new(["a", "b", "c"]), Ring::new(["a", "b", "c", "d"]));
        let moved: Vec<_> = keys().filter(|key| before.owner(key) != after.owner(key)).collect();
        assert!(moved.iter().all(|key| after.owner(key) == Some("d")));
        assert!((3_500..=6_500).contains(&moved.len()), "{} of 20000 moved", moved.len());
        assert_eq!(after.without(|member| member == "d"), before);
    }

    #[test]
    fn the_same_members_make_the_same_ring_in_any_order() {
        let (one, other) = (Ring::new(["b", "a", "b"]), Ring::new(["a", "b"]));
        assert_eq!(one, other);
        assert_eq!(one.version(), other.version());
        assert_ne!(one.version(), Ring::new(["ab"]).version());
        assert!(one.version() < 1 << VERSION_BITS);
    }

    #[test]
    fn an_empty_ring_owns_nothing() {
        let ring = Ring::new(Vec::<String>::new());
        assert_eq!((ring.owner("signer:x"), ring.version()), (None, 0));
    }

    /// Clients of another version, or in another language, must come to the same.
    #[test]
    fn the_placement_is_what_it_always_was() {
        let ring = Ring::new(["node-a-1", "node-b-1", "node-c-1"]);
        let placed: Vec<_> =
            ["signer:x", "signer:y", "signer:eip155:1:0xab"].map(|key| ring.owner(key)).to_vec();
        assert_eq!(placed, ["node-c-1", "node-b-1", "node-c-1"].map(Some));
        assert_eq!(ring.version(), 5_429_531_130_734_244);
    }
}
