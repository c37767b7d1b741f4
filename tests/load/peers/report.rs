//! The results of the rounds, as Markdown, CSV and plots; and where these are stored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use super::closed::Slice;
use super::figures::Spread;
use super::kind::Kind;
use super::memory::Memory;
use super::open::Latency;
use super::plot::{Bar, Plot, Whose};
use super::{Plan, aims, machine};

/// All rounds.
pub struct Report {
    plan: Plan,
    slices: BTreeMap<Kind, BTreeMap<u64, Slice>>,
    timed: BTreeMap<Kind, Vec<(u64, Latency, Latency)>>,
    /// With many connections.
    pub memory: Vec<Memory>,
    /// Milliseconds to the first answer.
    pub starts: Vec<(Kind, Spread)>,
}

impl Report {
    /// A report without results.
    pub fn new(plan: Plan) -> Report {
        Report {
            plan,
            slices: BTreeMap::new(),
            timed: BTreeMap::new(),
            memory: Vec::new(),
            starts: Vec::new(),
        }
    }

    /// A slice at saturation.
    pub fn saturated(&mut self, round: u64, kind: Kind, slice: Slice) {
        self.slices.entry(kind).or_default().insert(round, slice);
    }

    /// A slice at the fixed rate, with the upstream's own beside it.
    pub fn timed(&mut self, round: u64, kind: Kind, direct: Latency, one: Latency) {
        let all = self.timed.entry(kind).or_default();
        all.push((round, direct, one));
    }

    /// Whether the contender took part.
    pub fn has(&self, kind: Kind) -> bool {
        self.slices.contains_key(&kind)
    }

    /// A figure of a contender over all its slices.
    pub fn spread(&self, kind: Kind, value: fn(&Slice) -> f64) -> Spread {
        Spread::of(self.slices[&kind].values().map(value))
    }

    /// The CPU of one contender as a multiple of another's, within each round.
    pub fn ratio(&self, one: Kind, other: Kind) -> Spread {
        let others = &self.slices[&other];
        let pairs = self.slices[&one].iter().filter_map(|(round, slice)| {
            let other = others.get(round)?;
            Some(slice.cpu_us / other.cpu_us)
        });
        Spread::of(pairs)
    }

    /// The rounds in which the quartiles of the upstream's own p99 lay within `most_ms`, and the number of all rounds with latencies.
    pub fn calm_rounds(&self, most_ms: f64) -> (BTreeSet<u64>, usize) {
        let mut own: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (round, direct, _) in self.timed.values().flatten() {
            own.entry(*round).or_default().push(direct.p99_ms);
        }
        let all = own.len();
        let calm = own.into_iter().filter_map(|(round, own)| {
            let own = Spread::of(own);
            (own.high - own.low <= most_ms).then_some(round)
        });
        (calm.collect(), all)
    }

    /// The p99 that a contender adds to the upstream's own in some rounds.
    pub fn added_p99_in(&self, kind: Kind, rounds: &BTreeSet<u64>) -> Spread {
        let pairs = self.timed[&kind].iter();
        let pairs = pairs.filter(|(round, _, _)| rounds.contains(round));
        Spread::of(pairs.map(|(_, direct, one)| one.p99_ms - direct.p99_ms))
    }

    /// The latency that a contender adds to the upstream's own, slice by slice.
    pub fn added(&self, kind: Kind, value: fn(&Latency) -> f64) -> Spread {
        let pairs = self.timed[&kind].iter();
        Spread::of(pairs.map(|(_, direct, one)| value(one) - value(direct)))
    }

    /// The CPU of one contender at the fixed rate as a multiple of another's, within each round.
    pub fn timed_ratio(&self, one: Kind, other: Kind) -> Spread {
        let others: BTreeMap<u64, f64> = self.timed[&other]
            .iter()
            .map(|(round, _, found)| (*round, found.cpu_us))
            .collect();
        let pairs = self.timed[&one].iter().filter_map(|(round, _, found)| {
            let other = others.get(round)?;
            Some(found.cpu_us / other)
        });
        Spread::of(pairs)
    }

