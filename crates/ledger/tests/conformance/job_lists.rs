//! Lists of jobs, and forgetting the finished ones.

use std::collections::HashSet;

use domain::job::{Attempt, Change, Due, Ended, NewJob, OnRecovery, Outcome, Revoked, State};
use domain::limits::PAST_ATTEMPTS_MAX;
use domain::{JobId, JobKind, PoolName, SessionId, TenantId};
use ledger::{
    FinishedBy, FinishedCounts, JobFilter, JobRecord, PARTITION_DAYS_AHEAD, UnfinishedCount, UnfinishedCounts,
};
use sqlx::{Connection, PgConnection};

use crate::bench::{Bench, LONG_MS, eventually, owner};
use crate::shop::{
    cancel, complete, dispatch, job, job_made, node, of_lane, plain, run, said, session, submit,
    submit_placed,
};

/// Twelve jobs, four of each tenant, in every state and with every outcome.
async fn stock(b: &Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let jobs = (0..12).map(|n| {
        let mut new = plain(job(n));
        new.spec.tenant = (n % 3 > 0).then(|| TenantId::parse(&format!("t{}", n % 3)).unwrap());
        new.spec.needs.pool = (n % 2 > 0).then(|| PoolName::parse("p").unwrap());
        new.spec.session = (n % 4 > 0).then(|| SessionId::parse(&format!("s{}", n % 4)).unwrap());
        new.spec.kind = (n % 5 > 0).then(|| JobKind::parse(&format!("k{}", n % 5)).unwrap());
        submit(new)
    });
    b.does(of_lane(&lane, jobs)).await;
    b.does(of_lane(&lane, (2..12).map(|n| dispatch(job(n), 1)))).await;
    let fail = |n, dead| Change::Fail {
        job: job(n),
        attempt: Attempt::new(1),
        node: node("n"),
        ended: Ended::Failed,
        error: "no".to_owned(),
        due_in_ms: None,
        dead,
    };
    let late = Change::End {
        job: job(10),
        outcome: Outcome::TimedOut,
        dead: true,
        attempt: Some((Attempt::new(1), Revoked::TimedOut)),
        reason: "too long".to_owned(),
    };
    b.does(said([run(job(4), 1), run(job(5), 1)])).await;
    b.does(said([complete(job(6), 1, "1"), complete(job(7), 1, "1"), fail(8, false), fail(9, true)])).await;
    b.does(of_lane(&lane, [late, cancel(job(11))])).await;
}

