//! Attack and defence of every team, estimated from results.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::data_set::{Fixture, Played};

/// Goals of an average team added to each team's scored and conceded, observed and expected alike. They pull the estimate of a
/// team that has played little towards the average (about four matches' worth), and keep a team without a goal above 0.
pub const PRIOR_GOALS: f64 = 5.0;

/// Sweeps after which the estimate is taken as it stands. The sample season settles in ten.
pub const SWEEPS_MAX: u32 = 500;

/// A sweep that moves no strength by more than this is the last.
const SETTLED: f64 = 1e-12;

/// How a team compares with the league's average of 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Strength {
    /// Goals scored relative to what an average attack would have against the same defences. Above 1 is better.
    pub attack: f64,
    /// Goals conceded relative to what an average defence would have against the same attacks. Below 1 is better.
    pub defence: f64,
}

impl Strength {
    const AVERAGE: Self = Self {
        attack: 1.0,
        defence: 1.0,
    };
}

/// The estimated parameters of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Strengths {
    by_team: BTreeMap<String, Strength>,
    home_goals: f64,
    away_goals: f64,
    matches: usize,
}

/// Goals a team had, and those an average one would have had against the same opponents.
#[derive(Default)]
struct Tally {
    scored: f64,
    scored_by_average: f64,
    conceded: f64,
    conceded_by_average: f64,
}

impl Strengths {
    /// Estimates strengths from results.
    ///
    /// Alternates between the teams' strengths given the league's means and the means given the strengths until nothing moves;
    /// without the prior, each turn is a step up the likelihood. Cost: matches × sweeps, about ten for a season.
    pub fn estimate(played: &[Played]) -> Self {
        let matches = played.len().max(1) as f64;
        let goals = |side: fn(&Played) -> u8| {
            played
                .iter()
                .map(|match_| f64::from(side(match_)))
                .sum::<f64>()
        };
        let (home_total, away_total) = (goals(|m| m.score.home), goals(|m| m.score.away));
        let mut estimate = Self {
            by_team: played
                .iter()
                .flat_map(|match_| [&match_.fixture.home.id, &match_.fixture.away.id])
                .map(|id| (id.clone(), Strength::AVERAGE))
                .collect(),
            home_goals: home_total / matches,
            away_goals: away_total / matches,
            matches: played.len(),
        };
        for _ in 0..SWEEPS_MAX {
            let moved = estimate
                .sweep_attack(played)
                .max(estimate.sweep_defence(played));
            estimate.refit_means(played, home_total, away_total);
            if moved <= SETTLED {
                break;
            }
        }
        estimate
    }

    /// Mean goals of (home, away) in this fixture. A team without results counts as average.
    pub fn expected_goals(&self, fixture: &Fixture) -> (f64, f64) {
        let (home, away) = (self.of(&fixture.home.id), self.of(&fixture.away.id));
        (
            self.home_goals * home.attack * away.defence,
            self.away_goals * away.attack * home.defence,
        )
    }

    /// A team's strength; average for a team without results.
    pub fn of(&self, team_id: &str) -> Strength {
        self.by_team
            .get(team_id)
            .copied()
            .unwrap_or(Strength::AVERAGE)
    }

    /// Mean goals of the home side in a match of two average teams.
    pub fn home_goals(&self) -> f64 {
        self.home_goals
    }

    /// Mean goals of the away side in a match of two average teams.
    pub fn away_goals(&self) -> f64 {
        self.away_goals
    }

    /// Results the estimate rests on.
    pub fn matches(&self) -> usize {
        self.matches
    }

    fn sweep_attack(&mut self, played: &[Played]) -> f64 {
        let tallies = self.tallies(played);
        self.replace(
            |id| {
                let tally = tallies.get(id)?;
                Some((tally.scored + PRIOR_GOALS) / (tally.scored_by_average + PRIOR_GOALS))
            },
            |strength| &mut strength.attack,
        )
    }

    fn sweep_defence(&mut self, played: &[Played]) -> f64 {
        let tallies = self.tallies(played);
        self.replace(
            |id| {
                let tally = tallies.get(id)?;
                Some((tally.conceded + PRIOR_GOALS) / (tally.conceded_by_average + PRIOR_GOALS))
            },
            |strength| &mut strength.defence,
        )
    }

