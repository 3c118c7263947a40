//! Nodes for fault runs: many that live in this process, and some that are real `fencepost node` processes. Each keeps a
//! diary of what it ran, and when; the checker compares these with what the ledger holds.
//!
//! The plain ones take whatever they are given: it is the scheduler that must not give them too much.

mod command;
mod diary;
mod plain;

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

pub use diary::{Diary, Line, Run, Said, Stage, Wrote};

use crate::credentials::Credentials;
use command::CommandNode;
use plain::{Order, PlainNode};

/// A label that every third node has.
pub const RARE_LABEL: &str = "rare";

/// What a job has one of these nodes do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chore {
    /// What it is recognised by.
    pub number: u64,
    /// How long it takes, in milliseconds.
    pub take_ms: u64,
    /// So many attempts fail before one does not.
    pub fails: u64,
    /// It fails, and trying again does not help.
    pub is_broken: bool,
    /// So many attempts do not end by themselves.
    pub hangs: u64,
    /// As a plan's stage, it leaves the context as it is. A stage that is not silent replaces the context.
    pub is_silent: bool,
}

impl Chore {
    /// As the payload of a job. Its members come in this order; the commands look no deeper.
    #[must_use]
    pub fn payload(&self) -> Value {
        let Self { number, take_ms, fails, is_broken, hangs, is_silent } = self;
        json!({
            "number": number, "take_ms": take_ms, "fails": fails, "broken": u8::from(*is_broken), "hangs": hangs,
            "silent": u8::from(*is_silent),
        })
    }

    fn read(payload: &Value) -> Self {
        let number = |name: &str| payload[name].as_u64().unwrap_or_default();
        Self {
            number: number("number"),
            take_ms: number("take_ms"),
            fails: number("fails"),
            is_broken: number("broken") > 0,
            hangs: number("hangs"),
            is_silent: number("silent") > 0,
        }
    }
}

/// How many nodes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that live in this process. They come first.
    pub plain: usize,
    /// `fencepost node` processes.
    pub commands: usize,
}

impl Counts {
    /// All of them.
    #[must_use]
    pub const fn all(self) -> usize {
        self.plain + self.commands
    }
}

/// The nodes.
#[derive(Debug)]
pub struct FaultNodes {
    plain: Vec<PlainNode>,
    commands: Vec<tokio::sync::Mutex<CommandNode>>,
}

impl FaultNodes {
    /// So many nodes, each of which connects to any of the instances with these credentials. With a label, all of
    /// them have it, and it stands in front of their names.
    ///
    /// # Errors
    /// A process does not start.
    pub fn start(
        nodes: Counts,
        label: Option<&'static str>,
        urls: &[String],
        credentials: &Credentials,
        seed: u64,
    ) -> Result<Self> {
        let plain =
            (0..nodes.plain).map(|number| PlainNode::start(number, label, urls, credentials, seed)).collect();
        let commands = (0..nodes.commands).map(|number| CommandNode::start(number, label, urls, credentials));
        let commands: Result<Vec<_>> = commands.map(|node| Ok(tokio::sync::Mutex::new(node?))).collect();
        Ok(Self { plain, commands: commands? })
    }

    /// What all of them wrote down.
    ///
    /// # Errors
    /// A diary cannot be read.
    pub async fn diaries(&self) -> Result<Vec<Diary>> {
        let mut diaries: Vec<_> = self.plain.iter().map(PlainNode::diary).collect();
        for node in &self.commands {
            diaries.push(node.lock().await.diary()?);
        }
        Ok(diaries)
    }

    /// The lines about a job in the diaries of the nodes in this process, each with its node's name.
    #[must_use]
    pub fn lines_of(&self, job: &str) -> Vec<(String, Line)> {
        self.plain.iter().flat_map(|node| node.lines_of(job)).collect()
    }

    /// The names of those that do not stand still: each has a connection, or will have one again by itself. Waits for the faults
    /// that are being done to processes.
    pub async fn awake(&self) -> Vec<String> {
        let mut names: Vec<_> = self.plain.iter().filter_map(PlainNode::name_if_awake).collect();
        for node in &self.commands {
            names.push(node.lock().await.name().to_owned());
        }
        names
    }

    /// A node dies with all that it had, and comes again, knowing nothing.
    ///
    /// # Errors
    /// It does not start again.
    pub async fn kill(&self, node: usize, down: Duration) -> Result<()> {
        match self.plain.get(node) {
            Some(plain) => plain.order(Order::Die(down)),
            None => {
                let mut command = self.command(node)?.lock().await;
                command.kill();
                tokio::time::sleep(down).await;
                command.start_again()
            }
        }
    }

    /// A node stands still, and wakes again.
    ///
    /// # Errors
    /// It cannot be signalled.
    pub async fn pause(&self, node: usize, length: Duration) -> Result<()> {
        match self.plain.get(node) {
            Some(plain) => {
                plain.order(Order::StandStill(length))?;
                tokio::time::sleep(length).await;
                Ok(())
            }
            None => {
                let command = self.command(node)?.lock().await;
                command.pause(length).await
            }
        }
    }

    /// A plain node's socket ends within a frame; the node itself goes on. Where it has none, this is for one that it has later.
    ///
    /// # Errors
    /// There is no such node.
    pub fn cut(&self, node: usize) -> Result<()> {
        self.plain.get(node).context("a node of the harness's own")?.order(Order::EndWithinFrame)
    }

    /// A plain node connects anew while its socket lives. Where it has none, this is for one that it has later.
    ///
    /// # Errors
    /// There is no such node.
    pub fn connect_again(&self, node: usize) -> Result<()> {
        self.plain.get(node).context("a node of the harness's own")?.order(Order::ConnectAgain)
    }

    fn command(&self, node: usize) -> Result<&tokio::sync::Mutex<CommandNode>> {
        self.commands.get(node - self.plain.len()).context("there is no such node")
    }
}

/// The name of a node: the label of all, its kind and its number.
fn name_of(label: Option<&str>, kind: char, number: usize) -> String {
    label.map_or_else(|| format!("{kind}-{number}"), |label| format!("{label}-{kind}-{number}"))
}

/// The labels of a node: the label of all, and every third has the rare one.
fn labels_of(label: Option<&'static str>, number: usize) -> Vec<&'static str> {
    let rare = number.is_multiple_of(3).then_some(RARE_LABEL);
    label.into_iter().chain(rare).collect()
}

/// Whether a close with 4400 is what an honest node has earned by having stood still.
fn is_ours_to_bear(detail: &str) -> bool {
    ["no heartbeat for", "was not answered within", "no hello within"]
        .iter()
        .any(|fault| detail.contains(fault))
}
