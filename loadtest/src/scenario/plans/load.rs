//! Plans over HTTP: many at once, large ones, and changes of one that waits.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use testkit::http::Client;
use tokio::task::JoinSet;

use crate::figures::{Latencies, Latency};
use crate::moments::{Moments, Step};
use crate::raw::{Connection, request};

/// A label that no node has.
const NOBODY: &str = "nobody";
/// Between two requests that are sent one at a time.
const IDLE_EVERY: Duration = Duration::from_millis(20);
/// No stage is recorded for so long, or a plan does not become what it must: something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// Plans, tasks of each, stages of each task.
type Size = (usize, usize, usize);

/// What a load came to.
pub(super) struct Load {
    /// From the first request to the last recorded stage.
    pub(super) length: Duration,
    /// From the request to the answer 201.
    pub(super) made: Latency,
}

/// Requests to one instance.
pub(super) struct Work {
    url: String,
    host: String,
    client: Client,
    moments: Arc<Moments>,
    /// The number of the next stage, as its payload says it.
    next: usize,
    /// The number of the next plan, which makes its tenants' names.
    plans: usize,
    /// Broken promises.
    pub(super) violations: Vec<String>,
}

impl Work {
    pub(super) fn new(url: &str, moments: &Arc<Moments>) -> Result<Self> {
        Ok(Self {
            url: url.to_owned(),
            host: url.trim_start_matches("http://").to_owned(),
            client: Client::new(PATIENCE)?,
            moments: Arc::clone(moments),
            next: 0,
            plans: 0,
            violations: Vec::new(),
        })
    }

    fn next_plan(&mut self) -> usize {
        self.plans += 1;
        self.plans
    }

    /// Makes and starts plans as fast as so many connections can, and waits until all have succeeded.
    pub(super) async fn load(&mut self, size: Size, connections: usize) -> Result<Load> {
        let (plans, tasks, stages) = size;
        let first = self.next;
        self.next += plans * tasks * stages;
        let bodies: Vec<_> = (0..plans)
            .map(|plan| {
                let from = first + plan * tasks * stages;
                let mut body =
                    plan_of(self.next_plan(), tasks, stages, |task, stage| from + task * stages + stage);
                body["start"] = json!(true);
                request("POST", &self.host, "/v1/plans", Some(&body.to_string()))
            })
            .collect();
        let numbers = first..self.next;
        numbers.clone().for_each(|number| self.moments.now(Step::Due, number));
        let (ids, took) = make(&self.host, bodies, connections).await?;
        self.moments.until_recorded(self.next, PATIENCE).await?;
        for id in ids {
            self.until(&id, "SUCCEEDED").await?;
            if tasks * stages > 1 {
                self.verify(&id, stages).await?;
            }
        }
        self.violations.extend(out_of_order(&self.moments, numbers.clone(), stages));
        Ok(Load { length: self.moments.length(numbers), made: Latencies::gather(took)?.summary() })
    }

    /// How long large plans take that are made one at a time. They are not started.
    pub(super) async fn large(&mut self, count: usize, tasks: usize, stages: usize) -> Result<Latency> {
        let mut took = Vec::new();
        for _ in 0..count {
            let body = plan_of(self.next_plan(), tasks, stages, |_, _| 0);
            let asked = request("POST", &self.host, "/v1/plans", Some(&body.to_string()));
            took.extend(make(&self.host, vec![asked], 1).await?.1);
            tokio::time::sleep(IDLE_EVERY).await;
        }
        Ok(Latencies::gather(took)?.summary())
    }

