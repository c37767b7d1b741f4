//! README, `docs/` and the pages that they link: `touchline` accepts the arguments of every command in them, every
//! configuration loads, every link resolves, and the metrics, keys and codes that they name exist.
//!
//! No command is carried out here; `tests/deploy/readme.rs` does that with those of the README, `pages.rs` beside it with those of
//! `docs/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// Lines that a page may have, apart from tables that programs write into it.
const README_LINES_MAX: usize = 250;
const PAGE_LINES_MAX: usize = 400;
/// Writes what the program prints into the page of the configuration and the schema.
const RENEW: &str = "KEEP=yes cargo test --workspace --locked --test house reference";

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A page of Markdown.
pub(super) struct Page {
    path: PathBuf,
    pub(super) text: String,
}

/// A fenced block.
struct Block {
    language: String,
    text: String,
}

impl Page {
    fn read(path: PathBuf) -> Page {
        let text = std::fs::read_to_string(&path).unwrap();
        Page { path, text }
    }

    pub(super) fn name(&self) -> String {
        self.path
            .strip_prefix(root())
            .unwrap()
            .display()
            .to_string()
    }

    /// The text without what programs write into it, between their marks.
    fn written(&self) -> String {
        let mut is_generated = false;
        let written = self.text.lines().filter(|line| {
            let was_generated = is_generated;
            is_generated |= line.starts_with("<!-- ") && line.ends_with(": begin -->");
            is_generated &= !(line.starts_with("<!-- ") && line.ends_with(": end -->"));
            !was_generated
        });
        written.map(|line| format!("{line}\n")).collect()
    }

    /// The blocks between fences.
    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for line in self.text.lines() {
            match (line.trim_start().strip_prefix("```"), open.as_mut()) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(language), None) => {
                    let language = language.to_owned();
                    open = Some(Block {
                        language,
                        text: String::new(),
                    });
                }
                (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block without an end", self.name());
        blocks
    }

    /// The text outside the blocks.
    fn prose(&self) -> String {
        let mut inside = false;
        let outside = self.text.lines().filter(|line| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        });
        outside.map(|line| format!("{line}\n")).collect()
    }

    /// The parts of the prose between single backquotes.
    pub(super) fn words(&self) -> Vec<String> {
        let prose = self.prose();
        let spans = prose
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        spans.map(str::to_owned).collect()
    }

    /// The anchors of the headings, as GitHub makes them.
    fn anchors(&self) -> BTreeSet<String> {
        let prose = self.prose();
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        let slug = |heading: &str| {
            let kept = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = kept
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        };
        headings.map(slug).collect()
    }

    /// The targets of links and pictures.
    fn links(&self) -> Vec<String> {
        let prose = self.prose();
        let targets = |mark: &str, end: char| -> Vec<String> {
            let parts = prose.split(mark).skip(1);
            parts
                .map(|part| part.split(end).next().unwrap().to_owned())
                .collect()
        };
        [targets("](", ')'), targets("src=\"", '"')].concat()
    }

    /// The commands that its blocks for a shell have, line by line, without what they print.
    fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for block in self.blocks() {
            let lines = block.text.lines();
            match block.language.as_str() {
                "sh" => commands.extend(lines.map(str::to_owned)),
                "console" => {
                    let typed = lines.filter_map(|line| line.strip_prefix("$ "));
                    commands.extend(typed.map(str::to_owned));
                }
                "yaml" | "json" | "text" | "python" | "mermaid" => {}
                other => panic!("{}: a block of \"{other}\"", self.name()),
            }
        }
        commands
    }
}

fn in_directory(directory: &Path, pages: &mut Vec<Page>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            in_directory(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(Page::read(path));
        }
    }
}

/// All pages for people.
pub(super) fn pages() -> Vec<Page> {
    let single = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "upstreams/prediction-data/README.md",
        "tests/load/profile.md",
    ];
    let mut pages: Vec<Page> = single
        .iter()
        .map(|name| Page::read(root().join(name)))
        .collect();
    in_directory(&root().join("docs"), &mut pages);
    in_directory(&root().join(".github"), &mut pages);
    assert!(pages.len() > 15);
    pages
}

pub(super) fn page(name: &str) -> Page {
    Page::read(root().join(name))
}

