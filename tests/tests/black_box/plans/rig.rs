//! What the tests of plans stand on: a plan at one of several instances, and waiting for what must become of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use crate::jobs::rig::{Node, Rig};
use crate::until;

/// Runs every case on SQLite with one instance, and on PostgreSQL with two.
macro_rules! on_both_ledgers {
    ($($case:ident,)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() { super::$case(crate::jobs::rig::Rig::alone().await).await; })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() { super::$case(crate::jobs::rig::Rig::together(2).await).await; })+
        }
    };
}
pub(crate) use on_both_ledgers;

/// A plan that was made at an instance.
pub struct Plan<'r> {
    pub rig: &'r Rig,
    /// The instance that is asked.
    pub at: usize,
    pub id: String,
    /// Its tasks, in order.
    pub tasks: Vec<String>,
}

/// A stage that a node gives back at once.
pub fn echo(of: Value) -> Value {
    json!({ "echo": of })
}

/// A stage that a node holds until it is let go.
pub fn hold(of: Value) -> Value {
    json!({ "hold": of })
}

/// A task for a tenant, with stages that are called `s0`, `s1` and so on.
pub fn task(tenant: &str, payloads: &[Value]) -> Value {
    json!({ "tenant": tenant, "stages": stages(payloads) })
}

/// Stages with these payloads.
pub fn stages(payloads: &[Value]) -> Value {
    payloads
        .iter()
        .enumerate()
        .map(|(n, payload)| json!({"name": format!("s{n}"), "payload": payload}))
        .collect()
}

/// A plan with these tasks that is started at once.
pub fn plan(tasks: &[Value]) -> Value {
    json!({ "name": "a plan", "start": true, "tasks": tasks })
}

/// A reason, which some requests must have.
pub fn because() -> Value {
    json!({ "reason": "because" })
}

impl<'r> Plan<'r> {
    /// Makes a plan at an instance.
    pub async fn make(rig: &'r Rig, at: usize, body: Value) -> Self {
        let made = rig.post(at, "/v1/plans", Some(&body), 201).await;
        let id = made["id"].as_str().unwrap().to_owned();
        let listed = rig.get(at, &format!("/v1/plans/{id}/tasks?limit=1000")).await;
        let of = |task: &Value| task["id"].as_str().unwrap().to_owned();
        let tasks = listed["items"].as_array().unwrap().iter().map(of).collect();
        Self { rig, at, id, tasks }
    }

    /// The same plan, asked for at another instance.
    pub fn seen_from(&self, at: usize) -> Self {
        Self { rig: self.rig, at, id: self.id.clone(), tasks: self.tasks.clone() }
    }

    pub async fn show(&self) -> Value {
        self.rig.get(self.at, &format!("/v1/plans/{}", self.id)).await
    }

    pub async fn task(&self, place: usize) -> Value {
        self.rig.get(self.at, &format!("/v1/tasks/{}", self.tasks[place])).await
    }

    /// The statuses of a task's stages.
    pub async fn stages(&self, place: usize) -> Vec<String> {
        statuses(&self.task(place).await)
    }

    /// Events of the plan: what is asked of each, in order.
    pub async fn events<T>(&self, of: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        let listed = self.rig.get(self.at, &format!("/v1/plans/{}/events?limit=1000", self.id)).await;
        listed["items"].as_array().unwrap().iter().filter_map(of).collect()
    }

    pub async fn checkpoints(&self, place: usize) -> Vec<Value> {
        let path = format!("/v1/tasks/{}/checkpoints?limit=1000", self.tasks[place]);
        let mut all = self.rig.get(self.at, &path).await["items"].as_array().unwrap().clone();
        all.sort_by_key(|checkpoint| checkpoint["version"].as_u64());
        all
    }

    /// Waits until the plan is so.
    pub async fn is(&self, status: &str) -> Value {
        let mut last = Value::Null;
        until(&format!("plan {} is {status}", self.id), async || {
            let reply = self.rig.ask(self.at, "GET", &format!("/v1/plans/{}", self.id), None).await;
            last = reply.body;
            last["status"] == status
        })
        .await;
        last
    }

    /// Waits until a task is so.
    pub async fn task_is(&self, place: usize, status: &str) -> Value {
        let mut last = Value::Null;
        let path = format!("/v1/tasks/{}", self.tasks[place]);
        until(&format!("task {place} is {status}"), async || {
            last = self.rig.ask(self.at, "GET", &path, None).await.body;
            last["status"] == status
        })
        .await;
        last
    }

    /// Waits until a task has so many checkpoints.
    pub async fn has_checkpoints(&self, place: usize, count: usize) {
        let begun = Instant::now();
        while self.checkpoints(place).await.len() != count {
            if begun.elapsed() > testkit::PATIENCE {
                let task = self.task(place).await;
                let mut jobs = Vec::new();
                for job in task["stages"].as_array().unwrap().iter().filter_map(|stage| stage["job"].as_str())
                {
                    jobs.push(self.rig.ask(self.at, "GET", &format!("/v1/jobs/{job}"), None).await.text);
                }
                panic!("not {count} checkpoints: {task}; its jobs: {jobs:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// `POST` on the plan, which must be answered so.
    pub async fn post(&self, verb: &str, body: Option<&Value>, status: u16) -> Value {
        self.rig.post(self.at, &format!("/v1/plans/{}/{verb}", self.id), body, status).await
    }

    /// `POST` on a task, which must be answered so.
    pub async fn post_task(&self, place: usize, verb: &str, body: Option<&Value>, status: u16) -> Value {
        self.rig.post(self.at, &format!("/v1/tasks/{}/{verb}", self.tasks[place]), body, status).await
    }

    /// Retries a task, with these fields beside.
    pub async fn retry(&self, place: usize, fields: Value, status: u16) -> Value {
        self.post_task(place, "retry", Some(&retry(fields)), status).await
    }
}

/// The body of a retry from the checkpoint, with these fields beside.
pub fn retry(fields: Value) -> Value {
    crate::jobs::rig::with(json!({"from": "checkpoint", "reason": "try again"}), fields)
}

/// The statuses of the stages in a task that was shown.
pub fn statuses(task: &Value) -> Vec<String> {
    let of = |stage: &Value| stage["status"].as_str().unwrap().to_owned();
    task["stages"].as_array().unwrap_or(&Vec::new()).iter().map(of).collect()
}

/// Which stages of a task nodes were given, by their places, in that order.
pub fn given(node: &Node, task: &str) -> Vec<u64> {
    let of = |stage: &Value| (stage["task"] == task).then(|| stage["number"].as_u64().unwrap() - 1);
    node.runs.all().iter().filter_map(|run| of(&run.stage)).collect()
}

/// Waits until a node was given the stage at this place of a task so often.
pub async fn begun(node: &Node, task: &str, stage: u64, times: usize) {
    node.runs
        .until("the stage is begun", |runs| {
            let is_it = |seen: &Value| seen["task"] == task && seen["number"] == stage + 1;
            runs.iter().filter(|run| is_it(&run.stage)).count() >= times
        })
        .await;
}
