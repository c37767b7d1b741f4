//! A file that a command writes, under its name only when it is whole.
//!
//! Until then it is beside that name with the ending `.part`. So a command that fails, or is killed, leaves nothing that could be read
//! as the whole content. An existing file is never overwritten.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// A file that only its owner may read. Dropping it without [`NewFile::finish`] removes it.
pub struct NewFile {
    path: PathBuf,
    part: PathBuf,
    file: File,
}

impl NewFile {
    /// Creates the file that will be at `path`.
    ///
    /// # Errors
    /// If there is a file at `path`, or a part of one, or if none can be created.
    pub fn create(path: &Path) -> anyhow::Result<NewFile> {
        let shown = path.display();
        if path.symlink_metadata().is_ok() {
            return Err(anyhow!(
                "{shown} already exists: remove it, or name another file"
            ));
        }
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part);
        let file = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(anyhow!(
                "{} already exists: another command is writing it, or was killed. In the latter case remove it; else name another file",
                part.display()
            )),
            created => created.with_context(|| format!("cannot create {shown}")),
        }?;
        Ok(NewFile {
            path: path.to_owned(),
            part,
            file,
        })
    }

    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Forces the file to disk and gives it its name.
    ///
    /// # Errors
    /// Those of the disk, or if another file has the name by now.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        match renameat_with(CWD, &self.part, CWD, &self.path, RenameFlags::NOREPLACE) {
            // Some network file systems cannot do both in one step.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if !self.path.exists() => {
                std::fs::rename(&self.part, &self.path)
            }
            renamed => Ok(renamed?),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Fails where it has its name already.
        let _ = std::fs::remove_file(&self.part);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let names = || {
            let entries = std::fs::read_dir(directory.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let new = NewFile::create(&path).unwrap();
        new.file().write_all(b"half").unwrap();
        assert_eq!(names(), ["out.part"]);
        let error = NewFile::create(&path).err().unwrap().to_string();
        assert!(error.contains("out.part already exists"), "{error}");
        drop(new);
        assert!(names().is_empty());
        let new = NewFile::create(&path).unwrap();
        new.file().write_all(b"whole").unwrap();
        new.finish().unwrap();
        assert_eq!(names(), ["out"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        let error = NewFile::create(&path).err().unwrap().to_string();
        assert!(error.contains("out already exists"), "{error}");
    }

    #[test]
    fn a_file_that_was_created_meanwhile_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let new = NewFile::create(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        let error = new.finish().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        assert!(!directory.path().join("out.part").exists());
    }
}
