//! The client's side of a session's socket, `GET /v1/sessions/{id}/ws`.

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use wire::jobs::JobRequest;
use wire::sessions::{ClientFrame, Ordering};

use super::Sessions;
use super::happening::Happening;
use super::protocol::{Protocol, Sent};
use super::send_window::SendWindow;
use super::session_loop::{Delivery, Pace, SessionLoop};
use crate::{Client, Error, Result};

/// Events that wait for the caller.
pub(super) const WAITING_MAX: usize = 64;

/// What remains when a socket is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remains {
    /// The sequence number up to which the caller has all results, from which another socket continues. In a session with
    /// the ordering `none`, the other socket delivers the results after it again, also those that this one delivered.
    pub after_seq: u64,
    /// The names of the jobs that may or may not have been accepted, in the order in which they were sent. Before them those
    /// that were refused and whose [`Happening::Problem`] the caller did not get. So every other job that was sent is accepted,
    /// or the caller got its refusal.
    pub unaccepted: Vec<String>,
}

/// A session's socket, which stays connected. It is made by [`Sessions::connect`].
///
/// **What it promises.** The caller gets every result after the number where the socket began, once: in the
/// order of the numbers if the session is ordered, and always after its job's [`Happening::Accepted`] if the
/// job was sent on this socket. If a connection is lost, or nothing is received on it for 20 s, the socket
/// connects to the next of the client's URLs, and keeps trying. It sends every job that was not accepted
/// again, under its `ref`, which makes it the same job.
/// [`UNACCEPTED_JOBS_MAX`](super::UNACCEPTED_JOBS_MAX) jobs and
/// [`UNACCEPTED_BYTES_MAX`](super::UNACCEPTED_BYTES_MAX) may be sent and not accepted; then
/// [`send`](Self::send) waits.
///
/// The caller must keep reading, also while a task waits in `send`: if events are not read, the socket soon
/// stops receiving, and no `accepted` arrives. A caller that does not read for long loses the connection, but
/// no result.
///
/// Dropping the socket closes it at once.
#[derive(Debug)]
pub struct SessionSocket {
    sender: JobSender,
    deliveries: mpsc::Receiver<Delivery>,
    after_seq: u64,
    is_over: bool,
    stop: oneshot::Sender<()>,
    unaccepted: oneshot::Receiver<Vec<String>>,
    task: JoinHandle<()>,
}

/// Sends jobs on a session's socket. Cheap to clone.
#[derive(Clone, Debug)]
pub struct JobSender {
    window: SendWindow,
    jobs: mpsc::UnboundedSender<Sent>,
}

impl Sessions<'_> {
    /// Connects to a session, to get its results after this sequence number: 0 for all results,
    /// [`Remains::after_seq`] or [`SessionSocket::after_seq`] to continue where another socket ended.
    ///
    /// # Errors
    /// [`Error`], as any call: `not_found` for a session that does not exist. [`Error::Unusable`] for a number that the
    /// session has not given yet, as that of another session: results up to it would be left out. This only checks that the
    /// session exists; [`Happening::Connected`] comes later.
    pub async fn connect(&self, id: &str, after_seq: u64) -> Result<SessionSocket> {
        let session = self.get(id).await?;
        let last_seq = session.last_seq;
        if after_seq > last_seq {
            return Err(Error::Unusable(format!(
                "after_seq is {after_seq}, and the last number of the session is {last_seq}: is it that of another session?"
            )));
        }
        Ok(SessionSocket::start(self.0, id, session.ordering, after_seq, Pace::default()))
    }
}

impl SessionSocket {
    pub(super) fn start(client: &Client, id: &str, ordering: Ordering, after_seq: u64, pace: Pace) -> Self {
        let (jobs, asked) = mpsc::unbounded_channel();
        let (tell, deliveries) = mpsc::channel(WAITING_MAX);
        let (stop, stopped) = oneshot::channel();
        // One that this version does not know may be any order.
        let is_ordered = matches!(ordering, Ordering::Strict | Ordering::Results);
        let protocol = Protocol::new(after_seq, is_ordered);
        let (session_loop, unaccepted) = SessionLoop::new(client, id, protocol, asked, tell, stopped, pace);
        let sender = JobSender { window: SendWindow::new(), jobs };
        let task = tokio::spawn(session_loop.run());
        Self { sender, deliveries, after_seq, is_over: false, stop, unaccepted, task }
    }

