//! Commands that name several ids: one call for each.

use std::cell::Cell;

use serde::Serialize;

use super::shown::{self, About};
use crate::cli::Remote;
use crate::exit::{Exit, Failure};
use crate::logging;

/// Makes a call for each id, and prints the answers, with JSON one on a line. A refusal is printed and keeps no other id from
/// being asked for; a daemon that cannot be reached, or whose answer was lost, does. Where there are several ids, a failure
/// names its own.
///
/// # Errors
/// The last failure.
pub async fn each<T: Serialize>(
    ids: &[String],
    remote: &Remote,
    call: impl AsyncFn(&str) -> client::Result<T>,
    people: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    let mut failed = None;
    for (at, id) in ids.iter().enumerate() {
        match call(id).await {
            Ok(answer) => shown::answer(remote.json, &answer, &people),
            Err(error) => {
                let about = if ids.len() > 1 { About::one(id) } else { About::NOTHING };
                let mut failure = shown::failure_about(about, remote.json, error);
                let goes_on = failure.exit == Exit::Refused;
                if !goes_on {
                    shown::not_tried(remote.json, &ids[at + 1..], &mut failure);
                }
                failed.replace(failure).iter().for_each(logging::print_failure);
                if !goes_on {
                    break;
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// The same for calls that change nothing. For people it prints so behind the answers, if there are any.
///
/// # Errors
/// The last failure.
pub async fn each_unchanged<T: Serialize>(
    ids: &[String],
    remote: &Remote,
    read: impl AsyncFn(&str) -> client::Result<T>,
    people: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    let has_answer = Cell::new(false);
    let people = |answer: &T| {
        has_answer.set(true);
        people(answer)
    };
    let done = each(ids, remote, read, people).await;
    if has_answer.get() {
        shown::print("nothing was changed\n");
    }
    done
}
