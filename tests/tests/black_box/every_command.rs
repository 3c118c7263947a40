//! Every command of the binary, as its help names them, against a real daemon: its help, its answer for people and for
//! programs, wrong usage, and a refusal. A command without an entry in `entries` fails the test.

mod entries;
mod world;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use testkit::instance::{Ended, Running, fencepost};
use testkit::process::Signal;

use crate::tokens::{Guarded, root};
use crate::until;
use entries::{Entry, Json, Refused, Way, entry};
use world::World;

/// Fewer were missed by a reader of the help.
const LEAVES_MIN: usize = 78;

/// The help of a command, in parts.
struct Help {
    /// The words that name the command.
    path: Vec<String>,
    text: String,
}

impl Help {
    async fn of(path: Vec<String>) -> Self {
        let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let ended = run("http://127.0.0.1:1", &words).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{words:?}");
        Self { path, text: ended.stdout }
    }

    fn name(&self) -> String {
        self.path.join(" ")
    }

    /// The lines of one part, such as `Options:`.
    fn part(&self, heading: &str) -> Vec<&str> {
        let lines = self.text.lines().skip_while(|line| *line != heading).skip(1);
        // A text of several paragraphs has blank lines in it; the next part begins at the margin.
        lines
            .take_while(|line| line.is_empty() || line.starts_with(' '))
            .filter(|line| !line.is_empty())
            .collect()
    }

    /// The commands below this one.
    fn commands(&self) -> Vec<&str> {
        let named = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
        self.part("Commands:")
            .into_iter()
            .filter(named)
            .filter_map(|line| line.split_whitespace().next())
            .collect()
    }

    fn usage(&self) -> &str {
        let usage = self.text.lines().find_map(|line| line.strip_prefix("Usage: "));
        usage.unwrap_or_else(|| panic!("no usage: {}", self.text))
    }

    fn has_option(&self, option: &str) -> bool {
        self.part("Options:").iter().any(|line| line.split([' ', ',']).any(|word| word == option))
    }

    /// Whether the command needs an argument or option.
    fn needs_something(&self) -> bool {
        self.usage().split(' ').any(|word| word.starts_with('<') || word.starts_with("--"))
    }

    /// The command has a usage, and each of its arguments and options a description: on its line after two blanks, or on the
    /// lines below it.
    fn describes_everything(&self) {
        assert!(self.usage().starts_with(&format!("fencepost {}", self.name())), "{}", self.text);
        assert!(self.text.lines().next().is_some_and(|line| line.len() > 5), "{}", self.text);
        for heading in ["Arguments:", "Options:"] {
            let lines = self.part(heading);
            for (place, line) in lines.iter().enumerate() {
                let named = line.trim_start();
                if !(line.len() - named.len() <= 6 && named.starts_with(['-', '<', '['])) {
                    continue;
                }
                let beside = named.split_once("  ").is_some_and(|(_, text)| text.trim().len() > 3);
                let below = lines.get(place + 1).is_some_and(|next| next.starts_with("          "));
                assert!(beside || below, "{}: no description: {line}", self.name());
            }
        }
    }
}

/// The help of every command, the ones below others too.
async fn all_commands() -> Vec<Help> {
    let (mut all, mut open) = (Vec::new(), VecDeque::from([Vec::new()]));
    while let Some(path) = open.pop_front() {
        let help = Help::of(path).await;
        for (place, name) in help.commands().into_iter().enumerate() {
            // Depth first, in the order of the help.
            open.insert(place, help.path.iter().cloned().chain([name.to_owned()]).collect());
        }
        all.push(help);
    }
    all
}

/// Runs the binary with these words against a daemon, to its end.
async fn run(url: &str, words: &[impl AsRef<str>]) -> Ended {
    let mut command = fencepost().unwrap();
    command
        .env("FENCEPOST_URL", url)
        .args(words.iter().map(AsRef::as_ref))
        .stdin(std::process::Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn words_of(path: &[String], more: &[String]) -> Vec<String> {
    [path, more].concat()
}

/// Runs a command that goes on until it is ended, until it has printed or logged this; then ends it. What it printed.
async fn run_until(url: &str, path: &[String], args: &[String], shows: &str) -> String {
    let setup = world::setup(path, args).env("FENCEPOST_URL", url);
    let running: Running = setup.start_command().unwrap();
    until(&format!("{path:?} shows {shows}"), async || {
        running.stdout().contains(shows) || running.log().contains(shows)
    })
    .await;
    let printed = running.stdout();
    running.process().signal(Signal::Interrupt).unwrap();
    let status = running.process().wait(testkit::PATIENCE).await.unwrap();
    // One without a handler of its own ends by the signal.
    assert!(matches!(status.code(), Some(0) | None), "{path:?}: {status}: {}", running.log());
    printed
}

/// Each line is JSON, and there is at least one.
fn check_json(kind: Json, name: &str, text: &str) {
    let documents: Vec<Value> = match kind {
        Json::None => return,
        Json::Lines => text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}")))
            .collect(),
        Json::Document => {
            vec![serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))]
        }
    };
    assert!(!documents.is_empty(), "{name} printed no item");
    if matches!(kind, Json::Lines) {
        assert!(documents.iter().all(Value::is_object), "{name}: a line for each item: {text}");
    }
}