    /// Sends a job under this name, as [`JobSender::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&self, client_ref: &str, job: JobRequest) -> Result<()> {
        self.sender.send(client_ref, job).await
    }

    /// A handle for another task to send jobs, while this one reads.
    #[must_use]
    pub fn sender(&self) -> JobSender {
        self.sender.clone()
    }

    /// The next event; `None` when the session is closed and the caller got all its results. This is cancel
    /// safe.
    ///
    /// # Errors
    /// The [`Error`] that ends the socket. Another connection would not help: the session was purged (`not_found`), or what the
    /// socket sends is closed as a fault of the protocol again and again (`invalid`). Or each of the client's URLs refuses
    /// it, one after the other, the token for example: before the first connection once, later for 30 s. After that,
    /// [`Error::Unusable`].
    pub async fn next(&mut self) -> Result<Option<Happening>> {
        match self.deliveries.recv().await {
            Some(Delivery::Happening(happening, after_seq)) => {
                self.after_seq = after_seq;
                Ok(Some(happening))
            }
            Some(Delivery::End(end)) => {
                self.is_over = end.is_ok();
                end.map(|()| None)
            }
            None if self.is_over => Ok(None),
            None => Err(over()),
        }
    }

    /// The sequence number up to which the caller took all results from this socket: continue from it after a
    /// crash. In a session with the ordering `none`, the caller may also have taken some results after it, which another
    /// socket delivers again. There the number stays below the first one without a result, and a few numbers never get
    /// one: docs/sessions.md says which.
    #[must_use]
    pub const fn after_seq(&self) -> u64 {
        self.after_seq
    }

    /// Closes the socket. Jobs that were sent may take five seconds to be accepted; other events are dropped, but for what
    /// [`Remains::unaccepted`] says of them. Where the runtime has ended on which the socket was made, nothing is waited for,
    /// and what remains is told all the same.
    ///
    /// If the future is dropped, the socket closes all the same, and nobody learns what remains.
    pub async fn close(self) -> Remains {
        let Self { sender, mut deliveries, after_seq, is_over: _, stop, unaccepted: left, task } = self;
        drop(sender);
        // It may be over already.
        let _ = stop.send(());
        if let Err(error) = task.await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
        let left = left.await.expect("a loop that ends says what remains");
        let mut unaccepted = Vec::new();
        while let Ok(delivery) = deliveries.try_recv() {
            unaccepted.extend(delivery.refused());
        }
        unaccepted.extend(left);
        Remains { after_seq, unaccepted }
    }
}

impl JobSender {
    /// Sends a job under this name (1 to 128 visible ASCII characters), which is its idempotency key within
    /// the session: sent again, on any socket, it is the same job. The `session` and `ref` in the job itself
    /// are ignored. Waits while too many jobs are not accepted. If the future is dropped before it completes,
    /// the job is not sent.
    ///
    /// # Errors
    /// [`Error::Unusable`] for a job that no daemon would accept, and when the socket has ended.
    pub async fn send(&self, client_ref: &str, mut job: JobRequest) -> Result<()> {
        job.session = None;
        job.client_ref = Some(client_ref.to_owned());
        let text = serde_json::to_string(&ClientFrame::Job(Box::new(job)))
            .map_err(|error| Error::Unusable(error.to_string()))?;
        // What a daemon reads strictly is read so here already.
        serde_json::from_str::<ClientFrame>(&text)
            .map_err(|error| Error::Unusable(format!("no daemon takes such a job: {error}")))?;
        let permit = self.window.take(text.len()).await;
        let sent = Sent { client_ref: client_ref.to_owned(), text: text.into(), _permit: permit };
        self.jobs.send(sent).map_err(|_| over())
    }
}

fn over() -> Error {
    Error::Unusable("the session's socket has ended".to_owned())
}
