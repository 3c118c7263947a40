//! A file that gets its name once all of it is on the disk.
//!
//! Order: the data, then the data's sync, then the name, then the folder's sync. What a kill leaves behind is the partial
//! file with its lock, and perhaps its journal, which the next try removes; the name has nothing or the whole.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

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
    /// Given back last, when nothing of this try is left.
    _lock: PartialLock,
}

impl PartialFile {
    /// Begins the file that is to have the name `target`, empty. Removes what an earlier try left. Refuses with
    /// [`ErrorKind::ResourceBusy`] while another process writes it.
    pub(super) fn create(target: &Path) -> io::Result<Self> {
        // First: a folder that cannot be read cannot be synced in the end either.
        let folder = File::open(folder_of(target))?;
        let path = with_suffix(target, ".partial");
        let lock = PartialLock::take(&path)?;
        let journal = with_suffix(&path, "-journal");
        // Together: SQLite would write the journal of an earlier try back into the new file.
        remove_if_there(&path)?;
        remove_if_there(&journal)?;
        // Made here, so that nobody else may read it.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { file, path, journal, target: target.to_owned(), folder, _lock: lock })
    }

    /// Where it is written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, once it is on the disk. Never overwrites what has the name.
    pub(super) fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        if !is_at(&self.path, &self.file) {
            return Err(io::Error::other("another process has replaced the partial file"));
        }
        rename_to_new(&self.path, &self.target)?;
        if !is_at(&self.target, &self.file) {
            // The other process did so just now: this file is that one's, and not whole.
            let _ = fs::remove_file(&self.target);
            return Err(io::Error::other("another process has replaced the partial file"));
        }
        sync_folder(&self.folder).map_err(named_but_not_synced)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Once it has its name, nothing is here.
        if is_at(&self.path, &self.file) {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_file(&self.journal);
        }
    }
}

/// The lock of a partial file: a file beside it, which is removed on drop. A lock of the partial file itself could keep SQLite's
/// out (see [`super::lock`]).
struct PartialLock {
    file: File,
    path: PathBuf,
}

impl PartialLock {
    fn take(partial: &Path) -> io::Result<Self> {
        let path = with_suffix(partial, ".lock");
        let file = match open_lock(&path) {
            // Another user's, perhaps of a backup that was killed. Whether that one still runs cannot be seen, so its lock
            // goes, as its partial file does: one that runs has lost its file, and fails in the end.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                remove_if_there(&path)?;
                open_lock(&path)?
            }
            opened => opened?,
        };
        let is_taken = match file.try_lock() {
            // Its last holder has removed this file just now.
            Ok(()) => !is_at(&path, &file),
            Err(TryLockError::WouldBlock) => true,
            // The file system has no locks. Then the one of two processes that has lost its file fails in the end.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, path = %path.display(), "the lock of a partial file could not be taken");
                false
            }
        };
        if is_taken {
            let what = format!("another backup is writing {}", partial.display());
            return Err(io::Error::new(ErrorKind::ResourceBusy, what));
        }
        Ok(Self { file, path })
    }
}

impl Drop for PartialLock {
    fn drop(&mut self) {
        // Before the file is closed, which gives the lock back: a lock that another process has is never removed.
        if is_at(&self.path, &self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the file of a lock, or makes it. A link at its name, which somebody else may have put there, is not followed: no file is
/// made or opened where it leads. Nor is a pipe taken, whose reader would be waited for.
fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let (kind, what) = match options.custom_flags(flags.bits() as i32).open(path) {
        Ok(file) if file.metadata()?.is_file() => return Ok(file),
        Ok(_) => (ErrorKind::InvalidInput, "no regular file"),
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::LOOP) => (error.kind(), "a symbolic link"),
            // A pipe that nobody reads, a socket, or a folder.
            Some(Errno::NXIO | Errno::ISDIR) => (error.kind(), "no regular file"),
            _ => return Err(error),
        },
    };
    let what = format!("{} is {what}; remove it, or choose another file", path.display());
    Err(io::Error::new(kind, what))
}

