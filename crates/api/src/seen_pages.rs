//! Pages of lists, for callers that may see a part of them. A list is read piece by piece, until so many records are found that
//! the caller sees. What is found, and the piece that is looked at, count among the bytes of answers meanwhile.

use std::time::Instant;

use ::nodes::Record;
use domain::job::PastAttempt;
use ledger::{JobRecord, Lease, PlanRecord, SessionRecord, SignerRecord};
use tokio::time::timeout_at;

use crate::auth::{Principal, Sees};
use crate::extract::Page;
use crate::limits::{
    LISTED_BYTES, PIECE_FIRST_MAX, PIECE_UNSEEN_MAX, SHOWN_PAGE_BYTES_MAX, UNCOUNTED_BYTES_MAX,
};
use crate::refusal::Refusal;
use crate::shares::{Kind, Reached, Share};
use crate::state::State;

/// A record of a list.
pub trait Listed {
    /// The bytes that it takes in memory, about.
    fn bytes(&self) -> usize {
        LISTED_BYTES
    }
}

impl Listed for Lease {}
impl Listed for PlanRecord {}
impl Listed for Record {}
impl Listed for SessionRecord {}
impl Listed for SignerRecord {}

impl Listed for JobRecord {
    fn bytes(&self) -> usize {
        let error = self.finished.as_ref().and_then(|finished| finished.error.as_ref());
        let attempt = |past: &PastAttempt| size_of::<PastAttempt>() + past.reason.len();
        let attempts: usize = self.attempts.iter().map(attempt).sum();
        LISTED_BYTES + self.spec.text_bytes() + attempts + error.map_or(0, String::len)
    }
}

/// When a page is to end with what it has: after half of the time that a request may take.
pub fn until(state: &State) -> Instant {
    Instant::now() + state.settings.request_timeout / 2
}

/// Reads a list piece by piece, and keeps what is seen, at most `limit`. `read` answers so many records behind a key, or
/// fewer, and nothing at the end; fewer to a caller that sees everything at the end alone. It looks up what `is_seen` is to know
/// of them. The first piece has [`PIECE_FIRST_MAX`] records at most. Further ones have as many as the page still needs, by the
/// share that was seen until then, or twice as many as the last one where nothing of that is seen; at most [`PIECE_UNSEEN_MAX`],
/// and fewer where they are large. Where so much that is not seen lies between that the time is over, the page has less, and the
/// list goes on behind it; so it does where what is seen has [`SHOWN_PAGE_BYTES_MAX`]. A further piece that takes long is waited
/// for half as long again, since `read` itself may end with what it has looked up: then it is left to the next page.
///
/// # Errors
/// What `read` says, and `overloaded` where there is no room for what was read.
pub async fn page<R: Listed, K: Clone>(
    state: &State,
    principal: &Principal,
    limit: u32,
    read: impl AsyncFn(Option<K>, u32) -> Result<Vec<R>, Refusal>,
    key: impl Fn(&R) -> K,
    is_seen: impl Fn(&R) -> bool,
) -> Result<Page<R, K>, Refusal> {
    let room = state.shares.none(Kind::Sending, principal.used());
    page_until(until(state), room, principal.sees(), limit, read, key, is_seen).await
}

