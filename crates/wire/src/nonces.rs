//! Nonces: grants, settlements, policies, and how nonces and signers are shown.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lenient;
use crate::limits::{
    GRANT_NONCES_MAX, HOLD_CHARS_MAX, HOLD_MS_MAX, HOLD_MS_MIN, MAX_IN_FLIGHT_MAX, NONCE_MAX,
    SETTLEMENTS_MAX, TX_HASH_CHARS_MAX,
};
use crate::problem::Code;
use crate::strict::{self, words};

words! {
    /// The state of a nonce that was granted at least once.
    pub growing enum Status {
        /// Granted to one caller under a hold, until `held_until`.
        Held = "HELD",
        /// The nonce was used. This state is final.
        Consumed = "CONSUMED",
        /// The nonce is a hole, free for the next grant.
        Released = "RELEASED",
        /// The nonce may have been sent. It is not granted again until its holder or an operator decides.
        Quarantined = "QUARANTINED",
    }
}

words! {
    /// What became of a nonce, as its holder says.
    #[schema(as = SettlementOutcome)]
    pub enum Outcome {
        /// The nonce was used: it becomes CONSUMED.
        Consumed = "consumed",
        /// The nonce was not sent and never will be: it becomes RELEASED and is granted again.
        NeverSent = "never_sent",
        /// The nonce may have been sent: it becomes QUARANTINED.
        Unknown = "unknown",
    }
}

words! {
    /// What became of a nonce that the caller gives back.
    pub enum ReleaseOutcome {
        /// The nonce was not sent and never will be: it becomes RELEASED and is granted again.
        NeverSent = "never_sent",
        /// The nonce may have been sent: it becomes QUARANTINED.
        Unknown = "unknown",
    }
}

words! {
    /// An operator's decision on a QUARANTINED nonce.
    pub enum Resolution {
        /// The nonce was used: it becomes CONSUMED.
        Consumed = "consumed",
        /// The nonce was not sent and never will be: it becomes RELEASED and is granted again.
        NeverSent = "never_sent",
    }
}

words! {
    /// What happens to a nonce when its hold expires.
    pub growing enum OnExpiry {
        /// The nonce becomes RELEASED and is granted again.
        Release = "release",
        /// The nonce becomes QUARANTINED.
        Quarantine = "quarantine",
    }
}

/// A request for nonces. The body may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// The number of nonces.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, GRANT_NONCES_MAX, _>"
    )]
    #[schema(nullable = false, default = 1, minimum = 1, maximum = 1000)]
    pub count: Option<u64>,
    /// How long each nonce is held, in milliseconds. The default comes from the signer's policy, or else from
    /// the daemon's configuration.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<HOLD_MS_MIN, HOLD_MS_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 604800000)]
    pub hold_ms: Option<u64>,
}

/// The granted nonces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantAnswer {
    /// The signer.
    pub signer: String,
    /// The fencing token under which the nonces were granted.
    pub fencing_token: i64,
    /// The instance that granted the nonces.
    pub owner: String,
    /// The nonces, lowest hole first. Repetitions under one `Idempotency-Key` get the same nonces.
    pub grants: Vec<Grant>,
}

/// A granted nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// The nonce.
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub nonce: u64,
    /// The hold, with which the nonce is settled.
    pub hold: String,
    /// Always HELD.
    #[serde(deserialize_with = "lenient::read")]
    pub status: Status,
    /// When the hold expires, by the database's clock.
    #[schema(format = DateTime)]
    pub held_until: String,
    /// The time that was left of the hold when this answer was built, in milliseconds. Count it from when the request was
    /// *sent*: after that time the nonce may be granted to another caller.
    pub held_for_ms: u64,
}

/// Many settlements in one request. Each is accepted or refused on its own, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettlementsRequest {
    /// The settlements.
    #[serde(deserialize_with = "strict::objects::<SETTLEMENTS_MAX, _, _>")]
    #[schema(min_items = 1, max_items = 1000)]
    pub settlements: Vec<Settlement>,
}

