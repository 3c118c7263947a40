//! Where a socket's messages go out: a bounded number of bytes wait for the other side, and all that wait count among the
//! bytes that this instance has not sent.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::web::Bytes;
use actix_ws::Session;
use tokio::sync::Notify;

use crate::limits::{SOCKET_ROOM_EVERY, SOCKET_SEND_MAX, SOCKET_UNREAD_BYTES_MAX, UNCOUNTED_BYTES_MAX};
use crate::shares::{Kind, Share, Shares, Used};

/// Where messages go out.
pub struct Outlet {
    session: Session,
    unread: Rc<Unread>,
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// The socket is closed: the next read says so.
    Closed,
    /// The other side does not read.
    NotRead,
}

impl Outlet {
    /// The outlet of a socket that `response` opens; and that response, which counts what the connection takes.
    pub fn new(
        session: Session,
        response: HttpResponse,
        (shares, used): (&Arc<Shares>, Option<&Arc<Used>>),
    ) -> (Self, HttpResponse) {
        let unread = Rc::new(Unread {
            shares: Arc::clone(shares),
            used: used.map(Arc::clone),
            waiting: RefCell::default(),
            taken: Notify::new(),
        });
        let body = Rc::clone(&unread);
        let response = response.map_body(|_, inner| BoxBody::new(Counted { inner, unread: body }));
        (Self { session, unread }, response)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub async fn text(&mut self, text: String) -> Result<(), Unsent> {
        let Self { session, unread } = self;
        let send = async {
            unread.take_room(text.len()).await;
            session.text(text).await.map_err(|_| Unsent::Closed)
        };
        tokio::time::timeout(SOCKET_SEND_MAX, send).await.unwrap_or(Err(Unsent::NotRead))
    }

    /// Answers a ping.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub async fn pong(&mut self, bytes: &[u8]) -> Result<(), Unsent> {
        let sent = tokio::time::timeout(SOCKET_SEND_MAX, self.session.pong(bytes)).await;
        sent.map_or(Err(Unsent::NotRead), |sent| sent.map_err(|_| Unsent::Closed))
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// See [`Unsent`].
    pub async fn ping(&mut self) -> Result<(), Unsent> {
        let sent = tokio::time::timeout(SOCKET_SEND_MAX, self.session.ping(b"")).await;
        sent.map_or(Err(Unsent::NotRead), |sent| sent.map_err(|_| Unsent::Closed))
    }

    /// For the last frames.
    pub fn session(&self) -> Session {
        self.session.clone()
    }
}

/// The messages that the connection has not taken.
struct Unread {
    shares: Arc<Shares>,
    used: Option<Arc<Used>>,
    waiting: RefCell<Waiting>,
    taken: Notify,
}

#[derive(Default)]
struct Waiting {
    bytes: usize,
    /// The same among all bytes that are not sent, if they are many.
    share: Option<Share>,
    /// The connection takes nothing more.
    is_over: bool,
}

impl Unread {
    /// Waits for room, and takes it.
    async fn take_room(&self, bytes: usize) {
        while !self.took_room(bytes) {
            // What others take makes room as well.
            let _ = tokio::time::timeout(SOCKET_ROOM_EVERY, self.taken.notified()).await;
        }
    }

    fn took_room(&self, bytes: usize) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_over {
            // The message is not sent.
            return true;
        }
        if waiting.bytes > SOCKET_UNREAD_BYTES_MAX {
            return false;
        }
        let sum = waiting.bytes + bytes;
        if sum > UNCOUNTED_BYTES_MAX {
            let grown = match &mut waiting.share {
                Some(share) => share.grow(sum - share.amount()),
                none => {
                    let share = self.shares.take(Kind::Sending, self.used.as_ref(), sum);
                    share.map(|share| *none = Some(share))
                }
            };
            if grown.is_err() {
                return false;
            }
        }
        waiting.bytes = sum;
        true
    }

