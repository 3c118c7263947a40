//! How answers and refusals are printed: aligned columns for people, one JSON value for programs.
//! Answers go to stdout, refusals to stderr.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use client::Error;
use client::wire::jobs::Route;
use client::wire::problem::GrantedBefore;
use client::wire::{Code, List, Problem};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

use crate::exit::{Exit, Failure};
use crate::terminal;

/// Printed in place of a missing value.
pub const NONE: &str = "-";

/// The delay between two looks whether what is printed still has a reader.
const READER_EVERY: Duration = Duration::from_secs(1);

/// The most nonces of an earlier grant that its refused repetition shows.
const GRANTED_SHOWN_MAX: usize = 5;

/// Why an answer could not be written, if that was not for want of a reader.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

/// Prints a text; `false` if nobody reads it, or it cannot be written.
pub fn print(text: &str) -> bool {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match printed {
        Ok(()) => true,
        // A reader that closed the pipe has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
        Err(error) => {
            let _ = UNWRITTEN.set(error);
            false
        }
    }
}

/// Whether what is printed may still be read. A pipe whose reader has closed it has none, which a print notices only where it has
/// something to print.
pub fn has_reader() -> bool {
    may_be_read(&io::stdout())
}

/// Ends once what is printed has no reader.
pub async fn reader_gone() {
    while has_reader() {
        tokio::time::sleep(READER_EVERY).await;
    }
}

fn may_be_read(output: &impl AsFd) -> bool {
    // Errors, and that the other end is gone, are reported without being asked for.
    let mut polled = [PollFd::new(output, PollFlags::empty())];
    let _ = poll(&mut polled, Some(&Timespec::default()));
    !polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Prints a text for people to stderr. It is lost where stderr cannot be written: what the command does counts.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// How a command ends that has nothing else to complain of.
///
/// # Errors
/// [`Exit::Output`] if an answer of it could not be written.
pub fn all_written() -> Result<(), Failure> {
    let complaint = |error| Failure::new(Exit::Output, format!("the answer could not be written: {error}"));
    UNWRITTEN.get().map_or(Ok(()), |error| Err(complaint(error)))
}

/// An answer as JSON on one line, without its end. Values that others wrote have the blanks that they were written with, so line
/// breaks too; in JSON these are never within a text.
pub fn json<T: Serialize>(answer: &T) -> String {
    let text = serde_json::to_string(answer).expect("answers are plain data");
    escaped(&text.replace(['\n', '\r'], " "))
}

/// The same value as this JSON text, with what a terminal would obey escaped. JSON itself has the controls of ASCII escaped but
/// for U+007F; all others are within texts, too. Between its values a carriage return may stand.
pub fn escaped(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for char in json.chars() {
        if char >= '\u{7f}' && terminal::is_obeyed(char) {
            let _ = write!(shown, "\\u{:04x}", u32::from(char));
        } else {
            shown.push(if char == '\r' { ' ' } else { char });
        }
    }
    shown
}

/// Prints an answer: as JSON if asked, else as `people` renders it.
pub fn answer<T: Serialize>(json: bool, answer: &T, people: impl FnOnce(&T) -> String) {
    let _ = print(&if json { self::json(answer) + "\n" } else { people(answer) });
}

/// What a command is about, where its refusals name it.
#[derive(Clone, Copy, Debug, Default)]
pub struct About<'a> {
    /// The task, as the caller named it.
    pub task: Option<&'a str>,
    /// The stage of it, as the caller named it.
    pub stage: Option<&'a str>,
    /// Where it is one of several things of which the caller named the ids: its id.
    pub id: Option<&'a str>,
    /// Whether it asks what the daemon lacks, so that the refusal is the answer.
    pub is_readiness: bool,
}

impl<'a> About<'a> {
    /// Nothing that refusals name.
    pub const NOTHING: Self = Self { task: None, stage: None, id: None, is_readiness: false };

    /// What the daemon lacks.
    pub const READINESS: Self = Self { is_readiness: true, ..Self::NOTHING };

