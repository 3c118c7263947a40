//! Nonces: grants, settlements, policies, and what the audit shows.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::{
    GRANT_NONCES_MAX, HOLD_CHARS_MAX, HOLD_MS_MAX, HOLD_MS_MIN, MAX_IN_FLIGHT_MAX, NONCE_MAX,
    SETTLEMENTS_MAX, TX_HASH_CHARS_MAX,
};
use crate::problem::Code;
use crate::strict::{self, words};

words! {
    /// The state of a nonce that was granted at least once.
    pub enum Status {
        /// Granted to one caller under a hold, until `held_until`.
        Held = "HELD",
        /// Used. Final.
        Consumed = "CONSUMED",
        /// A hole, free for the next grant.
        Released = "RELEASED",
        /// May have been sent; not granted again until its hold or an operator decides.
        Quarantined = "QUARANTINED",
    }
}

words! {
    /// What the holder says became of a nonce.
    pub enum Outcome {
        /// It was used: it becomes CONSUMED.
        Consumed = "consumed",
        /// It was not sent and never will be: it becomes RELEASED and is granted again.
        NeverSent = "never_sent",
        /// It may have been sent: it becomes QUARANTINED.
        Unknown = "unknown",
    }
}

words! {
    /// What the holder of a nonce that it gives back says became of it.
    pub enum ReleaseOutcome {
        /// It was not sent and never will be: it becomes RELEASED and is granted again.
        NeverSent = "never_sent",
        /// It may have been sent: it becomes QUARANTINED.
        Unknown = "unknown",
    }
}

words! {
    /// An operator's decision on a QUARANTINED nonce.
    pub enum Resolution {
        /// It was used: it becomes CONSUMED.
        Consumed = "consumed",
        /// It was not sent and never will be: it becomes RELEASED and is granted again.
        NeverSent = "never_sent",
    }
}

words! {
    /// What happens to a hold that runs out.
    pub enum OnExpiry {
        /// The nonce becomes RELEASED and is granted again.
        Release = "release",
        /// The nonce becomes QUARANTINED.
        Quarantine = "quarantine",
    }
}

/// A wish for nonces. The body may be left out altogether.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// How many.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, GRANT_NONCES_MAX, _>"
    )]
    #[schema(nullable = false, default = 1, minimum = 1, maximum = 1000)]
    pub count: Option<u64>,
    /// How long each is held, in milliseconds; without it the signer's policy says, else the daemon's
    /// configuration.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<HOLD_MS_MIN, HOLD_MS_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 604800000)]
    pub hold_ms: Option<u64>,
}

/// Nonces granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantAnswer {
    /// The signer.
    pub signer: String,
    /// The fencing token under which they were granted.
    pub fencing_token: i64,
    /// The instance that granted them.
    pub owner: String,
    /// The nonces, lowest hole first. The same on every repetition under one `Idempotency-Key`.
    pub grants: Vec<Grant>,
}

/// One nonce granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// The nonce to send with.
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub nonce: u64,
    /// The hold to settle it with.
    pub hold: String,
    /// HELD.
    pub status: Status,
    /// When the hold runs out, by the database's clock.
    #[schema(format = DateTime)]
    pub held_until: String,
    /// What was left of it when this answer was built, in milliseconds. Count it from when the request
    /// was *sent*; after that the nonce may be somebody else's.
    pub held_for_ms: u64,
}

/// Many settlements in one request; each is accepted or refused on its own, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettlementsRequest {
    /// The settlements.
    #[serde(deserialize_with = "strict::objects::<SETTLEMENTS_MAX, _, _>")]
    #[schema(min_items = 1, max_items = 1000)]
    pub settlements: Vec<Settlement>,
}

