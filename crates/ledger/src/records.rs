//! Rows as the databases hand them over, in plain columns, and their way into typed values. The same
//! for both dialects. A row that cannot be is an error, never a guess.

mod ids;

use std::fmt::Display;

use domain::database_clock::HeldNonce;
use domain::nonce::{Hole, Loaded, OnExpiry, Policy, Row, Status};
use domain::{HoldId, IdempotencyKey, InstanceId, Invalid, Nonce, Resource, SignerId, Token, TxHash};
use serde::{Deserialize, Serialize};

use crate::sql::{Hold, Moment, record};
use crate::{
    Error, GrantAnswer, Instance, KeptKey, KeyScope, Lease, LeaseFilter, NewInstance, NonceRecord,
    OverdueSigners, Peer, Result, SignerRecord,
};

pub(crate) use ids::{GrantRow, MarkRow, RangeRow, SegmentRow, SequenceRow, WorkerRow, sequence_verdicts};

/// The error of a row that no release writes.
pub(crate) fn impossible(what: impl Display) -> Error {
    Error::Impossible(what.to_string().into())
}

fn nonce(number: i64) -> Result<Nonce> {
    u64::try_from(number).map_err(impossible).and_then(|number| Nonce::new(number).map_err(impossible))
}

/// A number of a row in its own type.
pub(crate) fn number<T: TryFrom<i64, Error: Display>>(number: i64) -> Result<T> {
    T::try_from(number).map_err(impossible)
}

/// A number of a row that is never below 0.
pub(crate) fn count(count: i64) -> Result<u64> {
    number(count)
}

/// A name of a row where an empty text stands for none.
pub(crate) fn name<T>(text: &str, parse: fn(&str) -> std::result::Result<T, Invalid>) -> Result<Option<T>> {
    if text.is_empty() { Ok(None) } else { parse(text).map(Some).map_err(impossible) }
}

fn hold(text: &str) -> Result<HoldId> {
    HoldId::parse(text).ok_or_else(|| impossible(format_args!("hold {text:?}")))
}

pub(crate) fn instance(text: &str) -> Result<InstanceId> {
    InstanceId::parse(text).map_err(impossible)
}

record! {
    pub(crate) struct LeaseRow {
        resource: String,
        owner: Option<String>,
        fencing_token: i64,
        acquired_at: Moment,
        renewed_at: Moment,
        expires_in_ms: i64,
    }
}

impl TryFrom<LeaseRow> for Lease {
    type Error = Error;

    fn try_from(row: LeaseRow) -> Result<Self> {
        Ok(Self {
            resource: Resource::parse(&row.resource).map_err(impossible)?,
            owner: row.owner.as_deref().map(instance).transpose()?,
            token: Token::new(row.fencing_token),
            acquired_at: row.acquired_at.0,
            renewed_at: row.renewed_at.0,
            expires_in_ms: count(row.expires_in_ms)?,
        })
    }
}

record! {
    pub(crate) struct PolicyRow {
        first_nonce: Option<i64>,
        hold_ms: Option<i64>,
        on_expiry: Option<String>,
        max_in_flight: Option<i64>,
        shared_keys: Option<bool>,
        recovering: Option<bool>,
    }
}

impl PolicyRow {
    /// `None` where there is no row of the signer.
    fn policy(&self) -> Result<Option<Policy>> {
        let (Some(first_nonce), Some(on_expiry)) = (self.first_nonce, &self.on_expiry) else {
            return Ok(None);
        };
        Ok(Some(Policy {
            first_nonce: nonce(first_nonce)?,
            hold_ms: self.hold_ms.map(count).transpose()?,
            on_expiry: OnExpiry::parse(on_expiry).map_err(impossible)?,
            max_in_flight: self.max_in_flight.map(count).transpose()?,
            shared_keys: self.shared_keys.unwrap_or(false),
        }))
    }
}

record! {
    pub(crate) struct LoadRow {
        #[flatten]
        policy: PolicyRow,
        confirmed: bool,
        last_nonce: Option<i64>,
        in_flight: i64,
        pub(crate) has_holes: bool,
    }
}

impl LoadRow {
    /// With the holes, and whether these are all.
    pub(crate) fn loaded(&self, (holes, holes_complete): (Vec<Hole>, bool)) -> Result<Loaded> {
        Ok(Loaded {
            policy: self.policy.policy()?,
            last: self.last_nonce.map(nonce).transpose()?,
            in_flight: count(self.in_flight)?,
            holes,
            holes_complete,
            is_recovering: self.policy.recovering.unwrap_or(false),
            is_confirmed: self.confirmed,
        })
    }
}

record! {
    pub(crate) struct HeldRow {
        nonce: i64,
        hold: Hold,
        granted_at: Moment,
        held_until: Moment,
        read_at: Moment,
    }
}

