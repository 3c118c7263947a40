//! A node in the test's own process: it does what its jobs' payloads say, notes what it is given, and holds what the test says.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::node::{Ended, Event, Failure, Job, Why, Worker, WorkerOptions};
use client::wire::Json;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::PATIENCE;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinHandle;

/// One attempt that a node was given.
#[derive(Clone, Debug)]
pub struct Run {
    pub node: String,
    pub job: String,
    pub attempt: u32,
    pub payload: Value,
    pub kind: Value,
    pub metadata: Value,
    /// What it was told of a plan.
    pub stage: Value,
    /// The span that it continues.
    pub traceparent: Option<String>,
    /// The job that its job repeats.
    pub retry_of: Option<String>,
    /// Why it was stopped, if it was.
    pub stopped: Option<Why>,
}

/// What nodes were given, in that order, and the gate before what is to be held.
pub struct Runs {
    runs: watch::Sender<Vec<Run>>,
    gate: Semaphore,
    /// How long what does not say otherwise takes.
    pause: Mutex<Duration>,
    /// How many run on each node, and how many did at most.
    busy: Mutex<HashMap<String, (usize, usize)>>,
    /// Whether what is deadly is so no more.
    is_cured: AtomicBool,
}

impl Runs {
    pub fn new() -> Arc<Self> {
        let (runs, gate) = (watch::Sender::default(), Semaphore::new(0));
        let is_cured = AtomicBool::new(false);
        Arc::new(Self { runs, gate, pause: Mutex::default(), busy: Mutex::default(), is_cured })
    }

    pub fn all(&self) -> Vec<Run> {
        self.runs.borrow().clone()
    }

    /// How many ran at once on this node, at most.
    pub fn most(&self, node: &str) -> usize {
        self.busy.lock().get(node).map_or(0, |(_, most)| *most)
    }

    fn begin(self: &Arc<Self>, node: &str) -> Busy {
        let mut busy = self.busy.lock();
        let (now, most) = busy.entry(node.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Busy { runs: Arc::clone(self), node: node.to_owned() }
    }

    /// Attempts of this job.
    pub fn of(&self, job: &str) -> Vec<Run> {
        self.runs.borrow().iter().filter(|run| run.job == job).cloned().collect()
    }

    /// Lets so many of those that are held, or will be, go.
    pub fn release(&self, count: usize) {
        self.gate.add_permits(count);
    }

    /// Waits until what was given is so.
    pub async fn until(&self, what: &str, so: impl Fn(&[Run]) -> bool) {
        let mut runs = self.runs.subscribe();
        let wait = tokio::time::timeout(PATIENCE, runs.wait_for(|runs| so(runs)));
        assert!(wait.await.is_ok(), "not within {PATIENCE:?}: {what}: {:?}", self.all());
    }

    /// Waits until this job was begun so often.
    pub async fn begun(&self, job: &str, times: usize) {
        self.until("it was begun", |runs| runs.iter().filter(|run| run.job == job).count() >= times).await;
    }

    /// Waits until this attempt was stopped; why.
    pub async fn stopped(&self, job: &str, attempt: u32) -> Why {
        let of = |run: &Run| (run.job == job && run.attempt == attempt).then_some(run.stopped).flatten();
        self.until("it was stopped", |runs| runs.iter().any(|run| of(run).is_some())).await;
        self.all().iter().find_map(of).unwrap()
    }

    /// Does what the payload says: `{"echo": x}` answers x at once, `{"large": n}` n letters, `{"hold": x}` x when it is let
    /// go, `{"steps": n}` says how far it is each time it is let go, and answers then, `{"fail": n}` fails in its first n
    /// attempts, `{"broken": text}` for good, and `{"deadly": true}` takes the node with it.
    async fn run(self: Arc<Self>, node: String, job: Job, death: Arc<Notify>) -> Given {
        let payload: Value = job.payload.read().unwrap();
        let Job { id, attempt, kind, metadata, stage, traceparent, retry_of, stop, progress, .. } = job;
        let _busy = self.begin(&node);
        let (job, kind, metadata) = (id.clone(), json!(kind), json!(metadata));
        let stage = stage.map_or(Value::Null, |stage| stage.read().unwrap());
        let payload_given = payload.clone();
        let run = Run {
            node,
            job,
            attempt,
            payload: payload_given,
            kind,
            metadata,
            stage,
            traceparent,
            retry_of,
            stopped: None,
        };
        self.runs.send_modify(|runs| runs.push(run));
        if payload["hold"] != Value::Null {
            progress.send(Some(50.0), Some("held"));
            tokio::select! {
                permit = self.gate.acquire() => permit.unwrap().forget(),
                why = stop.requested() => {
                    self.runs.send_modify(|runs| {
                        let of = |run: &&mut Run| run.job == id && run.attempt == attempt;
                        runs.iter_mut().find(of).unwrap().stopped = Some(why);
                    });
                    return Err(Failure::passing(why.to_string()));
                }
            }
            return Ok(Json::of(&payload["hold"]).unwrap());
        }
        if let Some(length) = payload["large"].as_u64() {
            return Ok(Json::of(&"x".repeat(length as usize)).unwrap());
        }
        if let Some(steps) = payload["steps"].as_u64() {
            for step in 1..=steps {
                self.gate.acquire().await.unwrap().forget();
                progress.send(Some((step * 100 / steps) as f64), Some(&format!("step {step}")));
            }
            self.gate.acquire().await.unwrap().forget();
            return Ok(Json::of(&steps).unwrap());
        }
        if payload["deadly"] == true && !self.is_cured.load(Ordering::Relaxed) {
            death.notify_one();
            std::future::pending::<()>().await;
        }
        if let Some(times) = payload["fail"].as_u64() {
            return match u64::from(attempt) <= times {
                true => Err(Failure::passing(format!("failure {attempt}"))),
                false => Ok(Json::of(&attempt).unwrap()),
            };
        }
        if let Some(text) = payload["broken"].as_str() {
            return Err(Failure::lasting(text));
        }
        let pause = *self.pause.lock();
        tokio::time::sleep(pause).await;
        Ok(Json::of(&payload["echo"]).unwrap())
    }

    /// From now on nothing is deadly.
    pub fn cure(&self) {
        self.is_cured.store(true, Ordering::Relaxed);
    }

    /// From now on each `echo` takes so long.
    pub fn take(&self, pause: Duration) {
        *self.pause.lock() = pause;
    }
}

/// Something runs on a node until this is dropped.
struct Busy {
    runs: Arc<Runs>,
    node: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some((now, _)) = self.runs.busy.lock().get_mut(&self.node) {
            *now -= 1;
        }
    }
}

