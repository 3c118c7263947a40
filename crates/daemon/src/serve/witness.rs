//! The witness of the ledger: remembers which ledger it was and how far it had got, in memory and in a file, and notices one
//! that went back in time.
//!
//! While it counts as gone back, every request is refused. It ends when an operator has run `fencepost recover`, which takes
//! the ledger past all that was seen of it; where a SQLite file has lost its name, with the process; where an old PostgreSQL
//! primary answered, once the one that took over answers. A recovered ledger that lacks the cluster's secret gets it from
//! this instance.

use std::convert::Infallible;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use actors::database_clock::SharedClock;
use domain::ClusterSecret;
use ids::Snowflakes;
use ledger::{Identity, Reason, Witness as Seen, jittered};
use panic_guard::guarded;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::generators::InMemory;
use super::not_opened;
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// How often the ledger is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How often the file is written, after a look. It is written at once when the ledger is found to have gone back, and at the end.
/// What a killed process does not remember is this and [`LOOK_EVERY`] at most.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// A file that was begun so long ago is of a process that was killed while it wrote.
const LEFT_AFTER: Duration = Duration::from_secs(3_600);

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The ledger is the one that was known, and as far at least.
    Current,
    /// The same, and it was recovered since the last look.
    Recovered,
    /// It is behind, or another one.
    WentBack,
}

/// Looks at the ledger, until the daemon stops.
pub struct Witness {
    known: Option<Identity>,
    file: Option<PathBuf>,
    /// The extension of the file while it is written, beside the whole one. No other process has the same extension: processes
    /// of two containers may share the folder and have the same pid.
    extension: String,
    /// When it was tried last.
    written: Option<Instant>,
    /// The file has what is known, or had it before somebody removed it: it is not written again for the same.
    is_written: bool,
    /// The last try failed, and the log has told so.
    is_unwritable: bool,
    clock: SharedClock,
    /// The refusal is in force, as the gauge `fencepost_ledger_went_back` shows.
    has_refused: bool,
    /// Why the ledger counts as gone back, as far as is known.
    reason: Option<Reason>,
    /// That the ledger went back or was recovered, until what is in memory is dropped for it: also where a defect
    /// interrupts the look that has found it.
    news: Option<Found>,
}

