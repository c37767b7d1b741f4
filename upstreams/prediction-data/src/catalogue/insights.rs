//! Sentences about a fixture, made from templates and the figures they rest on.
//!
//! No language model writes them: every sentence is a fixed template filled with numbers of this data set, and carries those
//! numbers beside it, so that a reader can check it.

use serde::Serialize;

use super::{OfFixture, Sentiment};
use crate::data_set::{Fixture, Outcome, Played, Team};
use crate::model::{Forecast, Strengths};
use crate::probability::rounded;

/// Matches that make a team's form.
const FORM_MATCHES: usize = 5;

/// What an insight is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InsightKind {
    /// A team's last five matches.
    Form,
    /// One side's attack against the other's defence.
    Strength,
    /// How many goals to expect.
    Goals,
    /// Where the money differs from the model.
    Crowd,
}

impl InsightKind {
    /// Every kind with its name in JSON and in query strings.
    pub const ALL: [(&'static str, Self); 4] = [
        ("form", Self::Form),
        ("strength", Self::Strength),
        ("goals", Self::Goals),
        ("crowd", Self::Crowd),
    ];
}

/// What a figure is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Goals.
    Goals,
    /// League points: 3 for a win, 1 for a draw.
    Points,
    /// Matches.
    Matches,
    /// Hundredths of a whole.
    Percent,
    /// Difference of two percentages.
    PercentagePoints,
    /// Times the league's average.
    Ratio,
}

/// A number a sentence rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What it counts.
    pub name: &'static str,
    /// The number, as it stands in the sentence.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
}

/// A sentence about a fixture.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Insight {
    /// Unique in the data set, such as `2501-form-larkmoor`.
    pub id: String,
    /// The match.
    pub fixture: Fixture,
    /// What it is about.
    pub kind: InsightKind,
    /// How it was written: `template`.
    pub method: &'static str,
    /// The sentence, in English.
    pub text: String,
    /// The numbers in it.
    pub figures: Vec<Figure>,
}

impl OfFixture for Insight {
    fn fixture(&self) -> &Fixture {
        &self.fixture
    }
}

/// Every insight on a fixture: form of both sides (of those that have played), strength, goals, crowd.
pub(super) fn of_fixture(
    fixture: &Fixture,
    forecast: &Forecast,
    strengths: &Strengths,
    sentiment: &Sentiment,
    played: &[Played],
) -> Vec<Insight> {
    [&fixture.home, &fixture.away]
        .into_iter()
        .filter_map(|team| form(fixture, team, played))
        .chain([
            strength(fixture, forecast, strengths),
            goals(fixture, forecast, played),
            crowd(fixture, sentiment),
        ])
        .collect()
}

fn insight(
    fixture: &Fixture,
    kind: InsightKind,
    about: &str,
    text: String,
    figures: Vec<Figure>,
) -> Insight {
    Insight {
        id: format!("{}-{about}", fixture.id),
        fixture: fixture.clone(),
        kind,
        method: "template",
        text,
        figures,
    }
}

fn figure(name: &'static str, value: f64, unit: Unit) -> Figure {
    Figure { name, value, unit }
}

fn form(fixture: &Fixture, team: &Team, played: &[Played]) -> Option<Insight> {
    let recent: Vec<&Played> = played
        .iter()
        .rev()
        .filter(|match_| match_.fixture.involves(&team.id))
        .take(FORM_MATCHES)
        .collect();
    if recent.is_empty() {
        return None;
    }
    let (mut points, mut scored, mut conceded, mut letters) = (0_u32, 0_u32, 0_u32, Vec::new());
    for match_ in recent.iter().rev() {
        let at_home = match_.fixture.home.id == team.id;
        let score = match_.score;
        let (own, other) = if at_home {
            (score.home, score.away)
        } else {
            (score.away, score.home)
        };
        scored += u32::from(own);
        conceded += u32::from(other);
        let (letter, gained) = match own.cmp(&other) {
            std::cmp::Ordering::Greater => ("W", 3),
            std::cmp::Ordering::Equal => ("D", 1),
            std::cmp::Ordering::Less => ("L", 0),
        };
        letters.push(letter);
        points += gained;
    }
    let matches = recent.len();
    let text = format!(
        "{} took {points} of {} points from their last {} ({}, latest last), scoring {scored} and conceding {conceded}.",
        team.name,
        3 * matches,
        counted(matches, "match", "matches"),
        letters.join(" "),
    );
    let figures = vec![
        figure("points", f64::from(points), Unit::Points),
        figure("matches", matches as f64, Unit::Matches),
        figure("goals_scored", f64::from(scored), Unit::Goals),
        figure("goals_conceded", f64::from(conceded), Unit::Goals),
    ];
    Some(insight(
        fixture,
        InsightKind::Form,
        &format!("form-{}", team.id),
        text,
        figures,
    ))
}

