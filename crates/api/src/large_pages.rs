//! Pages of lists whose records may be large. They are read in pieces, so that a page never needs all of its records in
//! memory at once, and what a page has already counts among the bytes of answers.

use std::fmt::Display;
use std::mem;
use std::time::Instant;

use actix_web::HttpRequest;
use serde::Serialize;
use tokio::time::timeout_at;

use crate::auth::Principal;
use crate::cursors::Cursors;
use crate::limits::{PIECE_RECORDS_MAX, SHOWN_PAGE_BYTES_MAX, UNCOUNTED_BYTES_MAX};
use crate::refusal::Refusal;
use crate::shares::{Kind, Share};
use crate::state::State;

/// The room for a page, and the time.
pub struct Room {
    share: Share,
    until: Instant,
}

/// The room for the page that a request asks for, which takes none yet, and half of the time that the request has.
pub fn room(state: &State, request: &HttpRequest) -> Room {
    let share = state.shares.none(Kind::Sending, Principal::of(request).used());
    Room { share, until: Instant::now() + state.settings.request_timeout / 2 }
}

/// Reads a page of up to `limit` items. `read` answers up to so many records behind a key, and none only at the end; `show`
/// gives the key of a record and its item, or no item of a record that the caller does not see. A page ends early with
/// [`SHOWN_PAGE_BYTES_MAX`] bytes of items as JSON, and when its time is over: behind what was looked at, with whatever items it
/// has. The items take their bytes of `room` as they come.
///
/// # Errors
/// Those of `read` and `show`, and `overloaded` where there is no room.
pub async fn page<R, K: Copy + Display, T: Serialize>(
    mut room: Room,
    cursors: &Cursors<'_>,
    begin: Option<K>,
    limit: u32,
    read: impl AsyncFn(Option<K>, u32) -> Result<Vec<R>, Refusal>,
    show: impl Fn(&R) -> Result<(K, Option<T>), Refusal>,
) -> Result<wire::List<wire::Json>, Refusal> {
    let (mut items, mut last, mut bytes) = (Vec::new(), begin, 0);
    let (mut is_first, mut passes_over) = (true, false);
    let cursor = |last: Option<K>| last.map(|key| cursors.cursor(key.to_string()));
    loop {
        // One more than fits tells whether there is another page. Where some are not seen, few that are may come in many pieces.
        let left = limit - items.len() as u32;
        let piece = if passes_over { PIECE_RECORDS_MAX } else { PIECE_RECORDS_MAX.min(left + 1) };
        let reading = read(last, piece);
        let records = if mem::take(&mut is_first) {
            reading.await?
        } else {
            // The next page waits for what takes too long.
            match timeout_at(room.until.into(), reading).await {
                Ok(records) => records?,
                Err(_late) => return Ok(wire::List { items, next_cursor: cursor(last) }),
            }
        };
        if records.is_empty() {
            return Ok(wire::List { items, next_cursor: None });
        }
        for record in records {
            let (key, item) = show(&record)?;
            if let Some(item) = item {
                if items.len() == limit as usize || bytes >= SHOWN_PAGE_BYTES_MAX {
                    return Ok(wire::List { items, next_cursor: cursor(last) });
                }
                let item = written(&item)?;
                bytes += item.as_str().len();
                items.push(item);
            } else {
                passes_over = true;
            }
            last = Some(key);
        }
        if Instant::now() >= room.until {
            return Ok(wire::List { items, next_cursor: cursor(last) });
        }
        if bytes > UNCOUNTED_BYTES_MAX {
            room.share.set(bytes)?;
        }
    }
}

