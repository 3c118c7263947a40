//! Folders, and names in them, that are on the disk.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes the folder of a file, and those above it, where they are missing. The name of each one that it has made is on the disk
/// then, so that a loss of power does not take what was made durable in it; but in a folder that this user may not list, nobody
/// knows when.
///
/// # Errors
/// What the system said. A folder may be there then whose name is not on the disk.
pub fn make_folder_of(file: &Path) -> io::Result<()> {
    make(folder_of(file), &mut |above| match File::open(above) {
        Ok(above) => sync_folder(&above),
        // The system opens no folder that this user may not list, and syncs none that is not open.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    })
}

/// Has `sync` keep the new names in a folder, for each one in which it has made another.
fn make(folder: &Path, sync: &mut impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let above = folder_of(folder);
    let made = match fs::create_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make(above, sync)?;
            fs::create_dir(folder)
        }
        made => made,
    };
    match made {
        Ok(()) => sync(above),
        // It was there, or another process has just made it.
        Err(_) if folder.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The folder that has this name in it.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a new name in a folder last.
pub(crate) fn sync_folder(folder: &File) -> io::Result<()> {
    match folder.sync_all() {
        // The file system has no sync of folders.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The folders whose new names were kept, in their order.
    fn synced(folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut synced = Vec::new();
        let made = make(folder, &mut |above| {
            synced.push(above.to_owned());
            Ok(())
        });
        made.map(|()| synced)
    }

    #[test]
    fn each_folder_that_is_made_has_its_name_on_the_disk_from_the_top_down() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("one/two/three");
        let above = [place.path().to_owned(), place.path().join("one"), place.path().join("one/two")];
        assert_eq!(synced(&deep).unwrap(), above);
        assert!(deep.is_dir());
        for there in [deep.as_path(), Path::new("."), Path::new("/")] {
            assert!(synced(there).unwrap().is_empty(), "{}", there.display());
        }
        make_folder_of(&place.path().join("another/file")).unwrap();
        assert!(place.path().join("another").is_dir());
        make_folder_of(Path::new("file")).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_or_kept_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        for folder in [&file, &file.join("in it")] {
            assert!(synced(folder).is_err(), "{}", folder.display());
        }
        let full = make(&place.path().join("new"), &mut |_| Err(ErrorKind::StorageFull.into()));
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