    /// A task.
    pub const fn task(task: &'a str) -> Self {
        Self { task: Some(task), ..Self::NOTHING }
    }

    /// One of several things.
    pub const fn one(id: &'a str) -> Self {
        Self { id: Some(id), ..Self::NOTHING }
    }
}

/// Prints what a call came to: its answer as [`answer`] does, or its failure as [`failure`] does.
///
/// # Errors
/// The failure.
pub fn answered<T: Serialize>(
    json: bool,
    answered: Result<T, Error>,
    people: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let answered = answered.map_err(|error| failure(json, error))?;
    answer(json, &answered, people);
    Ok(())
}

/// A failure for programs.
#[derive(Serialize)]
struct Document<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(flatten)]
    failure: &'a T,
}

/// A failure without a problem document, for programs.
#[derive(Serialize)]
struct Other {
    error: String,
}

/// The failure of a call: with `--json` it is printed to stderr here, as the problem document.
pub fn failure(json: bool, error: Error) -> Failure {
    failure_about(About::NOTHING, json, error)
}

/// The same of a call of a command that is about something.
pub fn failure_about(about: About<'_>, json: bool, error: Error) -> Failure {
    if json {
        match &error {
            Error::Refused(problem) => document(about.id, problem.as_ref()),
            other => document(about.id, &Other { error: other.to_string() }),
        }
        return Failure { message: String::new(), ..Failure::from(error) };
    }
    let mut failure = match &error {
        Error::Refused(refused) => Failure { message: problem(refused, about), ..Failure::from(error) },
        _ => Failure::from(error),
    };
    if let Some(id) = about.id {
        failure.message.insert_str(0, &format!("{id}: "));
    }
    failure
}

/// A failure about one thing that is no call's own: with `--json` it is printed to stderr here.
pub fn failed(json: bool, id: &str, exit: Exit, message: String) -> Failure {
    if !json {
        return Failure { exit, message };
    }
    document(Some(id), &Other { error: message });
    Failure { exit, message: String::new() }
}

/// Prints a failure for programs to stderr, with the id of what it is about.
fn document<T: Serialize>(id: Option<&str>, failure: &T) {
    note(&(json(&Document { id, failure }) + "\n"));
}

/// Says which of several things were not tried, since the daemon of one of them did not answer: with `--json` to stderr, else
/// behind the failure of that one.
pub fn not_tried(json: bool, ids: &[String], failure: &mut Failure) {
    if json {
        let other = Other { error: "not tried".to_owned() };
        ids.iter().for_each(|id| document(Some(id), &other));
    } else if !ids.is_empty() {
        let _ = write!(failure.message, "\n  not tried: {}", ids.join(", "));
    }
}

/// A refusal in a few lines.
fn problem(problem: &Problem, about: About<'_>) -> String {
    let mut text = one_line(&format!("refused: {}: {}", problem.code, problem.detail));
    let mut more = Vec::new();
    if let Some(owner) = &problem.owner {
        more.push(format!("owner {owner}"));
    }
    if let Some(url) = &problem.owner_url {
        more.push(format!("at {url}"));
    }
    if let Some(ms) = problem.expires_in_ms {
        more.push(format!("lease runs for {}", length(ms)));
    }
    if let Some(ms) = problem.retry_after_ms {
        more.push(format!("try again in {}", length(ms)));
    }
    let locker = [("tenant", &problem.tenant), ("plan", &problem.plan), ("task", &problem.task)];
    for (name, id) in locker.into_iter().filter(|_| problem.tenant.is_some()) {
        more.extend(id.as_ref().map(|id| format!("{name} {id}")));
    }
    let before = problem.granted_before.as_deref().unwrap_or_default();
    let held = |it: &GrantedBefore| format!("nonce {} had the hold {}", it.nonce, it.hold);
    more.extend(before.iter().take(GRANTED_SHOWN_MAX).map(held));
    if before.len() > GRANTED_SHOWN_MAX {
        more.push(format!("{} in all, with --json", before.len()));
    }
    for (name, check) in problem.checks.iter().flatten() {
        let detail = check.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
        more.push(format!("{name}: {}{detail}", check.status));
    }
    if !problem.request_id.is_empty() {
        more.push(format!("request {}", problem.request_id));
    }
    if !more.is_empty() {
        let _ = write!(text, "\n  {}", one_line(&more.join(", ")));
    }
    let code = problem.known_code();
    // Who asks what the daemon lacks is not sent to the same command.
    let is_asked =
        |code: &Code| about.is_readiness && matches!(code, Code::LedgerUnavailable | Code::ClockBehind);
    // A grant of more than the whole window has no room either when nonces come free; the detail says what helps.
    let is_too_much = |code: &Code| *code == Code::WindowFull && problem.retry_after_ms.is_none();
    let general = || {
        let code = code.filter(|code| !is_asked(code) && !is_too_much(code));
        code.and_then(next_step).map(str::to_owned)
    };
    let step = code.and_then(|code| step_about(code, problem, about)).or_else(general);
    if let Some(step) = step {
        let _ = write!(text, "\n  {step}");
    }
    text
}

