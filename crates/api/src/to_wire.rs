//! From the domain's types to the wire's shapes, for answers. The fields of a job are in [`crate::job_fields`].

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::ids::Segments;
use ::nodes::{Explanation, Pools, Profile, Record};
use actors::jobs::Session;
use bus::NodeState;
use domain::job::{Outcome, Route, State};
use domain::nonce::{OnExpiry, Policy, Status};
use domain::session::Ordering;
use domain::{Mode, Modes, Names, PoolPause, Resource, SignerId, Timestamp};
use ledger::{
    BulkAction, BulkRecord, BulkStatus, Instance, Lease, NonceRecord, SegmentRecord, SequenceRecord,
    SessionRecord, SignerRecord,
};

use crate::refusal::Refusal;

/// The times of the bus are past this one (2001), in microseconds since 1970. The version of a record that the bus does not know
/// is 0.
const FIRST_BUS_TIME_US: u64 = 1_000_000_000_000_000;

/// RFC 3339, UTC, with microseconds: always of one length, so that texts sort as times do.
pub fn time(at: Timestamp) -> String {
    match time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.as_micros()) * 1_000) {
        Ok(t) if (0..=9_999).contains(&t.year()) => {
            let mut text = String::with_capacity(27);
            let mut add = |number: u32, digits: u32, end: char| {
                // Not by `format!`: every grant shows a time.
                let digits = (0..digits).rev().map(|place| number / 10_u32.pow(place) % 10);
                text.extend(digits.filter_map(|digit| char::from_digit(digit, 10)));
                text.push(end);
            };
            add(t.year().unsigned_abs(), 4, '-');
            add(u8::from(t.month()).into(), 2, '-');
            add(t.day().into(), 2, 'T');
            add(t.hour().into(), 2, ':');
            add(t.minute().into(), 2, ':');
            add(t.second().into(), 2, '.');
            add(t.microsecond(), 6, 'Z');
            text
        }
        _ => "9999-12-31T23:59:59.999999Z".to_owned(),
    }
}

/// The time so long ago, by this instance's clock.
pub fn ago(age: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(now.saturating_sub(age).as_micros()).unwrap_or(i64::MAX);
    time(Timestamp::from_micros(micros))
}

/// A tag, and how it stands in this instance.
pub fn segment(record: &SegmentRecord, here: &Segments) -> wire::ids::Segment {
    let status = here.status(&record.tag);
    // What is given out begins at the start that was asked for last, and may be nothing.
    let is_used = record.next > record.start;
    wire::ids::Segment {
        tag: record.tag.to_string(),
        start: record.start.to_string(),
        max: is_used.then(|| (record.next - 1).to_string()),
        step: record.step,
        description: record.description.clone(),
        created_at: time(record.created_at),
        updated_at: time(record.updated_at),
        next_step: status.map(|status| status.step),
        left: status.map_or(0, |status| status.left),
        rate: status.map_or(0.0, |status| status.rate),
        seconds_left: status.and_then(|status| status.seconds_left()),
    }
}

/// A sequence.
pub fn sequence(record: &SequenceRecord) -> wire::ids::Sequence {
    wire::ids::Sequence {
        name: record.sequence.to_string(),
        start: record.start.to_string(),
        next: record.next.to_string(),
        increment: record.increment,
        created_at: time(record.created_at),
        updated_at: time(record.updated_at),
    }
}

/// A job's state.
pub const fn job_state(state: State) -> wire::jobs::JobState {
    match state {
        State::Created => wire::jobs::JobState::Created,
        State::Dispatched => wire::jobs::JobState::Dispatched,
        State::Running => wire::jobs::JobState::Running,
        State::Finished => wire::jobs::JobState::Finished,
    }
}

/// How a job ended.
pub const fn outcome(outcome: Outcome) -> wire::jobs::Outcome {
    match outcome {
        Outcome::Succeeded => wire::jobs::Outcome::Succeeded,
        Outcome::Failed => wire::jobs::Outcome::Failed,
        Outcome::Cancelled => wire::jobs::Outcome::Cancelled,
        Outcome::TimedOut => wire::jobs::Outcome::TimedOut,
    }
}

/// The text of a payload or result that the ledger has.
pub fn json(text: &str) -> Result<wire::Json, Refusal> {
    wire::Json::parse(text).map_err(|error| {
        tracing::error!(%error, "the ledger has a text that is not JSON");
        Refusal::internal()
    })
}

