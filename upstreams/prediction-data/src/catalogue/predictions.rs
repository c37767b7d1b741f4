//! The model's predictions of a fixture.

use jiff::Timestamp;
use serde::Serialize;

use super::OfFixture;
use crate::data_set::{Fixture, Outcomes};
use crate::model::{
    self, BothTeamsToScore, Forecast, ScoreChance, Strength, Strengths, TotalGoals,
};
use crate::probability::{Probability, rounded};

/// Mean goals of either side.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ExpectedGoals {
    /// Of the home side, two decimals.
    pub home: f64,
    /// Of the away side, two decimals.
    pub away: f64,
}

/// A prediction as it appears in the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The match.
    pub fixture: Fixture,
    /// Name of the model.
    pub model: &'static str,
    /// The instant up to which results were used.
    pub as_of: Timestamp,
    /// Mean goals.
    pub expected_goals: ExpectedGoals,
    /// Home win, draw, away win.
    pub result: Outcomes<Probability>,
    /// Over and under 1.5, 2.5 and 3.5 goals.
    pub total_goals: Vec<TotalGoals>,
    /// Both sides score, or not.
    pub both_teams_to_score: BothTeamsToScore,
    /// The likeliest final score.
    pub likeliest_score: Option<ScoreChance>,
}

/// What a prediction rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Basis {
    /// Number of results the strengths were estimated from.
    pub results: usize,
    /// Mean goals of the home side between average teams, three decimals.
    pub league_home_goals: f64,
    /// Mean goals of the away side between average teams, three decimals.
    pub league_away_goals: f64,
    /// Strength of the home side, three decimals.
    pub home: Strength,
    /// Strength of the away side, three decimals.
    pub away: Strength,
}

/// A prediction as it appears on its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictionDetail {
    /// What the list has.
    #[serde(flatten)]
    pub summary: Prediction,
    /// The likeliest final scores, likeliest first.
    pub correct_scores: Vec<ScoreChance>,
    /// All other final scores together.
    pub other_scores: Probability,
    /// The parameters behind the numbers.
    pub basis: Basis,
}

impl PredictionDetail {
    /// The prediction for `fixture`, from results up to `as_of`.
    pub fn new(
        fixture: &Fixture,
        forecast: &Forecast,
        strengths: &Strengths,
        as_of: Timestamp,
    ) -> Self {
        Self {
            summary: Prediction {
                fixture: fixture.clone(),
                model: model::NAME,
                as_of,
                expected_goals: ExpectedGoals {
                    home: rounded(forecast.expected_home, 2),
                    away: rounded(forecast.expected_away, 2),
                },
                result: forecast.result,
                total_goals: forecast.totals.clone(),
                both_teams_to_score: forecast.both_score,
                likeliest_score: forecast.scores.first().copied(),
            },
            correct_scores: forecast.scores.clone(),
            other_scores: forecast.other_scores,
            basis: Basis {
                results: strengths.matches(),
                league_home_goals: rounded(strengths.home_goals(), 3),
                league_away_goals: rounded(strengths.away_goals(), 3),
                home: shown(strengths.of(&fixture.home.id)),
                away: shown(strengths.of(&fixture.away.id)),
            },
        }
    }
}

impl OfFixture for PredictionDetail {
    fn fixture(&self) -> &Fixture {
        &self.summary.fixture
    }
}

fn shown(strength: Strength) -> Strength {
    Strength {
        attack: rounded(strength.attack, 3),
        defence: rounded(strength.defence, 3),
    }
}
