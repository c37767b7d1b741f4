//! Forecasters, ranked by how their recorded forecasts compare with the results.
//!
//! The Brier score (G. W. Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78 (1950),
//! 1-3) is proper: no expert improves it by a forecast other than the one they believe. So it is the default.

use serde::Serialize;

use super::FixtureFilter;
use crate::data_set::{DataSet, Expert, Outcome, Outcomes, Pick};
use crate::probability::rounded;

/// What experts are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankingMeasure {
    /// Brier score, lowest first.
    #[default]
    Brier,
    /// Share of backed outcomes that came true, highest first.
    HitRate,
    /// Profit in the stakes, highest first.
    Roi,
}

impl RankingMeasure {
    /// Every measure with its name in JSON and in query strings.
    pub const ALL: [(&'static str, Self); 3] = [
        ("brier", Self::Brier),
        ("hit_rate", Self::HitRate),
        ("roi", Self::Roi),
    ];
}

/// An expert's place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ranking {
    /// From 1; experts with the same value share it, and the next place is left out.
    pub rank: usize,
    /// What `rank` goes by.
    pub ranked_by: RankingMeasure,
    /// The forecaster.
    pub expert: Expert,
    /// Picks that count under the filter of the request.
    pub picks: usize,
    /// Mean over picks of the squared differences between the three probabilities and what happened, 0 (perfect) to 2; four decimals.
    pub brier: f64,
    /// 1 less the ratio of `brier` to that of always giving the league's frequencies; above 0 is better than that. Four decimals;
    /// null where the frequencies are never wrong.
    pub brier_skill: Option<f64>,
    /// Share of picks whose backed outcome came true, four decimals.
    pub hit_rate: f64,
    /// Mean decimal odds taken, two decimals.
    pub average_odds: f64,
    /// Profit or loss after one unit on every pick at the odds taken, in units, two decimals.
    pub profit_units: f64,
    /// `profit_units` in units staked, four decimals.
    pub roi: f64,
}

/// Ranks every expert with at least `picks_min` picks (and never fewer than one) on fixtures that `filter` admits.
pub fn rank_experts(
    set: &DataSet,
    filter: &FixtureFilter,
    measure: RankingMeasure,
    picks_min: usize,
) -> Vec<Ranking> {
    let reference = league_frequencies(set);
    let mut rankings: Vec<Ranking> = set
        .experts
        .iter()
        .filter_map(|expert| {
            let of_expert =
                |pick: &&Pick| pick.expert_id == expert.id && filter.admits(&pick.fixture);
            let picks: Vec<&Pick> = set.picks.iter().filter(of_expert).collect();
            (picks.len() >= picks_min.max(1)).then(|| assess(expert, &picks, measure, &reference))
        })
        .collect();
    let value = |ranking: &Ranking| match measure {
        RankingMeasure::Brier => ranking.brier,
        RankingMeasure::HitRate => -ranking.hit_rate,
        RankingMeasure::Roi => -ranking.roi,
    };
    rankings.sort_by(|one, other| {
        value(one)
            .total_cmp(&value(other))
            .then_with(|| one.expert.id.cmp(&other.expert.id))
    });
    let mut before: Option<(f64, usize)> = None;
    for (index, ranking) in rankings.iter_mut().enumerate() {
        let value = value(ranking);
        ranking.rank = match before {
            Some((same, rank)) if same == value => rank,
            Some(_) | None => index + 1,
        };
        before = Some((value, ranking.rank));
    }
    rankings
}

/// How often each outcome occurred in all results of the data set.
fn league_frequencies(set: &DataSet) -> Outcomes<f64> {
    let all = set.played.len().max(1) as f64;
    let frequency = |outcome| {
        let times = set
            .played
            .iter()
            .filter(|match_| match_.score.outcome() == outcome)
            .count();
        times as f64 / all
    };
    [Outcome::Home, Outcome::Draw, Outcome::Away]
        .map(frequency)
        .into()
}

