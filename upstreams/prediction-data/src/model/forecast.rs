//! The chance of every score of a fixture, and of what follows from scores.

use serde::Serialize;

use crate::data_set::{Outcome, Outcomes, Score};
use crate::probability::{Probability, apportion, apportion_all};

/// Goals of one side above this are left out of the table of scores. At a mean of 5 goals, twice what is usual, fewer than one
/// match in 14,000 has more; what is left is scaled back to a sum of 1.
pub const GOALS_PER_SIDE_MAX: u8 = 15;

/// Scores listed one by one; the rest is summed as "other".
pub const CORRECT_SCORES_LISTED: usize = 10;

/// Lines of the total-goals market, in half goals: 1.5, 2.5 and 3.5. A whole and a half cannot be hit, so there is no refund.
const TOTAL_LINES_HALF_GOALS: [u8; 3] = [3, 5, 7];

/// The chances of one line of the total-goals market; they sum to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TotalGoals {
    /// Goals of both sides, such as 2.5.
    pub line: f64,
    /// More goals than the line.
    pub over: Probability,
    /// Fewer goals than the line.
    pub under: Probability,
}

/// The chance of both sides scoring; sums to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BothTeamsToScore {
    /// Each side scores at least once.
    pub yes: Probability,
    /// At least one side does not score.
    pub no: Probability,
}

/// The chance of a final score.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScoreChance {
    /// The score.
    #[serde(flatten)]
    pub score: Score,
    /// Its chance.
    pub probability: Probability,
}

/// The model's forecast of one fixture.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// Mean goals of the home side.
    pub expected_home: f64,
    /// Mean goals of the away side.
    pub expected_away: f64,
    /// Home win, draw, away win; sum to 1.
    pub result: Outcomes<Probability>,
    /// Home or away win given that it is no draw (the stake comes back on a draw); sum to 1.
    pub without_draw: (Probability, Probability),
    /// Each line of total goals.
    pub totals: Vec<TotalGoals>,
    /// Both sides score, or not.
    pub both_score: BothTeamsToScore,
    /// The likeliest scores, likeliest first.
    pub scores: Vec<ScoreChance>,
    /// All other scores together; sums to 1 with `scores`.
    pub other_scores: Probability,
}

impl Forecast {
    /// The forecast for two means of goals, each 0 or more.
    pub fn from_means(expected_home: f64, expected_away: f64) -> Self {
        let table = score_table(expected_home, expected_away);
        let chance = |wanted: &dyn Fn(Score) -> bool| -> f64 {
            table
                .iter()
                .filter(|(score, _)| wanted(*score))
                .map(|(_, chance)| chance)
                .sum()
        };
        let home = chance(&|score| score.outcome() == Outcome::Home);
        let draw = chance(&|score| score.outcome() == Outcome::Draw);
        let away = chance(&|score| score.outcome() == Outcome::Away);
        let [home_without_draw, away_without_draw] = apportion([home, away]);
        let [yes, no] = apportion([
            chance(&|score| score.home > 0 && score.away > 0),
            chance(&|score| score.home == 0 || score.away == 0),
        ]);
        let totals = TOTAL_LINES_HALF_GOALS.map(|half_goals| {
            let over = |score: Score| 2 * score.total() > u16::from(half_goals);
            let [over, under] = apportion([chance(&over), chance(&|score| !over(score))]);
            TotalGoals {
                line: f64::from(half_goals) / 2.0,
                over,
                under,
            }
        });
        let (scores, other_scores) = likeliest(table);
        Self {
            expected_home,
            expected_away,
            result: apportion([home, draw, away]).into(),
            without_draw: (home_without_draw, away_without_draw),
            totals: totals.to_vec(),
            both_score: BothTeamsToScore { yes, no },
            scores,
            other_scores,
        }
    }
}

/// The chance of every score up to [`GOALS_PER_SIDE_MAX`] a side, by home goals, then away goals; not yet scaled to a sum of 1.
fn score_table(expected_home: f64, expected_away: f64) -> Vec<(Score, f64)> {
    let away_chances = poisson(expected_away);
    let mut table = Vec::with_capacity(away_chances.len() * away_chances.len());
    for (home, home_chance) in poisson(expected_home) {
        for (away, away_chance) in &away_chances {
            table.push((Score { home, away: *away }, home_chance * away_chance));
        }
    }
    table
}

/// e^-mean · mean^k / k! for k from 0 to [`GOALS_PER_SIDE_MAX`].
fn poisson(mean: f64) -> Vec<(u8, f64)> {
    let mut chance = (-mean).exp();
    let mut chances = vec![(0, chance)];
    for goals in 1..=GOALS_PER_SIDE_MAX {
        chance *= mean / f64::from(goals);
        chances.push((goals, chance));
    }
    chances
}

