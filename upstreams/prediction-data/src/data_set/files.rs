//! The text of the data files and the typed rows in them, before anything is checked against anything else.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{DataSetError, Expert, FixtureId, League, Mistake, Outcome, Team};

/// A data file larger than this is refused before it is read into memory: a season of a league is under 100 kB.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A file's name for messages, and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    pub(super) name: String,
    pub(super) text: Cow<'static, str>,
}

impl TextFile {
    /// A file of this name with this text.
    pub fn new(name: &str, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: name.to_owned(),
            text: text.into(),
        }
    }
}

/// The text of every file of a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// `league.json`: a [`League`].
    pub league: TextFile,
    /// `teams.csv`: a [`Team`] a line.
    pub teams: TextFile,
    /// `matches.csv`: a fixture a line, with or without a score.
    pub matches: TextFile,
    /// `stakes.csv`: bets on one outcome of one upcoming fixture a line.
    pub stakes: TextFile,
    /// `experts.csv`: an [`Expert`] a line.
    pub experts: TextFile,
    /// `picks.csv`: one forecast of one expert a line.
    pub picks: TextFile,
}

impl Files {
    /// The files compiled into the program.
    pub fn embedded() -> Self {
        Self {
            league: TextFile::new("data/league.json", include_str!("../../data/league.json")),
            teams: TextFile::new("data/teams.csv", include_str!("../../data/teams.csv")),
            matches: TextFile::new("data/matches.csv", include_str!("../../data/matches.csv")),
            stakes: TextFile::new("data/stakes.csv", include_str!("../../data/stakes.csv")),
            experts: TextFile::new("data/experts.csv", include_str!("../../data/experts.csv")),
            picks: TextFile::new("data/picks.csv", include_str!("../../data/picks.csv")),
        }
    }

    /// Reads the files of the same names from a folder; errs with every file that cannot be read.
    pub fn read(folder: &Path) -> Result<Self, DataSetError> {
        let mut mistakes = Vec::new();
        let mut read = |name: &str| {
            let path = folder.join(name);
            let shown = path.display().to_string();
            let text = read_text(&path).unwrap_or_else(|problem| {
                mistakes.push(Mistake {
                    file: shown.clone(),
                    line: None,
                    problem,
                    hint: format!("put {name} into the folder given with --data; the crate's own data/ folder is a model"),
                });
                String::new()
            });
            TextFile::new(&shown, text)
        };
        let files = Self {
            league: read("league.json"),
            teams: read("teams.csv"),
            matches: read("matches.csv"),
            stakes: read("stakes.csv"),
            experts: read("experts.csv"),
            picks: read("picks.csv"),
        };
        if mistakes.is_empty() {
            Ok(files)
        } else {
            Err(DataSetError { mistakes })
        }
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| format!("cannot be opened: {error}"))?;
    let mut text = String::new();
    // One byte more than allowed, so that a file of exactly the limit is distinguished from a longer one.
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("is larger than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}

/// A row with the line it stands on.
pub(super) struct Row<T> {
    pub(super) line: u64,
    pub(super) value: T,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MatchRow {
    pub(super) fixture_id: FixtureId,
    pub(super) round: u16,
    pub(super) kickoff: Timestamp,
    pub(super) home: String,
    pub(super) away: String,
    pub(super) home_goals: Option<u8>,
    pub(super) away_goals: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StakeRow {
    pub(super) fixture_id: FixtureId,
    pub(super) outcome: Outcome,
    pub(super) bets: u32,
    pub(super) stake_eur: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PickRow {
    pub(super) expert: String,
    pub(super) fixture_id: FixtureId,
    pub(super) home: f64,
    pub(super) draw: f64,
    pub(super) away: f64,
    pub(super) backed: Outcome,
    pub(super) odds: f64,
}

/// Every file taken apart into typed rows; what could not be is in `mistakes`.
pub(super) struct Rows {
    pub(super) league: Option<League>,
    pub(super) teams: Vec<Row<Team>>,
    pub(super) matches: Vec<Row<MatchRow>>,
    pub(super) stakes: Vec<Row<StakeRow>>,
    pub(super) experts: Vec<Row<Expert>>,
    pub(super) picks: Vec<Row<PickRow>>,
    pub(super) mistakes: Vec<Mistake>,
}

impl Rows {
    pub(super) fn parse(files: &Files) -> Self {
        let mut mistakes = Vec::new();
        Self {
            league: parse_league(&files.league, &mut mistakes),
            teams: parse_rows(
                &files.teams,
                "a line is: id,name,short_name, such as larkmoor,Larkmoor United,LAR",
                &mut mistakes,
            ),
            matches: parse_rows(
                &files.matches,
                "a line is: fixture_id,round,kickoff,home,away,home_goals,away_goals, such as \
                 101,1,2026-06-05T19:00:00Z,larkmoor,dunmarrow,3,0 (both goals empty until it is played)",
                &mut mistakes,
            ),
            stakes: parse_rows(
                &files.stakes,
                "a line is: fixture_id,outcome,bets,stake_eur, such as 2501,home,1099,25191 (outcome: home, draw or away)",
                &mut mistakes,
            ),
            experts: parse_rows(
                &files.experts,
                "a line is: id,name, such as boxscore-badger,Boxscore Badger",
                &mut mistakes,
            ),
            picks: parse_rows(
                &files.picks,
                "a line is: expert,fixture_id,home,draw,away,backed,odds, such as \
                 boxscore-badger,1301,0.58,0.26,0.16,home,1.75 (backed: home, draw or away)",
                &mut mistakes,
            ),
            mistakes,
        }
    }
}

fn parse_league(file: &TextFile, mistakes: &mut Vec<Mistake>) -> Option<League> {
    serde_json::from_str(&file.text)
        .map_err(|error| {
            mistakes.push(Mistake {
                file: file.name.clone(),
                line: Some(error.line() as u64),
                problem: error.to_string(),
                hint: "an object with id, name, season, as_of (such as 2026-11-20T06:00:00Z) and notice".to_owned(),
            });
        })
        .ok()
}

fn parse_rows<T: DeserializeOwned>(
    file: &TextFile,
    hint: &str,
    mistakes: &mut Vec<Mistake>,
) -> Vec<Row<T>> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(file.text.as_bytes());
    let header = reader.headers().cloned().unwrap_or_default();
    let mut rows = Vec::new();
    let mut mistake = |line: u64, problem: String| {
        mistakes.push(Mistake {
            file: file.name.clone(),
            line: Some(line),
            problem,
            hint: hint.to_owned(),
        });
    };
    for record in reader.records() {
        let line_of = |position: Option<&csv::Position>| position.map_or(1, csv::Position::line);
        match record {
            Ok(record) => match record.deserialize(Some(&header)) {
                Ok(value) => rows.push(Row {
                    line: line_of(record.position()),
                    value,
                }),
                Err(error) => mistake(line_of(record.position()), explain(&error, &header)),
            },
            Err(error) => mistake(line_of(error.position()), explain(&error, &header)),
        }
    }
    rows
}

/// The error without the position, which the mistake carries, and with the name of the column.
fn explain(error: &csv::Error, header: &csv::StringRecord) -> String {
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => {
            let column = err
                .field()
                .and_then(|index| header.get(usize::try_from(index).ok()?));
            match column {
                Some(column) => format!("column {column}: {}", err.kind()),
                None => err.kind().to_string(),
            }
        }
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => {
            format!("{len} columns where the first line has {expected_len}")
        }
        _ => error.to_string(),
    }
}
