//! The nonce calls of the contract, each attempt exactly one request to the instance that the caller names, and one more
//! to the owner where that instance names one. What was asked and told is recorded.

use serde_json::{Value, json};
use testkit::http::{Client, Reply};

use crate::history::{Answer, Asked, Granted, History, Outcome, Record, Settlement, Verdict};
use crate::owner::Request;

/// Sends a request to the instance at `base`, or to the owner that it names instead of itself, and records what came of
/// it.
pub async fn ask(http: &Client, history: &History, client: usize, base: &str, asked: &Asked) -> Answer {
    let (path, key, body) = request_of(asked);
    let sent_us = history.now_us();
    let answer = Request { method: "POST", path: &path, key, body: Some(&body) }.ask(http, base).await;
    let ended_us = history.now_us();
    let answer = match &answer {
        Err(error) => Answer::Unknown { error: format!("{error:#}") },
        Ok(reply) => answer_of(asked, reply),
    };
    history.add(Record { client, asked: asked.clone(), answer: answer.clone(), sent_us, ended_us });
    answer
}

fn request_of(asked: &Asked) -> (String, Option<&str>, Value) {
    match asked {
        Asked::Grant { signer, count, hold_ms, key } => (
            format!("/v1/signers/{signer}/nonces"),
            key.as_deref(),
            json!({"count": count, "hold_ms": hold_ms}),
        ),
        Asked::Settle { signer, settlements } => {
            // A single line goes through the single calls, so that the checker sees these too.
            if let [one] = settlements.as_slice() {
                let base = format!("/v1/signers/{signer}/nonces/{}", one.nonce);
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
            (format!("/v1/signers/{signer}/settlements"), None, json!({"settlements": lines}))
        }
    }
}

fn without_null(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

fn answer_of(asked: &Asked, reply: &Reply) -> Answer {
    let understood = match (asked, reply.status) {
        (Asked::Grant { .. }, 201) => granted(&reply.body),
        (Asked::Settle { settlements, .. }, 200) if settlements.len() == 1 => reply.body["status"]
            .as_str()
            .map(|status| Answer::Settled(vec![Verdict::Done(status.to_owned())])),
        (Asked::Settle { settlements, .. }, 200) => settled(&reply.body)
            .filter(|answer| matches!(answer, Answer::Settled(v) if v.len() == settlements.len())),
        (Asked::Settle { settlements, .. }, 409)
            if settlements.len() == 1 && matches!(reply.code(), "stale_hold" | "already_settled") =>
        {
            Some(Answer::Settled(vec![Verdict::Refused(reply.code().to_owned())]))
        }
        (_, 400..)
            if !reply.code().is_empty() && reply.content_type.starts_with("application/problem+json") =>
        {
            Some(Answer::Refused { status: reply.status, code: reply.code().to_owned() })
        }
        _ => None,
    };
    understood.unwrap_or_else(|| Answer::Malformed { status: reply.status, body: reply.text.clone() })
}

fn granted(body: &Value) -> Option<Answer> {
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
    Some(Answer::Granted { token: body["fencing_token"].as_i64()?, grants: grants.collect::<Option<_>>()? })
}

fn settled(body: &Value) -> Option<Answer> {
    let lines = body["results"].as_array()?.iter().map(|one| match (&one["status"], &one["code"]) {
        (Value::String(status), Value::Null) => Some(Verdict::Done(status.clone())),
        (Value::Null, Value::String(code)) => Some(Verdict::Refused(code.clone())),
        _ => None,
    });
    Some(Answer::Settled(lines.collect::<Option<_>>()?))
}