pub async fn jobs_are_listed_by_every_filter_newest_first(b: Bench) {
    stock(&b).await;
    let any = || JobFilter { limit: 100, ..JobFilter::default() };
    let listed = async |filter: JobFilter| {
        let jobs = b.ledger.jobs(&filter).await.unwrap();
        jobs.iter().map(|record| record.id).collect::<Vec<_>>()
    };
    let newest_first = |numbers: &[u64]| numbers.iter().rev().map(|n| job(*n)).collect::<Vec<_>>();
    let all: Vec<_> = (0..12).collect();
    assert_eq!(listed(any()).await, newest_first(&all));
    let states: [(State, &[u64]); 4] = [
        (State::Created, &[0, 1]),
        (State::Dispatched, &[2, 3]),
        (State::Running, &[4, 5]),
        (State::Finished, &[6, 7, 8, 9, 10, 11]),
    ];
    for (state, numbers) in states {
        assert_eq!(
            listed(JobFilter { state: Some(state), ..any() }).await,
            newest_first(numbers),
            "{state:?}"
        );
    }
    let outcomes: [(Outcome, &[u64]); 4] = [
        (Outcome::Succeeded, &[6, 7]),
        (Outcome::Failed, &[8, 9]),
        (Outcome::TimedOut, &[10]),
        (Outcome::Cancelled, &[11]),
    ];
    for (outcome, numbers) in outcomes {
        let filter = JobFilter { outcome: Some(outcome), ..any() };
        assert_eq!(listed(filter).await, newest_first(numbers), "{outcome:?}");
    }
    assert_eq!(listed(JobFilter { dead: Some(true), ..any() }).await, newest_first(&[8, 9, 10]));
    let tenant = Some(TenantId::parse("t1").unwrap());
    assert_eq!(listed(JobFilter { tenant: tenant.clone(), ..any() }).await, newest_first(&[1, 4, 7, 10]));
    let pool = Some(PoolName::parse("p").unwrap());
    assert_eq!(listed(JobFilter { pool: pool.clone(), ..any() }).await, newest_first(&[1, 3, 5, 7, 9, 11]));
    let session = Some(SessionId::parse("s3").unwrap());
    assert_eq!(listed(JobFilter { session: session.clone(), ..any() }).await, newest_first(&[3, 7, 11]));
    let on_a_node = JobFilter { state: Some(State::Running), ..any() };
    let of_session = Some(SessionId::parse("s1").unwrap());
    assert_eq!(listed(JobFilter { session: of_session, ..on_a_node.clone() }).await, newest_first(&[5]));
    assert_eq!(listed(JobFilter { before: Some(job(5)), ..on_a_node }).await, newest_first(&[4]));
    let kind = Some(JobKind::parse("k1").unwrap());
    assert_eq!(listed(JobFilter { kind: kind.clone(), ..any() }).await, newest_first(&[1, 6, 11]));
    assert_eq!(listed(JobFilter { kind, state: Some(State::Created), ..any() }).await, newest_first(&[1]));
    let together = JobFilter { tenant, pool, session, state: Some(State::Finished), ..any() };
    assert_eq!(listed(together.clone()).await, newest_first(&[7]));
    let failed = JobFilter { outcome: Some(Outcome::Failed), ..together };
    assert_eq!(listed(failed).await, []);
    let impossible = JobFilter { outcome: Some(Outcome::Failed), state: Some(State::Running), ..any() };
    assert_eq!(listed(impossible).await, []);
}

