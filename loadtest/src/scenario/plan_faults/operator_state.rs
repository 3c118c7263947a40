//! What the operators share: the plans that they made, the way to the instances, and what they remember.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use testkit::fault_nodes::FaultNodes;
use testkit::http::{Client, Reply};

use super::asked::Made;
use crate::access::{Access, Role};
use crate::owner::Request;
use crate::plan_checker::reported::Decision;

/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How long any instance may take to answer a question. There are moments in which none can.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// What all operators share.
pub(super) struct OperatorState {
    client: Client,
    urls: Vec<String>,
    /// The nodes, in whose diaries operators look what a stage did.
    pub(super) nodes: Arc<FaultNodes>,
    memory: Mutex<Memory>,
    numbers: AtomicU64,
}

/// What operators remember.
#[derive(Default)]
pub(super) struct Memory {
    /// All plans that were accepted.
    pub(super) made: Vec<Arc<Made>>,
    /// Those that may not have ended.
    pub(super) open: Vec<Arc<Made>>,
    /// Decisions that were answered 2xx, with the task that they are about.
    pub(super) decided: Vec<(String, Decision)>,
    /// Answers by what was asked.
    pub(super) answers: BTreeMap<String, u64>,
    /// Answers that nobody should get.
    pub(super) surprises: Vec<String>,
}

impl OperatorState {
    pub(super) fn new(urls: &[String], nodes: Arc<FaultNodes>, access: &Access) -> Result<Self> {
        let (memory, numbers) = Default::default();
        let client = access.client(Role::Operator, REQUEST_LIMIT)?;
        Ok(Self { client, urls: urls.to_vec(), nodes, memory, numbers })
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    /// A number that no plan and no decision has.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The address of any instance.
    fn base(&self, dice: &mut StdRng) -> &str {
        self.urls.choose(dice).map_or("", String::as_str)
    }

    /// One `POST` to any instance. The answer if the request was carried out, or was refused for what the plan is; nothing
    /// where nobody knows.
    pub(super) async fn ask(
        &self,
        dice: &mut StdRng,
        what: &str,
        path: &str,
        body: &Value,
        key: Option<&str>,
    ) -> Option<Reply> {
        let request = Request { method: "POST", path, key, body: Some(body) };
        let reply = request.ask(&self.client, self.base(dice)).await;
        let answer = match &reply {
            Ok(reply) if reply.status < 300 => "done".to_owned(),
            Ok(reply) => format!("{} {}", reply.status, reply.code()),
            Err(_) => "no answer".to_owned(),
        };
        *self.memory().answers.entry(format!("{what}: {answer}")).or_default() += 1;
        match reply {
            Ok(reply) if matches!(reply.status, 200..=202 | 409) && reply.code() != "not_owner" => {
                Some(reply)
            }
            Ok(reply) if matches!(reply.status, 429 | 503) || reply.code() == "not_owner" => None,
            Ok(reply) => {
                self.memory().surprises.push(format!("POST {path} {body}: {} {}", reply.status, reply.text));
                None
            }
            Err(_) => None,
        }
    }

    /// What any instance shows, as soon as one answers.
    pub(super) async fn show<T: DeserializeOwned>(&self, dice: &mut StdRng, path: &str) -> Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(shown) = self.find(dice, path).await? {
                return Ok(shown);
            }
            ensure!(begun.elapsed() < ANSWERED_WITHIN, "GET {path}: it is not there");
        }
    }

    /// The same, or nothing if two instances answer that it is not there; or the only one.
    pub(super) async fn find<T: DeserializeOwned>(&self, dice: &mut StdRng, path: &str) -> Result<Option<T>> {
        let begun = Instant::now();
        let mut without = BTreeSet::new();
        while without.len() < self.urls.len().min(2) {
            let base = self.base(dice);
            let request = Request { method: "GET", path, key: None, body: None };
            let reply = request.ask(&self.client, base).await;
            match &reply {
                Ok(reply) if reply.status == 200 => {
                    let shown = serde_json::from_value(reply.body.clone());
                    return shown.map(Some).with_context(|| format!("GET {path}: {}", reply.text));
                }
                Ok(reply) if reply.status == 404 => {
                    without.insert(base);
                }
                _ => {}
            }
            ensure!(begun.elapsed() < ANSWERED_WITHIN, "GET {path} has no answer: {reply:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(None)
    }

    /// All items of a list, as soon as an instance answers.
    pub(super) async fn list<T: DeserializeOwned>(&self, dice: &mut StdRng, path: &str) -> Result<Vec<T>> {
        let begun = Instant::now();
        loop {
            match self.client.list(&format!("{}{path}", self.base(dice))).await {
                Ok(items) => {
                    let read = |item: Value| {
                        let text = item.to_string();
                        serde_json::from_value(item).with_context(|| format!("GET {path}: {text}"))
                    };
                    return items.into_iter().map(read).collect();
                }
                Err(error) if begun.elapsed() >= ANSWERED_WITHIN => {
                    return Err(error.context(format!("GET {path}")));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use serde_json::json;
    use testkit::credentials::Credentials;
    use testkit::fault_nodes::Counts;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// An instance that answers every request with this status.
    async fn instance(status: u16) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = [0; 4_096];
                    while socket.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 2\r\n\r\n{{}}");
                        let _ = socket.write_all(answer.as_bytes()).await;
                    }
                });
            }
        });
        format!("http://{address}")
    }

    /// What is found at these instances, whichever is asked first.
    async fn found(urls: &[String]) -> Vec<Option<Value>> {
        let nodes = FaultNodes::start(Counts::default(), None, urls, &Credentials::default(), 0).unwrap();
        let shared = OperatorState::new(urls, Arc::new(nodes), &Access::open()).unwrap();
        let mut found = Vec::new();
        for seed in 0..8 {
            let mut dice = StdRng::seed_from_u64(seed);
            found.push(shared.find(&mut dice, "/v1/jobs/j").await.unwrap());
        }
        found
    }

    #[tokio::test]
    async fn what_one_instance_shows_is_there_and_what_two_or_the_only_one_do_not_know_is_not() {
        let (knows, other) = (instance(200).await, instance(404).await);
        assert_eq!(found(std::slice::from_ref(&other)).await, vec![None; 8]);
        assert_eq!(found(&[other.clone(), instance(404).await]).await, vec![None; 8]);
        assert_eq!(found(&[other, knows]).await, vec![Some(json!({})); 8]);
    }
}
