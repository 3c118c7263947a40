//! What is sent while jobs end, sessions close and reads fail between the reads of one look.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use domain::job::Outcome;
use proptest::prelude::*;
use wire::Code;

use super::*;
use crate::limits::Limit;

/// A session whose jobs end as scripted: before each read, what is due then happens.
#[derive(Default)]
struct Scripted {
    unfinished: RefCell<BTreeSet<u64>>,
    finished: RefCell<BTreeSet<u64>>,
    last_seq: Cell<u64>,
    is_closed: Cell<bool>,
    reads: Cell<usize>,
    /// What happens before the read of this number.
    due: RefCell<BTreeMap<usize, Vec<Event>>>,
    bytes: usize,
    error_bytes: usize,
}

#[derive(Clone, Debug)]
enum Event {
    Accepted,
    /// A place that a repetition left empty.
    Skipped,
    Ended(u64),
    Closed,
    ReadFails,
}

impl Scripted {
    fn with(events: impl IntoIterator<Item = Event>) -> Self {
        let scripted = Self::default();
        events.into_iter().for_each(|event| scripted.happens(&event));
        scripted
    }

    fn happens(&self, event: &Event) {
        match event {
            Event::Accepted | Event::Skipped if self.is_closed.get() => {}
            Event::Accepted | Event::Skipped => {
                self.last_seq.set(self.last_seq.get() + 1);
                if matches!(event, Event::Accepted) {
                    self.unfinished.borrow_mut().insert(self.last_seq.get());
                }
            }
            Event::Ended(seq) => {
                if self.unfinished.borrow_mut().remove(seq) {
                    self.finished.borrow_mut().insert(*seq);
                }
            }
            Event::Closed => self.is_closed.set(true),
            Event::ReadFails => {}
        }
    }

    fn before(&self, read: usize, events: impl IntoIterator<Item = Event>) {
        self.due.borrow_mut().entry(self.reads.get() + read).or_default().extend(events);
    }

    fn read(&self) -> Result<(), Refusal> {
        let due = self.due.borrow_mut().remove(&self.reads.get()).unwrap_or_default();
        self.reads.set(self.reads.get() + 1);
        due.iter().for_each(|event| self.happens(event));
        match due.iter().any(|event| matches!(event, Event::ReadFails)) {
            true => Err(Refusal::new(Code::LedgerUnavailable, "as scripted")),
            false => Ok(()),
        }
    }

    fn result_of(&self, seq: u64) -> SessionResult {
        SessionResult {
            id: job(seq),
            seq,
            client_ref: None,
            outcome: Outcome::Succeeded,
            result: Some("x".repeat(self.bytes)),
            error: (self.error_bytes > 0).then(|| "x".repeat(self.error_bytes)),
        }
    }
}

fn job(seq: u64) -> JobId {
    JobId::from_u128(u128::from(seq))
}

impl Source for Scripted {
    async fn last_seq(&self) -> Result<u64, Refusal> {
        self.read()?;
        Ok(self.last_seq.get())
    }

    async fn results(&self, after: u64, limit: u32) -> Result<SessionResults, Refusal> {
        self.read()?;
        let first_unfinished = self.unfinished.borrow().first().copied();
        let finished = self.finished.borrow();
        let below =
            finished.range(after + 1..).take_while(|seq| first_unfinished.is_none_or(|first| **seq < first));
        let results = below.take(limit as usize).map(|seq| self.result_of(*seq)).collect();
        Ok(SessionResults { results, first_unfinished, is_open: !self.is_closed.get() })
    }

    async fn finished_places(&self, after: u64, limit: u32) -> Result<Vec<(u64, JobId)>, Refusal> {
        self.read()?;
        let finished = self.finished.borrow();
        Ok(finished.range(after + 1..).take(limit as usize).map(|seq| (*seq, job(*seq))).collect())
    }

    async fn unfinished_places(&self, after: u64, limit: u32) -> Result<Vec<u64>, Refusal> {
        self.read()?;
        Ok(self.unfinished.borrow().range(after + 1..).take(limit as usize).copied().collect())
    }

