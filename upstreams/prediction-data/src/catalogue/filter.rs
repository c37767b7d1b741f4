//! Which fixtures a caller asks for.

use jiff::Timestamp;

use crate::data_set::{Fixture, FixtureId};

/// A row about one fixture.
pub trait OfFixture {
    /// The fixture.
    fn fixture(&self) -> &Fixture;
}

/// Conditions on a fixture; all that are given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FixtureFilter {
    /// This fixture only.
    pub fixture_id: Option<FixtureId>,
    /// Fixtures of this team, at home or away.
    pub team_id: Option<String>,
    /// Fixtures of this round.
    pub round: Option<u16>,
    /// Kick-off at this instant or later.
    pub from: Option<Timestamp>,
    /// Kick-off at this instant or earlier.
    pub to: Option<Timestamp>,
}

impl FixtureFilter {
    /// Whether the fixture meets every condition.
    pub fn admits(&self, fixture: &Fixture) -> bool {
        self.fixture_id.is_none_or(|id| fixture.id == id)
            && self
                .team_id
                .as_deref()
                .is_none_or(|team_id| fixture.involves(team_id))
            && self.round.is_none_or(|round| fixture.round == round)
            && self.from.is_none_or(|from| fixture.kickoff >= from)
            && self.to.is_none_or(|to| fixture.kickoff <= to)
    }
}