pub async fn jobs_are_listed_by_some_sessions(b: Bench) {
    stock(&b).await;
    let of = |names: &[&str]| JobFilter {
        sessions: Some(names.iter().map(|name| SessionId::parse(name).unwrap()).collect()),
        limit: 100,
        ..JobFilter::default()
    };
    let two = || of(&["s1", "s3"]);
    for (filter, numbers) in [
        (two(), &[1, 3, 5, 7, 9, 11][..]),
        (of(&["s2"]), &[2, 6, 10]),
        (of(&["none", "s2", "none"]), &[2, 6, 10]),
        (of(&["none"]), &[]),
        (of(&[]), &[]),
        (JobFilter { limit: 2, ..two() }, &[9, 11]),
        (JobFilter { after: Some(job(3)), before: Some(job(9)), ..two() }, &[5, 7]),
        (JobFilter { state: Some(State::Dispatched), ..two() }, &[3]),
        (JobFilter { state: Some(State::Running), ..two() }, &[5]),
        (JobFilter { state: Some(State::Finished), after: Some(job(7)), ..two() }, &[9, 11]),
        (JobFilter { tenant: TenantId::parse("t1").ok(), ..two() }, &[1, 7]),
    ] {
        let found = b.ledger.jobs(&filter).await.unwrap();
        let expected: Vec<_> = numbers.iter().rev().map(|n| job(*n)).collect();
        assert_eq!(found.iter().map(|record| record.id).collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

pub async fn the_states_of_jobs_are_read_without_the_jobs(b: Bench) {
    stock(&b).await;
    let mut expected = Vec::new();
    for n in 0..12 {
        expected.push((job(n), b.found(job(n)).await.state));
    }
    // One is asked about twice, and two never were.
    let asked: Vec<_> = (0..12).chain([3, 98, 99]).map(job).collect();
    let mut found = b.ledger.job_states(&asked).await.unwrap();
    found.sort_unstable_by_key(|(job, _)| *job);
    assert_eq!(found, expected);
    assert_eq!(b.ledger.job_states(&[job(6)]).await.unwrap(), [(job(6), State::Finished)]);
    assert_eq!(b.ledger.job_states(&[job(0)]).await.unwrap(), [(job(0), State::Created)]);
    assert_eq!(b.ledger.job_states(&[job(99)]).await.unwrap(), []);
    assert_eq!(b.ledger.job_states(&[]).await.unwrap(), []);
}

/// A list shows why the last attempt of an unfinished job ended. Those before it, of which there may be many with long reasons,
/// are not read, nor are those of a finished job, which has an error of its own.
pub async fn a_list_reads_the_last_past_attempt_of_an_unfinished_job_alone(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (0..4).map(|n| submit_placed(job(n))))).await;
    let revoke = |n: u64, attempt: u32| {
        // A reason may look like the beginnings of lines.
        let reason = format!("attempt {attempt}:\n{{\"attempt\":{attempt},\n{{\"attempt\" : {attempt}, ");
        let (attempt, why) = (Attempt::new(attempt), Revoked::Undeliverable);
        Change::Revoke { job: job(n), attempt, why, reason, due_in_ms: 0 }
    };
    // One that waits, one that a node has, with more attempts than are kept, and one that is finished. The first has none.
    let attempts = PAST_ATTEMPTS_MAX as u32 + 2;
    for attempt in 1..=attempts {
        b.does(of_lane(&lane, [revoke(2, attempt)])).await;
        b.does(of_lane(&lane, [dispatch(job(2), attempt + 1)])).await;
    }
    b.does(of_lane(&lane, [revoke(1, 1), revoke(3, 1)])).await;
    b.does(of_lane(&lane, [dispatch(job(1), 2), dispatch(job(3), 2)])).await;
    b.does(of_lane(&lane, [revoke(1, 2)])).await;
    let (n, ended, error) = (node("n"), Ended::Failed, "no".to_owned());
    let attempt = Attempt::new(2);
    let fail = Change::Fail { job: job(3), attempt, node: n, ended, error, due_in_ms: None, dead: true };
    b.does(said([fail])).await;
    for (state, numbers) in [
        (None, &[3, 2, 1, 0][..]),
        (Some(State::Created), &[1]),
        (Some(State::Dispatched), &[2, 0]),
        (Some(State::Finished), &[3]),
    ] {
        // So many that PostgreSQL looks no further than among the newest jobs.
        let limit = numbers.len() as u32;
        let listed = b.ledger.jobs(&JobFilter { state, limit, ..JobFilter::default() }).await.unwrap();
        assert!(listed.iter().map(|record| record.id).eq(numbers.iter().map(|n| job(*n))), "{state:?}");
        for record in listed {
            let shown = b.found(record.id).await;
            let last = shown.attempts.last().filter(|_| shown.finished.is_none());
            assert_eq!(record.attempts, last.cloned().into_iter().collect::<Vec<_>>(), "{state:?}");
            let error = |of: &JobRecord| of.finished.as_ref().and_then(|finished| finished.error.clone());
            assert_eq!(error(&record), error(&shown));
        }
    }
    let kept = b.found(job(2)).await.attempts;
    assert_eq!((kept.len(), kept.last().unwrap().attempt.get()), (PAST_ATTEMPTS_MAX, attempts));
}

pub async fn a_cursor_goes_on_where_the_page_ended(b: Bench) {
    stock(&b).await;
    for finished_only in [false, true] {
        let state = finished_only.then_some(State::Finished);
        let (mut seen, mut before) = (Vec::<JobId>::new(), None);
        loop {
            let filter = JobFilter { state, before, limit: 5, ..JobFilter::default() };
            let page = b.ledger.jobs(&filter).await.unwrap();
            assert!(page.len() <= 5);
            let Some(last) = page.last() else { break };
            before = Some(last.id);
            seen.extend(page.iter().map(|record| record.id));
        }
        let first = if finished_only { 6 } else { 0 };
        assert_eq!(seen, (first..12).rev().map(job).collect::<Vec<_>>());
    }
}

pub async fn jobs_are_counted_by_pool_tenant_and_state(b: Bench) {
    let pools = HashSet::new();
    assert_eq!(b.ledger.unfinished_counts(100, &pools).await.unwrap(), UnfinishedCounts::default());
    assert_eq!(b.ledger.finished_counts(100, &pools).await.unwrap(), FinishedCounts::default());
    stock(&b).await;
    let lane = b.lane(session("later"), &owner("a")).await;
    let delayed = NewJob { due: Due::InMs(LONG_MS), ..plain(job(20)) };
    let held = spec_held(plain(job(21)));
    b.does(of_lane(&lane, [submit(delayed), submit(held)])).await;
    b.ledger.hold_jobs(&lane).await.unwrap().unwrap();
    let pool = PoolName::parse("p").unwrap();
    let counted = async || b.ledger.unfinished_counts(100, &pools).await.unwrap();
    let counts = counted().await;
    let states = |of: &UnfinishedCount| (of.created, of.delayed, of.dispatched, of.running);
    assert_eq!(counts.of_pools.len(), 2, "{counts:?}");
    let (none, p) = (counts.of_pools[&None], counts.of_pools[&Some(pool.clone())]);
    assert_eq!((states(&none), states(&p), states(&counts.all)), ((3, 2, 1, 1), (1, 0, 1, 1), (4, 2, 2, 2)));
    let tenant = |name: &str| TenantId::parse(name).unwrap();
    let of_tenants: Vec<_> =
        counts.of_tenants.iter().map(|(tenant, of)| (tenant.clone(), states(of))).collect();
    let expected =
        [(None, (3, 2, 1, 0)), (Some(tenant("t1")), (1, 0, 0, 1)), (Some(tenant("t2")), (0, 0, 1, 1))];
    assert_eq!(of_tenants, expected);
    let finished = FinishedCounts {
        all: 6,
        pools: FinishedBy { all: 3, of: vec![(pool.clone(), 3)] },
        tenants: FinishedBy { all: 4, of: vec![(tenant("t1"), 2), (tenant("t2"), 2)] },
    };
    // In as many statements as it takes.
    for piece in [1, 2, 3, 6, 7, 100] {
        assert_eq!(b.ledger.finished_counts(piece, &pools).await.unwrap(), finished, "{piece}");
        let again = b.ledger.unfinished_counts(piece, &pools).await.unwrap();
        let each = |of: &UnfinishedCounts| {
            of.of_pools
                .values()
                .chain(of.of_tenants.values())
                .chain([&of.all])
                .map(states)
                .collect::<Vec<_>>()
        };
        assert_eq!(each(&again), each(&counts), "{piece}");
        assert!(again.of_pools.values().all(|count| count.oldest_ms.is_some()), "{piece}: {again:?}");
    }
    // The age is that of the longest wait, and what is not due yet does not wait.
    let of_pool = async || counted().await.of_pools[&Some(pool.clone())].oldest_ms;
    eventually("the one that waits gets older", async || of_pool().await > p.oldest_ms).await;
    assert!(of_pool().await.unwrap() < LONG_MS);
    let first = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&first, [dispatch(job(0), 1), dispatch(job(1), 1)])).await;
    let counts = counted().await;
    assert!(counts.of_pools.values().all(|count| count.oldest_ms.is_none()), "{counts:?}");
    assert_eq!(counts.all.oldest_ms, None);
}

