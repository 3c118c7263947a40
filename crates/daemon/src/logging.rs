//! Logs: structured, to stderr, so that stdout carries the ready line and answers only.
//!
//! A daemon whose log cannot be written (a full disk, a closed pipe) goes on without it, and so does one whose log is not
//! read (a full pipe): then only the thread of [`Queue`] waits for the reader, and a thread that panics, for a moment. So nothing
//! here, and nothing that `serve` runs, prints with `eprintln!`, which panics or waits.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::subscriber::Interest;
use tracing::{Dispatch, Metadata, Subscriber};
use tracing_subscriber::filter::{Directive, LevelFilter, ParseError};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, registry};

use crate::config::Log;
use crate::exit::{Exit, Failure};
use crate::terminal;
use queue::{Limits, Queue};

/// What may wait for the reader of standard error: some 16,000 lines, or 8 MiB where they are long.
const QUEUE_MAX: Limits = Limits { lines: 1 << 14, bytes: 8 << 20 };
/// How long the end of the process waits for the reader to take the last lines.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);
/// The same after a panic, which may end the process at once (a panic in a drop that runs during a panic).
const PANIC_FLUSH_MAX: Duration = Duration::from_millis(100);
/// A pipe that can be written takes so many bytes without waiting: `PIPE_BUF` of Linux (pipe(7)).
const AT_ONCE_MAX: usize = 4_096;

/// A driver whose lines about single connections are left out. An outage of the ledger or of the bus has a line of its own; these
/// would be added for each connection, or for each command.
struct Driver {
    /// How the targets of its lines begin.
    target: &'static str,
    /// What the default filter says of it.
    by_default: Option<&'static str>,
    /// The directives that leave lines out.
    without: &'static [&'static str],
}

const DRIVERS: [Driver; 2] = [
    Driver {
        target: "sqlx",
        by_default: Some("sqlx=warn"),
        // At WARN, or at ERROR of a connection that could not be made ready.
        without: &[
            "sqlx_core::pool::connection=error",
            "sqlx_core::pool::inner=off",
            "sqlx::postgres::notice=error",
        ],
    },
    // Whatever it says is about its connections to a Cluster.
    Driver { target: "redis", by_default: None, without: &["redis=off"] },
];

/// The lines on their way to standard error, once logging has started.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Starts logging for the process; once.
///
/// # Errors
/// [`Exit::Config`] for a filter that cannot be read, which checking the configuration refuses earlier; [`Exit::Software`]
/// where the system gives no thread.
pub fn start(log: &Log) -> Result<(), Failure> {
    let filter = filter(&log.filter)
        .map_err(|error| Failure::new(Exit::Config, format!("log.filter = {:?}: {error}", log.filter)))?;
    let terminal = io::stderr().is_terminal();
    let pretty = match log.format.as_str() {
        "pretty" => true,
        "json" => false,
        _ => terminal,
    };
    let queue = Queue::start(QUEUE_MAX, write_at_once, StandardError, move |lost| lost_lines(lost, pretty))
        .map_err(|error| Failure::new(Exit::Software, format!("no thread for the log: {error}")))?;
    let queue = QUEUE.get_or_init(|| queue);
    panic::set_hook(Box::new(move |panic| {
        queue.push(panic_message(panic).as_bytes());
        let _ = queue.flush(PANIC_FLUSH_MAX);
    }));
    let lines = fmt::layer()
        .with_writer(move || Queued(queue))
        // The subscriber would report a line that it could not write by `eprintln!`.
        .log_internal_errors(false);
    let subscriber = if pretty {
        let [no_color, term] = ["NO_COLOR", "TERM"].map(env::var_os);
        let is_coloured = is_coloured(terminal, no_color.as_deref(), term.as_deref());
        subscriber(filter, lines.with_ansi(is_coloured))
    } else {
        subscriber(filter, lines.json().flatten_event(true))
    };
    subscriber.init();
    Ok(())
}

