//! Reads what a session's client is to be sent. What ends between two reads is read by the next look, and nothing is taken
//! for sent that may be missing.

use std::collections::HashSet;
use std::sync::Arc;

use actors::jobs::{Jobs, Refusal as JobsRefusal};
use domain::{JobId, SessionId};
use ledger::{SessionResult, SessionResults};

use super::cursor::{Cursor, Sent};
use crate::limits::{CLIENT_FRAMES_BYTES_MAX, CLIENT_RESULTS_AT_ONCE, UNCOUNTED_BYTES_MAX};
use crate::refusal::Refusal;
use crate::shares::{Kind, Share, Shares, Used};

/// Places that one statement reads.
const PLACES_AT_ONCE: u32 = 1_000;

/// What one look found.
#[derive(Debug)]
pub(super) enum Look {
    /// Results in their order, those that may be sent.
    Ordered { results: Vec<SessionResult>, is_all: bool, is_idle: bool, room: Room },
    /// Results that may be sent, and up to which place there will be no others.
    Free { results: Vec<SessionResult>, settled: Option<u64>, is_all: bool, is_idle: bool, room: Room },
    /// Results that are sent once more, and jobs of which there is none to send.
    Repeated { results: Vec<SessionResult>, forgotten: HashSet<JobId>, is_all: bool, room: Room },
    /// The session is closed, and nothing is left to be sent.
    Over,
}

/// What came of a job.
#[derive(Debug)]
pub(super) enum Found {
    Result(SessionResult),
    Unfinished,
    /// It was purged or deleted.
    Forgotten,
}

/// The room for results that are about to be sent.
#[derive(Debug)]
pub(super) struct Room {
    bytes: usize,
    /// All but the last few of them.
    share: Share,
    is_full: bool,
}

/// The ledger, as far as it knows of one session.
pub(super) trait Source {
    /// The last place given.
    async fn last_seq(&self) -> Result<u64, Refusal>;
    /// Results behind a place and below the lowest place of an unfinished job, that place, and whether the session is open, as
    /// of one moment.
    async fn results(&self, after: u64, limit: u32) -> Result<SessionResults, Refusal>;
    /// Finished jobs behind a place, in the order of their places.
    async fn finished_places(&self, after: u64, limit: u32) -> Result<Vec<(u64, JobId)>, Refusal>;
    /// Places of unfinished jobs behind one, in order.
    async fn unfinished_places(&self, after: u64, limit: u32) -> Result<Vec<u64>, Refusal>;
    /// What came of a job.
    async fn result(&self, job: JobId) -> Result<Found, Refusal>;
}

/// A session in the ledger.
pub(super) struct InLedger<'a> {
    pub(super) jobs: &'a Jobs,
    pub(super) id: &'a SessionId,
}

impl Source for InLedger<'_> {
    async fn last_seq(&self) -> Result<u64, Refusal> {
        Ok(self.jobs.last_place(self.id).await?)
    }

    async fn results(&self, after: u64, limit: u32) -> Result<SessionResults, Refusal> {
        Ok(self.jobs.session_results(self.id, after, limit).await?)
    }

    async fn finished_places(&self, after: u64, limit: u32) -> Result<Vec<(u64, JobId)>, Refusal> {
        Ok(self.jobs.finished_places(self.id, after, limit).await?)
    }

    async fn unfinished_places(&self, after: u64, limit: u32) -> Result<Vec<u64>, Refusal> {
        Ok(self.jobs.unfinished_places(self.id, after, limit).await?)
    }

    async fn result(&self, job: JobId) -> Result<Found, Refusal> {
        let record = match self.jobs.get(job).await {
            Ok(record) => record,
            Err(JobsRefusal::UnknownJob) => return Ok(Found::Forgotten),
            Err(refusal) => return Err(refusal.into()),
        };
        let (Some(seq), Some(finished)) = (record.seq, record.finished) else { return Ok(Found::Unfinished) };
        Ok(Found::Result(SessionResult {
            id: record.id,
            seq,
            client_ref: record.client_ref,
            outcome: finished.outcome,
            result: finished.result,
            error: finished.error,
        }))
    }
}

