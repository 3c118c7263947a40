//! Does a real chain accept what the instances hand out?
//!
//! Several senders per account take nonces from any instance, one of which is killed on the way, and
//! send them to an Ethereum development node. Some are withheld and settled `never_sent`; somebody
//! must then be given that nonce, or the chain waits for it for ever. At the end the holes are filled
//! and the chain's counts are laid beside ours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use testkit::fleet::Fleet;
use testkit::http::Client;
use testkit::servers::{Anvil, Database};

use crate::checker::{self, Violation};
use crate::history::{Answer, Asked, History, Outcome, Settlement, Verdict};
use crate::nonce_calls;
use crate::{report, tables};

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides what is asked and withheld (not the interleaving, which the machine decides).
    pub seed: u64,
    /// How many instances hand out nonces.
    pub instances: usize,
    /// Senders at work for each of the chain's ten accounts.
    pub senders: usize,
    /// Grants that each sender asks for.
    pub grants: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { seed: rand::random(), instances: 3, senders: 3, grants: 8 }
    }
}

/// What was done.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Transactions that the chain took and mined, by account.
    pub mined: BTreeMap<String, u64>,
    /// Nonces that were withheld and handed out again.
    pub withheld: u64,
    /// Broken promises. Empty is what we want.
    pub violations: Vec<String>,
}

