//! The events of a session's socket that the caller gets.

use std::time::Duration;

use wire::sessions::{JobProblem, JobProgress, JobResult, JobTaken};

/// What happens on a session's socket.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Happening {
    /// There is a connection.
    Connected {
        /// The base URL.
        url: String,
    },
    /// There is no connection; the next try is after the pause.
    Lost {
        /// What ended the connection, or kept it from being made.
        reason: String,
        /// How long it waits.
        pause: Duration,
    },
    /// A job is durable. Where the session has several jobs of this name, as after a retry, this may first come for
    /// another one of them, before its result.
    Accepted(JobTaken),
    /// The progress of a job. Some reports may be left out.
    Progress(JobProgress),
    /// A job has ended.
    Result(JobResult),
    /// A job was refused; the others continue. It may be sent again under its `ref`. If the code leaves open
    /// whether anything was written, its result may still come. In a session with an order no job is refused for now: the
    /// socket connects again ([`Self::Lost`]), and sends again what was not accepted, in its order.
    Problem(JobProblem),
}
