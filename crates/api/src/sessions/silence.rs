//! How long a session's client has been silent. Pure: no I/O and no clock.

use std::time::{Duration, Instant};

use crate::limits::CLIENT_SILENT_MAX;

/// The time in which a client has sent nothing and its socket would have read it.
#[derive(Debug)]
pub struct Silence {
    /// When something was received last, later by the time in which the socket did not read.
    since: Instant,
}

impl Silence {
    /// It begins here.
    pub const fn since(now: Instant) -> Self {
        Self { since: now }
    }

    /// Something was received.
    pub const fn heard(&mut self, now: Instant) {
        self.since = now;
    }

    /// For so long, until this moment, the socket did not read: what the client sent meanwhile still waits to be read.
    pub fn not_reading(&mut self, time: Duration) {
        self.since += time;
    }

    /// Whether the client counts as gone.
    pub fn is_too_long(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= CLIENT_SILENT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_the_socket_reads_is_silence() {
        let second = Duration::from_secs(1);
        let begin = Instant::now();
        let mut silence = Silence::since(begin);
        let end = begin + CLIENT_SILENT_MAX;
        assert!(!silence.is_too_long(end - second) && silence.is_too_long(end));
        // A page of results took longer to be sent than a client may be silent.
        silence.not_reading(CLIENT_SILENT_MAX + second);
        let end = end + CLIENT_SILENT_MAX + second;
        assert!(!silence.is_too_long(end - second) && silence.is_too_long(end));
        silence.heard(end);
        assert!(!silence.is_too_long(end) && silence.is_too_long(end + CLIENT_SILENT_MAX));
    }
}