/// The expert's figures; `rank` is set by the caller, who sees the others. `picks` is not empty.
fn assess(
    expert: &Expert,
    picks: &[&Pick],
    measure: RankingMeasure,
    reference: &Outcomes<f64>,
) -> Ranking {
    let count = picks.len() as f64;
    let mean =
        |value: &dyn Fn(&Pick) -> f64| picks.iter().map(|pick| value(pick)).sum::<f64>() / count;
    let brier = mean(&|pick| squared_error(&pick.chances, pick.result));
    let brier_of_reference = mean(&|pick| squared_error(reference, pick.result));
    let hit_rate = mean(&|pick| if pick.backed == pick.result { 1.0 } else { 0.0 });
    let roi = mean(&|pick| {
        if pick.backed == pick.result {
            pick.odds - 1.0
        } else {
            -1.0
        }
    });
    Ranking {
        rank: 0,
        ranked_by: measure,
        expert: expert.clone(),
        picks: picks.len(),
        brier: rounded(brier, 4),
        brier_skill: (brier_of_reference > 0.0)
            .then(|| rounded(1.0 - brier / brier_of_reference, 4)),
        hit_rate: rounded(hit_rate, 4),
        average_odds: rounded(mean(&|pick| pick.odds), 2),
        profit_units: rounded(roi * count, 2),
        roi: rounded(roi, 4),
    }
}

/// The Brier score of one forecast.
fn squared_error(chances: &Outcomes<f64>, result: Outcome) -> f64 {
    [Outcome::Home, Outcome::Draw, Outcome::Away]
        .into_iter()
        .map(|outcome| {
            let happened = if outcome == result { 1.0 } else { 0.0 };
            (chances.of(outcome) - happened).powi(2)
        })
        .sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn the_brier_score_is_zero_for_the_seer_and_two_for_the_fool() {
        let sure = Outcomes::from([1.0, 0.0, 0.0]);
        assert_eq!(squared_error(&sure, Outcome::Home), 0.0);
        assert_eq!(squared_error(&sure, Outcome::Away), 2.0);
        let unsure = Outcomes::from([1.0 / 3.0; 3]);
        assert!((squared_error(&unsure, Outcome::Draw) - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn ranks_follow_the_measure_asked_for_and_equals_share_one() {
        let mut set = DataSet::embedded().unwrap();
        let everything = FixtureFilter::default();
        let by_brier = rank_experts(&set, &everything, RankingMeasure::Brier, 1);
        assert!(by_brier.is_sorted_by(|one, other| one.brier <= other.brier));
        let by_roi = rank_experts(&set, &everything, RankingMeasure::Roi, 1);
        assert!(by_roi.is_sorted_by(|one, other| one.roi >= other.roi));
        // A twin of the best: the same picks under another name.
        let best = by_brier.first().unwrap().expert.id.clone();
        let twin = Expert {
            id: "twin".to_owned(),
            name: "Twin".to_owned(),
        };
        let copies = set
            .picks
            .iter()
            .filter(|pick| pick.expert_id == best)
            .cloned();
        let copies: Vec<_> = copies
            .map(|pick| Pick {
                expert_id: twin.id.clone(),
                ..pick
            })
            .collect();
        set.picks.extend(copies);
        set.experts.push(twin);
        let ranks = rank_experts(&set, &everything, RankingMeasure::Brier, 1);
        assert_eq!(
            ranks
                .iter()
                .map(|ranking| ranking.rank)
                .take(3)
                .collect::<Vec<_>>(),
            [1, 1, 3]
        );
    }

    #[test]
    fn experts_with_too_few_picks_are_left_out() {
        let set = DataSet::embedded().unwrap();
        let count = |picks_min| {
            rank_experts(
                &set,
                &FixtureFilter::default(),
                RankingMeasure::Brier,
                picks_min,
            )
            .len()
        };
        let most = rank_experts(&set, &FixtureFilter::default(), RankingMeasure::Brier, 1);
        let most = most.iter().map(|ranking| ranking.picks).max().unwrap();
        assert_eq!(count(0), set.experts.len());
        assert!(count(most) >= 1);
        assert_eq!(count(most + 1), 0);
    }
}