impl TryFrom<HeldRow> for HeldNonce {
    type Error = Error;

    fn try_from(row: HeldRow) -> Result<Self> {
        Ok(Self {
            nonce: nonce(row.nonce)?,
            hold: row.hold.0,
            granted_at: row.granted_at.0,
            held_until: row.held_until.0,
            read_at: row.read_at.0,
        })
    }
}

/// The holes among `rows`, which were asked for with a limit of `max + 1` to see whether there are more.
pub(crate) fn holes(mut rows: Vec<(i64, Hold)>, max: usize) -> Result<(Vec<Hole>, bool)> {
    let complete = rows.len() <= max;
    rows.truncate(max);
    let holes = rows.into_iter().map(|(number, hold)| Ok(Hole { nonce: nonce(number)?, hold: hold.0 }));
    Ok((holes.collect::<Result<_>>()?, complete))
}

record! {
    pub(crate) struct NonceRow {
        nonce: i64,
        status: String,
        hold: Hold,
        updated_at: Moment,
        held_until: Moment,
        tx_hash: Option<String>,
    }
}

impl TryFrom<NonceRow> for Row {
    type Error = Error;

    fn try_from(row: NonceRow) -> Result<Self> {
        Ok(Self {
            nonce: nonce(row.nonce)?,
            status: Status::parse(&row.status).map_err(impossible)?,
            hold: row.hold.0,
            written_at: row.updated_at.0,
            held_until: row.held_until.0,
            tx_hash: row.tx_hash.as_deref().map(TxHash::parse).transpose().map_err(impossible)?,
        })
    }
}

record! {
    pub(crate) struct NonceRecordRow {
        #[flatten]
        row: NonceRow,
        fencing_token: i64,
        owner: String,
        created_at: Moment,
        updated_at: Moment,
    }
}

impl TryFrom<NonceRecordRow> for NonceRecord {
    type Error = Error;

    fn try_from(row: NonceRecordRow) -> Result<Self> {
        Ok(Self {
            row: row.row.try_into()?,
            token: Token::new(row.fencing_token),
            owner: instance(&row.owner)?,
            created_at: row.created_at.0,
            updated_at: row.updated_at.0,
        })
    }
}

record! {
    pub(crate) struct SignerRow {
        signer: String,
        #[flatten]
        policy: PolicyRow,
        owner: Option<String>,
        fencing_token: Option<i64>,
        lease_expires_in_ms: Option<i64>,
        last_nonce: Option<i64>,
        held: i64,
        released: i64,
        quarantined: i64,
        oldest_hold_ms: Option<i64>,
    }
}

impl TryFrom<SignerRow> for SignerRecord {
    type Error = Error;

    fn try_from(row: SignerRow) -> Result<Self> {
        let policy = row.policy.policy()?.ok_or_else(|| impossible("a signer without a policy"))?;
        let (held, released) = (count(row.held)?, count(row.released)?);
        let quarantined = count(row.quarantined)?;
        let first_nonce = policy.first_nonce.get();
        let next_nonce = row.last_nonce.map(nonce).transpose()?.map_or(first_nonce, |last| last.get() + 1);
        let consumed = next_nonce
            .checked_sub(first_nonce + held + released + quarantined)
            .ok_or_else(|| impossible("more open nonces than were ever granted"))?;
        let lease_expires_in_ms = row.lease_expires_in_ms.map_or(Ok(0), count)?;
        let owner = row.owner.as_deref().map(instance).transpose()?.filter(|_| lease_expires_in_ms > 0);
        Ok(Self {
            signer: SignerId::parse(&row.signer).map_err(impossible)?,
            lease_expires_in_ms: if owner.is_some() { lease_expires_in_ms } else { 0 },
            owner,
            token: row.fencing_token.map(Token::new),
            next_nonce,
            held,
            released,
            consumed,
            quarantined,
            oldest_hold_ms: row.oldest_hold_ms.map(count).transpose()?,
            is_recovering: row.policy.recovering.unwrap_or(false),
            policy,
        })
    }
}

record! {
    pub(crate) struct InstanceRow {
        instance_id: String,
        url: String,
        hostname: String,
        pid: i64,
        version: String,
        bus_up: Option<bool>,
        bus: Option<String>,
        started_at: Moment,
    }
}

impl TryFrom<InstanceRow> for Instance {
    type Error = Error;

    fn try_from(row: InstanceRow) -> Result<Self> {
        Ok(Self {
            about: NewInstance {
                id: instance(&row.instance_id)?,
                url: row.url,
                hostname: row.hostname,
                pid: u32::try_from(row.pid).map_err(impossible)?,
                version: row.version,
            },
            bus_up: row.bus_up,
            bus: row.bus,
            started_at: row.started_at.0,
        })
    }
}

