//! The aims, beside the measured results.

use std::fmt::Write as _;

use super::figures::Spread;
use super::kind::Kind;
use super::memory::{BUSY, Memory};
use super::report::Report;
use super::start;

/// Compared contenders, and the most that the first may take of the other's CPU a request, as a multiple.
const RATIOS: [(Kind, Kind, f64); 11] = [
    (Kind::Redis, Kind::NginxLua, 0.65),
    (Kind::Embedded, Kind::Pingora, 1.0),
    (Kind::Redis, Kind::Pingora, 1.0),
    (Kind::RedisPgo, Kind::NginxLua, 0.65),
    (Kind::EmbeddedPgo, Kind::Pingora, 1.0),
    (Kind::RedisPgo, Kind::Pingora, 1.0),
    (Kind::Unknown, Kind::Pingora, 0.4),
    (Kind::Forbidden, Kind::Pingora, 0.5),
    (Kind::Exhausted, Kind::Pingora, 0.5),
    (Kind::RedisTls2, Kind::NginxTls2, 1.0),
    (Kind::Permitted, Kind::Pingora, 0.85),
];
/// Refusals that do not reach Redis: its work for all the other gateways meanwhile stays below this, in µs a request; the
/// cheapest charge, of a key called so often that many share one call, takes 4.
const WITHOUT_REDIS: [Kind; 2] = [Kind::Unknown, Kind::Exhausted];
const NO_CALL_US: f64 = 1.0;
const ADDED_P50_MS: f64 = 0.2;
const ADDED_P99_MS: f64 = 0.5;
/// A machine whose own p99 varies more than that within a round has no use for the p99 of that round.
const CALM_MS: f64 = 0.1;
/// CPU a request at the fixed rate, as a multiple of bare pingora: wake-ups and background work are shared by few requests then.
const LIGHT_RATIO: f64 = 1.3;
const BUSY_MIB: f64 = 48.0;
/// Idle connections in clear; `make memory` measures those over TLS.
const IDLE_KIB: f64 = 10.0;
const START_MS: f64 = 200.0;

/// One line for each aim, met or missed by the median.
pub fn table(report: &Report) -> String {
    let mut table = Table("| Aim | Median (quartiles) | |\n|---|---|---|\n".to_owned());
    for (one, other, most) in RATIOS {
        if !report.has(one) {
            continue;
        }
        let ratio = report.ratio(one, other);
        let aim = format!(
            "{}: CPU a request at most {most} × {}",
            one.name(),
            other.name()
        );
        table.line(&aim, &format!("{ratio:.2}"), ratio.median, most);
    }
    for kind in WITHOUT_REDIS {
        let redis = report.spread(kind, |found| found.redis_cpu_us);
        let aim = format!("{}: without Redis", kind.name());
        table.line(
            &aim,
            &format!("{redis:.2} µs of Redis"),
            redis.median,
            NO_CALL_US,
        );
    }
    for kind in [Kind::Embedded, Kind::Redis] {
        let ratio = report.timed_ratio(kind, Kind::Pingora);
        let aim = format!(
            "{} at 2,000 requests/s: CPU a request at most {LIGHT_RATIO} × {}",
            kind.name(),
            Kind::Pingora.name()
        );
        table.line(&aim, &format!("{ratio:.2}"), ratio.median, LIGHT_RATIO);
    }
    for kind in [Kind::Redis, Kind::RedisPgo] {
        if !report.has(kind) {
            continue;
        }
        let added = report.added(kind, |found| found.p50_ms);
        let aim = format!(
            "{} adds at most {ADDED_P50_MS} ms to the upstream's own p50 at 2,000 requests/s",
            kind.name()
        );
        table.line(&aim, &format!("{added:.2} ms"), added.median, ADDED_P50_MS);
        let (calm, all) = report.calm_rounds(CALM_MS);
        if calm.is_empty() {
            continue;
        }
        let added = report.added_p99_in(kind, &calm);
        let aim = format!(
            "{} adds at most {ADDED_P99_MS} ms to its p99 (in the {} of {all} rounds in which the quartiles of the upstream's own p99 lay within {CALM_MS} ms)",
            kind.name(),
            calm.len()
        );
        table.line(&aim, &format!("{added:.2} ms"), added.median, ADDED_P99_MS);
    }
    for kind in [
        Kind::Embedded,
        Kind::Redis,
        Kind::EmbeddedPgo,
        Kind::RedisPgo,
    ] {
        memory(&mut table, report, kind);
    }
    for (kind, took) in &report.starts {
        let Spread { median, .. } = took;
        let name = kind.name();
        if *kind != Kind::Pingora {
            let aim = format!(
                "{name}: first answer within {START_MS} ms of the start, {} keys",
                start::KEYS
            );
            table.line(&aim, &format!("{took:.0} ms"), *median, START_MS);
        }
    }
    table.0
}

fn memory(table: &mut Table, report: &Report, kind: Kind) {
    let found: Option<&Memory> = report.memory.iter().find(|one| one.kind == kind);
    let Some(found) = found else { return };
    let aim = format!(
        "{}: at most {BUSY_MIB} MiB with {BUSY} busy connections",
        kind.name()
    );
    table.line(
        &aim,
        &format!("{:.1} MiB", found.busy),
        found.busy,
        BUSY_MIB,
    );
    let (Some((count, resident)), Some(each)) = (found.idle, found.idle_kib()) else {
        return;
    };
    let aim = format!(
        "{}: bounded with {count} idle connections, at most {IDLE_KIB} KiB each",
        kind.name()
    );
    let figure = format!("{each:.1} KiB each, {resident:.0} MiB in all");
    table.line(&aim, &figure, each, IDLE_KIB);
}

struct Table(String);

impl Table {
    fn line(&mut self, aim: &str, figure: &str, found: f64, most: f64) {
        // Where the rounded figure would contradict the verdict.
        let verdict = match (found <= most, format!("{found:.2}") == format!("{most:.2}")) {
            (true, _) => "met".to_owned(),
            (false, false) => "missed".to_owned(),
            (false, true) => format!("missed: {found:.4}"),
        };
        let _ = writeln!(self.0, "| {aim} | {figure} | {verdict} |");
    }
}
