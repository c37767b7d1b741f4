//! The five resources, computed from the data set once at start.
//!
//! Everything about an upcoming fixture is a row that names its [`Fixture`], so one [`FixtureFilter`] serves all lists. Rankings
//! are computed for each request instead, because a filter changes which picks count. Rows are in the order of kick-off, then
//! fixture number, which is the order of the lists.

mod filter;
mod insights;
mod markets;
mod predictions;
mod rankings;
mod sentiment;

pub use filter::{FixtureFilter, OfFixture};
pub use insights::{Figure, Insight, InsightKind, Unit};
pub use markets::{Market, MarketKind, Selection};
pub use predictions::{Basis, ExpectedGoals, Prediction, PredictionDetail};
pub use rankings::{Ranking, RankingMeasure, rank_experts};
pub use sentiment::Sentiment;

use crate::data_set::{DataSet, Fixture};
use crate::model::{Forecast, Strengths};

/// All there is to serve.
#[derive(Debug, Clone)]
pub struct Catalogue {
    set: DataSet,
    predictions: Vec<PredictionDetail>,
    markets: Vec<Market>,
    insights: Vec<Insight>,
    sentiment: Vec<Sentiment>,
}

impl Catalogue {
    /// Estimates the model from the results in `set` and computes every row.
    pub fn new(set: DataSet) -> Self {
        let strengths = Strengths::estimate(&set.played);
        let mut catalogue = Self {
            predictions: Vec::new(),
            markets: Vec::new(),
            insights: Vec::new(),
            sentiment: Vec::new(),
            set,
        };
        for fixture in &catalogue.set.upcoming {
            let (home, away) = strengths.expected_goals(fixture);
            let forecast = Forecast::from_means(home, away);
            let stakes = catalogue
                .set
                .stakes
                .get(&fixture.id)
                .copied()
                .unwrap_or_default();
            let sentiment = Sentiment::new(fixture, stakes, forecast.result);
            catalogue
                .markets
                .extend(markets::of_fixture(fixture, &forecast));
            catalogue.insights.extend(insights::of_fixture(
                fixture,
                &forecast,
                &strengths,
                &sentiment,
                &catalogue.set.played,
            ));
            catalogue.predictions.push(PredictionDetail::new(
                fixture,
                &forecast,
                &strengths,
                catalogue.set.league.as_of,
            ));
            catalogue.sentiment.push(sentiment);
        }
        catalogue
    }

    /// The data set everything was computed from.
    pub fn data_set(&self) -> &DataSet {
        &self.set
    }

    /// Predictions of all upcoming fixtures.
    pub fn predictions(&self) -> &[PredictionDetail] {
        &self.predictions
    }

    /// All markets of all upcoming fixtures.
    pub fn markets(&self) -> &[Market] {
        &self.markets
    }

    /// All insights on all upcoming fixtures.
    pub fn insights(&self) -> &[Insight] {
        &self.insights
    }

    /// How the stakes lie on each upcoming fixture.
    pub fn sentiment(&self) -> &[Sentiment] {
        &self.sentiment
    }

    /// The highest round of the season that has a fixture, played or not.
    pub fn rounds(&self) -> u16 {
        let played = self.set.played.iter().map(|match_| &match_.fixture);
        played
            .chain(&self.set.upcoming)
            .map(|fixture: &Fixture| fixture.round)
            .max()
            .unwrap_or(0)
    }
}
