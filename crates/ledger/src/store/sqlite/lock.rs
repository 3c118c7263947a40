//! The file beside the ledger that one process locks for as long as it runs. The system gives the lock
//! back when the process dies, however it dies; the pid in it is for people.
//!
//! The lock is of a name, and so is what SQLite keeps beside the file. So a file with several names is refused. A lock of the
//! file itself could not be had beside SQLite: a process that closes a descriptor of a file loses all its locks of that file,
//! SQLite's among them; and where file systems are remote, the two kinds of locks are one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use super::file_error;
use crate::{Error, Result};

pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes the lock of the ledger at `path`.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let beside = lock_path(path);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&beside)
            .map_err(|source| file_error(&beside, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Its holder may be about to write it: an empty answer is then the honest one.
                let _ = file.read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
                return Err(Error::InUse { path: path.display().to_string(), pid: pid.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(file_error(&beside, source)),
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        // The lock is had also where the disk is full.
        if let Err(error) = written {
            tracing::debug!(%error, path = %beside.display(), "the pid could not be written into the lock");
        }
        Ok(Self { _file: file })
    }
}

/// Refuses a file that others may have by a name with another lock beside it: one with several hard links, or one that is
/// mounted by itself, without its folder. What SQLite has committed may be in the log beside one of the names, which a process
/// that opens the file by another name does not find.
pub(super) fn refuse_other_names(path: &Path) -> Result<()> {
    // One that cannot be looked at is to be made, or its open says what the matter is.
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    // Systems before Linux 5.8 do not say.
    let is_mounted = statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    match why_refused(found.nlink(), is_mounted) {
        Some(why) => Err(Error::Address(format!("the ledger {} {why}", path.display()))),
        None => Ok(()),
    }
}

fn why_refused(links: u64, is_mounted: bool) -> Option<String> {
    if links > 1 {
        return Some(format!(
            "has {links} names (hard links), and its lock and SQLite's log are beside one of them: a process that opens it by \
             another name is not kept out, and repeats what was granted. Remove all names but the one by which it was used last"
        ));
    }
    is_mounted.then(|| {
        "is mounted by itself, and its lock and SQLite's log are beside it, where they are lost with the mount, and nobody \
         else finds them. Mount the folder that it is in"
            .to_owned()
    })
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_that_cannot_be_written_keeps_nobody_from_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        // As on a full disk.
        std::os::unix::fs::symlink("/dev/full", lock_path(&path)).unwrap();
        FileLock::take(&path).unwrap();
    }

    #[test]
    fn a_file_that_others_may_have_by_another_name_is_refused() {
        assert_eq!(why_refused(1, false), None);
        assert!(why_refused(2, false).is_some_and(|why| why.contains("2 names")));
        assert!(why_refused(1, true).is_some_and(|why| why.contains("Mount the folder")));
    }
}
