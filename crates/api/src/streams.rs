//! The places for event streams: how many an instance serves at once, and how many of them for one token.

use std::sync::Arc;

use crate::auth::Principal;
use crate::refusal::Refusal;
use crate::shares::{Kind, Share, Shares, Used};

/// The place of one stream; free again when it is dropped.
pub struct Place {
    of: &'static str,
    used: Option<Arc<Used>>,
    _share: Share,
}

impl Place {
    /// A place for a stream of one job.
    pub fn of_job(shares: &Shares, principal: &Principal) -> Result<Self, Refusal> {
        Self::taken(shares, principal, Kind::JobStreams, "job")
    }

    /// A place for a stream of one plan.
    pub fn of_plan(shares: &Shares, principal: &Principal) -> Result<Self, Refusal> {
        Self::taken(shares, principal, Kind::PlanStreams, "plan")
    }

    /// A place for a stream of what happens.
    pub fn of_all(shares: &Shares, principal: &Principal) -> Result<Self, Refusal> {
        Self::taken(shares, principal, Kind::AllStreams, "all")
    }

    /// What the stream's token has in use.
    pub const fn used(&self) -> Option<&Arc<Used>> {
        self.used.as_ref()
    }

    fn taken(shares: &Shares, principal: &Principal, kind: Kind, of: &'static str) -> Result<Self, Refusal> {
        let share = shares.take(kind, principal.used(), 1)?;
        metrics::gauge!("fencepost_event_streams", "of" => of).increment(1);
        Ok(Self { of, used: principal.used().map(Arc::clone), _share: share })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!("fencepost_event_streams", "of" => self.of).decrement(1);
    }
}
