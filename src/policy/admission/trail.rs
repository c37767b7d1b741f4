//! The verdict of each step on a request.

use serde::Serialize;

/// A step of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionStep {
    /// 1: the head is well-formed.
    WellFormed,
    /// 2: an API key is presented.
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
    /// 9: the request is forwarded.
    Upstream,
}

impl AdmissionStep {
    /// All steps, in their order.
    pub const ALL: [AdmissionStep; 9] = [
        AdmissionStep::WellFormed,
        AdmissionStep::Presented,
        AdmissionStep::Key,
        AdmissionStep::Endpoint,
        AdmissionStep::Method,
        AdmissionStep::Tier,
        AdmissionStep::Rates,
        AdmissionStep::Quota,
        AdmissionStep::Upstream,
    ];

    /// Its number in the contract.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Its name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            AdmissionStep::WellFormed => "well-formed",
            AdmissionStep::Presented => "key presented",
            AdmissionStep::Key => "key usable",
            AdmissionStep::Endpoint => "endpoint",
            AdmissionStep::Method => "method",
            AdmissionStep::Tier => "tier",
            AdmissionStep::Rates => "rates",
            AdmissionStep::Quota => "daily quota",
            AdmissionStep::Upstream => "upstream",
        }
    }
}

/// The verdict of a step. Of two verdicts of one step, the greater counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The request ended at an earlier step.
    #[default]
    NotReached,
    /// The request passes.
    Passes,
    /// Known only to a running gateway.
    Open,
    /// The request passes, because the tier is in shadow; an enforced tier would refuse it.
    WouldRefuse,
    /// The request is refused.
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
pub struct Trail([Verdict; AdmissionStep::ALL.len()]);

impl Trail {
    /// Notes a verdict, unless a greater one is noted for the same step.
    pub fn note(&mut self, check: AdmissionStep, verdict: Verdict) {
        if let Some(noted) = self.0.get_mut(check as usize) {
            *noted = verdict.max(*noted);
        }
    }

    /// All verdicts, in the order of the steps.
    pub fn verdicts(&self) -> impl Iterator<Item = (AdmissionStep, Verdict)> {
        AdmissionStep::ALL.into_iter().zip(self.0)
    }

    /// Forgets the verdicts from a step on, before these steps are judged again.
    pub(super) fn forget_from(&mut self, first: AdmissionStep) {
        let later = self.0.iter_mut().skip(first as usize);
        later.for_each(|noted| *noted = Verdict::NotReached);
    }
}
