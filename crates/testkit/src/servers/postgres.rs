//! A private PostgreSQL with `fsync` on, and fresh databases on it.
//!
//! PostgreSQL refuses to run as root. When the harness is root the server runs as the user
//! `postgres`, who then owns the data directory.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::shared;
use crate::authority::Pair;
use crate::ports;
use crate::process::{Launch, Process, tail};

/// Where tests look for a server that somebody else started for the whole run: a superuser's URL.
pub const URL_VARIABLE: &str = "FENCEPOST_TEST_POSTGRES_URL";

/// The name of a database of that server which has the tables of this version and nothing else ([`Postgres::template`]).
pub const TEMPLATE_VARIABLE: &str = "FENCEPOST_TEST_POSTGRES_TEMPLATE";

/// The migrations of this version.
const MIGRATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres");

/// What an empty database is a copy of: nobody has put anything into it.
const EMPTY: &str = "template template0";

const START_LIMIT: Duration = Duration::from_secs(60);

/// Counts and times of each statement, by the server itself.
const STATEMENTS: &str = "shared_preload_libraries=pg_stat_statements";

/// A private server, stopped and removed on drop.
#[derive(Debug)]
pub struct Postgres {
    // Before `dir`: the server ends before its files go.
    running: Mutex<Option<Process>>,
    dir: TempDir,
    port: u16,
    tools: Tools,
    settings: &'static [&'static str],
    variables: Vec<(String, String)>,
}

/// One database on a server.
#[derive(Clone, Debug)]
pub struct Database {
    url: String,
    psql: PathBuf,
    /// Keeps a server of this process's own alive; `None` where somebody else runs it.
    _server: Option<Arc<Postgres>>,
}

#[derive(Clone, Debug)]
pub(super) struct Tools {
    bin: PathBuf,
    /// User and group ids to run as; `None` is "as we are".
    run_as: Option<(u32, u32)>,
}

impl Postgres {
    /// Makes a data directory and starts a server on it.
    ///
    /// # Errors
    /// PostgreSQL is not installed, or does not start within a minute; its log is in the message.
    pub fn start() -> Result<Self> {
        Self::start_with(&[], &[])
    }

    /// The same, on a server that also counts and times every statement, for [`Database::statements`].
    ///
    /// # Errors
    /// As for [`Postgres::start`]; also when the module `pg_stat_statements` is not installed.
    pub fn start_counting() -> Result<Self> {
        Self::start_with(&[STATEMENTS], &[])
    }

    /// The same, on a server with these variables in its environment.
    ///
    /// # Errors
    /// As for [`Postgres::start`].
    pub fn start_under(variables: Vec<(String, String)>) -> Result<Self> {
        Self::make(&[], &[], variables)
    }

    /// The same, on a server that also speaks TLS, with this certificate and key.
    ///
    /// # Errors
    /// As for [`Postgres::start`]; also when a file cannot be read.
    pub fn start_with_tls(pair: &Pair) -> Result<Self> {
        // Where the server looks for them by itself.
        let files = [("server.crt", &pair.certificate), ("server.key", &pair.key)];
        Self::start_with(&["ssl=on"], &files)
    }

