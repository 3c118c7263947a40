//! A connection of the HTTP server, which reads no faster than its requests are served.
//!
//! The HTTP library decodes every head that it has, however many requests wait, and each takes some 7 KB. While its buffer is
//! full and it decodes nothing, it polls itself without a pause. It limits the time of a connection's first head only. So
//! this stands between the library and the connection:
//!
//! - Between two requests it hands on [`HEADS_BYTES_AT_ONCE`]. Then it is pending once, so that the library decodes what it has
//!   before it gets more.
//! - While a request is under way, it hands on [`HEADS_BYTES_AT_ONCE`] more, in which the end of the connection is noticed, and
//!   of the request's body [`UNREAD_BODY_BYTES_MAX`], the rest once somebody reads that: what nobody reads takes memory for as
//!   long as the request waits. Then it reads nothing until the request ends. Requests that wait behind it add nothing but their
//!   bodies: so no more than twice [`HEADS_BYTES_AT_ONCE`] of heads wait.
//! - While many requests wait, the library does not decode what it reads, and it does not look again when it has answered
//!   them. So once bytes were handed on beside a request, the end of each request wakes it, until it reads between two requests.
//! - Between two requests it reads nothing while the other side does not take the answers.
//! - A head that has begun, and is not complete in time, gets the same 408 as the first one, and ends the connection. Where a
//!   head began with the bytes of the request before it, its time begins with its next bytes. If none come, the library ends
//!   the connection as an idle one.
//! - A WebSocket reads as it likes.
//!
//! What must never live here: a look at what the bytes mean. `gate` says when a request begins and ends.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use actix_web::dev::ServiceRequest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::limits::{CHUNKS_BYTES_AT_ONCE, HEADS_BYTES_AT_ONCE, UNREAD_BODY_BYTES_MAX};
use crate::parser_refusals::{self, Connection, WithProblems};

/// A connection that reads no faster than its requests are served.
pub struct Paced {
    connection: WithProblems<Box<dyn Connection>>,
    requests: Rc<Requests>,
    /// How long a head may take once it has begun.
    head_timeout: Duration,
    /// When the head that has begun is late. There is one only while a head is not complete.
    head_late: Option<Pin<Box<Sleep>>>,
    /// Whether bytes wait that the other side does not take.
    is_blocked: bool,
}

/// What a connection and its requests know of each other. All of them are on one thread.
#[derive(Default)]
pub struct Requests {
    is_under_way: Cell<bool>,
    is_socket: Cell<bool>,
    /// Whether no request has begun since the connection was last read without one under way.
    is_between: Cell<bool>,
    /// Whether bytes were handed on between two requests, and no request has begun since.
    has_begun_head: Cell<bool>,
    /// Bytes that may still be handed on.
    room: Cell<u64>,
    /// Whether bytes were handed on beside a request, which the library may not have decoded.
    has_read_beside: Cell<bool>,
    /// Wakes the library when a request ends, or when there is room again.
    waiting: Cell<Option<Waker>>,
}

impl Requests {
    /// A request has begun, whose body has so many bytes. Where that is not known, it is 0.
    fn begin(&self, body_bytes: u64) {
        self.is_under_way.set(true);
        self.has_begun_head.set(false);
        let room = if self.is_between.replace(false) { HEADS_BYTES_AT_ONCE } else { self.room.get() };
        self.room.set(room.saturating_add(body_bytes.min(UNREAD_BODY_BYTES_MAX)));
        self.wake();
    }

    /// The reader of a body that has so many bytes, by its head, reads it from now on.
    pub fn await_body(&self, bytes: u64) {
        let (room, more) = (self.room.get(), bytes.saturating_sub(UNREAD_BODY_BYTES_MAX));
        if more == 0 {
            return;
        }
        self.room.set(room.saturating_add(more));
        // With room left, the connection itself wakes its reader.
        if room == 0 {
            self.wake();
        }
    }