/// A witness that looks again and again, in a task of its own.
pub struct Looking {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Looking {
    /// Looks once more and writes the file, when nothing is granted any more: the next start then finds a copy of the ledger from
    /// before behind.
    pub async fn stop(self) {
        // A defect may have ended the task.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl Witness {
    /// With what the file says.
    ///
    /// # Errors
    /// As [`known`].
    pub fn remember(config: &Config, clock: SharedClock) -> Result<Self, Failure> {
        let file = file(config);
        let known = file.as_deref().map(known).transpose()?.flatten();
        if let Some(path) = &file
            && let Err(error) = remove_leftovers(path)
        {
            tracing::debug!(%error, file = %path.display(), "what killed processes have left cannot be removed");
        }
        let extension = format!("{:016x}.new", rand::random::<u64>());
        let (written, is_written, is_unwritable) = (None, true, false);
        let (has_refused, reason, news) = (false, None, None);
        Ok(Self {
            known,
            file,
            extension,
            written,
            is_written,
            is_unwritable,
            clock,
            has_refused,
            reason,
            news,
        })
    }

    /// Waits until the ledger is the one that was known: for one that does not answer as long as `patience` allows, for one that
    /// went back, and may be away while it is restored, until it is recovered. Then others may be given the number of the local
    /// file: no snowflakes are made by that any more.
    ///
    /// # Errors
    /// [`Exit::Config`] on SQLite, whose file this process must leave to `fencepost recover`; [`Exit::Unavailable`] for a
    /// ledger that does not answer.
    pub async fn wait_until_current(
        &mut self,
        config: &Config,
        ledger: &ledger::Handle,
        api: &api::Handle,
        snowflakes: &Snowflakes,
        patience: Duration,
    ) -> Result<(), Failure> {
        let give_up = Instant::now() + patience;
        loop {
            let found = self.look(ledger, api).await;
            if self.news.take().is_some() {
                snowflakes.recall();
            }
            match found {
                Ok(Found::Recovered) if ledger.kind() == ledger::Kind::Postgres => {
                    // Instances that went on have put back by then what the ledger keeps for all of them, see `Self::start`.
                    tokio::time::sleep(jittered(LOOK_EVERY * 3)).await;
                    return Ok(());
                }
                Ok(Found::Current | Found::Recovered) => return Ok(()),
                Ok(Found::WentBack) if ledger.kind() == ledger::Kind::Sqlite => {
                    return Err(Failure::new(Exit::Config, self.why()));
                }
                Ok(Found::WentBack) => {}
                Err(_) if self.has_refused => {}
                Err(error) if error.is_retryable() && Instant::now() < give_up => {}
                Err(error) => return Err(not_opened(error, config)),
            }
            tokio::time::sleep(jittered(LOOK_EVERY)).await;
        }
    }

    /// Which ledger it was, if the file remembers one.
    pub fn remembered(&self) -> Option<&str> {
        self.known.as_ref().map(|known| known.cluster.as_str())
    }

    /// Which ledger it is.
    ///
    /// # Panics
    /// Before [`Self::wait_until_current`].
    pub fn cluster(&self) -> &str {
        &self.known.as_ref().expect("the ledger was looked at").cluster
    }

    /// Looks again and again, until it is stopped. If the ledger keeps the cluster's secret, and is recovered from a state before
    /// that, it gets the secret again: otherwise the next instance to start would make another one.
    pub fn start(
        self,
        ledger: ledger::Handle,
        api: api::Handle,
        in_memory: InMemory,
        secret: Option<ClusterSecret>,
    ) -> Looking {
        let (stop, stopped) = oneshot::channel();
        Looking { stop, task: tokio::spawn(self.run(ledger, api, in_memory, secret, stopped)) }
    }

    async fn run(
        mut self,
        ledger: ledger::Handle,
        api: api::Handle,
        in_memory: InMemory,
        secret: Option<ClusterSecret>,
        stopped: oneshot::Receiver<()>,
    ) {
        tokio::select! {
            never = self.look_always(&ledger, &api, in_memory, secret.as_ref()) => match never {},
            _ = stopped => {}
        }
        // Before the look: the ledger may be away, and the stop may not wait for its answer.
        self.write_now();
        // Takes the position past all that was granted, and writes it down at once.
        self.written = None;
        let _ = self.look_at_the_ledger(&ledger, &api).await;
    }

    /// What is in memory is dropped if others may be given it: when the ledger is found behind, and when it was recovered.
    async fn look_always(
        &mut self,
        ledger: &ledger::Handle,
        api: &api::Handle,
        in_memory: InMemory,
        secret: Option<&ClusterSecret>,
    ) -> Infallible {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // To be put into the ledger.
        let mut missing = None;
        loop {
            looks.tick().await;
            guarded("the look at the ledger", self.look(ledger, api)).await;
            if let Some(news) = self.news.take() {
                in_memory.drop_all();
                if news == Found::Recovered {
                    missing = secret;
                }
            }
            // Before the recovery the state may not be whole yet, and what is restored may have the secret.
            if let Some(secret) = missing.filter(|_| !self.has_refused)
                && guarded("the return of the cluster's secret", is_kept(ledger, secret)).await == Some(true)
            {
                missing = None;
            }
        }
    }

    /// A ledger that does not answer changes nothing.
    async fn look(&mut self, ledger: &ledger::Handle, api: &api::Handle) -> ledger::Result<Found> {
        let found = self.look_at_the_ledger(ledger, api).await;
        // So that a jump is noticed also while nothing is granted. To a server that no look has accepted there is no other
        // connection, and the next look is not to wait for one.
        if matches!(found, Ok(Found::Current | Found::Recovered))
            && let Err(error) = self.clock.look(ledger).await
        {
            tracing::debug!(%error, "the database's clock could not be read");
        }
        found
    }

    async fn look_at_the_ledger(
        &mut self,
        ledger: &ledger::Handle,
        api: &api::Handle,
    ) -> ledger::Result<Found> {
        let seen = ledger.witness(self.known.as_ref()).await;
        self.note(seen, |why| api.set_went_back(why))
    }

    /// Remembers what a look has seen, in memory and in the file. `refuse` gets why everything is to be refused from now on, or
    /// `None` when that ends.
    fn note(
        &mut self,
        seen: ledger::Result<Seen>,
        refuse: impl FnOnce(Option<String>),
    ) -> ledger::Result<Found> {
        let found = match seen {
            Ok(Seen::Current(identity)) => {
                let is_recovered =
                    self.known.as_ref().is_some_and(|known| identity.is_recovered_since(known));
                if is_recovered {
                    self.news = Some(Found::Recovered);
                }
                if self.has_refused {
                    metrics::gauge!("fencepost_ledger_went_back").set(0.0);
                    let position = identity.position;
                    if is_recovered {
                        tracing::warn!(position, "the ledger was recovered; serving again");
                    } else {
                        tracing::warn!(position, "the ledger is as far as it was known to be; serving again");
                    }
                    refuse(None);
                    self.has_refused = false;
                }
                if !is_recovered {
                    self.note_failover(&identity);
                }
                self.knows(identity);
                Ok(if is_recovered { Found::Recovered } else { Found::Current })
            }
            Ok(Seen::WentBack(found, reason)) => {
                self.reason = Some(reason);
                if !std::mem::replace(&mut self.has_refused, true) {
                    self.news = Some(Found::WentBack);
                    metrics::counter!("fencepost_ledger_went_back_total").increment(1);
                    metrics::gauge!("fencepost_ledger_went_back").set(1.0);
                    tracing::error!(
                        known = self.known.as_ref().map(tracing::field::display), %found, %reason,
                        "the ledger went back in time; nothing is served"
                    );
                    // What is known is written at once: the next start finds this ledger behind, however the process ends.
                    self.written = None;
                }
                if reason == Reason::OtherFile {
                    // Of the open file: the next start finds the one that has its name behind.
                    self.knows(found);
                }
                refuse(Some(self.why()));
                Ok(Found::WentBack)
            }
            Err(error) => {
                tracing::debug!(%error, "the ledger could not be looked at");
                Err(error)
            }
        };
        self.write();
        found
    }

    fn knows(&mut self, identity: Identity) {
        self.known = Some(identity);
        self.is_written = false;
    }

    /// Says so, and counts it, if another server took over and lost nothing that was answered.
    fn note_failover(&self, found: &Identity) {
        let (Some(before), Some(now)) =
            (self.known.as_ref().and_then(|known| known.server.as_ref()), &found.server)
        else {
            return;
        };
        if before.timeline != now.timeline {
            metrics::counter!("fencepost_ledger_failover_total").increment(1);
            tracing::warn!(
                before = before.timeline,
                now = now.timeline,
                "a standby became the ledger's primary; it has all that was answered"
            );
        }
    }

    fn why(&self) -> String {
        if self.reason == Some(Reason::OtherLedger) {
            let file = self.file.as_deref().unwrap_or(Path::new("the witness file"));
            return format!(
                "this is another ledger than the one that this instance knew. If that is on purpose, remove {} and start again. \
                 If it stands for the one before, what it would grant may have been granted already: before that, run \
                 `fencepost recover --confirm` with this instance's --database-url or --config (see docs/recovery.md)",
                file.display()
            );
        }
        if self.reason == Some(Reason::OtherFile) {
            return "the ledger's file or its log (`-wal`) was moved, or another one has its name. Put the file back, and start \
                    this instance again; or stop it, and run `fencepost recover --confirm` with its --database-url or --config \
                    for the other one. Where the log alone is gone, stop this instance by SIGTERM, so that it writes the log \
                    into the file, and start it again (see docs/recovery.md)"
                .to_owned();
        }
        if self.reason == Some(Reason::EarlierTimeline) {
            return "an old primary still answers behind the ledger's name: its timeline is earlier than that of the one that \
                    took over. Shut it off, and have a proxy cut its connections to it; requests are served again once the \
                    other one answers. If it is a copy restored on purpose, run `fencepost recover --confirm` with this \
                    instance's --database-url or --config (see docs/recovery.md)"
                .to_owned();
        }
        // It is the same ledger, which is never new: to forget what was known of it would have it grant that again.
        let reason = self.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        format!(
            "the ledger is behind what this instance knew of it{reason}, as after a restored backup or a failover. What it would \
             grant may have been granted before. Run `fencepost recover --confirm` with this instance's --database-url or \
             --config (see docs/recovery.md)"
        )
    }

    fn write_now(&mut self) {
        self.written = None;
        self.write();
    }

    fn write(&mut self) {
        let (Some(path), Some(known), false) = (&self.file, &self.known, self.is_written) else { return };
        if self.written.is_some_and(|at| at.elapsed() < WRITE_EVERY) {
            return;
        }
        self.written = Some(Instant::now());
        let bytes = serde_json::to_vec(known).expect("it is plain data");
        let done = replace(path, &self.extension, &bytes);
        self.is_written = done.is_ok();
        let was_unwritable = std::mem::replace(&mut self.is_unwritable, done.is_err());
        let file = path.display();
        match done {
            Ok(()) if was_unwritable => tracing::info!(%file, "the ledger's position is written down again"),
            Ok(()) => {}
            Err(error) if was_unwritable => {
                tracing::debug!(%error, %file, "the ledger's position cannot be written down");
            }
            Err(error) => tracing::warn!(%error, %file, "the ledger's position cannot be written down"),
        }
    }
}

/// Whether the ledger keeps the cluster's secret, this one if there was none, or says that it never will.
async fn is_kept(ledger: &ledger::Handle, secret: &ClusterSecret) -> bool {
    match ledger.decide_cluster_secret(secret).await {
        Ok(kept) if kept == *secret => {}
        Ok(_) => tracing::error!(
            "the recovered ledger keeps another secret of the cluster than this instance has; restart this instance"
        ),
        Err(error) if error.is_retryable() => {
            tracing::debug!(%error, "the cluster's secret could not be put into the recovered ledger yet");
            return false;
        }
        Err(error) => {
            tracing::error!(%error, "the cluster's secret could not be put into the recovered ledger");
        }
    }
    true
}

/// Writes the file anew, under this extension first, so that it is whole at any moment. Instances that share the file write the
/// same ledger's positions.
fn replace(path: &Path, extension: &str, bytes: &[u8]) -> std::io::Result<()> {
    // The ledger may be in the same folder, and then finds it there.
    ledger::make_folder_of(path)?;
    let beside = path.with_extension(extension);
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&beside, path)
}

/// Removes what processes have left beside the file that were killed while they wrote.
fn remove_leftovers(path: &Path) -> std::io::Result<()> {
    let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_ours = |name: &str| {
        let middle = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".new"));
        // Earlier releases wrote their pid there.
        middle.is_some_and(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let is_left = |begun: SystemTime| begun.elapsed().is_ok_and(|age| age >= LEFT_AFTER);
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_ours) && is_left(entry.metadata()?.modified()?) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn file(config: &Config) -> Option<PathBuf> {
    Some(&config.ledger.witness_file).filter(|file| !file.is_empty()).map(PathBuf::from)
}

/// Reads the file, if there is to be one, as a start does; keeps nothing of it.
///
/// # Errors
/// As [`known`].
pub fn check(config: &Config) -> Result<(), Failure> {
    file(config).as_deref().map(known).transpose().map(drop)
}

/// What the file says, if it is there.
///
/// # Errors
/// [`Exit::Config`] for a file that cannot be read or understood: without it nobody would notice a ledger that went back.
fn known(path: &Path) -> Result<Option<Identity>, Failure> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let foreign = |error: serde_json::Error| {
                unusable(path, &format!("no daemon wrote what is in it ({error})"))
            };
            serde_json::from_slice(&bytes).map(Some).map_err(foreign)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    let what = format!("ledger.witness_file {} cannot be used: {error}", path.display());
    Failure::new(Exit::Config, what)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// As a process starts with the file.
    fn started(file: &Path) -> Witness {
        let mut config = Config::default();
        config.ledger.witness_file = file.to_str().unwrap().to_owned();
        Witness::remember(&config, SharedClock::new(Duration::from_secs(1))).unwrap()
    }

