//! The verdict of each step on a request.

use serde::Serialize;

/// A step of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// 1: the request is well-formed.
    WellFormed,
    /// 2: it presents an API key.
    Presented,
    /// 3: the key may be used.
    Key,
    /// 4: the path is an endpoint.
    Endpoint,
    /// 5: the endpoint takes the method.
    Method,
    /// 6: the tier includes the endpoint.
    Tier,
    /// 7: burst and concurrency.
    Rates,
    /// 8: the daily quota has room.
    Quota,
    /// 9: it is forwarded.
    Upstream,
}

impl Check {
    /// All of them, in their order.
    pub const ALL: [Check; 9] = [
        Check::WellFormed,
        Check::Presented,
        Check::Key,
        Check::Endpoint,
        Check::Method,
        Check::Tier,
        Check::Rates,
        Check::Quota,
        Check::Upstream,
    ];

    /// Its number in the contract.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Its name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Check::WellFormed => "well-formed",
            Check::Presented => "key presented",
            Check::Key => "key usable",
            Check::Endpoint => "endpoint",
            Check::Method => "method",
            Check::Tier => "tier",
            Check::Rates => "rates",
            Check::Quota => "daily quota",
            Check::Upstream => "upstream",
        }
    }
}

/// What a step makes of a request. Of two, the greater decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It does not get here.
    #[default]
    NotReached,
    /// It goes on.
    Passes,
    /// Only a running gateway knows.
    Open,
    /// It goes on, because the tier is in shadow; an enforced one would refuse it.
    WouldRefuse,
    /// It ends here.
    Refuses,
}

impl Verdict {
    /// The words for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::NotReached => "not reached",
            Verdict::Passes => "passes",
            Verdict::Open => "open",
            Verdict::WouldRefuse => "would refuse",
            Verdict::Refuses => "refuses",
        }
    }
}

/// The verdicts on one request, by step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trail([Verdict; Check::ALL.len()]);

impl Trail {
    /// Notes a verdict, unless a greater one of the same step is noted.
    pub fn note(&mut self, check: Check, verdict: Verdict) {
        if let Some(noted) = self.0.get_mut(check as usize) {
            *noted = verdict.max(*noted);
        }
    }

    /// All verdicts, in the order of the steps.
    pub fn verdicts(&self) -> impl Iterator<Item = (Check, Verdict)> {
        Check::ALL.into_iter().zip(self.0)
    }

    /// Forgets the verdicts from a step on: those are judged anew.
    pub(super) fn forget_from(&mut self, first: Check) {
        let later = self.0.iter_mut().skip(first as usize);
        later.for_each(|noted| *noted = Verdict::NotReached);
    }
}