    async fn result(&self, job: JobId) -> Result<Found, Refusal> {
        self.read()?;
        let seq = job.as_u128() as u64;
        if self.finished.borrow().contains(&seq) {
            return Ok(Found::Result(self.result_of(seq)));
        }
        Ok(if self.unfinished.borrow().contains(&seq) { Found::Unfinished } else { Found::Forgotten })
    }
}

fn shares(bytes: usize) -> Arc<Shares> {
    Arc::new(Shares::new(|_| Limit { in_all: bytes, of_token: bytes }))
}

/// A client's side of a session: what it was sent, and whether it was told that this is all.
struct Reader {
    cursor: Cursor,
    got: Vec<u64>,
    is_over: bool,
    shares: Arc<Shares>,
}

impl Reader {
    fn from_the_beginning(is_ordered: bool) -> Self {
        Self::behind(Cursor::behind(0, is_ordered))
    }

    fn behind(cursor: Cursor) -> Self {
        Self { cursor, got: Vec::new(), is_over: false, shares: shares(usize::MAX) }
    }

    /// Looks once, as the socket does.
    async fn looks(&mut self, source: &Scripted) {
        let room = Room::of(&self.shares, None);
        let look = match &self.cursor {
            Cursor::Ordered(low) => in_order(source, *low, CLIENT_RESULTS_AT_ONCE, room).await,
            Cursor::Free(sent) => freely(source, sent, room).await,
        };
        match look {
            Ok(Look::Ordered { results, .. }) => results.iter().for_each(|result| self.gets(result)),
            Ok(Look::Free { results, settled, .. }) => {
                results.iter().for_each(|result| self.gets(result));
                self.cursor.settle(settled.unwrap());
            }
            Ok(Look::Repeated { .. }) => unreachable!("nothing was sent again"),
            Ok(Look::Over) => self.is_over = true,
            Err(_) => {}
        }
    }

    fn gets(&mut self, result: &SessionResult) {
        if self.cursor.lacks(result.seq) {
            self.cursor.sent(result.seq);
            self.got.push(result.seq);
        }
    }
}

#[actix_web::test]
async fn a_result_whose_read_failed_is_sent_by_a_later_look() {
    let source = Scripted::with([Event::Accepted, Event::Accepted, Event::Ended(1), Event::Ended(2)]);
    // Two reads of places come before those of results.
    source.before(3, [Event::ReadFails]);
    let mut reader = Reader::from_the_beginning(false);
    reader.looks(&source).await;
    assert_eq!(reader.got, [1], "what was read before is sent");
    reader.looks(&source).await;
    assert_eq!(reader.got, [1, 2]);
    assert!(named(&source, [job(1)], Room::of(&reader.shares, None)).await.is_ok());
    source.before(0, [Event::ReadFails]);
    assert!(named(&source, [job(1)], Room::of(&reader.shares, None)).await.is_err());
}

#[actix_web::test]
async fn what_was_given_and_ended_between_two_reads_settles_nothing_below_it() {
    let source = Scripted::default();
    source.before(1, [Event::Accepted, Event::Accepted, Event::Ended(2)]);
    let mut reader = Reader::from_the_beginning(false);
    reader.looks(&source).await;
    assert_eq!(reader.got, [2]);
    source.happens(&Event::Ended(1));
    reader.looks(&source).await;
    assert_eq!(reader.got, [2, 1]);
}

#[actix_web::test]
async fn a_session_is_not_over_before_the_last_result_though_it_was_closed_between_two_reads() {
    for is_ordered in [true, false] {
        for read in 0..4 {
            let source = Scripted::default();
            source.before(read, [Event::Accepted, Event::Ended(1), Event::Closed]);
            let mut reader = Reader::from_the_beginning(is_ordered);
            for _ in 0..=read + 2 {
                reader.looks(&source).await;
                assert!(!reader.is_over || reader.got == [1] || !source.is_closed.get(), "read {read}");
            }
            assert_eq!((reader.got, reader.is_over), (vec![1], true), "read {read}");
        }
    }
}