/// Whether lines have colours: on a terminal that has them, by its `TERM`, unless `NO_COLOR` is set, and not empty
/// (<https://no-color.org>).
fn is_coloured(is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// What takes the lines that the filter lets pass.
fn subscriber(filter: EnvFilter, lines: impl Layer<Registry> + Send + Sync) -> Dispatch {
    // Directives that name spans do so in brackets.
    let names_spans = filter.to_string().contains('[');
    let lines = registry().with(lines);
    if names_spans { lines.with(filter).into() } else { lines.with(WithoutSpans(filter)).into() }
}

/// A filter whose directives name no span. It need not hear when spans begin, are entered and end: the library's takes a lock
/// each time, to find out that none of them concerns it, and every request has a span that is entered several times.
struct WithoutSpans(EnvFilter);

impl<S: Subscriber> Layer<S> for WithoutSpans {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        Layer::<S>::register_callsite(&self.0, metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.0.enabled(metadata, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.0.max_level_hint()
    }
}

/// The filter of this text. It leaves the drivers' lines about connections out, but those of a driver of which the text says
/// something else than the default does.
fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    let mut filter = EnvFilter::builder().parse(text)?;
    for driver in &DRIVERS {
        let directives = text.split(',').map(str::trim);
        let mut of_driver = directives.filter(|directive| directive.starts_with(driver.target));
        if of_driver.any(|directive| Some(directive) != driver.by_default) {
            continue;
        }
        for directive in driver.without {
            let directive = directive.parse::<Directive>().expect("it is a directive");
            filter = filter.add_directive(directive);
        }
    }
    Ok(filter)
}

/// Prints a failure to standard error, unless it was printed already. It is lost where standard error cannot be written.
pub fn print_failure(failure: &Failure) {
    if failure.message.is_empty() {
        return;
    }
    let line = failure_line(failure);
    match QUEUE.get() {
        Some(queue) => queue.push(line.as_bytes()),
        // Never an error, see below.
        None => drop(StandardError.write_all(line.as_bytes())),
    }
}

/// The lines of a failure. A text of somebody else in them moves no cursor.
fn failure_line(failure: &Failure) -> String {
    let message = failure.message.replace(|c: char| terminal::is_obeyed(c) && c != '\n', " ");
    format!("fencepost: {message}\n")
}

/// Waits until the log is written, for a short while at most. Every end of the process comes through here.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        let _ = queue.flush(FLUSH_MAX);
    }
}

/// Calls [`flush`] on drop, also where a panic ends `main`.
pub struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        flush();
    }
}

/// The line that says how many lines were lost. No filter hides it.
fn lost_lines(lost: u64, pretty: bool) -> Vec<u8> {
    const TARGET: &str = module_path!();
    const MESSAGE: &str = "lines of the log were lost, because nobody read standard error for too long";
    let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
    let line = if pretty {
        format!("{now}  WARN {TARGET}: {MESSAGE} lost={lost}\n")
    } else {
        let line =
            json!({"timestamp": now, "level": "WARN", "message": MESSAGE, "lost": lost, "target": TARGET});
        format!("{line}\n")
    };
    line.into_bytes()
}

/// What the standard library would print, which would wait for the reader.
fn panic_message(panic: &panic::PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    // Only with RUST_BACKTRACE.
    let backtrace = Backtrace::capture();
    let backtrace = match backtrace.status() {
        BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}\n"),
        _ => String::new(),
    };
    format!("\nthread '{name}' {panic}\n{backtrace}")
}