/// What became of a nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Settlement {
    /// The nonce.
    #[serde(deserialize_with = "strict::integer::<0, NONCE_MAX, _>")]
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub nonce: u64,
    /// The hold under which the nonce was granted.
    #[serde(deserialize_with = "strict::text::<HOLD_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 128)]
    pub hold: String,
    /// What became of the nonce.
    pub outcome: Outcome,
    /// The transaction that used the nonce, in visible ASCII. Allowed only with the outcome `consumed`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TX_HASH_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    pub tx_hash: Option<String>,
}

/// The answers to the settlements, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettlementsAnswer {
    /// One answer for each settlement.
    pub results: Vec<SettlementResult>,
}

/// The answer to one settlement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SettlementResult {
    /// The settlement is accepted.
    Settled {
        /// The nonce.
        #[schema(minimum = 0, maximum = 9007199254740991u64)]
        nonce: u64,
        /// The state of the nonce.
        #[serde(deserialize_with = "lenient::read")]
        status: Status,
    },
    /// The settlement is refused and changed nothing.
    Refused {
        /// The nonce.
        #[schema(minimum = 0, maximum = 9007199254740991u64)]
        nonce: u64,
        /// `stale_hold` or `already_settled`. Newer daemons may have further codes.
        #[schema(value_type = Code)]
        code: String,
        /// The reason, in words.
        detail: String,
    },
}

/// The nonce was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsumeRequest {
    /// The hold under which the nonce was granted.
    #[serde(deserialize_with = "strict::text::<HOLD_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 128)]
    pub hold: String,
    /// The transaction that used the nonce, in visible ASCII.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TX_HASH_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    pub tx_hash: Option<String>,
}

/// The nonce was not used, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The hold under which the nonce was granted.
    #[serde(deserialize_with = "strict::text::<HOLD_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 128)]
    pub hold: String,
    /// What became of the nonce.
    pub outcome: ReleaseOutcome,
}

/// An operator decides on a QUARANTINED nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// What became of the nonce.
    pub outcome: Resolution,
    /// The hold that the operator looked at. With it the decision is accepted only while that is the nonce's last hold, so a
    /// late repetition cannot decide about another caller's hold.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<HOLD_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub hold: Option<String>,
    /// The transaction that used the nonce, in visible ASCII. Allowed only with the outcome `consumed`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TX_HASH_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    pub tx_hash: Option<String>,
}

/// The state of a nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NonceAnswer {
    /// The signer.
    pub signer: String,
    /// The nonce.
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub nonce: u64,
    /// The state of the nonce.
    #[serde(deserialize_with = "lenient::read")]
    pub status: Status,
}

/// A change of a signer's policy. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// The first nonce of the signer. It can change only before the first grant.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<0, NONCE_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 0, maximum = 9007199254740991u64)]
    pub first_nonce: Option<u64>,
    /// The length of a hold whose request names none, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<HOLD_MS_MIN, HOLD_MS_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 604800000)]
    pub hold_ms: Option<u64>,
    /// What happens to a nonce when its hold expires.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false)]
    pub on_expiry: Option<OnExpiry>,
    /// The most nonces that may be HELD or QUARANTINED at once. `null` removes the limit.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer_or_null::<1, MAX_IN_FLIGHT_MAX, _>"
    )]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 1000000)]
    pub max_in_flight: Option<Option<u64>>,
    /// Whether an idempotency key is one key for all tokens. Otherwise each token has its own.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false)]
    pub shared_keys: Option<bool>,
}

/// The policy by which a signer's nonces are granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// The first nonce of the signer.
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub first_nonce: u64,
    /// The length of a hold whose request names none, in milliseconds. `null` means the daemon's
    /// configuration.
    #[schema(required)]
    pub hold_ms: Option<u64>,
    /// What happens to a nonce when its hold expires.
    #[serde(deserialize_with = "lenient::read")]
    pub on_expiry: OnExpiry,
    /// The most nonces that may be HELD or QUARANTINED at once. `null` means no limit.
    #[schema(required)]
    pub max_in_flight: Option<u64>,
    /// Whether an idempotency key is one key for all tokens. Otherwise each token has its own.
    // A daemon of the last release says nothing of it.
    #[serde(default)]
    #[schema(required)]
    pub shared_keys: bool,
}

