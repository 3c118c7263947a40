//! A standby becomes the primary that lacks what was answered between two looks at the ledger.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use domain::nonce::Change;
use domain::{InstanceId, Resource, SignerId, Token};
use ledger::{Acquisition, Batch, Handle, Identity, Opened, Options, Reason, Verdict, Witness};
use sqlx::{Connection, PgConnection};
use testkit::proxy::Proxy;
use testkit::servers::{Database, Postgres};
use tokio::task::block_in_place;

use crate::bench::{LONG_MS, batch, batch_with_policy, eventually, new_grant, options_of, owner, signer};
use crate::opening::execute;
use crate::sessions::spec;
use crate::shop::session_id;

/// The ledger's sessions that wait for a standby now; each wait that is cancelled ends as if the standby had the commit.
const CANCEL: &str = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'";

/// The same; each that is ended has its commit from then on, and its client hears nothing.
const END: &str =
    "select pg_terminate_backend(pid, 60000) from pg_stat_activity where wait_event = 'SyncRep'";

/// As long as an instance waits between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// A ledger whose standby is away, and the owner of a signer.
struct Away {
    primary: Arc<Postgres>,
    ledger: Handle,
    me: InstanceId,
    signer: SignerId,
    token: Token,
}

impl Away {
    /// What a call is answered, whose waits for the standby somebody ends.
    async fn answered<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> T {
        let call = tokio::spawn(call);
        eventually("the call is answered", async || {
            block_in_place(|| self.primary.query(CANCEL).unwrap());
            call.is_finished()
        })
        .await;
        call.await.unwrap()
    }

    /// Is answered a grant.
    async fn grants(self, batch: fn(&SignerId, &InstanceId, Token, Vec<Change>) -> Batch) {
        let batch = batch(&self.signer, &self.me, self.token, vec![new_grant(1, LONG_MS)]);
        let ledger = self.ledger.clone();
        let granted = self.answered(async move { ledger.commit(batch).await }).await.unwrap();
        assert!(matches!(granted, Verdict::Committed { .. }), "{granted:?}");
    }

    /// Opens a session by a call that is cut off, and is answered when it asks again.
    async fn opens_again(self) {
        let open = || {
            let ledger = self.ledger.clone();
            async move { ledger.open_session(&session_id("s"), &spec(), None, None).await }
        };
        let opening = tokio::spawn(open());
        eventually("the first call is cut off", async || {
            block_in_place(|| self.primary.query(END).unwrap());
            opening.is_finished()
        })
        .await;
        opening.await.unwrap().unwrap_err();
        assert!(self.ledger.session(&session_id("s")).await.unwrap().is_some());
        let opened = self.answered(open()).await;
        assert!(matches!(opened, Ok(Opened::Made { .. })), "{opened:?}");
    }
}

/// A primary with a standby, and how a ledger is opened on whichever the proxy leads to.
struct Pair {
    primary: Arc<Postgres>,
    standby: Postgres,
    proxy: Proxy,
    /// The ledger's database on the primary.
    database: Database,
    options: Options,
}

impl Pair {
    async fn start(is_synchronous: bool) -> Self {
        let (primary, standby) = block_in_place(|| {
            let primary = Postgres::start().unwrap();
            let standby = primary.standby(primary.address(), "standby").unwrap();
            if is_synchronous {
                primary.query("alter system set synchronous_standby_names = 'standby'").unwrap();
                primary.query("select pg_reload_conf()").unwrap();
            }
            (Arc::new(primary), standby)
        });
        let database = block_in_place(|| primary.database().unwrap());
        let name = database.url().rsplit_once('/').unwrap().1.to_owned();
        let proxy = Proxy::start(primary.address()).await.unwrap();
        let url = format!("postgres://postgres@{}/{name}", proxy.address());
        let options = Options { call_timeout_ms: 20_000, ..options_of(url) };
        Self { primary, standby, proxy, database, options }
    }

    /// Waits until the standby has all that the primary has written by now.
    async fn standby_has_all(&self) {
        let end = says(&self.primary, "select pg_current_wal_lsn()");
        let has_all = format!("select pg_last_wal_replay_lsn() >= '{end}'");
        eventually("the standby has the tables", async || says(&self.standby, &has_all) == "t").await;
    }
}

/// The one value that a query answers.
fn says(server: &Postgres, query: &str) -> String {
    block_in_place(|| server.query(query).unwrap()[0][0].clone())
}