pub(super) fn touchline(directory: &Path, arguments: &[String]) -> Output {
    let mut command = Command::new(TOUCHLINE);
    command.args(arguments).current_dir(directory).env_clear();
    command.output().unwrap()
}

pub(super) fn strings(words: &[&str]) -> Vec<String> {
    words.iter().copied().map(str::to_owned).collect()
}

#[test]
fn the_readme_and_every_page_are_short_enough_to_be_read() {
    for page in pages() {
        let lines = page.written().lines().count();
        let most = if page.name() == "README.md" {
            README_LINES_MAX
        } else {
            PAGE_LINES_MAX
        };
        assert!(
            lines <= most,
            "{} has {lines} lines, of at most {most}: extend or shorten a line of the same subject, or move a section to the page of its readers",
            page.name()
        );
    }
}

/// A command line of `touchline` is run where there is no configuration: it must get past its arguments. Of make and cargo, the
/// targets must exist; other programs are not looked at.
#[test]
fn every_command_in_the_pages_parses() {
    let empty = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for page in pages() {
        for line in page.commands() {
            seen += check_line(&page.name(), &line, |arguments| {
                is_usage(empty.path(), arguments)
            });
        }
        // In the text the values of an option may be left out.
        let programs = ["touchline ", "make ", "cargo bench ", "cargo test "];
        let spans = page.words().into_iter();
        for line in spans.filter(|words| programs.iter().any(|begin| words.starts_with(begin))) {
            seen += check_line(&page.name(), &line, |arguments| {
                let help = strings(&["--help"]);
                let (_, shorter) = arguments.split_last().unwrap();
                is_usage(empty.path(), arguments)
                    || is_usage(empty.path(), &[arguments, &help].concat())
                    || is_usage(empty.path(), &[shorter, &help].concat())
            });
        }
    }
    assert!(seen > 80, "{seen} commands were found");
}

/// Checks the commands of a line, and counts them.
fn check_line(page: &str, line: &str, is_touchlines: impl Fn(&[String]) -> bool) -> usize {
    let words = shlex::split(line).unwrap_or_else(|| panic!("{page}: {line}"));
    let is_variable = |word: &String| {
        let name = word.split_once('=').map(|(name, _)| name);
        let is_upper = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
        name.is_some_and(|name| name.bytes().all(is_upper))
    };
    let mut seen = 0;
    for words in words.split(|word| word == "&&") {
        let words = words.iter().skip_while(|word| is_variable(word));
        let words = words.take_while(|word| !matches!(word.as_str(), ">" | "|" | "&"));
        let words: Vec<String> = words.cloned().collect();
        let Some((program, arguments)) = words.split_first() else {
            continue;
        };
        seen += 1;
        let is_right = match program.rsplit('/').next().unwrap() {
            // The beginning of several commands.
            "touchline" if arguments.iter().any(|word| word.contains('…')) => true,
            // It would write outside of the directory.
            "touchline" if arguments.first().is_some_and(|word| word == "man") => true,
            "touchline" => arguments.is_empty() || is_touchlines(arguments),
            "make" => are_targets(arguments),
            "cargo" => are_declared(arguments),
            _ => true,
        };
        assert!(is_right, "{page}: {line}");
    }
    seen
}

/// Whether the program takes the arguments; what becomes of them without a configuration does not matter.
fn is_usage(directory: &Path, arguments: &[String]) -> bool {
    touchline(directory, arguments).status.code() != Some(2)
}

fn are_targets(arguments: &[String]) -> bool {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let targets = arguments.iter().filter(|word| !word.contains('='));
    let mut rules = targets.map(|target| match target.strip_prefix("suite-") {
        Some(_) => "\nsuite-%:".to_owned(),
        None => format!("\n{target}:"),
    });
    rules.all(|rule| makefile.contains(&rule))
}

/// Whether the tests and measurements that cargo is to run exist.
fn are_declared(arguments: &[String]) -> bool {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    ["bench", "test", "example"].iter().all(|kind| {
        let at = arguments
            .iter()
            .position(|word| *word == format!("--{kind}"));
        let target = at.and_then(|at| arguments.get(at + 1));
        let declared = |target| format!("[[{kind}]]\nname = \"{target}\"");
        target.is_none_or(|target| manifest.contains(&declared(target)))
    })
}

