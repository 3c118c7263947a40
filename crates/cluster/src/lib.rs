//! Who this instance is, by what it shows that it lives, and what it knows of the others.
//!
//! What lives here: the identity of one incarnation; the `instance:` lease behind it ([`Membership`]); what
//! follows from the others' ([`Standing`]: who may be taken from; [`Outlook`]: what belongs where).
//! What must never: a decision about a key's work, or a name that two incarnations could share.

mod herald;
mod identity;
mod membership;
mod outlook;
mod standing;

pub use herald::tell;
pub use identity::{Identity, NODE_NAME_CHARS_MAX};
pub use membership::{Membership, Process, RENEWALS_PER_LEASE, Tenure, Terms};
pub use outlook::{Member, Outlook, Place, RING_AGE, View};
pub use standing::Standing;
