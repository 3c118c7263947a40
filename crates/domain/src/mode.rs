//! How requests and owners find each other: for all signers, or for some of them.

use std::collections::BTreeSet;

use crate::id::Invalid;
use crate::lease::Resource;

/// How requests and owners find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Any instance takes any request, and has the lease for as long as that takes.
    Basic,
    /// An owner keeps its lease while there is work, and decides together what waits together.
    WorkerQueue,
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Basic, Self::WorkerQueue];

    /// The name in configuration and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::WorkerQueue => "worker-queue",
        }
    }

    /// Reads the name.
    ///
    /// # Errors
    /// [`Invalid`], naming the modes there are.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| Invalid { what: "mode", expected: "one of basic, worker-queue".to_owned() })
    }

    const fn other(self) -> Self {
        match self {
            Self::Basic => Self::WorkerQueue,
            Self::WorkerQueue => Self::Basic,
        }
    }
}

/// Which signers are served in which mode. One value for a whole cluster, versioned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Rises by one with every change, from 1.
    pub version: u64,
    /// The mode.
    pub mode: Mode,
    /// Only these are in it, the others in the other one; without it all are.
    pub only: Option<BTreeSet<Resource>>,
}

impl Modes {
    /// The mode of one resource.
    #[must_use]
    pub fn of(&self, resource: &Resource) -> Mode {
        match &self.only {
            Some(only) if !only.contains(resource) => self.mode.other(),
            _ => self.mode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_is_in_the_mode_and_the_others_are_in_the_other() {
        let (canary, other) =
            (Resource::parse("signer:canary").unwrap(), Resource::parse("signer:other").unwrap());
        for mode in Mode::ALL {
            let everybody = Modes { version: 1, mode, only: None };
            assert_eq!((everybody.of(&canary), everybody.of(&other)), (mode, mode));
            let some = Modes { only: Some([canary.clone()].into()), ..everybody };
            assert_eq!((some.of(&canary), some.of(&other)), (mode, mode.other()));
            assert_eq!(Mode::parse(mode.as_str()), Ok(mode));
        }
        assert!(Mode::parse("Basic").is_err());
    }
}
