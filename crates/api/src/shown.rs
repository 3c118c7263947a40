//! From the domain's words to the wire's, for answers.

use domain::nonce::{OnExpiry, Policy, Status};
use domain::{Mode, Modes, SignerId, Timestamp};
use ledger::{Instance, Lease, NonceRecord, SignerRecord};

/// RFC 3339, UTC, with microseconds: always of one length, so that texts sort as times do.
pub fn time(at: Timestamp) -> String {
    match time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.as_micros()) * 1_000) {
        Ok(t) if (0..=9_999).contains(&t.year()) => format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            t.year(),
            u8::from(t.month()),
            t.day(),
            t.hour(),
            t.minute(),
            t.second(),
            t.microsecond()
        ),
        _ => "9999-12-31T23:59:59.999999Z".to_owned(),
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
        owner: record.owner.as_ref().map(ToString::to_string),
        fencing_token: record.token.map(domain::Token::get),
        lease_expires_in_ms: record.lease_expires_in_ms,
        next_nonce: record.next_nonce,
        held: record.held,
        released: record.released,
        consumed: record.consumed,
        quarantined: record.quarantined,
        oldest_hold_ms: record.oldest_hold_ms,
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

/// The signers of a canary.
pub fn only(modes: &Modes) -> Option<Vec<String>> {
    modes.only.as_ref().map(|only| only.iter().map(ToString::to_string).collect())
}

/// The modes.
pub fn modes(modes: &Modes) -> wire::cluster::ModeSetting {
    wire::cluster::ModeSetting { mode: mode(modes.mode), only: only(modes), version: modes.version }
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
        resources,
        on_ring,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