record! {
    pub(crate) struct LeaseCountRow {
        pub(crate) owner: Option<String>,
        pub(crate) found: i64,
        pub(crate) live: i64,
        pub(crate) last: String,
    }
}

record! {
    pub(crate) struct PeerRow {
        instance_id: String,
        url: String,
        #[flatten]
        lease: LeaseRow,
        age_ms: i64,
    }
}

impl TryFrom<PeerRow> for Peer {
    type Error = Error;

    fn try_from(row: PeerRow) -> Result<Self> {
        Ok(Self {
            id: instance(&row.instance_id)?,
            url: row.url,
            lease: row.lease.try_into()?,
            age_ms: count(row.age_ms)?,
        })
    }
}

record! {
    pub(crate) struct KeyRow {
        pub(crate) scope: String,
        pub(crate) key: String,
        body_hash: Vec<u8>,
        pub(crate) answer: String,
        pub(crate) created_at: Moment,
    }
}

impl KeyRow {
    pub(crate) fn body_hash(&self) -> Result<[u8; 32]> {
        self.body_hash.as_slice().try_into().map_err(|_| impossible("a body hash of another length"))
    }
}

/// A grant's answer as it is kept: JSON text, written and read here alone.
#[derive(Serialize, Deserialize)]
struct KeptAnswer {
    token: i64,
    owner: String,
    grants: Vec<(u64, String)>,
}

impl TryFrom<KeyRow> for (KeyScope, KeptKey) {
    type Error = Error;

    fn try_from(row: KeyRow) -> Result<Self> {
        let kept: KeptAnswer = serde_json::from_str(&row.answer).map_err(impossible)?;
        let grants = kept
            .grants
            .iter()
            .map(|(number, text)| Ok((Nonce::new(*number).map_err(impossible)?, hold(text)?)));
        let key = IdempotencyKey::parse(&row.key).map_err(impossible)?;
        let kept = KeptKey {
            body_hash: row.body_hash()?,
            answer: GrantAnswer {
                token: Token::new(kept.token),
                owner: instance(&kept.owner)?,
                grants: grants.collect::<Result<_>>()?,
            },
        };
        Ok((KeyScope { scope: row.scope, key }, kept))
    }
}

/// The text that is kept under an idempotency key.
pub(crate) fn kept_text(answer: &GrantAnswer) -> String {
    let kept = KeptAnswer {
        token: answer.token.get(),
        owner: answer.owner.to_string(),
        grants: answer.grants.iter().map(|(nonce, hold)| (nonce.get(), hold.to_string())).collect(),
    };
    serde_json::to_string(&kept).expect("numbers and texts always serialise")
}

/// Above every id and resource: `~` comes after all their characters.
pub(crate) const TOP: &str = "~";
/// Directly above a name: `!` comes before all characters that could follow it.
pub(crate) const JUST_ABOVE: &str = "!";

/// The bounds of a page of the signers whose names begin with `prefix`.
pub(crate) fn signer_bounds(prefix: &str, after: Option<&SignerId>) -> (String, String) {
    bounds(prefix.to_owned(), after)
}

/// The bounds of a page of leases.
pub(crate) fn lease_bounds(filter: &LeaseFilter) -> (String, String) {
    let prefix = filter.kind.map_or_else(String::new, |kind| format!("{}:{}", kind.as_str(), filter.prefix));
    bounds(prefix, filter.after.as_ref())
}

fn bounds(prefix: String, after: Option<&impl Display>) -> (String, String) {
    let after = after.map_or_else(String::new, |after| format!("{after}{JUST_ABOVE}"));
    let to = format!("{prefix}{TOP}");
    (prefix.max(after), to)
}

/// Reads the signers of a look for overdue holds that asked for up to `limit`.
pub(crate) fn overdue_signers(looked_at: Vec<(String, bool)>, limit: u32) -> Result<OverdueSigners> {
    let signer = |name: &String| SignerId::parse(name).map_err(impossible);
    let last = looked_at.last().filter(|_| looked_at.len() >= limit as usize);
    let next = last.map(|(name, _)| signer(name)).transpose()?;
    let overdue = looked_at.iter().filter(|(_, is_overdue)| *is_overdue).map(|(name, _)| signer(name));
    Ok(OverdueSigners { overdue: overdue.collect::<Result<_>>()?, next })
}

/// Reads resources' names.
pub(crate) fn resources(names: Vec<(String,)>) -> Result<Vec<Resource>> {
    names.iter().map(|(name,)| Resource::parse(name).map_err(impossible)).collect()
}

/// Converts every row.
pub(crate) fn all<Raw, Typed: TryFrom<Raw, Error = Error>>(rows: Vec<Raw>) -> Result<Vec<Typed>> {
    rows.into_iter().map(Typed::try_from).collect()
}
