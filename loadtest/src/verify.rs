//! Puts a load before the checker, signer by signer, so that a long load fits into memory: no promise is
//! about two signers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde::Serialize;
use testkit::http::Client;
use testkit::servers::Database;

use crate::checker::{self, NonceRow, Tables};
use crate::history::{Answer, Record};
use crate::load::{Log, Said, signer_name};
use crate::tables;

/// Signers that an instance is asked about after a load.
const ASKED_ABOUT_MAX: usize = 200;
/// Broken promises that are written out; beyond that they are counted.
const WRITTEN_OUT_MAX: usize = 50;
/// How long an instance may take to answer about a signer when the load is over.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was given up unanswered may still be carried out; the daemon gives a call to the ledger 5 s.
const STRAGGLERS: Duration = Duration::from_secs(6);

/// What the checker found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// Signers for which something was asked.
    pub signers: usize,
    /// Signers whose rows were looked at: all, or a sample where only an instance could be asked.
    pub signers_verified: usize,
    /// Signers whose list and next nonce an instance was asked for.
    pub signers_asked_about: usize,
    /// Requests that were verified.
    pub requests: usize,
    /// Nonces in the rows that were looked at.
    pub rows: usize,
    /// How many promises were broken.
    pub broken: usize,
    /// The first of them. Empty is what we want.
    pub violations: Vec<String>,
}

impl Verdict {
    /// For a table: what was looked at and what was found.
    #[must_use]
    pub fn lines(&self) -> Vec<(String, String)> {
        vec![
            ("verified: requests".to_owned(), self.requests.to_string()),
            ("verified: signers".to_owned(), format!("{} of {}", self.signers_verified, self.signers)),
            ("verified: nonces in the ledger".to_owned(), self.rows.to_string()),
            ("broken promises".to_owned(), self.broken.to_string()),
        ]
    }

    /// Adds what was found in another load.
    pub fn add(&mut self, other: Self) {
        self.signers += other.signers;
        self.signers_verified += other.signers_verified;
        self.signers_asked_about += other.signers_asked_about;
        self.requests += other.requests;
        self.rows += other.rows;
        self.broken += other.broken;
        self.violations.extend(other.violations);
        self.violations.truncate(WRITTEN_OUT_MAX);
    }

    fn accuse(&mut self, violation: String) {
        self.broken += 1;
        if self.violations.len() < WRITTEN_OUT_MAX {
            self.violations.push(violation);
        }
    }
}

/// What a load asked for: signers with this prefix, so many nonces at once, for so long.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// What stands before a signer's number.
    pub prefix: &'a str,
    /// Nonces of one request.
    pub count: u64,
    /// For how long, in milliseconds.
    pub hold_ms: u64,
    /// Decides which signers an instance is asked about.
    pub seed: u64,
}

/// Where the truth is read.
#[derive(Clone, Debug)]
pub struct Truth<'a> {
    /// The database, if it is ours to look into.
    pub database: Option<&'a Database>,
    /// An instance.
    pub url: &'a str,
}

/// Verifies one load.
///
/// # Errors
/// The database or the instance does not answer. Broken promises are in the verdict, not here.
pub async fn verify(log: &Log, case: &Case<'_>, truth: &Truth<'_>) -> Result<Verdict> {
    let client = Client::new(PATIENCE)?;
    if log.entries.iter().any(|entry| matches!(entry.said, Said::Unknown(_))) {
        tokio::time::sleep(STRAGGLERS).await;
    }
    let asked = log.by_signer();
    let mut verdict = Verdict { signers: asked.len(), ..Verdict::default() };
    let mut sample: Vec<u32> = asked.keys().copied().collect();
    sample.shuffle(&mut StdRng::seed_from_u64(case.seed));
    sample.truncate(ASKED_ABOUT_MAX);
    sample.sort_unstable();
    verdict.signers_asked_about = sample.len();

    let mut answer: BTreeMap<u32, Tables> = BTreeMap::new();
    for signer in &sample {
        answer.insert(*signer, tell(&client, truth.url, &signer_name(case.prefix, *signer)).await?);
    }
    let mut rows: BTreeMap<String, Vec<NonceRow>> = BTreeMap::new();
    if let Some(database) = truth.database {
        let (database, prefix) = (database.clone(), case.prefix.to_owned());
        let all = tokio::task::spawn_blocking(move || tables::nonce_rows_of(&database, &prefix)).await??;
        all.into_iter().for_each(|row| rows.entry(row.signer.clone()).or_default().push(row));
    }
    for (signer, entries) in &asked {
        let name = signer_name(case.prefix, *signer);
        let listed = answer.remove(signer);
        let table = truth.database.map(|_| rows.remove(&name).unwrap_or_default());
        let tables = match (table, listed) {
            (None, None) => continue,
            (None, Some(listed)) => listed,
            (Some(rows), None) => Tables { rows, ..Tables::default() },
            (Some(rows), Some(listed)) => {
                if listed.rows != rows {
                    verdict.accuse(format!("{name}: the list tells something else than the table"));
                }
                Tables { rows, ..listed }
            }
        };
        verdict.signers_verified += 1;
        verdict.requests += entries.len();
        verdict.rows += tables.rows.len();
        let records = log.records(&name, entries, case.count, case.hold_ms);
        for violation in checker::check(&records, &[], &tables) {
            verdict.accuse(violation.to_string());
        }
    }
    // What is left belongs to nobody who asked.
    for name in rows.keys() {
        verdict.accuse(format!("NothingFromNowhere: nobody asked for {name}"));
    }
    Ok(verdict)
}

/// What an instance tells of a signer. One that was refused all its grants may not exist.
async fn tell(client: &Client, url: &str, signer: &str) -> Result<Tables> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let shown = client.request("GET", &format!("{url}/v1/signers/{signer}"), None, None).await;
        match shown {
            Ok(reply) if reply.status == 404 => return Ok(Tables::default()),
            Ok(reply) if reply.status == 200 => {
                let mut tables =
                    Tables { rows: tables::listed(client, url, signer).await?, ..Tables::default() };
                let next = reply.body["next_nonce"].as_u64().context("next_nonce is a number")?;
                tables.next_nonce.insert(signer.to_owned(), next);
                return Ok(tables);
            }
            other if Instant::now() > give_up => anyhow::bail!("{url} does not tell of {signer}: {other:?}"),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Verifies a history of ordinary clients on a database of ours.
///
/// # Errors
/// As for [`verify`].
pub async fn verify_history(records: &[Record], database: &Database, url: &str) -> Result<Verdict> {
    let client = Client::new(PATIENCE)?;
    let tables = tables::read(database, &client, url).await?;
    let mut verdict = Verdict {
        signers: tables.next_nonce.len(),
        signers_verified: tables.next_nonce.len(),
        signers_asked_about: tables.next_nonce.len(),
        requests: records.len(),
        rows: tables.rows.len(),
        ..Verdict::default()
    };
    checker::check(records, &[], &tables).iter().for_each(|one| verdict.accuse(one.to_string()));
    Ok(verdict)
}

/// How a call of the client library that failed for good is to be remembered: one of its attempts may
/// have been carried out, whatever the last one was told.
#[must_use]
pub fn doubtful(error: &client::Error) -> Answer {
    Answer::Unknown { error: error.to_string() }
}
