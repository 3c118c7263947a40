//! Sessions: made once under one key, closed by the owner of their lane alone, idle when nothing happens in them, and
//! forgotten when nothing names them.

use domain::job::{Requirements, Route};
use domain::session::{Ordering, Spec};
use domain::{IdempotencyKey, Label, PoolName, SessionId, TenantId};
use ledger::{
    Acquisition, Error, JobKey, KeyScope, Lane, Opened, Opener, SessionAccess, SessionFilter, SessionRecord,
    Unwritten,
};
use sqlx::{AssertSqlSafe, Connection};
use tokio::task::JoinSet;

use crate::bench::{Bench, LONG_MS, owner};
use crate::interleavings::until_waiting;
use crate::shop::{cancel, in_session, instance_lane, job, of_lane, session, session_id as id, submit};

/// Longer than any case, and not as long as [`AGE_MS`].
const IDLE_MS: u64 = 600_000;
/// By how much rows are made older.
const AGE_MS: u64 = 3_600_000;

pub fn spec() -> Spec {
    Spec { tenant: None, needs: Requirements::default(), ordering: Ordering::Strict, idle_ms: IDLE_MS }
}

fn key(name: &str) -> JobKey {
    let scope = KeyScope { scope: "session someone".to_owned(), key: IdempotencyKey::parse(name).unwrap() };
    JobKey { scope, body_hash: [3; 32] }
}

impl Bench {
    async fn opens(&self, name: &str) {
        let opened = self.ledger.open_session(&id(name), &spec(), None, None).await.unwrap();
        assert!(matches!(opened, Opened::Made { .. }), "{opened:?}");
    }

    async fn shown(&self, name: &str) -> SessionRecord {
        self.ledger.session(&id(name)).await.unwrap().unwrap()
    }

    pub async fn by_hand(&self, statement: String) {
        let statement = AssertSqlSafe(statement);
        if self.database.is_some() {
            let mut hand = sqlx::PgConnection::connect(&self.options.url).await.unwrap();
            sqlx::raw_sql(statement).execute(&mut hand).await.unwrap();
        } else {
            let mut hand = sqlx::SqliteConnection::connect(&self.options.url).await.unwrap();
            sqlx::raw_sql(statement).execute(&mut hand).await.unwrap();
        }
    }

    /// As if that had been so much earlier.
    async fn ages(&self, table: &str, column: &str, name: &str) {
        let earlier = if self.database.is_some() {
            format!("interval '{AGE_MS} milliseconds'")
        } else {
            format!("{AGE_MS}000")
        };
        let of = if table == "lease" {
            format!("resource = 'session:{name}'")
        } else {
            format!("session = '{name}'")
        };
        self.by_hand(format!("UPDATE {table} SET {column} = {column} - {earlier} WHERE {of}")).await;
    }

    async fn closes(&self, name: &str) {
        let lane = self.lane(session(name), &owner("a")).await;
        assert_eq!(self.ledger.close_session(&lane).await.unwrap(), Ok(()));
        self.ledger.release(lane.id.lease(), &lane.owner, lane.token).await.unwrap();
    }

    async fn idle(&self) -> Vec<String> {
        let (idle, next) = self.ledger.idle_sessions(0, None, 100).await.unwrap();
        assert_eq!(next, None);
        idle.iter().map(SessionId::to_string).collect()
    }
}

pub async fn a_session_keeps_all_that_was_asked_of_it(b: Bench) {
    let label = |text| Label::parse(text).unwrap();
    let full = Spec {
        tenant: Some(TenantId::parse("acme").unwrap()),
        needs: Requirements {
            pool: Some(PoolName::parse("p").unwrap()),
            route: Some(Route::parse("zh:en-GB").unwrap()),
            requires: vec![label("gpu"), label("asr:zh")],
        },
        ordering: Ordering::Results,
        idle_ms: 12_345,
    };
    for (name, spec) in [("full", full), ("free", Spec { ordering: Ordering::Free, ..spec() })] {
        let Opened::Made { created_at } = b.ledger.open_session(&id(name), &spec, None, None).await.unwrap()
        else {
            panic!("{name} was kept without a key");
        };
        let record = b.shown(name).await;
        assert!(record.idle_for_ms < LONG_MS);
        let expected = SessionRecord {
            id: id(name),
            spec,
            created_at,
            closed_at: None,
            idle_for_ms: record.idle_for_ms,
        };
        assert_eq!(record, expected);
    }
    assert_eq!(b.ledger.session(&id("never")).await.unwrap(), None);
}

