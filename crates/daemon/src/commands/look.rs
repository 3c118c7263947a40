//! What a command that shows something does: it reads it and prints it, once, or with `-w` again whenever it has changed.
//!
//! What must never live here: how a particular answer is read or looks.

use std::collections::HashSet;
use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use client::wire::List;
use client::{Page, Result};
use serde::Serialize;

use super::absence::Absence;
use super::new_items::{Looked, NewItems};
use super::screen::Screen;
use super::shown::{self, About};
use crate::cli::Shown;
use crate::exit::Failure;

/// The delay between two reads.
const EVERY: Duration = Duration::from_secs(1);

/// How answers of a type are printed.
pub struct Look<'a, T> {
    people: fn(&T) -> String,
    json: fn(&T) -> Vec<String>,
    more: fn(&T) -> String,
    is_over: fn(&T) -> bool,
    /// Whether nothing was read in the time of one request, so that the answer does not say what there is.
    is_unread: fn(&T) -> bool,
    about: About<'a>,
}

impl<'a, T: Serialize> Look<'a, T> {
    /// Prints one JSON document, or the text of `people`.
    pub const fn one(people: fn(&T) -> String) -> Self {
        Self {
            people,
            json: |answer| vec![shown::json(answer)],
            more: |_| String::new(),
            is_over: |_| false,
            is_unread: |_| false,
            about: About::NOTHING,
        }
    }

    /// With `-w` it ends when this is so.
    pub const fn until(mut self, is_over: fn(&T) -> bool) -> Self {
        self.is_over = is_over;
        self
    }
}

impl<T: Serialize> Look<'_, List<T>> {
    /// Prints each item as JSON on a line of its own, or the text of `people`. With JSON the cursor of the next page goes to
    /// stderr.
    pub const fn list(people: fn(&List<T>) -> String) -> Self {
        Self {
            people,
            json: |list| list.items.iter().map(shown::json).collect(),
            more: |list| shown::more(list.next_cursor.as_ref()),
            is_over: |_| false,
            is_unread: |list| list.items.is_empty() && list.next_cursor.is_some(),
            about: About::NOTHING,
        }
    }

    /// The same as [`Self::run`] for a list that begins with the newest: `read` reads a page of it, and `place` gives an item a
    /// text that is the greater the newer the item is. As JSON, `-w` prints each item that is newer than those of the first
    /// look, on whatever page it is, and the newest of a look last; what a look does not come to is left out, and stderr says so.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn run_newest_first(
        self,
        how: &Shown,
        page: Page,
        place: fn(&T) -> String,
        mut read: impl AsyncFnMut(Page) -> Result<List<T>>,
    ) -> std::result::Result<(), Failure> {
        let is_followed = how.watch && how.remote.json;
        let mut new = NewItems::new(place);
        self.run(how, async || {
            if !is_followed {
                return read(page.clone()).await;
            }
            let Looked { mut list, is_cut } = new.look(page.clone(), &mut read).await?;
            if is_cut {
                let more = shown::more(list.next_cursor.as_ref());
                shown::note(&format!("the list was not read to its end; the rest is left out\n{more}"));
            }
            list.items.reverse();
            Ok(list)
        })
        .await
    }
}

impl<'a, T> Look<'a, T> {
    /// Its refusals name this.
    pub const fn about(mut self, about: About<'a>) -> Self {
        self.about = about;
        self
    }

    /// Reads and prints. With `-w` on a terminal the text is drawn in place; elsewhere it is printed whenever it has changed,
    /// and as JSON the lines that were not there before.
    ///
    /// # Errors
    /// The refusal, or why no daemon could be reached; while watching, for a minute.
    pub async fn run(
        self,
        how: &Shown,
        mut read: impl AsyncFnMut() -> Result<T>,
    ) -> std::result::Result<(), Failure> {
        let Shown { watch, ref remote } = *how;
        let (json, about) = (remote.json, self.about);
        if !watch {
            let answer = read().await.map_err(|error| shown::failure_about(about, json, error))?;
            if json {
                shown::print(&self.new_lines(&answer, &mut HashSet::new()));
                shown::note(&(self.more)(&answer));
            } else {
                shown::print(&(self.people)(&answer));
            }
            return Ok(());
        }
        let mut screen = (stdout().is_terminal() && !json).then(Screen::default);
        let mut absence = Absence::default();
        let (mut before, mut lines_before) = (String::new(), HashSet::new());
        let mut has_begun = false;
        loop {
            match read().await {
                Ok(answer) => {
                    absence.end();
                    has_begun = true;
                    let is_over = (self.is_over)(&answer);
                    let is_read = if json {
                        shown::print(&self.new_lines(&answer, &mut lines_before))
                    } else {
                        let text = (self.people)(&answer);
                        let is_read = match &mut screen {
                            Some(screen) if is_over => screen.draw_whole(&text),
                            Some(screen) => screen.draw(&text),
                            None if text == before => true,
                            None if before.is_empty() => shown::print(&text),
                            None => shown::print(&format!("\n{text}")),
                        };
                        before = text;
                        is_read
                    };
                    if is_over || !is_read || !shown::has_reader() {
                        return Ok(());
                    }
                    tokio::time::sleep(EVERY).await;
                }
                // A daemon that cannot be reached now is not waited for.
                Err(error) if !has_begun => return Err(shown::failure_about(about, json, error)),
                Err(error) => {
                    absence.outlast(error).await.map_err(|error| shown::failure_about(about, json, error))?;
                    // The message about the absence stays where it is.
                    if let Some(screen) = &mut screen {
                        screen.leave();
                    }
                }
            }
        }
    }

    /// The lines that are not among those of the answer before, which become those of this one.
    fn new_lines(&self, answer: &T, before: &mut HashSet<String>) -> String {
        let lines = (self.json)(answer);
        let new = lines.iter().filter(|line| !before.contains(*line));
        let text = new.fold(String::new(), |text, line| text + line + "\n");
        if !(self.is_unread)(answer) {
            *before = lines.into_iter().collect();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_printed_again_because_a_page_had_no_time_to_be_read() {
        let look = Look::<List<u64>>::list(|_| String::new());
        let mut before = HashSet::new();
        let mut print = |items: &[u64], next_cursor: Option<&str>| {
            let list = List { items: items.to_vec(), next_cursor: next_cursor.map(str::to_owned) };
            look.new_lines(&list, &mut before)
        };
        assert_eq!(print(&[2, 1], None), "2\n1\n");
        assert_eq!(print(&[], Some("n")), "");
        assert_eq!(print(&[3, 2, 1], Some("n")), "3\n");
        assert_eq!(print(&[], None), "");
        assert_eq!(print(&[3], None), "3\n", "it was gone");
    }
}
