//! A database file that this process has open: whether its path still leads to it, and whether it is undamaged.
//!
//! SQLite continues with the file that it opened even if the path is changed. A command that opens the path then changes another
//! file, and this process's writes are lost with its last descriptor. So the file is checked every second:
//! device and inode of the path, of the log and of the index of the log against those that are open, and the first bytes
//! of the open file. A file that was moved and is put back is the right one again; one that was truncated or overwritten
//! is not, whatever it holds later, because SQLite has parts of it in memory.
//!
//! **Locks.** Closing any descriptor of a file gives up all locks that this process has on it (POSIX), SQLite's among
//! them. So the file is opened once more here, never again, and a [`HeldConnection`] keeps it open for as long as itself.
//!
//! Not here: a file that was overwritten in place by another whole database. It has the same inode and a right header.

use std::fs::{File, Metadata};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::StoreError;

/// The first bytes of every SQLite database (sqlite.org/fileformat2.html, section 1.3).
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The bytes of the header.
const HEADER_BYTES: usize = 100;
/// Where the header has the bytes of a page, and the pages of the file.
const PAGE_SIZE_AT: usize = 16;
const PAGES_AT: usize = 28;
/// Damage is for good unless a look within this time of the first one finds the file whole: a writer that lengthens the file after its
/// header is faster.
const DAMAGE_LASTS: Duration = Duration::from_millis(500);
/// The pause between two looks at damage that may pass.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// The files beside a database: the write-ahead log and its index.
const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// Which file it is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Of what a path leads to.
    pub fn at(path: &Path) -> io::Result<FileIdentity> {
        std::fs::metadata(path).map(|found| FileIdentity::of(&found))
    }

    fn of(found: &Metadata) -> FileIdentity {
        FileIdentity {
            device: found.dev(),
            inode: found.ino(),
        }
    }
}

