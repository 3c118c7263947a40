//! The exit statuses, in one place, and the failure that carries one to `main`.
//!
//! What lives here: the status of each failure of the configuration, the ledger, the bus and the client. All other failures
//! get theirs from the code that fails.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use ledger::Unwritable;
use rustix::process::geteuid;

use crate::config::redact;

/// The meaning of the process's exit status. 64 to 78 follow the convention of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success; also the end of a daemon after SIGTERM or SIGINT.
    Done = 0,
    /// The server refused.
    Refused = 1,
    /// Wrong usage; clap's own status.
    Usage = 2,
    /// A needed service, or the server that a command calls, could not be reached in time.
    Unavailable = 69,
    /// A defect.
    Software = 70,
    /// What a command answers could not be written.
    Output = 74,
    /// A node ends because its attempts fail one after the other.
    Failing = 75,
    /// The configuration, or a resource that it names, prevents the start.
    Config = 78,
    /// A second SIGINT cut the drain short.
    Interrupted = 130,
    /// A second SIGTERM cut the drain short.
    Terminated = 143,
}

impl Exit {
    /// The number.
    pub const fn status(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.status())
    }
}

/// Why the process ends early, and with which status.
#[derive(Debug)]
pub struct Failure {
    /// The status.
    pub exit: Exit,
    /// For people, without secrets. Empty if the message was printed already.
    pub message: String,
}

impl Failure {
    /// Ends with this status after this message.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string() }
    }

    /// The failure of what asked the ledger of this URL. If the database was not reached, or has refused, it names the URL,
    /// without secrets, and what may be the matter where a server gives no connection.
    pub fn of_ledger(error: ledger::Error, url: &str) -> Self {
        let is_of_server = match &error {
            ledger::Error::Unavailable { .. }
            | ledger::Error::Unknown { .. }
            | ledger::Error::Aborted { .. }
            | ledger::Error::Refused { .. } => true,
            ledger::Error::Impossible(_)
            | ledger::Error::Migration(_)
            | ledger::Error::Unprepared(_)
            | ledger::Error::InUse { .. }
            | ledger::Error::WentBack
            | ledger::Error::Address(_)
            | ledger::Error::File { .. } => false,
        };
        let is_without_connection =
            error.lacks_connection() && ledger::Kind::of(url).is_ok_and(ledger::Kind::is_server);
        let mut failure = Self::from(error);
        if is_without_connection {
            failure.message += "\n  No connection was had in time: the server does not answer, or has none left \
                                (max_connections), or a pooler before it has none (default_pool_size in PgBouncer).";
        }
        if is_of_server { failure.at("ledger", "ledger.url", url) } else { failure }
    }

    /// The same of the bus.
    pub fn of_bus(error: bus::Error, url: &str) -> Self {
        let is_of_server = match &error {
            bus::Error::Unavailable { .. }
            | bus::Error::Unknown { .. }
            | bus::Error::Full { .. }
            | bus::Error::Denied { .. }
            | bus::Error::Forbidden { .. }
            | bus::Error::Refused { .. } => true,
            bus::Error::Address(_)
            | bus::Error::Invalid(_)
            | bus::Error::TooLarge { .. }
            | bus::Error::Closed => false,
        };
        let failure = Self::from(error);
        if is_of_server { failure.at("bus", "bus.redis_url", url) } else { failure }
    }

    fn at(self, what: &str, key: &str, url: &str) -> Self {
        let message = format!("{}\n  The {what} is {} ({key}).", self.message, redact::url(url));
        Self { message, ..self }
    }
}

impl From<crate::config::Refused> for Failure {
    fn from(refused: crate::config::Refused) -> Self {
        Self::new(Exit::Config, refused)
    }
}

impl From<ledger::Error> for Failure {
    /// Maps a failure at the start: one that may end by itself is an unreachable service, one that needs a
    /// person is configuration.
    fn from(error: ledger::Error) -> Self {
        let exit = match &error {
            _ if matches!(
                Unwritable::why(&error),
                Some(Unwritable::Denied | Unwritable::Incomplete | Unwritable::Corrupt)
            ) =>
            {
                Exit::Config
            }
            ledger::Error::Unavailable { .. }
            | ledger::Error::Unknown { .. }
            | ledger::Error::Aborted { .. } => Exit::Unavailable,
            ledger::Error::Refused { .. }
            | ledger::Error::Migration(_)
            | ledger::Error::Unprepared(_)
            | ledger::Error::InUse { .. }
            | ledger::Error::Address(_)
            | ledger::Error::File { .. } => Exit::Config,
            ledger::Error::Impossible(_) | ledger::Error::WentBack => Exit::Software,
        };
        if matches!(error, ledger::Error::InUse { .. }) {
            let next = "Stop that process first, or start this one in a folder of its own, where its ledger and its witness file are.";
            return Self::new(exit, format!("{error}\n  {next}"));
        }
        if let ledger::Error::File { path, source } = &error
            && source.kind() == std::io::ErrorKind::PermissionDenied
        {
            return Self::new(exit, format!("{error}\n  {}", owners(Path::new(path))));
        }
        Self::new(exit, error)
    }
}

