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
use crate::limits::UNCOUNTED_BYTES_MAX;
use crate::shares::{Kind, Reached, Share, Shares, Used};

/// When the socket last began to read again after a pause. What came before does not count against the other side.
#[derive(Clone, Default)]
pub struct Pauses(Rc<Cell<Option<Instant>>>);

impl Pauses {
    /// A pause has ended.
    pub fn end(&self) {
        self.0.set(Some(Instant::now()));
    }
}

/// Lets bytes pass until something about them is not allowed.
pub struct Guard {
    payload: Payload,
    frames: Frames,
    /// How long one message may take to arrive.
    message_timeout: Duration,
    pauses: Pauses,
    shares: Arc<Shares>,
    used: Option<Arc<Used>>,
    /// The bytes of the message that is arriving, if it is large.
    share: Option<Share>,
    /// The bytes before what is not allowed have passed, and are to be read before the error.
    broken: Option<Broken>,
}

enum Broken {
    Now(io::Error),
    Next(io::Error),
}

impl Guard {
    /// Of a socket whose messages may have so many bytes.
    pub fn new(
        payload: Payload,
        bytes_max: u64,
        message_timeout: Duration,
        pauses: Pauses,
        (shares, used): (&Arc<Shares>, Option<&Arc<Used>>),
    ) -> Self {
        Self {
            payload,
            frames: Frames::new(bytes_max),
            message_timeout,
            pauses,
            shares: Arc::clone(shares),
            used: used.map(Arc::clone),
            share: None,
            broken: None,
        }
    }

    /// Counts the bytes of the message that is arriving: all that its frames have announced.
    fn count(&mut self) -> Result<(), Reached> {
        let wanted = self.frames.arriving();
        if wanted <= UNCOUNTED_BYTES_MAX {
            self.share = None;
            return Ok(());
        }
        match &mut self.share {
            Some(share) if share.amount() >= wanted => share.shrink(share.amount() - wanted),
            Some(share) => share.grow(wanted - share.amount())?,
            None => self.share = Some(self.shares.take(Kind::Reading, self.used.as_ref(), wanted)?),
        }
        Ok(())
    }

    fn is_late(&self) -> bool {
        let pause = self.pauses.0.get();
        // Of the two the later one; a pause that never was is before everything.
        self.frames.begun().is_some_and(|begun| {
            Some(begun).max(pause).is_some_and(|from| from.elapsed() > self.message_timeout)
        })
    }
}

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
            Poll::Pending if this.is_late() => {
                let ms = this.message_timeout.as_millis();
                let why = format!("a message did not arrive within {ms} ms");
                return Poll::Ready(Some(Err(PayloadError::Io(io::Error::other(why)))));
            }
            other => return other,
        };
        let bytes = match this.frames.read(&bytes, Instant::now()) {
            Ok(()) => bytes,
            Err(BrokenAt { at, why }) => {
                this.broken = Some(Broken::Next(io::Error::other(why)));
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
