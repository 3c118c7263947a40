//! `fencepost node`: a worker that runs a command for each job.

mod breaker;
mod command;
mod group;

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::node::{AttemptEnd, Ended, Event, Times, Worker, WorkerOptions};
use client::wire::worker::Languages;
use tokio::sync::oneshot;

use crate::cli::Bearer;
use crate::cli::jobs::Node;
use crate::config::Log;
use crate::exit::{Exit, Failure, tls_options};
use crate::logging;
use crate::process;
use crate::serve::{Signals, hangups, hostname};
use breaker::Breaker;
use command::Command;

/// How long the node tries to connect for the first time.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an attempt may take to end after its command has got SIGKILL: what it has printed is read for as long as
/// [`command::OUTPUT_AFTER`].
const END_AFTER_KILL: Duration = Duration::from_secs(3);
const _: () = assert!(command::OUTPUT_AFTER.as_secs() < END_AFTER_KILL.as_secs());

/// Files that the node itself has open: its connection, its log, what its runtime has.
const OWN_DESCRIPTORS: u64 = 64;
/// Files of one command: three pipes, of which the node has both ends for a moment while it starts one, and its process.
const COMMAND_DESCRIPTORS: u64 = 5;

/// Runs the node until SIGTERM or SIGINT (SIGHUP does nothing), or until `--drain-after-failures` attempts in a row have failed;
/// then running jobs have `--drain-at-most` to finish. A second signal ends the node at once, and all that it runs.
///
/// # Errors
/// The reason why it could not begin; [`Exit::Refused`] if another node with the same id took over; [`Exit::Failing`] after such
/// failures.
pub async fn run(node: Node) -> Result<(), Failure> {
    let Node {
        url,
        bearer: Bearer { token, token_file },
        tls,
        node_id,
        capacity,
        labels,
        services,
        asr,
        tts,
        pools,
        env,
        drain_at_most,
        kill_after,
        drain_after_failures,
        quiet,
        exec,
    } = node;
    let command = Command::new(exec, &env, kill_after);
    if !can_run(command.program()) {
        return Err(Failure::new(
            Exit::Usage,
            format!("--exec: there is no program {:?}", command.program()),
        ));
    }
    if let Some(name) = env.iter().find(|name| std::env::var_os(name).is_none()) {
        let message = format!("--env: the node's own environment has no variable {name:?}");
        return Err(Failure::new(Exit::Usage, message));
    }
    if let Some(limit) = process::most_descriptors()
        && u64::from(capacity) > most_commands(limit)
    {
        let message = format!(
            "--capacity: the limit of open files ({limit}) is enough for {} commands at once; raise it (ulimit -Hn, LimitNOFILE)",
            most_commands(limit)
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let filter = if quiet { "warn".to_owned() } else { Log::default().filter };
    logging::start(&Log { filter, ..Log::default() })?;
    let mut signals = Signals::listen()?;
    // A node has nothing to read again, but SIGHUP, which a closed terminal sends, must not end what it runs.
    let _hangups = hangups()?;
    let node_id = node_id.unwrap_or_else(|| format!("{}-{:08x}", hostname(), rand::random::<u32>()));
    let options = WorkerOptions {
        capacity,
        services,
        languages: Languages { asr, tts, semantic: Vec::new() },
        labels,
        pools,
        version: Some(concat!("fencepost/", env!("CARGO_PKG_VERSION")).to_owned()),
        token: token.filter(|token| !token.is_empty()),
        token_file,
        tls: tls.options(),
        times: times(drain_at_most, kill_after),
        ..WorkerOptions::new(url, node_id.as_str())
    };
    let breaker = Arc::new(Breaker::new(drain_after_failures));
    let notes = Arc::clone(&breaker);
    let worker = Worker::new(options)?.with_observer(move |event| {
        notes.note(&event);
        log(&node_id, event);
    });
    let command = Arc::new(command);
    let handler = move |job| {
        let command = Arc::clone(&command);
        async move { command.run(job).await }
    };
    let (stop, stopped) = oneshot::channel();
    let signalled = async move {
        let signal = signals.next().await;
        tracing::info!(%signal, "stopping");
        // The worker may have ended already.
        let _ = stop.send(());
        signals.second().await
    };
    let failures = Cell::new(None);
    let work = worker.run(handler, async {
        tokio::select! {
            _ = stopped => {}
            failed = breaker.broken() => {
                tracing::error!(failed, "attempts fail one after the other: the node takes no more, and ends");
                failures.set(Some(failed));
            }
        }
    });
    let ended = tokio::select! {
        ended = work => ended?,
        // What runs is killed as the work is dropped.
        exit = signalled => return Err(Failure::new(exit, "a second signal to stop: ending at once")),
    };
    match ended {
        Ended::Drained { unsettled } => {
            if unsettled > 0 {
                tracing::warn!(
                    unsettled,
                    "stopped with results that no daemon confirmed; these jobs run again"
                );
            }
            failures.get().map_or(Ok(()), |failed| {
                Err(Failure::new(Exit::Failing, format!("{failed} attempts in a row have failed")))
            })
        }
        Ended::Replaced => Err(Failure::new(
            Exit::Refused,
            "another node with the same id took over; choose another id with --node-id",
        )),
        ended => Err(Failure::new(Exit::Software, format!("the node ended: {ended:?}"))),
    }
}

fn log(node: &str, event: Event) {
    match event {
        Event::Connected { url, instance, heartbeat, pools } => {
            let joined = pools.as_ref().map(|pools| pools.join(","));
            tracing::info!(
                node,
                url,
                instance,
                heartbeat_ms = heartbeat.as_millis() as u64,
                pools = joined,
                "connected"
            );
            if pools.is_some_and(|pools| pools.is_empty()) {
                tracing::warn!(
                    node,
                    "the node is in no pool and gets no job: none is configured under a name that it gives, or it lacks their \
                     labels; `fencepost pool show` lists them"
                );
            }
        }
        Event::Lost { reason, pause } => {
            let hint = tls_options(&reason);
            tracing::warn!(node, reason, hint, again_in_ms = pause.as_millis() as u64, "no connection");
        }
        Event::Problem { code, detail } => {
            tracing::warn!(node, code, detail, "the daemon reported a problem");
        }
        Event::Started { job, attempt } => tracing::info!(node, job, attempt, "an attempt begins"),
        Event::Finished { job, attempt, took, end } => {
            let took_ms = took.as_millis() as u64;
            match end {
                AttemptEnd::Succeeded => {
                    tracing::info!(node, job, attempt, took_ms, "an attempt has succeeded")
                }
                AttemptEnd::Failed { message: error, retryable } => {
                    tracing::warn!(node, job, attempt, took_ms, retryable, error, "an attempt has failed");
                }
                AttemptEnd::CalledOff => {
                    tracing::info!(node, job, attempt, took_ms, "an attempt was called off")
                }
                end => tracing::info!(node, job, attempt, took_ms, ?end, "an attempt has ended"),
            }
        }
        Event::Drained(true) => tracing::info!(node, "an operator drains this node: it gets no more jobs"),
        Event::Drained(false) => tracing::info!(node, "the operator's drain of this node has ended"),
        Event::Draining { held } => tracing::info!(node, held, "draining"),
        event => tracing::info!(node, ?event, "something happened"),
    }
}

/// How long things take. A handler that is dropped kills what it runs: it has to wait for the command.
fn times(drain_max: Duration, kill_after: Duration) -> Times {
    let stop_grace = kill_after.saturating_add(END_AFTER_KILL);
    Times { patience: Some(PATIENCE), drain_max, stop_grace, ..Times::default() }
}

/// How many commands can run at once with so many open files.
const fn most_commands(descriptors: u64) -> u64 {
    descriptors.saturating_sub(OWN_DESCRIPTORS) / COMMAND_DESCRIPTORS
}

/// Whether there is such a program: a node that can run nothing would fail every job it is given.
fn can_run(program: &str) -> bool {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return is_program(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| is_program(&dir.join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_is_stopped_has_as_long_as_its_command_and_by_default_as_long_as_the_library_gives() {
        let usual = Times::default();
        let (drain, kill) = (usual.drain_max, Duration::from_secs(2));
        assert_eq!(times(drain, kill), Times { patience: Some(PATIENCE), ..usual });
        for kill in [Duration::ZERO, Duration::from_secs(3_600)] {
            assert!(times(drain, kill).stop_grace > kill);
        }
    }

    #[test]
    fn a_program_is_sought_where_the_system_would() {
        assert!(can_run("sh") && can_run("/bin/sh"));
        assert!(!can_run("no-such-program-here") && !can_run("/bin") && !can_run(""));
        // Nobody may run it.
        assert!(!can_run(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")));
    }
}