fn written(item: &impl Serialize) -> Result<wire::Json, Refusal> {
    wire::Json::of(item).map_err(|error| {
        tracing::error!(%error, "an item of a list cannot be written as JSON");
        Refusal::internal()
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use wire::Code;

    use super::*;
    use crate::limits::Limit;
    use crate::shares::Shares;

    /// The time for a page that is to take none.
    const TIME_ENOUGH: Duration = Duration::from_secs(3_600);

    fn shares(bytes: usize) -> Shares {
        Shares::new(|_| Limit { in_all: bytes, of_token: bytes })
    }

    /// Room of these shares, and time enough.
    fn room(shares: &Shares) -> Room {
        Room { share: shares.none(Kind::Sending, None), until: Instant::now() + TIME_ENOUGH }
    }

    /// The cursors of the pages.
    const CURSORS: Cursors<'static> = Cursors::in_clear("x");

    /// An item of this record, so long.
    fn item(record: u32, chars: usize) -> Result<(u32, Option<(u32, String)>), Refusal> {
        Ok((record, Some((record, "x".repeat(chars)))))
    }

    /// A page of the numbers from 1 on, each as long as it says, of which one reading gives 40 at most.
    async fn page_of(count: u32, begin: Option<u32>, limit: u32, chars: usize) -> (Vec<u32>, Option<String>) {
        let read = async |after: Option<u32>, limit: u32| {
            Ok((1..=count).filter(|n| *n > after.unwrap_or(0)).take(limit.min(40) as usize).collect())
        };
        let room = room(&shares(usize::MAX));
        let wire::List { items, next_cursor } =
            page(room, &CURSORS, begin, limit, read, |n| item(*n, chars)).await.unwrap();
        let numbers = items.iter().map(|item| item.read::<(u32, String)>().unwrap().0);
        (numbers.collect(), next_cursor)
    }

    #[actix_web::test]
    async fn a_page_of_many_pieces_is_the_same_as_one_of_one() {
        for limit in [1, 2, PIECE_RECORDS_MAX - 1, PIECE_RECORDS_MAX, PIECE_RECORDS_MAX + 1, 1_000] {
            for count in [0, 1, limit - 1, limit, limit + 1, 3 * PIECE_RECORDS_MAX] {
                let (items, next_cursor) = page_of(count, None, limit, 0).await;
                assert!(items.into_iter().eq(1..=count.min(limit)), "{limit} of {count}");
                assert_eq!(next_cursor, (count > limit).then(|| format!("x.{limit}")), "{limit} of {count}");
            }
        }
        assert_eq!(page_of(5, Some(3), 10, 0).await, (vec![4, 5], None));
    }

    #[actix_web::test]
    async fn a_page_of_long_items_ends_early_and_says_where_it_goes_on() {
        let (items, next_cursor) = page_of(10, None, 10, SHOWN_PAGE_BYTES_MAX / 2).await;
        assert_eq!((items, next_cursor.as_deref()), (vec![1, 2], Some("x.2")));
        let (items, next_cursor) = page_of(2, None, 10, SHOWN_PAGE_BYTES_MAX / 2).await;
        assert_eq!((items, next_cursor), (vec![1, 2], None), "nothing is left");
    }

    #[actix_web::test]
    async fn a_page_ends_behind_what_was_read_when_its_time_is_over() {
        for (begin, next_cursor) in [(None, Some("x.1")), (Some(1), Some("x.2")), (Some(2), None)] {
            let read = async |after: Option<u32>, _: u32| Ok((after.unwrap_or(0) + 1..=2).take(1).collect());
            let room = Room { until: Instant::now(), ..room(&shares(usize::MAX)) };
            let page = page(room, &CURSORS, begin, 10, read, |n| item(*n, 1)).await.unwrap();
            assert_eq!(page.next_cursor.as_deref(), next_cursor);
            assert_eq!(page.items.len(), usize::from(next_cursor.is_some()));
        }
    }

    /// A page whose second read never ends.
    async fn page_of_one_read(
        show: impl Fn(&u32) -> Result<(u32, Option<(u32, String)>), Refusal>,
    ) -> wire::List<wire::Json> {
        let read = async |after: Option<u32>, _: u32| match after {
            None => Ok(vec![1]),
            Some(_) => std::future::pending().await,
        };
        let page = page(room(&shares(usize::MAX)), &CURSORS, None, 10, read, show);
        tokio::time::timeout(2 * TIME_ENOUGH, page).await.expect("it ends").unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_has_an_item_waits_for_no_more_when_its_time_is_over() {
        let page = page_of_one_read(|n| item(*n, 1)).await;
        assert_eq!((page.items.len(), page.next_cursor.as_deref()), (1, Some("x.1")));
    }

    #[actix_web::test]
    async fn a_page_goes_on_behind_what_was_looked_at_where_little_is_seen() {
        for (begin, limit, is_over, found, next_cursor, pieces) in [
            (None, 10, false, &[60, 120][..], None, &[11, 50, 50, 50, 50][..]),
            (None, 1, false, &[60], Some("x.119"), &[2, 50, 50, 50]),
            (Some(119), 1, false, &[120], None, &[2, 50, 50]),
            (None, 10, true, &[], Some("x.11"), &[11]),
            (Some(11), 100, true, &[60], Some("x.61"), &[50]),
            (Some(130), 10, true, &[], None, &[11]),
        ] {
            let asked = RefCell::new(Vec::new());
            let read = async |after: Option<u32>, limit: u32| {
                asked.borrow_mut().push(limit);
                Ok((after.unwrap_or(0) + 1..=130).take(limit as usize).collect::<Vec<_>>())
            };
            let seen = |n: &u32| Ok((*n, n.is_multiple_of(60).then_some(*n)));
            let mut room = room(&shares(usize::MAX));
            if is_over {
                room.until = Instant::now();
            }
            let page = page(room, &CURSORS, begin, limit, read, seen).await.unwrap();
            let items: Vec<u32> = page.items.iter().map(|item| item.read().unwrap()).collect();
            assert_eq!((items.as_slice(), page.next_cursor.as_deref()), (found, next_cursor), "{begin:?}");
            assert_eq!(asked.into_inner(), pieces, "{begin:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_of_which_nothing_is_seen_waits_for_no_further_piece_when_its_time_is_over() {
        let page = page_of_one_read(|n| Ok((*n, None))).await;
        assert_eq!((page.items.len(), page.next_cursor.as_deref()), (0, Some("x.1")));
    }

    #[actix_web::test]
    async fn a_page_takes_room_as_it_grows_and_is_refused_where_there_is_none() {
        let shares = shares(100_000);
        let read = async |after: Option<u32>, _: u32| {
            let read_before = after.unwrap_or(0);
            assert_eq!(shares.in_use(Kind::Sending) / 30_000, read_before as usize, "what is there counts");
            Ok(vec![read_before + 1])
        };
        let refused = page(room(&shares), &CURSORS, None, 10, read, |n| item(*n, 30_000)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Overloaded);
        assert_eq!(shares.in_use(Kind::Sending), 0, "it is given back");
    }
}
