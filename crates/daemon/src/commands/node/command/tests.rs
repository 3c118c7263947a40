//! Real child processes: what they are given, what becomes of what they print, and that nothing of them is left.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::mpsc;

use client::node::Stopper;
use futures_util::FutureExt;
use procfs::process::{Process, all_processes};
use rustix::process::{Pid, kill_process};
use tokio::task::{spawn_blocking, yield_now};

use super::*;
use crate::config::Sources;

const HOUR: Duration = Duration::from_secs(3_600);
/// The usual time from the first signal to the second.
const KILL_AFTER: Duration = Duration::from_secs(2);

fn command(words: &[&str]) -> Command {
    killed_after(KILL_AFTER, words)
}

fn killed_after(length: Duration, words: &[&str]) -> Command {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    Command::new(words, &["CARGO_PKG_NAME".to_owned()], length)
}

fn shell(script: &str) -> Command {
    command(&["sh", "-c", script])
}

fn job(payload: &str) -> (Job, Stopper) {
    Job::detached("j-1", Json::parse(payload).unwrap(), HOUR)
}

async fn run(command: Command, payload: &str) -> Result<String, Failure> {
    let (job, _stopper) = job(payload);
    command.run(job).await.map(|json| json.as_str().to_owned())
}

/// Waits for a file to have a line, and gives it.
async fn line_in(file: &Path) -> String {
    loop {
        match std::fs::read_to_string(file) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Waits until there is no such process, or only what nobody has reaped yet.
async fn until_gone(pid: &str) {
    loop {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) if !stat.contains(") Z ") => sleep(Duration::from_millis(5)).await,
            _ => return,
        }
    }
}

#[tokio::test]
async fn the_payload_goes_in_and_the_result_comes_out_as_they_are() {
    let payload = r#"{ "b": 1.0, "a": [123456789012345678901234567890] }"#;
    assert_eq!(run(command(&["cat"]), payload).await.unwrap(), payload);
    let big = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES_MAX - 2));
    assert_eq!(run(command(&["cat"]), &big).await.unwrap(), big);
    assert_eq!(run(command(&["true"]), &big).await.unwrap(), "null");
}

