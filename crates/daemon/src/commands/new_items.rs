//! What is new in a list that begins with the newest, from one look at it to the next, on however many pages.
//!
//! What must never live here: how a particular list is read or looks.

use std::time::Duration;

use client::wire::List;
use client::{Page, Result};
use tokio::time::Instant;

/// Pages that one look reads at most.
pub const LOOK_PAGES_MAX: usize = 100;

/// A look that has taken this long reads no further page. For a token that sees few of many each page may take as long.
pub const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// Reads a list again and again.
pub struct NewItems<T> {
    /// A text for an item: the newer the item, the greater the text.
    place: fn(&T) -> String,
    /// `None` while no look has shown where the list begins.
    known: Option<Known>,
}

/// What is known of a list, by places.
struct Known {
    /// The newest item of the last look.
    newest: String,
    /// The next look reads on to here: the middle of the last look's first page, or the newest item of the look before it,
    /// whichever is older. What was being written at the last look may come behind what was new then.
    until: String,
}

/// What one look at a list has read.
pub struct Looked<T> {
    /// The first page; and, unless this is the first look, the items behind it that are new, with some that are known.
    pub list: List<T>,
    /// Whether [`LOOK_PAGES_MAX`] or [`LOOK_TIME_MAX`] ended the look while what it read was new: what else is new is on the next
    /// page of the list.
    pub is_cut: bool,
}

impl<T> NewItems<T> {
    /// The new items of a list that is sorted by `place`, the greatest first.
    pub const fn new(place: fn(&T) -> String) -> Self {
        Self { place, known: None }
    }