/// The fault of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FileFault {
    /// The path of the database, or of one beside it, leads to no file, with the reason.
    Gone(&'static str, String),
    /// The path of the database, or of one beside it, leads to another file.
    Other(&'static str),
    /// The file is shorter than its header states.
    Truncated { bytes: u64, wanted: u64 },
    /// It does not begin as a database.
    Overwritten,
    /// SQLite has found a damaged page, with its error.
    Malformed(String),
}

impl FileFault {
    /// Whether what SQLite has in memory may not fit the file any more.
    fn is_damage(&self) -> bool {
        match self {
            FileFault::Gone(..) | FileFault::Other(_) => false,
            FileFault::Truncated { .. } | FileFault::Overwritten | FileFault::Malformed(_) => true,
        }
    }
}

/// The result of one look at a file.
struct Look {
    /// The path, then what is beside it: which file, or why there is none.
    paths: [Result<FileIdentity, String>; 1 + BESIDE.len()],
    /// Of the open file: its size and its first bytes.
    bytes: u64,
    header: Vec<u8>,
}

/// The known state of a file.
#[derive(Debug)]
struct Watch {
    /// What was opened: the database, then what is beside it; that comes and goes with SQLite's connections.
    opened: [Option<FileIdentity>; 1 + BESIDE.len()],
    /// Its size when it was last found whole.
    whole_bytes: u64,
    /// The first damage that a look since then, or SQLite, has found.
    damage: Option<(FileFault, Instant)>,
}

impl Watch {
    /// Judges a look. Damage is forgiven if a look within [`DAMAGE_LASTS`] finds the file whole: for a moment, it may be a `VACUUM` of
    /// another process that is just being written. After that time it is for good, whatever the file holds.
    fn judge(&mut self, look: &Look, now: Instant) -> Option<FileFault> {
        if let Some((damage, _)) = &self.damage
            && !self.may_pass(now)
        {
            return Some(damage.clone());
        }
        if let Some(damage) = self.damage_in(look) {
            let (damage, _) = self.damage.get_or_insert((damage, now));
            return Some(damage.clone());
        }
        self.damage = None;
        self.whole_bytes = look.bytes;
        let names = std::iter::once("").chain(BESIDE);
        let pairs = names.zip(look.paths.iter().zip(&self.opened));
        let mut pairs = pairs.filter(|(_, (_, opened))| opened.is_some());
        pairs.find_map(|(name, (found, opened))| match found {
            Err(reason) => Some(FileFault::Gone(name, reason.clone())),
            Ok(found) if Some(found) != opened.as_ref() => Some(FileFault::Other(name)),
            Ok(_) => None,
        })
    }

    /// Whether there is damage that a look may still find to have passed.
    fn may_pass(&self, now: Instant) -> bool {
        self.damage.as_ref().is_some_and(|(damage, since)| {
            !matches!(damage, FileFault::Malformed(_)) && now.duration_since(*since) < DAMAGE_LASTS
        })
    }

    fn damage_in(&self, look: &Look) -> Option<FileFault> {
        let header = look.header.as_slice();
        if !header.starts_with(MAGIC) {
            return Some(match look.bytes < HEADER_BYTES as u64 {
                true => FileFault::Truncated {
                    bytes: look.bytes,
                    wanted: self.whole_bytes,
                },
                false => FileFault::Overwritten,
            });
        }
        let number = |at: usize, bytes: usize| {
            let digits = header.get(at..at + bytes).unwrap_or_default().iter();
            digits.fold(0, |number, digit| number << 8 | u64::from(*digit))
        };
        // 1 stands for 65,536, which has no room.
        let page = match number(PAGE_SIZE_AT, 2) {
            1 => 65_536,
            page => page,
        };
        let wanted = number(PAGES_AT, 4) * page;
        // A checkpoint writes the header before it lengthens the file, and nothing but `VACUUM` shortens one.
        let is_shortened = look.bytes < self.whole_bytes;
        (is_shortened && look.bytes < wanted).then_some(FileFault::Truncated {
            bytes: look.bytes,
            wanted,
        })
    }
}

/// The purpose of a file, which decides the consequences of its loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePurpose {
    /// The embedded store: the authority for every charge.
    Database,
    /// A node's journal of units served without Redis.
    Journal,
}

impl FilePurpose {
    /// The consequence of its loss.
    fn loss(self) -> &'static str {
        match self {
            FilePurpose::Database => "no request is charged or served",
            FilePurpose::Journal => "no request is served without Redis",
        }
    }

    /// The remedy if its contents are damaged.
    fn restoration(self) -> &'static str {
        match self {
            FilePurpose::Database => {
                "stop the gateway, restore the file from a backup and start the gateway again"
            }
            FilePurpose::Journal => {
                "stop the gateway while Redis is available, so that Redis has all counts, remove the file and start the \
                 gateway again"
            }
        }
    }
}

/// A file that is open.
#[derive(Debug)]
pub struct HeldFile {
    path: PathBuf,
    purpose: FilePurpose,
    /// For its first bytes. Kept open: see the module.
    file: File,
    watch: Mutex<Watch>,
    trouble: ArcSwapOption<Trouble>,
}

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The reason and the remedy, for operators.
    pub text: String,
    /// Whether the contents of the file may be damaged, so that nothing more may be written to it.
    pub is_damage: bool,
}

impl HeldFile {
    /// Holds the file at `path`, which SQLite has open in WAL mode already.
    ///
    /// # Errors
    /// Where it, or what is beside it, is not there any more.
    pub fn hold(path: &Path, purpose: FilePurpose) -> io::Result<HeldFile> {
        let file = File::open(path)?;
        let found = file.metadata()?;
        let [log, index] = BESIDE.map(|name| FileIdentity::at(&beside(path, name)));
        Ok(HeldFile {
            watch: Mutex::new(Watch {
                opened: [Some(FileIdentity::of(&found)), Some(log?), Some(index?)],
                whole_bytes: found.len(),
                damage: None,
            }),
            path: std::path::absolute(path)?,
            purpose,
            file,
            trouble: ArcSwapOption::empty(),
        })
    }

