//! Reads what is to be verified: the tables through `psql`, past the daemon, and the daemon's own
//! lists beside them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::http::Client;
use testkit::servers::Database;

use crate::checker::{NonceRow, Tables};
use crate::history::TokenSeen;

/// All nonce rows, by signer and nonce.
///
/// # Errors
/// The database does not answer, or a row has another shape.
pub fn nonce_rows(database: &Database) -> Result<Vec<NonceRow>> {
    nonce_rows_of(database, "")
}

/// The nonce rows of signers whose names begin so, by signer and nonce.
///
/// # Errors
/// As for [`nonce_rows`].
pub fn nonce_rows_of(database: &Database, prefix: &str) -> Result<Vec<NonceRow>> {
    let rows = database.query(&format!(
        "select signer, nonce, status, hold, coalesce(tx_hash, '') from signer_nonce_allocation \
         where starts_with(signer, '{}') order by signer, nonce",
        prefix.replace('\'', "''")
    ))?;
    rows.into_iter()
        .map(|columns| {
            let [signer, nonce, status, hold, tx_hash] = <[String; 5]>::try_from(columns)
                .map_err(|other| anyhow::anyhow!("a row of five: {other:?}"))?;
            let tx_hash = (!tx_hash.is_empty()).then_some(tx_hash);
            Ok(NonceRow { signer, nonce: nonce.parse()?, status, hold, tx_hash })
        })
        .collect()
}

/// The fencing tokens of all leases.
///
/// # Errors
/// The database does not answer.
pub fn tokens(database: &Database) -> Result<Vec<TokenSeen>> {
    let rows = database.query("select resource, fencing_token from lease")?;
    rows.into_iter()
        .map(|columns| {
            let [resource, token] = <[String; 2]>::try_from(columns)
                .map_err(|other| anyhow::anyhow!("a row of two: {other:?}"))?;
            Ok(TokenSeen { resource, token: token.parse()? })
        })
        .collect()
}

/// What the database's clock shows, as it writes it.
///
/// # Errors
/// The database does not answer.
pub fn now(database: &Database) -> Result<String> {
    value(database, "select clock_timestamp()")
}

/// How many holds ran out before this moment of the database's clock but are still `HELD`.
///
/// # Errors
/// The database does not answer.
pub fn overdue(database: &Database, before: &str) -> Result<u64> {
    let count = format!(
        "select count(*) from signer_nonce_allocation where status = 'HELD' and held_until < '{before}'"
    );
    Ok(value(database, &count)?.parse()?)
}

/// The value that a query of one row and one column answers.
///
/// # Errors
/// The database does not answer, or answers no row.
pub fn value(database: &Database, query: &str) -> Result<String> {
    let rows = database.query(query)?;
    rows.into_iter().flatten().next().context("a row of one value")
}

/// The rows of one signer as the instance at `base` lists them.
///
/// # Errors
/// The list does not come, or an item lacks a field.
pub async fn listed(client: &Client, base: &str, signer: &str) -> Result<Vec<NonceRow>> {
    let items = client.list(&format!("{base}/v1/signers/{signer}/nonces")).await?;
    let mut rows = items.iter().map(|item| row_of(signer, item)).collect::<Result<Vec<_>>>()?;
    rows.sort_by_key(|row| row.nonce);
    Ok(rows)
}

fn row_of(signer: &str, item: &Value) -> Result<NonceRow> {
    let text = |name: &str| item[name].as_str().map(str::to_owned);
    let read = || {
        Some(NonceRow {
            signer: signer.to_owned(),
            nonce: item["nonce"].as_u64()?,
            status: text("status")?,
            hold: text("hold")?,
            tx_hash: text("tx_hash"),
        })
    };
    read().with_context(|| format!("an item of the list of nonces: {item}"))
}

/// What a single instance tells about these signers, for ledgers into which nobody else can look.
///
/// # Errors
/// It does not answer, or an answer has another shape.
pub async fn shown_tables(client: &Client, base: &str, signers: &[String]) -> Result<Tables> {
    let mut tables = Tables::default();
    for signer in signers {
        tables.rows.extend(listed(client, base, signer).await?);
        let shown = client.get(&format!("{base}/v1/signers/{signer}")).await?;
        let next = shown["next_nonce"].as_u64().context("next_nonce is a number")?;
        tables.next_nonce.insert(signer.clone(), next);
    }
    Ok(tables)
}

/// After the last client has stopped: the rows by `psql`, each signer's `next_nonce` by the daemon.
///
/// # Errors
/// Something does not answer, or the daemon's lists differ from the table.
pub async fn read(database: &Database, client: &Client, base: &str) -> Result<Tables> {
    let before = nonce_rows(database)?;
    let signers: BTreeSet<String> = before.iter().map(|row| row.signer.clone()).collect();
    let shown_tables = shown_tables(client, base, &signers.into_iter().collect::<Vec<_>>()).await?;
    let after = nonce_rows(database)?;
    let lengths = (before.len(), shown_tables.rows.len(), after.len());
    ensure!(lengths.0 == lengths.1 && lengths.1 == lengths.2, "rows before, listed, and after: {lengths:?}");
    for ((before, listed), after) in before.iter().zip(&shown_tables.rows).zip(&after) {
        // Holds go on running out; the list may show such a row as it was or as it became.
        ensure!(
            listed == before || listed == after,
            "the list shows {listed:?}, the table had {before:?}, then {after:?}"
        );
    }
    Ok(Tables { rows: after, ..shown_tables })
}