    fn at(position: i64) -> Identity {
        Identity { cluster: "c".to_owned(), position, server: None }
    }

    fn current(position: i64) -> ledger::Result<Seen> {
        Ok(Seen::Current(at(position)))
    }

    fn behind(position: i64) -> ledger::Result<Seen> {
        Ok(Seen::WentBack(at(position), Reason::Position))
    }

    /// What the next start remembers.
    fn remembered(file: &Path) -> Option<i64> {
        started(file).known.map(|known| known.position)
    }

    #[test]
    fn what_is_known_of_a_ledger_that_went_back_is_in_the_file_at_the_first_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("witness");
        let mut witness = started(&file);
        witness.note(current(7), |why| panic!("{why:?}")).unwrap();
        // Sooner than the file is written again.
        witness.note(current(9), |why| panic!("{why:?}")).unwrap();
        let mut told = None;
        assert_eq!(witness.note(behind(7), |why| told = why).unwrap(), Found::WentBack);
        assert!(told.is_some_and(|why| why.contains("its position is lower")));
        assert_eq!(remembered(&file), Some(9));
        // An operator has removed the file.
        fs::remove_file(&file).unwrap();
        witness.note(behind(7), |_| {}).unwrap();
        witness.write_now();
        assert_eq!(remembered(&file), None);
    }

    #[test]
    fn what_could_not_be_written_of_a_ledger_that_went_back_is_written_later() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        let file = place.join("witness");
        // Nothing can be written below a file, by root neither.
        let is_away = |is_so| match is_so {
            true => fs::write(&place, "").unwrap(),
            false => fs::remove_file(&place).unwrap(),
        };
        let mut witness = started(&file);
        is_away(true);
        witness.note(current(9), |_| {}).unwrap();
        witness.note(behind(7), |_| {}).unwrap();
        assert!(!witness.is_written && witness.is_unwritable);
        is_away(false);
        // As after the pause between two tries.
        witness.written = None;
        witness.note(behind(7), |_| {}).unwrap();
        assert_eq!(remembered(&file), Some(9));
    }

    #[test]
    fn a_recovered_ledger_takes_the_place_of_what_was_known() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("witness");
        let mut witness = started(&file);
        witness.note(current(9), |_| {}).unwrap();
        witness.note(behind(7), |_| {}).unwrap();
        let mut is_over = false;
        let recovered = witness.note(current(1 << 40), |why| is_over = why.is_none()).unwrap();
        assert_eq!((recovered, is_over), (Found::Recovered, true));
        witness.write_now();
        assert_eq!(remembered(&file), Some(1 << 40));
    }

    #[test]
    fn what_a_look_has_found_is_not_forgotten_where_a_defect_interrupts_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut witness = started(&folder.path().join("witness"));
        let interrupted = |witness: &mut Witness, seen| {
            let note = || witness.note(seen, |_| panic!("made on purpose"));
            assert!(catch_unwind(AssertUnwindSafe(note)).is_err());
            witness.news.take()
        };
        witness.note(current(9), |_| {}).unwrap();
        assert_eq!(witness.news, None);
        assert_eq!(interrupted(&mut witness, behind(7)), Some(Found::WentBack));
        witness.note(behind(7), |_| {}).unwrap();
        assert_eq!(witness.news, None, "it is known");
        assert_eq!(interrupted(&mut witness, current(1 << 40)), Some(Found::Recovered));
        let mut is_over = false;
        witness.note(current(1 << 40), |why| is_over = why.is_none()).unwrap();
        assert!(is_over, "it is told again");
        witness.news = None;
        // Between two looks: nothing is refused, and nothing else says so.
        witness.note(current(1 << 41), |why| panic!("{why:?}")).unwrap();
        assert_eq!(witness.news, Some(Found::Recovered));
    }

    #[test]
    fn a_refusal_for_an_old_primary_ends_when_the_accepted_one_answers_and_counts_as_no_recovery() {
        let folder = tempfile::tempdir().unwrap();
        let mut witness = started(&folder.path().join("witness"));
        witness.note(current(9), |_| {}).unwrap();
        let mut told = None;
        let old = Ok(Seen::WentBack(at(8), Reason::EarlierTimeline));
        assert_eq!(witness.note(old, |why| told = why).unwrap(), Found::WentBack);
        assert!(told.is_some_and(|why| why.starts_with("an old primary still answers")));
        let mut is_over = false;
        let seen = witness.note(current(10), |why| is_over = why.is_none()).unwrap();
        assert_eq!((seen, is_over), (Found::Current, true));
    }

    #[test]
    fn a_file_with_something_else_in_it_is_refused_by_its_name_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notes");
        fs::write(&file, "buy milk").unwrap();
        let refused = known(&file).unwrap_err();
        assert_eq!(refused.exit, Exit::Config);
        let name =
            format!("ledger.witness_file {} cannot be used: no daemon wrote what is in it", file.display());
        assert!(refused.message.starts_with(&name), "{}", refused.message);
        assert_eq!(fs::read(&file).unwrap(), b"buy milk");
    }

    #[test]
    fn processes_that_share_the_file_do_not_write_into_one_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("witness");
        let (one, other) = (started(&file), started(&file));
        let half = file.with_extension(&one.extension);
        fs::write(&half, "ha").unwrap();
        replace(&file, &other.extension, b"whole").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"whole");
        assert_eq!(fs::read(&half).unwrap(), b"ha");
    }

    #[test]
    fn a_start_removes_what_killed_processes_have_left_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, age: Duration| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        };
        let left = ["witness.1.new", "witness.00ff00ff00ff00ff.new"];
        let kept = ["witness.my.new", "other.1.new", "witness.1.old", "witness..new"];
        left.iter().chain(&kept).for_each(|name| make(name, LEFT_AFTER * 2));
        make("witness.2.new", Duration::ZERO);
        started(&folder.path().join("witness"));
        let is_there = |name: &&str| folder.path().join(name).exists();
        assert!(!left.iter().any(is_there));
        assert!(kept.iter().all(is_there) && is_there(&"witness.2.new"));
    }

    #[test]
    fn a_refusal_names_the_ledger_to_recover_and_is_shown_whole() {
        let mut witness = started(Path::new("./fencepost-data/witness"));
        for reason in [
            Reason::OtherLedger,
            Reason::Position,
            Reason::OtherFile,
            Reason::OtherServer,
            Reason::ShorterLog,
            Reason::AsynchronousFailover,
            Reason::LostCommits,
            Reason::EarlierTimeline,
        ] {
            witness.reason = Some(reason);
            let why = witness.why();
            assert!(why.contains("`fencepost recover --confirm` with "), "{why}");
            assert!(why.contains("--database-url or --config"), "{why}");
            let is_other = reason == Reason::OtherLedger;
            assert_eq!(why.contains("remove ./fencepost-data/witness"), is_other, "{why}");
            assert!(why.chars().count() <= api::limits::DETAIL_CHARS_MAX, "the API cuts it off: {why}");
        }
    }
}