/// A job that a new owner of its lane holds.
fn spec_held(mut new: NewJob) -> NewJob {
    new.spec.on_recovery = OnRecovery::Hold;
    new
}

pub async fn old_finished_jobs_are_forgotten_in_steps(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (0..6).map(|n| submit_placed(job_made(n, 2))))).await;
    b.does(said((0..5).map(|n| complete(job_made(n, 2), 1, "1")))).await;
    assert_eq!(b.ledger.purge_jobs(LONG_MS, 100).await.unwrap(), 0, "young ones stay");
    eventually("they are old", async || b.ledger.purge_jobs(2, 3).await.unwrap() == 3).await;
    assert_eq!(b.ledger.purge_jobs(0, 3).await.unwrap(), 2);
    assert_eq!(b.ledger.purge_jobs(0, 3).await.unwrap(), 0);
    for n in 0..5 {
        assert_eq!(b.ledger.job(job_made(n, 2)).await.unwrap(), None);
    }
    assert_eq!(b.found(job_made(5, 2)).await.state, State::Dispatched, "one that is not finished stays");
    // Its result is stale once it is gone, like anything else that is said of it.
    let forgotten = b.verdicts(said([complete(job_made(0, 2), 1, "1")])).await;
    assert_eq!(forgotten, [ledger::JobVerdict::Stale]);
}

