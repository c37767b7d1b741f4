//! The room on the disk of a store's file, for `touchline store status`. A gateway finds out by writing; this only asks the file system,
//! so quotas of a user and limits of a process are not known here.

use std::path::Path;

use rustix::fs::statvfs;

/// The room that a file needs to be usable: below it, a few bytes may still fit into what is left of its log.
pub const ROOM_BYTES: usize = 64 << 10;

/// Why a file cannot be written, with the remedy, if its disk is full; `None` also if the file system does not report its room.
pub fn full_disk(file: &Path) -> Option<String> {
    let disk = statvfs(file).ok().filter(|disk| disk.f_blocks > 0)?;
    // What is reserved for root is no room for a gateway.
    judged(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn judged(free_bytes: u64) -> Option<String> {
    (free_bytes < ROOM_BYTES as u64)
        .then(|| format!("its disk is full ({free_bytes} bytes are free); make room on the disk"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_if_it_has_less_room_than_a_journal_needs() {
        assert_eq!(judged(ROOM_BYTES as u64), None);
        assert_eq!(
            judged(ROOM_BYTES as u64 - 1).as_deref(),
            Some("its disk is full (65535 bytes are free); make room on the disk")
        );
        assert!(judged(0).is_some());
        // A file system of the kernel has no room and needs none.
        assert_eq!(full_disk(Path::new("/proc/version")), None);
        assert_eq!(full_disk(Path::new("/none")), None);
    }
}
