//! A copy of the embedded ledger, made while a daemon serves from it.

use std::path::Path;
use std::sync::Arc;

use crate::{Error, Kind, Options, Result, store};

/// Copies the SQLite file, as it is at one moment, into a new file. A daemon that has the file goes on; the copy ends also
/// where it writes all the time. Until the copy is on the disk, it is in a file with `.partial` behind the name. Answers the
/// length of the copy in bytes.
///
/// # Errors
/// [`Error::Address`] for another kind of ledger, and for a file with several names, [`Error::Migration`] where there is no
/// file, [`Error::File`] where the new file exists already, is being written by another process, cannot be made, or has its name
/// but may lose it in a crash, and [`Error::Refused`] for what is no ledger.
pub async fn backup(options: &Options, copy: &Path) -> Result<u64> {
    let failed =
        |source: std::io::Error| Error::File { path: copy.display().to_string(), source: Arc::new(source) };
    if Kind::of(&options.url)? != Kind::Sqlite {
        let tool =
            "a PostgreSQL ledger is backed up by PostgreSQL's own tools, such as pg_dump or pg_basebackup";
        return Err(Error::Address(tool.to_owned()));
    }
    if copy.exists() {
        return Err(failed(std::io::ErrorKind::AlreadyExists.into()));
    }
    store::sqlite::copy(options, copy).await?;
    Ok(std::fs::metadata(copy).map_err(failed)?.len())
}