/// A block may be a part of the file: its sections take the place of those of the shipped one.
#[test]
fn every_configuration_in_the_pages_loads() {
    let shipped = std::fs::read_to_string(root().join("gateway.yaml")).unwrap();
    let shipped: serde_yaml::Mapping = serde_yaml::from_str(&shipped).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for page in pages() {
        for block in page
            .blocks()
            .iter()
            .filter(|block| block.language == "yaml")
        {
            let part: serde_yaml::Mapping = serde_yaml::from_str(&block.text)
                .unwrap_or_else(|error| panic!("{}: {error}\n{}", page.name(), block.text));
            let mut whole = shipped.clone();
            whole.extend(part);
            let file = directory.path().join("gateway.yaml");
            std::fs::write(&file, serde_yaml::to_string(&whole).unwrap()).unwrap();
            let output = touchline(directory.path(), &strings(&["check", "--offline"]));
            let problems = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{}: {problems}\n{}",
                page.name(),
                block.text
            );
            seen += 1;
        }
    }
    assert!(seen > 6, "{seen} configurations were found");
}

#[test]
fn every_link_and_anchor_in_the_pages_resolves() {
    let pages = pages();
    let read: BTreeSet<PathBuf> = pages.iter().map(|page| page.path.clone()).collect();
    let mut seen = 0;
    for page in &pages {
        for link in page.links() {
            seen += 1;
            if let Some(rest) = link.strip_prefix("https://") {
                assert!(
                    rest.contains('.') && !rest.contains(' '),
                    "{}: {link}",
                    page.name()
                );
                continue;
            }
            assert!(!link.contains("://"), "{}: {link}", page.name());
            let (file, anchor) = link
                .split_once('#')
                .map_or((&*link, None), |(file, anchor)| (file, Some(anchor)));
            let target = match file {
                "" => page.path.clone(),
                file => page.path.parent().unwrap().join(file),
            };
            assert!(
                target.exists(),
                "{}: {link}: there is no such file",
                page.name()
            );
            let target = target.canonicalize().unwrap();
            assert!(
                read.contains(&target) || target.extension().is_none_or(|end| end != "md"),
                "{}: {link} is a page that is not checked",
                page.name()
            );
            if let Some(anchor) = anchor {
                let anchors = Page::read(target).anchors();
                assert!(
                    anchors.contains(anchor),
                    "{}: {link}: there is no such heading",
                    page.name()
                );
            }
        }
    }
    assert!(seen > 100, "{seen} links were found");
}

/// The files below a directory that end in one of these ways.
fn files(directory: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | ".git" | "var") {
                files(&path, ends, found);
            }
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

#[test]
fn comments_that_name_a_page_name_one_that_exists() {
    let mut sources = Vec::new();
    files(
        root(),
        &[
            ".rs", ".yaml", ".yml", ".toml", ".lua", ".service", "Makefile",
        ],
        &mut sources,
    );
    let mut seen = 0;
    for source in sources {
        let text = std::fs::read_to_string(&source).unwrap_or_default();
        for part in text.split("docs/").skip(1) {
            let name: String = part
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '/' | '.' | '#'))
                .collect();
            let Some((file, _)) = name.split_once(".md") else {
                continue;
            };
            seen += 1;
            let target = root().join("docs").join(format!("{file}.md"));
            assert!(target.exists(), "{}: docs/{name}", source.display());
        }
    }
    assert!(seen > 5, "{seen} mentions were found");
}

/// `KEEP=yes` writes what the program prints into the page, and its schema into the file that `tests/deploy` compares.
#[test]
fn the_reference_of_the_configuration_is_what_the_program_prints() {
    let (begin, end) = (
        "<!-- touchline schema --markdown: begin -->\n",
        "<!-- touchline schema --markdown: end -->",
    );
    let output = touchline(root(), &strings(&["schema", "--markdown"]));
    let printed = String::from_utf8(output.stdout).unwrap();
    let page = page("docs/configuration.md");
    let (before, rest) = page.text.split_once(begin).unwrap();
    let (kept, after) = rest.split_once(end).unwrap();
    let wanted = format!("\n{}\n\n", printed.trim());
    if std::env::var("KEEP").is_ok_and(|keep| keep == "yes") {
        let text = format!("{before}{begin}{wanted}{end}{after}");
        std::fs::write(&page.path, text).unwrap();
        let schema = touchline(root(), &strings(&["schema"])).stdout;
        return std::fs::write(root().join("deploy/gateway.schema.json"), schema).unwrap();
    }
    assert!(kept == wanted, "docs/configuration.md is behind: {RENEW}");
}