fn likeliest(mut table: Vec<(Score, f64)>) -> (Vec<ScoreChance>, Probability) {
    // A stable sort: equal chances keep the order of the table.
    table.sort_by(|one, other| other.1.total_cmp(&one.1));
    let other: f64 = table
        .iter()
        .skip(CORRECT_SCORES_LISTED)
        .map(|(_, chance)| chance)
        .sum();
    table.truncate(CORRECT_SCORES_LISTED);
    let weights: Vec<f64> = table
        .iter()
        .map(|(_, chance)| *chance)
        .chain([other])
        .collect();
    let mut shares = apportion_all(&weights);
    let other = shares.pop().unwrap_or_default();
    let scores = table
        .into_iter()
        .zip(shares)
        .map(|((score, _), probability)| ScoreChance { score, probability })
        .collect();
    (scores, other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn sum(parts: &[Probability]) -> u32 {
        parts
            .iter()
            .map(|part| u32::from(part.ten_thousandths()))
            .sum()
    }

    #[test]
    fn the_probabilities_of_every_event_sum_to_exactly_one_for_any_means() {
        for tenths_home in 0..60 {
            for tenths_away in 0..60 {
                let forecast = Forecast::from_means(
                    f64::from(tenths_home) / 10.0,
                    f64::from(tenths_away) / 10.0,
                );
                let case = format!("means {tenths_home}/10 and {tenths_away}/10");
                let result = forecast.result;
                assert_eq!(
                    sum(&[result.home, result.draw, result.away]),
                    10_000,
                    "{case}"
                );
                assert_eq!(
                    sum(&[forecast.both_score.yes, forecast.both_score.no]),
                    10_000,
                    "{case}"
                );
                for total in &forecast.totals {
                    assert_eq!(sum(&[total.over, total.under]), 10_000, "{case}");
                }
                let scores: Vec<_> = forecast
                    .scores
                    .iter()
                    .map(|chance| chance.probability)
                    .collect();
                assert_eq!(
                    sum(&scores) + sum(&[forecast.other_scores]),
                    10_000,
                    "{case}"
                );
                let (home, away) = forecast.without_draw;
                let decided = if tenths_home + tenths_away == 0 {
                    0
                } else {
                    10_000
                };
                assert_eq!(sum(&[home, away]), decided, "{case}");
            }
        }
    }

    /// Worked by hand: with means 1 and 1, a draw has the chance e^-2 · Σ 1/(k!)² = 0.30851, 1:1 has e^-2 = 0.13534, both score
    /// with (1 - e^-1)² = 0.39958, and fewer than 2.5 goals fall with e^-2 · (1 + 2 + 2) = 0.67668.
    #[test]
    fn the_forecast_agrees_with_figures_worked_by_hand() {
        let forecast = Forecast::from_means(1.0, 1.0);
        assert_eq!(forecast.result.draw.ten_thousandths(), 3_085);
        assert_eq!(forecast.both_score.yes.ten_thousandths(), 3_996);
        let line = forecast
            .totals
            .iter()
            .find(|total| total.line == 2.5)
            .unwrap();
        assert_eq!(line.under.ten_thousandths(), 6_767);
        let draws = forecast
            .scores
            .iter()
            .filter(|chance| chance.score.home == 1 && chance.score.away == 1);
        assert_eq!(
            draws
                .map(|chance| chance.probability.ten_thousandths())
                .collect::<Vec<_>>(),
            [1_353]
        );
    }

    #[test]
    fn a_stronger_home_side_is_likelier_to_win_and_lines_fall_as_they_rise() {
        let (weak, strong) = (
            Forecast::from_means(1.2, 1.1),
            Forecast::from_means(1.8, 1.1),
        );
        assert!(strong.result.home > weak.result.home && strong.result.away < weak.result.away);
        let overs: Vec<_> = strong.totals.iter().map(|total| total.over).collect();
        assert!(overs.is_sorted_by(|one, other| one > other), "{overs:?}");
    }

    #[test]
    fn scores_are_listed_likeliest_first() {
        let forecast = Forecast::from_means(1.7, 0.9);
        assert_eq!(forecast.scores.len(), CORRECT_SCORES_LISTED);
        assert!(
            forecast
                .scores
                .is_sorted_by(|one, other| one.probability >= other.probability)
        );
    }

    #[test]
    fn the_scores_left_out_are_rarer_than_said() {
        let beyond: f64 = 1.0 - poisson(5.0).iter().map(|(_, chance)| chance).sum::<f64>();
        assert!(beyond < 1.0 / 14_000.0, "{beyond}");
    }
}
