//! The verdict of each step on a request.

use serde::Serialize;

use crate::policy::words::words;

words! {
    /// A step of the contract, with its name for people, in their order.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum AdmissionStep {
        /// 1: the head is well-formed.
        WellFormed = "well-formed",
        /// 2: an API key is presented.
        Presented = "key presented",
        /// 3: the key may be used.
        Key = "key usable",
        /// 4: the path is an endpoint.
        Endpoint = "endpoint",
        /// 5: the endpoint takes the method.
        Method = "method",
        /// 6: the tier includes the endpoint.
        Tier = "tier",
        /// 7: burst and concurrency.
        Rates = "rates",
        /// 8: the daily quota has room.
        Quota = "daily quota",
        /// 9: the request is forwarded.
        Upstream = "upstream",
    }
}

impl AdmissionStep {
    /// Its number in the contract.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }
}

words! {
    /// The verdict of a step, in words for people. Of two verdicts of one step, the greater counts.
    #[derive(Default, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Verdict {
        /// The request ended at an earlier step.
        #[default]
        NotReached = "not reached",
        /// The request passes.
        Passes = "passes",
        /// Known only to a running gateway.
        Open = "open",
        /// The request passes, because the tier is in shadow; an enforced tier would refuse it.
        WouldRefuse = "would refuse",
        /// The request is refused.
        Refuses = "refuses",
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
