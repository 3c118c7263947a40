//! What the commands are tried on: a daemon on SQLite whose ledger was recovered, with a node, jobs, a session and plans.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::instance::{Running, Setup};
use testkit::process::Signal;

use super::run;
use crate::jobs::rig::Rig;
use crate::plans::rig::{Plan, begun, hold, plan, task};

/// How many things of one kind the entries of a command use up at most; there are no more.
const EACH: usize = 4;

/// The daemon and what is in it.
pub struct World {
    // Before the daemon: the node ends first.
    _node: Running,
    pub rig: Rig,
    pub dir: TempDir,
    /// The daemon's ledger.
    pub ledger: String,
    /// A ledger that no daemon has.
    pub idle_ledger: String,
    /// A job that succeeded.
    pub job: String,
    /// A session that is open.
    pub session: String,
    /// A plan that succeeded, and its task.
    pub plan: (String, String),
    /// A bulk operation that is over.
    pub bulk: String,
    /// Tasks whose first stage is UNKNOWN.
    unknown: Vec<String>,
    resolved: AtomicUsize,
    confirmed: AtomicUsize,
    made: AtomicUsize,
}

/// A command that goes on until it is ended.
pub fn setup(path: &[String], args: &[String]) -> Setup {
    let command = ["serve", "node"].into_iter().find(|name| path[0] == *name && path.len() == 1);
    let setup = Setup::command(command.unwrap_or_else(|| panic!("{path:?} is expected to end")));
    args.iter().fold(setup, |setup, arg| setup.arg(arg))
}

