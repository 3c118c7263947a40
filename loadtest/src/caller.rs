//! One client as clients are: asks for nonces, settles them, retries what got no answer, and is
//! forgetful now and then. It verifies nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use testkit::http::Client;

use crate::access::{Access, Role};
use crate::history::{Answer, Asked, History, Outcome, Settlement, Verdict};
use crate::nonce_calls;

/// Attempts at one request before the client gives it up.
const ATTEMPTS_MAX: usize = 40;
/// The longest hold that a client asks for.
pub const HOLD_MAX: Duration = Duration::from_secs(60);
/// Old grants that are remembered to be asked for again.
const REMEMBERED_MAX: usize = 50;

struct Held {
    signer: String,
    nonce: u64,
    hold: String,
}

/// A client with its dice, its holds and its memory of old requests.
pub struct Caller {
    number: usize,
    dice: StdRng,
    urls: Vec<String>,
    signers: Arc<[String]>,
    history: Arc<History>,
    http: Client,
    held: Vec<Held>,
    past: VecDeque<Asked>,
    keys: u64,
    stop: Arc<AtomicBool>,
}

impl Caller {
    /// A client that sprays its requests over `urls`.
    ///
    /// # Errors
    /// The HTTP library cannot be set up.
    pub fn new(
        number: usize,
        seed: u64,
        urls: &[String],
        signers: &Arc<[String]>,
        history: Arc<History>,
        access: &Access,
    ) -> Result<Self> {
        // Half of the clients give up sooner than a pause lasts, so that what a frozen instance has yet to
        // carry out is retried elsewhere meanwhile; the others are still there when it wakes.
        let patience = Duration::from_millis(if number.is_multiple_of(2) { 1_000 } else { 8_000 });
        Ok(Self {
            number,
            dice: StdRng::seed_from_u64(seed.wrapping_add(1 + number as u64)),
            urls: urls.to_vec(),
            signers: Arc::clone(signers),
            history,
            http: access.client(Role::Caller, patience)?,
            held: Vec::new(),
            past: VecDeque::new(),
            keys: 0,
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    /// The same client, which gives up on an answer after this time only.
    ///
    /// # Errors
    /// The HTTP library cannot be set up.
    pub fn waiting(self, patience: Duration, access: &Access) -> Result<Self> {
        Ok(Self { http: access.client(Role::Caller, patience)?, ..self })
    }

    /// Works until told to stop. A request that is under way then is given up unanswered at most once.
    pub async fn run(mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
        while !self.stopped() {
            match self.dice.random_range(0..100) {
                0..50 => self.grant().await,
                50..96 => self.settle().await,
                _ => self.ask_again().await,
            }
            self.pause(5..20).await;
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    async fn grant(&mut self) {
        let asked = self.new_grant();
        let keyed = matches!(&asked, Asked::Grant { key: Some(_), .. });
        let answer = if keyed { self.persist(&asked).await } else { self.once(&asked).await };
        if keyed && self.dice.random_ratio(1, 8) {
            self.once(&asked).await;
        }
        if keyed {
            self.past.push_back(asked.clone());
            if self.past.len() > REMEMBERED_MAX {
                self.past.pop_front();
            }
        }
        if let Answer::Granted { grants, .. } = answer {
            for one in grants {
                // A caller that dies leaves its holds to run out.
                if !self.dice.random_ratio(1, 10) {
                    let signer = asked.signer().to_owned();
                    self.held.push(Held { signer, nonce: one.nonce, hold: one.hold });
                }
            }
        }
    }

    fn new_grant(&mut self) -> Asked {
        let hot = self.dice.random_bool(0.5);
        let signer =
            self.dice.random_range(0..if hot { self.signers.len().min(2) } else { self.signers.len() });
        let count = if self.dice.random_bool(0.6) { 1 } else { self.dice.random_range(2..=20) };
        let is_short = self.dice.random_bool(0.3);
        let hold_ms = if is_short { self.dice.random_range(200..2_000) } else { HOLD_MAX.as_millis() as u64 };
        let key = self.dice.random_bool(0.7).then(|| {
            self.keys += 1;
            format!("c{}-{}", self.number, self.keys)
        });
        Asked::Grant { signer: self.signers[signer].clone(), count, hold_ms, key }
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let first = self.dice.random_range(0..self.held.len());
        let signer = self.held[first].signer.clone();
        let most = self.dice.random_range(1..=10);
        let mut taken = Vec::new();
        let mut kept = Vec::new();
        for one in self.held.drain(..) {
            if one.signer == signer && taken.len() < most { taken.push(one) } else { kept.push(one) }
        }
        self.held = kept;
        let settlements: Vec<Settlement> = taken.into_iter().map(|one| self.line(one)).collect();
        let asked = Asked::Settle { signer: signer.clone(), settlements };
        let answer = self.persist(&asked).await;
        if self.dice.random_ratio(1, 10) {
            self.once(&asked).await;
        }
        let (Asked::Settle { settlements, .. }, Answer::Settled(verdicts)) = (asked, answer) else { return };
        for (line, verdict) in settlements.into_iter().zip(verdicts) {
            // Half of those in doubt are decided later, by their holds; the rest stay in quarantine.
            if matches!(&verdict, Verdict::Done(status) if status == "QUARANTINED")
                && self.dice.random_bool(0.5)
            {
                self.held.push(Held { signer: signer.clone(), nonce: line.nonce, hold: line.hold });
            }
        }
    }

    fn line(&mut self, held: Held) -> Settlement {
        let outcome = match self.dice.random_range(0..10) {
            0..6 => Outcome::Consumed,
            6..9 => Outcome::NeverSent,
            _ => Outcome::Unknown,
        };
        let tx_hash = (outcome == Outcome::Consumed).then(|| format!("0x{}", held.hold.replace('-', "")));
        Settlement { nonce: held.nonce, hold: held.hold, outcome, tx_hash }
    }

    /// An old grant under its old key: must be the old answer, or stale.
    async fn ask_again(&mut self) {
        if self.past.is_empty() {
            return;
        }
        let which = self.dice.random_range(0..self.past.len());
        let asked = self.past[which].clone();
        self.once(&asked).await;
    }

    async fn once(&mut self, asked: &Asked) -> Answer {
        let to = self.dice.random_range(0..self.urls.len());
        nonce_calls::ask(&self.http, &self.history, self.number, &self.urls[to], asked).await
    }

    /// The same request, each time to any instance, until it is answered.
    async fn persist(&mut self, asked: &Asked) -> Answer {
        let mut answer = self.once(asked).await;
        for _ in 1..ATTEMPTS_MAX {
            let again = match &answer {
                Answer::Unknown { .. } => true,
                Answer::Refused { status, .. } => matches!(status, 429 | 503),
                _ => false,
            };
            if !again || self.stopped() {
                break;
            }
            self.pause(20..120).await;
            answer = self.once(asked).await;
        }
        answer
    }

    async fn pause(&mut self, ms: std::ops::Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.dice.random_range(ms))).await;
    }
}
