//! Detecting changes of files by polling their names.
//!
//! Polling detects an editor that replaces the file, Kubernetes' swap of a symbolic link above it, and changes on file systems
//! without kernel events (network, overlay and FUSE mounts), and needs no library. It costs one `stat` per file; contents are read
//! only if the result differs, or is too recent to distinguish two writes.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

/// The granularity of a file system's clock, 2 s at worst: two writes within it may leave the same time.
const FRESH: Duration = Duration::from_secs(3);
/// The part of a file that is compared: more than any accepted configuration or certificate.
const FILE_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The contents of some files at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileContents(Vec<Option<[u8; 32]>>);

/// The watched files.
#[derive(Debug, Default)]
pub struct Watched {
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// The stamp of the last look and the digest of the contents read then.
    known: Option<(Stamp, Option<[u8; 32]>)>,
}

/// The result of `stat` for a file, with symbolic links followed; `None` if there is no file.
type Stamp = Option<[i128; 6]>;

impl Watched {
    /// Watches `files`, none of which needs to exist.
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Watched {
        let files = files.into_iter();
        Watched {
            files: files.map(|path| File { path, known: None }).collect(),
        }
    }

    /// Whether these files are watched, in this order.
    pub fn is_of<'a>(&self, files: impl IntoIterator<Item = &'a Path>) -> bool {
        self.files.iter().map(|file| file.path.as_path()).eq(files)
    }

    /// The present contents of the files. Waits for the disk.
    pub fn look(&mut self) -> FileContents {
        FileContents(self.files.iter_mut().map(File::look).collect())
    }
}

impl File {
    fn look(&mut self) -> Option<[u8; 32]> {
        let now = std::fs::metadata(&self.path).ok();
        let stamp = now.as_ref().map(stamp_of);
        if let Some((known, digest)) = self.known
            && known == stamp
            && !now.as_ref().is_some_and(is_fresh)
        {
            return digest;
        }
        let digest = digest_of(&self.path);
        self.known = Some((stamp, digest));
        digest
    }
}

fn stamp_of(metadata: &Metadata) -> [i128; 6] {
    let nanoseconds =
        |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    [
        metadata.dev().into(),
        metadata.ino().into(),
        metadata.size().into(),
        metadata.mode().into(),
        nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
    ]
}

/// Whether the file was changed so recently, or by another clock, that a later change could leave the same stamp.
fn is_fresh(metadata: &Metadata) -> bool {
    let changed = u64::try_from(metadata.ctime().max(metadata.mtime())).unwrap_or(0);
    let changed = UNIX_EPOCH + Duration::from_secs(changed);
    match SystemTime::now().duration_since(changed) {
        Ok(age) => age < FRESH,
        Err(_) => true,
    }
}

fn digest_of(path: &Path) -> Option<[u8; 32]> {
    use std::io::Read;

    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(Sha256::digest(bytes).into())
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
        FileContents(vec![Some([number; 32])])
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
    fn a_replaced_a_rewritten_a_removed_and_a_relinked_file_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, text) in [("v1", "one"), ("v2", "two")] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("file"), text).unwrap();
        }
        std::os::unix::fs::symlink("v1", at("data")).unwrap();
        let mut watched = Watched::new([at("data").join("file")]);
        let mut looks = vec![watched.look(), watched.look()];
        assert_eq!(looks[0], looks[1]);
        std::os::unix::fs::symlink("v2", at("next")).unwrap();
        std::fs::rename(at("next"), at("data")).unwrap();
        looks.push(watched.look());
        std::fs::write(at("other"), "six").unwrap();
        std::fs::rename(at("other"), at("v2").join("file")).unwrap();
        looks.push(watched.look());
        std::fs::write(at("v2").join("file"), "ten").unwrap();
        looks.push(watched.look());
        std::fs::remove_file(at("v2").join("file")).unwrap();
        looks.push(watched.look());
        assert!(
            looks[1..].windows(2).all(|two| two[0] != two[1]),
            "{looks:?}"
        );
        assert_eq!(looks[5], FileContents(vec![None]));
    }
}