impl report::Report for Report {
    fn table(&self) -> String {
        let mut lines = vec![("seed".to_owned(), self.seed.to_string())];
        lines.extend(report::counted("mined", &self.mined));
        lines.push(("withheld and handed out again".to_owned(), self.withheld.to_string()));
        lines.push(("broken promises".to_owned(), self.violations.len().to_string()));
        report::with_violations(report::two_columns(&lines), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}

struct Sender {
    chain: Arc<Anvil>,
    http: Client,
    history: Arc<History>,
    urls: Vec<String>,
    number: usize,
    dice: StdRng,
}

/// What one sender did.
#[derive(Default)]
struct Sent {
    hashes: Vec<String>,
    withheld: u64,
}

/// Runs the plan on a database whose server is left alone.
///
/// # Errors
/// The chain refuses a transaction, its counts differ from ours, or something does not start.
pub async fn run(plan: &Plan, database: Database) -> Result<Report> {
    let chain = Arc::new(Anvil::start().await?);
    let fleet = Fleet::on(database, "basic", plan.instances, |setup| {
        setup.env("FENCEPOST__LEASE__SIGNER_MS", "1000")
    })
    .await?;
    let history = Arc::new(History::default());
    let http = Client::new(Duration::from_secs(5))?;
    let accounts = chain.accounts().await?;
    ensure!(accounts.len() == 10, "the chain has ten accounts, not {}", accounts.len());

    let mut running = tokio::task::JoinSet::new();
    for account in &accounts {
        for _ in 0..plan.senders {
            let sender = Sender {
                chain: Arc::clone(&chain),
                http: http.clone(),
                history: Arc::clone(&history),
                urls: fleet.urls().to_vec(),
                number: running.len(),
                dice: StdRng::seed_from_u64(plan.seed.wrapping_add(running.len() as u64)),
            };
            running.spawn(sender.work(account.clone(), plan.grants));
        }
    }
    // One instance dies in the middle of it: when a good part of the grants were answered.
    let expected = accounts.len() * plan.senders * plan.grants;
    let give_up = Instant::now() + Duration::from_secs(60);
    while history.records().len() < expected / 3 && Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fleet.kill_and_restart(0, Duration::from_millis(500)).await?;

    let mut all = Sent::default();
    while let Some(sent) = running.join_next().await {
        let sent = sent??;
        all.hashes.extend(sent.hashes);
        all.withheld += sent.withheld;
    }
    for account in &accounts {
        let mut sender = Sender {
            chain: Arc::clone(&chain),
            http: http.clone(),
            history: Arc::clone(&history),
            urls: fleet.urls().to_vec(),
            number: usize::MAX,
            dice: StdRng::seed_from_u64(plan.seed),
        };
        all.hashes.extend(sender.fill_holes(account).await?);
    }
    let mined = compare(&chain, &http, &fleet.urls()[0], &accounts, &all.hashes).await?;
    let tables = tables::read(fleet.database(), &http, &fleet.urls()[0]).await?;
    let mut violations: Vec<String> =
        checker::check(&history.records(), &[], &tables).iter().map(Violation::to_string).collect();
    violations.extend(fleet.defects_logged().await);
    if let Some(row) = tables.rows.iter().find(|row| row.status != "CONSUMED") {
        violations.push(format!("the chain has all, the ledger has {row:?}"));
    }
    Ok(Report { seed: plan.seed, mined, withheld: all.withheld, violations })
}

/// The chain's counts beside ours, and every transaction in a block.
async fn compare(
    chain: &Anvil,
    http: &Client,
    base: &str,
    accounts: &[String],
    hashes: &[String],
) -> Result<BTreeMap<String, u64>> {
    let mut mined = BTreeMap::new();
    for account in accounts {
        let shown = http.get(&format!("{base}/v1/signers/{}", signer_of(account))).await?;
        let ours = shown["next_nonce"].as_u64().context("next_nonce is a number")?;
        let give_up = Instant::now() + Duration::from_secs(30);
        loop {
            let theirs = chain.mined(account).await?;
            if theirs == ours {
                break;
            }
            ensure!(
                theirs < ours && Instant::now() < give_up,
                "{account}: the chain counts {theirs} transactions, we handed out {ours} nonces"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        mined.insert(account.clone(), ours);
    }
    ensure!(mined.values().sum::<u64>() == hashes.len() as u64, "as many transactions as nonces");
    for hash in hashes {
        ensure!(chain.succeeded(hash).await?, "transaction {hash} is not in a block");
    }
    Ok(mined)
}

fn signer_of(account: &str) -> String {
    format!("eip155:31337:{account}")
}

impl Sender {
    async fn work(mut self, account: String, grants: usize) -> Result<Sent> {
        let mut sent = Sent::default();
        for round in 0..grants {
            let count = self.dice.random_range(1..=3);
            let key = format!("{}-{round}", self.number);
            let mut settlements = Vec::new();
            for (nonce, hold) in self.grant(&account, count, &key).await? {
                if self.dice.random_ratio(1, 5) {
                    sent.withheld += 1;
                    settlements.push(Settlement { nonce, hold, outcome: Outcome::NeverSent, tx_hash: None });
                } else {
                    let hash = self.send(&account, nonce).await?;
                    sent.hashes.push(hash.clone());
                    settlements.push(Settlement {
                        nonce,
                        hold,
                        outcome: Outcome::Consumed,
                        tx_hash: Some(hash),
                    });
                }
            }
            self.settle(&account, settlements).await?;
        }
        Ok(sent)
    }

    /// Takes one nonce after the other, lowest hole first, as long as there are holes.
    async fn fill_holes(&mut self, account: &str) -> Result<Vec<String>> {
        let mut hashes = Vec::new();
        loop {
            let url = format!("{}/v1/signers/{}", self.urls[0], signer_of(account));
            let shown = self.http.get(&url).await?;
            ensure!(shown["held"] == 0 && shown["quarantined"] == 0, "all senders have settled: {shown}");
            let next = shown["next_nonce"].as_u64().context("next_nonce is a number")?;
            if shown["released"] == 0 {
                return Ok(hashes);
            }
            for (nonce, hold) in self.grant(account, 1, &format!("fill-{}", hashes.len())).await? {
                ensure!(
                    nonce < next,
                    "{account}: nonce {nonce} was granted while there were holes below {next}"
                );
                let hash = self.send(account, nonce).await?;
                hashes.push(hash.clone());
                let line = Settlement { nonce, hold, outcome: Outcome::Consumed, tx_hash: Some(hash) };
                self.settle(account, vec![line]).await?;
            }
        }
    }

    async fn send(&self, account: &str, nonce: u64) -> Result<String> {
        self.chain.send(account, nonce).await.with_context(|| format!("{account} sends nonce {nonce}"))
    }

    async fn grant(&mut self, account: &str, count: u64, key: &str) -> Result<Vec<(u64, String)>> {
        let asked =
            Asked::Grant { signer: signer_of(account), count, hold_ms: 120_000, key: Some(key.to_owned()) };
        match self.persist(&asked).await? {
            Answer::Granted { grants, .. } => {
                Ok(grants.into_iter().map(|one| (one.nonce, one.hold)).collect())
            }
            other => bail!("a grant was answered {other:?}"),
        }
    }

    async fn settle(&mut self, account: &str, settlements: Vec<Settlement>) -> Result<()> {
        let never_sent: Vec<_> = settlements.iter().map(|one| one.outcome == Outcome::NeverSent).collect();
        let asked = Asked::Settle { signer: signer_of(account), settlements };
        let (answer, is_repeated) = self.persist_counted(&asked).await?;
        // After a lost answer a nonce that was never sent may be released already, and be another sender's by now.
        let is_done = |(verdict, never_sent): (&Verdict, &bool)| match verdict {
            Verdict::Done(_) => true,
            Verdict::Refused(code) => is_repeated && *never_sent && code == "stale_hold",
        };
        match answer {
            Answer::Settled(verdicts) if verdicts.iter().zip(&never_sent).all(is_done) => Ok(()),
            other => bail!("{asked:?} was answered {other:?}"),
        }
    }

    /// The same request, each time to any instance, until it is answered.
    async fn persist(&mut self, asked: &Asked) -> Result<Answer> {
        Ok(self.persist_counted(asked).await?.0)
    }

    /// The same; and whether it was asked more than once.
    async fn persist_counted(&mut self, asked: &Asked) -> Result<(Answer, bool)> {
        let mut is_repeated = false;
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            let to = self.dice.random_range(0..self.urls.len());
            let answer =
                nonce_calls::ask(&self.http, &self.history, self.number, &self.urls[to], asked).await;
            if !matches!(&answer, Answer::Unknown { .. } | Answer::Refused { status: 429 | 503, .. }) {
                return Ok((answer, is_repeated));
            }
            ensure!(Instant::now() < give_up, "{asked:?} is still {answer:?} after a minute");
            is_repeated = true;
            tokio::time::sleep(Duration::from_millis(self.dice.random_range(20..100))).await;
        }
    }
}