#[actix_web::test]
async fn a_client_begins_with_what_is_unfinished_when_it_connects() {
    let source =
        Scripted::with([Event::Accepted, Event::Accepted, Event::Skipped, Event::Accepted, Event::Accepted]);
    source.happens(&Event::Ended(1));
    source.happens(&Event::Ended(4));
    for (is_ordered, expected) in [(true, vec![2, 4, 5, 6]), (false, vec![2, 5, 6])] {
        let source = Scripted {
            unfinished: source.unfinished.clone(),
            finished: source.finished.clone(),
            last_seq: source.last_seq.clone(),
            ..Scripted::default()
        };
        let mut reader = Reader::behind(begin(&source, is_ordered).await.unwrap());
        for event in [Event::Ended(2), Event::Ended(5), Event::Accepted, Event::Ended(6), Event::Closed] {
            source.happens(&event);
        }
        for _ in 0..3 {
            reader.looks(&source).await;
        }
        assert_eq!((reader.got, reader.is_over), (expected, true));
    }
}

#[actix_web::test]
async fn results_that_are_more_than_there_is_room_for_come_one_after_the_other() {
    const COUNT: u64 = 40;
    let events = (0..COUNT).map(|_| Event::Accepted).chain((1..=COUNT).map(Event::Ended));
    let source = Scripted { bytes: 1 << 20, ..Scripted::with(events) };
    for is_ordered in [true, false] {
        let mut reader = Reader { shares: shares(2 << 20), ..Reader::from_the_beginning(is_ordered) };
        for look in 1..=COUNT / 2 {
            reader.looks(&source).await;
            assert_eq!(reader.got, (1..=look * 2).collect::<Vec<_>>(), "ordered: {is_ordered}");
        }
    }
    // With plenty of room they come in pages of so many bytes.
    let mut reader = Reader::from_the_beginning(false);
    reader.looks(&source).await;
    assert_eq!(reader.got.len(), CLIENT_FRAMES_BYTES_MAX / (1 << 20));
}

#[actix_web::test]
async fn a_look_in_order_says_whether_more_may_be_sent_now() {
    const COUNT: u64 = 150;
    let events = (0..=COUNT + 2).map(|_| Event::Accepted).chain((1..=COUNT).map(Event::Ended));
    let source = Scripted::with(events);
    // What has ended behind an unfinished job is none of it.
    source.happens(&Event::Ended(COUNT + 2));
    let look = async |after, limit, room| {
        let look = in_order(&source, after, limit, Room::of(&shares(room), None)).await.unwrap();
        let Look::Ordered { results, is_all, room, .. } = look else { panic!("{look:?}") };
        (results.len(), is_all, room.is_full())
    };
    assert_eq!(look(0, 100, usize::MAX).await, (100, false, false));
    assert_eq!(look(100, 100, usize::MAX).await, (50, true, false));
    assert_eq!(look(149, 1, usize::MAX).await, (1, false, false));
    assert_eq!(look(150, 100, usize::MAX).await, (0, true, false));
    let source = Scripted { bytes: 1 << 20, ..Scripted::with([Event::Accepted, Event::Ended(1)]) };
    let look = in_order(&source, 0, 1, Room::of(&shares(1 << 19), None)).await.unwrap();
    assert!(matches!(look, Look::Ordered { results, is_all: false, .. } if results.is_empty()));
}

#[test]
fn where_there_was_no_room_one_result_is_read_and_then_more_each_time_up_to_a_page() {
    let mut at_once = next_at_once(CLIENT_RESULTS_AT_ONCE, true);
    for expected in [1, 2, 4, 8, 16, 32, 64, 100, 100] {
        assert_eq!(at_once, expected);
        at_once = next_at_once(at_once, false);
    }
    assert_eq!((at_once, next_at_once(2, true)), (CLIENT_RESULTS_AT_ONCE, 1));
}

#[actix_web::test]
async fn in_tight_room_no_whole_page_is_read_behind_a_result_that_fits() {
    const COUNT: u64 = 40;
    let events = (0..COUNT).map(|_| Event::Accepted).chain((1..=COUNT).map(Event::Ended));
    let source = Scripted { bytes: 1 << 20, ..Scripted::with(events) };
    let (mut after, mut at_once, mut read) = (0, CLIENT_RESULTS_AT_ONCE, 0);
    while after < COUNT {
        let look = in_order(&source, after, at_once, Room::of(&shares(1 << 20), None)).await.unwrap();
        let Look::Ordered { results, room, .. } = look else { panic!("{look:?}") };
        read += u64::from(at_once).min(COUNT - after);
        after += results.len() as u64;
        at_once = next_at_once(at_once, room.is_full());
    }
    assert!(read < 3 * COUNT, "{read} results were read");
}