/// The same about a task.
fn step_about(code: Code, problem: &Problem, about: About<'_>) -> Option<String> {
    match code {
        // A daemon of the last release does not name them.
        Code::StageUnknown => {
            let task = problem.task.as_deref().or(about.task).unwrap_or("TASK");
            let stage = problem.stage.map_or_else(|| "STAGE".to_owned(), |number| number.to_string());
            Some(format!(
                "`fencepost plan task {task}` shows the stage; `fencepost plan resolve {task} {stage} done|not_done --reason \
                 TEXT` resolves it."
            ))
        }
        // An instance that starts waits for its bus. Otherwise it lacks one.
        Code::BusUnavailable if about.is_readiness => {
            Some("The start goes on trying; the daemon's log says why it has not been reached.".to_owned())
        }
        Code::Forbidden => {
            let which = match &*problem.detail {
                detail if detail.contains("with the scope ") => {
                    "Use a token with the scope that is named, or ask"
                }
                detail if detail.contains("without patterns") => "Use a token without patterns, or ask",
                // Of what a token may not do at all, or a daemon without tokens.
                _ => return None,
            };
            Some(format!("{which} who runs the daemon for one."))
        }
        // Every release says this of a path that it does not have, and of nothing else.
        Code::NotFound if problem.detail.starts_with("there is no such path;") => Some(
            "The daemon may be older or newer than this command: `fencepost cluster show` names its version."
                .to_owned(),
        ),
        // The task is there, and what is asked of it is not.
        Code::NotFound if problem.detail.starts_with("the task has no ") => {
            let task = about.task.filter(|_| about.stage.is_some())?;
            Some(format!("`fencepost plan task {task}` shows its stages."))
        }
        Code::NotFound => {
            let id = about.task?;
            Some(format!(
                "If {id} is the id of a plan, `fencepost plan show {id}` lists the ids of its tasks."
            ))
        }
        _ => None,
    }
}

/// What a person does next about a refusal, where its `detail` does not say it.
fn next_step(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::Unauthorized => {
            "Give a token with --token or FENCEPOST_TOKEN; `fencepost token new NAME` makes one for the daemon's configuration."
        }
        Code::TenantLocked => "`fencepost tenant show TENANT` shows the lock and what has it.",
        Code::KeyReused => {
            "An option or the file has changed since this key was used. As it was, the request gets the same answer; under \
             another --key it is carried out once more."
        }
        Code::WindowFull => {
            "Nonces come free as they are settled; `fencepost nonce list SIGNER --status held` (or quarantined) shows those that \
             are not. never_sent is only for what was not sent: the next grant gets that nonce."
        }
        Code::Recovering => {
            "`fencepost nonce confirm SIGNER NONCE` confirms the signer's next nonce: above the chain's pending transactions, and \
             above all nonces that senders had, sent or not."
        }
        Code::LedgerWentBack => {
            "`fencepost recover --dry-run`, with the daemon's --database-url or --config, says what `fencepost recover \
             --confirm` would change."
        }
        Code::LedgerUnavailable | Code::ClockBehind => {
            "`fencepost health --ready` says what the daemon lacks."
        }
        Code::BusUnavailable => "Start every instance with the same --redis-url.",
        Code::MethodNotAllowed => {
            "The daemon is older or newer than this command: `fencepost cluster show` names its version."
        }
        _ => return None,
    })
}

