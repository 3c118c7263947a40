//! Counts of jobs, however many there are: piece by piece, each in a statement that takes moments.

use std::collections::HashSet;

use domain::PoolName;

use super::{Store, Way};
use crate::Result;
use crate::jobs::rows::{CountRow, PoolCountRow, UnfinishedCountRow};
use crate::jobs::{FinishedCounts, UnfinishedCount, UnfinishedCounts};
use crate::records;
use crate::sql::{Id, Statement, statement};

const UNFINISHED: Statement = statement!("job_counts");
const FINISHED: Statement = statement!(both "job_finished_count");
const FINISHED_POOLS: Statement = statement!(both "job_finished_pools");

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
            for (pool, found) in records::all::<_, (Option<PoolName>, UnfinishedCount)>(rows)? {
                jobs += found.created + found.dispatched + found.running;
                counts.add(pool, &found, pools);
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
        let (mut counts, mut after) =
            (FinishedCounts { all, ..FinishedCounts::default() }, (String::new(), Id::LOWEST));
        loop {
            let ask = self.ask(&FINISHED_POOLS).bind(after.0.as_str()).bind(after.1).bind(i64::from(piece));
            let rows = self.all::<PoolCountRow>(Way::Reads, ask).await?;
            let mut jobs = 0;
            let last = rows.last().map(|row| (row.pool.clone(), row.last));
            for (pool, count) in records::all::<_, (PoolName, u64)>(rows)? {
                jobs += count;
                match counts.of_pools.last_mut() {
                    Some((before, sum)) if *before == pool => *sum += count,
                    _ => counts.of_pools.push((pool, count)),
                }
            }
            counts.in_pools += jobs;
            counts.forget_smallest(pools);
            match last {
                Some(last) if jobs >= u64::from(piece) => after = last,
                _ => return Ok(counts),
            }
        }
    }

    async fn count_all_finished(&self, piece: u32) -> Result<u64> {
        let (mut all, mut after) = (0, Id::LOWEST);
        loop {
            let ask = self.ask(&FINISHED).bind(after).bind(i64::from(piece));
            let CountRow { jobs, last } = self.one(Way::Reads, ask).await?;
            let jobs = records::count(jobs)?;
            all += jobs;
            match last {
                Some(last) if jobs >= u64::from(piece) => after = last,
                _ => return Ok(all),
            }
        }
    }
}