    /// The reader of a body of unknown length has all that has arrived, and waits for more.
    pub fn await_chunk(&self) {
        // More of the body comes before any further head: none is waiting.
        let room = self.room.get();
        self.room.set(room.max(CHUNKS_BYTES_AT_ONCE));
        // With room left, the connection itself wakes its reader.
        if room == 0 {
            self.wake();
        }
    }

    /// The reader of a body of unknown length has read its end.
    pub fn end_chunks(&self) {
        // The body may have taken all room. In this the end of the connection is noticed.
        if self.room.get() == 0 {
            self.room.set(1);
            self.wake();
        }
    }

    fn end(&self) {
        self.is_under_way.set(false);
        self.wake();
    }

    fn wake(&self) {
        if let Some(library) = self.waiting.take() {
            library.wake();
        }
    }
}

/// A request that is under way on its connection until this is dropped.
pub struct UnderWay(Rc<Requests>);

impl UnderWay {
    /// The request has begun; its head says that its body has so many bytes. `None` where the connection does not care.
    pub fn begin(request: &ServiceRequest, body_bytes: Option<u64>) -> Option<Self> {
        Some(Self::of(request.conn_data::<Rc<Requests>>()?, body_bytes))
    }

    /// As [`Self::begin`], on the connection that knows this of its requests.
    pub fn of(requests: &Rc<Requests>, body_bytes: Option<u64>) -> Self {
        requests.begin(body_bytes.unwrap_or(0));
        Self(Rc::clone(requests))
    }

    /// What the connection knows of its requests.
    pub fn requests(&self) -> Rc<Requests> {
        Rc::clone(&self.0)
    }

    /// The connection has become a WebSocket.
    pub fn opens_socket(&self) {
        self.0.is_socket.set(true);
        self.0.wake();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Paced {
    /// A connection whose heads, once they have begun, may take so long.
    pub fn new(connection: impl Connection + 'static, head_timeout: Duration) -> Self {
        Self {
            connection: parser_refusals::with_problems(connection),
            requests: Rc::default(),
            head_timeout,
            head_late: None,
            is_blocked: false,
        }
    }

    /// What the requests are to know of the connection.
    pub fn requests(&self) -> Rc<Requests> {
        Rc::clone(&self.requests)
    }

    /// Reads while a request is under way.
    fn read_beside(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let requests = &self.requests;
        let room = requests.room.get();
        if room == 0 || requests.has_read_beside.get() {
            requests.waiting.set(Some(context.waker().clone()));
        }
        if room == 0 {
            return Poll::Pending;
        }
        let bytes = ready!(read(&mut self.connection, context, into, room))?;
        requests.room.set(room - bytes);
        requests.has_read_beside.set(true);
        Poll::Ready(Ok(()))
    }

    /// Reads between two requests.
    fn read_between(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_blocked {
            // What waits is flushed first, which wakes the reader.
            return Poll::Pending;
        }
        if self.is_head_late(context) {
            self.refuse_head(context);
            // As if the other side had sent its end. The library then closes the connection.
            return Poll::Ready(Ok(()));
        }
        let requests = &self.requests;
        // No request waits: the library decodes what it has next.
        requests.has_read_beside.set(false);
        if !requests.is_between.replace(true) {
            requests.room.set(HEADS_BYTES_AT_ONCE);
        }
        let room = requests.room.get();
        if room == 0 {
            requests.room.set(HEADS_BYTES_AT_ONCE);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Poll::Ready(bytes) = read(&mut self.connection, context, into, room) else {
            // The library decodes all that it has.
            requests.room.set(HEADS_BYTES_AT_ONCE);
            return Poll::Pending;
        };
        let bytes = bytes?;
        requests.room.set(room - bytes);
        requests.has_begun_head.set(requests.has_begun_head.get() || bytes > 0);
        Poll::Ready(Ok(()))
    }

    fn is_head_late(&mut self, context: &mut Context<'_>) -> bool {
        self.requests.has_begun_head.get()
            && self.head_late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_ready())
    }

    /// Writes the refusal of a head that is late. The other side has taken all answers, so there is room for this one.
    fn refuse_head(&mut self, context: &mut Context<'_>) {
        self.requests.has_begun_head.set(false);
        let refusal = parser_refusals::late_head();
        let mut left = &refusal[..];
        while !left.is_empty() {
            match Pin::new(&mut self.connection).poll_write(context, left) {
                Poll::Ready(Ok(written)) if written > 0 => left = &left[written..],
                _ => return,
            }
        }
    }

    /// Limits the time of a head that has begun. The library flushes whenever it has decoded what it has, so that a head that is
    /// complete has begun its request by now.
    fn watch_head(&mut self, context: &mut Context<'_>) {
        if !self.requests.has_begun_head.get() {
            self.head_late = None;
            return;
        }
        let late = self.head_late.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.head_timeout)));
        // It wakes the reader, which looks again.
        let _ = late.as_mut().poll(context);
    }
}

