//! The files that a gateway writes: each has one setting, and none is the configuration or a directory.

use std::path::{Path, PathBuf};

use super::listen::Listen;
use super::store::StoreConfig;
use crate::config::check::Check;
use crate::config::outline;
use crate::config::outside::{Purpose, place_of};
use crate::config::places::SourcePositions;
use crate::telemetry::access_log::Destination;

/// Notes a setting with the file of another one, because each use of it would destroy what the other has written, and a setting that
/// names a directory.
pub(super) fn note_unusable(
    check: &mut Check<'_>,
    places: &SourcePositions,
    listen: &Listen,
    store: &StoreConfig,
    access_log: &Destination,
) {
    let (embedded, redis) = match store {
        StoreConfig::Embedded(embedded) => (Some(&*embedded.path), None),
        StoreConfig::Redis(redis) => (None, Some(redis)),
    };
    let outage = redis.and_then(|redis| redis.outage.as_ref());
    let log = match access_log {
        Destination::File(file) => Some(&**file),
        Destination::Stdout | Destination::Stderr | Destination::Off => None,
    };
    let of_store = [
        ("store.embedded.path", embedded),
        (
            "store.redis.replica",
            redis.and_then(|redis| redis.replica.as_deref()),
        ),
        ("store.redis.journal", outage.map(|outage| &*outage.journal)),
    ];
    let of_gateway = [
        ("listen.upgrade", listen.upgrade.as_deref()),
        ("logging.access_log", log),
    ];
    let is_command = check.surroundings.purpose == Purpose::Commands;
    let of_gateway = of_gateway.into_iter().filter(|_| !is_command);
    let files = of_store.into_iter().chain(of_gateway);
    let files = files.filter_map(|(setting, file)| Some((setting, file?)));
    let place = |file: &Path| place_of(file, check.surroundings.purpose);
    let own = check.surroundings.file.map(place);
    let mut problems = Vec::new();
    let mut taken: Vec<(&str, PathBuf)> = Vec::new();
    for (setting, file) in files {
        // Commands work beside a gateway whose journal cannot be written.
        let is_used = !is_command || setting == "store.embedded.path";
        if is_used && check.looks_outside() && file.is_dir() {
            let at = outline::Path::written(setting);
            check.wrong(&at, "this is a directory", "write the name of a file in it");
            continue;
        }
        let place = place(file);
        if own.as_ref() == Some(&place) {
            problems.push((setting, "this is the configuration file itself".to_owned()));
        }
        if let Some((other, _)) = taken.iter().find(|(_, taken)| *taken == place) {
            let is_default = |setting| !places.of(setting).written;
            // Two defaults differ, so one of the two is written.
            let (wrong, other) = match is_default(setting) {
                true => (*other, setting),
                false => (setting, *other),
            };
            let at = match places.of(other) {
                position if position.written => format!("line {}", position.line),
                _ => "by default".to_owned(),
            };
            problems.push((wrong, format!("{other} has the same file ({at})")));
        }
        taken.push((setting, place));
    }
    for (setting, message) in problems {
        let at = outline::Path::written(setting);
        check.wrong(&at, message, "write a file of its own");
    }
}