    /// Whether that is this file.
    pub fn is(&self, other: FileIdentity) -> bool {
        let [database, ..] = self.watch.lock().opened;
        database == Some(other)
    }

    /// Notes that SQLite has closed the file, and may have removed what is beside it.
    pub fn closed(&self) {
        let [_, beside @ ..] = &mut self.watch.lock().opened;
        *beside = Default::default();
    }

    /// Notes that SQLite has opened the path again.
    ///
    /// # Errors
    /// Where that is another file by now, or what is beside it is not there.
    pub fn reopened(&self) -> io::Result<()> {
        if !self.is(FileIdentity::at(&self.path)?) {
            return Err(io::Error::other("another file is in its place"));
        }
        let [log, index] = BESIDE.map(|name| FileIdentity::at(&beside(&self.path, name)));
        let opened = [Some(log?), Some(index?)];
        let [_, beside @ ..] = &mut self.watch.lock().opened;
        *beside = opened;
        Ok(())
    }

    /// Notes damage that SQLite has found, which is for good: what does not need the damaged page would not show it.
    pub fn note_damage(&self, error: String) {
        self.watch.lock().damage = Some((FileFault::Malformed(error), Instant::now()));
    }

    /// Looks at the file; why it cannot be used, if it cannot. A few system calls that do not wait for the disk as a rule; damage that
    /// may pass is looked at again until it has passed or is for good.
    pub fn look(&self) -> Option<Arc<Trouble>> {
        if self.look_once() {
            tracing::warn!(file = %self.path.display(), "the file looks damaged: looking again, because this may pass");
            std::thread::sleep(LOOK_AGAIN_AFTER);
            while self.look_once() {
                std::thread::sleep(LOOK_AGAIN_AFTER);
            }
        }
        self.trouble()
    }

    /// Looks at the file and notes the trouble. Returns whether it is damage that may pass.
    fn look_once(&self) -> bool {
        let found = self.found();
        let (mut watch, now) = (self.watch.lock(), Instant::now());
        let fault = match found {
            Ok(look) => watch.judge(&look, now),
            Err(error) => Some(FileFault::Gone("", error.to_string())),
        };
        let may_pass = watch.may_pass(now);
        drop(watch);
        let before = self.trouble.load_full();
        let trouble = fault.map(|fault| Trouble {
            text: self.text(&fault),
            is_damage: fault.is_damage(),
        });
        if before.as_deref() != trouble.as_ref() {
            self.trouble.store(trouble.map(Arc::new));
        }
        may_pass
    }

    /// The trouble found by the last look, or `None`.
    pub fn trouble(&self) -> Option<Arc<Trouble>> {
        self.trouble.load_full()
    }

    /// Fails if the last look found the file unusable. Makes no system call.
    ///
    /// # Errors
    /// [`StoreError::Failed`] with the reason.
    pub fn require(&self) -> Result<(), StoreError> {
        match &*self.trouble.load() {
            Some(trouble) => Err(StoreError::Failed(trouble.text.clone())),
            None => Ok(()),
        }
    }

    fn found(&self) -> io::Result<Look> {
        let mut header = vec![0; HEADER_BYTES];
        let read = self.file.read_at(&mut header, 0)?;
        header.truncate(read);
        let which =
            |name| FileIdentity::at(&beside(&self.path, name)).map_err(|error| error.to_string());
        let [log, index] = BESIDE.map(which);
        Ok(Look {
            paths: [which(""), log, index],
            bytes: self.file.metadata()?.len(),
            header,
        })
    }