const DAY_MS: u64 = 86_400_000;

async fn partitions(session: &mut PgConnection) -> Vec<String> {
    let names = "SELECT inhrelid::regclass::text FROM pg_inherits
                 WHERE inhparent = 'job_finished'::regclass ORDER BY 1";
    sqlx::query_scalar(names).fetch_all(session).await.unwrap()
}

async fn rows_in(session: &mut PgConnection, partition: &str) -> i64 {
    let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {partition}"));
    sqlx::query_scalar(count).fetch_one(session).await.unwrap()
}

fn partition_of(id: JobId) -> String {
    format!("job_finished_{}", id.made_at_ms() / DAY_MS)
}

/// A day's partition by another hand: the ledger makes none for days that are over.
pub async fn made(session: &mut PgConnection, id: JobId) {
    let day = id.made_at_ms() / DAY_MS;
    let (from, to) = (JobId::first_at_ms(day * DAY_MS), JobId::first_at_ms((day + 1) * DAY_MS));
    let make = format!(
        "CREATE TABLE {} PARTITION OF job_finished FOR VALUES FROM ('{from}') TO ('{to}')",
        partition_of(id)
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(make)).execute(session).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_made_ahead_by_everybody_at_once() {
    let b = Bench::postgres().await;
    let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
    let expected = PARTITION_DAYS_AHEAD as usize + 2;
    assert_eq!(partitions(&mut hand).await.len(), expected, "one for today and each day ahead, and the rest");
    let tomorrow = partition_of(job(0)).rsplit('_').next().unwrap().parse::<u64>().unwrap() + 1;
    let drop = format!("DROP TABLE job_finished_{tomorrow}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut hand).await.unwrap();
    let handles = b.instances(3).await;
    let made = handles.iter().map(|ledger| ledger.make_job_partitions());
    for made in futures_util::future::join_all(made).await {
        // One that found the table busy says so, and is asked again.
        assert!(made.is_ok() || made.as_ref().is_err_and(ledger::Error::is_retryable), "{made:?}");
    }
    b.ledger.make_job_partitions().await.unwrap();
    assert_eq!(partitions(&mut hand).await.len(), expected);
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(job(0))])).await;
    b.does(said([complete(job(0), 1, "1")])).await;
    assert_eq!(rows_in(&mut hand, &partition_of(job(0))).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_whose_jobs_came_too_early_stays_with_the_rest() {
    let b = Bench::postgres().await;
    let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
    let today = partition_of(job(0));
    let drop = format!("DROP TABLE {today}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut hand).await.unwrap();
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(job(0))])).await;
    b.does(said([complete(job(0), 1, "1")])).await;
    b.ledger.make_job_partitions().await.unwrap();
    assert!(!partitions(&mut hand).await.contains(&today));
    assert_eq!(rows_in(&mut hand, "job_finished_rest").await, 1);
    eventually("it is old", async || b.ledger.purge_jobs(2, 9).await.unwrap() == 1).await;
    b.ledger.make_job_partitions().await.unwrap();
    assert!(partitions(&mut hand).await.contains(&today), "there is room for it now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_gets_no_partition_keeps_no_other_one_from_it() {
    let b = Bench::postgres().await;
    let mut hand = hand_of(&b).await;
    let day = job(0).made_at_ms() / DAY_MS;
    let first = |day| JobId::first_at_ms(day * DAY_MS);
    // Somebody has made one for tomorrow under a name of their own.
    let by_hand = format!(
        "DROP TABLE job_finished_{0}; DROP TABLE job_finished_{1};
         CREATE TABLE odd PARTITION OF job_finished FOR VALUES FROM ('{2}') TO ('{3}')",
        day + 1,
        day + 2,
        first(day + 1),
        first(day + 2),
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(by_hand)).execute(&mut hand).await.unwrap();
    assert!(b.ledger.make_job_partitions().await.is_err(), "it says so");
    let found = partitions(&mut hand).await;
    assert!(found.contains(&format!("job_finished_{}", day + 2)), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_partition_is_made_while_the_server_would_read_many_jobs_for_it() {
    let b = Bench::postgres().await;
    let mut hand = hand_of(&b).await;
    let today = partition_of(job(0));
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(job_made(0, 3))])).await;
    b.does(said([complete(job_made(0, 3), 1, "1")])).await;
    // Copies of it, whose ids are at the beginning of time.
    let many = format!(
        "DROP TABLE {today};
         ALTER TABLE job_finished_rest ALTER COLUMN payload SET STORAGE PLAIN;
         CREATE TEMP TABLE copies AS SELECT f.* FROM job_finished_rest f, generate_series(1, 16400);
         ALTER TABLE copies ALTER COLUMN payload SET STORAGE PLAIN;
         UPDATE copies SET payload = to_json(repeat('x', 7500)), id = ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid
         FROM (SELECT ctid AS place, row_number() OVER () AS n FROM copies) numbered WHERE copies.ctid = place;
         INSERT INTO job_finished_rest SELECT * FROM copies"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(many)).execute(&mut hand).await.unwrap();
    b.ledger.make_job_partitions().await.unwrap();
    assert!(!partitions(&mut hand).await.contains(&today), "128 MiB would be read");
    // What is deleted takes room until the server tidies up, whenever it can: so the copies go with the table's file.
    let less = "CREATE TEMP TABLE kept AS SELECT * FROM job_finished_rest WHERE id >= '00000000-0000-0000-0001-000000000000';
                TRUNCATE job_finished_rest;
                INSERT INTO job_finished_rest SELECT * FROM kept";
    sqlx::raw_sql(less).execute(&mut hand).await.unwrap();
    b.ledger.make_job_partitions().await.unwrap();
    assert!(partitions(&mut hand).await.contains(&today));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_is_dropped_as_a_whole_once_all_of_it_is_old() {
    let b = Bench::postgres().await;
    let mut hand = PgConnection::connect(&b.options.url).await.unwrap();
    // The jobs of an older day would be deleted one by one where one of the two finds the table busy.
    let (old, today) = (job_made(0, 1), job(1));
    made(&mut hand, old).await;
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(old), submit_placed(job_made(2, 1)), submit_placed(today)])).await;
    b.does(said([complete(old, 1, "1"), complete(today, 1, "1")])).await;
    assert_eq!(rows_in(&mut hand, &partition_of(old)).await, 1);
    // The day is old, the job is not.
    assert_eq!(b.ledger.purge_jobs(LONG_MS, 100).await.unwrap(), 0);
    assert!(partitions(&mut hand).await.contains(&partition_of(old)));
    let other = b.instances(2).await.pop().unwrap();
    // One that grows old between a purge's looks would be deleted by itself.
    eventually("all are old", async || {
        let young = "SELECT count(*) FROM job_finished WHERE finished_at >= now() - interval '50 ms'";
        sqlx::query_scalar::<_, i64>(young).fetch_one(&mut hand_of(&b).await).await.unwrap() == 0
    })
    .await;
    eventually("it is dropped", async || {
        // By several at once; one that found the table busy says so.
        let both = tokio::join!(b.ledger.purge_jobs(50, 100), other.purge_jobs(50, 100));
        for purged in [both.0, both.1] {
            assert!(
                matches!(purged, Ok(0)) || purged.as_ref().is_err_and(ledger::Error::is_retryable),
                "{purged:?}: nothing is deleted one by one"
            );
        }
        !partitions(&mut hand_of(&b).await).await.contains(&partition_of(old))
    })
    .await;
    assert_eq!(b.ledger.job(old).await.unwrap(), None);
    assert_eq!(b.found(today).await.state, State::Finished, "today's are kept until the day is over");
    // One of that day that finishes later finds its place all the same.
    b.does(said([complete(job_made(2, 1), 1, "1")])).await;
    assert_eq!(rows_in(&mut hand, "job_finished_rest").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_with_a_job_that_finished_late_waits_a_day_before_its_jobs_are_deleted_one_by_one() {
    let b = Bench::postgres().await;
    let mut hand = hand_of(&b).await;
    let (yesterday, before) = (|n| job_made(n, 1), |n| job_made(n, 2));
    made(&mut hand, yesterday(0)).await;
    made(&mut hand, before(2)).await;
    let jobs = [yesterday(0), yesterday(1), before(2), before(3)];
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, jobs.map(submit_placed))).await;
    b.does(said(jobs.map(|job| complete(job, 1, "1")))).await;
    let finished = async |hand: &mut PgConnection, job: JobId, offset: &str| {
        let moved = format!("UPDATE job_finished SET finished_at = now() {offset} WHERE id = '{job}'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(moved)).execute(hand).await.unwrap();
    };
    for (job, offset) in jobs.into_iter().zip(["- interval '1 hour'", "+ interval '1 hour'"].repeat(2)) {
        finished(&mut hand, job, offset).await;
    }
    assert_eq!(b.ledger.purge_jobs(2, 100).await.unwrap(), 1, "the old one of the day before yesterday");
    assert_eq!(b.ledger.job(before(2)).await.unwrap(), None);
    assert_eq!(rows_in(&mut hand, &partition_of(yesterday(0))).await, 2);
    finished(&mut hand, yesterday(1), "- interval '1 hour'").await;
    eventually("yesterday is dropped as a whole", async || {
        // One that found the table busy says so.
        let purged = b.ledger.purge_jobs(2, 100).await;
        assert!(
            matches!(purged, Ok(0)) || purged.as_ref().is_err_and(ledger::Error::is_retryable),
            "{purged:?}"
        );
        !partitions(&mut hand_of(&b).await).await.contains(&partition_of(yesterday(0)))
    })
    .await;
}

