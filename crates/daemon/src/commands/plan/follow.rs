//! `fencepost plan events -w`: what happens to a plan, as it happens.

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
    if !json && !shown::print(&tasks_shown::event_headings()) {
        return Ok(());
    }
    loop {
        match events.next().await {
            Ok(event) => {
                absence.is_over();
                let line = if json { shown::json(&event) + "\n" } else { tasks_shown::event_line(&event) };
                if !shown::print(&line) {
                    return Ok(());
                }
            }
            Err(error) => absence.outlast(error).await.map_err(|error| shown::failure(json, error))?,
        }
    }
}