    /// Pauses and resumes a task that waits for its turn, one request at a time; how long each takes.
    pub(super) async fn changes(&mut self, count: usize) -> Result<Latency> {
        let mut body = plan_of(self.next_plan(), 2, 1, |_, _| 0);
        body["start"] = json!(true);
        body["max_concurrency"] = json!(1);
        body["tasks"][0]["stages"][0]["requires"] = json!([NOBODY]);
        let asked = request("POST", &self.host, "/v1/plans", Some(&body.to_string()));
        let (ids, _) = make(&self.host, vec![asked], 1).await?;
        let tasks = self.client.list(&format!("{}/v1/plans/{}/tasks", self.url, ids[0])).await?;
        let task = tasks[1]["id"].as_str().context("a task has an id")?;
        let verbs = [("pause", "PAUSED"), ("resume", "PENDING")];
        let requests =
            verbs.map(|(verb, _)| request("POST", &self.host, &format!("/v1/tasks/{task}/{verb}"), None));
        let mut connection = Connection::open(&self.host).await?;
        let mut took = Vec::new();
        for turn in 0..count {
            let (verb, expected) = verbs[turn % 2];
            let sent = Instant::now();
            let (status, answer) = connection.exchange(&requests[turn % 2]).await?;
            took.push(sent.elapsed().as_micros() as u64);
            let answer: Value = serde_json::from_slice(answer)?;
            ensure!(status == 200 && answer["status"] == expected, "{verb}: {status} {answer}");
            tokio::time::sleep(IDLE_EVERY).await;
        }
        let cancel = format!("{}/v1/plans/{}/cancel", self.url, ids[0]);
        self.client.request("POST", &cancel, None, None).await?;
        self.until(&ids[0], "CANCELLED").await?;
        Ok(Latencies::gather(took)?.summary())
    }

    async fn until(&self, plan: &str, status: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            let shown = self.client.get(&format!("{}/v1/plans/{plan}", self.url)).await?;
            if shown["status"] == status {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "it is not {status}: {shown}");
            tokio::time::sleep(IDLE_EVERY).await;
        }
    }

    /// Each task of a plan has succeeded in one run, with a checkpoint for each stage.
    async fn verify(&mut self, plan: &str, stages: usize) -> Result<()> {
        for task in self.client.list(&format!("{}/v1/plans/{plan}/tasks", self.url)).await? {
            if task["status"] != "SUCCEEDED" || task["run"] != 1 || task["checkpoint_version"] != stages {
                self.violations.push(format!("not one run with {stages} checkpoints: {task}"));
            }
        }
        Ok(())
    }
}

/// A plan whose tasks may all run at once. Each payload has the number of its stage.
fn plan_of(plan: usize, tasks: usize, stages: usize, number: impl Fn(usize, usize) -> usize) -> Value {
    let stage = |task, stage| json!({ "name": format!("s{stage}"), "payload": { "n": number(task, stage) } });
    let task = |task| {
        let stages: Vec<_> = (0..stages).map(|number| stage(task, number)).collect();
        json!({ "tenant": format!("load-{plan}-{task}"), "stages": stages })
    };
    json!({ "max_concurrency": tasks.clamp(1, 100), "tasks": (0..tasks).map(task).collect::<Vec<_>>() })
}

/// Sends requests that make plans over so many connections; the plans' ids, and how long each took in microseconds.
async fn make(host: &str, requests: Vec<Vec<u8>>, connections: usize) -> Result<(Vec<String>, Vec<u64>)> {
    let (requests, next) = (Arc::new(requests), Arc::new(AtomicUsize::new(0)));
    let mut workers = JoinSet::new();
    for _ in 0..connections.min(requests.len()) {
        let (host, requests, next) = (host.to_owned(), Arc::clone(&requests), Arc::clone(&next));
        workers.spawn(async move {
            let mut connection = Connection::open(&host).await?;
            let mut made = Vec::new();
            while let Some(asked) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                let sent = Instant::now();
                let (status, answer) = connection.exchange(asked).await?;
                let took = sent.elapsed().as_micros() as u64;
                let plan: Value = serde_json::from_slice(answer).unwrap_or_default();
                let Some(id) = plan["id"].as_str().filter(|_| status == 201) else {
                    bail!("a plan is not made: {status} {}", String::from_utf8_lossy(answer));
                };
                made.push((id.to_owned(), took));
            }
            Ok(made)
        });
    }
    let mut all = Vec::new();
    while let Some(made) = workers.join_next().await {
        all.extend(made??);
    }
    Ok(all.into_iter().unzip())
}

/// Tasks whose stages did not come to the nodes in order, or of which one did not come.
fn out_of_order(moments: &Moments, numbers: Range<usize>, stages: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for task in numbers.step_by(stages) {
        let there: Vec<_> = (task..task + stages).map(|number| moments.of(Step::There, number)).collect();
        if there.contains(&None) || !there.is_sorted_by(|earlier, later| earlier < later) {
            wrong.push(format!("stages from number {task} on were not run in order: {there:?}"));
        }
    }
    wrong
}
