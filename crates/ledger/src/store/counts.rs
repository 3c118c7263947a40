//! Counts of jobs, however many there are: piece by piece, each in a statement that takes moments.

use std::collections::HashSet;
use std::hash::Hash;

use domain::{Invalid, PoolName, TenantId};

use super::{Store, Way};
use crate::Result;
use crate::jobs::rows::{PoolAndTenant, UnfinishedCountRow};
use crate::jobs::{FinishedBy, FinishedCounts, UnfinishedCount, UnfinishedCounts};
use crate::records;
use crate::sql::{Id, Statement, statement};

const UNFINISHED: Statement = statement!("job_counts");
const FINISHED: Statement = statement!(both "job_finished_count");
const FINISHED_POOLS: Statement = statement!(both "job_finished_pools");
const FINISHED_TENANTS: Statement = statement!(both "job_finished_tenants");

impl Store {
    pub(super) async fn count_unfinished(
        &self,
        piece: u32,
        pools: &HashSet<PoolName>,
    ) -> Result<UnfinishedCounts> {
        let (mut counts, mut after) = (UnfinishedCounts::default(), Id::LOWEST);
        loop {
            let ask = self.ask(&UNFINISHED).bind(after).bind(i64::from(piece));
            let rows = self.all::<UnfinishedCountRow>(Way::Reads, ask).await?;
            let last = rows.first().map(|row| row.last);
            let mut jobs = 0;
            for (names, found) in records::all::<_, (PoolAndTenant, UnfinishedCount)>(rows)? {
                jobs += found.created + found.dispatched + found.running;
                counts.add(names, &found, pools);
            }
            match last {
                Some(last) if jobs >= u64::from(piece) => after = last,
                _ => return Ok(counts),
            }
        }
    }

    pub(super) async fn count_finished(
        &self,
        piece: u32,
        pools: &HashSet<PoolName>,
    ) -> Result<FinishedCounts> {
        let all = self.count_all_finished(piece).await?;
        let pools = self.count_by_name(&FINISHED_POOLS, piece, pools, PoolName::parse).await?;
        let tenants = self.count_by_name(&FINISHED_TENANTS, piece, &HashSet::new(), TenantId::parse).await?;
        Ok(FinishedCounts { all, pools, tenants })
    }

    /// Counts finished jobs by the names that this statement reads in their order.
    async fn count_by_name<N: Eq + Hash + Send + Sync>(
        &self,
        statement: &Statement,
        piece: u32,
        counted: &HashSet<N>,
        parse: fn(&str) -> std::result::Result<N, Invalid>,
    ) -> Result<FinishedBy<N>> {
        let (mut counts, mut after) = (FinishedBy::default(), (String::new(), Id::LOWEST));
        loop {
            let ask = self.ask(statement).bind(after.0.as_str()).bind(after.1).bind(i64::from(piece));
            let rows = self.all::<(String, i64, Id)>(Way::Reads, ask).await?;
            let mut found = 0;
            let last = rows.last().map(|(name, _, last)| (name.clone(), *last));
            for (name, jobs, _) in rows {
                let jobs = records::count(jobs)?;
                found += jobs;
                counts.add(parse(&name).map_err(records::impossible)?, jobs);
            }
            counts.forget_smallest(counted);
            match last {
                Some(last) if found >= u64::from(piece) => after = last,
                _ => return Ok(counts),
            }
        }
    }

    async fn count_all_finished(&self, piece: u32) -> Result<u64> {
        let (mut all, mut after) = (0, Id::LOWEST);
        loop {
            let ask = self.ask(&FINISHED).bind(after).bind(i64::from(piece));
            let (jobs, last): (i64, Option<Id>) = self.one(Way::Reads, ask).await?;
            let jobs = records::count(jobs)?;
            all += jobs;
            match last {
                Some(last) if jobs >= u64::from(piece) => after = last,
                _ => return Ok(all),
            }
        }
    }
}
