//! A log file that is created again under its name after it was moved or removed, as by logrotate, without a signal.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that is appended to under its name. Each write first checks that the name still refers to the open file: a microsecond
/// or two for all lines of some milliseconds.
#[derive(Debug)]
pub struct NamedFile {
    path: PathBuf,
    file: File,
}

impl NamedFile {
    /// Opens the file for appending, or creates it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<NamedFile> {
        Ok(NamedFile {
            path: path.to_owned(),
            file: appended(path)?,
        })
    }

    fn is_there(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        match std::fs::metadata(&self.path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (own.dev(), own.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Write for NamedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // If no new file can be opened, lines are still written to the old one.
        if let Ok(false) = self.is_there()
            && let Ok(file) = appended(&self.path)
        {
            self.file = file;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn appended(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_or_removed_is_begun_anew_under_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("log"), directory.path().join("log.1"));
        let mut file = NamedFile::open(&path).unwrap();
        file.write_all(b"one\n").unwrap();
        file.write_all(b"two\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        file.write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read(&moved).unwrap(), b"one\ntwo\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"three\n");
        std::fs::remove_file(&path).unwrap();
        file.write_all(b"four\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"four\n");
    }

    #[test]
    fn where_no_other_can_be_opened_lines_go_where_they_went() {
        let directory = tempfile::tempdir().unwrap();
        let (own, moved) = (directory.path().join("own"), directory.path().join("moved"));
        std::fs::create_dir(&own).unwrap();
        let mut file = NamedFile::open(&own.join("log")).unwrap();
        std::fs::rename(&own, &moved).unwrap();
        file.write_all(b"one\n").unwrap();
        assert_eq!(std::fs::read(moved.join("log")).unwrap(), b"one\n");
    }
}