/// The paths of all keys of the configuration, by its JSON Schema; names of an operator's choice and items are `*`.
pub(super) fn keys() -> BTreeSet<String> {
    fn walk(schema: &Value, at: &str, keys: &mut BTreeSet<String>) {
        let below = |name: &str| {
            if at.is_empty() {
                name.to_owned()
            } else {
                format!("{at}.{name}")
            }
        };
        if let Some(properties) = schema["properties"].as_object() {
            for (name, schema) in properties {
                keys.insert(below(name));
                walk(schema, &below(name), keys);
            }
        }
        if schema["additionalProperties"].is_object() {
            walk(&schema["additionalProperties"], &below("*"), keys);
        }
        if schema["items"].is_object() {
            walk(&schema["items"], at, keys);
        }
        for schema in schema["anyOf"].as_array().into_iter().flatten() {
            walk(schema, at, keys);
        }
    }
    let output = touchline(root(), &strings(&["schema"]));
    let mut keys = BTreeSet::new();
    walk(
        &serde_json::from_slice(&output.stdout).unwrap(),
        "",
        &mut keys,
    );
    keys
}

#[test]
fn every_key_of_the_configuration_is_documented_and_no_other() {
    let keys = keys();
    assert!(keys.len() > 150);
    let spelt = |key: &str| key.replace("*", "<name>");
    let reference = page("docs/configuration.md").text.replace("[]", "");
    for key in keys.iter().filter(|key| key.contains('.')) {
        if !key.ends_with('*') {
            assert!(
                reference.contains(&format!("| `{}` |", spelt(key))),
                "{key} is not in docs/configuration.md: {RENEW}"
            );
        }
    }
    let sections: BTreeSet<&str> = keys
        .iter()
        .map(|key| key.split('.').next().unwrap())
        .collect();
    for page in pages() {
        for word in page.words() {
            let key = word.replace("[]", "").replace("<name>", "*");
            let key = key.split([':', ' ']).next().unwrap();
            let is_key = key.contains('.')
                && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._*".contains(&byte))
                && sections.contains(key.split('.').next().unwrap())
                // Files and fields that begin as a section does.
                && !key.ends_with(".rs") && !key.ends_with(".db") && !key.ends_with(".csv") && key != "config.refused";
            assert!(
                !is_key || keys.contains(key),
                "{}: there is no key {key}",
                page.name()
            );
        }
    }
}

