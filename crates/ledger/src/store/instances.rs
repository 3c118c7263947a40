//! Instances: which run, and at which address.

use std::collections::HashMap;

use domain::InstanceId;

use super::{Store, Way};
use crate::Result;
use crate::instances::{Instance, Instances, NewInstance, Peer};
use crate::records::{self, InstanceRow, LeaseCountRow, PeerRow};
use crate::sql::{Statement, statement};

const REGISTER: Statement = statement!(both "instance_register");
const NOTE_BUS: Statement = statement!(both "instance_bus");
const LIST: Statement = statement!(both "instance_list");
const PEERS: Statement = statement!("instance_peers");
const LEASE_COUNTS: Statement = statement!(both "lease_counts");
const URL: Statement = statement!(both "instance_url");
const END: Statement = statement!("instance_end");
const PURGE: Statement = statement!("instance_purge");
const PURGE_LEASES: Statement = statement!("lease_purge");

#[async_trait::async_trait]
impl Instances for Store {
    async fn register(&self, instance: &NewInstance) -> Result<()> {
        let ask = self
            .ask(&REGISTER)
            .bind(instance.id.as_str())
            .bind(instance.url.as_str())
            .bind(instance.hostname.as_str())
            .bind(i64::from(instance.pid))
            .bind(instance.version.as_str());
        self.touch(Way::Writes, ask).await.map(drop)
    }

    async fn note_bus(&self, id: &InstanceId, up: Option<bool>, bus: Option<&str>) -> Result<()> {
        let ask = self.ask(&NOTE_BUS).bind(id.as_str()).bind(up).bind(bus);
        self.touch(Way::Writes, ask).await.map(drop)
    }

    async fn live_instances(&self) -> Result<Vec<Instance>> {
        records::all(self.all::<InstanceRow>(Way::Reads, self.ask(&LIST)).await?)
    }

    async fn peers(&self, since_ms: u64, limit: u32) -> Result<Vec<Peer>> {
        let ask = self.ask(&PEERS).bind(since_ms as i64).bind(i64::from(limit));
        records::all(self.all::<PeerRow>(Way::VitalReads, ask).await?)
    }

    async fn lease_counts(&self, piece: u32) -> Result<HashMap<InstanceId, u64>> {
        let (mut counts, mut after) = (HashMap::<InstanceId, u64>::new(), String::new());
        loop {
            let ask = self.ask(&LEASE_COUNTS).bind(after.as_str()).bind(i64::from(piece));
            let rows = self.all::<LeaseCountRow>(Way::Reads, ask).await?;
            let last = rows.first().map(|row| row.last.clone());
            let mut found = 0;
            for row in rows {
                found += records::count(row.found)?;
                let live = records::count(row.live)?;
                if let (Some(owner), 1..) = (&row.owner, live) {
                    *counts.entry(records::instance(owner)?).or_default() += live;
                }
            }
            match last {
                Some(last) if found >= u64::from(piece) => after = last,
                _ => return Ok(counts),
            }
        }
    }

    async fn instance_url(&self, id: &InstanceId) -> Result<Option<String>> {
        let url: Option<(String,)> = self.optional(Way::Reads, self.ask(&URL).bind(id.as_str())).await?;
        Ok(url.map(|(url,)| url))
    }

    async fn purge_instances(&self, age_ms: u64, limit: u32) -> Result<u64> {
        // First they lose the leases that they still have, so that none goes on that was only away; then the incarnations go, and
        // then their leases. What a crash in between leaves, the next purge finds by itself.
        let purge = |statement| self.ask(statement).bind(age_ms as i64).bind(i64::from(limit));
        self.touch(Way::Writes, purge(&END)).await?;
        self.touch(Way::Writes, purge(&PURGE)).await?;
        self.touch(Way::Writes, purge(&PURGE_LEASES)).await
    }
}