pub async fn sessions_are_listed_by_id_page_by_page_all_open_or_closed(b: Bench) {
    assert_eq!(
        b.ledger.sessions(&SessionFilter { limit: 10, ..SessionFilter::default() }).await.unwrap(),
        []
    );
    for name in ["c", "a", "d", "b"] {
        b.opens(name).await;
    }
    b.closes("b").await;
    b.closes("d").await;
    let listed = async |open: Option<bool>, after: Option<&str>, limit: u32| {
        let filter = SessionFilter { open, after: after.map(id), limit, ..SessionFilter::default() };
        let found = b.ledger.sessions(&filter).await.unwrap();
        found.iter().map(|record| record.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed(None, None, 3).await, ["a", "b", "c"]);
    assert_eq!(listed(None, Some("c"), 3).await, ["d"]);
    assert_eq!(listed(None, Some("d"), 3).await, [""; 0]);
    assert_eq!(listed(Some(true), None, 10).await, ["a", "c"]);
    assert_eq!(listed(Some(true), Some("a"), 1).await, ["c"]);
    assert_eq!(listed(Some(false), None, 1).await, ["b"]);
    assert_eq!(listed(Some(false), Some("b"), 1).await, ["d"]);
    // Each is what it is by itself.
    b.ages("session", "created_at", "a").await;
    let first = SessionFilter { open: Some(true), limit: 1, ..SessionFilter::default() };
    let found = b.ledger.sessions(&first).await.unwrap().remove(0);
    let shown = b.shown("a").await;
    assert!((AGE_MS..AGE_MS + LONG_MS).contains(&found.idle_for_ms), "{found:?}");
    assert_eq!(SessionRecord { idle_for_ms: shown.idle_for_ms, ..found }, shown);
}

pub async fn sessions_are_listed_by_tenant_and_pool(b: Bench) {
    for (name, tenant, pool) in
        [("a", "x", ""), ("b", "y", "p"), ("c", "x", "p"), ("d", "", "p"), ("e", "x", "p")]
    {
        let needs = Requirements { pool: PoolName::parse(pool).ok(), ..Requirements::default() };
        let asked = Spec { tenant: TenantId::parse(tenant).ok(), needs, ..spec() };
        b.ledger.open_session(&id(name), &asked, None, None).await.unwrap();
    }
    b.closes("c").await;
    let listed = async |tenant: Option<&str>, pool: Option<&str>, open: Option<bool>, after: Option<&str>| {
        let filter = SessionFilter {
            open,
            tenant: tenant.map(|name| TenantId::parse(name).unwrap()),
            pool: pool.map(|name| PoolName::parse(name).unwrap()),
            after: after.map(id),
            limit: 2,
        };
        let found = b.ledger.sessions(&filter).await.unwrap();
        let names = b.ledger.session_names(&filter).await.unwrap();
        assert_eq!(names, found.into_iter().map(|record| record.id).collect::<Vec<_>>());
        names.iter().map(SessionId::to_string).collect::<Vec<_>>()
    };
    assert_eq!(listed(Some("x"), None, None, None).await, ["a", "c"]);
    assert_eq!(listed(Some("x"), None, None, Some("c")).await, ["e"]);
    assert_eq!(listed(Some("x"), Some("p"), None, None).await, ["c", "e"]);
    assert_eq!(listed(None, Some("p"), Some(true), None).await, ["b", "d"]);
    assert_eq!(listed(Some("z"), None, None, None).await, [""; 0]);
    let asked = ["d", "none", "c", "a", "c"].map(id);
    let mut found = b.ledger.session_access(&asked).await.unwrap();
    found.sort_unstable_by_key(|access| access.id.clone());
    let access = |(name, tenant, pool): (&str, &str, &str)| SessionAccess {
        id: id(name),
        tenant: TenantId::parse(tenant).ok(),
        pool: PoolName::parse(pool).ok(),
    };
    assert_eq!(found, [("a", "x", ""), ("c", "x", "p"), ("d", "", "p")].map(access), "closed ones too");
    assert_eq!(b.ledger.session_access(&[]).await.unwrap(), []);
}

pub async fn a_key_is_kept_with_its_session_and_answers_again(b: Bench) {
    let made = b.ledger.open_session(&id("s"), &spec(), Some(&key("k")), None).await.unwrap();
    assert!(matches!(made, Opened::Made { .. }), "{made:?}");
    // Another id under the same key, and the same once more by who did not hear of it.
    let other = JobKey { body_hash: [4; 32], ..key("k") };
    for (name, key) in [("t", &key("k")), ("t", &other), ("s", &key("k"))] {
        let kept = b.ledger.open_session(&id(name), &spec(), Some(key), None).await.unwrap();
        assert_eq!(kept, Opened::Kept { body_hash: [3; 32], session: id("s") });
    }
    assert_eq!(b.ledger.session(&id("t")).await.unwrap(), None, "nothing is made beside a taken key");
    let elsewhere =
        JobKey { scope: KeyScope { scope: "session other".to_owned(), ..key("k").scope }, ..other };
    let made = b.ledger.open_session(&id("t"), &spec(), Some(&elsewhere), None).await.unwrap();
    assert!(matches!(made, Opened::Made { .. }), "{made:?}");
}

pub async fn a_token_has_so_many_open_sessions_and_a_closed_one_makes_room(b: Bench) {
    let a = Opener { principal: "a".to_owned(), sessions_max: 2 };
    let open = async |name: &str, key: Option<&JobKey>, opener: Option<&Opener>| {
        b.ledger.open_session(&id(name), &spec(), key, opener).await.unwrap()
    };
    let is_made = |opened: &Opened| matches!(opened, Opened::Made { .. });
    assert!(is_made(&open("a1", None, Some(&a)).await) && is_made(&open("a2", None, Some(&a)).await));
    assert_eq!(open("a3", Some(&key("k")), Some(&a)).await, Opened::TooMany);
    assert_eq!(b.ledger.session(&id("a3")).await.unwrap(), None, "nothing was written");
    // Others have their own, and callers without a token have no limit.
    let other = Opener { principal: "b".to_owned(), ..a.clone() };
    assert!(is_made(&open("b1", None, Some(&other)).await));
    for name in ["n1", "n2", "n3"] {
        assert!(is_made(&open(name, None, None).await));
    }
    b.closes("a1").await;
    assert!(is_made(&open("a3", Some(&key("k")), Some(&a)).await), "the key was not kept by the refusal");
    assert_eq!(open("a4", None, Some(&a)).await, Opened::TooMany);
    let kept = open("a5", Some(&key("k")), Some(&a)).await;
    assert_eq!(kept, Opened::Kept { body_hash: [3; 32], session: id("a3") }, "an answer is given again");
}

pub async fn an_opening_said_again_makes_nothing_new(b: Bench) {
    let made = b.ledger.open_session(&id("s"), &spec(), None, None).await.unwrap();
    assert_eq!(b.ledger.open_session(&id("s"), &spec(), None, None).await.unwrap(), made);
    let other = Spec { ordering: Ordering::Free, ..spec() };
    for key in [None, Some(&key("k"))] {
        let refused = b.ledger.open_session(&id("s"), &other, key, None).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    }
    assert_eq!(b.shown("s").await.spec, spec());
    // The key was not kept without its session.
    let made = b.ledger.open_session(&id("t"), &other, Some(&key("k")), None).await.unwrap();
    assert!(matches!(made, Opened::Made { .. }), "{made:?}");
}

pub async fn of_many_openings_under_one_key_one_is_made(b: Bench) {
    let handles = b.instances(2).await;
    let mut openings = JoinSet::new();
    for n in 0..12 {
        let ledger = handles[n % 2].clone();
        openings.spawn(async move {
            let id = id(&format!("s{n}"));
            match ledger.open_session(&id, &spec(), Some(&key("k")), None).await.unwrap() {
                Opened::Made { .. } => (true, id),
                Opened::Kept { session, .. } => (false, session),
                Opened::TooMany => panic!("nobody bounds the sessions"),
            }
        });
    }
    let opened = openings.join_all().await;
    let made: Vec<_> = opened.iter().filter(|(made, _)| *made).map(|(_, id)| id.clone()).collect();
    let [made] = &made[..] else { panic!("{made:?}") };
    assert!(opened.iter().all(|(_, id)| id == made), "{opened:?}");
    for n in 0..12 {
        let there = b.ledger.session(&id(&format!("s{n}"))).await.unwrap().is_some();
        assert_eq!(there, id(&format!("s{n}")) == *made);
    }
}

pub async fn what_is_wrong_with_a_session_is_refused(b: Bench) {
    let labels = (0..17).map(|n| Label::parse(&format!("l{n}")).unwrap()).collect();
    let odd = KeyScope { scope: "\0".to_owned(), ..key("k").scope };
    let wrong = [
        ("no time", Spec { idle_ms: 0, ..spec() }, key("k")),
        ("a time too long", Spec { idle_ms: u64::MAX, ..spec() }, key("k")),
        (
            "too many labels",
            Spec { needs: Requirements { requires: labels, ..Requirements::default() }, ..spec() },
            key("k"),
        ),
        ("a NUL in a scope", spec(), JobKey { scope: odd, ..key("k") }),
    ];
    for (what, spec, key) in wrong {
        let answer = b.ledger.open_session(&id("s"), &spec, Some(&key), None).await;
        assert!(matches!(answer, Err(Error::Refused { .. })), "{what}: {answer:?}");
    }
    let instance = b.lane(instance_lane(&owner("a")), &owner("a")).await;
    let answer = b.ledger.close_session(&instance).await;
    assert!(matches!(answer, Err(Error::Refused { .. })), "an instance's lane: {answer:?}");
    assert_eq!(b.ledger.session(&id("s")).await.unwrap(), None);
}

pub async fn a_session_is_closed_by_the_owner_of_its_lane_alone(b: Bench) {
    b.opens("s").await;
    b.opens("t").await;
    let old = b.lane(session("s"), &owner("a")).await;
    let fenced = async |lane: &Lane| {
        assert_eq!(b.ledger.close_session(lane).await.unwrap(), Err(Unwritten::Fenced));
        assert_eq!(b.shown("s").await.closed_at, None);
    };
    b.ledger.release(old.id.lease(), &old.owner, old.token).await.unwrap();
    fenced(&old).await;
    let new = b.lane(session("s"), &owner("b")).await;
    fenced(&old).await;
    fenced(&Lane { token: new.token, ..old.clone() }).await;
    fenced(&Lane { token: old.token, ..new.clone() }).await;
    assert_eq!(b.ledger.close_session(&new).await.unwrap(), Ok(()));
    let closed = b.shown("s").await;
    assert!(closed.closed_at >= Some(closed.created_at));
    // Again, and by the next owner, it stays as it is.
    assert_eq!(b.ledger.close_session(&new).await.unwrap(), Ok(()));
    let next = b.lane(session("s"), &owner("b")).await;
    assert_eq!(b.ledger.close_session(&new).await.unwrap(), Err(Unwritten::Fenced));
    assert_eq!(b.ledger.close_session(&next).await.unwrap(), Ok(()));
    assert_eq!(b.shown("s").await.closed_at, closed.closed_at);
    assert_eq!(b.shown("t").await.closed_at, None, "the others stay open");
}

pub async fn a_session_is_idle_since_the_last_that_happened_in_it(b: Bench) {
    b.opens("s").await;
    let lane = b.lane(session("s"), &owner("a")).await;
    let is_idle = async || b.shown("s").await.idle_for_ms >= AGE_MS;
    assert!(!is_idle().await);
    b.ages("session", "created_at", "s").await;
    assert!(is_idle().await);
    b.does(of_lane(&lane, (1..=3).map(|n| submit(in_session("s", n))))).await;
    assert!(!is_idle().await, "jobs were submitted");
    b.ages("job", "created_at", "s").await;
    assert!(is_idle().await);
    b.does(of_lane(&lane, [cancel(job(2))])).await;
    assert!(!is_idle().await, "one has ended");
    b.ages("job_finished", "finished_at", "s").await;
    assert!(is_idle().await);
    b.does(of_lane(&lane, [cancel(job(1))])).await;
    assert!(!is_idle().await, "an older one has ended");
    b.ages("job_finished", "finished_at", "s").await;
    b.does(of_lane(&lane, [cancel(job(3))])).await;
    b.ledger.release(lane.id.lease(), &lane.owner, lane.token).await.unwrap();
    assert_eq!(b.ledger.delete_jobs(&[job(1), job(2), job(3)], None).await.unwrap().len(), 3);
    assert!(!is_idle().await && b.idle().await.is_empty(), "they were deleted just now");
    b.ages("session", "forgotten_at", "s").await;
    assert!(is_idle().await);
    assert_eq!(b.idle().await, ["s"]);
    // A place behind the highest one that was forgotten counts as well.
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (4..=5).map(|n| submit(in_session("s", n))))).await;
    b.does(of_lane(&lane, [cancel(job(4)), cancel(job(5))])).await;
    b.ledger.release(lane.id.lease(), &lane.owner, lane.token).await.unwrap();
    for n in [5, 4] {
        b.ages("session", "forgotten_at", "s").await;
        assert_eq!(b.ledger.delete_jobs(&[job(n)], None).await.unwrap().len(), 1);
        assert!(!is_idle().await && b.idle().await.is_empty(), "one was deleted just now");
    }
}