/// What became of one nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Settlement {
    /// The nonce.
    #[serde(deserialize_with = "strict::integer::<0, NONCE_MAX, _>")]
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub nonce: u64,
    /// The hold it was granted under.
    #[serde(deserialize_with = "strict::text::<HOLD_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 128)]
    pub hold: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The transaction that used it; only with the outcome `consumed`. Visible ASCII.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TX_HASH_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    pub tx_hash: Option<String>,
}

/// The answers to many settlements, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettlementsAnswer {
    /// One for each settlement.
    pub results: Vec<SettlementResult>,
}

/// The answer to one settlement among many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SettlementResult {
    /// It counts.
    Settled {
        /// The nonce.
        nonce: u64,
        /// The state it is in now.
        status: Status,
    },
    /// It was refused and changed nothing.
    Refused {
        /// The nonce.
        nonce: u64,
        /// `stale_hold` or `already_settled`.
        code: Code,
        /// Why.
        detail: String,
    },
}

/// The nonce was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsumeRequest {
    /// The hold it was granted under.
    #[serde(deserialize_with = "strict::text::<HOLD_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 128)]
    pub hold: String,
    /// The transaction that used it. Visible ASCII.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TX_HASH_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    pub tx_hash: Option<String>,
}

/// The nonce was not used, or perhaps not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The hold it was granted under.
    #[serde(deserialize_with = "strict::text::<HOLD_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 128)]
    pub hold: String,
    /// What became of it.
    pub outcome: ReleaseOutcome,
}

/// An operator decides on a QUARANTINED nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// What became of it.
    pub outcome: Resolution,
    /// The hold that the operator looked at. With it the decision counts only while that is the nonce's last
    /// hold, so that a repeat that comes late cannot decide about somebody else's.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<HOLD_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub hold: Option<String>,
    /// The transaction that used it; only with the outcome `consumed`. Visible ASCII.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TX_HASH_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    pub tx_hash: Option<String>,
}

/// The state that a nonce is in now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NonceAnswer {
    /// The signer.
    pub signer: String,
    /// The nonce.
    pub nonce: u64,
    /// Its state.
    pub status: Status,
}

/// A change of a signer's policy: what is named changes, the rest stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Where numbering begins; only before the first grant (or the same as it is).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<0, NONCE_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 0, maximum = 9007199254740991u64)]
    pub first_nonce: Option<u64>,
    /// Length of a hold whose request names none, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<HOLD_MS_MIN, HOLD_MS_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 604800000)]
    pub hold_ms: Option<u64>,
    /// What happens to holds that run out.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false)]
    pub on_expiry: Option<OnExpiry>,
    /// Most nonces HELD or QUARANTINED at once; `null` takes the window away, absent leaves it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer_or_null::<1, MAX_IN_FLIGHT_MAX, _>"
    )]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 1000000)]
    pub max_in_flight: Option<Option<u64>>,
}

/// How a signer's nonces are handed out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// Where numbering begins.
    pub first_nonce: u64,
    /// Length of a hold whose request names none, in milliseconds; `null` follows the daemon's
    /// configuration.
    #[schema(required)]
    pub hold_ms: Option<u64>,
    /// What happens to holds that run out.
    pub on_expiry: OnExpiry,
    /// Most nonces HELD or QUARANTINED at once; `null` is no window.
    #[schema(required)]
    pub max_in_flight: Option<u64>,
}

/// A signer's policy, as it is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyAnswer {
    /// The signer.
    pub signer: String,
    /// Its policy.
    pub policy: Policy,
}

/// One signer as the ledger has it, the same on every instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Signer {
    /// The signer.
    pub signer: String,
    /// The instance that has its lease now; `null` when nobody has.
    #[schema(required)]
    pub owner: Option<String>,
    /// The newest fencing token; `null` if the lease was never acquired.
    #[schema(required)]
    pub fencing_token: Option<i64>,
    /// How long the lease still runs, in milliseconds; 0 without a live one.
    pub lease_expires_in_ms: u64,
    /// The lowest nonce never granted.
    pub next_nonce: u64,
    /// How many are HELD.
    pub held: u64,
    /// How many are RELEASED.
    pub released: u64,
    /// How many are CONSUMED.
    pub consumed: u64,
    /// How many are QUARANTINED.
    pub quarantined: u64,
    /// Age of the oldest hold that is HELD, in milliseconds; `null` when none is.
    #[schema(required)]
    pub oldest_hold_ms: Option<u64>,
    /// Its policy.
    pub policy: Policy,
}