    fn text(&self, fault: &FileFault) -> String {
        let (path, loss) = (self.path.display(), self.purpose.loss());
        let save = format!(
            "Move it back, or, if it is lost, copy /proc/{}/fd/{}, which is the same file, to {path} and restart the gateway",
            std::process::id(),
            self.file.as_raw_fd()
        );
        match fault {
            FileFault::Gone("", reason) => {
                format!("the file {path} is gone ({reason}): {loss}. {save}")
            }
            FileFault::Other("") => format!(
                "{path} is not the file that this gateway has open: {loss}. {save}; to use the new file, restart the gateway"
            ),
            FileFault::Gone(name, _) | FileFault::Other(name) => format!(
                "the file {} was removed or replaced: {loss}. Move it back, or restart the gateway, which writes its contents to \
                 {path} when it ends",
                beside(&self.path, name).display()
            ),
            FileFault::Truncated { bytes, wanted } => format!(
                "{path} was truncated to {bytes} bytes of {wanted}: {loss}. To mend it, {}",
                self.purpose.restoration()
            ),
            FileFault::Overwritten => format!(
                "{path} was overwritten and is not an SQLite database any more: {loss}. To mend it, {}",
                self.purpose.restoration()
            ),
            FileFault::Malformed(error) => format!(
                "{path} has a damaged page ({error}): {loss}. To mend it, {}",
                self.purpose.restoration()
            ),
        }
    }
}

/// Forces the whole log of a database to disk. A checkpoint does so only if there is something to fold: not while a process reads an
/// earlier instant, which a backup does for minutes, nor while another process does the same.
///
/// # Errors
/// Those of the file system.
pub fn sync_log(path: &Path) -> io::Result<()> {
    // SQLite has no locks on the log, which this process would give up with the descriptor.
    File::open(beside(path, "-wal"))?.sync_data()
}

/// The path of the file with this ending beside another: if that is a symbolic link, beside its target, as SQLite does it.
pub fn beside(path: &Path, name: &str) -> PathBuf {
    let target = std::fs::canonicalize(path);
    let mut path = target.unwrap_or_else(|_| path.to_owned()).into_os_string();
    path.push(name);
    path.into()
}

/// A connection to a file, which is held for as long.
pub struct HeldConnection {
    // Dropped first: see the module.
    connection: Connection,
    file: Option<Arc<HeldFile>>,
}

impl HeldConnection {
    /// The connection, and the file that it is to; `None` for a command, which ends before the file would be looked at.
    pub fn new(connection: Connection, file: Option<Arc<HeldFile>>) -> HeldConnection {
        HeldConnection { connection, file }
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        let trouble = self.file.as_ref().and_then(|file| file.look());
        if trouble.is_some_and(|trouble| trouble.is_damage) {
            // The last connection folds the log into the file, which would look whole afterwards.
            let kept = self
                .connection
                .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            if let Err(error) = kept {
                tracing::warn!(%error, "the log of a damaged file is folded into it");
            }
        }
    }
}

