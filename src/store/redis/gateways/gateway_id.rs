//! The identity of a gateway in the register across its processes: an id in a file beside the replica of the key table.
//!
//! A killed process does not sign off. The next process that starts from its replica serves the same keys, so it takes over the
//! entry in the register; otherwise an entry without a process would remain. The id is random, in a file beside
//! the replica (`keys.db.seat-0`, …). Its process holds the file's lock, which the kernel releases when the process ends
//! for any reason. Two processes on one replica (an upgrade) have an id each.
//!
//! Invariant: no two living processes of this machine have the same id. Not here: a copy of the file on another machine, which
//! the [presence](super::presence) of a gateway notices.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::store::redis::names::drawn;

/// The most processes that run from one replica at the same time: two during an upgrade, and some to spare.
const IDS_MAX: u32 = 16;
/// Hexadecimal digits of an id: 96 bits.
const ID_LENGTH: usize = 24;

/// The id of a gateway, held for as long as this value lives.
#[derive(Debug)]
pub struct GatewayId {
    id: String,
    /// The locked file, or `None` for an id that ends with the process.
    file: Option<File>,
}

impl GatewayId {
    /// Takes the first id beside a replica that no process holds. Without a replica, or if none can be taken: an id that ends
    /// with the process.
    pub fn take(replica: Option<&Path>) -> GatewayId {
        let unfiled = || GatewayId {
            id: drawn(),
            file: None,
        };
        let Some(replica) = replica else {
            return unfiled();
        };
        for number in 0..IDS_MAX {
            match locked(&path(replica, number), true).and_then(|file| file.map(named).transpose())
            {
                Ok(Some(id)) => return id,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, replica = %replica.display(), "no gateway id can be taken beside the replica: if this process is killed, strike it off the register with `touchline store forget`");
                    return unfiled();
                }
            }
        }
        tracing::warn!(ids = IDS_MAX, replica = %replica.display(), "every gateway id beside the replica is taken: if this process is killed, strike it off the register with `touchline store forget`");
        unfiled()
    }

    /// The ids beside a replica whose processes have ended. While the result is held, none of them can be taken.
    ///
    /// # Errors
    /// If one of the files cannot be read or locked.
    pub fn vacant(replica: &Path) -> io::Result<Vec<GatewayId>> {
        let mut vacant = Vec::new();
        for number in 0..IDS_MAX {
            match locked(&path(replica, number), false) {
                Ok(Some(file)) => vacant.push(named(file)?),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(vacant)
    }

    /// The id in the register.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Replaces the id: another machine has a copy of the file.
    pub fn rename(&mut self) {
        self.id = drawn();
        if let Some(file) = &mut self.file
            && let Err(error) = write(file, &self.id)
        {
            tracing::warn!(%error, "the new id of this gateway is not written");
            self.file = None;
        }
    }
}

fn path(replica: &Path, number: u32) -> PathBuf {
    let mut path = replica.as_os_str().to_owned();
    path.push(format!(".seat-{number}"));
    path.into()
}

/// The locked file, or `None` if another process, or another handle of this one, has the lock.
fn locked(path: &Path, create: bool) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The id in a locked file, which gets one if it has none.
fn named(mut file: File) -> io::Result<GatewayId> {
    let mut text = Vec::new();
    Read::by_ref(&mut file)
        .take(2 * ID_LENGTH as u64)
        .read_to_end(&mut text)?;
    let mut id = String::from_utf8_lossy(&text).trim().to_owned();
    if id.len() != ID_LENGTH || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        id = drawn();
        write(&mut file, &id)?;
    }
    Ok(GatewayId {
        id,
        file: Some(file),
    })
}

fn write(file: &mut File, id: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(id.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(held: &[GatewayId]) -> Vec<&str> {
        held.iter().map(GatewayId::id).collect()
    }

    #[test]
    fn an_id_is_one_process_s_at_a_time_and_the_next_one_finds_it_again() {
        let directory = tempfile::tempdir().unwrap();
        let replica = directory.path().join("keys.db");
        let first = GatewayId::take(Some(&replica));
        let second = GatewayId::take(Some(&replica));
        let (one, two) = (first.id().to_owned(), second.id().to_owned());
        assert_ne!(one, two);
        assert_eq!(ids(&GatewayId::vacant(&replica).unwrap()), [""; 0]);
        drop(first);
        let vacant = GatewayId::vacant(&replica).unwrap();
        assert_eq!(ids(&vacant), [&one]);
        // An id that is being examined cannot be taken.
        let third = GatewayId::take(Some(&replica));
        assert!(third.id() != one && third.id() != two);
        drop(vacant);
        assert_eq!(GatewayId::take(Some(&replica)).id(), one);
    }

    #[test]
    fn a_copied_id_is_replaced_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let replica = directory.path().join("keys.db");
        let mut id = GatewayId::take(Some(&replica));
        let copied = id.id().to_owned();
        id.rename();
        let renamed = id.id().to_owned();
        assert_ne!(renamed, copied);
        drop(id);
        assert_eq!(GatewayId::take(Some(&replica)).id(), renamed);
    }

    #[test]
    fn a_file_without_an_id_gets_one_and_without_a_replica_the_id_ends_with_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let replica = directory.path().join("keys.db");
        for text in [
            "",
            "no id",
            &"x".repeat(ID_LENGTH),
            &"a".repeat(5 * ID_LENGTH),
        ] {
            std::fs::write(path(&replica, 0), text).unwrap();
            let id = GatewayId::take(Some(&replica)).id().to_owned();
            assert_eq!(id.len(), ID_LENGTH);
            assert_eq!(GatewayId::take(Some(&replica)).id(), id, "{text}");
        }
        assert_ne!(GatewayId::take(None).id(), GatewayId::take(None).id());
        let nowhere = directory.path().join("missing/keys.db");
        assert_ne!(
            GatewayId::take(Some(&nowhere)).id(),
            GatewayId::take(None).id()
        );
    }
}