/// A session.
pub fn session(session: &Session) -> wire::sessions::Session {
    let Session { record, counts, finished, owner } = session;
    let needs = &record.spec.needs;
    wire::sessions::Session {
        id: record.id.to_string(),
        owner: owner.as_ref().map(ToString::to_string),
        tenant: record.spec.tenant.as_ref().map(ToString::to_string),
        ordering: ordering(record.spec.ordering),
        route: needs.route.as_ref().map(route),
        pool: needs.pool.as_ref().map(ToString::to_string),
        requires: needs.requires.iter().map(ToString::to_string).collect(),
        idle_ms: record.spec.idle_ms,
        idle_for_ms: record.idle_for_ms,
        created_at: time(record.created_at),
        closed_at: record.closed_at.map(time),
        jobs: wire::sessions::SessionJobs {
            created: counts.created,
            dispatched: counts.dispatched,
            running: counts.running,
            finished: *finished,
        },
        last_seq: counts.last_seq,
        last_node: counts.last_node.as_ref().map(ToString::to_string),
    }
}

/// A session as a list shows it.
pub fn listed_session(record: &SessionRecord) -> wire::sessions::ListedSession {
    let needs = &record.spec.needs;
    wire::sessions::ListedSession {
        id: record.id.to_string(),
        tenant: record.spec.tenant.as_ref().map(ToString::to_string),
        ordering: ordering(record.spec.ordering),
        route: needs.route.as_ref().map(route),
        pool: needs.pool.as_ref().map(ToString::to_string),
        requires: needs.requires.iter().map(ToString::to_string).collect(),
        idle_ms: record.spec.idle_ms,
        idle_for_ms: record.idle_for_ms,
        created_at: time(record.created_at),
        closed_at: record.closed_at.map(time),
    }
}

const fn ordering(ordering: Ordering) -> wire::sessions::Ordering {
    match ordering {
        Ordering::Strict => wire::sessions::Ordering::Strict,
        Ordering::Results => wire::sessions::Ordering::Results,
        Ordering::Free => wire::sessions::Ordering::Free,
    }
}

/// A pair of languages.
pub fn route(route: &Route) -> wire::jobs::Route {
    wire::jobs::Route { source: route.source.to_string(), target: route.target.to_string() }
}

/// Whether a node that is connected is given work.
pub const fn node_state(state: NodeState) -> wire::nodes::NodeState {
    match state {
        NodeState::Accepting => wire::nodes::NodeState::Online,
        NodeState::Draining => wire::nodes::NodeState::Draining,
        NodeState::Unhealthy => wire::nodes::NodeState::Unhealthy,
    }
}

/// The names of the pools that a node is in.
pub fn pools_of(profile: &Profile, pools: &Pools) -> Vec<String> {
    match pools.configured() {
        [] => vec![::nodes::DEFAULT_POOL.to_owned()],
        configured => {
            let joined = configured.iter().filter(|pool| pool.admits(profile));
            joined.map(|pool| pool.name.to_string()).collect()
        }
    }
}

/// A node as this instance knows it, and for how long it has not been heard of.
pub fn node(record: &Record, pools: &Pools, quiet_for: Option<Duration>) -> wire::nodes::Node {
    let ::nodes::Load { cpu, gpu, memory } = record.load;
    let heartbeat_at = quiet_for.map(ago);
    // Versions are the bus's time. While it does not know of the connection, the epoch is no time either.
    let changed_at = bus_time(record.stamp.version.get());
    let registered_at = changed_at.as_ref().and_then(|_| bus_time(record.stamp.epoch.get()));
    let seen_at = changed_at.or_else(|| heartbeat_at.clone());
    wire::nodes::Node {
        id: record.profile.node.to_string(),
        state: node_state(record.status.state),
        instance: record.profile.holder.to_string(),
        capacity: record.status.capacity,
        used: record.status.used,
        labels: record.profile.labels.iter().map(ToString::to_string).collect(),
        pools: pools_of(&record.profile, pools),
        load: Some(wire::worker::Load { cpu, gpu, memory }),
        version: record.profile.software.as_ref().map(ToString::to_string),
        services: record.profile.services.iter().map(ToString::to_string).collect(),
        registered_at,
        heartbeat_at,
        record_version: record.stamp.version.get(),
        // One that is not known any more was heard of a moment ago.
        seen_at: seen_at.unwrap_or_else(|| ago(Duration::ZERO)),
    }
}

/// A number of the bus as the time that it is. `None` for one that is no time of the bus.
fn bus_time(micros: u64) -> Option<String> {
    (micros >= FIRST_BUS_TIME_US)
        .then(|| time(Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))))
}

/// What a selection would choose.
pub fn selection(explanation: &Explanation, took: Duration) -> wire::nodes::SelectAnswer {
    let (node, pool) = explanation.chosen.clone().unzip();
    let rejected = explanation.rejected.iter();
    wire::nodes::SelectAnswer {
        node: node.map(|node| node.to_string()),
        pool: pool.map(|pool| pool.to_string()),
        considered: explanation.considered as u64,
        rejected: rejected
            .map(|(reason, count)| (reason.as_str().to_owned(), *count as u64))
            .collect::<BTreeMap<_, _>>(),
        took_us: took.as_secs_f64() * 1_000_000.0,
    }
}