impl Room {
    pub(super) fn of(shares: &Arc<Shares>, of_token: Option<&Arc<Used>>) -> Self {
        Self { bytes: 0, share: shares.none(Kind::Sending, of_token), is_full: false }
    }

    /// Counts a result. `false` where there is no room for it now.
    fn takes(&mut self, result: &SessionResult) -> bool {
        let bytes = bytes_of(result);
        let uncounted = self.bytes + bytes - self.share.amount();
        if uncounted > UNCOUNTED_BYTES_MAX
            && let Err(reached) = self.share.grow(uncounted)
        {
            tracing::debug!(%reached, "a session's results wait");
            self.is_full = true;
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// Whether a result was left out because there was no room for it.
    pub(super) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// What it counts, to be kept until it is sent.
    pub(super) fn share(self) -> Share {
        self.share
    }
}

/// Where a client begins that has not said what it has seen: it gets the results of the jobs that are unfinished now.
pub(super) async fn begin(source: &impl Source, is_ordered: bool) -> Result<Cursor, Refusal> {
    let last_seq = source.last_seq().await?;
    if last_seq == 0 {
        return Ok(Cursor::behind(0, is_ordered));
    }
    if is_ordered {
        let first = source.results(last_seq, 1).await?.first_unfinished;
        let behind = first.map_or(last_seq, |first| first.saturating_sub(1).min(last_seq));
        return Ok(Cursor::behind(behind, is_ordered));
    }
    let (mut unfinished, mut after) = (Vec::new(), 0);
    loop {
        let page = source.unfinished_places(after, PLACES_AT_ONCE).await?;
        unfinished.extend(&page);
        match page.last() {
            Some(last) if page.len() == PLACES_AT_ONCE as usize => after = *last,
            _ => return Ok(Cursor::Free(Sent::all_but(unfinished, last_seq))),
        }
    }
}

/// How many results the next read in order asks for, after one of `at_once`. A single one where there was no room, so that no
/// whole page is read in vain; then twice as many each time, up to a page.
pub(super) fn next_at_once(at_once: u32, was_full: bool) -> u32 {
    if was_full { 1 } else { at_once.saturating_mul(2).min(CLIENT_RESULTS_AT_ONCE) }
}

/// The results behind a place that may be sent in order, `limit` at most: the first of them for which there is room.
pub(super) async fn in_order(
    source: &impl Source,
    after: u64,
    limit: u32,
    mut room: Room,
) -> Result<Look, Refusal> {
    let SessionResults { mut results, first_unfinished, is_open } = source.results(after, limit).await?;
    let is_idle = first_unfinished.is_none();
    let is_ending = is_idle && !is_open;
    if is_ending && results.is_empty() {
        return Ok(Look::Over);
    }
    let bytes: usize = results.iter().map(bytes_of).sum();
    // A page also ends when its results are many bytes.
    let is_page_full = results.len() == limit as usize || bytes > CLIENT_FRAMES_BYTES_MAX;
    let fit = results.iter().take_while(|result| room.takes(result)).count();
    results.truncate(fit);
    // After the last result of a closed session one look more finds that it is over.
    let is_all = !(room.is_full() || is_page_full || is_ending);
    Ok(Look::Ordered { results, is_all, is_idle, room })
}

/// The results that notices named. Those for which there is no room are left to the next full look.
pub(super) async fn named(
    source: &impl Source,
    jobs: impl IntoIterator<Item = JobId>,
    room: Room,
) -> Result<Look, Refusal> {
    let Gathered { results, cut_off, room, .. } = gather(source, jobs, room).await?;
    Ok(Look::Free { results, settled: None, is_all: cut_off.is_none(), is_idle: false, room })
}

/// The results of jobs that the client has sent again, as far as they have ended.
pub(super) async fn repeated(
    source: &impl Source,
    jobs: impl IntoIterator<Item = JobId>,
    room: Room,
) -> Result<Look, Refusal> {
    let Gathered { results, forgotten, cut_off, room } = gather(source, jobs, room).await?;
    Ok(Look::Repeated { results, forgotten, is_all: cut_off.is_none(), room })
}

/// The first results that are not sent yet.
pub(super) async fn freely(source: &impl Source, sent: &Sent, room: Room) -> Result<Look, Refusal> {
    // In this order: what is finished after the first read is found by the second.
    let SessionResults { first_unfinished, is_open, .. } = source.results(i64::MAX as u64, 1).await?;
    let (wanted, is_end) = unsent(source, sent).await?;
    let is_idle = first_unfinished.is_none();
    let is_ending = is_idle && !is_open;
    if is_ending && is_end && wanted.is_empty() {
        return Ok(Look::Over);
    }
    // Places are given in order. Below the lowest unfinished one, or below one that had ended before, each is wanted now, was
    // sent, or is nobody's.
    let mut settled = first_unfinished.map_or_else(|| sent.last(), |first| first.saturating_sub(1));
    if !is_end {
        settled = settled.min(wanted.last().map_or(0, |(seq, _)| *seq));
    }
    let Gathered { results, cut_off, room, .. } =
        gather(source, wanted.iter().map(|(_, job)| *job), room).await?;
    if let Some((seq, _)) = cut_off.and_then(|at| wanted.get(at)) {
        settled = settled.min(seq - 1);
    }
    // After the last result of a closed session one look more finds that it is over.
    let is_all = is_end && cut_off.is_none() && !is_ending;
    Ok(Look::Free { results, settled: Some(settled), is_all, is_idle, room })
}

/// Results that were read one by one.
struct Gathered {
    results: Vec<SessionResult>,
    forgotten: HashSet<JobId>,
    /// The first of those asked for that was left to the next look, counted from 0.
    cut_off: Option<usize>,
    room: Room,
}

/// Reads results until they are many, or many bytes, or there is no room for more.
async fn gather(
    source: &impl Source,
    jobs: impl IntoIterator<Item = JobId>,
    mut room: Room,
) -> Result<Gathered, Refusal> {
    let (mut results, mut forgotten) = (Vec::new(), HashSet::new());
    for (at, job) in jobs.into_iter().enumerate() {
        if results.len() == CLIENT_RESULTS_AT_ONCE as usize || room.bytes >= CLIENT_FRAMES_BYTES_MAX {
            return Ok(Gathered { results, forgotten, cut_off: Some(at), room });
        }
        match source.result(job).await {
            Ok(Found::Unfinished) => {}
            Ok(Found::Forgotten) => {
                forgotten.insert(job);
            }
            Ok(Found::Result(result)) if room.takes(&result) => results.push(result),
            // What was read is sent.
            Err(refusal) if results.is_empty() => return Err(refusal),
            Ok(Found::Result(_)) | Err(_) => {
                return Ok(Gathered { results, forgotten, cut_off: Some(at), room });
            }
        }
    }
    Ok(Gathered { results, forgotten, cut_off: None, room })
}

/// The bytes of what came of a job.
fn bytes_of(result: &SessionResult) -> usize {
    [&result.result, &result.error].into_iter().flatten().map(String::len).sum()
}

/// The first finished jobs whose results were not sent, as many as are sent at once, and whether these are all.
async fn unsent(source: &impl Source, sent: &Sent) -> Result<(Vec<(u64, JobId)>, bool), Refusal> {
    let (mut places, mut after) = (Vec::new(), sent.low());
    loop {
        let page = source.finished_places(after, PLACES_AT_ONCE).await?;
        let Some((last, _)) = page.last().copied() else { return Ok((places, true)) };
        let is_last = page.len() < PLACES_AT_ONCE as usize;
        for (seq, job) in page.into_iter().filter(|(seq, _)| sent.lacks(*seq)) {
            if places.len() == CLIENT_RESULTS_AT_ONCE as usize {
                return Ok((places, false));
            }
            places.push((seq, job));
        }
        if is_last {
            return Ok((places, true));
        }
        after = sent.end_of_run(last);
    }
}

#[cfg(test)]
mod tests;
