//! What a failure of the driver means: whether anything was done, and whether to ask again.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::{Cause, Error, Trial};

/// What a command may leave behind when its answer does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    Reads,
    /// Perhaps what it does.
    Writes,
}

/// The answer did not come in time.
pub(super) fn timed_out(effect: Effect) -> Error {
    lost(effect, Arc::new(io::Error::new(io::ErrorKind::TimedOut, "Redis did not answer in time")))
}

/// What is read, if it comes within this time.
pub(super) async fn in_time<T>(limit: Duration, read: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(limit, read).await.map_err(|_| timed_out(Effect::Reads))
}

/// There is no connection to send anything on.
pub(super) fn not_connected() -> Error {
    let source = io::Error::new(io::ErrorKind::NotConnected, "there is no connection to Redis");
    Error::Unavailable { source: Arc::new(source) }
}

/// Nothing is sent to a server on trial.
pub(super) fn on_trial(trial: Trial) -> Error {
    Error::Unavailable { source: Arc::new(trial) }
}

/// No server of a Cluster is connected to, and this one of them does not say why.
#[derive(Debug, thiserror::Error)]
#[error("no server of the Redis Cluster is connected to; {server}: {source}")]
struct NotReached {
    server: String,
    source: Cause,
}

/// Why this server cannot be connected to, and with it no other one of the Cluster.
pub(super) fn at(server: String, why: Error) -> Error {
    match why {
        Error::Unavailable { source } => {
            Error::Unavailable { source: Arc::new(NotReached { server, source }) }
        }
        why => why,
    }
}

/// Other servers of a Cluster say that this one has the key, and it gave no answer in any try.
#[derive(Debug, thiserror::Error)]
#[error("the Redis Cluster's server {0} does not serve its keys")]
struct NotServing(String);

/// What the library of TLS calls it where a server shows the certificate of an authority as its own.
const OF_AUTHORITY: &str = "CaUsedAsEndEntity";

/// A server shows the certificate of an authority, as `openssl req -x509` makes one by default.
#[derive(Debug, thiserror::Error)]
#[error(
    "its certificate is an authority's own (CA:TRUE), and must be one that the authority signed for it: {0}"
)]
struct AuthoritysOwn(#[source] RedisError);

/// How Redis says to a script that its user lacks a right: the code before it depends on the release.
const FORBIDDEN_IN_SCRIPTS: [&str; 2] = ["ACL failure in script", "The user executing the script"];

/// What the driver's failure means.
pub(super) fn of(error: RedisError, effect: Effect) -> Error {
    match (error.kind(), error.code()) {
        _ if is_forbidden(&error) => Error::Forbidden { source: Arc::new(error) },
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => {
            Error::Denied { source: Arc::new(error) }
        }
        (ErrorKind::Server(ServerErrorKind::Moved), _) => Error::Unavailable { source: moved(error) },
        (_, Some("OOM")) => Error::Full { source: Arc::new(error) },
        // The server says that it is not ready, or not the one that may: nothing was done.
        (
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::Ask,
            )
            | ErrorKind::ClusterConnectionNotFound,
            _,
        )
        | (_, Some("MISCONF" | "NOREPLICAS" | "BUSY")) => Error::Unavailable { source: Arc::new(error) },
        (ErrorKind::Io, _) => of_io(error, effect),
        _ => Error::Refused { source: Arc::new(error) },
    }
}

/// The driver goes where it is sent, and so passes this on only where that came to nothing. The hash slot, which is another one
/// each time, says nothing to a person.
fn moved(error: RedisError) -> Cause {
    match error.redirect_node() {
        Some((server, _)) => Arc::new(NotServing(server.to_owned())),
        None => Arc::new(error),
    }
}

/// Whether the server knows the user, and the user lacks a right.
fn is_forbidden(error: &RedisError) -> bool {
    let is_in_script = |said: &str| FORBIDDEN_IN_SCRIPTS.iter().any(|words| said.contains(words));
    error.code() == Some("NOPERM") || error.detail().is_some_and(is_in_script)
}

/// What the failure of a command's last try means, where the answer to an earlier try may have been lost: although this one did
/// nothing, that one may have.
pub(super) fn of_last_try(error: Error, effect: Effect) -> Error {
    match error {
        Error::Unavailable { source } => lost(effect, source),
        error => error,
    }
}

