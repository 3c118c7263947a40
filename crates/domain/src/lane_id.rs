//! The names of lanes.

use std::fmt;
use std::sync::Arc;

use crate::id::{InstanceId, Invalid, PlanId, SessionId};
use crate::lease::{Resource, ResourceKind};
use crate::shard_of;

/// Between an instance's resource and the number of its lane.
const NUMBER_MARK: char = '#';

/// A lane: `session:<id>` or `plan:<id>`, under the lease of that name; or `instance:<id>#<n>`, the lane of one shard of an
/// instance, under the instance's lease. Lanes that were written before instances had several are called `instance:<id>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(Arc<Named>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Named {
    name: Box<str>,
    lease: Resource,
    number: Option<u16>,
}

impl LaneId {
    /// The lane of a session's jobs.
    #[must_use]
    pub fn session(id: &SessionId) -> Self {
        Self::whole(Resource::session(id))
    }

    /// The lane of the jobs that a plan's stages are.
    #[must_use]
    pub fn plan(id: PlanId) -> Self {
        Self::whole(Resource::plan(id))
    }

    /// The lane of one of an instance's shards, for jobs without a session.
    #[must_use]
    pub fn instance(id: &InstanceId, shard: u16) -> Self {
        let lease = Resource::instance(id);
        let name = format!("{lease}{NUMBER_MARK}{shard}").into_boxed_str();
        Self(Arc::new(Named { name, lease, number: Some(shard) }))
    }

    fn whole(lease: Resource) -> Self {
        Self(Arc::new(Named { name: Box::from(lease.as_str()), lease, number: None }))
    }

    /// Reads a lane's name.
    ///
    /// # Errors
    /// [`Invalid`] for a resource that has no jobs, and for a number that is not spelled as it is printed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let invalid =
            || Invalid { what: "lane", expected: "session:<id>, plan:<id> or instance:<id>#<n>".to_owned() };
        let (lease, number) = match text.rsplit_once(NUMBER_MARK) {
            Some((lease, number)) if lease.starts_with(ResourceKind::Instance.as_str()) => {
                let parsed = number.parse::<u16>().ok().filter(|parsed| parsed.to_string() == number);
                (lease, Some(parsed.ok_or_else(invalid)?))
            }
            _ => (text, None),
        };
        let lease = Resource::parse(lease)?;
        match lease.kind() {
            ResourceKind::Session | ResourceKind::Plan | ResourceKind::Instance => {
                Ok(Self(Arc::new(Named { name: Box::from(text), lease, number })))
            }
            ResourceKind::IdWorker | ResourceKind::Signer | ResourceKind::Tenant => Err(invalid()),
        }
    }

    /// The name, as the ledger and the outside know it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.name
    }

    /// The resource whose lease fences what the lane's owner writes. The lanes of an instance share theirs.
    #[must_use]
    pub fn lease(&self) -> &Resource {
        &self.0.lease
    }

    /// Whether its jobs are a session's.
    #[must_use]
    pub fn is_session(&self) -> bool {
        matches!(self.0.lease.kind(), ResourceKind::Session)
    }

    /// The plan whose stages these jobs are; `None` for another lane.
    #[must_use]
    pub fn plan_id(&self) -> Option<PlanId> {
        (self.0.lease.kind() == ResourceKind::Plan).then(|| PlanId::parse(self.0.lease.id())).flatten()
    }

    /// The session whose jobs these are; `None` for another lane.
    #[must_use]
    pub fn session_id(&self) -> Option<SessionId> {
        // A resource of that kind is named by a session's id.
        self.is_session().then(|| SessionId::parse(self.0.lease.id()).ok()).flatten()
    }

    /// The instance that the lane was made by; `None` for another lane.
    #[must_use]
    pub fn instance_id(&self) -> Option<InstanceId> {
        let is_instances = self.0.lease.kind() == ResourceKind::Instance;
        is_instances.then(|| InstanceId::parse(self.0.lease.id()).ok()).flatten()
    }

    /// Which of its instance's lanes it is, counted from 0; `None` for a lane that has its lease for itself.
    #[must_use]
    pub fn number(&self) -> Option<u16> {
        self.0.number
    }

    /// Which of so many shards the lane belongs to. See [`shard_of`].
    ///
    /// # Panics
    /// If there are no shards.
    #[must_use]
    pub fn shard(&self, shards: usize) -> usize {
        match self.0.number {
            Some(number) => usize::from(number) % shards,
            None => shard_of(&self.0.name, shards),
        }
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_read_back_what_they_print() {
        let instance = LaneId::instance(&InstanceId::parse("a-1").unwrap(), 3);
        assert_eq!((instance.as_str(), instance.lease().as_str()), ("instance:a-1#3", "instance:a-1"));
        assert!(!instance.is_session() && instance.session_id().is_none());
        assert_eq!(instance.instance_id().unwrap().as_str(), "a-1");
        let session = LaneId::session(&SessionId::parse("s").unwrap());
        assert_eq!((session.as_str(), session.lease().as_str()), ("session:s", "session:s"));
        assert_eq!(session.session_id().unwrap().as_str(), "s");
        let plan = LaneId::plan(PlanId::from_u128(7));
        assert_eq!(plan.as_str(), "plan:00000000-0000-0000-0000-000000000007");
        assert!(!plan.is_session() && plan.instance_id().is_none());
        assert_eq!((plan.plan_id(), session.plan_id()), (Some(PlanId::from_u128(7)), None));
        for lane in [instance, session, plan] {
            assert_eq!(LaneId::parse(lane.as_str()).unwrap(), lane);
        }
        let earlier = LaneId::parse("instance:a-1").unwrap();
        assert_eq!((earlier.as_str(), earlier.lease().as_str()), ("instance:a-1", "instance:a-1"));
    }

    #[test]
    fn what_is_no_lane_is_refused() {
        for bad in [
            "",
            "signer:s",
            "id-worker:1",
            "tenant:t",
            "plan:x",
            "instance:",
            "instance:a#",
            "instance:a#x",
            "instance:a#01",
        ] {
            assert!(LaneId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_instances_lanes_have_a_shard_each_and_any_number_finds_one() {
        let id = InstanceId::parse("a").unwrap();
        let shards: Vec<_> = (0..5).map(|number| LaneId::instance(&id, number).shard(2)).collect();
        assert_eq!(shards, [0, 1, 0, 1, 0]);
        assert!(LaneId::parse("session:s").unwrap().shard(2) < 2);
        assert_eq!(LaneId::instance(&id, 4).number(), Some(4));
        assert_eq!(LaneId::parse("session:s").unwrap().number(), None);
    }
}