async fn hand_of(b: &Bench) -> PgConnection {
    PgConnection::connect(&b.options.url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_old_in_a_day_that_may_not_be_dropped_is_deleted() {
    let b = Bench::postgres().await;
    let mut hand = hand_of(&b).await;
    let (old, today) = (job_made(0, 3), job(1));
    made(&mut hand, old).await;
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(old), submit_placed(today)])).await;
    b.does(said([complete(old, 1, "1"), complete(today, 1, "1")])).await;
    let barred = "CREATE FUNCTION barred() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not yours' USING ERRCODE = '42501'; END $$;
                  CREATE EVENT TRIGGER barred ON ddl_command_start WHEN TAG IN ('DROP TABLE', 'ALTER TABLE') EXECUTE FUNCTION barred();";
    sqlx::raw_sql(barred).execute(&mut hand).await.unwrap();
    eventually("it is deleted by itself", async || {
        let purged = b.ledger.purge_jobs(2, 100).await;
        assert!(purged.is_ok(), "{purged:?}");
        b.ledger.job(old).await.unwrap().is_none()
    })
    .await;
    assert!(partitions(&mut hand).await.contains(&partition_of(old)));
    assert_eq!(b.found(today).await.state, State::Finished);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_cannot_be_dropped_keeps_nothing_old_from_being_deleted() {
    let b = Bench::postgres().await;
    let mut hand = hand_of(&b).await;
    let (of_that_day, without_a_day) = (job_made(0, 3), job_made(1, 5));
    made(&mut hand, of_that_day).await;
    let view = format!("CREATE VIEW somebodys AS SELECT id FROM {}", partition_of(of_that_day));
    sqlx::raw_sql(sqlx::AssertSqlSafe(view)).execute(&mut hand).await.unwrap();
    let (jobs, lane) = ([of_that_day, without_a_day], b.lane(session("s"), &owner("a")).await);
    b.does(of_lane(&lane, jobs.map(submit_placed))).await;
    b.does(said(jobs.map(|job| complete(job, 1, "1")))).await;
    eventually("both are deleted", async || {
        let purged = b.ledger.purge_jobs(2, 100).await;
        assert!(purged.is_ok(), "{purged:?}");
        b.ledger.job(of_that_day).await.unwrap().is_none()
            && b.ledger.job(without_a_day).await.unwrap().is_none()
    })
    .await;
    assert!(partitions(&mut hand).await.contains(&partition_of(of_that_day)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_that_take_longer_than_a_call_may_are_dropped_by_several() {
    let b = Bench::postgres().await;
    let mut hand = hand_of(&b).await;
    // Half a second for each: together longer than the ten seconds of a call.
    let days: Vec<_> = (0..26).map(|n| job_made(n, 3 + n)).collect();
    for day in &days {
        made(&mut hand, *day).await;
    }
    let slow = "CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); END $$;
                CREATE EVENT TRIGGER slow ON sql_drop EXECUTE FUNCTION slow();";
    sqlx::raw_sql(slow).execute(&mut hand).await.unwrap();
    // After a call that was cut off no day is dropped for longer than this waits.
    eventually("they are dropped", async || {
        let purged = b.ledger.purge_jobs(2, 100).await;
        assert!(purged.is_ok() || purged.as_ref().is_err_and(ledger::Error::is_retryable), "{purged:?}");
        let left = partitions(&mut hand_of(&b).await).await;
        days.iter().all(|day| !left.contains(&partition_of(*day)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_old_in_a_partition_of_another_name_is_deleted() {
    let b = Bench::postgres().await;
    let mut hand = hand_of(&b).await;
    let old = job_made(0, 3);
    made(&mut hand, old).await;
    let named = format!("ALTER TABLE {} RENAME TO odd", partition_of(old));
    sqlx::raw_sql(sqlx::AssertSqlSafe(named)).execute(&mut hand).await.unwrap();
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(old)])).await;
    b.does(said([complete(old, 1, "1")])).await;
    assert_eq!(rows_in(&mut hand, "odd").await, 1);
    eventually("it is old", async || b.ledger.purge_jobs(2, 9).await.unwrap() == 1).await;
    assert_eq!(b.ledger.job(old).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_with_a_stage_whose_result_is_waited_for_is_not_dropped() {
    let b = Bench::postgres().await;
    let of_that_day = job_made(0, 3);
    made(&mut hand_of(&b).await, of_that_day).await;
    crate::plan_steps::stages_jobs_are_kept_while_waited_for(&b).await;
    // Nothing of it is waited for any more.
    eventually("it is dropped", async || {
        let purged = b.ledger.purge_jobs(2, 100).await;
        assert!(purged.is_ok() || purged.as_ref().is_err_and(ledger::Error::is_retryable), "{purged:?}");
        !partitions(&mut hand_of(&b).await).await.contains(&partition_of(of_that_day))
    })
    .await;
}

/// PostgreSQL keeps no such text in a column of ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_a_column_that_cannot_be_read_is_impossible_data_and_no_refusal() {
    let b = Bench::sqlite().await;
    stock(&b).await;
    b.by_hand(format!("UPDATE job_finished SET retried_as = 'x' WHERE id = '{}'", job(6))).await;
    let spoilt = b.ledger.job(job(6)).await;
    assert!(matches!(spoilt, Err(ledger::Error::Impossible(_))), "{spoilt:?}");
    assert_eq!(b.found(job(7)).await.state, State::Finished);
}
