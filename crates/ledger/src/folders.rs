//! Folders, and names in them, that are on the disk.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes the folder of a file, and those above it, where they are missing. The name of each one that it has made is on the disk
/// then, so that a loss of power does not take what was made durable in it. In a folder that this user
/// may not list, the name is not synced.
///
/// # Errors
/// What the system said. A folder may be there then whose name is not on the disk.
pub fn make_folder_of(file: &Path) -> io::Result<()> {
    if folder_of(file).is_dir() { Ok(()) } else { keep_folder_of(file) }
}

/// The same. The name of a folder that is there is on the disk then, too: the process that made it may have ended before that.
pub(crate) fn keep_folder_of(file: &Path) -> io::Result<()> {
    make(folder_of(file), &mut |above| keep_names(File::open(above)))
}

/// Makes the new names in a folder last, where it could be opened.
fn keep_names(opened: io::Result<File>) -> io::Result<()> {
    match opened {
        Ok(folder) => sync_folder(&folder),
        // The system opens no folder that this user may not list, and syncs none that is not open.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

/// Has `sync` keep the names in the folder above the first one that it has found, and in each one in which it has made another,
/// from the top down: only where a folder's name is kept is another made in it.
fn make(folder: &Path, sync: &mut impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let above = folder_of(folder);
    if !folder.is_dir() {
        make(above, sync)?;
        // Another process may have just made it.
        if let Err(error) = fs::create_dir(folder)
            && !folder.is_dir()
        {
            return Err(error);
        }
    }
    sync(above)
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
        let [one, two] = ["one", "one/two"].map(|name| place.path().join(name));
        let above_place = place.path().parent().unwrap();
        assert_eq!(synced(&deep).unwrap(), [above_place, place.path(), &one, &two]);
        assert!(deep.is_dir());
        for (there, above) in [(deep.as_path(), two.as_path()), (Path::new("."), Path::new("."))] {
            assert_eq!(synced(there).unwrap(), [above], "nobody knows whether its name was kept");
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
        let new = place.path().join("new");
        let full = make(&new, &mut |above| match above == place.path() {
            true => Err(ErrorKind::StorageFull.into()),
            false => Ok(()),
        });
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(new.is_dir());
        assert_eq!(synced(&new).unwrap(), [place.path()], "the next start keeps its name");
        assert_eq!(
            synced(&new.join("deep")).unwrap(),
            [place.path(), &new],
            "also before it makes another in it"
        );
    }

    #[test]
    fn a_folder_that_this_user_may_not_list_is_passed_over() {
        let opened = |kind: ErrorKind| keep_names(Err(kind.into()));
        opened(ErrorKind::PermissionDenied).unwrap();
        assert_eq!(opened(ErrorKind::NotFound).unwrap_err().kind(), ErrorKind::NotFound);
        keep_names(File::open(tempfile::tempdir().unwrap().path())).unwrap();
    }
}
