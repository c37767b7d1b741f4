//! The pages of `docs/`: each command of `touchline` in their blocks for a shell is carried out there as it is written, and succeeds.
//!
//! Each on the same small store, so that the order on a page does not matter, and at the time at which the pages were written.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{Faketime, RedisServer};

use super::readme::{Place, blocks, root};

/// 2026-11-21T12:30:00Z: the pages have dates of that day, before it and after it.
const WRITTEN: Duration = Duration::from_secs(1_795_264_200);
/// The keys that the pages name, as rows of an import.
const KEYS: &str = r#"{"id":"4fZk09QwXy2B","key":"a-key-of-24-characters-a","customer":"Acme","tier":"pro","label":"live site"}
{"id":"zq8w3C1GdT0m","key":"a-key-of-24-characters-b","customer":"Demo","tier":"starter"}
"#;
/// The file of keys from another gateway.
const MOVED_KEYS: &str = "key,customer,tier\na-key-of-24-characters-c,Acme,pro\n";
/// How commands begin that are not carried out here, and why.
const LEFT_OUT: [(&str, &str); 4] = [
    (
        "touchline check --config next.yaml --against-running",
        "needs a running gateway: tests/operations/against_running.rs",
    ),
    (
        "touchline man /usr/",
        "would write outside of the directory",
    ),
    (
        "touchline serve ",
        "does not end: tests/operations/upgrade.rs",
    ),
    (
        "touchline store forget ",
        "needs a silent gateway: tests/quota/register.rs",
    ),
];

/// The pages of `docs/`, without its directories.
fn pages() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root().join("docs")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    files.filter(|file| file.is_file()).collect()
}

/// The lines that a page has one type, without what they print.
fn typed(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let (plain, console) = (blocks(&text, "sh"), blocks(&text, "console"));
    let console = console.iter().flat_map(|block| block.lines());
    let console = console.filter_map(|line| line.strip_prefix("$ "));
    let plain = plain.iter().flat_map(|block| block.lines());
    plain.chain(console).map(str::to_owned).collect()
}

/// The output of a line. A question that only a terminal can answer is answered with yes.
fn carried_out(place: &Place, clock: &Faketime, line: &str) -> Output {
    let run = |line: &str| {
        let mut command = place.command(line);
        clock.wrap(&mut command);
        command.env("HOME", place.directory()).output().unwrap()
    };
    let output = run(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(2) if errors.contains("add --yes to confirm") => run(&format!("{line} --yes")),
        _ => output,
    }
}

#[tokio::test]
async fn every_command_on_a_store_in_the_pages_can_be_carried_out() {
    let place = Place::new();
    let clock = Faketime::new(place.directory());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    clock.set_offset(WRITTEN.as_secs_f64() - now.as_secs_f64());
    let redis = RedisServer::start(place.directory(), false, Some(clock.clone())).await;
    symlink(root().join("gateway.yaml"), place.at("gateway.yaml")).unwrap();
    let shipped = place.read("gateway.yaml");
    let (before, rest) = shipped.split_once("\nstore:\n").unwrap();
    let (_, after) = rest.split_once("\nquota:").unwrap();
    let store = format!(
        "\nstore: {{ redis: {{ url: \"{}\" }} }}\nquota:",
        redis.url()
    );
    std::fs::write(place.at("on-redis.yaml"), [before, &store, after].concat()).unwrap();
    std::fs::write(place.at("keys.csv"), MOVED_KEYS).unwrap();
    std::fs::write(place.at("prepared.jsonl"), KEYS).unwrap();

    let prepared = carried_out(&place, &clock, "touchline keys import prepared.jsonl");
    assert!(prepared.status.success(), "{prepared:?}");
    std::fs::rename(place.at("var"), place.at("prepared")).unwrap();

    let mut left_out = Vec::new();
    let (mut count, mut failed) = (0, Vec::new());
    for page in pages() {
        for line in typed(&page) {
            if let Some((begin, _)) = LEFT_OUT.iter().find(|(begin, _)| line.starts_with(begin)) {
                left_out.push(*begin);
                continue;
            }
            // Others install, release or start services.
            if !["touchline ", "mkdir "]
                .iter()
                .any(|begin| line.starts_with(begin))
            {
                continue;
            }
            copy(&place.at("prepared"), &place.at("var"));
            let output = carried_out(&place, &clock, &line);
            if !output.status.success() {
                failed.push(format!("{}: {line}: {output:?}", page.display()));
            }
            count += 1;
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(count > 30, "{count} commands were found");
    for (begin, reason) in LEFT_OUT {
        assert!(
            left_out.contains(&begin),
            "no page has it: {begin} ({reason})"
        );
    }
}

/// Puts the files of one directory in the place of those of another.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}