/// Whether the server itself gave this answer: the connection to it is well.
pub(super) fn is_servers_word(error: &Error) -> bool {
    of_driver(error).is_some_and(|error| error.code().is_some())
}

/// Whether the driver is connected to no server of a Cluster, and keeps to itself why.
pub(super) fn is_unexplained(error: &Error) -> bool {
    of_driver(error).is_some_and(|error| match error.kind() {
        ErrorKind::ClusterConnectionNotFound => true,
        ErrorKind::Io => io_kind(error).is_none(),
        _ => false,
    })
}

/// Whether a connection was lost or refused.
pub(super) fn is_of_connection(error: &Error) -> bool {
    of_driver(error).is_some_and(|error| {
        matches!(error.kind(), ErrorKind::Io) && io_kind(error) != Some(io::ErrorKind::TimedOut)
    })
}

/// Whether a connection that was made is lost.
pub(super) fn is_lost(error: &Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let kind = of_driver(error).and_then(io_kind);
    matches!(kind, Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
}

/// The server says this to each new connection, and closes it.
pub(super) fn turned_away(said: &str) -> Error {
    let source = io::Error::other(format!("Redis closes new connections at once: {said}"));
    Error::Unavailable { source: Arc::new(source) }
}

/// What the driver said.
fn of_driver(error: &Error) -> Option<&RedisError> {
    match error {
        Error::Unavailable { source }
        | Error::Unknown { source }
        | Error::Full { source }
        | Error::Denied { source }
        | Error::Forbidden { source }
        | Error::Refused { source } => source.downcast_ref(),
        Error::Address(_) | Error::Invalid(_) | Error::TooLarge { .. } | Error::Closed => None,
    }
}

/// Whether a script was refused only because the server does not know it; nothing was done.
pub(super) fn is_unknown_script(error: &Error) -> bool {
    let Error::Refused { source } = error else { return false };
    source.downcast_ref::<RedisError>().is_some_and(|error| error.code() == Some("NOSCRIPT"))
}

/// The answer is none that this command gives.
pub(super) fn unreadable() -> Error {
    let source = io::Error::new(io::ErrorKind::InvalidData, "the answer cannot be read");
    Error::Refused { source: Arc::new(source) }
}

fn of_io(error: RedisError, effect: Effect) -> Error {
    match io_kind(&error) {
        Some(io::ErrorKind::InvalidData) if error.to_string().contains(OF_AUTHORITY) => {
            Error::Refused { source: Arc::new(AuthoritysOwn(error)) }
        }
        // A certificate that is not trusted, or a server that does not speak TLS.
        Some(io::ErrorKind::InvalidData) => Error::Refused { source: Arc::new(error) },
        Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected) => {
            Error::Unavailable { source: Arc::new(error) }
        }
        _ => lost(effect, Arc::new(error)),
    }
}

fn io_kind(error: &RedisError) -> Option<io::ErrorKind> {
    let source = std::error::Error::source(error)?;
    let shared = source.downcast_ref::<Cause>().and_then(|cause| cause.downcast_ref::<io::Error>());
    shared.or_else(|| source.downcast_ref()).map(io::Error::kind)
}