/// Writes a line to standard error if that waits for no reader; whether it did. Without a reader the line is dropped.
fn write_at_once(line: &[u8]) -> bool {
    let stderr = io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    let has_room = line.len() <= AT_ONCE_MAX
        && poll(&mut ready, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
    if has_room {
        let _ = stderr.lock().write_all(line);
    }
    has_room
}

/// Puts each line into the queue.
struct Queued(&'static Queue);

impl Write for Queued {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error without its failures: what cannot be written is dropped.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_the_drivers_say_of_connections_is_left_out_unless_the_filter_asks_for_it() {
        for (text, is_shown, is_redis_shown) in [
            (Log::default().filter.as_str(), false, false),
            ("info,api::gate=debug,actix_server=warn,sqlx=warn", false, false),
            ("debug", false, false),
            ("info,bus::redis=debug", false, false),
            ("info,sqlx=info", true, false),
            ("info,sqlx=warn,sqlx::postgres::notice=warn,sqlx_core::pool=warn", true, false),
            ("info,redis=warn", false, true),
            ("info,sqlx=warn,redis::cluster_handling=warn", false, true),
        ] {
            let lines = subscriber(filter(text).unwrap(), fmt::layer().with_writer(io::sink));
            tracing::dispatcher::with_default(&lines, || {
                let notice = tracing::enabled!(target: "sqlx::postgres::notice", tracing::Level::WARN);
                let release = tracing::enabled!(target: "sqlx_core::pool::connection", tracing::Level::WARN);
                let unready = tracing::enabled!(target: "sqlx_core::pool::inner", tracing::Level::ERROR);
                let statement = tracing::enabled!(target: "sqlx::query", tracing::Level::WARN);
                assert_eq!(
                    (notice, release, unready, statement),
                    (is_shown, is_shown, is_shown, true),
                    "{text}"
                );
                let cluster = tracing::enabled!(
                    target: "redis::cluster_handling::async_connection",
                    tracing::Level::WARN
                );
                assert_eq!(cluster, is_redis_shown, "{text}");
            });
        }
    }

    #[test]
    fn a_directive_that_names_a_span_counts_in_that_span() {
        for (text, in_it, beside_it) in [
            ("info", false, false),
            ("debug", true, true),
            ("info,[request]=debug", true, false),
            ("info,[request{method=POST}]=debug", true, false),
            ("info,[request{method=GET}]=debug", false, false),
        ] {
            let lines = subscriber(filter(text).unwrap(), fmt::layer().with_writer(io::sink));
            tracing::dispatcher::with_default(&lines, || {
                let is_shown = || tracing::enabled!(tracing::Level::DEBUG);
                let span = tracing::info_span!("request", method = "POST");
                assert_eq!((span.in_scope(is_shown), is_shown()), (in_it, beside_it), "{text}");
            });
        }
    }

    #[test]
    fn lines_have_colours_on_a_terminal_that_has_them_unless_the_user_wants_none() {
        for (is_terminal, no_color, term, expected) in [
            (true, None, None, true),
            (true, None, Some("xterm-256color"), true),
            (true, Some(""), Some("xterm"), true),
            (true, Some("1"), Some("xterm"), false),
            (true, Some("0"), None, false),
            (true, None, Some("dumb"), false),
            (false, None, Some("xterm"), false),
        ] {
            let found = is_coloured(is_terminal, no_color.map(OsStr::new), term.map(OsStr::new));
            assert_eq!(found, expected, "{is_terminal} {no_color:?} {term:?}");
        }
    }

    #[test]
    fn a_failure_keeps_its_lines_and_moves_no_cursor() {
        let failure =
            Failure::new(Exit::Refused, "the answer was lost: \u{1b}[2Ja\rb\u{9b}2J\u{202e}\n  Try again.");
        assert_eq!(failure_line(&failure), "fencepost: the answer was lost:  [2Ja b 2J \n  Try again.\n");
    }

    #[test]
    fn the_count_of_lost_lines_has_the_form_of_the_log() {
        let line = lost_lines(7, false);
        let line: Value = serde_json::from_slice(line.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!((&line["lost"], &line["level"]), (&json!(7), &json!("WARN")), "{line}");
        let line = String::from_utf8(lost_lines(7, true)).unwrap();
        assert!(line.contains(" WARN ") && line.ends_with(" lost=7\n"), "{line}");
    }
}
