//! What this process may do with files and connections, as far as the system lets it decide.

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit, umask};

use crate::exit::{Exit, Failure};

/// Descriptors for everything that has no number of its own: the bus, the probes' connections, the runtimes, files.
const OWN_DESCRIPTORS: u64 = 256;
/// Descriptors for each forwarded request: its connection, and one that an earlier one left open to be used again.
const FORWARD_DESCRIPTORS: u64 = 2;
/// Where descriptors are short, forwards have one of so many that the ledger and [`OWN_DESCRIPTORS`] leave.
const FORWARDS_PART: u64 = 5;

/// Descriptors that a start must leave for callers and forwarded requests.
const ROOM_MIN: u64 = 128;

/// How many connections there may be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Connections of callers.
    pub callers: u64,
    /// Connections to other instances, for requests that are being forwarded.
    pub forwards: u64,
}

/// From now on nobody but the user of this process reads what it creates: files are 0600, folders 0700.
pub fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Who runs this process: the name in `$USER`, or `uid N` where there is none.
pub fn user() -> String {
    let named = std::env::var("USER").ok().filter(|name| !name.is_empty());
    named.unwrap_or_else(|| format!("uid {}", getuid().as_raw()))
}

/// Raises the limit of open descriptors as far as it goes, and answers it; `None` where there is none.
pub fn most_descriptors() -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where raising fails, the limit is what it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current
}

/// Raises the limit of open descriptors as far as it goes, and refuses one that leaves no useful number of connections beside so
/// many descriptors of the ledger.
///
/// # Errors
/// [`Exit::Config`].
pub fn refuse_few_descriptors(of_ledger: u64) -> Result<(), Failure> {
    let least = least(of_ledger);
    let Some(limit) = most_descriptors().filter(|limit| *limit < least) else { return Ok(()) };
    let why = format!(
        "the limit of open files is {limit}, and the daemon needs {least} at least, and one more for each further connection; \
         raise it (ulimit -Hn, LimitNOFILE)"
    );
    Err(Failure::new(Exit::Config, why))
}

const fn least(of_ledger: u64) -> u64 {
    OWN_DESCRIPTORS + of_ledger + ROOM_MIN
}

/// Raises the limit of open descriptors as far as it goes; answers how many connections that leaves beside so many descriptors
/// of the ledger, at most those that are wanted.
pub fn connections(wanted: Connections, of_ledger: u64) -> Connections {
    let Some(limit) = most_descriptors() else { return wanted };
    let room = divided(limit, wanted, of_ledger);
    if room != wanted {
        tracing::warn!(
            descriptors = limit,
            connections = room.callers,
            wanted = wanted.callers,
            forwards = room.forwards,
            "the limit of open files leaves room for fewer connections than server.connections_max, or for fewer forwarded \
             requests; raise it (ulimit -n, LimitNOFILE)"
        );
    }
    room
}

/// What of the wanted fits the limit; one of each in any case. Forwards get what callers do not want, or their part.
fn divided(limit: u64, wanted: Connections, of_ledger: u64) -> Connections {
    let rest = limit.saturating_sub(OWN_DESCRIPTORS).saturating_sub(of_ledger);
    let of_forwards = rest.saturating_sub(wanted.callers).max(rest / FORWARDS_PART);
    let forwards = (of_forwards / FORWARD_DESCRIPTORS).max(1).min(wanted.forwards);
    let callers = rest.saturating_sub(forwards * FORWARD_DESCRIPTORS).max(1).min(wanted.callers);
    Connections { callers, forwards }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Connections = Connections { callers: 10_000, forwards: 2_000 };

    #[test]
    fn callers_forwards_and_ledger_together_fit_the_limit() {
        for of_ledger in [2, 16, 500] {
            for limit in (800..40_000).step_by(97) {
                let Connections { callers, forwards } = divided(limit, WANTED, of_ledger);
                let sum = callers + forwards * FORWARD_DESCRIPTORS + of_ledger + OWN_DESCRIPTORS;
                assert!(sum <= limit, "{callers} callers, {forwards} forwards of {limit}");
                assert!(callers >= 1 && forwards >= 1, "{callers} callers, {forwards} forwards of {limit}");
            }
        }
        assert_eq!(divided(1_024, WANTED, 16), Connections { callers: 602, forwards: 75 });
    }

    #[test]
    fn the_least_limit_has_room_for_a_hundred_callers() {
        for of_ledger in [2, 16, 48, 500, 1_500] {
            let room = divided(least(of_ledger), WANTED, of_ledger);
            assert!(room.callers >= 100 && room.forwards >= 10, "{of_ledger}: {room:?}");
        }
        assert_eq!([16, 48].map(least), [400, 432], "docs/operations.md says so");
    }

    #[test]
    fn a_high_limit_has_room_for_all_and_a_very_low_one_for_one_of_each() {
        assert_eq!(divided(14_272, WANTED, 16), WANTED);
        assert_eq!(divided(1_048_576, WANTED, 500), WANTED);
        for limit in [0, 64, 256, 272] {
            assert_eq!(divided(limit, WANTED, 16), Connections { callers: 1, forwards: 1 }, "{limit}");
        }
    }
}
