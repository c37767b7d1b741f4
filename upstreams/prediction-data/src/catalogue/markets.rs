//! The bets on offer for a fixture, with the model's fair odds: without a bookmaker's margin.

use serde::Serialize;

use super::OfFixture;
use crate::data_set::Fixture;
use crate::model::{Forecast, TotalGoals};
use crate::probability::Probability;

/// A type of bet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MarketKind {
    /// Home win, draw or away win ("1X2").
    MatchResult,
    /// Two of the three results at once.
    DoubleChance,
    /// Home or away win; the stake comes back on a draw.
    DrawNoBet,
    /// More or fewer goals than a line.
    TotalGoals,
    /// Both sides score, or not.
    BothTeamsToScore,
    /// The exact final score.
    CorrectScore,
}

impl MarketKind {
    /// Every kind with its name in JSON and in query strings.
    pub const ALL: [(&'static str, Self); 6] = [
        ("match_result", Self::MatchResult),
        ("double_chance", Self::DoubleChance),
        ("draw_no_bet", Self::DrawNoBet),
        ("total_goals", Self::TotalGoals),
        ("both_teams_to_score", Self::BothTeamsToScore),
        ("correct_score", Self::CorrectScore),
    ];
}

/// One thing that can be backed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Selection {
    /// Its name, such as `home`, `over` or `2-1`.
    pub name: String,
    /// The model's probability that it wins; in `draw_no_bet`, given that the match is not drawn.
    pub probability: Probability,
    /// 1 / probability, two decimals; null at probability 0.
    pub fair_odds: Option<f64>,
}

/// A market of a fixture.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Market {
    /// Unique in the data set, such as `2501-total_goals-2.5`.
    pub id: String,
    /// The match.
    pub fixture: Fixture,
    /// The type of bet.
    pub market: MarketKind,
    /// Goals, for `total_goals`; null otherwise.
    pub line: Option<f64>,
    /// What can be backed. Probabilities sum to 1, but to 2 in `double_chance`, where selections overlap.
    pub selections: Vec<Selection>,
}

impl OfFixture for Market {
    fn fixture(&self) -> &Fixture {
        &self.fixture
    }
}

/// Every market of a fixture.
pub(super) fn of_fixture(fixture: &Fixture, forecast: &Forecast) -> Vec<Market> {
    let result = forecast.result;
    let (home_without_draw, away_without_draw) = forecast.without_draw;
    let scores = forecast.scores.iter().map(|chance| {
        let name = format!("{}-{}", chance.score.home, chance.score.away);
        (name, chance.probability)
    });
    let mut markets = vec![
        market(
            fixture,
            MarketKind::MatchResult,
            None,
            named([
                ("home", result.home),
                ("draw", result.draw),
                ("away", result.away),
            ]),
        ),
        market(
            fixture,
            MarketKind::DoubleChance,
            None,
            named([
                ("home_or_draw", result.home.or(result.draw)),
                ("home_or_away", result.home.or(result.away)),
                ("draw_or_away", result.draw.or(result.away)),
            ]),
        ),
        market(
            fixture,
            MarketKind::DrawNoBet,
            None,
            named([("home", home_without_draw), ("away", away_without_draw)]),
        ),
    ];
    markets.extend(
        forecast
            .totals
            .iter()
            .map(|TotalGoals { line, over, under }| {
                let selections = named([("over", *over), ("under", *under)]);
                market(fixture, MarketKind::TotalGoals, Some(*line), selections)
            }),
    );
    markets.push(market(
        fixture,
        MarketKind::BothTeamsToScore,
        None,
        named([
            ("yes", forecast.both_score.yes),
            ("no", forecast.both_score.no),
        ]),
    ));
    markets.push(market(
        fixture,
        MarketKind::CorrectScore,
        None,
        scores
            .chain(named([("other", forecast.other_scores)]))
            .collect(),
    ));
    markets
}

fn named<const N: usize>(selections: [(&str, Probability); N]) -> Vec<(String, Probability)> {
    selections
        .map(|(name, probability)| (name.to_owned(), probability))
        .to_vec()
}

fn market(
    fixture: &Fixture,
    kind: MarketKind,
    line: Option<f64>,
    selections: Vec<(String, Probability)>,
) -> Market {
    let name = MarketKind::ALL
        .iter()
        .find(|(_, other)| *other == kind)
        .map_or("", |(name, _)| name);
    Market {
        id: match line {
            Some(line) => format!("{}-{name}-{line}", fixture.id),
            None => format!("{}-{name}", fixture.id),
        },
        fixture: fixture.clone(),
        market: kind,
        line,
        selections: selections
            .into_iter()
            .map(|(name, probability)| Selection {
                name,
                probability,
                fair_odds: probability.fair_odds(),
            })
            .collect(),
    }
}
