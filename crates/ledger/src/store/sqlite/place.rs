//! Where the file is: whether that place keeps what is committed and honours locks, and whether this process may use it there.
//!
//! What must never live here: a refusal by the kind of a file system. Its name proves nothing, so it is worth a warning alone.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat, statfs};
use rustix::io::Errno;

use super::file_error;
use super::partial_file::with_suffix;
use crate::Result;

/// The types of file systems that are another machine's or another program's, by the numbers and names of Linux. Shared
/// folders of virtual machines and of containers on macOS and Windows are among them.
const REMOTE: [(u32, &str); 8] = [
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
];
/// Those that a restart of the machine empties.
const IN_MEMORY: [(u32, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];
/// That of a container's own files, which go with the container.
const LAYERED: [(u32, &str); 1] = [(0x794c_7630, "overlay")];

/// What may become of the ledger for the place that its path leads to; `None` where nothing is known against it.
pub(super) fn warning(path: &Path) -> Option<String> {
    let why = why_doubtful(file_system(path)?)?;
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Some(format!("the ledger {} {why}", whole.display()))
}

/// The type of the file system that the file is on, or would be made on.
fn file_system(path: &Path) -> Option<u32> {
    let found = path.ancestors().find_map(|place| {
        // What comes last of a relative path.
        statfs(if place.as_os_str().is_empty() { Path::new(".") } else { place }).ok()
    });
    found.map(|found| found.f_type as u32)
}

fn why_doubtful(file_system: u32) -> Option<String> {
    let named = |table: &[(u32, &'static str)]| {
        table.iter().find(|(number, _)| *number == file_system).map(|(_, name)| *name)
    };
    if let Some(name) = named(&REMOTE) {
        return Some(format!(
            "is on a file system that is not this machine's own ({name}): it may lose what was committed, or let two \
             daemons have the file at the same time. Put it on a disk of this machine"
        ));
    }
    if let Some(name) = named(&IN_MEMORY) {
        return Some(format!(
            "is in memory ({name}): the next restart of the machine loses it, and what it has granted is granted again. Put it \
             on a disk, unless it is for a test"
        ));
    }
    named(&LAYERED).map(|name| {
        format!(
            "is on a file system of layers ({name}), as a container's own files are: it goes with the container, and what it has \
             granted is granted again. Mount a volume for its folder, unless it is for a test"
        )
    })
}

/// Refuses a ledger of which this process may not read the file, its log, or the log's index, nor write them where it `writes`.
/// SQLite says no more of it than that it cannot open the file, as where a disk answers with errors, or that it is read-only.
pub(super) fn refuse_denied(path: &Path, writes: bool) -> Result<()> {
    let wanted = if writes { Access::READ_OK | Access::WRITE_OK } else { Access::READ_OK };
    // As the process opens files: with its capabilities, which count for nothing where its real user is asked about.
    let is_denied = |file: &Path| accessat(CWD, file, wanted, AtFlags::EACCESS) == Err(Errno::ACCESS);
    match denied(path, is_denied) {
        Some(file) => Err(file_error(&file, ErrorKind::PermissionDenied.into())),
        None => Ok(()),
    }
}

/// The first file of the ledger that is denied.
fn denied(path: &Path, is_denied: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    ["", "-wal", "-shm"].into_iter().map(|suffix| with_suffix(path, suffix)).find(|file| is_denied(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_may_lose_the_ledger_is_told_of_with_what_to_do() {
        for (file_system, words) in [
            (0x6969, ["(nfs)", "disk of this machine"]),
            (0x0102_1997, ["(9p)", "disk of this machine"]),
            (0x6573_5546, ["(fuse)", "two daemons"]),
            (0x0102_1994, ["(tmpfs)", "restart of the machine"]),
            (0x794c_7630, ["(overlay)", "Mount a volume"]),
        ] {
            let why = why_doubtful(file_system).unwrap();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
        // ext4, xfs, btrfs, zfs.
        for file_system in [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1] {
            assert_eq!(why_doubtful(file_system), None);
        }
    }

    #[test]
    fn a_file_that_is_not_there_yet_is_looked_for_where_it_would_be_made() {
        const PROC: u32 = 0x9fa0;
        for path in ["/proc/self/status", "/proc/none/ledger.db", "/proc/none/deeper/ledger.db"] {
            assert_eq!(file_system(Path::new(path)), Some(PROC), "{path}");
        }
        assert_eq!(file_system(Path::new("none/ledger.db")), file_system(Path::new(".")));
        assert_eq!(warning(Path::new("/proc/none/ledger.db")), None);
    }

    #[test]
    fn no_file_of_a_ledger_may_be_denied_and_none_need_be_there() {
        let path = Path::new("/none/ledger.db");
        assert_eq!(denied(path, |_| false), None);
        for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
            let is_denied = |file: &Path| file.file_name().is_some_and(|found| found == name);
            assert_eq!(denied(path, is_denied), Some(path.with_file_name(name)));
        }
        for writes in [true, false] {
            refuse_denied(path, writes).unwrap();
        }
    }
}
