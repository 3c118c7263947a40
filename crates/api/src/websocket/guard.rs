//! Watches what comes in on a WebSocket before the decoder keeps it: frames that are too long, messages that take too long
//! or for which there is no room, and floods of frames that carry nothing.
//!
//! The decoder behind it compares a frame with its limit only when the whole frame is in memory.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::web::Bytes;
use futures_util::{Stream, StreamExt};

use super::frames::{Broken as BrokenAt, Frames};
use super::pauses::{Pauses, Since};
use crate::limits::UNCOUNTED_BYTES_MAX;
use crate::shares::{Kind, Reached, Share, Shares, Used};

/// Lets bytes pass until something about them is not allowed.
pub struct Guard {
    payload: Payload,
    frames: Frames,
    /// How long one message may take to arrive.
    message_timeout: Duration,
    pauses: Pauses,
    arriving: Arriving,
    /// Since when something is arriving that is not complete.
    begun: Option<Since>,
    /// The bytes of the message that is arriving, if it is large.
    share: Share,
    /// The bytes before what is not allowed have passed, and are to be read before the error.
    broken: Option<Broken>,
}

enum Broken {
    Now(io::Error),
    Next(io::Error),
}

/// When a message began of which bytes came that were not its last ones. Clones are one.
#[derive(Clone, Default)]
pub struct Arriving(Rc<Cell<Option<Instant>>>);

impl Arriving {
    /// The newest message of which such bytes came since this was asked last.
    pub fn take(&self) -> Option<Instant> {
        self.0.take()
    }
}

impl Guard {
    /// The guard of a socket whose messages may have `bytes_max` bytes.
    pub fn new(
        payload: Payload,
        bytes_max: u64,
        message_timeout: Duration,
        (pauses, arriving): (Pauses, Arriving),
        (shares, used): (&Arc<Shares>, Option<&Arc<Used>>),
    ) -> Self {
        Self {
            payload,
            frames: Frames::new(bytes_max),
            message_timeout,
            pauses,
            arriving,
            begun: None,
            share: shares.none(Kind::Reading, used),
            broken: None,
        }
    }

    /// Counts the bytes of the message that is arriving: all that its frames have announced, if they are many.
    fn count(&mut self) -> Result<(), Reached> {
        let announced = self.frames.arriving();
        self.share.set(if announced <= UNCOUNTED_BYTES_MAX { 0 } else { announced })
    }

    fn read(&mut self, bytes: &[u8], now: Instant) -> Result<(), BrokenAt> {
        let read = self.frames.read(bytes, now);
        let begun = self.frames.begun();
        if begun != self.begun.map(Since::at) {
            self.begun = begun.map(|at| self.pauses.since(at));
        }
        if begun.is_some() {
            self.arriving.0.set(begun);
        }
        read
    }

    fn is_late(&self, now: Instant) -> bool {
        self.begun.is_some_and(|begun| self.pauses.read_since(begun, now) > self.message_timeout)
    }
}

/// What is not allowed comes as an error of the payload: [`io::ErrorKind::FileTooLarge`] for a message that is too long,
/// [`io::ErrorKind::QuotaExceeded`] for one without room, else [`io::ErrorKind::InvalidData`].
impl Stream for Guard {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match this.broken.take() {
            Some(Broken::Now(error)) => return Poll::Ready(Some(Err(PayloadError::Io(error)))),
            Some(Broken::Next(error)) => {
                // The decoder takes what it has whenever nothing more is there.
                this.broken = Some(Broken::Now(error));
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => {}
        }
        let bytes = match this.payload.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(bytes))) => bytes,
            // The sockets ask again now and then, also where nothing comes.
            Poll::Pending if this.is_late(Instant::now()) => {
                let ms = this.message_timeout.as_millis();
                let why = format!("a message did not arrive within {ms} ms");
                let late = io::Error::new(io::ErrorKind::InvalidData, why);
                return Poll::Ready(Some(Err(PayloadError::Io(late))));
            }
            other => return other,
        };
        let bytes = match this.read(&bytes, Instant::now()) {
            Ok(()) => bytes,
            Err(BrokenAt { at, why, is_too_long }) => {
                let kind = if is_too_long { io::ErrorKind::FileTooLarge } else { io::ErrorKind::InvalidData };
                this.broken = Some(Broken::Next(io::Error::new(kind, why)));
                return Poll::Ready(Some(Ok(bytes.slice(..at))));
            }
        };
        if let Err(reached) = this.count() {
            let error = io::Error::new(io::ErrorKind::QuotaExceeded, reached.to_string());
            this.broken = Some(Broken::Next(error));
        }
        Poll::Ready(Some(Ok(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, stream};

    use super::*;
    use crate::limits::Limit;

    const TIMEOUT: Duration = Duration::from_secs(600);

    /// Of a connection on which nothing comes by itself.
    fn guard(pauses: &Pauses, arriving: &Arriving) -> Guard {
        let shares = Arc::new(Shares::new(|_| Limit { in_all: 1, of_token: 1 }));
        let payload: Pin<Box<dyn Stream<Item = _>>> =
            Box::pin(stream::pending::<Result<Bytes, PayloadError>>());
        let notes = (pauses.clone(), arriving.clone());
        Guard::new(Payload::from(payload), 70_000, TIMEOUT, notes, (&shares, None))
    }

    #[test]
    fn bytes_of_a_message_that_is_not_complete_are_noted_with_its_begin() {
        let arriving = Arriving::default();
        let mut guard = guard(&Pauses::default(), &arriving);
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        for (after, bytes, noted) in [
            (0, &[0x81][..], Some(begin)),
            (1, &[0x82, 1, 2, 3, 4, b'{'], Some(begin)),
            (2, b"}", None),
            // A whole message, and the begin of the next one.
            (3, &[0x81, 0x80, 1, 2, 3, 4, 0x81], Some(begin + 3 * second)),
        ] {
            guard.read(bytes, begin + after * second).unwrap();
            assert_eq!([arriving.take(), arriving.take()], [noted, None], "after {after} s");
        }
    }

    #[test]
    fn only_time_in_which_the_socket_reads_counts_against_a_message() {
        let pauses = Pauses::default();
        let mut guard = guard(&pauses, &Arriving::default());
        pauses.add(3 * TIMEOUT);
        // The first byte of a message, three times as long ago as it may take.
        let begin = Instant::now().checked_sub(3 * TIMEOUT).unwrap();
        guard.read(&[0x81], begin).unwrap();
        assert!(!guard.is_late(begin + TIMEOUT), "it has not taken longer than it may");
        let refused = guard.next().now_or_never().expect("it is late").expect("the payload goes on");
        assert!(refused.unwrap_err().to_string().contains("did not arrive within 600000 ms"));
        // Most of that time the socket sent results, and did not read.
        pauses.add(2 * TIMEOUT + TIMEOUT / 2);
        assert!(guard.next().now_or_never().is_none(), "it has time left");
        assert!(guard.is_late(begin + 4 * TIMEOUT));
        // The next one has all the time there is.
        guard.read(&[0x80, 1, 2, 3, 4, 0x81], begin + 4 * TIMEOUT).unwrap();
        assert!(!guard.is_late(begin + 5 * TIMEOUT) && guard.is_late(begin + 6 * TIMEOUT));
    }
}