    fn tallies<'a>(&self, played: &'a [Played]) -> BTreeMap<&'a str, Tally> {
        let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
        for Played { fixture, score } in played {
            let (home, away) = (self.of(&fixture.home.id), self.of(&fixture.away.id));
            let tally = tallies.entry(&fixture.home.id).or_default();
            tally.scored += f64::from(score.home);
            tally.scored_by_average += self.home_goals * away.defence;
            tally.conceded += f64::from(score.away);
            tally.conceded_by_average += self.away_goals * away.attack;
            let tally = tallies.entry(&fixture.away.id).or_default();
            tally.scored += f64::from(score.away);
            tally.scored_by_average += self.away_goals * home.defence;
            tally.conceded += f64::from(score.home);
            tally.conceded_by_average += self.home_goals * home.attack;
        }
        tallies
    }

    /// Sets one strength of every team, scaled so that their mean is 1, and returns the largest change.
    fn replace(
        &mut self,
        new: impl Fn(&str) -> Option<f64>,
        place: impl Fn(&mut Strength) -> &mut f64,
    ) -> f64 {
        let values: Vec<f64> = self
            .by_team
            .keys()
            .map(|id| new(id).unwrap_or(1.0))
            .collect();
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let mut moved: f64 = 0.0;
        for (strength, value) in self.by_team.values_mut().zip(values) {
            let place = place(strength);
            let value = value / mean;
            moved = moved.max((value - *place).abs());
            *place = value;
        }
        moved
    }

    /// Sets the league's means so that the model expects as many home and away goals as there were.
    fn refit_means(&mut self, played: &[Played], home_total: f64, away_total: f64) {
        let (mut home_weight, mut away_weight) = (0.0, 0.0);
        for Played { fixture, .. } in played {
            let (home, away) = (self.of(&fixture.home.id), self.of(&fixture.away.id));
            home_weight += home.attack * away.defence;
            away_weight += away.attack * home.defence;
        }
        if home_weight > 0.0 && away_weight > 0.0 {
            self.home_goals = home_total / home_weight;
            self.away_goals = away_total / away_weight;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::data_set::{DataSet, FixtureId, Score, Team};

    fn played(home: &str, away: &str, home_goals: u8, away_goals: u8) -> Played {
        let team = |id: &str| Team {
            id: id.to_owned(),
            name: id.to_owned(),
            short_name: id.to_owned(),
        };
        Played {
            fixture: Fixture {
                id: FixtureId(1),
                round: 1,
                kickoff: "2026-06-05T19:00:00Z".parse().unwrap(),
                home: team(home),
                away: team(away),
            },
            score: Score {
                home: home_goals,
                away: away_goals,
            },
        }
    }

    #[test]
    fn the_model_expects_as_many_home_and_away_goals_as_were_scored() {
        let set = DataSet::embedded().unwrap();
        let strengths = Strengths::estimate(&set.played);
        let (mut home, mut away, mut goals) = (0.0, 0.0, (0.0, 0.0));
        for match_ in &set.played {
            let expected = strengths.expected_goals(&match_.fixture);
            home += expected.0;
            away += expected.1;
            goals.0 += f64::from(match_.score.home);
            goals.1 += f64::from(match_.score.away);
        }
        assert!((home - goals.0).abs() < 1e-6, "{home} {goals:?}");
        assert!((away - goals.1).abs() < 1e-6, "{away} {goals:?}");
    }

    #[test]
    fn strengths_average_one() {
        let set = DataSet::embedded().unwrap();
        let strengths = Strengths::estimate(&set.played);
        let teams = set.teams.len() as f64;
        let attack: f64 = set
            .teams
            .iter()
            .map(|team| strengths.of(&team.id).attack)
            .sum();
        let defence: f64 = set
            .teams
            .iter()
            .map(|team| strengths.of(&team.id).defence)
            .sum();
        assert!((attack / teams - 1.0).abs() < 1e-9 && (defence / teams - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_estimate_is_settled_long_before_the_limit_of_sweeps() {
        let set = DataSet::embedded().unwrap();
        let mut strengths = Strengths::estimate(&set.played);
        assert!(strengths.sweep_attack(&set.played) < 1e-9);
        assert!(strengths.sweep_defence(&set.played) < 1e-9);
    }

    #[test]
    fn the_clubs_the_sample_was_drawn_strongest_and_weakest_are_found_so() {
        let set = DataSet::embedded().unwrap();
        let strengths = Strengths::estimate(&set.played);
        let (best, worst) = (strengths.of("larkmoor"), strengths.of("dunmarrow"));
        assert!(best.attack > 1.15 && best.defence < 0.9, "{best:?}");
        assert!(worst.attack < 0.9 && worst.defence > 1.1, "{worst:?}");
    }

    #[test]
    fn equal_results_make_equal_teams() {
        let strengths = Strengths::estimate(&[played("a", "b", 2, 1), played("b", "a", 2, 1)]);
        assert_eq!(strengths.of("a"), strengths.of("b"));
        assert!(
            (strengths.home_goals() - 2.0).abs() < 1e-9
                && (strengths.away_goals() - 1.0).abs() < 1e-9
        );
    }

    #[test]
    fn a_team_without_goals_or_without_matches_has_a_strength_above_zero() {
        let strengths = Strengths::estimate(&[played("a", "b", 0, 0)]);
        assert!(strengths.of("a").attack > 0.0);
        assert_eq!(strengths.of("newcomer"), Strength::AVERAGE);
        let (home, away) = strengths.expected_goals(&played("a", "b", 0, 0).fixture);
        assert_eq!(
            (home, away),
            (0.0, 0.0),
            "a league without goals expects none"
        );
    }
}