/// The pools as they are configured.
pub fn pools(pools: &Pools, pauses: &[PoolPause]) -> wire::nodes::PoolsSetting {
    let pool = |pool: &::nodes::Pool| wire::nodes::Pool {
        name: pool.name.to_string(),
        routes: pool.routes.iter().map(ToString::to_string).collect(),
        requires: pool.requires.iter().map(ToString::to_string).collect(),
        weight: pool.weight,
    };
    wire::nodes::PoolsSetting {
        version: pools.version(),
        pools: pools.configured().iter().map(pool).collect(),
        paused: pauses.iter().map(pool_pause).collect(),
    }
}

/// A bulk operation.
pub fn bulk(record: &BulkRecord) -> wire::bulk::Bulk {
    let filter = &record.filter;
    wire::bulk::Bulk {
        id: record.id.to_string(),
        action: match record.action {
            BulkAction::Retry => wire::bulk::BulkAction::Retry,
            BulkAction::Cancel => wire::bulk::BulkAction::Cancel,
            BulkAction::Delete => wire::bulk::BulkAction::Delete,
            BulkAction::Dismiss => wire::bulk::BulkAction::Dismiss,
        },
        filter: wire::bulk::BulkFilter {
            state: filter.state.map(job_state),
            outcome: filter.outcome.map(outcome),
            session: filter.session.as_ref().map(ToString::to_string),
            tenant: filter.tenant.as_ref().map(ToString::to_string),
            pool: filter.pool.as_ref().map(ToString::to_string),
            kind: filter.kind.as_ref().map(ToString::to_string),
            dead: filter.dead,
        },
        before: time(record.before),
        rate: record.rate,
        status: match record.status {
            BulkStatus::Running => wire::bulk::BulkStatus::Running,
            BulkStatus::Cancelling => wire::bulk::BulkStatus::Cancelling,
            BulkStatus::Done => wire::bulk::BulkStatus::Done,
            BulkStatus::Cancelled => wire::bulk::BulkStatus::Cancelled,
            BulkStatus::Failed => wire::bulk::BulkStatus::Failed,
        },
        matched: record.matched,
        done: record.done,
        skipped: record.skipped,
        failed: record.failed,
        error: record.error.clone(),
        by: record.principal.clone(),
        instance: (!record.is_left()).then(|| record.owner.to_string()),
        created_at: time(record.created_at),
        finished_at: record.finished_at.map(time),
    }
}

/// The pause of a pool.
pub fn pool_pause(pause: &PoolPause) -> wire::nodes::PoolPause {
    wire::nodes::PoolPause {
        pool: pause.pool.to_string(),
        reason: pause.reason.to_string(),
        by: pause.principal.to_string(),
        since: time(pause.since),
        until: pause.until.map(time),
    }
}

/// A nonce's state.
pub const fn status(status: Status) -> wire::nonces::Status {
    match status {
        Status::Held => wire::nonces::Status::Held,
        Status::Consumed => wire::nonces::Status::Consumed,
        Status::Released => wire::nonces::Status::Released,
        Status::Quarantined => wire::nonces::Status::Quarantined,
    }
}

/// A signer's policy.
pub fn policy(policy: &Policy) -> wire::nonces::Policy {
    wire::nonces::Policy {
        first_nonce: policy.first_nonce.get(),
        hold_ms: policy.hold_ms,
        on_expiry: match policy.on_expiry {
            OnExpiry::Release => wire::nonces::OnExpiry::Release,
            OnExpiry::Quarantine => wire::nonces::OnExpiry::Quarantine,
        },
        max_in_flight: policy.max_in_flight,
        shared_keys: policy.shared_keys,
    }
}

/// What was granted.
pub fn grants(signer: &SignerId, granted: &actors::signers::Grants) -> wire::nonces::GrantAnswer {
    let grant = |grant: &actors::signers::Grant| wire::nonces::Grant {
        nonce: grant.nonce.get(),
        hold: grant.hold.to_string(),
        status: wire::nonces::Status::Held,
        held_until: time(grant.held_until),
        held_for_ms: grant.held_for_ms,
    };
    wire::nonces::GrantAnswer {
        signer: signer.to_string(),
        fencing_token: granted.token.get(),
        owner: granted.owner.to_string(),
        grants: granted.grants.iter().map(grant).collect(),
    }
}