impl Deref for HeldConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for HeldConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1_024;

    fn identity(inode: u64) -> FileIdentity {
        FileIdentity { device: 1, inode }
    }

    /// A database of so many bytes whose header has so many pages.
    fn look(bytes: u64, pages: u8) -> Look {
        let mut header = MAGIC.to_vec();
        header.resize(HEADER_BYTES, 0);
        header[PAGE_SIZE_AT] = 4;
        header[PAGES_AT + 3] = pages;
        Look {
            paths: [1, 2, 3].map(|inode| Ok(identity(inode))),
            bytes,
            header,
        }
    }

    fn watch() -> Watch {
        Watch {
            opened: [1, 2, 3].map(|inode| Some(identity(inode))),
            whole_bytes: 10 * PAGE,
            damage: None,
        }
    }

    #[test]
    fn a_file_that_is_moved_away_is_right_again_when_it_is_back() {
        let (mut watch, now) = (watch(), Instant::now());
        let moved = Look {
            paths: [Err("gone".into()), Ok(identity(2)), Ok(identity(3))],
            ..look(10 * PAGE, 10)
        };
        for seconds in 0..3 {
            let fault = watch.judge(&moved, now + Duration::from_secs(seconds));
            assert_eq!(fault, Some(FileFault::Gone("", "gone".into())));
        }
        assert_eq!(watch.judge(&look(10 * PAGE, 10), now), None);
        for (place, name) in [(0, ""), (1, "-wal"), (2, "-shm")] {
            let mut replaced = look(10 * PAGE, 10);
            replaced.paths[place] = Ok(identity(9));
            assert_eq!(watch.judge(&replaced, now), Some(FileFault::Other(name)));
            assert_eq!(watch.judge(&look(10 * PAGE, 10), now), None);
        }
    }

    #[test]
    fn a_file_that_was_shortened_below_its_header_is_damaged_and_for_good_when_it_stays_so() {
        let (bytes, wanted) = (10 * PAGE - 1, 10 * PAGE);
        let (short, whole) = (look(bytes, 10), look(wanted, 10));
        let (mut watch, now) = (watch(), Instant::now());
        let just = now + DAMAGE_LASTS - Duration::from_nanos(1);
        for at in [now, just] {
            let fault = watch.judge(&short, at);
            assert_eq!(fault, Some(FileFault::Truncated { bytes, wanted }));
        }
        // A VACUUM whose last page was on its way.
        assert_eq!(watch.judge(&whole, just), None);
        assert!(watch.judge(&short, now).is_some());
        assert!(watch.judge(&whole, now + DAMAGE_LASTS).is_some());
    }

    #[test]
    fn damage_that_is_seen_for_a_moment_is_forgiven_by_the_same_look() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("touchline.db");
        for name in ["-wal", "-shm"] {
            std::fs::write(beside(&path, name), "").unwrap();
        }
        let database = File::create(&path).unwrap();
        database.write_all_at(&look(0, 4).header, 0).unwrap();
        database.set_len(4 * PAGE).unwrap();
        let held = HeldFile::hold(&path, FilePurpose::Database).unwrap();
        database.set_len(3 * PAGE).unwrap();
        std::thread::scope(|scope| {
            let looked = scope.spawn(|| held.look());
            while held.trouble().is_none() {
                std::thread::yield_now();
            }
            database.set_len(4 * PAGE).unwrap();
            assert_eq!(looked.join().unwrap(), None);
        });
    }

    #[test]
    fn a_vacuum_and_a_checkpoint_that_is_under_way_are_no_damage() {
        let (mut watch, now) = (watch(), Instant::now());
        // The header has 12 pages, the file ten still.
        assert_eq!(watch.judge(&look(10 * PAGE, 12), now), None);
        assert_eq!(watch.judge(&look(12 * PAGE, 12), now), None);
        assert_eq!(watch.judge(&look(3 * PAGE, 3), now), None);
        assert_eq!(watch.judge(&look(4 * PAGE, 4), now), None);
    }

    #[test]
    fn what_does_not_begin_as_a_database_is_none() {
        let now = Instant::now();
        for (bytes, header) in [(0, Vec::new()), (50, MAGIC[..10].to_vec())] {
            let empty = Look {
                header,
                ..look(bytes, 0)
            };
            let fault = watch().judge(&empty, now);
            assert!(
                matches!(fault, Some(FileFault::Truncated { .. })),
                "{fault:?}"
            );
        }
        let other = Look {
            header: vec![b'x'; HEADER_BYTES],
            ..look(10 * PAGE, 0)
        };
        assert_eq!(watch().judge(&other, now), Some(FileFault::Overwritten));
    }

    #[test]
    fn pages_of_65_536_bytes_are_counted_too() {
        let mut large = look(65_536, 2);
        large.header[PAGE_SIZE_AT] = 0;
        large.header[PAGE_SIZE_AT + 1] = 1;
        let mut watch = watch();
        watch.whole_bytes = 131_072;
        assert!(watch.judge(&large, Instant::now()).is_some());
    }
}