fn lost(effect: Effect, source: Cause) -> Error {
    match effect {
        Effect::Reads => Error::Unavailable { source },
        Effect::Writes => Error::Unknown { source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> RedisError {
        redis::parse_redis_value(line.as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn each_failure_says_whether_anything_was_done_and_whether_to_ask_again() {
        let of_line = |line| of(said(line), Effect::Writes);
        for line in ["-LOADING x\r\n", "-CLUSTERDOWN x\r\n", "-READONLY x\r\n", "-MISCONF x\r\n"] {
            let error = of_line(line);
            assert!(matches!(error, Error::Unavailable { .. }) && error.is_retryable(), "{line}: {error:?}");
        }
        for line in ["-NOAUTH x\r\n", "-WRONGPASS x\r\n"] {
            let error = of_line(line);
            assert!(matches!(error, Error::Denied { .. }) && !error.is_retryable(), "{line}: {error:?}");
        }
        for line in [
            "-NOPERM x\r\n",
            "-ERR ACL failure in script: User u has no permissions to run the 'xadd' command\r\n",
            "-@user_script: 1: The user executing the script can't run this command or subcommand\r\n",
        ] {
            let error = of_line(line);
            assert!(matches!(error, Error::Forbidden { .. }) && !error.is_retryable(), "{line}: {error:?}");
        }
        assert!(matches!(of_line("-OOM x\r\n"), Error::Full { .. }));
        let refused = of_line("-ERR unknown command\r\n");
        assert!(matches!(refused, Error::Refused { .. }) && !is_unknown_script(&refused));
        assert!(is_unknown_script(&of_line("-NOSCRIPT No matching script.\r\n")));
        for line in ["-READONLY x\r\n", "-MISCONF x\r\n", "-OOM x\r\n", "-NOREPLICAS x\r\n", "-NOPERM x\r\n"]
        {
            assert!(is_servers_word(&of_line(line)), "{line}");
        }
        assert!(!is_servers_word(&timed_out(Effect::Writes)) && !is_servers_word(&not_connected()));
        let io = |kind| RedisError::from(io::Error::from(kind));
        let broken = of(io(io::ErrorKind::BrokenPipe), Effect::Writes);
        assert!(broken.may_have_run() && broken.is_retryable() && !is_servers_word(&broken));
        assert!(!of(io(io::ErrorKind::BrokenPipe), Effect::Reads).may_have_run());
        assert!(!of(io(io::ErrorKind::ConnectionRefused), Effect::Writes).may_have_run());
        assert!(!of(io(io::ErrorKind::InvalidData), Effect::Writes).is_retryable(), "a bad certificate");
        assert!(timed_out(Effect::Writes).may_have_run());
        assert!(!not_connected().may_have_run() && not_connected().is_retryable());
    }

    #[test]
    fn that_the_last_try_did_nothing_does_not_say_so_of_those_before_it() {
        let last = |line, effect| of_last_try(of(said(line), effect), effect);
        for line in ["-CLUSTERDOWN x\r\n", "-MOVED 1 h:1\r\n", "-ASK 1 h:1\r\n", "-READONLY x\r\n"] {
            let write = last(line, Effect::Writes);
            assert!(write.may_have_run(), "{line}: {write:?}");
            assert!(matches!(last(line, Effect::Reads), Error::Unavailable { .. }), "{line}");
        }
        assert!(is_servers_word(&last("-READONLY x\r\n", Effect::Writes)));
        assert!(matches!(last("-NOPERM x\r\n", Effect::Writes), Error::Forbidden { .. }));
        let unknown_script = last("-NOSCRIPT No matching script.\r\n", Effect::Writes);
        assert!(is_unknown_script(&unknown_script), "the script is sent with its text");
    }

    #[test]
    fn a_server_of_a_cluster_that_does_not_serve_its_keys_is_named_and_not_the_hash_slot() {
        for slot in [8065, 9094] {
            let error = of(said(&format!("-MOVED {slot} 127.0.0.1:26602\r\n")), Effect::Reads);
            let (source, is_retryable) = (std::error::Error::source(&error).unwrap(), error.is_retryable());
            let expected = "the Redis Cluster's server 127.0.0.1:26602 does not serve its keys";
            assert!(source.to_string() == expected && is_retryable, "{error}");
        }
    }

    #[test]
    fn that_no_server_is_connected_to_is_explained_by_what_one_of_them_says() {
        let driver = |kind| of(RedisError::from((kind, "No connections found")), Effect::Writes);
        assert!(is_unexplained(&driver(ErrorKind::ClusterConnectionNotFound)));
        assert!(is_unexplained(&driver(ErrorKind::Io)), "of the first connections");
        let refused = of(RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused)), Effect::Reads);
        for explained in [&refused, &timed_out(Effect::Reads), &of(said("-NOAUTH x\r\n"), Effect::Reads)] {
            assert!(!is_unexplained(explained), "{explained}");
        }
        assert!(is_of_connection(&refused) && !is_of_connection(&timed_out(Effect::Reads)));
        let away = at("h:1".to_owned(), refused);
        assert!(away.is_retryable() && away.to_string().contains("h:1: "), "{away}");
        let denied = at("h:1".to_owned(), of(said("-WRONGPASS x\r\n"), Effect::Reads));
        assert!(matches!(denied, Error::Denied { .. }), "{denied:?}");
    }

    #[test]
    fn the_source_is_kept() {
        let error = of(said("-NOAUTH Authentication required.\r\n"), Effect::Reads);
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.to_string().contains("NOAUTH"), "{source}");
    }
}
