//! Transfers: what instances give each other where the bus does not reach.

use std::collections::HashSet;

use domain::{InstanceId, JobId, LaneId, Resource, Token};

use super::{Store, Way};
use crate::Result;
use crate::jobs::{Lane, Unwritten};
use crate::records;
use crate::sql::{Id, Statement, statement};
use crate::transfers::{NODES_NOTE_BYTES_MAX, NOTES_MAX, TRANSFER_JOBS_MAX, Transfers};

const NOTE: Statement = statement!(both "transfer_note");
const GIVEN: Statement = statement!(both "transfer_given");
const LIST: Statement = statement!(both "transfer_list");
const OPEN: Statement = statement!("transfer_open");
const JOBS: Statement = statement!("transfer_jobs");
const PASS: Statement = statement!("lease_pass");

#[async_trait::async_trait]
impl Transfers for Store {
    async fn note_nodes(&self, id: &InstanceId, nodes: Option<&str>) -> Result<u64> {
        assert!(nodes.is_none_or(|nodes| nodes.len() <= NODES_NOTE_BYTES_MAX), "the caller bounds the note");
        let ask = self.ask(&NOTE).bind(id.as_str()).bind(nodes);
        // An incarnation that was forgotten meanwhile gets nothing.
        let row: Option<(i64,)> = self.optional(Way::Writes, ask).await?;
        row.map_or(Ok(0), |(given,)| records::count(given))
    }

    async fn transfers_to(&self, id: &InstanceId) -> Result<u64> {
        let row: Option<(i64,)> = self.optional(Way::KeyReads, self.ask(&GIVEN).bind(id.as_str())).await?;
        row.map_or(Ok(0), |(given,)| records::count(given))
    }

    async fn nodes_elsewhere(&self, me: &InstanceId) -> Result<Vec<(InstanceId, String)>> {
        let ask = self.ask(&LIST).bind(me.as_str()).bind(i64::from(NOTES_MAX));
        let rows: Vec<(String, String)> = self.all(Way::Reads, ask).await?;
        rows.into_iter().map(|(id, nodes)| Ok((records::instance(&id)?, nodes))).collect()
    }

    async fn transfer_jobs(
        &self,
        from: &Lane,
        jobs: &[(JobId, InstanceId)],
    ) -> Result<Result<Vec<JobId>, Unwritten>> {
        assert!(jobs.len() <= TRANSFER_JOBS_MAX, "the caller splits transfers");
        let (giver, jobs) = (from.id.clone(), jobs.to_vec());
        let moved = self.in_lane(from, move |transaction| {
            Box::pin(async move {
                let mut receivers: Vec<_> = jobs.iter().map(|(_, to)| to.as_str()).collect();
                receivers.sort_unstable();
                receivers.dedup();
                let open = OPEN.on(transaction.kind()).array(receivers);
                let open: Vec<(String,)> = transaction.all(open).await?;
                let open: HashSet<_> = open.iter().map(|(id,)| id.as_str()).collect();
                let taken = jobs.iter().filter(|(_, to)| open.contains(to.as_str()));
                let taken: Vec<_> = taken.map(|(job, to)| (*job, LaneId::instance(to, 0))).collect();
                if taken.is_empty() {
                    return Ok(Vec::new());
                }
                let ask = JOBS.on(transaction.kind()).rows(&taken, |taken| {
                    taken.column("id", |(job, _)| Id(*job)).column("lane", |(_, lane)| lane.as_str());
                });
                let moved: Vec<(Id,)> = transaction.all(ask.bind(giver.as_str())).await?;
                Ok(moved.into_iter().map(|(Id(job),)| job).collect())
            })
        });
        moved.await
    }

    async fn pass_lease(
        &self,
        resource: &Resource,
        owner: &InstanceId,
        token: Token,
        to: &InstanceId,
        lease_ms: u64,
    ) -> Result<bool> {
        let ask = self
            .ask(&PASS)
            .bind(resource.as_str())
            .bind(owner.as_str())
            .bind(token.get())
            .bind(to.as_str())
            .bind(lease_ms as i64);
        let passed: Option<(String,)> = self.optional(Way::Writes, ask).await?;
        Ok(passed.is_some())
    }
}