#[actix_web::test]
async fn a_look_at_jobs_that_were_sent_again_ends_with_a_page_and_with_the_room() {
    const COUNT: u64 = 500;
    const ERROR_BYTES: usize = 8_192;
    const ROOM: usize = 10 * ERROR_BYTES;
    let ended = || Scripted::with((0..COUNT).map(|_| Event::Accepted).chain((1..=COUNT).map(Event::Ended)));
    for (error_bytes, room) in [(0, usize::MAX), (ERROR_BYTES, ROOM)] {
        let source = Scripted { error_bytes, ..ended() };
        let look = repeated(&source, (1..=COUNT).map(job), Room::of(&shares(room), None)).await.unwrap();
        let Look::Repeated { results, is_all, room, .. } = look else { panic!("{look:?}") };
        let places: Vec<_> = results.iter().map(|result| result.seq).collect();
        let is_bounded = match error_bytes {
            0 => places.len() == CLIENT_RESULTS_AT_ONCE as usize,
            // Few bytes are not counted.
            bytes => !places.is_empty() && places.len() * bytes <= ROOM + UNCOUNTED_BYTES_MAX,
        };
        assert!(is_bounded && places.iter().copied().eq(1..=places.len() as u64), "{places:?}");
        assert_eq!((is_all, room.is_full()), (false, error_bytes > 0));
    }
}

#[actix_web::test]
async fn a_look_at_jobs_that_were_sent_again_names_those_of_which_no_result_will_come() {
    let source = Scripted::with([Event::Accepted, Event::Accepted, Event::Ended(2)]);
    let look = repeated(&source, (1..=3).map(job), Room::of(&shares(usize::MAX), None)).await.unwrap();
    let Look::Repeated { results, forgotten, is_all, .. } = look else { panic!("{look:?}") };
    assert_eq!((results, forgotten, is_all), (vec![source.result_of(2)], HashSet::from([job(3)]), true));
}

#[actix_web::test]
async fn many_results_behind_one_that_takes_long_cost_one_read() {
    let events = (0..50_000).map(|_| Event::Accepted).chain((2..50_000).map(Event::Ended));
    let source = Scripted::with(events);
    let mut reader = Reader::from_the_beginning(false);
    while reader.got.len() < 49_998 {
        reader.looks(&source).await;
    }
    let before = source.reads.get();
    reader.looks(&source).await;
    assert!(source.reads.get() - before <= 3, "{} reads", source.reads.get() - before);
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Accepted),
        2 => Just(Event::Skipped),
        8 => (1_u64..30).prop_map(Event::Ended),
        1 => Just(Event::ReadFails),
    ]
}

proptest! {
    #[test]
    fn every_result_is_sent_once_whatever_happens_between_which_reads(
        is_ordered: bool,
        events in prop::collection::vec((0_usize..60, events()), 0..80),
        closed in 0_usize..80,
    ) {
        let source = Scripted::default();
        for (read, event) in events {
            source.before(read, [event]);
        }
        source.before(closed, [Event::Closed]);
        let looks = async {
            let mut reader = Reader::from_the_beginning(is_ordered);
            for _ in 0..400 {
                reader.looks(&source).await;
                if reader.is_over {
                    break;
                }
                if source.due.borrow().is_empty() {
                    let unfinished = source.unfinished.borrow().clone();
                    unfinished.iter().for_each(|seq| source.happens(&Event::Ended(*seq)));
                }
            }
            reader
        };
        let reader = futures_util::FutureExt::now_or_never(looks).expect("nothing is waited for");
        let expected: Vec<_> = source.finished.borrow().iter().copied().collect();
        let mut got = reader.got.clone();
        if !is_ordered {
            got.sort_unstable();
        }
        prop_assert_eq!((got, reader.is_over), (expected, true));
    }
}
