//! Clients that submit jobs of all kinds, at random instances, until each is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use testkit::fault_nodes::{Chore, RARE_LABEL};
use testkit::fleet::Fleet;
use testkit::http::Client;
use tokio::task::JoinHandle;

use crate::access::{Access, Role};
use crate::job_checker::{Accepted, Hope};
use crate::owner::Request;

/// How long one request may take before it is sent anew.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Submissions that are repeated when all is over.
const REPEATED: usize = 300;

/// How long a submission may be refused that is sent again when all is over.
const REFUSED_MAX: Duration = Duration::from_secs(30);
const ONE: &str = "/v1/jobs";
const MANY: &str = "/v1/jobs/batch";
/// Strict sessions of one client, and one in so many of its jobs belongs to one of them.
const SESSIONS: u64 = 2;
const IN_SESSION: u32 = 4;

/// What a client has to tell in the end.
pub(super) struct Findings {
    pub(super) accepted: Vec<Accepted>,
    /// What was sent, and how it was answered.
    pub(super) sent: Vec<Sent>,
    /// Answers that nobody should get.
    pub(super) surprises: Vec<String>,
}

/// A submission and the jobs that it is.
pub(super) struct Sent {
    path: &'static str,
    key: String,
    body: Value,
    ids: Vec<Value>,
}

/// One client.
pub(super) struct Submitter {
    client: Client,
    urls: Vec<String>,
    dice: StdRng,
    number: u64,
    step: u64,
    pause: Duration,
    findings: Findings,
    sessions: Vec<String>,
    cancelling: Vec<(usize, JoinHandle<Result<String, String>>)>,
}

/// A job as it is submitted.
struct Wish {
    body: Value,
    hope: Hope,
    /// The strict session that it belongs to.
    session: Option<String>,
}

impl Submitter {
    pub(super) fn new(
        number: usize,
        of: usize,
        seed: u64,
        urls: &[String],
        pause: Duration,
        access: &Access,
    ) -> Result<Self> {
        Ok(Self {
            client: access.client(Role::Caller, REQUEST_LIMIT)?,
            urls: urls.to_vec(),
            dice: StdRng::seed_from_u64(seed.rotate_left(17) ^ number as u64),
            number: number as u64,
            step: of as u64,
            pause,
            findings: Findings { accepted: Vec::new(), sent: Vec::new(), surprises: Vec::new() },
            sessions: Vec::new(),
            cancelling: Vec::new(),
        })
    }

    pub(super) async fn run(mut self, stop: Arc<AtomicBool>) -> Findings {
        for session in 0..SESSIONS {
            let key = format!("session-{}-{session}", self.number);
            let answer = self.until_answered("/v1/sessions", &key, &json!({ "ordering": "strict" })).await;
            self.sessions.extend(answer["id"].as_str().map(str::to_owned));
        }
        while !stop.load(Ordering::Relaxed) {
            match self.dice.random_ratio(1, 5) {
                true => self.submit_many().await,
                false => self.submit_one().await,
            }
            tokio::time::sleep(self.pause.mul_f64(self.dice.random_range(0.0..2.0))).await;
        }
        for (index, cancelling) in self.cancelling {
            match cancelling.await {
                Ok(Ok(outcome)) => self.findings.accepted[index].answered = Some(outcome),
                Ok(Err(surprise)) => self.findings.surprises.push(surprise),
                Err(error) => self.findings.surprises.push(error.to_string()),
            }
        }
        self.findings
    }

    async fn submit_one(&mut self) {
        let number = self.next_number();
        let mut wish = wish(number, &mut self.dice);
        if self.dice.random_ratio(1, IN_SESSION) {
            wish.session = self.sessions.choose(&mut self.dice).cloned();
            wish.body["session"] = json!(wish.session);
            // Its place in the session decides.
            wish.body.as_object_mut().map(|body| body.remove("priority"));
        }
        let answer = self.until_answered(ONE, &key(number), &wish.body).await;
        let Some(id) = answer["id"].as_str() else {
            return self.findings.surprises.push(format!("a job was accepted without an id: {answer}"));
        };
        self.accepted(id, number, &wish);
        let ids = vec![answer["id"].clone()];
        self.findings.sent.push(Sent { path: ONE, key: key(number), body: wish.body, ids });
    }

    async fn submit_many(&mut self) {
        let first = self.next_number();
        let count = self.dice.random_range(1..8);
        let numbers: Vec<_> = std::iter::once(first).chain((1..count).map(|_| self.next_number())).collect();
        let wishes: Vec<_> = numbers.iter().map(|number| wish(*number, &mut self.dice)).collect();
        let body = json!({ "jobs": wishes.iter().map(|wish| &wish.body).collect::<Vec<_>>() });
        loop {
            let answer = self.until_answered(MANY, &key(first), &body).await;
            let results = answer["results"].as_array().cloned().unwrap_or_default();
            let ids: Option<Vec<_>> = results.iter().map(|result| result["id"].as_str()).collect();
            match ids {
                Some(ids) if ids.len() == wishes.len() => {
                    for ((id, number), wish) in ids.iter().zip(&numbers).zip(&wishes) {
                        self.accepted(id, *number, wish);
                    }
                    let ids = ids.into_iter().map(Value::from).collect();
                    return self.findings.sent.push(Sent { path: MANY, key: key(first), body, ids });
                }
                // Each place is answered as before, once it was accepted.
                _ => self.catch_breath().await,
            }
        }
    }