    /// Looks at the list from this page on. A look that fails is as if it had not been.
    ///
    /// # Errors
    /// What `read` says, which reads one page.
    pub async fn look(
        &mut self,
        from: Page,
        mut read: impl AsyncFnMut(Page) -> Result<List<T>>,
    ) -> Result<Looked<T>> {
        let (place, begun) = (self.place, Instant::now());
        let limit = from.limit;
        let mut list = read(from).await?;
        let newest_and_middle = |items: &[T]| {
            let found = items.first().zip(items.get(items.len() / 2));
            found.map(|(newest, middle)| (place(newest), place(middle)))
        };
        let mut first_page = newest_and_middle(&list.items);
        let mut is_cut = false;
        if let Some(Known { newest, until }) = &self.known {
            let reaches = |items: &[T]| items.last().is_some_and(|last| place(last) <= *until);
            let (mut is_reached, mut pages) = (reaches(&list.items), 1);
            while !is_reached && let Some(cursor) = list.next_cursor.clone() {
                if pages == LOOK_PAGES_MAX || begun.elapsed() >= LOOK_TIME_MAX {
                    is_cut = list.items.last().is_some_and(|last| place(last) > *newest);
                    break;
                }
                let page = read(Page { limit, cursor: Some(cursor) }).await?;
                is_reached = reaches(&page.items);
                list.items.extend(page.items.into_iter().filter(|item| place(item) >= *until));
                list.next_cursor = page.next_cursor;
                // The pages before may have been empty.
                first_page = first_page.or_else(|| newest_and_middle(&list.items));
                pages += 1;
            }
        }
        self.known = match (first_page, self.known.take()) {
            (Some((newest, middle)), Some(before)) if !is_cut => {
                Some(Known { until: middle.min(before.newest), newest })
            }
            // Of what a look has left out, the next one reads nothing.
            (Some((newest, middle)), _) => Some(Known { until: middle, newest }),
            // All that comes into an empty list is new.
            (None, None) if list.next_cursor.is_none() => {
                Some(Known { newest: String::new(), until: String::new() })
            }
            (None, before) => before,
        };
        Ok(Looked { list, is_cut })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A list of numbers, looked at again and again, in pages of so many. What was not in the last look is printed.
    struct Watched {
        all: Vec<u64>,
        new: NewItems<u64>,
        limit: u32,
        last: Vec<u64>,
        printed: HashSet<u64>,
    }

    impl Watched {
        fn new(all: impl IntoIterator<Item = u64>, limit: u32) -> Self {
            Self {
                all: all.into_iter().collect(),
                new: NewItems::new(|number| format!("{number:03}")),
                limit,
                last: Vec::new(),
                printed: HashSet::new(),
            }
        }

        /// Puts these in, and looks. What was read, and whether more is new. Nothing is printed twice.
        async fn look(&mut self, new: impl IntoIterator<Item = u64>) -> (Vec<u64>, bool) {
            self.all.extend(new);
            self.all.sort_unstable();
            let all = &self.all;
            let read = async |page: Page| {
                let limit = page.limit.unwrap() as usize;
                let below = page.cursor.map_or(u64::MAX, |cursor| cursor.parse().unwrap());
                let mut items: Vec<_> = all.iter().rev().copied().filter(|number| *number < below).collect();
                let next_cursor = (items.len() > limit).then(|| items[limit - 1].to_string());
                items.truncate(limit);
                Ok(List { items, next_cursor })
            };
            let looked = self.new.look(Page { limit: Some(self.limit), cursor: None }, read).await.unwrap();
            let items = looked.list.items;
            for item in items.iter().filter(|item| !self.last.contains(item)) {
                assert!(self.printed.insert(*item), "{item}");
            }
            self.last.clone_from(&items);
            (items, looked.is_cut)
        }
    }

    #[tokio::test]
    async fn what_comes_between_two_looks_is_read_on_however_many_pages_it_is() {
        let mut watched = Watched::new(0..10, 2);
        assert_eq!(watched.look([]).await, (vec![9, 8], false), "the first look reads one page");
        assert_eq!(watched.look(10..17).await, ((8..17).rev().collect::<Vec<_>>(), false));
        assert_eq!(watched.look([]).await.0, (9..17).rev().collect::<Vec<_>>(), "nothing is new");
        assert_eq!(watched.look([]).await, (vec![16, 15], false));
        assert_eq!(watched.look([17]).await, (vec![17, 16, 15], false));
    }

    #[tokio::test]
    async fn what_comes_late_behind_the_newest_is_read_too() {
        let mut watched = Watched::new([10, 20, 30, 40], 4);
        assert_eq!(watched.look([]).await.0, [40, 30, 20, 10]);
        assert_eq!(watched.look([35, 50, 60, 70]).await.0, [70, 60, 50, 40, 35, 30, 20]);
    }

    #[tokio::test]
    async fn what_comes_a_look_late_is_read_also_where_the_first_page_is_no_longer_than_what_came_before() {
        let mut watched = Watched::new([10], 1);
        assert_eq!(watched.look([]).await.0, [10]);
        assert_eq!(watched.look([30]).await.0, [30, 10]);
        assert_eq!(watched.look([20]).await.0, [30, 20, 10]);
        assert_eq!(watched.look([]).await.0, [30]);
    }

    #[tokio::test]
    async fn all_that_comes_into_an_empty_list_is_new() {
        let mut watched = Watched::new([], 2);
        assert!(watched.look([]).await.0.is_empty());
        assert_eq!(watched.look(0..5).await, (vec![4, 3, 2, 1, 0], false));
    }

    /// As a token gets it that sees few of many.
    #[tokio::test]
    async fn where_the_first_page_is_empty_and_not_the_last_nothing_is_known() {
        let (mut new, mut asked) = (NewItems::<u64>::new(|number| number.to_string()), 0);
        for _ in 0..2 {
            let read = async |_| {
                asked += 1;
                Ok(List { items: Vec::new(), next_cursor: Some("n".to_owned()) })
            };
            let looked = new.look(Page::default(), read).await.unwrap();
            assert!(looked.list.items.is_empty() && !looked.is_cut);
        }
        assert_eq!(asked, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_ends_in_time_and_says_that_more_is_new_only_where_it_has_read_some_that_is() {
        for (page, is_cut) in [(vec![], false), (vec![1], false), (vec![3], true)] {
            let (mut new, mut asked) = (NewItems::<u64>::new(|number| number.to_string()), 0);
            let first = async |_| Ok(List { items: vec![1, 0], next_cursor: None });
            new.look(Page::default(), first).await.unwrap();
            let read = async |_| {
                asked += 1;
                tokio::time::sleep(LOOK_TIME_MAX / 2).await;
                let items = if asked == 2 { page.clone() } else { Vec::new() };
                Ok(List { items, next_cursor: Some("n".to_owned()) })
            };
            let looked = new.look(Page::default(), read).await.unwrap();
            assert_eq!((looked.list.items, looked.is_cut, asked), (page.clone(), is_cut, 2));
            let slowly = async |_| {
                tokio::time::sleep(LOOK_TIME_MAX).await;
                Ok(List { items: page.clone(), next_cursor: Some("n".to_owned()) })
            };
            let looked = new.look(Page::default(), slowly).await.unwrap();
            assert_eq!((looked.list.items, looked.is_cut), (page.clone(), false), "nothing is new");
        }
    }

    #[tokio::test]
    async fn a_look_reads_so_many_pages_at_most_and_says_that_more_is_new() {
        let mut watched = Watched::new([0], 1);
        watched.look([]).await;
        let many = LOOK_PAGES_MAX as u64;
        let first = (1..=many).rev().collect::<Vec<_>>();
        assert_eq!(watched.look(1..=many).await, (first, true), "the known one is not reached");
        assert!(!watched.look(many + 1..2 * many).await.1);
        let (items, is_cut) = watched.look(2 * many..4 * many).await;
        assert_eq!((items.len(), items[0], is_cut), (LOOK_PAGES_MAX, 4 * many - 1, true));
        watched.look(4 * many..5 * many - 1).await;
        assert!(!watched.look([5 * many]).await.1, "what is not read was there at the last look");
    }
}
