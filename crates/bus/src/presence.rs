//! Presence: what an instance shows of itself as long as it is there, and its form on the wire.

use std::time::Duration;

use domain::{InstanceId, Invalid, Timestamp};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::Result;
use crate::limits::{PRESENCE_BYTES_MAX, PRESENCE_TTL_MS_MAX, check_bytes, check_ms};

/// One instance, as it announced itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Which incarnation.
    pub instance: InstanceId,
    /// When it started. Kept to the microsecond, written as RFC 3339.
    pub started_at: Timestamp,
    /// The machine's name.
    pub hostname: String,
    /// Its process there.
    pub pid: u32,
    /// The version of the binary.
    pub version: String,
    /// Where others and clients reach it.
    pub address: String,
}

/// The record, without the id that its key names. Fields that a newer version added are passed over.
#[derive(Serialize, Deserialize)]
struct Record {
    started_at: String,
    hostname: String,
    pid: u32,
    version: String,
    address: String,
}

impl Presence {
    /// The record as JSON.
    pub(crate) fn to_json(&self) -> Result<String> {
        let Self { instance: _, started_at, hostname, pid, version, address } = self;
        let record = Record {
            started_at: to_rfc3339(*started_at)?,
            hostname: hostname.clone(),
            pid: *pid,
            version: version.clone(),
            address: address.clone(),
        };
        let json = serde_json::to_string(&record).map_err(|_| unreadable())?;
        check_bytes("a presence", json.len(), PRESENCE_BYTES_MAX)?;
        Ok(json)
    }

    /// Reads a record. `None` for one that no version of Fencepost can have written.
    pub(crate) fn from_json(instance: &InstanceId, json: &[u8]) -> Option<Self> {
        let record: Record = serde_json::from_slice(json).ok()?;
        let Record { started_at, hostname, pid, version, address } = record;
        let started_at = from_rfc3339(&started_at)?;
        Some(Self { instance: instance.clone(), started_at, hostname, pid, version, address })
    }
}

fn unreadable() -> Invalid {
    Invalid { what: "started_at", expected: "a moment between the years 0 and 9999".to_owned() }
}

fn to_rfc3339(at: Timestamp) -> Result<String> {
    let nanos = i128::from(at.as_micros()) * 1_000;
    let text = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok().and_then(|at| at.format(&Rfc3339).ok());
    Ok(text.ok_or_else(unreadable)?)
}

fn from_rfc3339(text: &str) -> Option<Timestamp> {
    let nanos = OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos();
    i64::try_from(nanos.div_euclid(1_000)).ok().map(Timestamp::from_micros)
}

/// The time to live, in milliseconds.
pub(crate) fn check_ttl(ttl: Duration) -> Result<u64> {
    check_ms("a presence's time to live", ttl, PRESENCE_TTL_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn presence() -> Presence {
        Presence {
            instance: InstanceId::parse("a-1").unwrap(),
            started_at: Timestamp::from_micros(1_700_000_000_123_456),
            hostname: "host \"one\"".to_owned(),
            pid: 7,
            version: "0.1.0".to_owned(),
            address: "http://127.0.0.1:7070".to_owned(),
        }
    }

    #[test]
    fn a_record_reads_back_to_the_microsecond_and_newer_fields_are_passed_over() {
        let (presence, id) = (presence(), presence().instance);
        let json = presence.to_json().unwrap();
        assert!(json.contains(r#""started_at":"2023-11-14T22:13:20.123456Z""#), "{json}");
        assert_eq!(Presence::from_json(&id, json.as_bytes()), Some(presence.clone()));
        let newer = json.replacen('{', r#"{"colour":"blue","#, 1);
        assert_eq!(Presence::from_json(&id, newer.as_bytes()), Some(presence));
    }

    #[test]
    fn what_is_no_record_is_none() {
        let id = presence().instance;
        let late = presence().to_json().unwrap().replace("2023-", "yesterday ");
        for bad in ["", "{}", "null", "\u{0}", &late] {
            assert_eq!(Presence::from_json(&id, bad.as_bytes()), None, "{bad:?}");
        }
        assert!(Presence::from_json(&id, &[0xff]).is_none());
    }

    #[test]
    fn limits_are_refusals_that_say_what_is_allowed() {
        let large = Presence { hostname: "h".repeat(PRESENCE_BYTES_MAX), ..presence() };
        assert!(matches!(large.to_json(), Err(Error::TooLarge { .. })));
        let far = Presence { started_at: Timestamp::from_micros(i64::MAX), ..presence() };
        assert!(matches!(far.to_json(), Err(Error::Invalid(_))));
        assert_eq!(check_ttl(Duration::from_millis(2_000)).unwrap(), 2_000);
        for bad in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
            assert!(check_ttl(bad).unwrap_err().to_string().contains("3600000 ms"), "{bad:?}");
        }
    }
}