/// A signer for the audit.
pub fn signer(record: &SignerRecord) -> wire::nonces::Signer {
    wire::nonces::Signer {
        signer: record.signer.to_string(),
        // Of a lease that has run out nobody is the owner, though its row still names one.
        owner: record.owner.as_ref().filter(|_| record.lease_expires_in_ms > 0).map(ToString::to_string),
        fencing_token: record.token.map(domain::Token::get),
        lease_expires_in_ms: record.lease_expires_in_ms,
        next_nonce: record.next_nonce,
        held: record.held,
        released: record.released,
        consumed: record.consumed,
        quarantined: record.quarantined,
        oldest_hold_ms: record.oldest_hold_ms,
        recovering: record.is_recovering,
        policy: policy(&record.policy),
    }
}

/// A nonce for the audit.
pub fn nonce(record: &NonceRecord) -> wire::nonces::NonceRecord {
    wire::nonces::NonceRecord {
        nonce: record.row.nonce.get(),
        status: status(record.row.status),
        hold: record.row.hold.to_string(),
        held_until: time(record.row.held_until),
        tx_hash: record.tx_hash().map(ToString::to_string),
        fencing_token: record.token.get(),
        owner: record.owner.to_string(),
        created_at: time(record.created_at),
        updated_at: time(record.updated_at),
    }
}

/// A lease for the audit.
pub fn lease(lease: &Lease) -> wire::leases::Lease {
    wire::leases::Lease {
        resource: lease.resource.to_string(),
        owner: lease.owner.as_ref().map(ToString::to_string),
        fencing_token: lease.token.get(),
        acquired_at: time(lease.acquired_at),
        renewed_at: time(lease.renewed_at),
        expires_in_ms: lease.expires_in_ms,
        live: lease.is_live(),
    }
}

/// A mode.
pub const fn mode(mode: Mode) -> wire::cluster::Mode {
    match mode {
        Mode::Basic => wire::cluster::Mode::Basic,
        Mode::WorkerQueue => wire::cluster::Mode::WorkerQueue,
    }
}

/// The signers of a canary that are seen; `None` where all signers are in one mode.
pub fn only(modes: &Modes, seen: &Names) -> Option<Vec<String>> {
    let is_seen = |signer: &&Resource| seen.have(Some(signer.id()));
    modes.only.as_ref().map(|only| only.iter().filter(is_seen).map(ToString::to_string).collect())
}

/// The modes.
pub fn modes(modes: &Modes) -> wire::cluster::ModeSetting {
    let only = only(modes, &Names::All);
    wire::cluster::ModeSetting { mode: mode(modes.mode), only, version: modes.version }
}

/// A live instance with so many leases, on the ring or not yet.
pub fn instance(instance: &Instance, resources: u64, on_ring: bool) -> wire::cluster::Instance {
    wire::cluster::Instance {
        instance_id: instance.about.id.to_string(),
        url: instance.about.url.clone(),
        started_at: time(instance.started_at),
        hostname: instance.about.hostname.clone(),
        pid: instance.about.pid,
        version: instance.about.version.clone(),
        bus_up: instance.bus_up,
        bus: instance.bus.clone(),
        resources,
        on_ring,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::nodes::{Load, Stamp};
    use bus::{Epoch, Version};
    use domain::{InstanceId, NodeId};

    use super::*;

    #[test]
    fn a_node_that_the_bus_does_not_know_has_no_time_of_the_bus() {
        let shown = |version| {
            let holder = InstanceId::parse("a").unwrap();
            let profile = Profile::new(NodeId::parse("n").unwrap(), holder, 2_000);
            // The epoch that an instance gives itself is the one behind the last that it knows.
            let epoch = Epoch::new(1_700_000_000_000_001);
            let record = Record {
                stamp: Stamp { epoch, version: Version::new(version) },
                profile: Arc::new(profile),
                status: ::nodes::Status {
                    capacity: 1,
                    used: 0,
                    is_complete: true,
                    state: NodeState::Accepting,
                },
                load: Load::default(),
            };
            node(&record, &Pools::unconfigured(), Some(Duration::from_secs(1)))
        };
        let unknown = shown(0);
        assert_eq!((&unknown.registered_at, unknown.record_version), (&None, 0));
        assert_eq!(Some(unknown.seen_at), unknown.heartbeat_at, "when it was heard of");
        let known = shown(1_700_000_000_123_456);
        assert_eq!(known.registered_at.as_deref(), Some("2023-11-14T22:13:20.000001Z"));
        assert_eq!(known.seen_at, "2023-11-14T22:13:20.123456Z");
    }

    #[test]
    fn times_are_of_one_length_whatever_the_clock_says() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
            (1_700_000_000_000_000, "2023-11-14T22:13:20.000000Z"),
            (i64::MAX, "9999-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(time(Timestamp::from_micros(micros)), text);
        }
    }
}