impl World {
    pub async fn start() -> Self {
        let rig = Rig::alone().await;
        let unknown = interrupted(&rig).await;
        let ledger =
            format!("sqlite:{}", rig.instance(0).await.dir().join("fencepost-data/ledger.db").display());
        for options in [&["--confirm", "--lead-ms", "1000"][..], &["--unknown-signers-are-new"]] {
            let args = [&["recover", "--database-url", &ledger][..], options].concat();
            let recovered = run("", &args).await;
            assert_eq!(recovered.code, Some(0), "{}", recovered.stderr);
        }
        rig.instance(0).await.start().await.unwrap();
        let url = rig.urls[0].clone();
        let script = r#"read -r it; test "$it" = '"fail"' && exit 65; printf %s "$it""#;
        let node = Setup::command("node").env("FENCEPOST_URL", &url).arg("--node-id").arg("cat");
        let node = node.arg("--exec").arg("sh").arg("-c").arg(script).start_command().unwrap();
        rig.node_is(0, "cat", |shown| shown["state"] == "online").await;

        let job = rig.submit(0, json!({"payload": "x"})).await;
        let done = rig.submit(0, json!({"payload": "x", "kind": "done"})).await;
        rig.finished(0, &job).await;
        rig.finished(0, &done).await;
        let filter = json!({"action": "delete", "filter": {"kind": "done"}});
        let bulk = id(&rig.post(0, "/v1/bulk", Some(&filter), 202).await);
        crate::until("the bulk operation is over", async || {
            rig.get(0, &format!("/v1/bulk/{bulk}")).await["status"] == "DONE"
        })
        .await;
        let session = id(&rig.post(0, "/v1/sessions", Some(&json!({})), 201).await);
        let good = Plan::make(&rig, 0, plan(&[task("done", &[json!(1)])])).await;
        good.is("SUCCEEDED").await;
        let plan = (good.id.clone(), good.tasks[0].clone());
        drop(good);
        for (path, body) in [("segments/order", json!({})), ("sequences/invoice", json!({}))] {
            let reply = rig.ask(0, "PUT", &format!("/v1/ids/{path}"), Some(&body)).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
        let dir = TempDir::with_prefix("fencepost-commands-").unwrap();
        let idle_ledger = format!("sqlite:{}", dir.path().join("idle.db").display());
        let migrated = run("", &["migrate", "--database-url", &idle_ledger]).await;
        assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
        let (resolved, confirmed, made) = Default::default();
        Self {
            _node: node,
            rig,
            dir,
            ledger,
            idle_ledger,
            job,
            session,
            plan,
            bulk,
            unknown,
            resolved,
            confirmed,
            made,
        }
    }

    pub fn url(&self) -> &str {
        &self.rig.urls[0]
    }

    /// A number that was not taken before.
    pub fn next(&self) -> usize {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// A path in the world's directory at which nothing is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{}-{name}", self.next()))
    }

    /// A file with this text.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A job that no node takes.
    pub async fn waiting_job(&self) -> String {
        self.rig.submit(0, json!({"payload": 1, "requires": ["nobody-has-it"]})).await
    }

    /// A job that has failed for good.
    pub async fn failed_job(&self) -> String {
        let id = self.rig.submit(0, json!({"payload": "fail"})).await;
        assert_eq!(self.rig.finished(0, &id).await["outcome"], "failed");
        id
    }

    /// A nonce that was just granted, and its hold.
    pub async fn held(&self) -> (String, String) {
        let granted = self.rig.post(0, "/v1/signers/eip155:1:0xcd/nonces", Some(&json!({})), 201).await;
        let grant = &granted["grants"][0];
        (grant["nonce"].to_string(), grant["hold"].as_str().unwrap().to_owned())
    }

    /// A nonce whose fate is not known.
    pub async fn quarantined(&self) -> String {
        let (nonce, hold) = self.held().await;
        let path = format!("/v1/signers/eip155:1:0xcd/nonces/{nonce}/release");
        let body = json!({"hold": hold, "outcome": "unknown"});
        assert_eq!(self.rig.post(0, &path, Some(&body), 200).await["status"], "QUARANTINED");
        nonce
    }

    /// A plan whose stage no node takes, started or not: its id, its task and the tenant.
    pub async fn waiting_plan(&self, start: bool) -> (String, String, String) {
        let tenant = format!("t-{}", self.next());
        let mut body = plan(&[task(&tenant, &[json!(1)])]);
        body["start"] = json!(start);
        body["tasks"][0]["stages"][0]["requires"] = json!(["nobody-has-it"]);
        let made = Plan::make(&self.rig, 0, body).await;
        if start {
            made.task_is(0, "RUNNING").await;
        }
        (made.id.clone(), made.tasks[0].clone(), tenant)
    }

    /// A task that was cancelled, and its tenant.
    pub async fn cancelled_task(&self) -> (String, String) {
        let (_, task, tenant) = self.waiting_plan(true).await;
        self.rig.post(0, &format!("/v1/tasks/{task}/cancel"), Some(&json!({"reason": "because"})), 200).await;
        crate::until("the task is cancelled", async || {
            self.rig.get(0, &format!("/v1/tasks/{task}")).await["status"] == "CANCELLED"
        })
        .await;
        (task, tenant)
    }

    /// A tenant that a running task has locked, and the lock's token.
    pub async fn locked_tenant(&self) -> (String, String) {
        let (_, _, tenant) = self.waiting_plan(true).await;
        let shown = self.rig.get(0, &format!("/v1/tenants/{tenant}")).await;
        (tenant, shown["lock"]["token"].to_string())
    }

    /// The tasks with an UNKNOWN stage; each is resolved once.
    pub fn unknown_task(&self) -> String {
        self.unknown[self.resolved.fetch_add(1, Ordering::Relaxed)].clone()
    }

    /// A signer that grants nothing before its next nonce is confirmed; each is confirmed once.
    pub fn recovering_signer(&self) -> String {
        format!("recovering-{}", self.confirmed.fetch_add(1, Ordering::Relaxed))
    }

    /// What is at a path.
    pub async fn get(&self, path: &str) -> Value {
        self.rig.get(0, path).await
    }
}

/// Tasks whose stage ran when the daemon was killed. It was not started again.
async fn interrupted(rig: &Rig) -> Vec<String> {
    let node = rig.node(&[0], "n", |options| options.capacity = EACH as u32).await;
    let tasks: Vec<Value> = (0..EACH).map(|n| task(&format!("unknown-{n}"), &[hold(json!(1))])).collect();
    let plan = Plan::make(rig, 0, plan(&tasks)).await;
    for task in &plan.tasks {
        begun(&node, task, 0, 1).await;
    }
    for n in 0..EACH {
        rig.post(0, &format!("/v1/signers/recovering-{n}/nonces"), Some(&json!({})), 201).await;
    }
    rig.end(0, Signal::Kill).await;
    plan.tasks.clone()
}

fn id(answer: &Value) -> String {
    answer["id"].as_str().unwrap().to_owned()
}
