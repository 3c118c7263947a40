//! Chunked bodies that a handler did not read to the end. When such a body is dropped, actix reads and discards the rest
//! without a limit of time or size, to keep the connection. This file keeps the body until the answer has left, so that
//! actix closes the connection instead. It also tells the connection when the reader of such a body waits for more, or has
//! read its end.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::PayloadError;
use actix_web::http::header::TRANSFER_ENCODING;
use actix_web::web::Bytes;
use futures_util::{Stream, StreamExt};

use crate::connection::{Requests, UnderWay};

/// A chunked body, shared between the handler and this file.
pub struct Chunked(Rc<RefCell<Kept>>);

struct Kept {
    payload: Payload,
    ended: bool,
    /// What the connection knows of its requests, if it cares.
    requests: Option<Rc<Requests>>,
}

impl Chunked {
    /// Puts itself between the request and its body, if that is a chunked one.
    pub fn of(request: &mut ServiceRequest, under_way: Option<&UnderWay>) -> Option<Self> {
        // Actix does not read on in bodies of a declared length.
        if !request.headers().contains_key(TRANSFER_ENCODING) {
            return None;
        }
        let mut payload = Payload::None;
        std::mem::swap(&mut payload, request.parts_mut().1);
        let requests = under_way.map(UnderWay::requests);
        let kept = Rc::new(RefCell::new(Kept { payload, ended: false, requests }));
        let reader: Pin<Box<dyn Stream<Item = _>>> = Box::pin(Reader(Rc::clone(&kept)));
        request.set_payload(Payload::from(reader));
        Some(Self(kept))
    }

    /// Keeps the rest of the body until the answer is dropped.
    pub fn keep_with(self, answer: ServiceResponse<BoxBody>) -> ServiceResponse<BoxBody> {
        if self.0.borrow().ended {
            return answer;
        }
        keep_with(answer, self)
    }
}

/// Keeps something until an answer has left, or is dropped.
pub fn keep_with<T: 'static>(answer: ServiceResponse<BoxBody>, kept: T) -> ServiceResponse<BoxBody> {
    answer.map_body(|_, body| BoxBody::new(Answer { body, _kept: kept }))
}

struct Reader(Rc<RefCell<Kept>>);

impl Stream for Reader {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut kept = self.0.borrow_mut();
        let polled = kept.payload.poll_next_unpin(context);
        if let Some(requests) = &kept.requests {
            match &polled {
                Poll::Pending => requests.await_chunk(),
                Poll::Ready(None) => requests.end_chunks(),
                Poll::Ready(Some(_)) => {}
            }
        }
        let chunk = ready!(polled);
        kept.ended = !matches!(chunk, Some(Ok(_)));
        Poll::Ready(chunk)
    }
}

/// An answer's body, and what is dropped with it.
struct Answer<T> {
    body: BoxBody,
    _kept: T,
}

// Nothing of it is pinned.
impl<T> Unpin for Answer<T> {}

impl<T> MessageBody for Answer<T> {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        self.get_mut().body.as_pin_mut().poll_next(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actix_web::HttpMessage as _;
    use actix_web::test::TestRequest;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::connection::Paced;

    #[tokio::test]
    async fn a_caller_that_leaves_is_noticed_also_where_the_body_has_taken_all_room() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut near = Paced::new(near, Duration::from_secs(600));
        // Nothing was read before it, so there is no room.
        let under_way = UnderWay::of(&near.requests(), None);
        let request = TestRequest::default().insert_header((TRANSFER_ENCODING, "chunked")).set_payload("x");
        let mut request = request.to_srv_request();
        let _chunked = Chunked::of(&mut request, Some(&under_way)).unwrap();
        let mut body = request.take_payload();
        far.shutdown().await.unwrap();
        let mut space = [0; 8];
        let read_body = async {
            while let Some(chunk) = body.next().await {
                chunk.unwrap();
            }
        };
        let both = async { tokio::join!(near.read(&mut space), read_body) };
        let (read, ()) = tokio::time::timeout(Duration::from_secs(20), both).await.expect("it is noticed");
        assert_eq!(read.unwrap(), 0);
    }
}