/// What needs no daemon, or one that refuses everybody: the help, wrong usage, and a caller without a token.
async fn check_alone(help: &Help, guarded_url: &str) {
    let name = help.name();
    help.describes_everything();
    let option = words_of(&help.path, &["--no-such-option".to_owned()]);
    let wrong = run(guarded_url, &option).await;
    assert_eq!(wrong.code, Some(2), "{name}: {}", wrong.stderr);
    assert!(wrong.stderr.contains("--no-such-option") && wrong.stdout.is_empty(), "{name}: {}", wrong.stderr);
    if help.needs_something() {
        let nothing = run(guarded_url, &help.path).await;
        assert_eq!(nothing.code, Some(2), "{name}: {}", nothing.stderr);
        assert!(nothing.stderr.contains("Usage: fencepost"), "{name}: {}", nothing.stderr);
    }
}

/// The command's answer, for people and as JSON.
async fn check_answers(world: &World, help: &Help, entry_of_table: &Entry) {
    let (url, name) = (world.url(), help.name());
    let Entry { args, shows, json, way, .. } = entry_of_table;
    let text = match way {
        Way::Ends => {
            let ended = run(url, &words_of(&help.path, args)).await;
            assert_eq!(ended.code, Some(0), "{name} {args:?}: {}", ended.stderr);
            ended.stdout
        }
        Way::RunsOn => run_until(url, &help.path, args, shows).await,
    };
    assert!(text.contains(shows) || matches!(way, Way::RunsOn), "{name} {args:?} shows no {shows:?}: {text}");
    assert_eq!(help.has_option("--json"), !matches!(json, Json::None), "{name}: --json in its help");
    if matches!(json, Json::None) {
        return;
    }
    // What the first run changed is made anew.
    let args = entry(world, &name).await.expect("it was there before").args;
    let args = [&args[..], &["--json".to_owned()]].concat();
    let ended = run(url, &words_of(&help.path, &args)).await;
    assert_eq!(ended.code, Some(0), "{name} {args:?}: {}", ended.stderr);
    check_json(*json, &name, &ended.stdout);
}

/// A refusal of the daemon, and of one that demands a token.
async fn check_refusals(world: &World, help: &Help, guarded_url: &str) {
    let name = help.name();
    // What it names may have changed by what the command did before.
    let entry = entry(world, &name).await.expect("it was there before");
    let refused = async |url: &str, args: &[String], exit: i32, says: &str| {
        let ended = run(url, &words_of(&help.path, args)).await;
        assert_eq!(ended.code, Some(exit), "{name} {args:?}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(says), "{name} {args:?}: no {says:?}: {}", ended.stderr);
        ended
    };
    match &entry.refused {
        Refused::Never => {}
        Refused::Here { args, exit, says } => {
            refused(world.url(), args, *exit, says).await;
        }
        Refused::By { args, code } => {
            refused(world.url(), args, 1, code).await;
            if help.has_option("--json") {
                let args = [&args[..], &["--json".to_owned()]].concat();
                let ended = refused(world.url(), &args, 1, code).await;
                let problem: Value = serde_json::from_str(&ended.stderr)
                    .unwrap_or_else(|error| panic!("{name} {args:?}: {error}: {}", ended.stderr));
                assert_eq!(problem["code"], *code, "{name}: {problem}");
            }
        }
    }
    if entry.needs_token {
        refused(guarded_url, &entry.args, 1, "unauthorized").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_help_has_an_entry_and_does_what_that_says() {
    let all = all_commands().await;
    let leaves: Vec<&Help> = all.iter().filter(|help| help.commands().is_empty()).collect();
    assert!(leaves.len() >= LEAVES_MIN, "{} commands were found", leaves.len());
    let tokens = json!([root()]);
    let (world, guarded) = tokio::join!(World::start(), Guarded::start(&tokens));
    for no_command in ["", "job", "no-such-command", "job no-such-command"] {
        assert!(entry(&world, no_command).await.is_none(), "{no_command}");
    }
    for group in all.iter().filter(|help| !help.commands().is_empty()) {
        assert!(group.usage().contains("<COMMAND>"), "{}", group.text);
    }
    let mut failed = Vec::new();
    for help in &leaves {
        // The others are tried all the same.
        let tried = AssertUnwindSafe(check(&world, help, guarded.instance.url())).catch_unwind().await;
        failed.extend(tried.is_err().then(|| help.name()));
    }
    assert!(failed.is_empty(), "these commands failed, each for the reason above: {failed:?}");
}

async fn check(world: &World, help: &Help, guarded_url: &str) {
    let entry = entry(world, &help.name()).await;
    let entry = entry.unwrap_or_else(|| panic!("`{}` has no entry in every_command/entries.rs", help.name()));
    check_alone(help, guarded_url).await;
    check_answers(world, help, &entry).await;
    check_refusals(world, help, guarded_url).await;
}
