//! Where the money lies on a fixture, and how that differs from the model.

use serde::Serialize;

use super::OfFixture;
use crate::data_set::{Fixture, Outcome, Outcomes, Stake};
use crate::probability::{Probability, apportion, rounded};

/// The bets placed on a fixture.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sentiment {
    /// The match.
    pub fixture: Fixture,
    /// Number of bets on all outcomes.
    pub bets: u64,
    /// Money staked on all outcomes, whole euros.
    pub stake_eur: u64,
    /// Share of the bets on each outcome; sum to 1.
    pub share_of_bets: Outcomes<Probability>,
    /// Share of the money on each outcome; sum to 1.
    pub share_of_stakes: Outcomes<Probability>,
    /// The model's probability of each outcome; sum to 1.
    pub model: Outcomes<Probability>,
    /// Share of the money less the model's probability, four decimals: above 0 where the crowd expects more than the model.
    pub crowd_minus_model: Outcomes<f64>,
    /// The outcome with the most money on it; the earlier of home, draw, away where two have the same.
    pub crowd_favourite: Outcome,
}

impl Sentiment {
    /// The sentiment on `fixture`, from the bets on it and the model's probabilities.
    pub fn new(fixture: &Fixture, stakes: Outcomes<Stake>, model: Outcomes<Probability>) -> Self {
        let all = [stakes.home, stakes.draw, stakes.away];
        let of_stakes = Outcomes::from(apportion(all.map(|stake| f64::from(stake.stake_eur))));
        let gap = |outcome| {
            rounded(
                of_stakes.of(outcome).fraction() - model.of(outcome).fraction(),
                4,
            )
        };
        let crowd_favourite =
            if stakes.home.stake_eur >= stakes.draw.stake_eur.max(stakes.away.stake_eur) {
                Outcome::Home
            } else if stakes.draw.stake_eur >= stakes.away.stake_eur {
                Outcome::Draw
            } else {
                Outcome::Away
            };
        Self {
            fixture: fixture.clone(),
            bets: all.iter().map(|stake| u64::from(stake.bets)).sum(),
            stake_eur: all.iter().map(|stake| u64::from(stake.stake_eur)).sum(),
            share_of_bets: apportion(all.map(|stake| f64::from(stake.bets))).into(),
            share_of_stakes: of_stakes,
            model,
            crowd_minus_model: [Outcome::Home, Outcome::Draw, Outcome::Away]
                .map(gap)
                .into(),
            crowd_favourite,
        }
    }
}

impl OfFixture for Sentiment {
    fn fixture(&self) -> &Fixture {
        &self.fixture
    }
}
