//! A node that is a process of its own: `fencepost node`, running a shell script for each job. The script writes the
//! diary.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tempfile::TempDir;

use super::diary::now_us;
use super::{Diary, Line, Run, Said, Wrote, is_ours_to_bear, labels_of, name_of};
use crate::credentials::Credentials;
use crate::instance::fencepost;
use crate::process::{Launch, Process, Signal, tail};

const CAPACITY: usize = 2;
/// What the node says in its log when the scheduler finds fault with it.
const BLAMED: &str = "the daemon reported a problem";

/// A line for the beginning, what the payload says, and a line for the end. A job that is called off ends `date` before
/// it has answered, so that it is asked again.
const SCRIPT: &str = r#"
payload=$(cat)
of() { rest=${payload#*\"$1\":}; echo "${rest%%[,\}]*}"; }
say() {
  at=$(date +%s%N)
  while [ -z "$at" ]; do at=$(date +%s%N); done
  echo "$1 $FENCEPOST_JOB $FENCEPOST_ATTEMPT $at $2" >> "$DIARY"
}
trap 'say stopped; exit 1' TERM
say began
if [ "$FENCEPOST_ATTEMPT" -le "$(of hangs)" ]; then sleep 1000 & wait; fi
ms=$(of take_ms)
sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))" & wait
if [ "$(of broken)" = 1 ]; then say failed; exit 65; fi
if [ "$FENCEPOST_ATTEMPT" -le "$(of fails)" ]; then say failed; exit 1; fi
output="{\"number\":$(of number),\"by\":\"$NAME\",\"attempt\":$FENCEPOST_ATTEMPT,\"once\":\"$(date +%s%N)\"}"
say output "$output"
echo "$output"
"#;

#[derive(Debug)]
pub(super) struct CommandNode {
    // Before `dir`: the process ends before its files go.
    running: Option<Process>,
    name: String,
    urls: Vec<String>,
    credentials: Credentials,
    labels: Vec<&'static str>,
    dir: TempDir,
    /// When each life before this one ended.
    deaths: Vec<u64>,
    /// Ends that were nobody's order.
    ends: Vec<String>,
}

impl CommandNode {
    pub(super) fn start(
        number: usize,
        label: Option<&'static str>,
        urls: &[String],
        credentials: &Credentials,
    ) -> Result<Self> {
        let mut urls = urls.to_vec();
        let turn = number % urls.len();
        urls.rotate_left(turn);
        let dir = TempDir::with_prefix("fencepost-node-")?;
        let mut node = Self {
            running: None,
            name: name_of(label, 'c', number),
            urls,
            credentials: credentials.clone(),
            labels: labels_of(label, number),
            dir,
            deaths: vec![],
            ends: vec![],
        };
        node.start_again()?;
        Ok(node)
    }

