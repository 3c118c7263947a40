//! `fencepost submit`: submits one job and, with `--wait`, prints its result; or many jobs from a file.

mod attempts;
mod lines;
mod many;

use std::fmt::Display;
use std::io::Read;

use client::wire::Json;
use client::wire::limits::PAYLOAD_BYTES_MAX;

use super::{connect, job, once, shown};
use crate::cli::jobs::Submit;
use crate::exit::{Exit, Failure};

/// What keys that are made here begin with.
const COMMAND: &str = "submit";

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; with `--wait` also that the job did not succeed, or not in time; with
/// `--file` that a job was refused.
pub async fn run(command: Submit) -> Result<(), Failure> {
    let Submit { payload, file, job: options, key, wait, at_most, remote } = command;
    if let Some(file) = file {
        return many::run(&connect(&remote)?, &file, &options, key, remote.json).await;
    }
    let request = options.request(self::payload(payload)?);
    let client = connect(&remote)?;
    // Its name in its session is a key, too.
    let key = (key.is_some() || !request.is_named()).then(|| once::key(key, COMMAND));
    let accepted = client.jobs().submit(&request, key.as_deref()).await;
    let accepted = accepted.map_err(|error| {
        let with = key.as_deref().map(once::option).unwrap_or_default();
        shown::failure(remote.json, once::explained(error, "The job may be accepted", &with))
    })?;
    if !wait {
        shown::answer(remote.json, &accepted, |accepted| format!("{}\n", accepted.id));
        return key.as_deref().map_or(Ok(()), once::written);
    }
    // An interrupted wait leaves the job as it is, so its id is printed first.
    shown::note(&format!("job {} is accepted\n", accepted.id));
    job::to_the_end(&client, &accepted.id, at_most, remote.json).await
}

/// The payload from the command line, or from standard input.
fn payload(given: Option<String>) -> Result<Json, Failure> {
    match given.as_deref() {
        None => Ok(Json::null()),
        Some("-") => read(std::io::stdin().lock()),
        Some(text) => json(text),
    }
}

/// The payload that is read from here.
fn read(from: impl Read) -> Result<Json, Failure> {
    let wrong = |why: &dyn Display| Failure::new(Exit::Usage, format!("standard input: {why}"));
    let mut bytes = Vec::new();
    // One byte more than is taken tells that it is too much. That may be a part of a character.
    from.take(PAYLOAD_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
    if bytes.len() > PAYLOAD_BYTES_MAX {
        let message = format!("a payload has at most {PAYLOAD_BYTES_MAX} bytes");
        return Err(Failure::new(Exit::Usage, message));
    }
    json(str::from_utf8(&bytes).map_err(|error| wrong(&error))?)
}

/// JSON as it is; other text as a JSON string, unless it begins as only JSON does. A byte order mark at the beginning does not
/// count: it would make a string of JSON.
fn json(text: &str) -> Result<Json, Failure> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match Json::parse(text) {
        Ok(json) => Ok(json),
        Err(error) if text.trim_start().starts_with(['{', '[', '"']) => {
            Err(Failure::new(Exit::Usage, format!("the payload is not JSON: {error}")))
        }
        Err(_) => Ok(Json::of(text.trim_end_matches('\n')).expect("a text has a JSON form")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_json_or_plain_text() {
        for (text, json) in [
            (r#"{ "a": 1 }"#, r#"{ "a": 1 }"#),
            ("7", "7"),
            ("hello\n", r#""hello""#),
            ("", r#""""#),
            ("\u{feff}{\"a\":1}", r#"{"a":1}"#),
            ("\u{feff}hello", r#""hello""#),
        ] {
            assert_eq!(super::json(text).unwrap().as_str(), json, "{text}");
        }
        for bad in ["{a:1}", "[1,", "\"x", "\u{feff}{a:1}"] {
            assert_eq!(json(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
        assert_eq!(payload(None).unwrap(), Json::null());
    }

    #[test]
    fn a_payload_that_is_too_long_is_refused_as_such_wherever_it_is_cut() {
        // The limit is within one of its characters.
        for text in ["é".repeat(PAYLOAD_BYTES_MAX / 2 + 1), "x".repeat(PAYLOAD_BYTES_MAX + 1)] {
            let failure = read(text.as_bytes()).unwrap_err();
            let says = format!("a payload has at most {PAYLOAD_BYTES_MAX} bytes");
            assert_eq!((failure.exit, failure.message), (Exit::Usage, says));
        }
        assert!(read("x".repeat(PAYLOAD_BYTES_MAX).as_bytes()).is_ok());
        let failure = read(&b"\xff"[..]).unwrap_err();
        assert!(failure.message.starts_with("standard input: invalid utf-8"), "{}", failure.message);
    }
}