    fn start_with(settings: &'static [&'static str], files: &[(&str, &PathBuf)]) -> Result<Self> {
        Self::make(settings, files, Vec::new())
    }

    /// `files` are copied into the server's folder.
    fn make(
        settings: &'static [&'static str],
        files: &[(&str, &PathBuf)],
        variables: Vec<(String, String)>,
    ) -> Result<Self> {
        let tools = Tools::find()?;
        let dir = tools.folder()?;
        let data = dir.path().join("data");
        let made = tools
            .command("initdb")
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
            .arg("--pgdata")
            .arg(&data)
            .current_dir(dir.path())
            .output()?;
        succeed("initdb", &made)?;
        for (name, from) in files {
            let file = data.join(name);
            std::fs::copy(from, &file)?;
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600))?;
            if let Some((user, group)) = tools.run_as {
                chown(&file, Some(user), Some(group))?;
            }
        }
        let running = Mutex::new(None);
        let server = Self { running, dir, port: ports::free()?, tools, settings, variables };
        server.boot()?;
        Ok(server)
    }

    /// Makes a standby of this server, which streams from `primary` (this server, or a proxy before it) under a name.
    ///
    /// # Errors
    /// The copy cannot be made, or the standby does not start.
    pub fn standby(&self, primary: SocketAddr, name: &str) -> Result<Self> {
        let dir = self.tools.folder()?;
        let from =
            format!("host={} port={} user=postgres application_name={name}", primary.ip(), primary.port());
        let copied = self
            .tools
            .command("pg_basebackup")
            .args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"])
            .arg("--dbname")
            .arg(from)
            .arg("--pgdata")
            .arg(dir.path().join("data"))
            .current_dir(dir.path())
            .output()?;
        succeed("pg_basebackup", &copied)?;
        let (running, tools, settings) = (Mutex::new(None), self.tools.clone(), self.settings);
        let standby = Self { running, dir, port: ports::free()?, tools, settings, variables: Vec::new() };
        standby.boot()?;
        Ok(standby)
    }

    /// Runs one of PostgreSQL's programs, such as `pg_receivewal`, in the server's folder, until what is returned is dropped.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn runs(&self, program: &str, args: &[&str]) -> Result<Process> {
        let mut command = Command::new(self.tools.bin.join(program));
        command.args(args).current_dir(self.dir.path());
        let log = self.dir.path().join(format!("{program}.log"));
        let launch = Launch { run_as: self.tools.run_as, ..Launch::logging(&command, &log) };
        Process::spawn(&launch).map(|(process, _)| process)
    }

    /// Makes a standby a primary, and waits until it is one.
    ///
    /// # Errors
    /// `pg_ctl` fails.
    pub fn promote(&self) -> Result<()> {
        let promoted = self
            .tools
            .command("pg_ctl")
            .args(["promote", "-w", "-t", "30", "-D"])
            .arg(self.data())
            .current_dir(self.dir.path())
            .output()?;
        succeed("pg_ctl promote", &promoted)
    }

    /// Runs statements through `psql`, as [`Database::query`] does, in the server's own database.
    ///
    /// # Errors
    /// The server cannot be reached or refuses a statement.
    pub fn query(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        let text = run_psql(&self.tools.bin.join("psql"), &self.url("postgres"), sql)?;
        Ok(rows(&text))
    }

    /// Makes an empty database on this server whose tables lie in a folder, which the server gets for its own.
    ///
    /// # Errors
    /// The server refuses.
    pub fn database_in(self: &Arc<Self>, folder: &Path) -> Result<Database> {
        if let Some((user, group)) = self.tools.run_as {
            chown(folder, Some(user), Some(group))?;
        }
        let place = format!("p{:016x}", rand::random::<u64>());
        self.query(&format!("create tablespace {place} location '{}'", folder.display()))?;
        let psql = self.tools.bin.join("psql");
        let options = format!("{EMPTY} tablespace {place}");
        Database::create(&self.url("postgres"), psql, &options, Some(Arc::clone(self)))
    }

    /// The URL of a database on this server, for its superuser.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes an empty database on this server.
    ///
    /// # Errors
    /// The server refuses.
    pub fn database(self: &Arc<Self>) -> Result<Database> {
        let psql = self.tools.bin.join("psql");
        Database::create(&self.url("postgres"), psql, EMPTY, Some(Arc::clone(self)))
    }

    /// Makes a database that a binary's `migrate` has filled, to be copied: a copy takes a fraction of the time of all
    /// migrations. `None` where the binary is not of this version, by the count of its migrations.
    ///
    /// # Errors
    /// The server refuses, or the binary cannot be started.
    pub fn template(self: &Arc<Self>, binary: &Path) -> Result<Option<String>> {
        let database = self.database()?;
        let migrated = Command::new(binary)
            .args(["migrate", "--database-url", database.url()])
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()?;
        if !migrated.status.success() {
            return Ok(None);
        }
        let made = database.query(
            "select (select count(*) from _sqlx_migrations) + (select count(*) from schema_migration)",
        )?;
        if made != [[std::fs::read_dir(MIGRATIONS)?.count().to_string()]] {
            return Ok(None);
        }
        let (_, name) = database.url().rsplit_once('/').context("a PostgreSQL URL names a database")?;
        // Copied while nobody is connected to it: so nobody can be, autovacuum included.
        self.query(&format!("alter database {name} with allow_connections false"))?;
        Ok(Some(name.to_owned()))
    }

    /// Stops without a checkpoint, as a crash does (`pg_ctl stop -m immediate`): transactions in
    /// flight are gone, what was committed is recovered from the log at the next start.
    ///
    /// # Errors
    /// `pg_ctl` fails.
    pub fn stop_immediate(&self) -> Result<()> {
        let stopped = self
            .tools
            .command("pg_ctl")
            .args(["stop", "-m", "immediate", "-w", "-t", "30", "-D"])
            .arg(self.data())
            .current_dir(self.dir.path())
            .output()?;
        succeed("pg_ctl stop -m immediate", &stopped)?;
        self.forget();
        Ok(())
    }

    /// Kills the postmaster with SIGKILL; the other server processes notice and end.
    pub fn kill(&self) {
        self.forget();
    }

    /// Its first process, if it runs; the others are its children.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.running.lock().as_ref().map(Process::pid)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Freezes all processes of the server, as a stalled disk or virtual machine would. After `length` they
    /// go on by themselves, also if the harness has ended meanwhile.
    ///
    /// # Errors
    /// The server does not run, or a process cannot be signalled.
    pub fn freeze(&self, length: Duration) -> Result<()> {
        let postmaster = {
            let running = self.running.lock();
            running.as_ref().context("PostgreSQL does not run")?.pid()
        };
        // The postmaster first: then it starts no further process, and those that it has are known.
        let line = format!(
            "kill -STOP {postmaster} || exit 1; \
             all=\"{postmaster} $(cat /proc/{postmaster}/task/{postmaster}/children)\"; \
             kill -STOP $all 2>/dev/null; \
             (sleep {}; kill -CONT $all) >/dev/null 2>&1 </dev/null &",
            length.as_secs_f64()
        );
        let said = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output()?;
        succeed("freezing PostgreSQL", &said)
    }

    /// Starts the stopped server again on the same port and files, and waits until it answers.
    ///
    /// # Errors
    /// It does not start within a minute; its log is in the message.
    pub fn boot(&self) -> Result<()> {
        let give_up = Instant::now() + START_LIMIT;
        loop {
            // Backends of a killed predecessor may need a moment to end; the new server then says that
            // its files are in use and exits.
            // The variables are the server's alone: what starts it may be another user.
            let mut postgres = Command::new("env");
            postgres
                .args(self.variables.iter().map(|(name, value)| format!("{name}={value}")))
                .arg(self.tools.bin.join("postgres"))
                .arg("-D")
                .arg(self.data())
                .arg("-p")
                .arg(self.port.to_string())
                .current_dir(self.dir.path());
            for setting in [
                "listen_addresses=127.0.0.1",
                "unix_socket_directories=",
                "fsync=on",
                "max_connections=1500",
                "shared_buffers=64MB",
                "log_min_messages=warning",
            ]
            .iter()
            .chain(self.settings)
            {
                postgres.args(["-c", setting]);
            }
            // SIGQUIT is "stop at once" to PostgreSQL, and unlike SIGKILL lets it tidy its shared memory.
            let log = self.log();
            let (process, _) = Process::spawn(&Launch {
                death: "QUIT",
                run_as: self.tools.run_as,
                ..Launch::logging(&postgres, &log)
            })?;
            while process.exited().is_none() {
                if self.answers() {
                    *self.running.lock() = Some(process);
                    return Ok(());
                }
                if Instant::now() > give_up {
                    bail!("PostgreSQL does not answer:\n{}", tail(&self.log(), 2_000));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            if Instant::now() > give_up {
                bail!("PostgreSQL does not start:\n{}", tail(&self.log(), 2_000));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn answers(&self) -> bool {
        self.tools
            .command("psql")
            .args(["-XAtqc", "select 1", &self.url("postgres")])
            .current_dir(self.dir.path())
            .output()
            .is_ok_and(|said| said.status.success())
    }

    fn forget(&self) {
        let process = self.running.lock().take();
        drop(process);
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.stop_immediate().is_err() {
            self.forget();
        }
    }
}

impl Database {
    /// An empty database on the server that serves the whole test run (named by
    /// `FENCEPOST_TEST_POSTGRES_URL`), or else on one that all tests of this process share and that
    /// ends with the last of them.
    ///
    /// # Errors
    /// No server can be started or reached. A missing PostgreSQL is an error, never a skip.
    pub fn fresh() -> Result<Self> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        if let Ok(url) = std::env::var(URL_VARIABLE) {
            return Self::create(&url, Tools::bin()?.join("psql"), EMPTY, None);
        }
        shared(&SHARED, Postgres::start)?.database()
    }

    /// The same as a copy of the run's template ([`TEMPLATE_VARIABLE`]), as a ledger of its own. Where there is none it
    /// is empty, and who opens the ledger makes the tables.
    ///
    /// # Errors
    /// As for [`Self::fresh`].
    pub fn migrated() -> Result<Self> {
        let (Ok(url), Ok(template)) = (std::env::var(URL_VARIABLE), std::env::var(TEMPLATE_VARIABLE)) else {
            return Self::fresh();
        };
        let copy = Self::create(&url, Tools::bin()?.join("psql"), &format!("template {template}"), None)?;
        copy.query("update ledger_identity set cluster = replace(gen_random_uuid()::text, '-', '')")?;
        Ok(copy)
    }

    fn create(server_url: &str, psql: PathBuf, options: &str, server: Option<Arc<Postgres>>) -> Result<Self> {
        let name = format!("t{:016x}", rand::random::<u64>());
        run_psql(&psql, server_url, &format!("create database {name} {options}"))?;
        let (base, _) = server_url.rsplit_once('/').context("a PostgreSQL URL names a database")?;
        Ok(Self { url: format!("{base}/{name}"), psql, _server: server })
    }

    /// What the server counted in this database, since it started, of statements whose text matches one
    /// regular expression and not the other. Only on a server that counts ([`Postgres::start_counting`]).
    ///
    /// # Errors
    /// The server does not count, or does not answer.
    pub fn statements(&self, like: &str, unlike: &str) -> Result<Statements> {
        let rows = self.query(&format!(
            "create extension if not exists pg_stat_statements; \
             select coalesce(sum(calls), 0), coalesce(sum(total_exec_time), 0) / 1000 from pg_stat_statements \
             where dbid = (select oid from pg_database where datname = current_database()) \
             and query ~* '{like}' and query !~* '{unlike}'"
        ))?;
        let row = rows.last().context("a row")?;
        let number = |at: usize| anyhow::Ok(row.get(at).context("two columns")?.parse::<f64>()?);
        Ok(Statements { count: number(0)?, seconds: number(1)? })
    }

    /// Runs a script of `pgbench` on this database for a while; transactions per second.
    ///
    /// # Errors
    /// `pgbench` is not installed, or a transaction fails.
    pub fn pgbench(&self, script: &Path, clients: usize, length: Duration) -> Result<f64> {
        let said = Command::new(self.psql.with_file_name("pgbench"))
            .args(["--no-vacuum", "--protocol=prepared", "--define=base=0"])
            .args([format!("--client={clients}"), format!("--time={}", length.as_secs().max(1))])
            .arg("--file")
            .arg(script)
            .arg(&self.url)
            .stdin(Stdio::null())
            .output()
            .context("pgbench")?;
        succeed("pgbench", &said)?;
        let text = String::from_utf8(said.stdout)?;
        let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        tps.with_context(|| format!("pgbench names no rate:\n{text}"))
    }

    /// Runs a script of `pgbench` so many times a second on one connection, for a while; how long each transaction
    /// took, in microseconds, from when it was sent.
    ///
    /// # Errors
    /// As for [`Self::pgbench`].
    pub fn pgbench_latencies(&self, script: &Path, per_second: u32, length: Duration) -> Result<Vec<u64>> {
        let dir = TempDir::with_prefix("fencepost-pgbench-")?;
        let said = Command::new(self.psql.with_file_name("pgbench"))
            .args(["--no-vacuum", "--protocol=prepared", "--client=1", "--log", "--log-prefix=log"])
            .args([format!("--rate={per_second}"), format!("--time={}", length.as_secs().max(1))])
            .arg("--file")
            .arg(script)
            .arg(&self.url)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .output()
            .context("pgbench")?;
        succeed("pgbench", &said)?;
        let mut latencies = Vec::new();
        for file in std::fs::read_dir(dir.path())? {
            for line in std::fs::read_to_string(file?.path())?.lines() {
                // client, transaction, time since its turn, script, two of the clock, how late it was sent
                let columns: Vec<u64> = line.split(' ').map(|it| it.parse().unwrap_or(0)).collect();
                let [_, _, took, _, _, _, late] = columns[..] else { bail!("a line of pgbench: {line}") };
                latencies.push(took.saturating_sub(late));
            }
        }
        Ok(latencies)
    }

    /// The URL of this database.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs statements through `psql`; each row of the answer is a list of its columns' texts.
    ///
    /// # Errors
    /// The server cannot be reached or refuses a statement.
    pub fn query(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        Ok(rows(&run_psql(&self.psql, &self.url, sql)?))
    }
}

/// What the server counted of some statements.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Statements {
    /// How many there were.
    pub count: f64,
    /// How long they took, together, in seconds.
    pub seconds: f64,
}

impl Statements {
    /// What was added since an earlier look.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { count: self.count - earlier.count, seconds: self.seconds - earlier.seconds }
    }
}

/// Each line's columns.
fn rows(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split('\u{1f}').map(str::to_owned).collect()).collect()
}