pub async fn idle_sessions_are_found_page_by_page(b: Bench) {
    for name in ["a", "b", "closed", "leased", "s", "young"] {
        b.opens(name).await;
        if name != "young" {
            b.ages("session", "created_at", name).await;
        }
    }
    b.closes("closed").await;
    let leased = b.lane(session("leased"), &owner("x")).await;
    let lane = b.lane(session("s"), &owner("x")).await;
    b.does(of_lane(&lane, [submit(in_session("s", 1))])).await;
    b.ages("job", "created_at", "s").await;
    b.ledger.release(lane.id.lease(), &lane.owner, lane.token).await.unwrap();
    assert_eq!(b.idle().await, ["a", "b"]);
    b.ages("lease", "expires_at", "leased").await;
    assert_eq!(b.idle().await, ["a", "b", "leased"], "a lease that ran out is nobody's");
    b.ledger.release(leased.id.lease(), &leased.owner, leased.token).await.unwrap();
    let lane = b.lane(session("s"), &owner("x")).await;
    b.does(of_lane(&lane, [cancel(job(1))])).await;
    b.ledger.release(lane.id.lease(), &lane.owner, lane.token).await.unwrap();
    assert_eq!(b.idle().await, ["a", "b", "leased"], "something has ended just now");
    b.ages("job_finished", "finished_at", "s").await;
    assert_eq!(b.idle().await, ["a", "b", "leased", "s"]);
    let (mut seen, mut after, mut pages) = (vec![], None, 0);
    loop {
        let (page, next) = b.ledger.idle_sessions(0, after.as_ref(), 2).await.unwrap();
        seen.extend(page.iter().map(SessionId::to_string));
        (after, pages) = (next, pages + 1);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((seen, pages), (b.idle().await, 3), "five are open");
    for (ahead_ms, idle) in [(AGE_MS - IDLE_MS - LONG_MS, 4), (AGE_MS - IDLE_MS + LONG_MS, 0)] {
        let (found, _) = b.ledger.idle_sessions(ahead_ms, None, 100).await.unwrap();
        assert_eq!(found.len(), idle, "what is written looks older by {ahead_ms} ms");
    }
}

pub async fn closed_sessions_are_forgotten_when_nothing_names_them(b: Bench) {
    for name in ["open", "s", "leased", "old", "older", "young"] {
        b.opens(name).await;
    }
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit(in_session("s", 1))])).await;
    b.ledger.release(lane.id.lease(), &lane.owner, lane.token).await.unwrap();
    for name in ["s", "leased", "old", "older", "young"] {
        b.closes(name).await;
    }
    for name in ["s", "leased", "old", "older"] {
        b.ages("session", "closed_at", name).await;
        b.ages("lease", "expires_at", name).await;
    }
    b.ages("session", "closed_at", "older").await;
    b.ages("session", "created_at", "open").await;
    // Somebody serves it still, or did a moment ago.
    let leased = b.lane(session("leased"), &owner("a")).await;
    let purges = async |limit| b.ledger.purge_sessions(AGE_MS, limit).await.unwrap();
    assert_eq!(purges(1).await, 1);
    assert_eq!(b.ledger.session(&id("older")).await.unwrap(), None, "the oldest goes first");
    assert_eq!((purges(100).await, purges(100).await), (1, 0));
    for gone in ["old", "older"] {
        assert_eq!(b.ledger.session(&id(gone)).await.unwrap(), None);
        assert_eq!(b.ledger.lease(session(gone).lease()).await.unwrap(), None, "its lease goes with it");
    }
    for kept in ["open", "s", "leased", "young"] {
        b.shown(kept).await;
    }
    for kept in ["s", "leased", "young"] {
        assert!(
            b.ledger.lease(session(kept).lease()).await.unwrap().is_some(),
            "the token of {kept} starts over"
        );
    }
    b.ledger.release(leased.id.lease(), &leased.owner, leased.token).await.unwrap();
    assert_eq!(purges(100).await, 0);
    b.ages("lease", "expires_at", "leased").await;
    assert_eq!(purges(100).await, 1);
    // A job names it, unfinished, finished, and then no more.
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [cancel(job(1))])).await;
    b.ledger.release(lane.id.lease(), &lane.owner, lane.token).await.unwrap();
    b.ages("lease", "expires_at", "s").await;
    assert_eq!(purges(100).await, 0);
    b.by_hand("DELETE FROM job_finished".to_owned()).await;
    assert_eq!(purges(100).await, 1);
    assert_eq!(b.ledger.lease(session("s").lease()).await.unwrap(), None);
}

