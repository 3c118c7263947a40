//! The table: words with which each command succeeds, what it shows, and words that the daemon refuses.

use serde_json::json;
use testkit::ports;

use super::world::World;

/// What a command prints with `--json`.
#[derive(Clone, Copy)]
pub enum Json {
    /// It has no such option.
    None,
    /// One document.
    Document,
    /// A line for each item.
    Lines,
}

/// How a command ends.
#[derive(Clone, Copy)]
pub enum Way {
    Ends,
    /// It runs until a signal.
    RunsOn,
}

/// How a command is refused.
pub enum Refused {
    /// Nothing that can be asked is refused but the caller.
    Never,
    /// By the daemon, with this code of a problem.
    By { args: Vec<String>, code: &'static str },
    /// By the command itself.
    Here { args: Vec<String>, exit: i32, says: &'static str },
}

/// What is known of one command.
pub struct Entry {
    /// Words after the command, with which it succeeds. What they name may be used up by it.
    pub args: Vec<String>,
    /// What its text for people has in it: the heading, where there is a table.
    pub shows: &'static str,
    pub json: Json,
    pub way: Way,
    pub refused: Refused,
    /// Whether a daemon with tokens refuses a caller that has none.
    pub needs_token: bool,
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// A command that asks the daemon and is refused with these words.
fn asks(line: &str, shows: &'static str, json: Json, (refused, code): (&str, &'static str)) -> Entry {
    let refused = Refused::By { args: words(refused), code };
    Entry { args: words(line), shows, json, way: Way::Ends, refused, needs_token: true }
}

/// A command that asks the daemon for what everybody with a token gets.
fn reads(line: &str, shows: &'static str, json: Json) -> Entry {
    let refused = Refused::Never;
    Entry { args: words(line), shows, json, way: Way::Ends, refused, needs_token: true }
}

/// A command that asks no daemon.
fn alone(line: &str, shows: &'static str, json: Json, refused: (&str, i32, &'static str)) -> Entry {
    let (args, exit, says) = refused;
    let refused = Refused::Here { args: words(args), exit, says };
    Entry { args: words(line), shows, json, way: Way::Ends, refused, needs_token: false }
}

const DOCUMENT: Json = Json::Document;
const LINES: Json = Json::Lines;

/// The entry of a command, with new things to work on where it uses them up.
pub async fn entry(world: &World, name: &str) -> Option<Entry> {
    if let Some((group, rest)) = name.split_once(' ') {
        return match group {
            "nonce" => of_nonces(world, rest).await,
            "id" => of_ids(rest),
            "job" => of_jobs(world, rest).await,
            "plan" => of_plans(world, rest).await,
            "tenant" => of_tenants(world, rest).await,
            _ => of_others(world, name).await,
        };
    }
    let ledger = &world.ledger;
    let somewhere = || format!("sqlite:{}", world.path("ledger.db").display());
    Some(match name {
        "serve" => {
            let listen = format!("--listen 127.0.0.1:{}", ports::free().unwrap());
            let refused = ("--mode nothing", 78, "worker-queue");
            Entry { way: Way::RunsOn, ..alone(&listen, "fencepost ready on http://", Json::None, refused) }
        }
        "node" => {
            let refused = ("--exec no-such-program-here", 2, "there is no program");
            let shape = alone("--node-id other --exec cat", "connected", Json::None, refused);
            Entry { way: Way::RunsOn, ..shape }
        }
        "submit" => asks("--kind k x", "\n", DOCUMENT, ("--session no-such x", "not_found")),
        "stats" => reads("", "POOL ", DOCUMENT),
        "top" => reads("", "POOL ", DOCUMENT),
        "health" => Entry { needs_token: false, ..reads("--ready", "CHECK ", DOCUMENT) },
        "migrate" => {
            let refused = format!("--check --database-url {}", somewhere());
            alone(&format!("--database-url {}", somewhere()), "", Json::None, (&refused, 78, "no ledger"))
        }
        "backup" => {
            let (new, old) = (world.path("copy.db"), world.file("copy.db", "x"));
            let of = |file: &str| format!("{file} --database-url {ledger}");
            alone(&of(new.to_str()?), "", Json::None, (&of(&old), 78, "exists"))
        }
        "recover" => {
            // A daemon has the other one.
            let refused = format!("--dry-run --database-url {ledger}");
            let args = format!("--dry-run --database-url {}", world.idle_ledger);
            alone(&args, "would be recovered", Json::None, (&refused, 78, "in use by"))
        }
        "check-config" => alone("", "[server]", DOCUMENT, ("--config no-such-file", 78, "no-such-file")),
        "completions" => alone("bash", "_fencepost", Json::None, ("cmd", 2, "possible values")),
        _ => return None,
    })
}

async fn of_nonces(world: &World, name: &str) -> Option<Entry> {
    let no = "eip155:1:0xno";
    Some(match name {
        "grant" => asks("eip155:1:0xab", "NONCE ", DOCUMENT, ("!", "invalid")),
        "settle" => {
            let (nonce, hold) = world.held().await;
            let args = |hold: &str| format!("eip155:1:0xcd {nonce} --hold {hold} --outcome consumed");
            asks(&args(&hold), "is CONSUMED", DOCUMENT, (&args("no-such"), "stale_hold"))
        }
        "show" => asks("eip155:1:0xab", "next nonce", DOCUMENT, (no, "not_found")),
        "list" => asks("eip155:1:0xab", "NONCE ", LINES, ("eip155:1:0xab --cursor no", "invalid")),
        "policy" => {
            let refused = ("eip155:1:0xab --first-nonce 9", "conflict");
            asks("eip155:1:0xab --hold-ms 60000", "max in flight", DOCUMENT, refused)
        }
        "resolve" => {
            let args = format!("eip155:1:0xcd {} --outcome consumed", world.quarantined().await);
            let refused = (format!("{no} 7 --outcome consumed"), "not_found");
            asks(&args, "is CONSUMED", DOCUMENT, (&refused.0, refused.1))
        }
        "confirm" => {
            let args = format!("{} 1 --yes", world.recovering_signer());
            asks(&args, "next nonce", DOCUMENT, ("eip155:1:0xab 1", "conflict"))
        }
        _ => return None,
    })
}

fn of_ids(name: &str) -> Option<Entry> {
    Some(match name {
        "snowflake" => reads("--count 2", "\n", DOCUMENT),
        "segment" => asks("order", "\n", DOCUMENT, ("no-such", "not_found")),
        "sequence" => asks("invoice", "\n", DOCUMENT, ("no-such", "not_found")),
        "uuid" => reads("--count 2", "-", DOCUMENT),
        "decode" => reads("7", "worker number", DOCUMENT),
        "segments" => asks("", "TAG ", LINES, ("--cursor no", "invalid")),
        "sequences" => asks("--name invoice", "SEQUENCE ", LINES, ("--name !", "invalid")),
        "set-segment" => asks("order", "step ", DOCUMENT, ("!", "invalid")),
        "set-sequence" => asks("invoice", "increment ", DOCUMENT, ("!", "invalid")),
        _ => return None,
    })
}

async fn of_jobs(world: &World, name: &str) -> Option<Entry> {
    let (job, bulk) = (&world.job, &world.bulk);
    let no = ("no-such", "not_found");
    let no_filter = ("--yes --no-wait", "invalid");
    Some(match name {
        "list" => asks("", "JOB ", LINES, ("--cursor no", "invalid")),
        "show" => asks(job, "state ", DOCUMENT, no),
        "wait" => asks(job, "\"x\"\n", DOCUMENT, no),
        "cancel" => asks(&world.waiting_job().await, "cancel", LINES, no),
        "retry" => asks(&world.failed_job().await, "", LINES, no),
        "dismiss" => asks(&world.failed_job().await, "is dismissed", LINES, (job, "conflict")),
        "delete" => {
            let args = format!("{} --yes", world.failed_job().await);
            asks(&args, "", LINES, ("no-such --yes", "not_found"))
        }
        "bulk retry" => asks(
            "--dead --kind none --yes",
            "DONE: 0 jobs",
            DOCUMENT,
            ("--kind k --yes --no-wait", "invalid"),
        ),
        "bulk cancel" => asks("--kind none --yes", "DONE: 0 jobs", DOCUMENT, no_filter),
        "bulk delete" => asks("--kind none --yes", "DONE: 0 jobs", DOCUMENT, no_filter),
        "bulk dismiss" => asks("--kind none --yes", "DONE: 0 jobs", DOCUMENT, ("--pool ! --yes", "invalid")),
        "bulk list" => asks("", "BULK ", LINES, ("--cursor no", "invalid")),
        "bulk show" => asks(bulk, "status ", DOCUMENT, no),
        "bulk stop" => asks(bulk, "DONE: 1 jobs deleted", DOCUMENT, no),
        "events" => asks(job, "succeeded", LINES, no),
        _ => return None,
    })
}

async fn of_plans(world: &World, name: &str) -> Option<Entry> {
    let (plan, task) = &world.plan;
    let no = ("no-such", "not_found");
    let body = |tenant: String| {
        let text = format!(r#"{{"tasks":[{{"tenant":"{tenant}","stages":[{{"name":"s","payload":1}}]}}]}}"#);
        format!("-f {}", world.file("plan.json", &text))
    };
    Some(match name {
        "create" => {
            let refused = body("!".to_owned());
            asks(&body(format!("new-{}", world.next())), "\n", DOCUMENT, (&refused, "invalid"))
        }
        "start" => asks(&world.waiting_plan(false).await.0, "is RUNNING", DOCUMENT, no),
        "pause" => asks(&world.waiting_plan(true).await.0, "is PAUSED", DOCUMENT, no),
        "resume" => asks(&world.waiting_plan(true).await.0, "is RUNNING", DOCUMENT, no),
        "cancel" => asks(&world.waiting_plan(true).await.0, "plan ", DOCUMENT, no),
        "list" => asks("", "PLAN ", LINES, ("--cursor no", "invalid")),
        "show" => asks(plan, "1 of 1 succeeded", DOCUMENT, no),
        "wait" => asks(plan, "is SUCCEEDED", DOCUMENT, no),
        "events" => asks(plan, "SEQ ", LINES, no),
        "task" => asks(task, "STAGE ", DOCUMENT, no),
        "stages" => asks(task, "{\"name\":\"s0\",", DOCUMENT, no),
        "checkpoints" => asks(task, "VERSION ", LINES, no),
        "pause-task" => asks(&world.waiting_plan(true).await.1, "task ", DOCUMENT, no),
        "resume-task" => asks(&world.waiting_plan(true).await.1, "task ", DOCUMENT, no),
        "cancel-task" => asks(&world.waiting_plan(true).await.1, "task ", DOCUMENT, no),
        "resolve" => {
            let args = format!("{} 1 done --reason seen", world.unknown_task());
            let refused = format!("{task} 1 done --reason seen");
            asks(&args, "task ", DOCUMENT, (&refused, "conflict"))
        }
        "retry" => {
            let args = format!("{} --reason again", world.cancelled_task().await.0);
            asks(&args, "run ", DOCUMENT, ("no-such --reason again", "not_found"))
        }
        _ => return None,
    })
}

async fn of_tenants(world: &World, name: &str) -> Option<Entry> {
    Some(match name {
        "show" => asks("done", "newest task", DOCUMENT, ("no-such", "not_found")),
        "history" => asks("done", "TASK ", LINES, ("no-such", "not_found")),
        "retry" => {
            let args = format!("{} --reason again", world.cancelled_task().await.1);
            asks(&args, "run ", DOCUMENT, ("no-such --reason again", "not_found"))
        }
        "unlock" => {
            let (tenant, token) = world.locked_tenant().await;
            let args = |token: &str| format!("{tenant} --lock-token {token} --reason stuck --yes");
            asks(&args(&token), "", DOCUMENT, (&args("999999"), "conflict"))
        }
        _ => return None,
    })
}

async fn of_others(world: &World, name: &str) -> Option<Entry> {
    let no = ("no-such", "not_found");
    Some(match name {
        "lease list" => asks("", "RESOURCE ", LINES, ("--cursor no", "invalid")),
        "lease show" => asks("signer:eip155:1:0xab", "fencing token", DOCUMENT, ("signer:no", "not_found")),
        "cluster show" => reads("", "INSTANCE ", DOCUMENT),
        "session open" => asks("", "\n", DOCUMENT, ("--pool !", "invalid")),
        "session list" => asks("--open", "SESSION ", LINES, ("--cursor no", "invalid")),
        "session show" => asks(&world.session, "ordering", DOCUMENT, no),
        "session close" => asks(&world.session, "is closed", LINES, no),
        "nodes list" => asks("", "NODE ", LINES, ("--cursor no", "invalid")),
        "nodes show" => asks("cat", "state ", DOCUMENT, no),
        "nodes drain" => asks("cat", "is draining", LINES, no),
        "nodes undrain" => asks("cat", "is online", LINES, no),
        "nodes explain" => asks("", "chosen ", DOCUMENT, ("--pool !", "invalid")),
        "pool show" => reads("", "version ", DOCUMENT),
        "pool pause" => {
            asks("default --reason repair", "is paused", DOCUMENT, ("no-such --reason repair", "not_found"))
        }
        "pool resume" => asks("default", "is resumed", DOCUMENT, no),
        "pool set" => {
            let setting = world.get("/v1/config/pools").await;
            let file = world.file("pools.json", &setting.to_string());
            let mut wrong = setting;
            wrong["pools"] = json!([{"name": "!"}]);
            let wrong = format!("-f {} --yes", world.file("pools.json", &wrong.to_string()));
            asks(&format!("-f {file}"), "version ", DOCUMENT, (&wrong, "invalid"))
        }
        "audit list" => asks("", "AT ", LINES, ("--cursor no", "invalid")),
        "token new" => {
            alone("caller", "[[auth.tokens]]", DOCUMENT, ("caller --expires-at x", 2, "is no time such as"))
        }
        _ => return None,
    })
}
