//! The client's side of a session's socket, `GET /v1/sessions/{id}/ws`.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use wire::jobs::JobRequest;
use wire::sessions::{ClientFrame, JobProblem, JobProgress, JobResult, JobTaken, Ordering};

use super::Sessions;
use super::protocol::{Protocol, Sent};
use super::send_window::SendWindow;
use super::session_loop::{Pace, SessionLoop};
use crate::{Client, Error, Result};

/// Jobs that may be sent and not accepted yet. Twice as many as the daemon brings on their way at once.
pub const UNACCEPTED_JOBS_MAX: u32 = 512;
/// Bytes of their frames, together.
pub const UNACCEPTED_BYTES_MAX: u32 = 8 << 20;
/// Happenings that wait for the caller.
pub(super) const WAITING_MAX: usize = 64;

/// What happens on a session's socket.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// There is a connection.
    Connected {
        /// The base URL.
        url: String,
    },
    /// There is none; the next try is after the pause.
    Lost {
        /// Why.
        reason: String,
        /// How long it waits.
        pause: Duration,
    },
    /// A job is durable.
    Accepted(JobTaken),
    /// How far a job has come. May be left out.
    Progress(JobProgress),
    /// A job has ended.
    Result(JobResult),
    /// A job was refused; the others go on. Under its `ref` it may be sent again, and if its code is one of those that
    /// leave open whether anything was written, its result may still come.
    Problem(JobProblem),
}

/// What remains when a socket is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Up to this place the caller has all results: where another socket goes on.
    pub after_seq: u64,
    /// The names of jobs of which it is not known whether they were accepted, in the order in which they were sent.
    pub unaccepted: Vec<String>,
}

/// What the caller is told.
#[derive(Debug)]
pub(super) enum Told {
    /// This, and up to which place all results were told with it.
    Happening(Happening, u64),
    /// No more: the session is closed, or it cannot go on.
    End(Result<()>),
}

/// A session's socket, which stays connected. It is made by [`Sessions::connect`].
///
/// **What it promises.** Every result of the session behind the place where it began is told once: in the order of the
/// places where the session has one, and always behind its job's [`Happening::Accepted`] if the job was sent here. A
/// connection that is lost, or on which nothing is heard for 20 s, is followed by another, to the next of the client's
/// URLs, for as long as it takes: what was not accepted is sent again, under its `ref`, which makes it the same job.
/// [`UNACCEPTED_JOBS_MAX`] jobs and [`UNACCEPTED_BYTES_MAX`] may be sent and not accepted; then [`send`](Self::send)
/// waits.
///
/// Somebody has to read, also while another waits in `send`: what is not read is soon not heard any more, `accepted`
/// included. Who does not read for long loses the connection, and nothing else.
///
/// Dropped, it is closed, and nothing is waited for.
#[derive(Debug)]
pub struct SessionSocket {
    sender: JobSender,
    told: mpsc::Receiver<Told>,
    after_seq: u64,
    is_over: bool,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Vec<String>>,
}

/// Sends jobs on a session's socket. Cheap to clone.
#[derive(Clone, Debug)]
pub struct JobSender {
    window: SendWindow,
    jobs: mpsc::UnboundedSender<Sent>,
}

impl Sessions<'_> {
    /// Connects to a session, with its results behind this place: 0 for all that it ever had, [`Remains::after_seq`] or
    /// [`SessionSocket::after_seq`] to go on where another socket ended.
    ///
    /// # Errors
    /// [`Error`], as any call: `not_found` for a session that never was. Nothing is awaited beside an answer about the
    /// session: [`Happening::Connected`] comes later.
    pub async fn connect(&self, id: &str, after_seq: u64) -> Result<SessionSocket> {
        let session = self.get(id).await?;
        Ok(SessionSocket::start(self.0, id, session.ordering, after_seq, Pace::default()))
    }
}

impl SessionSocket {
    pub(super) fn start(client: &Client, id: &str, ordering: Ordering, after_seq: u64, pace: Pace) -> Self {
        let (jobs, asked) = mpsc::unbounded_channel();
        let (tell, told) = mpsc::channel(WAITING_MAX);
        let (stop, stopped) = oneshot::channel();
        let protocol = Protocol::new(after_seq, ordering != Ordering::Free);
        let session_loop = SessionLoop::new(client, id, protocol, asked, tell, stopped, pace);
        let sender = JobSender { window: SendWindow::new(), jobs };
        Self { sender, told, after_seq, is_over: false, stop, task: tokio::spawn(session_loop.run()) }
    }

    /// Sends a job under this name, as [`JobSender::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&self, client_ref: &str, job: JobRequest) -> Result<()> {
        self.sender.send(client_ref, job).await
    }

    /// For sending beside reading.
    #[must_use]
    pub fn sender(&self) -> JobSender {
        self.sender.clone()
    }

    /// What happens next; `None` when the session is closed and all its results were told. Nothing is lost when this is
    /// dropped before it is done.
    ///
    /// # Errors
    /// The one [`Error`] that ends it: what no other connection would mend, such as a refused token or a session that
    /// was forgotten. After that it is [`Error::Unusable`].
    pub async fn next(&mut self) -> Result<Option<Happening>> {
        match self.told.recv().await {
            Some(Told::Happening(happening, after_seq)) => {
                self.after_seq = after_seq;
                Ok(Some(happening))
            }
            Some(Told::End(end)) => {
                self.is_over = end.is_ok();
                end.map(|()| None)
            }
            None if self.is_over => Ok(None),
            None => Err(over()),
        }
    }

    /// Up to this place all results were taken from here: where to go on after a crash. In a session without an order
    /// those of some places behind it were as well.
    #[must_use]
    pub const fn after_seq(&self) -> u64 {
        self.after_seq
    }

    /// Closes it. What was sent may take five seconds to be accepted; what else happens is not told.
    pub async fn close(self) -> Remains {
        let Self { sender, told, after_seq, is_over: _, stop, task } = self;
        drop((sender, told));
        // It may be over already.
        let _ = stop.send(());
        let unaccepted = match task.await {
            Ok(unaccepted) => unaccepted,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends.
                Err(_) => Vec::new(),
            },
        };
        Remains { after_seq, unaccepted }
    }
}

impl JobSender {
    /// Sends a job under this name (1 to 128 visible ASCII characters), which is its idempotency key within the
    /// session: sent again, on any socket, it is the same job. What the job itself says of `session` and `ref` does not
    /// count. Waits while too much is not accepted; dropped before it is done, nothing is sent.
    ///
    /// # Errors
    /// [`Error::Unusable`] for a job that no daemon would take, and when the socket has ended.
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