pub async fn instances_are_forgotten_without_the_leases_of_sessions(b: Bench) {
    b.opens("s").await;
    let gone = owner("gone-1");
    let taken = b.ledger.acquire(session("s").lease(), &gone, 1).await.unwrap();
    assert!(matches!(taken, Acquisition::Acquired { .. }));
    b.ages("lease", "expires_at", "s").await;
    b.ledger.purge_instances(1, 100).await.unwrap();
    let next = b.lane(session("s"), &owner("b")).await;
    assert_eq!(next.token.get(), 2, "its token started over");
}

/// A takeover that is not committed yet has the row: nothing is said of who will win.
#[tokio::test]
async fn a_close_beside_a_takeover_is_asked_again() {
    let b = Bench::postgres().await;
    b.opens("s").await;
    let lane = b.lane(session("s"), &owner("a")).await;
    let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    let mut takeover = hand.begin().await.unwrap();
    let take = "UPDATE lease SET fencing_token = fencing_token + 1, owner = 'b' WHERE resource = 'session:s'";
    sqlx::query(take).execute(&mut *takeover).await.unwrap();
    assert_eq!(b.ledger.close_session(&lane).await.unwrap(), Err(Unwritten::Again));
    takeover.commit().await.unwrap();
    assert_eq!(b.ledger.close_session(&lane).await.unwrap(), Err(Unwritten::Fenced));
    assert_eq!(b.shown("s").await.closed_at, None);
}