/// A length of time in a readable form.
pub fn length(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} days", ms / 86_400_000),
    }
}

/// The value, or a dash if there is none.
pub fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// The texts with this between them, or what stands for none.
pub fn joined(texts: &[impl AsRef<str>], between: &str) -> String {
    let texts: Vec<_> = texts.iter().map(AsRef::as_ref).collect();
    or_none((!texts.is_empty()).then(|| texts.join(between)))
}

/// What a job requires of its node.
pub fn needs(pool: Option<&String>, route: Option<&Route>, requires: &[String]) -> String {
    let pool = pool.map(|pool| format!("pool {pool}"));
    let route = route.map(|route| format!("route {}:{}", route.source, route.target));
    let needs: Vec<_> = pool.into_iter().chain(route).chain(requires.iter().cloned()).collect();
    joined(&needs, ", ")
}

/// A text of a node or a person on one line, without what a terminal would obey.
pub fn one_line(text: &str) -> String {
    text.replace(terminal::is_obeyed, " ")
}

/// Rows under headings, aligned; the last column runs free.
pub fn table<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows = rows.into_iter().map(|row| row.map(|cell| one_line(&cell)));
    let rows: Vec<[String; N]> = std::iter::once(headings.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; N] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].width()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        // Not `{cell:width$}`, which counts characters: a Chinese one takes two columns.
        let line = row.iter().zip(widths).fold(String::new(), |line, (cell, width)| {
            line + cell + &" ".repeat(width.saturating_sub(cell.width()) + 2)
        });
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A page of a list: a row for each item under headings, and how to see the next page.
pub fn list<T, const N: usize>(
    headings: [&str; N],
    list: &List<T>,
    row: impl Fn(&T) -> [String; N],
) -> String {
    table(headings, list.items.iter().map(row)) + &more(list.next_cursor.as_ref())
}

/// Names and values, aligned, one a line.
pub fn card<'a>(lines: impl AsRef<[(&'a str, String)]>) -> String {
    let lines = lines.as_ref();
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines
        .iter()
        .fold(String::new(), |text, (name, value)| text + &format!("{name:width$}  {}\n", one_line(value)))
}

