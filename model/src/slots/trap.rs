//! The traps: each leaves one condition out of the rules, and names the promises that break then. What must
//! never live here: the steps themselves.

use super::properties;
use super::rules::{Rules, VouchedFrom};

/// A condition left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// The bus lends the slots, and an earlier word still vouches for the record.
    LendingLeavesTheVouching,
    /// The holder goes on giving until it hears that the slots are shared.
    GivesUntilItHears,
    /// The slots are shared without a list of what the holder gave.
    SharesWithoutAList,
    /// A list of which the holder has not heard is forgotten, and may land after an attempt was sent.
    ForgetsUnheardLists,
    /// What was reserved at the bus is sent while a list without it is on its way.
    SendsBesideAList,
    /// A word that lands after a later one counts.
    LateWordsCount,
    /// A word vouches from when it lands.
    VouchesFromLanding,
    /// A slot that was given waits for its dispatch for ever.
    GivenSlotsLast,
    /// A list that was made when an attempt was just known counts.
    FreshListIsEvidence,
    /// A list that was made before an attempt was sent counts once that is sent.
    OlderListIsEvidence,
}

impl Trap {
    /// Every trap.
    pub const ALL: [Self; 10] = [
        Self::LendingLeavesTheVouching,
        Self::GivesUntilItHears,
        Self::SharesWithoutAList,
        Self::ForgetsUnheardLists,
        Self::SendsBesideAList,
        Self::LateWordsCount,
        Self::VouchesFromLanding,
        Self::GivenSlotsLast,
        Self::FreshListIsEvidence,
        Self::OlderListIsEvidence,
    ];

    /// The sound rules with this one trap reopened.
    #[must_use]
    pub const fn reopened(self) -> Rules {
        let mut rules = Rules::sound();
        match self {
            Self::LendingLeavesTheVouching => rules.lending_ends_vouching = false,
            Self::GivesUntilItHears => rules.sharing_stops_giving = false,
            Self::SharesWithoutAList => rules.sharing_lists = false,
            Self::ForgetsUnheardLists => rules.unheard_lists_count = false,
            Self::SendsBesideAList => rules.sending_waits_for_lists = false,
            Self::LateWordsCount => rules.late_words_are_ignored = false,
            Self::VouchesFromLanding => rules.vouched_from = VouchedFrom::Landing,
            Self::GivenSlotsLast => rules.given_slots_end = false,
            Self::FreshListIsEvidence => rules.known_for_min = 0,
            Self::OlderListIsEvidence => rules.sent_before_the_list = false,
        }
        rules
    }

    /// The promises that must break once the trap is open.
    #[must_use]
    pub const fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::LendingLeavesTheVouching | Self::VouchesFromLanding => &[properties::ONE_GIVES],
            Self::GivesUntilItHears => &[properties::ONE_GIVES, properties::THE_BUS_KNOWS_ALL],
            Self::SharesWithoutAList
            | Self::ForgetsUnheardLists
            | Self::SendsBesideAList
            | Self::LateWordsCount => &[properties::THE_BUS_KNOWS_ALL],
            Self::GivenSlotsLast => &[properties::NOTHING_IS_SENT_LATE],
            Self::FreshListIsEvidence | Self::OlderListIsEvidence => &[properties::THE_LOST_ARE_LOST],
        }
    }
}