/// Reads up to `most` bytes, which is not 0. How many it has read; 0 at the end.
fn read(
    connection: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
    into: &mut ReadBuf<'_>,
    most: u64,
) -> Poll<io::Result<u64>> {
    let before = into.filled().len();
    let mut part = AsyncReadExt::take(connection, most);
    ready!(Pin::new(&mut part).poll_read(context, into))?;
    Poll::Ready(Ok((into.filled().len() - before) as u64))
}

impl AsyncRead for Paced {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.requests.is_socket.get() {
            Pin::new(&mut this.connection).poll_read(context, into)
        } else if this.requests.is_under_way.get() {
            this.read_beside(context, into)
        } else {
            this.read_between(context, into)
        }
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(context, bytes);
        self.is_blocked |= written.is_pending();
        written
    }

    /// The library flushes when the connection has taken all that it has to write.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.connection).poll_flush(context);
        let was_blocked = std::mem::replace(&mut this.is_blocked, flushed.is_pending());
        if was_blocked && !this.is_blocked {
            context.waker().wake_by_ref();
        }
        this.watch_head(context);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    /// How often the library was woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection, and its other side.
    struct Rig {
        near: Paced,
        far: DuplexStream,
        wakes: Arc<Wakes>,
    }

    impl Rig {
        /// Each direction takes so many bytes that were not read.
        fn new(bytes: usize) -> Self {
            let (near, far) = tokio::io::duplex(bytes);
            let near = Paced::new(near, Duration::from_secs(600));
            Self { near, far, wakes: Arc::default() }
        }

        async fn sent(&mut self, bytes: u64) {
            self.far.write_all(&vec![b'x'; bytes as usize]).await.unwrap();
        }

        /// Reads as the library does, until nothing more comes. How many bytes came, and how often the library was woken.
        fn reads(&mut self) -> (u64, usize) {
            let waker = Waker::from(Arc::clone(&self.wakes));
            let mut context = Context::from_waker(&waker);
            let (mut space, mut bytes) = (vec![0; 8 << 10], 0);
            loop {
                let mut into = ReadBuf::new(&mut space);
                if Pin::new(&mut self.near).poll_read(&mut context, &mut into).is_pending() {
                    return (bytes, self.woken());
                }
                assert_ne!(into.filled().len(), 0, "the connection goes on");
                bytes += into.filled().len() as u64;
            }
        }

        /// How often the library was woken since it was last asked.
        fn woken(&self) -> usize {
            self.wakes.0.swap(0, Ordering::Relaxed)
        }

        fn begin(&self) -> UnderWay {
            UnderWay::of(&self.near.requests, None)
        }

        /// A request whose body of so many bytes is read.
        fn begin_with_body(&self, bytes: u64) -> UnderWay {
            let request = UnderWay::of(&self.near.requests, Some(bytes));
            self.near.requests.await_body(bytes);
            request
        }
    }

    const HEADS: u64 = HEADS_BYTES_AT_ONCE;

    #[tokio::test]
    async fn between_requests_a_few_kib_are_handed_on_at_a_time() {
        let mut rig = Rig::new(1 << 20);
        rig.sent(2 * HEADS + 1).await;
        assert_eq!(rig.reads(), (HEADS, 1), "and the rest at once");
        assert_eq!(rig.reads(), (HEADS, 1));
        assert_eq!(rig.reads(), (1, 0));
        // The library has decoded that.
        rig.sent(HEADS - 1).await;
        assert_eq!(rig.reads().0, HEADS - 1);
    }

    #[tokio::test]
    async fn beside_a_request_its_body_is_handed_on_and_few_heads() {
        let mut rig = Rig::new(1 << 20);
        rig.sent(100).await;
        assert_eq!(rig.reads(), (100, 0));
        let first = rig.begin_with_body(5_000);
        rig.sent(50_000).await;
        assert_eq!(rig.reads().0, 5_000 + HEADS);
        for _ in 0..3 {
            assert_eq!(rig.reads(), (0, 0), "it does not poll itself");
        }
        drop(first);
        assert_eq!(rig.woken(), 1);
        // A request that waited begins before anything is read.
        let second = rig.begin_with_body(10);
        assert_eq!(rig.reads(), (10, 0), "heads still wait");
        drop(second);
        assert_eq!(rig.reads(), (HEADS, 2), "none waits");
        let _third = rig.begin();
        assert_eq!(rig.reads().0, HEADS);
        assert_eq!(rig.reads(), (0, 0));
    }

    #[tokio::test]
    async fn a_long_body_is_handed_on_once_it_is_read() {
        let (body, mut rig) = (UNREAD_BODY_BYTES_MAX + 5_000, Rig::new(1 << 20));
        rig.sent(2 * body).await;
        assert_eq!(rig.reads().0, HEADS);
        let request = UnderWay::of(&rig.near.requests, Some(body));
        assert_eq!(rig.reads(), (UNREAD_BODY_BYTES_MAX + HEADS, 0), "nobody reads it");
        for _ in 0..3 {
            assert_eq!(rig.reads(), (0, 0));
        }
        request.requests().await_body(body);
        assert_eq!(rig.reads(), (5_000, 1));
        assert_eq!(rig.reads(), (0, 0));
    }

    #[tokio::test]
    async fn a_caller_that_leaves_is_noticed_beside_a_request_also_behind_a_long_head() {
        let mut rig = Rig::new(1 << 20);
        rig.sent(HEADS).await;
        assert_eq!(rig.reads().0, HEADS);
        let _request = rig.begin_with_body(7);
        rig.sent(7).await;
        assert_eq!(rig.reads().0, 7);
        rig.far.shutdown().await.unwrap();
        assert_eq!(rig.near.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_is_handed_on_as_it_is_read() {
        let mut rig = Rig::new(1 << 20);
        rig.sent(50_000).await;
        assert_eq!(rig.reads().0, HEADS);
        let request = rig.begin();
        assert_eq!(rig.reads(), (HEADS, 0));
        for _ in 0..3 {
            request.requests().await_chunk();
            request.requests().await_chunk();
            assert_eq!(rig.reads(), (CHUNKS_BYTES_AT_ONCE, 1));
        }
        assert_eq!(rig.reads(), (0, 0));
    }

    #[tokio::test]
    async fn a_reader_that_waits_for_more_of_a_body_does_not_have_the_library_poll_itself() {
        let mut rig = Rig::new(1 << 20);
        rig.sent(100).await;
        assert_eq!(rig.reads(), (100, 0));
        let request = rig.begin();
        rig.sent(50).await;
        assert_eq!(rig.reads().0, 50);
        for _ in 0..3 {
            request.requests().await_chunk();
            assert_eq!(rig.reads(), (0, 0));
        }
    }

    #[tokio::test]
    async fn the_end_of_each_request_wakes_the_library_while_it_may_not_have_decoded_what_it_has() {
        let mut rig = Rig::new(1 << 20);
        rig.sent(100).await;
        assert_eq!(rig.reads(), (100, 0));
        let first = rig.begin();
        rig.sent(50).await;
        assert_eq!(rig.reads().0, 50);
        drop(first);
        assert_eq!(rig.woken(), 1);
        // It has others to serve first, and decodes nothing.
        for _ in 0..2 {
            let waited = rig.begin();
            assert_eq!(rig.reads(), (0, 0));
            drop(waited);
            assert_eq!(rig.woken(), 1);
        }
        // After this it has decoded all. A request with nothing behind it wakes nobody.
        assert_eq!(rig.reads(), (0, 0));
        let last = rig.begin();
        assert_eq!(rig.reads(), (0, 0));
        drop(last);
        assert_eq!(rig.woken(), 0);
    }

    #[tokio::test]
    async fn a_socket_reads_as_it_likes() {
        let mut rig = Rig::new(1 << 20);
        rig.sent(50_000).await;
        assert_eq!(rig.reads().0, HEADS);
        let request = rig.begin();
        assert_eq!(rig.reads().0, HEADS);
        request.opens_socket();
        assert_eq!(rig.woken(), 1);
        drop(request);
        assert_eq!(rig.reads(), (50_000 - 2 * HEADS, 0));
        rig.near.flush().await.unwrap();
        assert!(rig.near.head_late.is_none());
    }

    #[tokio::test]
    async fn between_requests_nothing_is_read_while_answers_wait() {
        let mut rig = Rig::new(16);
        rig.sent(5).await;
        let waker = Waker::from(Arc::clone(&rig.wakes));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut rig.near).poll_write(&mut context, &[b'y'; 16]).is_ready());
        assert!(Pin::new(&mut rig.near).poll_write(&mut context, b"z").is_pending());
        assert_eq!(rig.reads(), (0, 0));
        rig.far.read_exact(&mut [0; 16]).await.unwrap();
        assert_eq!((rig.woken(), rig.reads()), (1, (0, 0)), "there is room, which is not used yet");
        assert!(Pin::new(&mut rig.near).poll_write(&mut context, b"z").is_ready());
        assert!(Pin::new(&mut rig.near).poll_flush(&mut context).is_ready());
        assert_eq!((rig.woken(), rig.reads()), (1, (5, 0)));
    }

    #[tokio::test]
    async fn a_head_that_is_not_complete_in_time_is_refused_and_ends_the_connection() {
        let mut rig = Rig::new(1 << 20);
        let mut space = [0; 100];
        // The library reads and decodes, and flushes. A request that has begun needs no timer.
        rig.sent(100).await;
        assert_eq!(rig.near.read(&mut space).await.unwrap(), 100);
        let request = rig.begin();
        rig.near.flush().await.unwrap();
        assert!(rig.near.head_late.is_none());
        drop(request);
        rig.near.flush().await.unwrap();
        assert!(rig.near.head_late.is_none());
        // A head that becomes complete is in time.
        for begins in [false, true] {
            rig.sent(9).await;
            assert_eq!(rig.near.read(&mut space).await.unwrap(), 9);
            let request = begins.then(|| rig.begin());
            rig.near.flush().await.unwrap();
            assert_eq!(rig.near.head_late.is_none(), begins);
            drop(request);
        }
        rig.near.head_timeout = Duration::from_millis(20);
        rig.sent(9).await;
        assert_eq!(rig.near.read(&mut space).await.unwrap(), 9);
        rig.near.flush().await.unwrap();
        assert_eq!(rig.near.read(&mut space).await.unwrap(), 0, "it looks like the end");
        drop(rig.near);
        let mut answer = String::new();
        rig.far.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
        assert!(
            answer.contains("connection: close\r\n") && answer.contains("did not come in time"),
            "{answer}"
        );
    }
}
