//! A private Ethereum development node (`anvil`) and the few JSON-RPC calls that the tests make.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::on_path;
use crate::http::plain_http;
use crate::ports;
use crate::process::{Launch, Process, tail};

/// How long the receipt of a transaction is waited for that is counted already.
const RECEIPT_WAIT: Duration = Duration::from_secs(10);

/// A private development chain, killed on drop. Its ten accounts are unlocked and rich.
#[derive(Debug)]
pub struct Anvil {
    _process: Process,
    _dir: TempDir,
    url: String,
    http: reqwest::Client,
}

impl Anvil {
    /// Starts a chain and waits until it answers.
    ///
    /// # Errors
    /// The program is missing or does not start; its log is in the message.
    pub async fn start() -> Result<Self> {
        let program = program().context("anvil is not installed (tests/install does it)")?;
        let dir = TempDir::with_prefix("fencepost-anvil-")?;
        let port = ports::free()?;
        let mut anvil = Command::new(program);
        // One block per second: many transactions wait together, so that a second one of the same nonce
        // meets the first in the pool, and one that came before its predecessors waits for them.
        anvil.args([
            "--host",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--accounts",
            "10",
            "--block-time",
            "1",
        ]);
        anvil.current_dir(dir.path()).env("HOME", dir.path());
        let log = dir.path().join("chain.log");
        let (process, _) = Process::spawn(&Launch::logging(&anvil, &log))?;
        let chain = Self {
            _process: process,
            _dir: dir,
            url: format!("http://127.0.0.1:{port}"),
            http: plain_http(Duration::from_secs(30))?,
        };
        let give_up = Instant::now() + Duration::from_secs(30);
        while chain.call("eth_chainId", json!([])).await.is_err() {
            if chain._process.exited().is_some() || Instant::now() > give_up {
                bail!("anvil does not start:\n{}", tail(&log, 2_000));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(chain)
    }

    /// The unlocked accounts, lower-case addresses.
    ///
    /// # Errors
    /// The chain does not answer.
    pub async fn accounts(&self) -> Result<Vec<String>> {
        let list = self.call("eth_accounts", json!([])).await?;
        let list = list.as_array().context("eth_accounts answers a list")?;
        list.iter().map(|one| one.as_str().map(str::to_lowercase).context("an address is a text")).collect()
    }

    /// Sends nothing worth nothing from `account`, with exactly this nonce. Answers the hash.
    ///
    /// # Errors
    /// Whatever the chain says against it, such as "nonce too low" or a replacement refused.
    pub async fn send(&self, account: &str, nonce: u64) -> Result<String> {
        let transaction = json!({
            "from": account, "to": account, "value": "0x0", "gas": "0x5208",
            "gasPrice": "0x77359400", "nonce": format!("{nonce:#x}"),
        });
        let hash = self.call("eth_sendTransaction", json!([transaction])).await?;
        Ok(hash.as_str().context("a hash is a text")?.to_owned())
    }

    /// How many transactions of `account` are in blocks: its next nonce, as the chain sees it.
    ///
    /// # Errors
    /// The chain does not answer.
    pub async fn mined(&self, account: &str) -> Result<u64> {
        hex(&self.call("eth_getTransactionCount", json!([account, "latest"])).await?)
    }

    /// Whether the transaction is in a block and succeeded. The chain counts a transaction a moment before it has its receipt,
    /// so one that has none is looked at for [`RECEIPT_WAIT`].
    ///
    /// # Errors
    /// The chain does not answer.
    pub async fn succeeded(&self, hash: &str) -> Result<bool> {
        let give_up = Instant::now() + RECEIPT_WAIT;
        loop {
            let receipt = self.call("eth_getTransactionReceipt", json!([hash])).await?;
            if !receipt.is_null() || Instant::now() > give_up {
                return Ok(receipt["status"] == "0x1");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn call(&self, method: &str, params: Value) -> Result<Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut answer: Value = self.http.post(&self.url).json(&body).send().await?.json().await?;
        match answer.get("error") {
            Some(error) => Err(anyhow!("{method}: {}", error["message"].as_str().unwrap_or("?"))),
            None => Ok(answer["result"].take()),
        }
    }
}

fn hex(value: &Value) -> Result<u64> {
    let text = value.as_str().context("a number is a hexadecimal text")?;
    Ok(u64::from_str_radix(text.trim_start_matches("0x"), 16)?)
}

/// `FENCEPOST_ANVIL`, or where `tests/install` puts it, or anything on PATH.
fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FENCEPOST_ANVIL") {
        return Some(named.into());
    }
    let tools =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/anvil/node_modules/@foundry-rs");
    let installed =
        std::fs::read_dir(tools).into_iter().flatten().flatten().map(|entry| entry.path().join("bin/anvil"));
    installed.into_iter().find(|file| file.is_file()).or_else(|| on_path("anvil"))
}
