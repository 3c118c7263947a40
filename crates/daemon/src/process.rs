//! What this process may do with files and connections, as far as the system lets it decide.

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

/// Descriptors for everything but connections of callers: the ledger, the bus, other instances, files.
const OWN_DESCRIPTORS: u64 = 256;

/// From now on nobody but the user of this process reads what it creates: files are 0600, folders 0700.
pub fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Raises the limit of open descriptors as far as it goes, and answers it; `None` where there is none.
pub fn most_descriptors() -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where raising fails, the limit is what it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current
}

/// Raises the limit of open descriptors as far as it goes; answers how many connections of callers that leaves, at most
/// those that are wanted.
pub fn connections(wanted: u64) -> u64 {
    let Some(limit) = most_descriptors() else { return wanted };
    let room = limit.saturating_sub(OWN_DESCRIPTORS).max(1);
    if room < wanted {
        tracing::warn!(
            descriptors = limit,
            connections = room,
            wanted,
            "the limit of open files leaves room for fewer connections than server.connections_max; raise it \
             (ulimit -n, LimitNOFILE)"
        );
    }
    wanted.min(room)
}
