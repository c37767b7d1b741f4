//! The identity of a gateway in the register across its processes: a seat, which is a file beside the replica of the key table.
//!
//! A killed process does not sign off. The next process that starts from its replica serves the same keys, so it takes over the
//! entry in the register; otherwise an entry without a process would remain. A seat is a file beside the replica
//! (`keys.db.seat-0`, …) with a random id. Its process holds the file's lock, which the kernel releases when the process ends
//! for any reason. Two processes on one replica (an upgrade) have a seat each.
//!
//! Invariant: no two living processes of this machine have the same seat. Not here: a copy of the file on another machine, which
//! the [presence](super::presence) of a gateway notices.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::policy::api_key::os_entropy;

/// The most processes that run from one replica at the same time: two during an upgrade, and some to spare.
const SEATS_MAX: u32 = 16;
/// Hexadecimal digits of an id: 96 bits.
const ID_LENGTH: usize = 24;

/// A seat, taken for as long as this value lives.
#[derive(Debug)]
pub struct Seat {
    id: String,
    /// The locked file, or `None` for a seat that ends with the process.
    file: Option<File>,
}

impl Seat {
    /// Takes the first vacant seat beside a replica. Without a replica, or if none can be taken: a seat that ends with the
    /// process.
    pub fn take(replica: Option<&Path>) -> Seat {
        let unfiled = || Seat {
            id: drawn(),
            file: None,
        };
        let Some(replica) = replica else {
            return unfiled();
        };
        for number in 0..SEATS_MAX {
            match locked(&path(replica, number), true).and_then(|file| file.map(named).transpose())
            {
                Ok(Some(seat)) => return seat,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, replica = %replica.display(), "no seat can be taken beside the replica: if this process is killed, strike it off the register with `touchline store forget`");
                    return unfiled();
                }
            }
        }
        tracing::warn!(seats = SEATS_MAX, replica = %replica.display(), "every seat beside the replica is taken: if this process is killed, strike it off the register with `touchline store forget`");
        unfiled()
    }

    /// The seats beside a replica whose processes have ended. While the result is held, none of them can be taken.
    ///
    /// # Errors
    /// If one of the files cannot be read or locked.
    pub fn vacant(replica: &Path) -> io::Result<Vec<Seat>> {
        let mut vacant = Vec::new();
        for number in 0..SEATS_MAX {
            match locked(&path(replica, number), false) {
                Ok(Some(file)) => vacant.push(named(file)?),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(vacant)
    }

    /// The name of the seat in the register.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Gives the seat another id: another machine has a copy of the file.
    pub fn rename(&mut self) {
        self.id = drawn();
        if let Some(file) = &mut self.file
            && let Err(error) = write(file, &self.id)
        {
            tracing::warn!(%error, "the new id of this gateway's seat is not written");
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

/// The seat of a locked file, which gets an id if it has none.
fn named(mut file: File) -> io::Result<Seat> {
    let mut text = Vec::new();
    Read::by_ref(&mut file)
        .take(2 * ID_LENGTH as u64)
        .read_to_end(&mut text)?;
    let mut id = String::from_utf8_lossy(&text).trim().to_owned();
    if id.len() != ID_LENGTH || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        id = drawn();
        write(&mut file, &id)?;
    }
    Ok(Seat {
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

fn drawn() -> String {
    let mut random = [0; ID_LENGTH / 2];
    os_entropy(&mut random);
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(seats: &[Seat]) -> Vec<&str> {
        seats.iter().map(Seat::id).collect()
    }

    #[test]
    fn a_seat_is_one_process_s_at_a_time_and_the_next_one_finds_it_again() {
        let directory = tempfile::tempdir().unwrap();
        let replica = directory.path().join("keys.db");
        let first = Seat::take(Some(&replica));
        let second = Seat::take(Some(&replica));
        let (one, two) = (first.id().to_owned(), second.id().to_owned());
        assert_ne!(one, two);
        assert_eq!(ids(&Seat::vacant(&replica).unwrap()), [""; 0]);
        drop(first);
        let vacant = Seat::vacant(&replica).unwrap();
        assert_eq!(ids(&vacant), [&one]);
        // A seat that is being examined cannot be taken.
        let third = Seat::take(Some(&replica));
        assert!(third.id() != one && third.id() != two);
        drop(vacant);
        assert_eq!(Seat::take(Some(&replica)).id(), one);
    }

    #[test]
    fn a_seat_that_was_copied_gets_another_id_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let replica = directory.path().join("keys.db");
        let mut seat = Seat::take(Some(&replica));
        let copied = seat.id().to_owned();
        seat.rename();
        let renamed = seat.id().to_owned();
        assert_ne!(renamed, copied);
        drop(seat);
        assert_eq!(Seat::take(Some(&replica)).id(), renamed);
    }

    #[test]
    fn a_file_without_an_id_gets_one_and_without_a_replica_the_seat_ends_with_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let replica = directory.path().join("keys.db");
        for text in [
            "",
            "no id",
            &"x".repeat(ID_LENGTH),
            &"a".repeat(5 * ID_LENGTH),
        ] {
            std::fs::write(path(&replica, 0), text).unwrap();
            let id = Seat::take(Some(&replica)).id().to_owned();
            assert_eq!(id.len(), ID_LENGTH);
            assert_eq!(Seat::take(Some(&replica)).id(), id, "{text}");
        }
        assert_ne!(Seat::take(None).id(), Seat::take(None).id());
        let nowhere = directory.path().join("missing/keys.db");
        assert_ne!(Seat::take(Some(&nowhere)).id(), Seat::take(None).id());
    }
}