/// Whether this name leads to this file.
fn is_at(path: &Path, file: &File) -> bool {
    let (Ok(own), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (own.dev(), own.ino()) == (there.dev(), there.ino())
}

/// The path with this behind its name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
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
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;
    use std::thread;

    use rustix::fs::{Mode, mkfifoat};

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
        for left in ["copy.partial", "copy.partial-journal", "copy.partial.lock"] {
            fs::write(folder.path().join(left), "of an earlier try").unwrap();
        }
        let partial = PartialFile::create(&target).unwrap();
        assert_eq!(
            (names(folder.path()), partial.file.metadata().unwrap().len()),
            (["copy.partial", "copy.partial.lock"].map(str::to_owned).to_vec(), 0)
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

    fn refused(target: &Path) -> String {
        let Err(error) = PartialFile::create(target) else { panic!("it is written already") };
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        error.to_string()
    }

    #[test]
    fn a_second_try_at_the_same_time_is_refused_and_the_first_gives_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("copy");
        let first = PartialFile::create(&target).unwrap();
        fs::write(first.path(), "whole").unwrap();
        for _ in 0..2 {
            assert!(refused(&target).contains("copy.partial"));
        }
        let beside = PartialFile::create(&folder.path().join("other")).unwrap();
        drop(beside);
        first.finish().unwrap();
        assert_eq!(names(folder.path()), ["copy"]);
        assert_eq!(fs::read_to_string(&target).unwrap(), "whole");
    }

    #[test]
    fn a_lock_that_may_not_be_opened_keeps_nobody_out() {
        let folder = tempfile::tempdir().unwrap();
        let (target, lock) = (folder.path().join("copy"), folder.path().join("copy.partial.lock"));
        fs::write(&lock, "").unwrap();
        // As one that another user left. A superuser may open any.
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o000)).unwrap();
        let partial = PartialFile::create(&target).unwrap();
        refused(&target);
        partial.finish().unwrap();
        assert_eq!(names(folder.path()), ["copy"]);
    }

    #[test]
    fn a_lock_that_is_a_link_is_refused_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, lock) = (folder.path().join("copy"), folder.path().join("copy.partial.lock"));
        for is_there in [false, true] {
            let elsewhere = folder.path().join("elsewhere");
            if is_there {
                fs::write(&elsewhere, "of somebody else").unwrap();
            }
            std::os::unix::fs::symlink(&elsewhere, &lock).unwrap();
            let Err(error) = PartialFile::create(&target) else { panic!("it followed the link") };
            let text = error.to_string();
            assert!(text.contains("copy.partial.lock is a symbolic link"), "{text}");
            assert_eq!(elsewhere.exists(), is_there);
            fs::remove_file(&lock).unwrap();
        }
        PartialFile::create(&target).unwrap().finish().unwrap();
        assert_eq!(names(folder.path()), ["copy", "elsewhere"]);
    }

    #[test]
    fn a_lock_that_is_no_regular_file_is_refused_and_no_reader_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (target, lock) = (folder.path().join("copy"), folder.path().join("copy.partial.lock"));
        let refuses = || {
            let (target, (said, says)) = (target.clone(), mpsc::channel());
            thread::spawn(move || {
                let refused = PartialFile::create(&target).err();
                said.send(refused.map(|error| error.to_string()))
            });
            let answer = says.recv_timeout(testkit::PATIENCE).expect("it waits for nobody");
            let text = answer.expect("it is refused");
            assert!(text.contains("copy.partial.lock is no regular file"), "{text}");
        };
        mkfifoat(CWD, &lock, Mode::RUSR | Mode::WUSR).unwrap();
        refuses();
        let reader = OpenOptions::new().read(true).write(true).open(&lock).unwrap();
        refuses();
        drop(reader);
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        refuses();
        fs::remove_dir(&lock).unwrap();
        PartialFile::create(&target).unwrap().finish().unwrap();
        assert_eq!(names(folder.path()), ["copy"]);
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_another_ones() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("copy");
        let first = PartialFile::create(&target).unwrap();
        let lock = folder.path().join("copy.partial.lock");
        fs::remove_file(&lock).unwrap();
        let second = PartialLock::take(&folder.path().join("copy.partial")).unwrap();
        drop(first);
        assert!(lock.exists(), "it is the second one's");
        drop(second);
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn a_try_whose_file_another_process_has_replaced_fails() {
        let folder = tempfile::tempdir().unwrap();
        let (target, partial) = (folder.path().join("copy"), folder.path().join("copy.partial"));
        let first = PartialFile::create(&target).unwrap();
        fs::remove_file(&partial).unwrap();
        fs::write(&partial, "of another process").unwrap();
        assert_eq!(first.finish().unwrap_err().kind(), ErrorKind::Other);
        assert_eq!(names(folder.path()), ["copy.partial"]);
        assert_eq!(fs::read_to_string(&partial).unwrap(), "of another process");
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