/// The names of the metrics in the sources, and those of Prometheus' collector of processes.
fn metrics() -> BTreeSet<String> {
    let mut sources = Vec::new();
    files(&root().join("src/telemetry"), &[".rs"], &mut sources);
    let mut names: BTreeSet<String> = sources
        .iter()
        .flat_map(|source| {
            let text = std::fs::read_to_string(source).unwrap();
            let literals = text
                .split('"')
                .filter(|part| part.starts_with("touchline_"));
            let literals = literals.filter(|part| {
                part.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            });
            literals.map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    assert!(names.len() > 35);
    for process in [
        "cpu_seconds_total",
        "threads",
        "start_time_seconds",
        "resident_memory_bytes",
        "virtual_memory_bytes",
        "open_fds",
        "max_fds",
    ] {
        names.insert(format!("process_{process}"));
    }
    names
}

#[test]
fn every_metric_is_documented_and_no_other() {
    let metrics = metrics();
    let listed: BTreeSet<String> = page("docs/operations.md").words().into_iter().collect();
    for metric in &metrics {
        assert!(
            listed.contains(metric),
            "{metric} is not in docs/operations.md"
        );
    }
    // The first line of an exported ledger.
    let others = ["touchline_ledger"];
    for page in pages() {
        for word in page.words() {
            let name = word.split('{').next().unwrap();
            let is_metric = name.starts_with("touchline_") || name.starts_with("process_");
            let is_metric = is_metric && !others.contains(&name);
            assert!(
                !is_metric || metrics.contains(name),
                "{}: there is no metric {name}",
                page.name()
            );
        }
    }
}

#[test]
fn every_limit_of_the_metric_of_hits_is_documented() {
    let source = std::fs::read_to_string(root().join("src/policy/limit_hit.rs")).unwrap();
    let (_, limits) = source.split_once("enum LimitHit").unwrap();
    let limits: Vec<_> = limits.split('"').skip(1).step_by(2).collect();
    assert!(limits.len() > 30);
    let pages = ["docs/edge-security.md", "docs/operations.md"].map(|name| page(name).words());
    for limit in limits {
        let limit = limit.to_owned();
        assert!(
            pages.iter().any(|page| page.contains(&limit)),
            "the limit {limit} is in neither page"
        );
    }
}

/// The words in capitals of the table `Rejection::kind`.
pub(super) fn codes() -> BTreeSet<String> {
    let source = std::fs::read_to_string(root().join("src/policy/rejection.rs")).unwrap();
    let (_, body) = source.split_once("fn kind(&self)").unwrap();
    let (body, _) = body.split_once("\n    }\n").unwrap();
    let words = body.split('"').skip(1).step_by(2);
    words
        .filter(|word| word.bytes().any(|byte| byte.is_ascii_uppercase()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_error_code_is_documented_and_no_other() {
    let codes = codes();
    let calling = page("docs/calling-the-api.md");
    let listed: BTreeSet<String> = calling.words().into_iter().collect();
    for code in &codes {
        assert!(
            listed.contains(code),
            "{code} is not in docs/calling-the-api.md"
        );
    }
    let is_code = |word: &String| {
        word.contains('_')
            && word
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    for word in listed.into_iter().filter(is_code) {
        assert!(codes.contains(&word), "there is no error code {word}");
    }
    assert_eq!(
        codes.len(),
        11,
        "codes are stable for ever: if a new one is meant, count it here"
    );
}

#[test]
fn every_exit_code_is_documented_and_no_other() {
    let source = std::fs::read_to_string(root().join("src/cli.rs")).unwrap();
    let declared = source.split("const EXIT_").skip(1);
    let value = |part: &str| {
        part.split_once("= ")
            .unwrap()
            .1
            .split(';')
            .next()
            .unwrap()
            .to_owned()
    };
    let mut declared: BTreeSet<String> = declared.map(value).collect();
    declared.insert("0".to_owned());
    let operations = page("docs/operations.md");
    let (_, table) = operations.text.split_once("### Exit codes\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let listed: BTreeSet<String> = rows
        .filter(|cell| *cell != "Code")
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, declared);
}

/// The README has some of the figures of `docs/benchmarks.md`, without their quartiles.
#[test]
fn the_figures_of_the_readme_are_those_of_the_benchmarks() {
    let (readme, benchmarks) = (page("README.md"), page("docs/benchmarks.md"));
    let (_, costs) = readme.text.split_once("\n## What it costs\n").unwrap();
    let (costs, _) = costs.split_once("\n## ").unwrap();
    let cells = |row: &str| -> Vec<String> {
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let rows = costs.lines().filter(|line| line.starts_with("| "));
    let mut seen = 0;
    for row in rows.skip(1).map(cells) {
        let (name, figures) = row.split_first().unwrap();
        let measured = benchmarks.text.lines().map(cells);
        let measured: Vec<String> = measured.filter(|row| row[0] == *name).flatten().collect();
        for figure in figures.iter().filter(|figure| !figure.is_empty()) {
            let is_measured = measured
                .iter()
                .any(|cell| cell.split(' ').next() == Some(figure));
            assert!(
                is_measured,
                "README.md: {name}: {figure} is not in docs/benchmarks.md"
            );
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} figures were found");
}

/// The proof of `docs/decisions/charge-protocol.md`, with fewer schedules.
#[test]
fn the_simulation_of_the_charge_protocol_finds_no_unit_too_many() {
    let script = root().join("docs/decisions/charge-simulation.py");
    let ran = Command::new("python3").arg(script).arg("100").output();
    let output = ran.unwrap_or_else(|error| panic!("python3: {error}; apt-get install python3"));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    assert_eq!(
        printed.matches("beyond lost and offline: 0").count(),
        5,
        "{printed}"
    );
}