/// The side the model expects more goals of; the home side where they are equal.
fn strength(fixture: &Fixture, forecast: &Forecast, strengths: &Strengths) -> Insight {
    let (side, other, expected) = if forecast.expected_home >= forecast.expected_away {
        (&fixture.home, &fixture.away, forecast.expected_home)
    } else {
        (&fixture.away, &fixture.home, forecast.expected_away)
    };
    let attack = rounded(strengths.of(&side.id).attack, 2);
    let defence = rounded(strengths.of(&other.id).defence, 2);
    let expected = rounded(expected, 2);
    let text = format!(
        "{} score {attack:.2} times the league's average, {} concede {defence:.2} times it: the model expects {expected:.2} goals \
         for {}.",
        side.name, other.name, side.name,
    );
    let figures = vec![
        figure("attack", attack, Unit::Ratio),
        figure("opponent_defence", defence, Unit::Ratio),
        figure("expected_goals", expected, Unit::Goals),
    ];
    insight(fixture, InsightKind::Strength, "strength", text, figures)
}

fn goals(fixture: &Fixture, forecast: &Forecast, played: &[Played]) -> Insight {
    // The line is 2.5 goals: over it lie three and more.
    let over = forecast
        .totals
        .iter()
        .find(|total| total.line == 2.5)
        .map_or(0.0, |total| total.over.percent());
    let over = rounded(over, 1);
    let theirs = |match_: &&Played| {
        match_.fixture.involves(&fixture.home.id) || match_.fixture.involves(&fixture.away.id)
    };
    let matches = played.iter().filter(theirs).count();
    let overs = played
        .iter()
        .filter(theirs)
        .filter(|match_| match_.score.total() > 2)
        .count();
    let text = format!(
        "The model gives {over:.1} % to three goals or more; {overs} of the {} either side played this season had as many.",
        counted(matches, "match", "matches"),
    );
    let figures = vec![
        figure("over_2_5_probability", over, Unit::Percent),
        figure("matches_over_2_5", overs as f64, Unit::Matches),
        figure("matches", matches as f64, Unit::Matches),
    ];
    insight(fixture, InsightKind::Goals, "goals", text, figures)
}

fn crowd(fixture: &Fixture, sentiment: &Sentiment) -> Insight {
    let favourite = sentiment.crowd_favourite;
    let share = rounded(sentiment.share_of_stakes.of(favourite).percent(), 1);
    let model = rounded(sentiment.model.of(favourite).percent(), 1);
    let gap = rounded(share - model, 1);
    let outcome = match favourite {
        Outcome::Home => format!("a win of {}", fixture.home.name),
        Outcome::Draw => "a draw".to_owned(),
        Outcome::Away => format!("a win of {}", fixture.away.name),
    };
    let compared = if gap > 0.0 {
        format!("{gap:.1} points fewer than the money on it")
    } else if gap < 0.0 {
        format!("{:.1} points more than the money on it", -gap)
    } else {
        "the same".to_owned()
    };
    let text = format!(
        "{share:.1} % of the money is on {outcome}; the model gives it {model:.1} %, {compared}."
    );
    let figures = vec![
        figure("share_of_stakes", share, Unit::Percent),
        figure("model_probability", model, Unit::Percent),
        figure("difference", gap, Unit::PercentagePoints),
    ];
    insight(fixture, InsightKind::Crowd, "crowd", text, figures)
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