/// Whose a file is that this process may not use, or the folder that it would be in, and who this process is.
fn owners(path: &Path) -> String {
    // The folder of a relative path may be this one.
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = whole.ancestors().find_map(|place| Some((place, std::fs::metadata(place).ok()?)));
    let of_file = found.map(|(place, found)| {
        let (user, mode) = (found.uid(), found.mode() & 0o7777);
        format!(", and {} is the user {user}'s, with the mode {mode:04o}", place.display())
    });
    format!(
        "This process is the user {}{}. The ledger's files are to be the daemon's user's: give them to it (chown), and run \
         commands about the ledger as that user.",
        geteuid().as_raw(),
        of_file.unwrap_or_default()
    )
}

impl From<bus::Error> for Failure {
    /// At the start, as for the ledger.
    fn from(error: bus::Error) -> Self {
        let exit = match &error {
            bus::Error::Unavailable { .. } | bus::Error::Unknown { .. } | bus::Error::Full { .. } => {
                Exit::Unavailable
            }
            bus::Error::Denied { .. }
            | bus::Error::Forbidden { .. }
            | bus::Error::Refused { .. }
            | bus::Error::Address(_)
            | bus::Error::Invalid(_)
            | bus::Error::TooLarge { .. } => Exit::Config,
            bus::Error::Closed => Exit::Software,
        };
        Self::new(exit, error)
    }
}

impl From<client::Error> for Failure {
    /// Maps the failure of a client command.
    fn from(error: client::Error) -> Self {
        match &error {
            client::Error::Refused(_) => Self::new(Exit::Refused, error),
            client::Error::Unreachable { url, reason, others, .. } => {
                let next = match tls_options(reason) {
                    Some(options) => format!("\n  {options}."),
                    // Somebody is there, and the reason says how to speak to it, or what is wrong with it.
                    None if ["https://", OF_CERTIFICATE].iter().any(|words| reason.contains(words)) => {
                        String::new()
                    }
                    None if !others.is_empty() => format!(
                        "\n  None of these {} URLs could be reached. Is a daemon running at one of them? `fencepost serve` \
                         starts one; --url (or FENCEPOST_URL) names others.",
                        others.len() + 1
                    ),
                    None => format!(
                        "\n  Is a daemon running at {url}? `fencepost serve` starts one; --url (or FENCEPOST_URL) names \
                         another."
                    ),
                };
                Self::new(Exit::Unavailable, format!("{error}{next}"))
            }
            client::Error::Unusable(_) => Self::new(Exit::Usage, error),
            // The answer was lost, or is not Fencepost's.
            _ => Self::new(Exit::Unavailable, error),
        }
    }
}

/// What the client library says of each certificate of a server that it refuses.
const OF_CERTIFICATE: &str = "the server's certificate";

