//! A log file that is created again under its name after it was moved or removed, as by logrotate, without a signal. A line that a full
//! disk or the end of an earlier process has torn does not swallow the next one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// A file that is appended to under its name. Each write first checks that the name still refers to the open file: a microsecond
/// or two for all lines of some milliseconds.
#[derive(Debug)]
pub struct NamedFile {
    path: PathBuf,
    file: File,
    /// Whether the last byte written does not end a line.
    is_within_line: bool,
    /// Whether the file ends within a line whose rest does not follow.
    is_torn: bool,
    /// The length of the file when it was opened, if it ended within a line then and nothing was written since.
    torn_at: Option<u64>,
}

impl NamedFile {
    /// Opens the file for appending, or creates it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<NamedFile> {
        let (file, torn_at) = appended(path)?;
        Ok(NamedFile {
            path: path.to_owned(),
            file,
            is_within_line: false,
            is_torn: false,
            torn_at,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(length) = self.torn_at.take() {
            // A file grows page by page under a write: if it has grown since, another process, as in an upgrade, was writing the line.
            let now = self.file.metadata();
            self.is_torn |= now.is_ok_and(|now| now.len() == length);
        }
        if self.is_torn {
            self.file.write_all(b"\n")?;
            (self.is_torn, self.is_within_line) = (false, false);
        }
        let written = self.file.write(bytes)?;
        if let Some(last) = bytes.get(..written).and_then(<[u8]>::last) {
            self.is_within_line = *last != b'\n';
        }
        Ok(written)
    }

    /// Whether the open file has no name any more.
    fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|own| own.nlink() == 0)
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
        if let Ok(false) = self.is_there() {
            match appended(&self.path) {
                Ok((file, torn_at)) => {
                    (self.file, self.torn_at, self.is_torn) = (file, torn_at, false);
                }
                // Lines in a file without a name would be lost without being counted.
                Err(error) if self.is_removed() => return Err(error),
                // Lines are still written to the moved file.
                Err(_) => {}
            }
        }
        let written = self.append(bytes);
        // The rest of the bytes does not follow.
        self.is_torn |= written.is_err() && self.is_within_line;
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The file, to append to, and its length if it ends within a line.
fn appended(path: &Path) -> io::Result<(File, Option<u64>)> {
    let opened = OpenOptions::new()
        .create(true)
        .append(true)
        // Else the system waits for a process that reads a pipe.
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::other("it is a pipe that no process reads, or a socket"),
        _ => error,
    })?;
    // The log's own thread may wait for a full pipe.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    let mut last = [b'\n'];
    let length = file.metadata()?.len();
    // What cannot be read, as a pipe, has no earlier lines.
    if let Some(before_last) = length.checked_sub(1)
        && let Ok(read) = File::open(path)
    {
        let _ = read.read_at(&mut last, before_last);
    }
    Ok((file, (last != *b"\n").then_some(length)))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

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

    #[test]
    fn a_pipe_that_no_process_reads_is_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let make_pipe = || {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
        };
        make_pipe();
        let error = NamedFile::open(&path).unwrap_err();
        assert!(error.to_string().contains("no process reads"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let mut file = NamedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        make_pipe();
        file.write_all(b"one\n").unwrap_err();
        let mut reader = OpenOptions::new();
        let reader = reader
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&path);
        file.write_all(b"two\n").unwrap();
        let flags = fcntl_getfl(&file.file).unwrap();
        assert!(
            !flags.contains(OFlags::NONBLOCK),
            "a full pipe is waited for"
        );
        let mut line = [0; 4];
        reader.unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"two\n");
    }

    #[test]
    fn lines_that_no_reader_could_find_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own");
        std::fs::create_dir(&own).unwrap();
        let mut file = NamedFile::open(&own.join("log")).unwrap();
        file.write_all(b"one\n").unwrap();
        std::fs::remove_dir_all(&own).unwrap();
        let error = file.write_all(b"two\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        std::fs::create_dir(&own).unwrap();
        file.write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read(own.join("log")).unwrap(), b"three\n");
    }

    #[test]
    fn a_line_that_another_process_is_just_writing_is_not_torn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut old = NamedFile::open(&path).unwrap();
        // What is visible so far of one write.
        old.write_all(b"one\ntw").unwrap();
        let mut new = NamedFile::open(&path).unwrap();
        old.write_all(b"o\n").unwrap();
        new.write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
    }

    #[test]
    fn a_torn_line_does_not_swallow_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("log"), directory.path().join("log.1"));
        std::fs::write(&path, "earlier").unwrap();
        let mut file = NamedFile::open(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        // The rest of a line may follow in another write.
        file.write_all(b"o\nthr").unwrap();
        let writable = std::mem::replace(&mut file.file, File::open(&path).unwrap());
        file.write_all(b"ee\n").unwrap_err();
        file.file = writable;
        file.write_all(b"four\nfi").unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            b"earlier\none\ntwo\nthr\nfour\nfi"
        );
        std::fs::rename(&path, &moved).unwrap();
        file.write_all(b"six\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"six\n");
    }
}
