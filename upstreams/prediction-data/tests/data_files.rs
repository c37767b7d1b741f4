//! What is said of data files that cannot be used: the file, the line, the mistake and how to mend it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::path::Path;

use prediction_data::data_set::{DataSet, Files, TextFile};

const LEAGUE: &str =
    r#"{"id":"l","name":"L","season":"1","as_of":"2026-11-20T06:00:00Z","notice":"invented"}"#;
const TEAMS: &str = "id,name,short_name\na,A,A\nb,B,B\n";
const MATCHES: &str = "fixture_id,round,kickoff,home,away,home_goals,away_goals\n\
                       1,1,2026-06-05T19:00:00Z,a,b,2,1\n\
                       2,2,2026-12-05T19:00:00Z,b,a,,\n";
const STAKES: &str = "fixture_id,outcome,bets,stake_eur\n2,home,5,50\n2,draw,3,30\n2,away,2,20\n";
const EXPERTS: &str = "id,name\ne,E\n";
const PICKS: &str = "expert,fixture_id,home,draw,away,backed,odds\ne,1,0.5,0.3,0.2,home,1.9\n";

fn files() -> Files {
    Files {
        league: TextFile::new("league.json", LEAGUE),
        teams: TextFile::new("teams.csv", TEAMS),
        matches: TextFile::new("matches.csv", MATCHES),
        stakes: TextFile::new("stakes.csv", STAKES),
        experts: TextFile::new("experts.csv", EXPERTS),
        picks: TextFile::new("picks.csv", PICKS),
    }
}

#[test]
fn the_smallest_data_set_is_one_result() {
    let set = DataSet::from_files(&files()).unwrap();
    assert_eq!(
        (set.played.len(), set.upcoming.len(), set.picks.len()),
        (1, 1, 1)
    );
}

#[test]
fn the_data_set_in_the_program_is_the_one_in_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let read = DataSet::from_files(&Files::read(&folder).unwrap()).unwrap();
    assert_eq!(DataSet::embedded().unwrap(), read);
}

#[test]
fn a_folder_without_the_files_is_refused_with_the_name_of_each() {
    let error = Files::read(Path::new("/nonexistent")).unwrap_err();
    let names: Vec<_> = error
        .mistakes
        .iter()
        .map(|mistake| mistake.file.as_str())
        .collect();
    assert_eq!(names.len(), 6);
    assert_eq!(names[2], "/nonexistent/matches.csv");
}

#[test]
fn a_mistake_is_told_with_its_file_its_line_and_a_way_to_mend_it() {
    let changed = |file: &str, from: &str, to: &str| {
        let mut files = files();
        let (place, text) = match file {
            "league.json" => (&mut files.league, LEAGUE),
            "teams.csv" => (&mut files.teams, TEAMS),
            "matches.csv" => (&mut files.matches, MATCHES),
            "stakes.csv" => (&mut files.stakes, STAKES),
            "experts.csv" => (&mut files.experts, EXPERTS),
            _ => (&mut files.picks, PICKS),
        };
        assert!(text.contains(from), "{file} has no {from}");
        *place = TextFile::new(file, text.replacen(from, to, 1));
        DataSet::from_files(&files).unwrap_err().to_string()
    };
    for (file, from, to, line, problem) in [
        (
            "league.json",
            "as_of",
            "as_off",
            "1",
            "unknown field `as_off`",
        ),
        (
            "league.json",
            "2026-11-20T",
            "yesterday",
            "1",
            "integer as year",
        ),
        (
            "teams.csv",
            "\nb,",
            "\na,",
            "3",
            "the team a stands here a second time",
        ),
        ("teams.csv", "\nb,", "\nB b,", "3", "\"B b\" is not plain"),
        (
            "teams.csv",
            "short_name",
            "shirt",
            "2",
            "unknown field `shirt`",
        ),
        (
            "matches.csv",
            ",b,a,",
            ",b,c,",
            "3",
            "column away: no team has the id \"c\"",
        ),
        ("matches.csv", ",b,a,", ",b,b,", "3", "b plays itself"),
        (
            "matches.csv",
            "\n2,2,",
            "\n1,2,",
            "3",
            "the fixture 1 stands here a second time",
        ),
        ("matches.csv", "\n2,2,", "\n2,0,", "3", "round 0"),
        (
            "matches.csv",
            "a,,",
            "a,1,",
            "3",
            "the goals of one side only",
        ),
        ("matches.csv", ",2,1\n", ",41,1\n", "2", "a score of 41:1"),
        (
            "matches.csv",
            ",2,1\n",
            ",two,1\n",
            "2",
            "column home_goals",
        ),
        (
            "matches.csv",
            "a,,",
            "a,",
            "3",
            "6 columns where the first line has 7",
        ),
        (
            "stakes.csv",
            "\n2,away",
            "\n3,away",
            "4",
            "no upcoming fixture has the number 3",
        ),
        (
            "stakes.csv",
            "\n2,away",
            "\n2,home",
            "4",
            "has this outcome a second time",
        ),
        (
            "stakes.csv",
            "\n2,away",
            "\n2,other",
            "4",
            "unknown variant `other`",
        ),
        (
            "experts.csv",
            "\ne,E",
            "\ne,E\ne,F",
            "3",
            "the expert e stands here a second time",
        ),
        (
            "picks.csv",
            "\ne,1",
            "\nf,1",
            "2",
            "no expert has the id \"f\"",
        ),
        (
            "picks.csv",
            "\ne,1",
            "\ne,2",
            "2",
            "no played fixture has the number 2",
        ),
        ("picks.csv", "0.5,", "0.6,", "2", "sum to 1.100"),
        ("picks.csv", "0.5,", "NaN,", "2", "sum to NaN"),
        ("picks.csv", "1.9", "1.0", "2", "odds of 1"),
    ] {
        let message = changed(file, from, to);
        assert!(message.contains(&format!("{file}:{line}: ")), "{message}");
        assert!(message.contains(problem), "{problem}:\n{message}");
        assert!(message.contains("hint: "), "{message}");
    }
}

#[test]
fn what_is_missing_is_told_without_a_line() {
    let mut without_stakes = files();
    without_stakes.stakes = TextFile::new(
        "stakes.csv",
        "fixture_id,outcome,bets,stake_eur\n2,home,5,50\n",
    );
    let message = DataSet::from_files(&without_stakes)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("stakes.csv: the upcoming fixture 2 lacks stakes"),
        "{message}"
    );
    let mut without_results = files();
    without_results.matches = TextFile::new("matches.csv", MATCHES.replace("2,1\n", ",\n"));
    let message = DataSet::from_files(&without_results)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("matches.csv: no match with a score"),
        "{message}"
    );
}

#[test]
fn a_file_that_is_wrong_in_every_line_shows_twenty_and_counts_the_rest() {
    let mut wrong = files();
    wrong.picks = TextFile::new(
        "picks.csv",
        format!("{PICKS}{}", "e,1,1,1,1,home,1.9\n".repeat(50)),
    );
    let error = DataSet::from_files(&wrong).unwrap_err();
    assert_eq!(error.mistakes.len(), 100);
    let message = error.to_string();
    assert_eq!(message.matches("hint: ").count(), 20);
    assert!(message.ends_with("and 80 more"), "{message}");
}
