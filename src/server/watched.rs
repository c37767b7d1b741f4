//! Detecting changes of files by reading them again and again.
//!
//! Polling detects an editor that replaces the file, Kubernetes' swap of a symbolic link above it, and changes on file systems
//! without kernel events (network, overlay and FUSE mounts), and needs no library. The contents are compared, because times do not
//! distinguish two writes in the same tick of a file system's clock; most files are small, and none that is accepted is larger than
//! 1 MiB.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::config::open_regular;

/// The part of a file that is compared: more than any accepted configuration or certificate.
const FILE_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The contents of some files at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileContents(Vec<Content>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    /// The digest.
    Read([u8; 32]),
    /// There is no such file, its path leads nowhere, it is of another kind, or it may not be read.
    Absent,
    /// It cannot be read at this moment: the process has too many open files, or the disk or the network fails.
    Unknown,
}

impl FileContents {
    /// The present contents of `files`, none of which needs to exist. Waits for the disk.
    pub fn read(files: &[PathBuf]) -> FileContents {
        FileContents(files.iter().map(|path| content_of(path)).collect())
    }

    /// These, and those of `before` where they are not known.
    fn or(mut self, before: &FileContents) -> FileContents {
        for (now, before) in self.0.iter_mut().zip(&before.0) {
            if *now == Content::Unknown {
                *now = before.clone();
            }
        }
        self
    }
}

fn content_of(path: &Path) -> Content {
    let is_absent = |error: &io::Error| {
        use io::ErrorKind::{
            InvalidFilename, InvalidInput, NotADirectory, NotFound, PermissionDenied,
        };
        Errno::from_io_error(error) == Some(Errno::LOOP)
            || matches!(
                error.kind(),
                NotFound | NotADirectory | InvalidFilename | PermissionDenied | InvalidInput
            )
    };
    let digest = || {
        let mut bytes = Vec::new();
        let file = open_regular(path)?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        io::Result::Ok(Sha256::digest(bytes).into())
    };
    match digest() {
        Ok(digest) => Content::Read(digest),
        Err(error) if is_absent(&error) => Content::Absent,
        Err(_) => Content::Unknown,
    }
}

/// Detects when changed files are stable, so that a file that is still being written is not read.
#[derive(Debug)]
pub struct Settling {
    taken: FileContents,
    seen: Option<FileContents>,
}

impl Settling {
    /// Begins with the contents in use.
    pub fn new(taken: FileContents) -> Settling {
        Settling { taken, seen: None }
    }

    /// Whether the latest look saw contents for the first time.
    pub fn is_settling(&self) -> bool {
        self.seen.is_some()
    }

    /// Takes the result of the latest look. Returns whether it is new and the same as at the look before.
    pub fn note(&mut self, now: FileContents) -> bool {
        let now = now.or(&self.taken);
        if now == self.taken {
            self.seen = None;
            return false;
        }
        if self.seen.as_ref() == Some(&now) {
            *self = Settling::new(now);
            return true;
        }
        self.seen = Some(now);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(number: u8) -> FileContents {
        FileContents(vec![Content::Read([number; 32])])
    }

    #[test]
    fn contents_are_new_when_they_were_the_same_at_two_looks_and_only_once() {
        let mut settling = Settling::new(contents(0));
        let looks = [
            (0, false),
            (1, false),
            (2, false),
            (2, true),
            (2, false),
            (3, false),
            (2, false),
            (3, false),
            (3, true),
        ];
        for (number, expected) in looks {
            assert_eq!(settling.note(contents(number)), expected, "{number}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_at_the_moment_has_not_changed() {
        let mut settling = Settling::new(contents(1));
        for _ in 0..3 {
            assert!(!settling.note(FileContents(vec![Content::Unknown])));
        }
        assert!(!settling.is_settling() && !settling.note(contents(2)));
        assert!(settling.note(contents(2)));
    }

    #[test]
    fn a_replaced_a_rewritten_a_removed_and_a_relinked_file_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, text) in [("v1", "one"), ("v2", "two")] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("file"), text).unwrap();
        }
        std::os::unix::fs::symlink("v1", at("data")).unwrap();
        let look = || FileContents::read(&[at("data").join("file")]);
        let mut looks = vec![look(), look()];
        assert_eq!(looks[0], looks[1]);
        std::os::unix::fs::symlink("v2", at("next")).unwrap();
        std::fs::rename(at("next"), at("data")).unwrap();
        looks.push(look());
        std::fs::write(at("other"), "six").unwrap();
        std::fs::rename(at("other"), at("v2").join("file")).unwrap();
        looks.push(look());
        std::fs::write(at("v2").join("file"), "ten").unwrap();
        looks.push(look());
        std::fs::remove_file(at("v2").join("file")).unwrap();
        looks.push(look());
        assert!(
            looks[1..].windows(2).all(|two| two[0] != two[1]),
            "{looks:?}"
        );
        assert_eq!(looks[5], FileContents(vec![Content::Absent]));
    }

    #[test]
    fn a_path_that_leads_to_no_file_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let long = "x".repeat(300);
        for name in ["none", "loop/file", "file/file", &long, "."] {
            assert_eq!(content_of(&at(name)), Content::Absent, "{name}");
        }
    }
}
