//! The data set: a league, its teams, played and upcoming fixtures, stakes on them, forecasters and their picks.
//!
//! A [`DataSet`] that exists is consistent: every fixture names two different teams of the league, every upcoming fixture has
//! stakes, every pick is on a played fixture and its three probabilities sum to 1. What is not consistent is refused with all its
//! mistakes at once ([`DataSetError`]), each with file, line and a way to mend it. The files are described in the README, section
//! "Data files".

mod check;
mod files;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use check::PROBABILITY_SUM_TOLERANCE;
pub use files::{FILE_BYTES_MAX, Files, TextFile};

/// The public number of a fixture. Opaque to customers; unique in the data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FixtureId(pub u32);

impl fmt::Display for FixtureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The competition the data set is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct League {
    /// Short name for machines, such as `meridian-league`.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Season for people, such as `2026/27`.
    pub season: String,
    /// The instant the data set describes: results known then are in, later ones are not.
    pub as_of: Timestamp,
    /// What a reader must know about the origin of the numbers.
    pub notice: String,
}

/// A club.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// Short name for machines, such as `larkmoor`.
    pub id: String,
    /// Full name.
    pub name: String,
    /// Abbreviation for scoreboards.
    pub short_name: String,
}

/// A match of the league, played or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fixture {
    /// Public number.
    pub id: FixtureId,
    /// Round of the season, from 1.
    pub round: u16,
    /// Kick-off, UTC.
    pub kickoff: Timestamp,
    /// The side that plays on its own ground.
    pub home: Team,
    /// The visiting side.
    pub away: Team,
}

impl Fixture {
    /// Whether the team takes part.
    pub fn involves(&self, team_id: &str) -> bool {
        self.home.id == team_id || self.away.id == team_id
    }
}

/// What a match ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The home side scored more.
    Home,
    /// Both scored the same.
    Draw,
    /// The away side scored more.
    Away,
}

/// One value for each outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Outcomes<T> {
    /// For a home win.
    pub home: T,
    /// For a draw.
    pub draw: T,
    /// For an away win.
    pub away: T,
}

impl<T> Outcomes<T> {
    /// The value for `outcome`.
    pub fn of(&self, outcome: Outcome) -> &T {
        match outcome {
            Outcome::Home => &self.home,
            Outcome::Draw => &self.draw,
            Outcome::Away => &self.away,
        }
    }
}

impl<T> From<[T; 3]> for Outcomes<T> {
    fn from([home, draw, away]: [T; 3]) -> Self {
        Self { home, draw, away }
    }
}

/// Goals of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Score {
    /// Goals of the home side.
    pub home: u8,
    /// Goals of the away side.
    pub away: u8,
}

impl Score {
    /// What a match with this final score ended in.
    pub fn outcome(self) -> Outcome {
        match self.home.cmp(&self.away) {
            std::cmp::Ordering::Greater => Outcome::Home,
            std::cmp::Ordering::Equal => Outcome::Draw,
            std::cmp::Ordering::Less => Outcome::Away,
        }
    }

    /// Goals of both sides together.
    pub fn total(self) -> u16 {
        u16::from(self.home) + u16::from(self.away)
    }
}

/// A fixture with its final score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Played {
    /// The match.
    pub fixture: Fixture,
    /// Its final score.
    pub score: Score,
}

/// Bets placed on one outcome of one fixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stake {
    /// Number of bets.
    pub bets: u32,
    /// Money staked, whole euros.
    pub stake_eur: u32,
}

/// A forecaster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expert {
    /// Short name for machines.
    pub id: String,
    /// Name for people.
    pub name: String,
}

/// A forecaster's forecast of a fixture, recorded before it was played, beside what then happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Pick {
    /// Id of the forecaster.
    pub expert_id: String,
    /// The match.
    pub fixture: Fixture,
    /// The probabilities the forecaster gave; they sum to 1 within [`PROBABILITY_SUM_TOLERANCE`].
    pub chances: Outcomes<f64>,
    /// The outcome backed with one unit.
    pub backed: Outcome,
    /// Decimal odds taken, above 1.
    pub odds: f64,
    /// What the match ended in.
    pub result: Outcome,
}

/// Everything the service knows. See the module for what is certain of one that exists.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSet {
    /// The competition.
    pub league: League,
    /// Its clubs, in the order of the file.
    pub teams: Vec<Team>,
    /// Matches with a result, by kick-off, then number.
    pub played: Vec<Played>,
    /// Matches without one, by kick-off, then number.
    pub upcoming: Vec<Fixture>,
    /// Bets on each upcoming fixture.
    pub stakes: BTreeMap<FixtureId, Outcomes<Stake>>,
    /// Forecasters, in the order of the file.
    pub experts: Vec<Expert>,
    /// Their forecasts, in the order of the file.
    pub picks: Vec<Pick>,
}

impl DataSet {
    /// The data set compiled into the program: `data/` of this crate.
    pub fn embedded() -> Result<Self, DataSetError> {
        Self::from_files(&Files::embedded())
    }

    /// Reads and checks the text of the files; errs with every mistake found.
    pub fn from_files(files: &Files) -> Result<Self, DataSetError> {
        check::check(files)
    }

    /// The result of a fixture that was played.
    pub fn result(&self, id: FixtureId) -> Option<&Played> {
        self.played.iter().find(|played| played.fixture.id == id)
    }
}

/// One mistake in the data files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The file, with its folder where it was read from one.
    pub file: String,
    /// Line in the file, from 1, if it is known.
    pub line: Option<u64>,
    /// What is wrong.
    pub problem: String,
    /// How to mend it.
    pub hint: String,
}

/// Why a data set was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSetError {
    /// Every mistake found, in the order of the files.
    pub mistakes: Vec<Mistake>,
}

/// Mistakes printed in full; a file that is wrong in every line does not bury the screen.
const MISTAKES_SHOWN_MAX: usize = 20;

impl fmt::Display for DataSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the data set cannot be used:")?;
        for mistake in self.mistakes.iter().take(MISTAKES_SHOWN_MAX) {
            write!(f, "\n  {}", mistake.file)?;
            if let Some(line) = mistake.line {
                write!(f, ":{line}")?;
            }
            write!(f, ": {}\n    hint: {}", mistake.problem, mistake.hint)?;
        }
        match self.mistakes.len().saturating_sub(MISTAKES_SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for DataSetError {}