    /// The connection has taken so many bytes: messages, and what is around them.
    fn gave(&self, bytes: usize) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
        let left = waiting.bytes;
        if left <= UNCOUNTED_BYTES_MAX {
            waiting.share = None;
        } else if let Some(share) = &mut waiting.share {
            share.shrink(share.amount().saturating_sub(left));
        }
        self.taken.notify_one();
    }

    /// The connection is gone, with all that it has not taken: nothing waits for room there any more.
    fn end(&self) {
        *self.waiting.borrow_mut() = Waiting { is_over: true, ..Waiting::default() };
        self.taken.notify_one();
    }
}

/// The body of the answer that opens the socket: all that is sent.
struct Counted {
    inner: BoxBody,
    unread: Rc<Unread>,
}

impl MessageBody for Counted {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.inner.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = self.get_mut();
        let chunk = ready!(this.inner.as_pin_mut().poll_next(context));
        if let Some(Ok(bytes)) = &chunk {
            this.unread.gave(bytes.len());
        }
        Poll::Ready(chunk)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.unread.end();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tempfile::TempDir;

    use super::*;
    use crate::auth::Auth;
    use crate::limits::Limit;
    use crate::settings::Settings;
    use crate::tests::{opened, state_with};
    use crate::websocket::Opened;

    fn unread(in_all: usize) -> Unread {
        let shares = Arc::new(Shares::new(|_| Limit { in_all, of_token: in_all }));
        Unread { shares, used: None, waiting: RefCell::default(), taken: Notify::new() }
    }

    #[test]
    fn messages_wait_for_the_reader_up_to_a_limit() {
        let unread = unread(usize::MAX);
        assert!(unread.took_room(SOCKET_UNREAD_BYTES_MAX) && unread.took_room(10));
        assert!(!unread.took_room(0), "there are more than may wait");
        assert_eq!(unread.shares.in_use(Kind::Sending), SOCKET_UNREAD_BYTES_MAX + 10);
        unread.gave(20);
        assert!(unread.took_room(1));
        unread.gave(SOCKET_UNREAD_BYTES_MAX - UNCOUNTED_BYTES_MAX);
        assert_eq!(unread.shares.in_use(Kind::Sending), 0, "few bytes are not counted");
        unread.gave(usize::MAX);
        assert_eq!(unread.waiting.borrow().bytes, 0, "the frames' headers were taken too");
    }

    #[test]
    fn messages_wait_where_others_have_taken_all_the_room() {
        let unread = unread(100_000);
        let others = unread.shares.take(Kind::Sending, None, 50_000).unwrap();
        assert!(unread.took_room(40_000) && !unread.took_room(20_000));
        assert_eq!(unread.shares.in_use(Kind::Sending), 90_000, "what is refused changes nothing");
        assert!(unread.took_room(10_000));
        drop(others);
        assert!(unread.took_room(20_000));
        unread.gave(70_000);
        assert_eq!(unread.shares.in_use(Kind::Sending), 0);
        assert!(unread.took_room(UNCOUNTED_BYTES_MAX));
        assert_eq!(unread.shares.in_use(Kind::Sending), 0);
    }

    #[test]
    fn nothing_takes_or_waits_for_room_of_a_connection_that_is_gone() {
        let unread = unread(100_000);
        let _others = unread.shares.take(Kind::Sending, None, 50_000).unwrap();
        assert!(unread.took_room(40_000) && !unread.took_room(20_000), "others have the room");
        unread.end();
        assert!(unread.took_room(60_000), "others have the room, and it is not needed");
        assert_eq!(unread.shares.in_use(Kind::Sending), 50_000, "the others'");
    }

    #[actix_web::test]
    async fn a_message_that_waits_for_room_is_not_sent_when_the_connection_is_gone() {
        let dir = TempDir::new().unwrap();
        let state = state_with(&dir, Settings::new(Auth::open())).await;
        let (_, Opened { response, mut outlet, .. }) = opened(&state).await;
        assert!(outlet.unread.took_room(SOCKET_UNREAD_BYTES_MAX + 1));
        let mut sent = std::pin::pin!(outlet.text("1".to_owned()));
        assert!(sent.as_mut().now_or_never().is_none(), "there is no room");
        drop(response);
        assert_eq!(state.shares.in_use(Kind::Sending), 0, "nothing waits there any more");
        assert_eq!(sent.await, Err(Unsent::Closed));
    }
}
