//! `fencepost plan events -w`: what happens to a plan, as it happens.

use client::PlanEvents;

use crate::commands::absence::Absence;
use crate::commands::{shown, tasks_shown};
use crate::exit::Failure;

/// Prints each event on a line, below headings unless it is JSON, until the reader closes the pipe.
///
/// # Errors
/// The refusal, or why no daemon could be reached for a minute.
pub async fn run(mut events: PlanEvents, json: bool) -> Result<(), Failure> {
    let mut absence = Absence::default();
    // A plan that is refused has none.
    let mut headings = if json { String::new() } else { tasks_shown::event_headings() };
    loop {
        let next = tokio::select! {
            next = events.next() => next,
            () = shown::reader_gone() => return Ok(()),
        };
        match next {
            Ok(event) => {
                absence.end();
                let line = if json { shown::json(&event) + "\n" } else { tasks_shown::event_line(&event) };
                if !shown::print(&(std::mem::take(&mut headings) + &line)) {
                    return Ok(());
                }
            }
            Err(error) => absence.outlast(error).await.map_err(|error| shown::failure(json, error))?,
        }
    }
}
