//! Pages of lists whose records may be large. They are read in pieces, so that a page never needs all of its records in
//! memory at once.

use std::fmt::Display;

use crate::limits::{PIECE_RECORDS_MAX, SHOWN_PAGE_BYTES_MAX};
use crate::refusal::Refusal;

/// Reads a page of up to `limit` items. `read` answers records behind a key, at most so many, and none only at the end; `show`
/// gives the key of a record, its item, and how many bytes of the item count for the length of the page. A page with
/// [`SHOWN_PAGE_BYTES_MAX`] such bytes ends early.
pub async fn page<R, K: Copy + Display, T>(
    list: &str,
    begin: Option<K>,
    limit: u32,
    read: impl AsyncFn(Option<K>, u32) -> Result<Vec<R>, Refusal>,
    show: impl Fn(&R) -> Result<(K, T, usize), Refusal>,
) -> Result<wire::List<T>, Refusal> {
    let (mut items, mut last, mut bytes) = (Vec::new(), begin, 0);
    loop {
        // One more than fits tells whether there is another page.
        let left = limit - items.len() as u32;
        let records = read(last, PIECE_RECORDS_MAX.min(left + 1)).await?;
        if records.is_empty() {
            return Ok(wire::List { items, next_cursor: None });
        }
        for record in records {
            if items.len() == limit as usize || bytes >= SHOWN_PAGE_BYTES_MAX {
                let next_cursor = last.map(|key| format!("{list}.{key}"));
                return Ok(wire::List { items, next_cursor });
            }
            let (key, item, shown) = show(&record)?;
            bytes += shown;
            last = Some(key);
            items.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of the numbers from 1 on, each as long as it says, of which one reading gives 40 at most.
    async fn page_of(count: u32, begin: Option<u32>, limit: u32, bytes: usize) -> (Vec<u32>, Option<String>) {
        let read = async |after: Option<u32>, limit: u32| {
            Ok((1..=count).filter(|n| *n > after.unwrap_or(0)).take(limit.min(40) as usize).collect())
        };
        let wire::List { items, next_cursor } =
            page("x", begin, limit, read, |n| Ok((*n, *n, bytes))).await.unwrap();
        (items, next_cursor)
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
}
