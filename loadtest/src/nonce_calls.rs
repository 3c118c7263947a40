//! The nonce calls of the contract, each attempt exactly one request to the instance that the caller names, and one more
//! to the owner where that instance names one. What was asked and told is recorded.

use serde_json::{Value, json};
use testkit::http::{Client, Reply};

use crate::history::{Asked, Granted, History, Outcome, Record, Settlement, Told, Verdict};

/// Sends a request to the instance at `base`, or to the owner that it names instead of itself, and records what came of
/// it.
pub async fn ask(http: &Client, history: &History, client: usize, base: &str, asked: &Asked) -> Told {
    let (url, key, body) = request_of(base, asked);
    let sent_us = history.now_us();
    let mut answer = http.request("POST", &url, key, Some(&body)).await;
    if let Some(owner) = answer.as_ref().ok().and_then(|reply| reply.body["owner_url"].as_str())
        && answer.as_ref().is_ok_and(|reply| reply.code() == "not_owner")
    {
        let (url, ..) = request_of(owner, asked);
        answer = http.request("POST", &url, key, Some(&body)).await;
    }
    let ended_us = history.now_us();
    let told = match &answer {
        Err(error) => Told::Unknown { error: format!("{error:#}") },
        Ok(reply) => told_by(asked, reply),
    };
    history.add(Record { client, asked: asked.clone(), told: told.clone(), sent_us, ended_us });
    told
}

fn request_of<'a>(base: &str, asked: &'a Asked) -> (String, Option<&'a str>, Value) {
    match asked {
        Asked::Grant { signer, count, hold_ms, key } => (
            format!("{base}/v1/signers/{signer}/nonces"),
            key.as_deref(),
            json!({"count": count, "hold_ms": hold_ms}),
        ),
        Asked::Settle { signer, settlements } => {
            // A single line goes through the single calls, so that the checker sees these too.
            if let [one] = settlements.as_slice() {
                let base = format!("{base}/v1/signers/{signer}/nonces/{}", one.nonce);
                return match one.outcome {
                    Outcome::Consumed => (
                        format!("{base}/consume"),
                        None,
                        without_null(json!({"hold": one.hold, "tx_hash": one.tx_hash})),
                    ),
                    Outcome::NeverSent | Outcome::Unknown => {
                        (format!("{base}/release"), None, json!({"hold": one.hold, "outcome": one.outcome}))
                    }
                };
            }
            let lines: Vec<Value> =
                settlements.iter().map(|one: &Settlement| without_null(json!(one))).collect();
            (format!("{base}/v1/signers/{signer}/settlements"), None, json!({"settlements": lines}))
        }
    }
}

fn without_null(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

fn told_by(asked: &Asked, reply: &Reply) -> Told {
    let understood = match (asked, reply.status) {
        (Asked::Grant { .. }, 201) => granted(&reply.body),
        (Asked::Settle { settlements, .. }, 200) if settlements.len() == 1 => {
            reply.body["status"].as_str().map(|status| Told::Settled(vec![Verdict::Done(status.to_owned())]))
        }
        (Asked::Settle { settlements, .. }, 200) => settled(&reply.body)
            .filter(|told| matches!(told, Told::Settled(v) if v.len() == settlements.len())),
        (Asked::Settle { settlements, .. }, 409)
            if settlements.len() == 1 && matches!(reply.code(), "stale_hold" | "already_settled") =>
        {
            Some(Told::Settled(vec![Verdict::Refused(reply.code().to_owned())]))
        }
        (_, 400..)
            if !reply.code().is_empty() && reply.content_type.starts_with("application/problem+json") =>
        {
            Some(Told::Refused { status: reply.status, code: reply.code().to_owned() })
        }
        _ => None,
    };
    understood.unwrap_or_else(|| Told::Malformed { status: reply.status, body: reply.text.clone() })
}

fn granted(body: &Value) -> Option<Told> {
    let grants = body["grants"].as_array()?.iter().map(|one| {
        if one["status"] != "HELD" {
            return None;
        }
        Some(Granted {
            nonce: one["nonce"].as_u64()?,
            hold: one["hold"].as_str()?.to_owned(),
            held_for_ms: one["held_for_ms"].as_u64()?,
        })
    });
    Some(Told::Granted { token: body["fencing_token"].as_i64()?, grants: grants.collect::<Option<_>>()? })
}

fn settled(body: &Value) -> Option<Told> {
    let lines = body["results"].as_array()?.iter().map(|one| match (&one["status"], &one["code"]) {
        (Value::String(status), Value::Null) => Some(Verdict::Done(status.clone())),
        (Value::Null, Value::String(code)) => Some(Verdict::Refused(code.clone())),
        _ => None,
    });
    Some(Told::Settled(lines.collect::<Option<_>>()?))
}
