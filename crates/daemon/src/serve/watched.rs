//! Files that are looked at now and then, to find out that they were changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a file looked like.
type Look = (SystemTime, u64, u64);

/// Some files, as they were when they were read.
pub struct Watched {
    files: Vec<PathBuf>,
    seen: Vec<Option<Look>>,
    last: Vec<Option<Look>>,
    is_away: bool,
    was_away: bool,
}

impl Watched {
    /// The files, as they are now.
    pub fn new(files: Vec<PathBuf>) -> Self {
        let mut watched = Self { files, seen: Vec::new(), last: Vec::new(), is_away: false, was_away: false };
        watched.note();
        watched
    }

    /// The files are about to be read: changes are counted from now on.
    pub fn note(&mut self) {
        self.seen = self.look();
    }

    /// Whether all files are there and one was changed, and none since the call before. A file that is away for a moment is being
    /// replaced, and one that changes from call to call is being written.
    pub fn is_changed(&mut self) -> bool {
        let found = self.look();
        let is_at_rest = found == self.last;
        self.last = found;
        if is_at_rest {
            self.is_away = self.last.iter().any(Option::is_none);
        }
        is_at_rest && self.last.iter().all(Option::is_some) && self.last != self.seen
    }

    /// Whether a file was away in two calls of [`Self::is_changed`] one after the other, and not there in two since.
    pub const fn is_away(&self) -> bool {
        self.is_away
    }

    /// Whether [`Self::is_away`] has changed since the call before.
    pub const fn has_turned(&mut self) -> bool {
        std::mem::replace(&mut self.was_away, self.is_away) != self.is_away
    }

    /// The first of the files that was away in the last call of [`Self::is_changed`].
    pub fn missing(&self) -> Option<&Path> {
        let (file, _) = self.files.iter().zip(&self.last).find(|(_, look)| look.is_none())?;
        Some(file)
    }

    fn look(&self) -> Vec<Option<Look>> {
        let look = |file: &PathBuf| {
            let file = std::fs::metadata(file).ok()?;
            Some((file.modified().ok()?, file.len(), file.ino()))
        };
        self.files.iter().map(look).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_found_once_all_files_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| folder.path().join(name));
        for file in &files {
            std::fs::write(file, "1").unwrap();
        }
        let mut watched = Watched::new(files.to_vec());
        assert!(!watched.is_changed());
        for text in ["22", "333", "4444"] {
            std::fs::write(&files[0], text).unwrap();
            assert!(!watched.is_changed(), "it is being written");
        }
        assert!(watched.is_changed());
        std::fs::remove_file(&files[1]).unwrap();
        assert!(!watched.is_changed() && !watched.is_away(), "it may be back at once");
        assert!(!watched.is_changed() && watched.is_away(), "one is being replaced");
        assert_eq!(watched.missing(), Some(files[1].as_path()));
        std::fs::write(&files[1], "1").unwrap();
        assert!(!watched.is_changed() && watched.is_away());
        assert!(watched.is_changed() && !watched.is_away() && watched.missing().is_none());
        watched.note();
        assert!(!watched.is_changed());
        assert!(!Watched::new(Vec::new()).is_changed());
    }
}
