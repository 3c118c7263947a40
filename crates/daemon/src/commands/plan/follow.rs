//! `fencepost plan events -w`: what happens to a plan, as it happens.

use std::io::{Write as _, stdout};

use client::PlanEvents;

use crate::commands::absence::Absence;
use crate::commands::{shown, tasks_shown};
use crate::exit::Failure;

/// Prints each event on a line, until the reader closes the pipe.
///
/// # Errors
/// The refusal, or why no daemon could be reached for a minute.
pub async fn run(mut events: PlanEvents, json: bool) -> Result<(), Failure> {
    let mut absence = Absence::default();
    if !json && !is_printed(&tasks_shown::event_headings()) {
        return Ok(());
    }
    loop {
        match events.next().await {
            Ok(event) => {
                absence.is_over();
                let line = if json {
                    serde_json::to_string(&event).expect("an event is plain data") + "\n"
                } else {
                    tasks_shown::event_line(&event)
                };
                if !is_printed(&line) {
                    return Ok(());
                }
            }
            Err(error) => absence.outlast(error).await.map_err(|error| shown::failure(json, error))?,
        }
    }
}

/// Prints a line; `false` if nobody reads it.
fn is_printed(line: &str) -> bool {
    stdout().write_all(line.as_bytes()).is_ok()
}