    pub(super) fn start_again(&mut self) -> Result<()> {
        let mut command = fencepost()?;
        command.arg("node").args(["--node-id", &self.name, "--capacity", &CAPACITY.to_string()]);
        for url in &self.urls {
            command.args(["--url", url]);
        }
        self.credentials.pass_to(&mut command);
        for label in &self.labels {
            command.args(["--label", label]);
        }
        command.args(["--env", "DIARY", "--env", "NAME", "--exec", "sh", "-c", SCRIPT]);
        command.env("DIARY", self.file(self.deaths.len())).env("NAME", &self.name);
        let (stdout, log) = (self.dir.path().join("stdout.log"), self.log());
        let (process, _) = Process::spawn(&Launch { stdout: &stdout, ..Launch::logging(&command, &log) })?;
        self.running = Some(process);
        Ok(())
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn kill(&mut self) {
        if let Some(status) = self.running.as_ref().and_then(Process::exited) {
            self.ends.push(format!("it had ended by itself: {status}"));
        }
        // Dropping it kills it.
        self.running = None;
        self.deaths.push(now_us());
    }

    pub(super) async fn pause(&self, length: Duration) -> Result<()> {
        let process = self.running.as_ref().context("the node runs")?;
        process.signal(Signal::Stop)?;
        tokio::time::sleep(length).await;
        process.signal(Signal::Continue)
    }

    pub(super) fn diary(&self) -> Result<Diary> {
        let lives = (0..=self.deaths.len()).map(|life| self.life(life));
        let lines = lives.collect::<Result<Vec<_>>>()?.concat();
        let log = tail(&self.log(), usize::MAX);
        let blames = log.lines().filter(|line| line.contains(BLAMED) && !is_ours_to_bear(line));
        let mut blames: Vec<_> = blames.map(str::to_owned).collect();
        blames.extend(self.ends.iter().cloned());
        if let Some(status) = self.running.as_ref().and_then(Process::exited) {
            blames.push(format!("it ended by itself: {status}"));
        }
        Ok(Diary { node: self.name.clone(), capacity: CAPACITY, lines, blames, ..Diary::default() })
    }

    /// The lines of one life, from the first, 0, on. A script may outlive its node by a little, and write a line that
    /// belongs to the life before the death all the same.
    fn life(&self, life: usize) -> Result<Vec<Line>> {
        let text = match std::fs::read_to_string(self.file(life)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let mut lines = text.lines().map(read).collect::<Result<Vec<_>>>()?;
        lines.sort_by_key(|line| line.at_us);
        if let Some(death) = self.deaths.get(life) {
            lines.iter_mut().for_each(|line| line.at_us = line.at_us.min(*death));
            lines.push(Line { at_us: *death, wrote: Wrote::Died });
        }
        Ok(lines)
    }

    fn file(&self, life: usize) -> PathBuf {
        self.dir.path().join(format!("diary-{life}"))
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("stderr.log")
    }
}

/// A line of the script.
fn read(line: &str) -> Result<Line> {
    let parse = || {
        let mut words = line.splitn(5, ' ');
        let (what, job, attempt, at) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let run = Run { job: job.to_owned(), attempt: attempt.parse().ok()? };
        let wrote = match what {
            "began" => Wrote::Began { run, place: None, stage: None },
            "failed" => Wrote::Ended { run, said: Said::Failure },
            "stopped" => Wrote::Ended { run, said: Said::Nothing },
            "output" => {
                let output: Value = serde_json::from_str(words.next()?).ok()?;
                Wrote::Ended { run, said: Said::Output(output) }
            }
            _ => return None,
        };
        Some(Line { at_us: at.parse::<u64>().ok()? / 1_000, wrote })
    };
    parse().with_context(|| format!("not a line of a diary: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_nodes::Chore;

    #[test]
    fn what_a_script_writes_after_the_death_of_its_node_belongs_to_the_life_before() {
        let mut node = CommandNode {
            running: None,
            name: "c-0".to_owned(),
            urls: vec![],
            credentials: Credentials::default(),
            labels: vec![],
            dir: tempfile::tempdir().unwrap(),
            deaths: vec![2],
            ends: vec![],
        };
        let write = |life, text| std::fs::write(node.file(life), text).unwrap();
        write(0, "began j 1 1000 \nbegan k 1 3000 \n");
        write(1, "began l 1 4000 \n");
        let began = |at_us, job: &str| Line {
            at_us,
            wrote: Wrote::Began { run: Run { job: job.to_owned(), attempt: 1 }, place: None, stage: None },
        };
        let died = Line { at_us: 2, wrote: Wrote::Died };
        let lines = vec![began(1, "j"), began(2, "k"), died.clone(), began(4, "l")];
        assert_eq!(node.diary().unwrap().lines, lines);
        node.deaths.push(5);
        assert_eq!(node.diary().unwrap().lines, [lines, vec![Line { at_us: 5, ..died }]].concat());
    }

    #[test]
    fn the_script_does_what_a_chore_says_and_writes_it_down() {
        let dir = tempfile::tempdir().unwrap();
        let diary = dir.path().join("diary");
        let run = |chore: &Chore, attempt: u64| {
            let mut shell = std::process::Command::new("sh");
            shell.args([
                "-c",
                &format!("printf '%s' '{}' | sh -c '{}'", chore.payload(), SCRIPT.replace('\'', r"'\''")),
            ]);
            shell.env("FENCEPOST_JOB", "j").env("FENCEPOST_ATTEMPT", attempt.to_string());
            shell.env("DIARY", &diary).env("NAME", "n");
            let out = shell.output().unwrap();
            (out.status.code(), serde_json::from_slice::<Value>(&out.stdout).unwrap_or_default())
        };
        let chore = Chore { number: 7, take_ms: 1_005, fails: 1, ..Chore::default() };
        assert_eq!(run(&chore, 1), (Some(1), Value::Null));
        let (code, output) = run(&chore, 2);
        assert_eq!((code, &output["number"], &output["by"]), (Some(0), &7.into(), &"n".into()));
        let broken = Chore { is_broken: true, ..Chore::default() };
        assert_eq!(run(&broken, 1), (Some(65), Value::Null));
        let text = std::fs::read_to_string(&diary).unwrap();
        let lines: Vec<_> = text.lines().map(|line| read(line).unwrap()).collect();
        assert_eq!(lines.len(), 6);
        let run = Run { job: "j".to_owned(), attempt: 2 };
        assert_eq!(lines[2].wrote, Wrote::Began { run: run.clone(), place: None, stage: None });
        assert_eq!(lines[3].wrote, Wrote::Ended { run, said: Said::Output(output) });
        assert!(lines[3].at_us - lines[2].at_us >= 1_005_000);
    }
}
