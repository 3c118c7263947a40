//! The local file by which a process that restarts while the ledger is away can prove that a worker number is
//! still its own for a while.
//!
//! It says: no id was made at `issued_ms` or later, and none will be by anybody else below `mark_ms`. Both are
//! written ahead, as the mark in the ledger is. A process that finds the file may make ids with times between the two if
//! it is the same file (not a copy), on the same machine since the same boot, of the same ledger, and no other process has
//! it locked: then the process that wrote it is dead. A clean stop deletes the file before it lowers the mark in the ledger.
//!
//! It is written in place, in one piece under a checksum: a half-written one proves nothing. A file that is not empty, and does
//! not begin as ours do, is neither written nor deleted.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use domain::WorkerNumber;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Length of the file. Every record is filled up to it, so that nothing of a longer one is left.
const FILE_BYTES: usize = 1_024;
/// Each record begins with this, those of earlier versions too.
const BEGINNING: &[u8] = br#"{"worker":"#;
/// A file that vanishes between its opening and its locking is opened anew so often.
const OPENINGS_MAX: usize = 8;
/// Names the machine, where there is one.
const MACHINE_ID: &str = "/etc/machine-id";
/// Names the boot; random, so that no two machines share one.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The ledger that a number is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerName {
    /// The [`checksum`] of where it is.
    pub address: String,
    /// Its id, which its tables keep.
    pub cluster: String,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The worker number.
    pub number: WorkerNumber,
    /// The ledger that it is of.
    pub ledger: LedgerName,
    /// The epoch of its ids, in milliseconds since 1970.
    pub epoch_ms: u64,
    /// No id was made at this time or later, in milliseconds since 1970.
    pub issued_ms: u64,
    /// The mark that is committed in the ledger, in milliseconds since 1970.
    pub mark_ms: u64,
}

/// What a file proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It is new, or was just made.
    Empty,
    /// This.
    Of(Record),
    /// Nothing, and why.
    Nothing(&'static str),
}

/// The file, locked for as long as this is there.
#[derive(Debug)]
pub struct WorkerIdFile {
    path: PathBuf,
    place: Place,
    file: Option<File>,
}

/// What makes two files the same one, beside their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    machine: String,
    boot: String,
}

#[derive(Serialize, Deserialize)]
struct Written {
    worker: u16,
    /// Earlier versions wrote none.
    ledger: Option<LedgerName>,
    epoch_ms: u64,
    issued_ms: u64,
    mark_ms: u64,
    place: Place,
    device: u64,
    inode: u64,
}

impl WorkerIdFile {
    /// Takes the file for this process alone, making it where there is none, and reads what it proves.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] while another process has it; [`ErrorKind::InvalidData`] for one of [`why_file_refused`]; else
    /// what the system said.
    pub fn take(path: &Path) -> io::Result<(Self, Proof)> {
        let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
        let boot = read(BOOT_ID)?;
        let machine = read(MACHINE_ID).unwrap_or_default();
        ledger::make_folder_of(path)?;
        let (file, bytes) = open_locked(path)?;
        let place = Place { machine, boot };
        let proof = read_proof(&file, bytes, &place)?;
        Ok((Self { path: path.to_owned(), place, file: Some(file) }, proof))
    }

    /// Writes what is true from now on, synced.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] where something else was written into the file meanwhile, which is left as it is; else what the
    /// system said. What the file says then is not known, until it is written or removed.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => self.file.insert(file),
            None => self.file.insert(open_locked(&self.path)?.0),
        };
        contents(file)?;
        let found = file.metadata()?;
        let written = Written {
            worker: record.number.get(),
            ledger: Some(record.ledger.clone()),
            epoch_ms: record.epoch_ms,
            issued_ms: record.issued_ms,
            mark_ms: record.mark_ms,
            place: self.place.clone(),
            device: found.dev(),
            inode: found.ino(),
        };
        let line = serde_json::to_string(&written).map_err(io::Error::other)?;
        let mut text = format!("{line}\n{}\n", checksum(&line)).into_bytes();
        if text.len() > FILE_BYTES {
            return Err(io::Error::new(ErrorKind::InvalidData, "the record is longer than its file"));
        }
        text.resize(FILE_BYTES, b'\n');
        file.write_all_at(&text, 0)?;
        file.sync_all()
    }

    /// Deletes the file, synced: from now on it proves nothing. The next [`Self::write`] makes it anew. A file that a person has
    /// moved away is emptied where it is. Another process's file, which may have the name by then, stays, and so does one into
    /// which something else was written: it proves nothing.
    ///
    /// # Errors
    /// What the system said. What the file says is then as it was.
    pub fn remove(&mut self) -> io::Result<()> {
        if let Some(file) = &self.file {
            match contents(file) {
                Err(error) if error.kind() == ErrorKind::InvalidData => {}
                _ if has_name(file, &self.path)? => match std::fs::remove_file(&self.path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                },
                _ => {
                    file.set_len(0)?;
                    file.sync_all()?;
                }
            }
            self.file = None;
        }
        sync_folder(&self.path)
    }
}

