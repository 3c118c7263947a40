//! The file beside the ledger that one process locks for as long as it runs. The system gives the lock
//! back when the process dies, however it dies; the pid in it is for people.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

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
        written.map_err(|source| file_error(&beside, source))?;
        Ok(Self { _file: file })
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}
