//! The stated model: results → strengths ([`Strengths`]) → the chance of every score ([`Forecast`]).
//!
//! M. J. Maher, "Modelling association football scores", Statistica Neerlandica 36 (1982), 109-118: the goals of either side are
//! independent Poisson counts, whose means multiply a team's attack, its opponent's defence and the league's average for the
//! venue. The formulae, and what this model leaves out on purpose, are in the README, section "The model".

mod forecast;
mod strengths;

pub use forecast::{
    BothTeamsToScore, CORRECT_SCORES_LISTED, Forecast, GOALS_PER_SIDE_MAX, ScoreChance, TotalGoals,
};
pub use strengths::{PRIOR_GOALS, SWEEPS_MAX, Strength, Strengths};

/// Name of the model in answers; it changes when the numbers for the same results would.
pub const NAME: &str = "maher-poisson-1";
