//! Sessions: how to open, show and close them, and the socket on which a client submits jobs and gets their
//! results. Jobs of a session may also be submitted like any others, with `session` and `ref`.
//!
//! ```no_run
//! # use client::wire::sessions::JobResult;
//! # fn store(_result: &JobResult, _after_seq: u64) {}
//! # async fn example(after_seq: u64) -> Result<(), Box<dyn std::error::Error>> {
//! use client::Client;
//! use client::sessions::Happening;
//! use client::wire::Json;
//! use client::wire::jobs::JobRequest;
//! use client::wire::sessions::{Ordering, SessionRequest};
//!
//! let fencepost = Client::new(["http://127.0.0.1:7070", "http://127.0.0.1:7071"], None)?;
//! // Jobs run one at a time, in the order in which they are sent. That is the default.
//! let asked = SessionRequest { ordering: Some(Ordering::Strict), ..SessionRequest::default() };
//! // Under its key a caller that starts anew gets the same session, and goes on behind the results that it has.
//! let session = fencepost.sessions().open(&asked, Some("call-4711")).await?;
//! let mut socket = fencepost.sessions().connect(&session.id, after_seq).await?;
//! // One task sends while another reads. Sent again under its name, a job is the same job.
//! let (sender, words) = (socket.sender(), [Json::of("one")?, Json::of("two")?]);
//! let sending = tokio::spawn(async move {
//!     for (n, word) in words.into_iter().enumerate() {
//!         sender.send(&format!("c{n}"), JobRequest::new(word)).await?;
//!     }
//!     Ok::<(), client::Error>(())
//! });
//! let mut missing = 2;
//! while missing > 0 {
//!     match socket.next().await? {
//!         Some(Happening::Result(result)) => {
//!             store(&result, socket.after_seq());
//!             missing -= 1;
//!         }
//!         Some(Happening::Problem(problem)) => return Err(problem.detail.into()),
//!         // It connects again by itself, and sends what was not accepted again.
//!         Some(Happening::Lost { reason, .. }) => eprintln!("no connection: {reason}"),
//!         Some(_) => {}
//!         // The session is closed. Another one needs another key.
//!         None => break,
//!     }
//! }
//! sending.await??;
//! let remains = socket.close().await;
//! println!("{} jobs may not be accepted", remains.unaccepted.len());
//! # Ok(())
//! # }
//! ```
//!
//! What lives here: `protocol` decides what a frame means, with `places`, the sequence numbers of the results
//! that were seen; `session_loop` keeps the connection; `send_window` bounds what may be sent and not
//! accepted; `happening` has the events that the caller gets; `socket` is the public interface. What must
//! never: a decision about the protocol outside `protocol`.

mod happening;
mod places;
mod protocol;
mod send_window;
mod session_loop;
mod socket;

use wire::List;
use wire::sessions::{ListedSession, Session, SessionOpened, SessionRequest};

use crate::observe::Page;
use crate::transport::{Call, key_or_new};
use crate::{Client, Result};

pub use happening::Happening;
pub use send_window::{UNACCEPTED_BYTES_MAX, UNACCEPTED_JOBS_MAX};
pub use socket::{JobSender, Remains, SessionSocket};

/// Which sessions to list.
#[derive(Clone, Debug, Default)]
pub struct SessionQuery {
    /// Only those that are open (`true`), or only those that are closed (`false`).
    pub open: Option<bool>,
    /// Of this tenant only.
    pub tenant: Option<String>,
    /// Which part.
    pub page: Page,
}

/// The calls about sessions.
#[derive(Clone, Copy, Debug)]
pub struct Sessions<'a>(&'a Client);

impl Client {
    /// The calls about sessions.
    #[must_use]
    pub const fn sessions(&self) -> Sessions<'_> {
        Sessions(self)
    }
}

impl Sessions<'_> {
    /// Opens a session; when this returns it is durable. Under one `key` the same request is the same session
    /// for 24 hours, on any instance, also when it is closed by then. So a caller that opens the next session where one is
    /// closed takes another key: under the first it would get the closed session each time. [`Session::closed_at`] of
    /// [`Self::get`] tells whether a session is closed. Without a key the library makes one for this call.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn open(&self, asked: &SessionRequest, key: Option<&str>) -> Result<SessionOpened> {
        let key = key_or_new(key);
        self.0.call(&Call::post(&["v1", "sessions"], asked).under(Some(&key))).await
    }

    /// One session, as it is now.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a session that does not exist, or was purged.
    pub async fn get(&self, id: &str) -> Result<Session> {
        self.0.call(&Call::get(&["v1", "sessions", id], &[])).await
    }

    /// The sessions, in the order of their ids, without their jobs.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn list(&self, wanted: &SessionQuery) -> Result<List<ListedSession>> {
        let mut query = wanted.page.query();
        query.extend(wanted.open.map(|open| ("open", open.to_string())));
        query.extend(wanted.tenant.clone().map(|tenant| ("tenant", tenant)));
        self.0.call(&Call::get(&["v1", "sessions"], &query)).await
    }

    /// Closes a session: it takes no more jobs, and finishes those that it has. Closing it again changes
    /// nothing.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn close(&self, id: &str) -> Result<()> {
        self.0.call(&Call::delete(&["v1", "sessions", id])).await
    }
}

#[cfg(test)]
mod tests;
