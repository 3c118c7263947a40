//! What a case works on: an empty ledger of its own, and short forms of what every case does.

use std::time::{Duration, Instant};

use domain::nonce::{Change, Policy};
use domain::{HoldId, InstanceId, Nonce, Resource, SignerId, TaskId, Token};
use ledger::{Acquisition, Batch, Handle, KeptKey, KeyScope, Options, Verdict};
use sqlx::Connection;
use testkit::servers::Database;

/// Settings of the sessions that write trains and read by keys, of which a plan is asked.
pub const BY_KEYS: &str =
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
                           SET enable_mergejoin = off";
/// Long enough for any case.
pub const LONG_MS: u64 = 60_000;
/// How long a case waits for what must happen.
const PATIENCE: Duration = testkit::PATIENCE;

pub struct Bench {
    pub ledger: Handle,
    pub options: Options,
    pub database: Option<Database>,
    pub _folder: tempfile::TempDir,
}

impl Bench {
    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("data/ledger.db").display());
        Self::open(url, None, folder).await
    }

    pub async fn postgres() -> Self {
        let database = tokio::task::spawn_blocking(|| Database::migrated().unwrap()).await.unwrap();
        Self::open(database.url().to_owned(), Some(database), tempfile::tempdir().unwrap()).await
    }

    async fn open(url: String, database: Option<Database>, folder: tempfile::TempDir) -> Self {
        let options = options_of(url);
        let ledger = ledger::open(&options).await.unwrap();
        Self { ledger, options, database, _folder: folder }
    }

    /// The token of a lease that is free at once.
    pub async fn acquired(&self, owner: &InstanceId, signer: &SignerId, lease_ms: u64) -> Token {
        match self.ledger.acquire(&Resource::signer(signer), owner, lease_ms).await.unwrap() {
            Acquisition::Acquired { token, .. } => token,
            held @ Acquisition::Held { .. } => panic!("{owner} was refused: {held:?}"),
        }
    }

    /// The token of a lease that is free as soon as the one before has run out.
    pub async fn takes_over(&self, owner: &InstanceId, signer: &SignerId) -> Token {
        let patience = Instant::now() + PATIENCE;
        loop {
            let asked = self.ledger.acquire(&Resource::signer(signer), owner, LONG_MS).await.unwrap();
            match asked {
                Acquisition::Acquired { token, .. } => return token,
                Acquisition::Held { .. } => assert!(Instant::now() < patience, "the lease never ran out"),
            }
            tokio::task::yield_now().await;
        }
    }

    pub async fn commits(&self, batch: Batch) {
        let verdict = self.ledger.commit(batch).await.unwrap();
        assert!(matches!(verdict, Verdict::Committed { .. }), "{verdict:?}");
    }

    /// More instances on the same ledger. A SQLite file is one process's, so there they are one.
    pub async fn instances(&self, count: usize) -> Vec<Handle> {
        let mut handles = vec![self.ledger.clone()];
        for _ in 1..count {
            handles.push(match &self.database {
                Some(_) => ledger::open(&self.options).await.unwrap(),
                None => self.ledger.clone(),
            });
        }
        handles
    }

    /// Ends this ledger, and answers how many deadlocks the server has broken up in its database: none on SQLite.
    pub async fn deadlocks_at_last(self) -> i64 {
        if self.database.is_none() {
            return 0;
        }
        self.counted_at_last("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .await
    }

    /// Ends this ledger, and answers what the server has counted. Only sessions that have ended have surely reported
    /// theirs, so that all others on the database must be gone.
    pub async fn counted_at_last(self, count: &'static str) -> i64 {
        self.ledger.close().await;
        let Self { ledger, options, database: _database, .. } = self;
        drop(ledger);
        let mut observer = sqlx::PgConnection::connect(&options.url).await.unwrap();
        let others = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND pid <> pg_backend_pid()
                        AND backend_type = 'client backend'";
        let patience = Instant::now() + PATIENCE;
        while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut observer).await.unwrap() > 0 {
            assert!(Instant::now() < patience, "the ledgers' sessions never ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        sqlx::query_scalar(count).fetch_one(&mut observer).await.unwrap()
    }

    /// Another hand puts a condition on the tables that no batch can know of.
    pub async fn bars_nonce_666_666(&self) {
        if self.database.is_some() {
            let mut hand = sqlx::PgConnection::connect(&self.options.url).await.unwrap();
            let bar = "ALTER TABLE signer_nonce_allocation ADD CONSTRAINT bar CHECK (nonce <> 666666)";
            sqlx::query(bar).execute(&mut hand).await.unwrap();
        } else {
            let mut hand = sqlx::SqliteConnection::connect(&self.options.url).await.unwrap();
            let bar = "CREATE TRIGGER bar BEFORE INSERT ON signer_nonce_allocation WHEN NEW.nonce = 666666
                       BEGIN SELECT RAISE(ABORT, 'barred'); END";
            sqlx::query(bar).execute(&mut hand).await.unwrap();
        }
    }

    /// The same for jobs: none is placed on that node.
    pub async fn bars_jobs_on_node_666(&self) {
        if self.database.is_some() {
            let mut hand = sqlx::PgConnection::connect(&self.options.url).await.unwrap();
            let bar = "ALTER TABLE job ADD CONSTRAINT bar CHECK (node <> '666')";
            sqlx::query(bar).execute(&mut hand).await.unwrap();
        } else {
            let mut hand = sqlx::SqliteConnection::connect(&self.options.url).await.unwrap();
            let bar = "CREATE TRIGGER bar_job BEFORE INSERT ON job WHEN NEW.node = '666'
                       BEGIN SELECT RAISE(ABORT, 'barred'); END";
            sqlx::query(bar).execute(&mut hand).await.unwrap();
        }
    }

    /// Makes the stages of one task longer, by so many bytes of blanks.
    pub async fn lengthens_stages(&self, task: TaskId, bytes: u64) {
        if self.database.is_some() {
            let mut hand = sqlx::PgConnection::connect(&self.options.url).await.unwrap();
            let longer =
                "UPDATE plan_definition SET stages = stages || repeat(' ', $2::int) WHERE task = $1::uuid";
            let longer = sqlx::query(longer).bind(task.to_string()).bind(bytes as i64);
            assert_eq!(longer.execute(&mut hand).await.unwrap().rows_affected(), 1);
        } else {
            let mut hand = sqlx::SqliteConnection::connect(&self.options.url).await.unwrap();
            let longer =
                "UPDATE plan_definition SET stages = stages || replace(hex(zeroblob(?2 / 2)), '0', ' ')
                          WHERE task = ?1";
            let longer = sqlx::query(longer).bind(task.to_string()).bind(bytes as i64);
            assert_eq!(longer.execute(&mut hand).await.unwrap().rows_affected(), 1);
        }
    }

    pub async fn kept(&self, scope: &KeyScope) -> Option<KeptKey> {
        self.ledger.kept_keys(std::slice::from_ref(scope)).await.unwrap().pop().map(|(_, kept)| kept)
    }

    pub async fn last(&self, signer: &SignerId) -> Option<u64> {
        self.ledger.load(signer, 10).await.unwrap().last.map(Nonce::get)
    }
}

/// Waits until something holds, by looking again and again; fails when it never does.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let patience = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < patience, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How a case opens the ledger at this URL.
pub fn options_of(url: String) -> Options {
    Options {
        url,
        connections_max: 8,
        connect_timeout_ms: 20_000,
        call_timeout_ms: 10_000,
        expected_id: None,
    }
}

pub fn owner(name: &str) -> InstanceId {
    InstanceId::parse(name).unwrap()
}

pub fn signer(name: &str) -> SignerId {
    SignerId::parse(name).unwrap()
}

pub fn nonce(number: u64) -> Nonce {
    Nonce::new(number).unwrap()
}

/// The hold number `n` of the test.
pub const fn hold(n: u128) -> HoldId {
    HoldId::from_u128(n)
}

/// A batch that leaves the policy as it is. One of first grants and settlements alone takes PostgreSQL one statement.
pub fn batch(signer: &SignerId, owner: &InstanceId, token: Token, changes: Vec<Change>) -> Batch {
    Batch {
        signer: signer.clone(),
        owner: owner.clone(),
        token,
        keys: vec![],
        policy: None,
        changes,
        audit: vec![],
    }
}

/// The same with a policy, which is written the general way.
pub fn batch_with_policy(signer: &SignerId, owner: &InstanceId, token: Token, changes: Vec<Change>) -> Batch {
    Batch { policy: Some(Policy::default()), ..batch(signer, owner, token, changes) }
}

/// A nonce granted for the first time, its hold numbered as the nonce.
pub fn new_grant(number: u64, hold_ms: u64) -> Change {
    Change::Grant { nonce: nonce(number), hold: hold(u128::from(number)), hold_ms, fills: None }
}

/// Who changes something.
pub fn by() -> domain::AuditEntry {
    domain::AuditEntry::new("ops", "test", "thing:x")
}