fn run_psql(psql: &Path, url: &str, sql: &str) -> Result<String> {
    let said = Command::new(psql)
        .args(["-XAtq", "-F", "\u{1f}", "-v", "ON_ERROR_STOP=1", "-c", sql, url])
        .env("PGCONNECT_TIMEOUT", "10")
        .stdin(Stdio::null())
        .output()?;
    succeed("psql", &said)?;
    Ok(String::from_utf8(said.stdout)?)
}

impl Tools {
    fn find() -> Result<Self> {
        Ok(Self { bin: Self::bin()?, run_as: Self::other_user()? })
    }

    /// Debian keeps the server's programs out of PATH, one directory per version; the newest wins.
    fn bin() -> Result<PathBuf> {
        let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.parse().ok()?;
                Some((version, entry.path().join("bin")))
            })
            .filter(|(_, bin)| bin.join("initdb").is_file())
            .collect();
        versions.sort();
        if let Some((_, bin)) = versions.pop() {
            return Ok(bin);
        }
        let initdb = super::on_path("initdb")
            .context("PostgreSQL's server is not installed (tests/install does it)")?;
        Ok(initdb.parent().context("a file has a directory")?.to_owned())
    }

    pub(super) fn other_user() -> Result<Option<(u32, u32)>> {
        if id(&["-u"])? != 0 {
            return Ok(None);
        }
        let user = id(&["-u", "postgres"]).context("as root, PostgreSQL runs as the user postgres")?;
        Ok(Some((user, id(&["-g", "postgres"])?)))
    }

    /// A new folder for a server's files.
    fn folder(&self) -> Result<TempDir> {
        let dir = TempDir::with_prefix("fencepost-postgres-")?;
        if let Some((user, group)) = self.run_as {
            chown(dir.path(), Some(user), Some(group))?;
        }
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700))?;
        Ok(dir)
    }

    fn command(&self, program: &str) -> Command {
        let program = self.bin.join(program);
        match self.run_as {
            None => Command::new(program),
            Some((user, group)) => {
                let mut command = Command::new("setpriv");
                command
                    .arg(format!("--reuid={user}"))
                    .arg(format!("--regid={group}"))
                    .args(["--clear-groups", "--"])
                    .arg(program);
                command
            }
        }
    }
}

fn id(args: &[&str]) -> Result<u32> {
    let said = Command::new("id").args(args).output()?;
    ensure!(said.status.success(), "id {}: no such user", args.join(" "));
    Ok(String::from_utf8(said.stdout)?.trim().parse()?)
}

fn succeed(what: &str, said: &Output) -> Result<()> {
    ensure!(
        said.status.success(),
        "{what} failed: {}{}",
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    );
    Ok(())
}
