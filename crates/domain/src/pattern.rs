//! Patterns of names: which names a token sees.

use std::sync::Arc;

use crate::Invalid;
use crate::limits::PATTERN_CHARS_MAX;

/// A name in which each `*` stands for any characters, also for none: 1 to [`PATTERN_CHARS_MAX`] letters, digits and
/// `. _ : @ - *`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Arc<str>);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// [`Invalid`] for characters that no name has, and for an empty or over-long text.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._:@-*".contains(c);
        if (1..=PATTERN_CHARS_MAX).contains(&text.len()) && text.chars().all(is_allowed) {
            return Ok(Self(Arc::from(text)));
        }
        let expected =
            format!("1 to {PATTERN_CHARS_MAX} letters, digits and . _ : @ - with * for any characters");
        Err(Invalid { what: "pattern", expected })
    }

    /// Whether the name is one of the pattern's.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // The first place where a part fits leaves the most for those behind it.
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }

    /// What all its names begin with.
    fn prefix(&self) -> &str {
        self.0.split('*').next().unwrap_or_default()
    }

    /// The one name of a pattern without `*`.
    #[must_use]
    pub fn exact(&self) -> Option<&str> {
        (!self.0.contains('*')).then_some(&*self.0)
    }
}

/// The names of one kind that somebody sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// All of them, and what has no name.
    #[default]
    All,
    /// Those that one of the patterns matches.
    Some(Arc<[Pattern]>),
}

impl Names {
    /// Whether it is every name.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether the name is among them; what has no name is so only where all are.
    #[must_use]
    pub fn have<N: AsRef<str> + ?Sized>(&self, name: Option<&N>) -> bool {
        match (self, name) {
            (Self::All, _) => true,
            (Self::Some(_), None) => false,
            (Self::Some(patterns), Some(name)) => patterns.iter().any(|one| one.matches(name.as_ref())),
        }
    }

    /// Whether these are at least all that the others are, as far as the patterns themselves say.
    #[must_use]
    pub fn include(&self, others: &Self) -> bool {
        match (self, others) {
            (Self::All, _) => true,
            (Self::Some(_), Self::All) => false,
            (Self::Some(these), Self::Some(others)) => others.iter().all(|one| these.contains(one)),
        }
    }

    /// The only name, if there is just one.
    #[must_use]
    pub fn only(&self) -> Option<&str> {
        match self {
            Self::Some(patterns) if patterns.len() == 1 => patterns[0].exact(),
            Self::All | Self::Some(_) => None,
        }
    }

    /// What all of them begin with, as far as a single pattern says; empty where nothing is known.
    #[must_use]
    pub fn prefix(&self) -> &str {
        match self {
            Self::Some(patterns) if patterns.len() == 1 => patterns[0].prefix(),
            Self::All | Self::Some(_) => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, names, others) in [
            ("acme", &["acme"][..], &["acm", "acmes", "Acme", ""][..]),
            ("acme-*", &["acme-", "acme-1"], &["acme", "xacme-1"]),
            ("*-eu", &["-eu", "a-eu", "a-eu-eu"], &["a-eu-us", "eu"]),
            ("a*b*a", &["aba", "abba", "a-b-a", "abaaba"], &["aa", "ab", "ba", "aab"]),
            ("a*a", &["aa", "aba"], &["a", "ab"]),
            ("*", &["", "x"], &[]),
            ("**x", &["x", "axx"], &["xa"]),
        ] {
            let pattern = Pattern::parse(pattern).unwrap();
            for name in names {
                assert!(pattern.matches(name), "{pattern:?} {name}");
            }
            for name in others {
                assert!(!pattern.matches(name), "{pattern:?} {name}");
            }
        }
        for bad in ["", "a b", "a?", "[a]", "ä", &"a".repeat(PATTERN_CHARS_MAX + 1)] {
            assert!(Pattern::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_has_no_name_is_seen_only_by_who_sees_all() {
        let some =
            |texts: &[&str]| Names::Some(texts.iter().map(|text| Pattern::parse(text).unwrap()).collect());
        assert!(Names::All.have::<str>(None) && Names::All.have(Some("x")));
        let ours = some(&["a-*", "b"]);
        assert!(ours.have(Some("a-1")) && ours.have(Some("b")) && !ours.have(Some("c")));
        assert!(!ours.have::<str>(None) && !some(&["*"]).have::<str>(None));
        assert_eq!((some(&["b"]).only(), some(&["b*"]).only(), ours.only()), (Some("b"), None, None));
        assert!(!some(&[]).have(Some("x")), "no pattern is no name");
        assert_eq!(
            [some(&["b"]), some(&["b-*-*"]), some(&["*b"]), ours, Names::All].each_ref().map(Names::prefix),
            ["b", "b-", "", "", ""]
        );
    }
}