#[tokio::test]
async fn what_is_no_json_becomes_a_text_and_what_is_no_text_is_coded() {
    for (script, result) in [
        ("echo 42", "42"),
        ("echo hello; echo you", r#""hello\nyou""#),
        ("printf 'no newline'", r#""no newline""#),
        (r"printf '\377\0'", r#"{"base64":"/wA="}"#),
        ("echo", r#""""#),
    ] {
        assert_eq!(run(shell(script), "null").await.unwrap(), result, "{script}");
    }
}

#[tokio::test]
async fn the_command_knows_whose_it_is_and_not_the_nodes_token() {
    let script = r#"printf '%s %s %s %s' "$FENCEPOST_JOB" "$FENCEPOST_ATTEMPT" "$FENCEPOST_SESSION" "${FENCEPOST_TOKEN-none}""#;
    let (mut job, _stopper) = job("null");
    job.session = Some("s-1".to_owned());
    assert_eq!(shell(script).run(job).await.unwrap().as_str(), r#""j-1 1 s-1 none""#);
    assert_eq!(run(shell(script), "null").await.unwrap(), r#""j-1 1  none""#);
}

#[tokio::test]
async fn the_command_gets_the_metadata_as_an_object() {
    let script = r#"printf '%s' "${FENCEPOST_METADATA-null}""#;
    let (mut job, _stopper) = job("null");
    job.metadata =
        [("k", "a \"b\"\n"), ("l", "\0")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let given = r#"{"k":"a \"b\"\n","l":"\u0000"}"#;
    assert_eq!(shell(script).run(job).await.unwrap().as_str(), given);
    assert_eq!(run(shell(script), "null").await.unwrap(), "null");
}

#[tokio::test]
async fn the_command_gets_the_span_to_continue_under_both_names() {
    let script = r#"printf '%s %s' "${FENCEPOST_TRACEPARENT-none}" "${TRACEPARENT-none}""#;
    let (mut job, _stopper) = job("null");
    job.traceparent = Some("00-a-b-01".to_owned());
    assert_eq!(shell(script).run(job).await.unwrap().as_str(), r#""00-a-b-01 00-a-b-01""#);
    assert_eq!(run(shell(script), "null").await.unwrap(), r#""none none""#);
}

#[tokio::test]
async fn the_command_gets_the_kind() {
    let script = r#"printf '%s' "${FENCEPOST_KIND-null}""#;
    let (mut job, _stopper) = job("null");
    job.kind = Some("send_email".to_owned());
    assert_eq!(shell(script).run(job).await.unwrap().as_str(), r#""send_email""#);
    assert_eq!(run(shell(script), "null").await.unwrap(), "null");
}

#[tokio::test]
async fn the_command_gets_the_job_that_its_own_repeats() {
    let script = r#"printf '%s' "${FENCEPOST_RETRY_OF-null}""#;
    let (mut job, _stopper) = job("null");
    job.retry_of = Some("j-0".to_owned());
    assert_eq!(shell(script).run(job).await.unwrap().as_str(), r#""j-0""#);
    assert_eq!(run(shell(script), "null").await.unwrap(), "null");
}

/// A daemon refuses variables of its own prefix that it does not know.
#[test]
fn a_daemon_that_a_command_starts_takes_none_of_the_jobs_variables_for_its_configuration() {
    let (mut job, _stopper) = job("null");
    (job.session, job.kind) = (Some("s-1".to_owned()), Some("send_email".to_owned()));
    (job.metadata, job.traceparent) =
        ([("k".to_owned(), "v".to_owned())].into(), Some("00-a-b-01".to_owned()));
    job.retry_of = Some("j-0".to_owned());
    let prepared = command(&["true"]).prepared(&job);
    let given = prepared.as_std().get_envs();
    let own = given.filter(|(name, _)| name.to_string_lossy().starts_with("FENCEPOST_"));
    let environment: Vec<(OsString, OsString)> =
        own.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    assert_eq!(environment.len(), 7, "{environment:?}");
    let loaded = Sources { environment, ..Sources::default() }.load();
    assert!(loaded.is_ok(), "{:?}", loaded.err());
}

#[tokio::test]
async fn the_command_of_a_stage_reads_what_its_node_is_told_of_the_plan() {
    let (mut job, _stopper) = job("[1.0]");
    job.stage = Some(Json::parse(r#"{"number": 2}"#).unwrap());
    let read = r#"{"payload":[1.0],"stage":{"number": 2}}"#;
    assert_eq!(command(&["cat"]).run(job).await.unwrap().as_str(), read);
}

#[tokio::test]
async fn a_failure_has_the_last_of_what_was_said() {
    let failure = run(shell("echo out; echo why >&2; exit 3"), "null").await.unwrap_err();
    assert_eq!(failure, Failure::passing("exit status 3: why"));
    let failure = run(shell("echo bad input >&2; exit 65"), "null").await.unwrap_err();
    assert_eq!(failure, Failure::lasting("exit status 65: bad input"));
    assert_eq!(run(shell("exit 1"), "null").await.unwrap_err(), Failure::passing("exit status 1"));
    assert_eq!(run(shell("kill -9 $$"), "null").await.unwrap_err(), Failure::passing("killed by signal 9"));
    let script = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1";
    let failure = run(shell(script), "null").await.unwrap_err();
    assert!(failure.message.ends_with("xxxthe end"), "{}", failure.message);
    assert!(failure.message.len() <= STDERR_BYTES_MAX + 20, "{}", failure.message.len());
}

#[tokio::test(start_paused = true)]
async fn a_command_that_cannot_be_started_fails_in_the_end() {
    let failure = run(command(&["/no/such/program"]), "null").await.unwrap_err();
    assert!(failure.retryable && failure.message.contains("cannot be started"), "{failure:?}");
    let (job, stopper) = job("null");
    stopper.stop(Why::CalledOff);
    let failure = command(&["/no/such/program"]).run(job).await.unwrap_err();
    assert_eq!(failure, Failure::passing("the attempt was cancelled"));
}

#[tokio::test(start_paused = true)]
async fn a_command_that_cannot_be_started_fails_before_the_time_of_its_job_is_over() {
    for short in [500, 2_500, 9_000].map(Duration::from_millis) {
        let (job, _stopper) = Job::detached("j-1", Json::null(), short);
        let failed = timeout(short, command(&["/no/such/program"]).run(job)).await;
        let failure = failed.expect("the job has time left").unwrap_err();
        assert!(failure.message.contains("cannot be started"), "{failure:?}");
    }
}

#[tokio::test]
async fn a_program_that_is_away_for_a_moment_costs_no_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("bin");
    let program = folder.join("cat");
    let running = tokio::spawn(run(command(&[program.to_str().unwrap()]), "7"));
    // It is tried for the first time.
    yield_now().await;
    std::os::unix::fs::symlink("/bin", &folder).unwrap();
    assert_eq!(running.await.unwrap().unwrap(), "7");
}

#[tokio::test]
async fn who_prints_too_much_is_killed() {
    let exactly = format!("head -c {PAYLOAD_BYTES_MAX} /dev/zero | tr '\\0' 1; echo");
    assert_eq!(run(shell(&exactly), "null").await.unwrap().len(), PAYLOAD_BYTES_MAX);
    // It does not care that nobody reads.
    let failure = run(shell("trap '' PIPE; while :; do echo 0123456789; done"), "null").await.unwrap_err();
    assert_eq!(failure, Failure::lasting("the command printed more than 1048576 bytes"));
}

/// The script, which writes a process id to the file, is stopped: it fails so, and the process is gone.
async fn goes_when_stopped(script: String, file: &Path, why: Why, message: &str) {
    let (job, stopper) = job("null");
    let running = tokio::spawn(async move { shell(&script).run(job).await });
    let pid = line_in(file).await;
    stopper.stop(why);
    assert_eq!(running.await.unwrap().unwrap_err(), Failure::passing(message));
    until_gone(&pid).await;
}

#[tokio::test]
async fn who_is_told_to_stop_goes_with_all_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = format!("sleep 3600 & echo $! > {}; wait", file.display());
    goes_when_stopped(script, &file, Why::CalledOff, "the attempt was cancelled").await;
}

#[tokio::test]
async fn who_is_told_to_stop_goes_with_what_has_left_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    // `timeout` makes a group of its own, and what it runs does not heed the first signal.
    let inner = format!("trap '' TERM; echo $$ > {}; while :; do sleep 3600; done", file.display());
    let script = format!("timeout 3600 sh -c \"{}\"; true", inner.replace('$', "\\$"));
    goes_when_stopped(script, &file, Why::CalledOff, "the attempt was cancelled").await;
}

#[tokio::test]
async fn what_the_command_runs_has_time_to_clean_up_after_the_first_signal() {
    let dir = tempfile::tempdir().unwrap();
    let (ready, cleaned) = (dir.path().join("ready"), dir.path().join("cleaned"));
    // The shell itself ends at once.
    let script = format!(
        "(trap 'sleep 0.3; echo clean > {}; exit' TERM; echo yes > {}; while :; do sleep 0.01; done) & wait",
        cleaned.display(),
        ready.display()
    );
    let (job, stopper) = job("null");
    let running = tokio::spawn(async move { shell(&script).run(job).await });
    line_in(&ready).await;
    stopper.stop(Why::CalledOff);
    assert_eq!(running.await.unwrap().unwrap_err(), Failure::passing("the attempt was cancelled"));
    assert_eq!(std::fs::read_to_string(&cleaned).unwrap(), "clean\n");
}

#[tokio::test]
async fn the_second_signal_comes_as_late_as_the_node_was_told() {
    let dir = tempfile::tempdir().unwrap();
    let (ready, cleaned) = (dir.path().join("ready"), dir.path().join("cleaned"));
    // Longer than the usual time.
    let script = format!(
        "trap 'sleep 2.5; echo clean > {}; exit' TERM; echo yes > {}; while :; do sleep 0.01; done",
        cleaned.display(),
        ready.display()
    );
    let (job, stopper) = job("null");
    let running = tokio::spawn(async move { killed_after(HOUR, &["sh", "-c", &script]).run(job).await });
    line_in(&ready).await;
    stopper.stop(Why::CalledOff);
    assert_eq!(running.await.unwrap().unwrap_err(), Failure::passing("the attempt was cancelled"));
    assert_eq!(std::fs::read_to_string(&cleaned).unwrap(), "clean\n");
}

#[tokio::test]
async fn what_begins_outside_of_the_group_after_the_first_signal_gets_the_second() {
    let dir = tempfile::tempdir().unwrap();
    let [stray, ready, file] = ["stray.sh", "ready", "pid"].map(|name| dir.path().join(name));
    // What the stray starts does not heed the first signal either.
    let inner = format!(
        "trap \"trap '' TERM; sleep 3600 & echo \\$! > {}\" TERM; echo yes > {}; while :; do sleep 0.01; done",
        file.display(),
        ready.display()
    );
    std::fs::write(&stray, inner).unwrap();
    let (job, stopper) = job("null");
    let script = format!("setsid sh {}; true", stray.display());
    let running = tokio::spawn(async move { shell(&script).run(job).await });
    line_in(&ready).await;
    stopper.stop(Why::CalledOff);
    assert_eq!(running.await.unwrap().unwrap_err(), Failure::passing("the attempt was cancelled"));
    until_gone(&line_in(&file).await).await;
}

/// The node's connection is on the same thread.
#[test]
fn a_look_through_all_processes_keeps_no_other_task_waiting() {
    // Of the threads for what blocks there is one, and it is busy.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (let_go, waits) = mpsc::channel::<()>();
        spawn_blocking(move || waits.recv());
        let (job, _stopper) = job("null");
        let mut group = command(&["sleep", "3600"]).started(&job).await.unwrap();
        let mut signalled = Box::pin(group.signal(Signal::TERM));
        assert!(signalled.as_mut().now_or_never().is_none(), "it waits for that thread");
        drop(let_go);
        signalled.await;
        assert_eq!(group.ended().await.unwrap().signal(), Some(15));
    });
}

#[tokio::test]
async fn what_was_printed_counts_though_something_keeps_the_output_open() {
    assert_eq!(run(shell("setsid sleep 30 & echo 7"), "null").await.unwrap(), "7");
    let failure = run(shell("setsid sleep 30 & echo why >&2; exit 65"), "null").await.unwrap_err();
    assert_eq!(failure, Failure::lasting("exit status 65: why"));
}

#[tokio::test]
async fn who_does_not_heed_the_first_signal_gets_the_second() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 3600; done", file.display());
    goes_when_stopped(script, &file, Why::TimedOut, "the attempt ran for too long").await;
}

#[tokio::test]
async fn what_a_command_leaves_running_is_killed_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = format!("sleep 3600 & echo $! > {}; echo 7", file.display());
    assert_eq!(run(shell(&script), "null").await.unwrap(), "7");
    until_gone(&line_in(&file).await).await;
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = format!("sleep 3600 & echo $! > {}; wait", file.display());
    let (job, _stopper) = job("null");
    let running = tokio::spawn(async move { shell(&script).run(job).await });
    let pid = line_in(&file).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    until_gone(&pid).await;
}

/// The processes that run of those that the command of a job has started.
fn running_of(job: &str) -> Vec<Process> {
    let is_its = |process: &Process| {
        let environment = process.environ().unwrap_or_default();
        environment.get(OsStr::new("FENCEPOST_JOB")).is_some_and(|of| of == job)
    };
    all_processes().unwrap().filter_map(Result::ok).filter(is_its).collect()
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_nothing_of_what_is_just_leaving_its_group() {
    let id = format!("dropped-{}", std::process::id());
    let script = "for n in 1 2 3 4 5 6 7 8; do setsid sleep 3600 & done; wait";
    // Some are dropped just when the first process leaves the group.
    for after in (0..12).cycle().take(60).map(Duration::from_millis) {
        let (job, _stopper) = Job::detached(&id, Json::parse("null").unwrap(), HOUR);
        let running = tokio::spawn(async move { shell(script).run(job).await });
        sleep(after).await;
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
    }
    let all_gone = async {
        while !running_of(&id).is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(Duration::from_secs(10), all_gone).await.is_err() {
        let left = running_of(&id);
        for pid in left.iter().filter_map(|process| Pid::from_raw(process.pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        panic!("{} processes are left", left.len());
    }
}

#[tokio::test]
async fn a_command_gets_a_clean_environment_and_what_is_named() {
    // Cargo sets many variables for its tests.
    assert!(std::env::vars().any(|(name, _)| name == "CARGO_MANIFEST_DIR"));
    let printed = run(shell("env | cut -d= -f1 | sort | tr '\\n' ' '"), "null").await.unwrap();
    assert!(printed.contains("CARGO_PKG_NAME") && printed.contains("FENCEPOST_JOB"), "{printed}");
    assert!(printed.contains("PATH") && !printed.contains("CARGO_MANIFEST_DIR"), "{printed}");
    assert!(!printed.contains("FENCEPOST_TOKEN") && !printed.contains("FENCEPOST_SESSION"), "{printed}");
}