/// A signer's policy in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyAnswer {
    /// The signer.
    pub signer: String,
    /// The signer's policy.
    pub policy: Policy,
}

/// A signer, as the ledger has it: the same on every instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Signer {
    /// The signer.
    pub signer: String,
    /// The instance that holds the signer's lease. `null` when no instance does.
    #[schema(required)]
    pub owner: Option<String>,
    /// The newest fencing token. `null` if the lease was never acquired.
    #[schema(required)]
    pub fencing_token: Option<i64>,
    /// The time until the lease expires, in milliseconds. 0 without a live lease.
    pub lease_expires_in_ms: u64,
    /// The lowest nonce that was never granted.
    pub next_nonce: u64,
    /// The number of nonces that are HELD.
    pub held: u64,
    /// The number of nonces that are RELEASED.
    pub released: u64,
    /// The number of nonces that are CONSUMED.
    pub consumed: u64,
    /// The number of nonces that are QUARANTINED.
    pub quarantined: u64,
    /// The age of the oldest hold of a HELD nonce, in milliseconds. `null` when no nonce is HELD.
    #[schema(required)]
    pub oldest_hold_ms: Option<u64>,
    /// Whether the signer grants nothing until its next nonce is confirmed.
    pub recovering: bool,
    /// The signer's policy.
    pub policy: Policy,
}

/// The confirmation of a signer's next nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmRequest {
    /// The nonce of the account's next transaction: above pending ones, and above all nonces that senders had.
    #[serde(deserialize_with = "strict::integer::<0, NONCE_MAX, _>")]
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub next_nonce: u64,
}

/// A nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NonceRecord {
    /// The nonce.
    #[schema(minimum = 0, maximum = 9007199254740991u64)]
    pub nonce: u64,
    /// The state of the nonce.
    #[serde(deserialize_with = "lenient::read")]
    pub status: Status,
    /// The hold under which the nonce was last granted.
    pub hold: String,
    /// When that hold expires, or expired.
    #[schema(format = DateTime)]
    pub held_until: String,
    /// The transaction that used the nonce, if its holder named it.
    #[schema(required)]
    pub tx_hash: Option<String>,
    /// The fencing token of the last write.
    pub fencing_token: i64,
    /// The instance that wrote last.
    pub owner: String,
    /// When the nonce was first granted.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When the nonce was last written.
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
        let shares = |body| serde_json::from_str::<PolicyRequest>(body).unwrap().shared_keys;
        assert_eq!(
            (shares("{}"), shares(r#"{"shared_keys":true}"#), shares(r#"{"shared_keys":false}"#)),
            (None, Some(true), Some(false))
        );
        for wrong in ["null", "1", r#""true""#] {
            assert!(refusal::<PolicyRequest>(&format!(r#"{{"shared_keys":{wrong}}}"#)).contains("boolean"));
        }
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
            SettlementResult::Refused {
                nonce: 1,
                code: Code::StaleHold.to_string(),
                detail: "late".to_owned(),
            },
        ];
        let text = r#"{"results":[{"nonce":0,"status":"CONSUMED"},{"nonce":1,"code":"stale_hold","detail":"late"}]}"#;
        let answer = SettlementsAnswer { results };
        assert_eq!(serde_json::to_string(&answer).unwrap(), text);
        assert_eq!(serde_json::from_str::<SettlementsAnswer>(text).unwrap(), answer);
    }

    #[test]
    fn a_code_of_a_newer_daemon_is_kept_as_it_came() {
        let text = r#"{"results":[{"nonce":1,"code":"sun_unavailable","detail":"d"}]}"#;
        let newer = text.replace(r#""detail":"d""#, r#""detail":"d","extra":1"#);
        let answer: SettlementsAnswer = serde_json::from_str(&newer).unwrap();
        assert_eq!(serde_json::to_string(&answer).unwrap(), text);
    }
}
