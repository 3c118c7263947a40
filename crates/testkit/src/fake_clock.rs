//! A clock of the wall that a test sets (libfaketime). Lengths of waits go by the right time.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// The clock of the processes that are started with [`FakeClock::variables`].
#[derive(Debug)]
pub struct FakeClock {
    dir: TempDir,
    library: PathBuf,
}

impl FakeClock {
    /// One that shows the right time.
    ///
    /// # Errors
    /// libfaketime is not installed (`tests/install` does it), or its file cannot be written.
    pub fn new() -> Result<Self> {
        // As Debian lays it.
        let folders = std::fs::read_dir("/usr/lib")?.flatten().map(|entry| entry.path());
        let mut files = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
        let library = files.find(|file| file.is_file()).context("libfaketime: see tests/install")?;
        let dir = TempDir::with_prefix("fencepost-clock-")?;
        // Processes of another user read it too.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
        let clock = Self { dir, library };
        clock.set(0)?;
        Ok(clock)
    }

    /// From now on it is so far off, in milliseconds; ahead if that is positive.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn set(&self, offset_ms: i64) -> Result<()> {
        let sign = if offset_ms < 0 { '-' } else { '+' };
        let (seconds, rest) = (offset_ms.unsigned_abs() / 1_000, offset_ms.unsigned_abs() % 1_000);
        self.write(&format!("{sign}{seconds}.{rest:03}\n"))
    }

    /// From now on it stands still at this time, in milliseconds since 1970.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn stand(&self, at_ms: u64) -> Result<()> {
        // In the middle of the millisecond, whatever is lost in reading it.
        self.write(&format!("{}.{:03}5\n", at_ms / 1_000, at_ms % 1_000))
    }

    fn write(&self, text: &str) -> Result<()> {
        let new = self.dir.path().join("new");
        std::fs::write(&new, text)?;
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o644))?;
        // Read whole at any moment.
        std::fs::rename(new, self.file()).context("the clock's file")
    }

    /// Variables of the environment under which a process goes by this clock.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![
            set("LD_PRELOAD", &self.library.to_string_lossy()),
            set("FAKETIME_TIMESTAMP_FILE", &self.file().to_string_lossy()),
            set("FAKETIME_NO_CACHE", "1"),
            set("FAKETIME_FMT", "%s"),
            set("FAKETIME_DONT_RESET", "1"),
            set("DONT_FAKE_MONOTONIC", "1"),
            set("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            set("TZ", "UTC"),
        ]
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("clock")
    }
}