/// The same, up to this time. What is read takes its bytes of `room`.
async fn page_until<R: Listed, K: Clone>(
    give_up: Instant,
    mut room: Share,
    sees: &Sees,
    limit: u32,
    read: impl AsyncFn(Option<K>, u32) -> Result<Vec<R>, Refusal>,
    key: impl Fn(&R) -> K,
    is_seen: impl Fn(&R) -> bool,
) -> Result<Page<R, K>, Refusal> {
    let limit = limit as usize;
    let late = give_up + give_up.saturating_duration_since(Instant::now()) / 2;
    let (mut found, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
    // One more than fits tells whether there is another page.
    let mut piece = (limit + 1).min(PIECE_FIRST_MAX as usize);
    let mut records = read(None, piece as u32).await?;
    while let Some(last) = records.last().map(&key) {
        let (read_now, bytes_now, found_before) = (records.len(), bytes_of(&records), found.len());
        take(&mut room, bytes + bytes_now)?;
        for record in records {
            if !is_seen(&record) {
                continue;
            }
            if found.len() == limit || bytes >= SHOWN_PAGE_BYTES_MAX {
                let next = found.last().map(&key);
                return Ok(Page { records: found, next });
            }
            bytes += record.bytes();
            found.push(record);
        }
        if sees.everything() && read_now < piece {
            break;
        }
        if Instant::now() >= give_up {
            return Ok(Page { records: found, next: Some(last) });
        }
        looked_at += read_now;
        let needed = ((limit + 1 - found.len()) * looked_at).div_ceil(found.len().max(1));
        // Behind many that are seen, any number may lie that are not.
        let least = if found.len() == found_before { 2 * read_now } else { 1 };
        let fit = (SHOWN_PAGE_BYTES_MAX * read_now / bytes_now.max(1)).max(1);
        piece = needed.max(least).min(PIECE_UNSEEN_MAX as usize).min(fit);
        records = match timeout_at(late.into(), read(Some(last.clone()), piece as u32)).await {
            Ok(records) => records?,
            Err(_late) => return Ok(Page { records: found, next: Some(last) }),
        };
    }
    Ok(Page { records: found, next: None })
}

/// The bytes that records take in memory, about.
pub fn bytes_of<R: Listed>(records: &[R]) -> usize {
    records.iter().map(Listed::bytes).sum()
}

/// Has so many bytes of room, unless they are few.
///
/// # Errors
/// The limit that is reached.
pub fn take(room: &mut Share, bytes: usize) -> Result<(), Reached> {
    if bytes > UNCOUNTED_BYTES_MAX { room.set(bytes) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use domain::{Names, Pattern};
    use wire::Code;

    use super::*;
    use crate::limits::Limit;
    use crate::shares::Shares;

    /// The time for a page that is to take none.
    const TIME_ENOUGH: Duration = Duration::from_secs(3_600);

    impl Listed for u32 {}

    /// A record of so many bytes.
    struct Large(u32, usize);

    impl Listed for Large {
        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn shares(bytes: usize) -> Shares {
        Shares::new(|_| Limit { in_all: bytes, of_token: bytes })
    }

    /// All the room that there is.
    fn room() -> Share {
        shares(usize::MAX).none(Kind::Sending, None)
    }

    /// What a token with a pattern sees.
    fn some() -> Sees {
        let tenants = Names::Some(vec![Pattern::parse("a").unwrap()].into());
        Sees { tenants, ..Sees::default() }
    }

    fn in_time() -> Instant {
        Instant::now() + TIME_ENOUGH
    }

    /// All pages of the numbers up to 100, of which every tenth is seen; and how many there were.
    async fn pages(limit: u32, give_up: Instant) -> (Vec<u32>, usize) {
        let sees = some();
        let (mut found, mut begin, mut count) = (Vec::new(), None, 0);
        loop {
            let read = async |last: Option<u32>, _: u32| {
                let first = last.or(begin).map_or(1, |last| last + 1);
                Ok((first..=100).take(7).collect::<Vec<_>>())
            };
            let is_seen = |number: &u32| number.is_multiple_of(10);
            let page =
                page_until(give_up, room(), &sees, limit, read, |number| *number, is_seen).await.unwrap();
            assert!(page.records.len() <= limit as usize);
            found.extend(page.records);
            count += 1;
            begin = page.next;
            if begin.is_none() {
                return (found, count);
            }
        }
    }

    #[tokio::test]
    async fn a_list_of_which_little_is_seen_goes_on_page_by_page() {
        let all: Vec<_> = (1..=10).map(|n| n * 10).collect();
        let in_time = in_time();
        for limit in [1, 3, 10, 11] {
            let count = 10_usize.div_ceil(limit as usize);
            assert_eq!(pages(limit, in_time).await, (all.clone(), count), "{limit}");
            // What takes too long goes on with the next page, behind the piece that was looked at.
            let (found, count) = pages(limit, Instant::now()).await;
            assert_eq!((found, count), (all.clone(), 100_usize.div_ceil(7) + 1), "{limit}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_not_refused_for_a_further_piece_that_takes_too_long() {
        let (sees_all, sees_some, first) = (Sees::default(), some(), PIECE_FIRST_MAX);
        for (sees, one_in, found) in [(&sees_all, 1, first), (&sees_some, 1, first), (&sees_some, 1_000, 0)] {
            let read = async |last: Option<u32>, piece: u32| match last {
                None => Ok((1..=piece).collect::<Vec<_>>()),
                Some(_) => std::future::pending().await,
            };
            let is_seen = |number: &u32| number.is_multiple_of(one_in);
            let page = page_until(in_time(), room(), sees, 1_000, read, |number| *number, is_seen);
            let page = tokio::time::timeout(2 * TIME_ENOUGH, page).await.expect("it ends").unwrap();
            assert_eq!((page.records.len() as u32, page.next), (found, Some(first)), "{one_in}");
        }
    }

    #[tokio::test]
    async fn a_list_is_read_in_pieces_as_large_as_the_page_needs_by_what_is_seen_of_it() {
        type IsSeen = fn(u32) -> bool;
        let cases: [(u32, IsSeen, &[u32]); 5] = [
            (2, |_| true, &[3]),
            (100, |number: u32| number.is_multiple_of(2), &[101, 104]),
            // That the only record of a piece is not seen is no reason for a large one.
            (10, |number: u32| number <= 10 || number == 13, &[11, 2]),
            (2, |_| false, &[3, 9, 36, 144, 576, 1_000, 1_000, 1_000]),
            // What is seen of those before them says nothing of very many that are not.
            (10, |number: u32| number <= 10, &[11, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000, 1_000]),
        ];
        for (limit, sees, expected) in cases {
            let asked = RefCell::new(Vec::new());
            let read = async |last: Option<u32>, piece: u32| {
                asked.borrow_mut().push(piece);
                let first = last.map_or(1, |last| last + 1);
                let records = (first..=2_000).take(piece as usize).collect::<Vec<_>>();
                Ok(records)
            };
            let is_seen = |number: &u32| sees(*number);
            page_until(in_time(), room(), &some(), limit, read, |number| *number, is_seen).await.unwrap();
            assert_eq!(asked.into_inner(), expected, "{limit}");
        }
    }

    #[tokio::test]
    async fn a_list_is_read_in_pieces_of_which_the_first_is_small() {
        let (sees_all, sees_some) = (Sees::default(), some());
        let first = PIECE_FIRST_MAX;
        for (sees, count, limit, expected, next) in [
            (&sees_all, 0, 1_000, &[first][..], None),
            (&sees_all, first - 1, 1_000, &[first], None),
            (&sees_all, first, 1_000, &[first, 1_001 - first], None),
            (&sees_all, 1_000, 1_000, &[first, 1_001 - first], None),
            (&sees_all, 1_001, 1_000, &[first, 1_001 - first], Some(1_000)),
            (&sees_all, 10, 10, &[11], None),
            (&sees_all, 11, 10, &[11], Some(10)),
            // A piece that is not whole need not be the end of what it sees.
            (&sees_some, 10, 10, &[11, 1], None),
            (&sees_some, 1_001, 1_000, &[first, 1_001 - first], Some(1_000)),
        ] {
            let asked = RefCell::new(Vec::new());
            let read = async |last: Option<u32>, piece: u32| {
                asked.borrow_mut().push(piece);
                let begin = last.unwrap_or(0);
                Ok((begin + 1..=count).take(piece as usize).collect::<Vec<_>>())
            };
            let page =
                page_until(in_time(), room(), sees, limit, read, |number| *number, |_| true).await.unwrap();
            assert_eq!((asked.into_inner().as_slice(), page.next), (expected, next), "{limit} of {count}");
            assert!(page.records.into_iter().eq(1..=count.min(limit)), "{limit} of {count}");
        }
    }

    #[tokio::test]
    async fn a_list_of_large_records_is_read_in_smaller_pieces_and_its_page_ends_early() {
        let (sees_all, sees_some) = (Sees::default(), some());
        for (sees, one_in, expected, found) in [
            (&sees_some, 1_000, &[11, 2, 2, 2, 2, 2][..], None),
            (&sees_some, 1, &[11], Some(2)),
            (&sees_all, 1, &[11], Some(2)),
        ] {
            let asked = RefCell::new(Vec::new());
            let read = async |last: Option<u32>, piece: u32| {
                asked.borrow_mut().push(piece);
                let first = last.map_or(1, |last| last + 1);
                let records = (first..=18).take(piece as usize);
                Ok(records.map(|number| Large(number, SHOWN_PAGE_BYTES_MAX / 2)).collect())
            };
            let is_seen = |record: &Large| record.0.is_multiple_of(one_in);
            let page =
                page_until(in_time(), room(), sees, 10, read, |record| record.0, is_seen).await.unwrap();
            assert_eq!(asked.into_inner(), expected, "{one_in}");
            assert_eq!((page.records.last().map(|last| last.0), page.next), (found, found), "{one_in}");
        }
    }

    #[tokio::test]
    async fn what_is_found_takes_room_as_it_grows_and_is_refused_where_there_is_none() {
        let shares = shares(100_000);
        let read = async |last: Option<u32>, _: u32| {
            let read_before = last.unwrap_or(0);
            assert_eq!(shares.in_use(Kind::Sending) / 30_000, read_before as usize, "what is there counts");
            Ok(vec![Large(read_before + 1, 30_000)])
        };
        let room = shares.none(Kind::Sending, None);
        let refused = page_until(in_time(), room, &some(), 10, read, |record| record.0, |_| true).await;
        assert_eq!(refused.map(|page| page.next).unwrap_err().code(), Code::Overloaded);
        assert_eq!(shares.in_use(Kind::Sending), 0, "it is given back");
    }

    #[tokio::test]
    async fn a_page_that_everything_is_seen_of_is_refused_where_there_is_no_room_for_what_was_read() {
        for (bytes, is_refused) in [(29_999, false), (30_001, true)] {
            let shares = shares(90_000);
            let read = async |_: Option<u32>, piece: u32| {
                Ok((1..=piece).map(|n| Large(n, bytes)).collect::<Vec<_>>())
            };
            let room = shares.none(Kind::Sending, None);
            let page =
                page_until(in_time(), room, &Sees::default(), 2, read, |record| record.0, |_| true).await;
            assert_eq!(page.is_err_and(|refusal| refusal.code() == Code::Overloaded), is_refused, "{bytes}");
            assert_eq!(shares.in_use(Kind::Sending), 0, "it is given back");
        }
    }
}