/// The options that help where TLS gives no connection for this reason of the client library; `None` where none does.
pub fn tls_options(reason: &str) -> Option<&'static str> {
    const OPTIONS: [(&str, &str); 2] = [
        ("client certificate", "--cert and --cert-key (or FENCEPOST_CERT and FENCEPOST_CERT_KEY) name it"),
        ("signed by no authority", "--ca (or FENCEPOST_CA) names the file with its authority"),
    ];
    OPTIONS.iter().find(|(words, _)| reason.contains(words)).map(|(_, options)| *options)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    /// The message where a daemon is not reached for this reason.
    fn unreached(url: &str, reason: &str) -> String {
        unreached_with(url, reason, &[])
    }

    /// The same where it was reached at none of these other URLs either.
    fn unreached_with(url: &str, reason: &str, others: &[&str]) -> String {
        let (url, reason) = (url.to_owned(), reason.to_owned());
        let others = others.iter().map(|other| (*other).to_owned()).collect();
        let failure = Failure::from(client::Error::Unreachable { url, reason, others, source: "?".into() });
        assert_eq!(failure.exit, Exit::Unavailable);
        failure.message
    }

    #[test]
    fn statuses_are_what_scripts_rely_on() {
        let statuses =
            [Exit::Done, Exit::Refused, Exit::Usage, Exit::Unavailable, Exit::Config].map(Exit::status);
        assert_eq!(statuses, [0, 1, 2, 69, 78]);
    }

    #[test]
    fn the_page_explains_every_status() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("| exit status | meaning |\n").unwrap();
        let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        let explained: Vec<&str> = cells.flat_map(|cell| cell.split(", ")).collect();
        for exit in [
            Exit::Done,
            Exit::Refused,
            Exit::Usage,
            Exit::Unavailable,
            Exit::Software,
            Exit::Output,
            Exit::Failing,
            Exit::Config,
            Exit::Interrupted,
            Exit::Terminated,
        ] {
            assert!(explained.contains(&exit.status().to_string().as_str()), "{exit:?}: {explained:?}");
        }
    }

    #[test]
    fn a_ledger_failure_that_needs_a_person_is_configuration() {
        let in_use = ledger::Error::InUse { path: "a.db".to_owned(), pid: "42".to_owned() };
        let failure = Failure::from(in_use);
        assert_eq!(failure.exit, Exit::Config);
        assert!(failure.message.contains("42") && failure.message.contains("a.db"));
        assert_eq!(Failure::from(ledger::Error::Migration("newer".to_owned())).exit, Exit::Config);
        assert_eq!(Failure::from(ledger::Error::Address("?".to_owned())).exit, Exit::Config);
        assert_eq!(Failure::from(ledger::Error::Impossible("?".into())).exit, Exit::Software);
    }

    #[test]
    fn a_file_of_the_ledger_that_is_denied_is_named_with_its_owner_and_that_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("ledger.db.lock");
        std::fs::write(&lock, "").unwrap();
        std::fs::set_permissions(&lock, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        let message = |path: &Path, kind: io::ErrorKind| {
            let source = Arc::new(io::Error::from(kind));
            Failure::from(ledger::Error::File { path: path.display().to_string(), source }).message
        };
        let denied = message(&lock, io::ErrorKind::PermissionDenied);
        let user = geteuid().as_raw();
        let whose =
            format!("the user {user}, and {} is the user {user}'s, with the mode 0640", lock.display());
        assert!(denied.contains(&whose) && denied.contains("chown"), "{denied}");
        let missing = message(&folder.path().join("none/copy.db"), io::ErrorKind::PermissionDenied);
        let whose = format!("and {} is the user {user}'s", folder.path().display());
        assert!(missing.contains(&whose), "{missing}");
        let here = std::env::current_dir().unwrap();
        let relative = message(Path::new("none.db.lock"), io::ErrorKind::PermissionDenied);
        assert!(relative.contains(&format!("and {} is the user ", here.display())), "{relative}");
        assert!(!message(&lock, io::ErrorKind::StorageFull).contains("chown"));
    }

    #[test]
    fn a_server_that_was_not_reached_or_refuses_is_named_with_its_key_and_without_its_password() {
        let said = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let url = "postgres://u:hunter2@db/f";
        for error in [ledger::Error::unavailable(said()), ledger::Error::refused(said())] {
            let message = Failure::of_ledger(error, url).message;
            assert!(message.ends_with("\n  The ledger is postgres://u:***@db/f (ledger.url)."), "{message}");
        }
        // It says by itself which one is meant, and what to do.
        let failure = Failure::of_ledger(ledger::Error::Unprepared("CREATE ROLE x;".to_owned()), url);
        assert_eq!(failure.message, "CREATE ROLE x;");
        let denied = bus::Error::Denied { source: Arc::new(said()) };
        let failure = Failure::of_bus(denied, "redis://:hunter2@r:6379");
        let ends = "\n  The bus is redis://:***@r:6379 (bus.redis_url).";
        assert!(failure.exit == Exit::Config && failure.message.ends_with(ends), "{failure:?}");
    }

    #[test]
    fn who_speaks_tls_to_a_request_in_http_is_not_asked_whether_it_runs() {
        let message = unreached("http://h:1", "what answers there speaks TLS, not HTTP: use https://h:1");
        assert!(message.ends_with("use https://h:1"), "{message}");
        assert!(unreached("http://h:1", "Connection refused").contains("Is a daemon running at http://h:1?"));
    }

    #[test]
    fn where_none_of_several_daemons_is_reached_all_are_named_and_counted() {
        let message = unreached_with("http://c:1", "Connection refused", &["http://a:1", "http://b:1"]);
        let (said, next) = message.split_once('\n').unwrap();
        assert_eq!(said, "no connection to http://c:1: Connection refused; nor to http://a:1, http://b:1");
        assert!(
            next.starts_with("  None of these 3 URLs could be reached. Is a daemon running at one"),
            "{next}"
        );
        let secured = "what answers there speaks TLS, not HTTP: use https://c:1";
        let message = unreached_with("http://c:1", secured, &["http://a:1"]);
        assert!(message.ends_with("use https://c:1; nor to http://a:1"), "{message}");
    }

    #[test]
    fn who_shows_a_certificate_is_not_asked_whether_it_runs_and_the_option_is_named() {
        for (reason, ends) in [
            (
                "the server's certificate is signed by no authority that is trusted here (x)",
                "--ca (or FENCEPOST_CA) names the file with its authority.",
            ),
            ("the server's certificate has expired (x)", "has expired (x)"),
            ("the server's certificate is for another name (x)", "is for another name (x)"),
            ("the server demands a client certificate (x)", "FENCEPOST_CERT_KEY) name it."),
        ] {
            let message = unreached("https://h:1", reason);
            assert!(message.ends_with(ends) && !message.contains("Is a daemon running"), "{message}");
        }
    }

    #[test]
    fn a_refusal_exits_1_and_wrong_usage_2() {
        let problem = wire::Problem::new(wire::Code::NotFound, "no such signer");
        let refused = Failure::from(client::Error::Refused(Box::new(problem)));
        assert_eq!((refused.exit, refused.message.as_str()), (Exit::Refused, "not_found: no such signer"));
        assert_eq!(Failure::from(client::Error::Unusable(String::new())).exit, Exit::Usage);
    }
}