    fn latency(&self, kind: Kind, value: fn(&Latency) -> f64) -> Spread {
        match kind {
            Kind::Direct => {
                let all = self.timed.values().flatten();
                Spread::of(all.map(|(_, direct, _)| value(direct)))
            }
            kind => Spread::of(self.timed[&kind].iter().map(|(_, _, one)| value(one))),
        }
    }

    /// Prints the report and stores it.
    pub fn report(&self) {
        let markdown = self.markdown();
        println!("{markdown}");
        let files = [
            ("peers.csv", self.rounds_csv()),
            ("latency.csv", self.latency_csv()),
            ("peers.svg", self.cpu_plot()),
            ("latency.svg", self.latency_plot()),
        ];
        keep("bench", &markdown, &files);
    }

    fn markdown(&self) -> String {
        let mut text = format!(
            "{}\n{} rounds of slices of {} ms at saturation over {} connections; median (first to third quartile of them).\n\n",
            machine::described(&[("nginx", "-v"), ("haproxy", "-v"), ("redis-server", "-v")]),
            self.plan.rounds,
            self.plan.slice.as_millis(),
            super::CONNECTIONS,
        );
        text.push_str(&aims::table(self));
        text.push_str("\n![CPU a request](../tests/load/plots/peers.svg)\n\n");
        self.saturation_table(&mut text);
        text.push_str(
            "\n![Latency at 2,000 requests a second](../tests/load/plots/latency.svg)\n\n",
        );
        self.latency_table(&mut text);
        text.push('\n');
        self.memory_table(&mut text);
        text
    }

    fn saturation_table(&self, text: &mut String) {
        text.push_str(
            "| At saturation | CPU µs/request | × pingora | of Redis, µs | requests/s | p99 ms |\n|---|---:|---:|---:|---:|---:|\n",
        );
        for kind in self.slices.keys() {
            let ratio = match Kind::TLS.contains(kind) {
                true => "".to_owned(),
                false => format!("{:.2}", self.ratio(*kind, Kind::Pingora)),
            };
            let _ = writeln!(
                text,
                "| {} | {:.1} | {ratio} | {:.1} | {:.0} | {:.2} |",
                kind.name(),
                self.spread(*kind, |found| found.cpu_us),
                self.spread(*kind, |found| found.redis_cpu_us).median,
                self.spread(*kind, |found| found.per_second).median,
                self.spread(*kind, |found| found.p99_ms).median,
            );
        }
    }

    fn latency_table(&self, text: &mut String) {
        text.push_str(
            "| At 2,000 requests/s | p50 ms | p99 ms | p99.9 ms | added p50 ms | added p99 ms | CPU µs/request |\n|---|---:|---:|---:|---:|---:|---:|\n",
        );
        for kind in std::iter::once(&Kind::Direct).chain(self.timed.keys()) {
            let added = match kind {
                Kind::Direct => " | ".to_owned(),
                kind => format!(
                    "{:.2} | {:.2}",
                    self.added(*kind, |found| found.p50_ms),
                    self.added(*kind, |found| found.p99_ms)
                ),
            };
            let _ = writeln!(
                text,
                "| {} | {:.2} | {:.2} | {:.2} | {added} | {:.0} |",
                kind.name(),
                self.latency(*kind, |found| found.p50_ms).median,
                self.latency(*kind, |found| found.p99_ms),
                self.latency(*kind, |found| found.p999_ms).median,
                self.latency(*kind, |found| found.cpu_us),
            );
        }
    }

    fn memory_table(&self, text: &mut String) {
        let idle = self.memory.iter().find_map(|one| Some(one.idle?.0));
        let _ = write!(
            text,
            "| Memory and start | MiB, few connections | {} busy | {} idle | KiB an idle connection | ms to the first answer |\n\
             |---|---:|---:|---:|---:|---:|\n",
            super::memory::BUSY,
            idle.unwrap_or_default(),
        );
        for one in &self.memory {
            let idle = one.idle.map_or(" | ".to_owned(), |(_, resident)| {
                format!("{resident:.1} | {:.1}", one.idle_kib().unwrap_or_default())
            });
            let start = self.starts.iter().find(|(kind, _)| *kind == one.kind);
            let start = start.map_or(String::new(), |(_, took)| format!("{took:.0}"));
            let _ = writeln!(
                text,
                "| {} | {:.1} | {:.1} | {idle} | {start} |",
                one.kind.name(),
                one.few,
                one.busy,
            );
        }
    }