/// How to see the next page, if there is one.
pub fn more(next_cursor: Option<&String>) -> String {
    next_cursor.map(|cursor| format!("… more: --cursor '{cursor}'\n")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use client::wire::{Code, Json};

    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_pipe_is_read_until_its_reader_closes_it_and_a_file_always_may_be() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(may_be_read(&writer));
        drop(reader);
        assert!(!may_be_read(&writer));
        assert!(may_be_read(&tempfile::tempfile().unwrap()));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["1".to_owned(), "HELD".to_owned()], ["1000".to_owned(), "x".to_owned()]];
        assert_eq!(table(["nonce", "status"], rows), "nonce  status\n1      HELD\n1000   x\n");
        let wide = [["你好".to_owned(), "x".to_owned()], ["e\u{301}".to_owned(), "y".to_owned()]];
        assert_eq!(table(["A", "B"], wide), "A     B\n你好  x\ne\u{301}     y\n");
        assert_eq!(card([("a", "1".to_owned()), ("long", "2".to_owned())]), "a     1\nlong  2\n");
    }

    #[test]
    fn json_is_one_line_however_its_values_were_written() {
        let written = Json::parse("{\"a\":\r\n  [1,\n2], \"b\": \"\\n\"}").unwrap();
        assert_eq!(json(&[written]), r#"[{"a":    [1, 2], "b": "\n"}]"#);
    }

    #[test]
    fn json_has_nothing_that_a_terminal_obeys_and_is_the_same_value() {
        let obeyed = "\u{7f}\u{80}\u{9b}2J\u{9f}\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}";
        let text = format!("\u{1b}[2J{obeyed}\\ \u{a0}你好 e\u{301} \u{200d}\u{2065}\u{206a}");
        // Values that others wrote are printed as they were written.
        let written = Json::parse(&serde_json::to_string(&text).unwrap()).unwrap();
        let shown = json(&(&text, &written));
        assert!(!shown.chars().any(terminal::is_obeyed), "{shown:?}");
        assert!(shown.contains(r"\u007f\u0080\u009b2J\u009f\u061c\u200e"), "{shown}");
        assert!(
            shown.contains("\u{a0}你好 e\u{301} \u{200d}\u{2065}\u{206a}"),
            "all else is as it was: {shown}"
        );
        assert_eq!(serde_json::from_str::<[String; 2]>(&shown).unwrap(), [text.clone(), text]);
    }

    #[test]
    fn a_cell_has_nothing_that_a_terminal_obeys() {
        assert_eq!(one_line("a\u{1b}b\u{9b}c\u{7f}d\u{2028}e\u{202e}f\u{2066}g\u{200f}h"), "a b c d e f g h");
        assert_eq!(one_line("你好 \u{200d}"), "你好 \u{200d}");
    }

    #[test]
    fn lengths_read_well() {
        let shown = [0, 999, 1_250, 60_000, 600_000, 7_200_000, 604_800_000].map(length);
        assert_eq!(shown, ["0 ms", "999 ms", "1.2 s", "60.0 s", "10 min", "2 h", "7 days"]);
    }

    #[test]
    fn a_refusal_tells_what_helps() {
        let mut refusal = Problem::new(Code::LeaseHeld, "somebody\u{1b}[2J\nhas it");
        (refusal.owner, refusal.retry_after_ms) = (Some("a-1".to_owned()), Some(250));
        let failure = failure(false, Error::Refused(Box::new(refusal)));
        assert_eq!(failure.exit, Exit::Refused);
        assert_eq!(
            failure.message,
            "refused: lease_held: somebody [2J has it\n  owner a-1, try again in 250 ms"
        );
    }

    #[test]
    fn a_refusal_for_want_of_access_or_of_redis_says_what_would_do() {
        let says = |code, detail: &str| {
            let refusal = Error::Refused(Box::new(Problem::new(code, detail)));
            let message = failure(false, refusal).message;
            let (_, step) = message.split_once("\n  ").unwrap_or_default();
            step.to_owned()
        };
        let scope = says(Code::Forbidden, "this needs a token with the scope admin");
        assert_eq!(scope, "Use a token with the scope that is named, or ask who runs the daemon for one.");
        let all = says(Code::Forbidden, "this needs a token that sees everything: one without patterns");
        assert_eq!(all, "Use a token without patterns, or ask who runs the daemon for one.");
        assert_eq!(says(Code::Forbidden, "this token may not connect the node n"), "");
        let redis = says(Code::BusUnavailable, "sessions of several instances need Redis");
        assert_eq!(redis, "Start every instance with the same --redis-url.");
    }

    #[test]
    fn who_asks_what_the_daemon_lacks_is_not_sent_to_the_same_command() {
        let says = |about, code| {
            let refusal = Error::Refused(Box::new(Problem::new(code, "down")));
            failure_about(about, false, refusal).message
        };
        for code in [Code::LedgerUnavailable, Code::ClockBehind] {
            assert!(says(About::NOTHING, code).contains("health --ready"), "{code}");
            assert_eq!(says(About::READINESS, code), format!("refused: {code}: down"));
        }
        let waits = says(About::READINESS, Code::BusUnavailable);
        assert!(waits.contains("the daemon's log says why"), "{waits}");
        let behind = says(About::READINESS, Code::LedgerWentBack);
        assert!(behind.contains("`fencepost recover --dry-run`"), "what is to be done is said: {behind}");
    }

    #[test]
    fn a_grant_of_more_than_the_whole_window_is_not_sent_to_free_nonces() {
        let says = |retry_after_ms| {
            let mut refusal = Problem::new(Code::WindowFull, "full");
            refusal.retry_after_ms = retry_after_ms;
            failure(false, Error::Refused(Box::new(refusal))).message
        };
        assert!(says(Some(250)).contains("Nonces come free as they are settled"), "{}", says(Some(250)));
        assert_eq!(says(None), "refused: window_full: full");
    }

    #[test]
    fn a_repeated_grant_that_is_stale_shows_the_holds_that_settle_its_nonces() {
        let says = |nonces: u64| {
            let before = |nonce| GrantedBefore { nonce, hold: format!("h{nonce}") };
            let mut refusal = Problem::new(Code::StaleHold, "settled");
            refusal.granted_before = Some((0..nonces).map(before).collect());
            failure(false, Error::Refused(Box::new(refusal))).message
        };
        assert_eq!(
            says(2),
            "refused: stale_hold: settled\n  nonce 0 had the hold h0, nonce 1 had the hold h1"
        );
        let many = says(GRANTED_SHOWN_MAX as u64 + 1);
        assert!(many.contains("had the hold h4, 6 in all, with --json") && !many.contains("h5"), "{many}");
    }

    #[test]
    fn who_uses_a_key_again_for_something_else_is_not_sent_to_another_key() {
        let refusal = Error::Refused(Box::new(Problem::new(Code::KeyReused, "used")));
        let message = failure(false, refusal).message;
        assert!(
            message.contains("has changed since this key was used") && !message.contains("Use "),
            "{message}"
        );
    }

    #[test]
    fn a_path_that_the_daemon_does_not_have_says_that_it_may_be_of_another_release() {
        let says = |about, detail: &str| {
            let refusal = Error::Refused(Box::new(Problem::new(Code::NotFound, detail)));
            failure_about(about, false, refusal).message
        };
        for about in [About::NOTHING, About::task("t-1")] {
            let said = says(about, "there is no such path; see /openapi.json");
            assert!(said.contains("may be older or newer") && said.contains("cluster show"), "{said}");
        }
        assert!(!says(About::NOTHING, "no such job").contains("older"));
    }

    #[test]
    fn a_refusal_about_a_task_names_the_task_and_what_shows_its_like() {
        let says = |about: About<'_>, problem: Problem| {
            let message = failure_about(about, false, Error::Refused(Box::new(problem))).message;
            let (_, step) = message.split_once("\n  ").unwrap_or_default();
            step.to_owned()
        };
        let t = About::task("t-1");
        let unknown = |detail: &str| Problem::new(Code::NotFound, detail);
        let plans_id = "If t-1 is the id of a plan, `fencepost plan show t-1` lists the ids of its tasks.";
        assert_eq!(says(t, unknown("no such task")), plans_id);
        assert_eq!(says(t, unknown("this does not exist, or this token does not see it")), plans_id);
        assert_eq!(says(t, unknown("the task has no such checkpoint")), "");
        let of_stage = About { stage: Some("build"), ..t };
        assert_eq!(says(of_stage, unknown("no such task")), plans_id);
        let no_stage = "the task has no stage of this name or number";
        assert_eq!(says(of_stage, unknown(no_stage)), "`fencepost plan task t-1` shows its stages.");
        assert_eq!(says(About::default(), unknown("no such job")), "");
        let is_unknown = |task: Option<&str>, stage| Problem {
            task: task.map(str::to_owned),
            stage,
            ..Problem::new(Code::StageUnknown, "stage 2 is UNKNOWN")
        };
        let step = |task: &str, stage: &str| {
            format!(
                "`fencepost plan task {task}` shows the stage; `fencepost plan resolve {task} {stage} done|not_done --reason \
                 TEXT` resolves it."
            )
        };
        // A daemon of the last release names neither.
        assert_eq!(says(t, is_unknown(None, None)), step("t-1", "STAGE"));
        assert_eq!(says(About::default(), is_unknown(Some("t-2"), Some(2))), step("t-2", "2"));
        assert_eq!(says(About::default(), is_unknown(None, None)), step("TASK", "STAGE"));
    }
}
