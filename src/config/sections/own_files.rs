//! The files that a gateway writes: each has one setting, and none is the configuration.

use std::path::{Path, PathBuf};

use super::listen::Listen;
use super::store::StoreConfig;
use crate::config::check::Check;
use crate::config::outline;
use crate::config::outside::{Purpose, place_of};
use crate::config::places::SourcePositions;
use crate::telemetry::access_log::Destination;

/// Notes a setting with the file of another one: each use of it would destroy what the other has written.
pub(super) fn note_shared(
    check: &mut Check<'_>,
    places: &SourcePositions,
    listen: &Listen,
    store: &StoreConfig,
    access_log: &Destination,
) {
    let files = of_store(store).into_iter();
    let files = match check.surroundings.purpose {
        Purpose::Serve | Purpose::Check | Purpose::Offline => {
            files.chain(of_gateway(listen, access_log)).collect()
        }
        Purpose::Commands => files.collect::<Vec<_>>(),
    };
    let place = |file: &Path| place_of(file, check.surroundings.purpose);
    let own = check.surroundings.file.map(place);
    let mut problems = Vec::new();
    let mut taken: Vec<(&str, PathBuf)> = Vec::new();
    for (setting, file) in files {
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

fn of_store(store: &StoreConfig) -> Vec<(&'static str, &Path)> {
    match store {
        StoreConfig::Embedded(embedded) => vec![("store.embedded.path", &embedded.path)],
        StoreConfig::Redis(redis) => {
            let replica = redis.replica.as_deref();
            let replica = replica.map(|file| ("store.redis.replica", file));
            let outage = redis.outage.as_ref();
            let journal = outage.map(|outage| ("store.redis.journal", &*outage.journal));
            replica.into_iter().chain(journal).collect()
        }
    }
}

fn of_gateway<'c>(
    listen: &'c Listen,
    access_log: &'c Destination,
) -> impl Iterator<Item = (&'static str, &'c Path)> {
    let upgrade = listen.upgrade.as_deref();
    let upgrade = upgrade.map(|file| ("listen.upgrade", file));
    let log = match access_log {
        Destination::File(file) => Some(("logging.access_log", &**file)),
        Destination::Stdout | Destination::Stderr | Destination::Off => None,
    };
    upgrade.into_iter().chain(log)
}