/// What the ledger answers while the standby is away is not in the standby when that becomes the primary.
async fn is_noticed(asks: impl AsyncFnOnce(Away)) {
    let Pair { primary, standby, proxy, database: _database, options } = Pair::start(true).await;
    let ledger = ledger::open(&options).await.unwrap();
    let (me, s) = (owner("a"), signer("s"));
    let acquired = ledger.acquire(&Resource::signer(&s), &me, LONG_MS).await.unwrap();
    let token = match acquired {
        Acquisition::Acquired { token, .. } => token,
        held @ Acquisition::Held { .. } => panic!("{held:?}"),
    };
    let first = ledger.commit(batch_with_policy(&s, &me, token, vec![new_grant(0, LONG_MS)])).await.unwrap();
    assert!(matches!(first, Verdict::Committed { .. }), "{first:?}");
    let mut known = None;
    for _ in 0..2 {
        known = match ledger.witness(known.as_ref()).await.unwrap() {
            Witness::Current(identity) => Some(identity),
            gone @ Witness::WentBack(..) => panic!("{gone:?}"),
        };
    }
    assert!(known.as_ref().and_then(|known| known.server.as_ref()).unwrap().is_synchronous);
    // This one is answered nothing that is lost.
    let other = ledger::open(&options).await.unwrap();
    let known_to_other = match other.witness(None).await.unwrap() {
        Witness::Current(identity) => identity,
        gone @ Witness::WentBack(..) => panic!("{gone:?}"),
    };
    // The standby is away, and somebody ends the wait for it.
    block_in_place(|| standby.stop_immediate().unwrap());
    asks(Away { primary: Arc::clone(&primary), ledger: ledger.clone(), me, signer: s, token }).await;
    block_in_place(|| {
        primary.stop_immediate().unwrap();
        standby.boot().unwrap();
        standby.promote().unwrap();
    });
    proxy.lead_to(standby.address());
    // Connections to the old primary end with the first look that uses them.
    let seen = RefCell::new(None);
    eventually("a look reaches the new primary", async || {
        let looked = ledger.witness(known.as_ref()).await.ok();
        let has_looked = looked.is_some();
        seen.replace(looked);
        has_looked
    })
    .await;
    let seen = seen.into_inner();
    assert!(matches!(seen, Some(Witness::WentBack(_, Reason::LostCommits))), "{seen:?}");
    // Also if it asks again.
    let again = ledger.witness(known.as_ref()).await.unwrap();
    assert!(matches!(again, Witness::WentBack(_, Reason::LostCommits)), "{again:?}");
    let others = RefCell::new(None);
    eventually("the other instance reaches it too", async || {
        let looked = other.witness(Some(&known_to_other)).await.ok();
        let has_looked = looked.is_some();
        others.replace(looked);
        has_looked
    })
    .await;
    let others = others.into_inner();
    assert!(matches!(others, Some(Witness::WentBack(_, Reason::Position))), "{others:?}");
    // A ledger that was made there since is another one, and stays as it is.
    let position = known.as_ref().map(|known| known.position).unwrap();
    let made = format!("UPDATE ledger_identity SET cluster = 'another', position = {position}");
    assert_eq!(execute(&options.url, &made).await, 1);
    for _ in 0..2 {
        let seen = ledger.witness(known.as_ref()).await.unwrap();
        let Witness::WentBack(found, Reason::OtherLedger) = &seen else { panic!("{seen:?}") };
        assert_eq!(found.position, position);
    }
    ledger.close().await;
    other.close().await;
}

/// By one statement, and the general way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_lacks_an_answered_grant_is_refused() {
    is_noticed(async |away: Away| away.grants(batch).await).await;
    is_noticed(async |away: Away| away.grants(batch_with_policy).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_lacks_what_a_repetition_was_answered_is_refused() {
    is_noticed(async |away: Away| away.opens_again().await).await;
}

/// While a name leads to it before it is the primary, as in the middle of a failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_has_not_replayed_all_is_no_ledger_that_went_back() {
    let pair = Pair::start(false).await;
    let ledger = ledger::open(&pair.options).await.unwrap();
    let looks = async |known: Option<&Identity>| match ledger.witness(known).await.unwrap() {
        Witness::Current(identity) => identity,
        gone @ Witness::WentBack(..) => panic!("{gone:?}"),
    };
    let known = looks(None).await;
    pair.standby_has_all().await;
    block_in_place(|| pair.standby.query("select pg_wal_replay_pause()").unwrap());
    eventually("it replays no more", async || {
        looks(Some(&known)).await;
        says(&pair.standby, "select pg_get_wal_replay_pause_state()") == "paused"
    })
    .await;
    let known = looks(Some(&known)).await;
    pair.proxy.lead_to(pair.standby.address());
    pair.proxy.cut().await.unwrap();
    pair.proxy.heal().await.unwrap();
    for _ in 0..3 {
        let seen = ledger.witness(Some(&known)).await;
        assert!(seen.as_ref().is_err_and(ledger::Error::is_retryable), "{seen:?}");
    }
    ledger.close().await;
}

/// A commit of another instance waits for a standby there, and keeps the ledger's row for as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_meets_a_locked_row_at_an_old_primary_goes_on_at_the_new_one() {
    let pair = Pair::start(false).await;
    let ledger = ledger::open(&pair.options).await.unwrap();
    let Witness::Current(known) = ledger.witness(None).await.unwrap() else { panic!("it is new") };
    pair.standby_has_all().await;
    let mut other = PgConnection::connect(pair.database.url()).await.unwrap();
    let mut locks = other.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM ledger_identity FOR UPDATE").execute(&mut *locks).await.unwrap();
    block_in_place(|| pair.standby.promote().unwrap());
    pair.proxy.lead_to(pair.standby.address());
    let locked = ledger.witness(Some(&known)).await;
    assert!(locked.as_ref().is_err_and(ledger::Error::is_retryable), "{locked:?}");
    // Its connection is back in the pool by then; and the row is still locked there.
    tokio::time::sleep(LOOK_EVERY).await;
    let seen = ledger.witness(Some(&known)).await.unwrap();
    assert!(matches!(seen, Witness::WentBack(_, Reason::AsynchronousFailover)), "{seen:?}");
    locks.rollback().await.unwrap();
    ledger.close().await;
}