    fn accepted(&mut self, id: &str, number: u64, wish: &Wish) {
        let (hope, session) = (wish.hope, wish.session.clone());
        self.findings.accepted.push(Accepted { id: id.to_owned(), number, hope, answered: None, session });
        if hope == Hope::SuccessOrCancelled {
            let wait = Duration::from_millis(self.dice.random_range(0..500));
            let cancelling = cancel(
                self.client.clone(),
                self.urls.clone(),
                id.to_owned(),
                wait,
                self.dice.random_range(0..self.urls.len()),
            );
            self.cancelling.push((self.findings.accepted.len() - 1, tokio::spawn(cancelling)));
        }
    }

    fn next_number(&mut self) -> u64 {
        let number = self.number;
        self.number += self.step;
        number
    }

    /// Asks any instance, until one has accepted it.
    async fn until_answered(&mut self, path: &str, key: &str, body: &Value) -> Value {
        loop {
            let base = &self.urls[self.dice.random_range(0..self.urls.len())];
            let request = Request { method: "POST", path, key: Some(key), body: Some(body) };
            match request.ask(&self.client, base).await {
                Ok(reply) if matches!(reply.status, 201 | 202) => return reply.body,
                Ok(reply) if matches!(reply.status, 429 | 503) || reply.code() == "not_owner" => {}
                Ok(reply) => {
                    self.findings.surprises.push(format!("POST {path}: {} {}", reply.status, reply.text));
                }
                // Nobody knows what became of it.
                Err(_) => {}
            }
            self.catch_breath().await;
        }
    }

    async fn catch_breath(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.dice.random_range(20..300))).await;
    }
}

fn key(number: u64) -> String {
    format!("key-{number}")
}

/// A job of any kind.
fn wish(number: u64, dice: &mut StdRng) -> Wish {
    let mut chore = Chore { number, take_ms: dice.random_range(0..300), ..Chore::default() };
    let mut body = json!({
        "max_attempts": 100,
        "backoff": { "initial_ms": 100, "max_ms": 1_000 },
    });
    let mut hope = Hope::Success;
    match dice.random_range(0..20) {
        0 | 1 => body["delay_ms"] = json!(dice.random_range(1..3_000)),
        2 | 3 => chore.fails = dice.random_range(1..4),
        4 => (chore.is_broken, hope) = (true, Hope::Failure),
        5 => {
            chore.hangs = 1;
            body["timeout_ms"] = json!(1_000);
        }
        6 | 7 => {
            chore.take_ms *= 5;
            hope = Hope::SuccessOrCancelled;
        }
        8 => chore.take_ms = dice.random_range(1_000..4_000),
        _ => {}
    }
    if dice.random_ratio(1, 5) {
        body["priority"] = json!(dice.random_range(-10..=10));
    }
    if dice.random_ratio(1, 2) {
        body["tenant"] = json!(format!("t-{}", dice.random_range(0..5)));
    }
    if dice.random_ratio(1, 8) {
        body["requires"] = json!([RARE_LABEL]);
    }
    body["payload"] = chore.payload();
    Wish { body, hope, session: None }
}

/// Calls a job off after a while, at any instance, until one answers; what it came to.
async fn cancel(
    client: Client,
    urls: Vec<String>,
    id: String,
    wait: Duration,
    first: usize,
) -> Result<String, String> {
    tokio::time::sleep(wait).await;
    for turn in 0.. {
        let base = &urls[first.wrapping_add(turn) % urls.len()];
        let path = format!("/v1/jobs/{id}/cancel");
        match (Request { method: "POST", path: &path, key: None, body: None }).ask(&client, base).await {
            Ok(reply) if reply.status == 200 => {
                let outcome = reply.body["outcome"].as_str();
                return outcome
                    .map(str::to_owned)
                    .ok_or_else(|| format!("{id} is cancelled so: {}", reply.text));
            }
            Ok(reply) if matches!(reply.status, 409 | 429 | 503) => {}
            Ok(reply) => return Err(format!("POST {base}{path}: {} {}", reply.status, reply.text)),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err("it never comes to this".to_owned())
}

/// Some submissions again, when all is over: each key is still the same job, at any instance. What is refused for now is sent
/// once more, as the refusal asks for.
pub(super) async fn submit_again(fleet: &Fleet, client: &Client, sent: &[Sent]) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (turn, sent) in sent.iter().step_by(sent.len() / REPEATED + 1).enumerate() {
        let Sent { path, key, body, ids } = sent;
        let base = &fleet.urls()[turn % fleet.urls().len()];
        let request = Request { method: "POST", path, key: Some(key), body: Some(body) };
        let begun = Instant::now();
        let (reply, again) = loop {
            let reply = request.ask(client, base).await?;
            let again: Vec<_> = match reply.body["results"].as_array() {
                Some(results) => results.iter().map(|result| result["id"].clone()).collect(),
                None => vec![reply.body["id"].clone()],
            };
            if !again.contains(&Value::Null) || begun.elapsed() > REFUSED_MAX {
                break (reply, again);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        if again != *ids {
            wrong.push(format!("{key} was {ids:?} first, and is {} later", reply.text));
        }
    }
    Ok(wrong)
}
