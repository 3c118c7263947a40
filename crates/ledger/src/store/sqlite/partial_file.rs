//! A file that gets its name once all of it is on the disk.
//!
//! Order: the data, then the data's sync, then the name, then the folder's sync. What a kill leaves behind is the partial
//! file, and perhaps its journal, which the next try removes; the name has nothing or the whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::folders::{folder_of, sync_folder};

/// A file that is being written, at its name with `.partial` behind it. It is removed on drop, and so is the journal that SQLite
/// has beside it while it writes.
pub(super) struct PartialFile {
    file: File,
    path: PathBuf,
    journal: PathBuf,
    target: PathBuf,
    /// The target's.
    folder: File,
}

impl PartialFile {
    /// Begins the file that is to have the name `target`, empty. Removes what an earlier try left.
    pub(super) fn create(target: &Path) -> io::Result<Self> {
        // First: a folder that cannot be read cannot be synced in the end either.
        let folder = File::open(folder_of(target))?;
        let path = with_suffix(target, ".partial");
        let journal = with_suffix(&path, "-journal");
        // Together: SQLite would write the journal of an earlier try back into the new file.
        remove_if_there(&path)?;
        remove_if_there(&journal)?;
        // Made here, so that nobody else may read it.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { file, path, journal, target: target.to_owned(), folder })
    }

    /// Where it is written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, once it is on the disk. Never overwrites what has the name.
    pub(super) fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        if !self.is_at(&self.path) {
            return Err(io::Error::other("another process has replaced the partial file"));
        }
        rename_to_new(&self.path, &self.target)?;
        if !self.is_at(&self.target) {
            // The other process did so just now: this file is that one's, and not whole.
            let _ = fs::remove_file(&self.target);
            return Err(io::Error::other("another process has replaced the partial file"));
        }
        sync_folder(&self.folder).map_err(named_but_not_synced)
    }

    /// Whether this name leads to the file that was begun.
    fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(there)) = (self.file.metadata(), fs::symlink_metadata(path)) else { return false };
        (own.dev(), own.ino()) == (there.dev(), there.ino())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Once it has its name, nothing is here.
        if self.is_at(&self.path) {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_file(&self.journal);
        }
    }
}

/// The path with this behind its name.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Removes a file, which need not be there.
fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Renames a file, and refuses where the new name is taken.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    let Err(error) = renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) else { return Ok(()) };
    let error = io::Error::from(error);
    if error.kind() == ErrorKind::AlreadyExists {
        return Err(error);
    }
    // Some file systems, such as NFS, cannot do so in one step, and some have no second names either.
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) => {
            rename_if_absent(from, to)
        }
        Err(error) => Err(error),
    }
}

/// The same in two steps: another process that makes the name between them loses its file.
fn rename_if_absent(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => fs::rename(from, to),
        Err(error) => Err(error),
    }
}

/// The error where the file has its name.
fn named_but_not_synced(error: io::Error) -> io::Error {
    let what =
        format!("the file is whole and has its name, but its name may not be on the disk yet: {error}");
    io::Error::new(error.kind(), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_name_has_nothing_until_the_whole_file_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("copy");
        for left in ["copy.partial", "copy.partial-journal"] {
            fs::write(folder.path().join(left), "of an earlier try").unwrap();
        }
        let partial = PartialFile::create(&target).unwrap();
        assert_eq!(
            (names(folder.path()), partial.file.metadata().unwrap().len()),
            (vec!["copy.partial".to_owned()], 0)
        );
        fs::write(partial.path(), "whole").unwrap();
        partial.finish().unwrap();
        assert_eq!(names(folder.path()), ["copy"]);
        assert_eq!(fs::read_to_string(&target).unwrap(), "whole");
        assert_eq!(fs::metadata(&target).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_given_up_leaves_nothing_and_a_taken_name_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("copy");
        let partial = PartialFile::create(&target).unwrap();
        fs::write(folder.path().join("copy.partial-journal"), "SQLite's").unwrap();
        drop(partial);
        assert_eq!(names(folder.path()), Vec::<String>::new());
        let partial = PartialFile::create(&target).unwrap();
        fs::write(&target, "of somebody else").unwrap();
        assert_eq!(partial.finish().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(names(folder.path()), ["copy"]);
        assert_eq!(fs::read_to_string(&target).unwrap(), "of somebody else");
    }

    #[test]
    fn a_second_try_at_the_same_time_ends_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("copy");
        let first = PartialFile::create(&target).unwrap();
        let second = PartialFile::create(&target).unwrap();
        assert_eq!(first.finish().unwrap_err().kind(), ErrorKind::Other);
        assert_eq!(names(folder.path()), ["copy.partial"]);
        second.finish().unwrap();
        assert_eq!(names(folder.path()), ["copy"]);
    }

    #[test]
    fn a_file_system_without_second_names_gives_the_name_and_keeps_a_taken_one() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::write(&from, "whole").unwrap();
        rename_if_absent(&from, &to).unwrap();
        assert_eq!(names(folder.path()), ["to"]);
        fs::write(&from, "another").unwrap();
        assert_eq!(rename_if_absent(&from, &to).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&to).unwrap(), "whole");
    }

    #[test]
    fn a_failed_sync_of_the_folder_says_that_the_file_is_there() {
        let error = named_but_not_synced(io::Error::new(ErrorKind::StorageFull, "no room"));
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let text = error.to_string();
        assert!(text.contains("has its name") && text.contains("no room"), "{text}");
    }
}
