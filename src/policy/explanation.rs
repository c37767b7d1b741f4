//! Why the contract would serve or refuse one request, step by step, without sending it.
//!
//! The steps are those of [`admission`], driven with answers that cost nothing; this module adds the reasons and the settings
//! that decide. Nothing is charged. What only a running gateway knows (its burst and concurrency, its upstream) is reported as
//! open, never guessed.

use super::admission::{self, AdmissionStep, Caller, NoKey, Permit, Refusal, Trail, Verdict};
use super::key_record::KeyRecord;
use super::rate_limit::QuotaStatus;
use super::rejection::Limit;

mod question;
mod words;

pub use question::Question;

use words::Reasons;

/// One step and its verdict on the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The step.
    pub check: AdmissionStep,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason, for operators, not for clients.
    pub reason: String,
    /// The settings that decide, by their paths in the configuration, such as `tiers.pro.daily`.
    pub settings: Vec<String>,
}

/// How the request ends.
#[derive(Debug)]
pub enum Outcome {
    /// The request is forwarded; the upstream decides the rest.
    Forwarded(Permit<Box<KeyRecord>, ()>),
    /// The gateway answers it itself, with the quota status of the key if the answer has one; nothing is charged.
    Answered(Option<QuotaStatus>),
    /// The request is refused.
    Refused(Refusal<Box<KeyRecord>>),
}

/// Every step, and how the request ends.
#[derive(Debug)]
pub struct Explanation {
    /// All nine steps, in their order.
    pub steps: Vec<Step>,
    /// The outcome.
    pub outcome: Outcome,
}

/// Takes a request through the steps of the contract.
pub fn explain(question: &Question<'_>) -> Explanation {
    // The limits that apply to the request: only a gateway knows the room left in them.
    let (mut trail, mut limits) = (Trail::default(), Vec::new());
    let outcome = question.outcome(&mut trail, &mut limits);
    if !limits.is_empty() {
        trail.note(AdmissionStep::Rates, Verdict::Open);
    }
    let reasons = Reasons::new(question, &limits);
    let steps = trail.verdicts().map(|(check, verdict)| {
        let (reason, settings) = match verdict {
            Verdict::NotReached => (String::new(), Vec::new()),
            Verdict::Passes | Verdict::Open | Verdict::WouldRefuse | Verdict::Refuses => {
                reasons.of(check, verdict)
            }
        };
        Step {
            check,
            verdict,
            reason,
            settings,
        }
    });
    let steps = steps.collect();
    Explanation { steps, outcome }
}

type NextStep<'a> = admission::Next<'a, Box<KeyRecord>, ()>;

impl Question<'_> {
    /// The holder of the key: the request is assumed to present it with its current secret.
    fn caller(&self) -> Result<Caller<Box<KeyRecord>>, NoKey<Box<KeyRecord>>> {
        let record = self.record.ok_or(NoKey::Invalid)?;
        let usable = record.usable(&record.digest, self.now);
        usable.map_err(|_| NoKey::Invalid)?;
        Caller::new(Box::new(record.clone()), self.now, self.day, self.terms)
    }

    fn outcome(&self, trail: &mut Trail, limits: &mut Vec<Limit>) -> Outcome {
        let head = self.head.clone();
        let mut next: NextStep<'_> =
            admission::begin(self.method, head, self.endpoints, Some(trail));
        loop {
            next = match next {
                NextStep::Key(ask) => ask.answer(self.caller()),
                NextStep::Room(ask) => {
                    limits.push(ask.limit());
                    ask.answer(Ok(()))
                }
                NextStep::Charge(ask) => {
                    let (cost, caller) = (u64::from(ask.endpoint().cost.get()), ask.caller());
                    let (enforcement, limit) =
                        (caller.terms.enforcement, caller.quota_status.limit);
                    if enforcement.has_room(self.used, cost, limit) {
                        ask.granted(self.used.saturating_add(cost), ())
                    } else {
                        ask.exhausted(self.used)
                    }
                }
                NextStep::Count(ask) => ask.answer(Some(self.used)),
                NextStep::Usage(ask) => return Outcome::Answered(Some(ask.answered(self.used).1)),
                NextStep::Document => return Outcome::Answered(None),
                NextStep::Permitted(permit) => return Outcome::Forwarded(permit),
                NextStep::Refused(refusal) => return Outcome::Refused(refusal),
            }
        }
    }
}

#[cfg(test)]
mod tests;
