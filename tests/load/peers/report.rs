//! Medians over the rounds, with their spread, as a table, CSV and a plot.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::contender::Kind;
use super::load::Steady;

/// What one round found of one contender.
pub struct Figures {
    /// At saturation.
    pub requests_per_second: f64,
    /// At saturation.
    pub saturated_p99: Duration,
    /// User and system time of the contender for a request, in microseconds.
    pub cpu_us: f64,
    /// The same of Redis.
    pub redis_cpu_us: f64,
    /// Resident memory after saturation.
    pub resident_bytes: u64,
    /// At the fixed rate.
    pub steady: Steady,
}

/// All rounds.
pub struct Report {
    seconds: Duration,
    rounds: u64,
    found: BTreeMap<Kind, Vec<Figures>>,
}

/// A column: its title, its name in the CSV file, its value, and its decimals.
type Column = (&'static str, &'static str, fn(&Figures) -> f64, usize);

const COLUMNS: [Column; 8] = [
    ("CPU µs/request", "cpu_us", |found| found.cpu_us, 1),
    ("of Redis", "redis_cpu_us", |found| found.redis_cpu_us, 1),
    (
        "requests/s",
        "requests_per_second",
        |found| found.requests_per_second,
        0,
    ),
    (
        "p99 ms",
        "saturated_p99_ms",
        |found| millis(found.saturated_p99),
        2,
    ),
    (
        "p50 ms at 2,000/s",
        "steady_p50_ms",
        |found| millis(found.steady.p50),
        2,
    ),
    (
        "p99 ms",
        "steady_p99_ms",
        |found| millis(found.steady.p99),
        2,
    ),
    (
        "p99.9 ms",
        "steady_p999_ms",
        |found| millis(found.steady.p999),
        2,
    ),
    (
        "RSS MiB",
        "rss_mib",
        |found| found.resident_bytes as f64 / f64::from(1 << 20),
        1,
    ),
];

/// What the goals compare: the one at most so many times the other in CPU a request.
const GOALS: [(Kind, Kind, f64); 4] = [
    (Kind::Redis, Kind::NginxLua, 0.65),
    (Kind::Embedded, Kind::Pingora, 1.25),
    (Kind::Redis, Kind::Pingora, 1.45),
    (Kind::Refused, Kind::Redis, 0.6),
];

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Report {
    /// Nothing yet.
    pub fn new(seconds: Duration, rounds: u64) -> Report {
        Report {
            seconds,
            rounds,
            found: BTreeMap::new(),
        }
    }

    /// One more round of a contender.
    pub fn add(&mut self, kind: Kind, figures: Figures) {
        self.found.entry(kind).or_default().push(figures);
    }

    fn median_of(&self, kind: Kind, value: fn(&Figures) -> f64) -> f64 {
        median(self.found[&kind].iter().map(value).collect())
    }

    /// The CPU of one contender in that of another, from the medians.
    fn ratio(&self, one: Kind, other: Kind) -> f64 {
        self.median_of(one, |found| found.cpu_us) / self.median_of(other, |found| found.cpu_us)
    }

    /// Markdown: medians, the spread of the CPU, and the goals.
    pub fn table(&self) -> String {
        let mut text = format!(
            "Medians of {} rounds of {} s; the spread is (largest - smallest) / median of the CPU.\n\n",
            self.rounds,
            self.seconds.as_secs()
        );
        let titles: Vec<&str> = COLUMNS.iter().map(|column| column.0).collect();
        let _ = writeln!(text, "| Contender | {} | spread |", titles.join(" | "));
        let _ = writeln!(text, "|---|{}---:|", "---:|".repeat(COLUMNS.len()));
        for (kind, rounds) in &self.found {
            let _ = write!(text, "| {} |", kind.name());
            for (_, _, value, decimals) in COLUMNS {
                let _ = write!(text, " {:.*} |", decimals, self.median_of(*kind, value));
            }
            let cpu: Vec<f64> = rounds.iter().map(|found| found.cpu_us).collect();
            let largest = cpu.iter().copied().fold(f64::MIN, f64::max);
            let smallest = cpu.iter().copied().fold(f64::MAX, f64::min);
            let _ = writeln!(
                text,
                " {:.0} % |",
                (largest - smallest) / median(cpu) * 100.0
            );
        }
        text.push('\n');
        for (one, other, goal) in GOALS {
            let ratio = self.ratio(one, other);
            let verdict = if ratio <= goal { "met" } else { "missed" };
            let _ = writeln!(
                text,
                "- {}: {ratio:.2} × {} in CPU a request (goal: at most {goal}, {verdict})",
                one.name(),
                other.name()
            );
        }
        let added = self.median_of(Kind::Redis, |found| millis(found.steady.p99))
            - self.median_of(Kind::Direct, |found| millis(found.steady.p99));
        let verdict = if added <= 0.5 { "met" } else { "missed" };
        let _ = writeln!(
            text,
            "- {}: {added:.2} ms added p99 at 2,000 requests/s (goal: at most 0.5, {verdict})",
            Kind::Redis.name()
        );
        text
    }

    /// Every round as CSV, the medians of the CPU as a plot.
    pub fn write(&self, directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        let names: Vec<&str> = COLUMNS.iter().map(|column| column.1).collect();
        let mut rows = format!("contender,round,{}\n", names.join(","));
        for (kind, rounds) in &self.found {
            for (number, found) in rounds.iter().enumerate() {
                let _ = write!(rows, "\"{}\",{}", kind.name(), number + 1);
                for (_, _, value, _) in COLUMNS {
                    let _ = write!(rows, ",{:.3}", value(found));
                }
                rows.push('\n');
            }
        }
        std::fs::write(directory.join("peers.csv"), rows).unwrap();
        std::fs::write(directory.join("peers.svg"), self.plot()).unwrap();
        std::fs::write(directory.join("peers.md"), self.table()).unwrap();
    }

    fn plot(&self) -> String {
        const ROW: usize = 26;
        const LEFT: usize = 250;
        const WIDTH: f64 = 420.0;
        let bars: Vec<(Kind, f64)> = self
            .found
            .keys()
            .map(|kind| (*kind, self.median_of(*kind, |found| found.cpu_us)))
            .collect();
        let most = bars.iter().map(|bar| bar.1).fold(1.0, f64::max);
        let height = bars.len() * ROW + 40;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" font-family=\"sans-serif\" font-size=\"13\">\
             <rect width=\"760\" height=\"{height}\" fill=\"#fff\"/><text x=\"10\" y=\"20\">CPU µs per request, without that of Redis</text>\n"
        );
        for (number, (kind, cpu)) in bars.iter().enumerate() {
            let top = 34 + number * ROW;
            let width = cpu / most * WIDTH;
            let colour = if kind.name().starts_with("Touchline") {
                "#0a7d4f"
            } else {
                "#8a94a3"
            };
            let _ = writeln!(
                svg,
                "<text x=\"10\" y=\"{}\">{}</text><rect x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"18\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{cpu:.1}</text>",
                top + 14,
                kind.name(),
                LEFT as f64 + width + 6.0,
                top + 14
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}
