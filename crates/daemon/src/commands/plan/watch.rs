//! `fencepost plan show -w`: the plan again every second, until nothing follows without a person.

mod screen;

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use client::wire::plans::PlanStatus;

use super::reader::Reader;
use crate::commands::absence::Absence;
use crate::commands::shown;
use crate::commands::tasks_shown::{self, PlanView};
use crate::exit::Failure;
use screen::Screen;

/// The delay between two reads.
const EVERY: Duration = Duration::from_secs(1);

/// Shows the plan until it is SUCCEEDED, ATTENTION or CANCELLED: on a terminal in place, else whenever it has changed, with
/// `json` one value on each line.
///
/// # Errors
/// The refusal, or why no daemon could be reached for a minute.
pub async fn run(mut reader: Reader<'_>, json: bool) -> Result<(), Failure> {
    let mut screen = (stdout().is_terminal() && !json).then(Screen::default);
    let mut absence = Absence::default();
    let mut before = String::new();
    loop {
        match reader.read().await {
            Ok(view) => {
                absence.is_over();
                let (text, is_over) = (tasks_shown::plan(&view), is_over(view.plan.status));
                match &mut screen {
                    Some(screen) if is_over => screen.draw_whole(&text),
                    Some(screen) => screen.draw(&text),
                    None if text != before => print(json, &view, &text, before.is_empty()),
                    None => {}
                }
                if is_over {
                    return Ok(());
                }
                before = text;
                tokio::time::sleep(EVERY).await;
            }
            Err(error) => {
                absence.outlast(error).await.map_err(|error| shown::failure(json, error))?;
                // The message about the absence stays where it is.
                if let Some(screen) = &mut screen {
                    screen.leave();
                }
            }
        }
    }
}

/// Prints the plan below what was printed before.
fn print(json: bool, view: &PlanView, text: &str, is_first: bool) {
    let gap = if is_first { "" } else { "\n" };
    shown::answer(json, view, |_| format!("{gap}{text}"));
}

/// Whether nothing follows without a person.
fn is_over(status: PlanStatus) -> bool {
    match status {
        PlanStatus::Succeeded | PlanStatus::Attention | PlanStatus::Cancelled => true,
        PlanStatus::Created | PlanStatus::Running | PlanStatus::Paused => false,
    }
}