/// Why this process must neither write nor delete what has this name: something else than a worker number is in it, or it is no
/// regular file. `None` for one of ours, if only a part of it, for an empty one, and where there is none or it cannot be read.
/// Changes nothing.
#[must_use]
pub fn why_file_refused(path: &Path) -> Option<String> {
    let looked = refuse_other_kinds(path).and_then(|()| contents(&File::open(path)?).map(drop));
    looked.err().filter(|error| error.kind() == ErrorKind::InvalidData).map(|error| error.to_string())
}

/// A link is refused as well: what it leads to would be written, and the link deleted.
fn refuse_other_kinds(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(refused("it is a symbolic link")),
        Ok(found) if !found.is_file() => Err(refused("it is no regular file")),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What is in the file, which is refused if that is neither nothing nor ours. A torn write may leave a part of a record, or the
/// zeros of what never came to the disk.
fn contents(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    let is_blank = |byte: &u8| matches!(byte, 0 | b'\n');
    let text = bytes.iter().rposition(|byte| !is_blank(byte)).map_or(&[][..], |last| &bytes[..=last]);
    let begins_as_ours = text.iter().zip(BEGINNING).all(|(found, ours)| found == ours);
    if bytes.len() > FILE_BYTES || !(begins_as_ours || is_record(text)) {
        return Err(refused("something else than a worker number is in it"));
    }
    Ok(bytes)
}

/// Whether the first line is a record, in whatever order its fields are.
fn is_record(text: &[u8]) -> bool {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice::<serde_json::Value>(line)
        .is_ok_and(|record| ["worker", "place"].iter().all(|field| record.get(field).is_some()))
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Opens and locks the file that has this name, which may have been deleted and made anew in between. Answers what is in it, too.
fn open_locked(path: &Path) -> io::Result<(File, Vec<u8>)> {
    for _ in 0..OPENINGS_MAX {
        refuse_other_kinds(path)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.try_lock().map_err(|refusal| match refusal {
            TryLockError::WouldBlock => io::Error::from(ErrorKind::WouldBlock),
            TryLockError::Error(error) => error,
        })?;
        if has_name(&file, path)? {
            let bytes = contents(&file)?;
            sync_folder(path)?;
            return Ok((file, bytes));
        }
    }
    Err(io::Error::other("the file is deleted and made anew again and again"))
}

/// Whether the file of this name is this one, and no link to it.
fn has_name(file: &File, path: &Path) -> io::Result<bool> {
    let mine = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (mine.dev(), mine.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// What the file proves. Nothing where it is not whole, or not in its place.
fn read_proof(file: &File, bytes: Vec<u8>, place: &Place) -> io::Result<Proof> {
    if bytes.is_empty() {
        return Ok(Proof::Empty);
    }
    let Some((number, written)) = whole(bytes) else { return Ok(Proof::Nothing("it is not whole")) };
    let found = file.metadata()?;
    if written.place.machine != place.machine {
        return Ok(Proof::Nothing("it was written on another machine"));
    }
    if written.place.boot != place.boot {
        return Ok(Proof::Nothing("the machine was started anew since it was written"));
    }
    if (written.device, written.inode) != (found.dev(), found.ino()) {
        return Ok(Proof::Nothing("it is a copy"));
    }
    let Written { ledger: Some(ledger), epoch_ms, issued_ms, mark_ms, .. } = written else {
        return Ok(Proof::Nothing("it does not name its ledger: an earlier version wrote it"));
    };
    Ok(Proof::Of(Record { number, ledger, epoch_ms, issued_ms, mark_ms }))
}

/// What is written, if all of it is there.
fn whole(bytes: Vec<u8>) -> Option<(WorkerNumber, Written)> {
    let text = String::from_utf8(bytes).ok()?;
    let mut lines = text.lines();
    let (line, sum) = (lines.next()?, lines.next()?);
    let written = serde_json::from_str::<Written>(line).ok().filter(|_| checksum(line) == sum)?;
    Some((WorkerNumber::new(written.worker).ok()?, written))
}

/// SHA-256, in hexadecimal digits.
pub fn checksum(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes what was done to a name durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(mark_ms: u64) -> Record {
        let ledger = LedgerName { address: checksum("sqlite:/x"), cluster: "one".to_owned() };
        Record { number: WorkerNumber::new(7).unwrap(), ledger, epoch_ms: 1, issued_ms: mark_ms / 2, mark_ms }
    }

    fn proof(path: &Path) -> Option<Record> {
        match WorkerIdFile::take(path).unwrap().1 {
            Proof::Of(record) => Some(record),
            Proof::Empty | Proof::Nothing(_) => None,
        }
    }

    #[test]
    fn what_was_written_last_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/worker");
        let (mut id_file, nothing) = WorkerIdFile::take(&path).unwrap();
        assert_eq!(nothing, Proof::Empty);
        id_file.write(&record(u64::MAX)).unwrap();
        id_file.write(&record(20)).unwrap();
        drop(id_file);
        assert_eq!(proof(&path), Some(record(20)));
        assert_eq!(proof(&path), Some(record(20)), "looking takes nothing away");
    }

    #[test]
    fn a_file_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        let (id_file, _) = WorkerIdFile::take(&path).unwrap();
        assert_eq!(WorkerIdFile::take(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(id_file);
        assert!(WorkerIdFile::take(&path).is_ok());
    }

    #[test]
    fn a_copied_or_replaced_file_proves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("worker"), folder.path().join("copy"));
        let (mut id_file, _) = WorkerIdFile::take(&path).unwrap();
        id_file.write(&record(20)).unwrap();
        std::fs::copy(&path, &copy).unwrap();
        assert_eq!(proof(&copy), None);
        drop(id_file);
        assert_eq!(proof(&path), Some(record(20)), "the one that was copied still does");
        std::fs::rename(&copy, &path).unwrap();
        assert_eq!(proof(&path), None);
    }

    #[test]
    fn a_file_of_another_boot_or_machine_proves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        let here = WorkerIdFile::take(&path).unwrap().0.place.clone();
        for other in [
            Place { machine: "other".to_owned(), ..here.clone() },
            Place { boot: "other".to_owned(), ..here.clone() },
        ] {
            let (mut id_file, _) = WorkerIdFile::take(&path).unwrap();
            id_file.place = other;
            id_file.write(&record(20)).unwrap();
            drop(id_file);
            assert_eq!(proof(&path), None);
        }
    }

    #[test]
    fn a_file_of_an_earlier_version_which_names_no_ledger_proves_nothing_and_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        let (mut id_file, _) = WorkerIdFile::take(&path).unwrap();
        id_file.write(&record(20)).unwrap();
        drop(id_file);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut written: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        written.as_object_mut().unwrap().remove("ledger").unwrap();
        let line = written.to_string();
        std::fs::write(&path, format!("{line}\n{}\n", checksum(&line))).unwrap();
        let (mut id_file, found) = WorkerIdFile::take(&path).unwrap();
        assert!(
            matches!(found, Proof::Nothing(why) if why.contains("does not name its ledger")),
            "{found:?}"
        );
        id_file.write(&record(30)).unwrap();
        drop(id_file);
        assert_eq!(proof(&path), Some(record(30)));
    }

    #[test]
    fn a_file_that_is_not_whole_proves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        let (mut id_file, _) = WorkerIdFile::take(&path).unwrap();
        id_file.write(&record(20)).unwrap();
        drop(id_file);
        let whole = std::fs::read(&path).unwrap();
        let length = whole.trim_ascii_end().len();
        for at in (0..length).step_by(3).chain([length - 1]) {
            if at >= BEGINNING.len() {
                let mut torn = whole.clone();
                torn[at] ^= 1;
                std::fs::write(&path, &torn).unwrap();
                assert_eq!(proof(&path), None, "byte {at}");
            }
            for rest in [0, 1, FILE_BYTES - at] {
                std::fs::write(&path, [&whole[..at], &vec![0_u8; rest]].concat()).unwrap();
                assert_eq!(why_file_refused(&path), None, "cut at {at}, and {rest} zeros");
                assert_eq!(proof(&path), None, "cut at {at}, and {rest} zeros");
            }
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(proof(&path), Some(record(20)), "written in place, it is the same file");
    }

    #[test]
    fn a_file_with_something_else_in_it_is_neither_written_nor_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        assert_eq!(why_file_refused(&path), None);
        let sqlite = [b"SQLite format 3\0".as_slice(), &[0_u8; 8_192]].concat();
        let long = [BEGINNING, &[b'1'; FILE_BYTES]].concat();
        for other in
            [&sqlite, &long, &b"a text\n".to_vec(), &b"{\"position\":7}".to_vec(), &vec![0; FILE_BYTES + 1]]
        {
            std::fs::write(&path, other).unwrap();
            assert!(why_file_refused(&path).unwrap().contains("something else"), "{other:?}");
            assert_eq!(WorkerIdFile::take(&path).unwrap_err().kind(), ErrorKind::InvalidData);
            assert_eq!(&std::fs::read(&path).unwrap(), other);
            std::fs::remove_file(&path).unwrap();
            // It may come there while this process has the file.
            let (mut id_file, _) = WorkerIdFile::take(&path).unwrap();
            std::fs::write(&path, other).unwrap();
            for _ in 0..2 {
                assert_eq!(id_file.write(&record(20)).unwrap_err().kind(), ErrorKind::InvalidData);
                id_file.remove().expect("what it says proves nothing");
                assert_eq!(&std::fs::read(&path).unwrap(), other);
            }
        }
    }

    #[test]
    fn a_link_a_folder_and_what_is_no_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [target, link, away] = ["target", "link", "away"].map(|name| folder.path().join(name));
        std::fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        std::os::unix::fs::symlink(folder.path().join("missing"), &away).unwrap();
        for (path, why) in [
            (link.as_path(), "a symbolic link"),
            (away.as_path(), "a symbolic link"),
            (folder.path(), "no regular file"),
            (Path::new("/dev/null"), "no regular file"),
        ] {
            assert!(why_file_refused(path).unwrap().contains(why), "{}", path.display());
            assert_eq!(WorkerIdFile::take(path).unwrap_err().kind(), ErrorKind::InvalidData);
        }
        assert!(!folder.path().join("missing").exists());
        // One that takes the place of the file is neither written through nor deleted.
        std::fs::remove_file(&link).unwrap();
        let (mut id_file, _) = WorkerIdFile::take(&link).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        id_file.remove().unwrap();
        assert_eq!(id_file.write(&record(20)).unwrap_err().kind(), ErrorKind::InvalidData);
        assert!(link.is_symlink() && std::fs::read(&target).unwrap().is_empty());
    }

    #[test]
    fn a_removed_file_proves_nothing_and_can_be_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        let (mut id_file, _) = WorkerIdFile::take(&path).unwrap();
        id_file.write(&record(20)).unwrap();
        id_file.remove().unwrap();
        id_file.remove().expect("twice is once");
        assert!(!path.exists());
        id_file.write(&record(30)).unwrap();
        drop(id_file);
        assert_eq!(proof(&path), Some(record(30)));
    }

    #[test]
    fn a_file_that_another_process_has_made_since_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        let (mut before, _) = WorkerIdFile::take(&path).unwrap();
        before.write(&record(20)).unwrap();
        before.remove().unwrap();
        let (mut other, _) = WorkerIdFile::take(&path).unwrap();
        other.write(&record(30)).unwrap();
        assert_eq!(before.write(&record(40)).unwrap_err().kind(), ErrorKind::WouldBlock);
        before.remove().expect("there is none of its own");
        drop(other);
        assert_eq!(proof(&path), Some(record(30)));
    }

    #[test]
    fn a_file_that_was_moved_away_proves_nothing_and_the_one_that_another_process_has_made_since_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("worker"), folder.path().join("moved"));
        let (mut before, _) = WorkerIdFile::take(&path).unwrap();
        before.write(&record(20)).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        let (mut other, _) = WorkerIdFile::take(&path).unwrap();
        other.write(&record(30)).unwrap();
        before.remove().unwrap();
        assert_eq!(before.write(&record(40)).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(other);
        assert_eq!((proof(&path), proof(&moved)), (Some(record(30)), None));
    }
}