/// One nonce for the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NonceRecord {
    /// The nonce.
    pub nonce: u64,
    /// Its state.
    pub status: Status,
    /// The hold it was granted under last.
    pub hold: String,
    /// When that hold runs, or ran, out.
    #[schema(format = DateTime)]
    pub held_until: String,
    /// The transaction that used it, if it was named.
    #[schema(required)]
    pub tx_hash: Option<String>,
    /// The fencing token under which it was written last.
    pub fencing_token: i64,
    /// The instance that wrote it last.
    pub owner: String,
    /// When it was granted first.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was written last.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T: for<'de> Deserialize<'de> + std::fmt::Debug>(body: &str) -> String {
        serde_json::from_str::<T>(body).expect_err(body).to_string()
    }

    #[test]
    fn absent_null_and_a_number_are_three_things() {
        let read = |body| serde_json::from_str::<PolicyRequest>(body).unwrap().max_in_flight;
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"max_in_flight":null}"#), Some(None));
        assert_eq!(read(r#"{"max_in_flight":7}"#), Some(Some(7)));
        assert_eq!(
            serde_json::to_string(&PolicyRequest { max_in_flight: Some(None), ..Default::default() })
                .unwrap(),
            r#"{"max_in_flight":null}"#
        );
        assert!(refusal::<PolicyRequest>(r#"{"max_in_flight":0}"#).contains("from 1 to 1000000, or null"));
        assert!(refusal::<PolicyRequest>(r#"{"hold_ms":null}"#).contains("from 1 to 604800000"));
    }

    #[test]
    fn numbers_that_are_not_whole_or_out_of_range_are_refused_with_the_range() {
        for bad in
            ["0", "1001", "-1", "1.0", "1e3", "-0", "99999999999999999999", "\"1\"", "null", "[]", "{}"]
        {
            let message = refusal::<GrantRequest>(&format!(r#"{{"count":{bad}}}"#));
            assert!(message.contains("a whole number from 1 to 1000"), "{bad}: {message}");
        }
    }

    #[test]
    fn generous_forms_of_serde_are_refused() {
        assert!(
            refusal::<SettlementsRequest>(r#"{"settlements":[[0,"h","consumed"]]}"#).contains("an object")
        );
        assert!(refusal::<ReleaseRequest>(r#"{"hold":"h","outcome":{"unknown":null}}"#).contains("one of"));
        assert!(refusal::<GrantRequest>(r#"{"count":1,"count":1}"#).contains("duplicate field"));
        assert!(refusal::<GrantRequest>(r#"{"kount":1}"#).contains("unknown field"));
        assert!(refusal::<ConsumeRequest>(r#"{"hold":"","tx_hash":"0x"}"#).contains("1 to 128 characters"));
        assert!(refusal::<SettlementsRequest>(r#"{"settlements":[]}"#).contains("1 to 1000 objects"));
    }

    #[test]
    fn answers_keep_their_shape() {
        let results = vec![
            SettlementResult::Settled { nonce: 0, status: Status::Consumed },
            SettlementResult::Refused { nonce: 1, code: Code::StaleHold, detail: "late".to_owned() },
        ];
        let text = r#"{"results":[{"nonce":0,"status":"CONSUMED"},{"nonce":1,"code":"stale_hold","detail":"late"}]}"#;
        let answer = SettlementsAnswer { results };
        assert_eq!(serde_json::to_string(&answer).unwrap(), text);
        assert_eq!(serde_json::from_str::<SettlementsAnswer>(text).unwrap(), answer);
    }
}