/// A purge has found a lease old, and waits for who takes it just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_taken_while_it_is_purged_stays() {
    let b = Bench::postgres().await;
    let gone = owner("gone-1");
    b.opens("s").await;
    b.closes("s").await;
    let lane = b.lane(instance_lane(&gone), &gone).await;
    b.by_hand(
        "UPDATE lease SET owner = NULL, expires_at = now() - interval '1 hour';
         UPDATE session SET closed_at = now() - interval '1 hour'"
            .to_owned(),
    )
    .await;
    let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    let mut taking = hand.begin().await.unwrap();
    let take = "UPDATE lease SET fencing_token = fencing_token + 1, owner = 'heir-1',
                                 expires_at = now() + interval '1 minute'";
    sqlx::query(take).execute(&mut *taking).await.unwrap();
    let (sessions, instances) = (b.ledger.clone(), b.ledger.clone());
    let sessions = tokio::spawn(async move { sessions.purge_sessions(1, 100).await.unwrap() });
    let instances = tokio::spawn(async move { instances.purge_instances(1, 100).await.unwrap() });
    until_waiting(&b, 2).await;
    taking.commit().await.unwrap();
    assert_eq!((sessions.await.unwrap(), instances.await.unwrap()), (0, 0));
    b.shown("s").await;
    for lane in [session("s"), lane.id] {
        assert_eq!(b.ledger.lease(lane.lease()).await.unwrap().unwrap().token.get(), 2, "{lane}");
    }
}