    fn rounds_csv(&self) -> String {
        let mut rows =
            "contender,round,cpu_us,redis_cpu_us,requests_per_second,p99_ms\n".to_owned();
        for (kind, rounds) in &self.slices {
            for (round, found) in rounds {
                let _ = writeln!(
                    rows,
                    "\"{}\",{round},{:.3},{:.3},{:.0},{:.3}",
                    kind.name(),
                    found.cpu_us,
                    found.redis_cpu_us,
                    found.per_second,
                    found.p99_ms
                );
            }
        }
        rows
    }

    fn latency_csv(&self) -> String {
        let mut rows =
            "contender,round,direct_p50_ms,direct_p99_ms,direct_p999_ms,direct_cpu_us,p50_ms,p99_ms,p999_ms,cpu_us\n"
                .to_owned();
        for (kind, slices) in &self.timed {
            for (round, direct, one) in slices {
                let _ = write!(rows, "\"{}\",{round}", kind.name());
                for found in [direct, one] {
                    let Latency {
                        p50_ms,
                        p99_ms,
                        p999_ms,
                        cpu_us,
                    } = found;
                    let _ = write!(rows, ",{p50_ms:.3},{p99_ms:.3},{p999_ms:.3},{cpu_us:.3}");
                }
                rows.push('\n');
            }
        }
        rows
    }

    fn cpu_plot(&self) -> String {
        let bars = self.slices.keys().map(|kind| Bar {
            name: kind.name().to_owned(),
            whose: whose(*kind),
            first: self.spread(*kind, |found| found.cpu_us).median,
            whole: self.spread(*kind, |found| found.cpu_us + found.redis_cpu_us),
        });
        let plot = Plot {
            title: "CPU a request at saturation",
            axis: "µs of CPU a request",
            parts: ["the contender", "Redis for it"],
            decimals: 1,
            bars: bars.collect(),
        };
        plot.svg()
    }

    fn latency_plot(&self) -> String {
        let kinds = std::iter::once(&Kind::Direct).chain(self.timed.keys());
        let bars = kinds.map(|kind| Bar {
            name: kind.name().to_owned(),
            whose: whose(*kind),
            first: self.latency(*kind, |found| found.p50_ms).median,
            whole: self.latency(*kind, |found| found.p99_ms),
        });
        let plot = Plot {
            title: "Latency at 2,000 requests a second, Poisson arrivals",
            axis: "ms from when a request was due to its answer",
            parts: ["p50", "up to p99"],
            decimals: 2,
            bars: bars.collect(),
        };
        plot.svg()
    }
}

fn whose(kind: Kind) -> Whose {
    if kind.name().starts_with("Touchline") {
        Whose::Ours
    } else {
        Whose::Peers
    }
}

/// Writes a report and its files to `target/bench`; with `KEEP=yes` its Markdown between the marks of its name in docs/benchmarks.md, and its
/// plots to `tests/load/plots`.
///
/// # Panics
/// If that page has no such marks.
pub fn keep(name: &str, markdown: &str, files: &[(&str, String)]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let written = root.join("target/bench");
    std::fs::create_dir_all(&written).unwrap();
    std::fs::write(written.join(format!("{name}.md")), markdown).unwrap();
    for (file, text) in files {
        std::fs::write(written.join(file), text).unwrap();
    }
    if std::env::var("KEEP").is_ok_and(|keep| keep == "yes") {
        let plots = root.join("tests/load/plots");
        std::fs::create_dir_all(&plots).unwrap();
        for (file, text) in files.iter().filter(|(file, _)| file.ends_with(".svg")) {
            std::fs::write(plots.join(file), text).unwrap();
        }
        let page = root.join("docs/benchmarks.md");
        let text = std::fs::read_to_string(&page).unwrap();
        let (begin, end) = (
            format!("<!-- make {name}: begin -->\n"),
            format!("<!-- make {name}: end -->"),
        );
        let (before, rest) = text.split_once(&begin).unwrap();
        let (_, after) = rest.split_once(&end).unwrap();
        let text = format!("{before}{begin}\n{}\n\n{end}{after}", markdown.trim());
        std::fs::write(page, text).unwrap();
    }
}