type Given = Result<Json, Failure>;

/// A node in this process. Dropped, it is as dead as one that was killed: its socket closes without a word.
pub struct Node {
    pub runs: Arc<Runs>,
    stop: Option<oneshot::Sender<()>>,
    pub(super) task: JoinHandle<Option<Ended>>,
    connections: watch::Receiver<u32>,
}

impl Node {
    /// Begins to connect.
    pub fn start(urls: &[String], name: &str, shape: impl FnOnce(&mut WorkerOptions)) -> Self {
        Self::sharing(Runs::new(), urls, name, shape)
    }

    /// The same, noting what it is given beside what others are.
    pub fn sharing(
        runs: Arc<Runs>,
        urls: &[String],
        name: &str,
        shape: impl FnOnce(&mut WorkerOptions),
    ) -> Self {
        let mut options = WorkerOptions::new(urls.iter().cloned(), name);
        options.times.pause_max = Duration::from_millis(500);
        options.times.stop_grace = Duration::from_secs(1);
        shape(&mut options);
        let (connected, connections) = watch::channel(0);
        let worker = Worker::new(options).unwrap().with_observer(move |event| {
            if matches!(event, Event::Connected { .. }) {
                connected.send_modify(|count| *count += 1);
            }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let death = Arc::new(Notify::new());
        let (mine, deadly, name) = (Arc::clone(&runs), Arc::clone(&death), name.to_owned());
        let handler = move |job| Arc::clone(&mine).run(name.clone(), job, Arc::clone(&deadly));
        let task = tokio::spawn(async move {
            tokio::select! {
                // A sender that is gone tells it as well.
                ended = worker.run(handler, async { stopped.await.unwrap_or_default() }) => Some(ended.unwrap()),
                () = death.notified() => None,
            }
        });
        Self { runs, stop: Some(stop), task, connections }
    }

    /// Waits until a scheduler has taken it.
    pub async fn connected(&self) {
        let mut connections = self.connections.clone();
        let wait = tokio::time::timeout(PATIENCE, connections.wait_for(|count| *count > 0));
        assert!(wait.await.is_ok(), "the node is not connected");
    }

    /// Waits for its end; `None` if its work took it along.
    pub async fn ended(&mut self) -> Option<Ended> {
        tokio::time::timeout(PATIENCE, &mut self.task).await.expect("the node ends").unwrap()
    }

    /// Has it finish what it has, and waits until it has.
    pub async fn stop(mut self) -> Option<Ended> {
        self.stop.take().unwrap().send(()).unwrap();
        self.ended().await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}
