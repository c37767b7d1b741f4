//! Answering slowly or failing on purpose, so that clients of this service can be tested for it.
//!
//! Nothing is left to chance: of data requests 1, 2, 3, … with a failure rate r, request n fails exactly when n·r passes a whole
//! number that (n-1)·r has not. A rate of 0.1 fails every tenth, 0.5 every second, 1 all. `/healthz` neither waits nor counts.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::answer::Problem;

/// Millionths in a whole.
const WHOLE_MILLIONTHS: u32 = 1_000_000;

/// A share of requests, 0 to 1 in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailRate(u32);

impl FailRate {
    /// No request.
    pub const NEVER: Self = Self(0);
    /// Every request.
    pub const ALWAYS: Self = Self(WHOLE_MILLIONTHS);

    /// Whether the rate takes in request `number`, counted from 1.
    pub fn takes(self, number: u64) -> bool {
        let failures_until =
            |number: u64| u128::from(number) * u128::from(self.0) / u128::from(WHOLE_MILLIONTHS);
        failures_until(number) > failures_until(number.saturating_sub(1))
    }
}

impl FromStr for FailRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse::<f64>() {
            // Between 0 and a million after the check: the cast only drops the fraction, which is 0.
            Ok(rate) if (0.0..=1.0).contains(&rate) => {
                Ok(Self((rate * f64::from(WHOLE_MILLIONTHS)).round() as u32))
            }
            Ok(_) | Err(_) => {
                Err("give a number from 0 to 1, such as 0.1 to fail every tenth request".to_owned())
            }
        }
    }
}

/// What to do to data requests before they are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultPlan {
    /// Time every answer is held back.
    pub delay: Duration,
    /// Requests that fail, after the delay.
    pub fail_rate: FailRate,
    /// The status they fail with.
    pub fail_status: StatusCode,
}

impl Default for FaultPlan {
    /// Neither delay nor failure.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            fail_rate: FailRate::NEVER,
            fail_status: StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// A plan with the count of requests so far.
#[derive(Debug)]
pub struct Fault {
    plan: FaultPlan,
    requests: AtomicU64,
}

impl Fault {
    /// A plan before its first request.
    pub fn new(plan: FaultPlan) -> Self {
        Self {
            plan,
            requests: AtomicU64::new(0),
        }
    }
}

/// Middleware: carries out the plan, then lets the request through unless it is to fail.
pub async fn apply(State(fault): State<Arc<Fault>>, request: Request, next: Next) -> Response {
    let number = fault.requests.fetch_add(1, Ordering::Relaxed) + 1;
    if !fault.plan.delay.is_zero() {
        tokio::time::sleep(fault.plan.delay).await;
    }
    if fault.plan.fail_rate.takes(number) {
        return Problem::Staged(fault.plan.fail_status).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_rate_takes_its_share_of_requests_evenly() {
        let taken = |rate: &str, until: u64| -> Vec<u64> {
            let rate: FailRate = rate.parse().unwrap();
            (1..=until).filter(|number| rate.takes(*number)).collect()
        };
        assert_eq!(taken("0.1", 30), [10, 20, 30]);
        assert_eq!(taken("0.5", 6), [2, 4, 6]);
        assert_eq!(taken("0.3", 10), [4, 7, 10]);
        assert_eq!(taken("1", 3), [1, 2, 3]);
        assert!(taken("0", 1_000).is_empty());
        assert_eq!(taken("0.000001", 1_000_000), [1_000_000]);
    }

    #[test]
    fn a_rate_outside_0_to_1_is_refused_with_a_hint() {
        for bad in ["-0.1", "1.01", "NaN", "inf", "ten", ""] {
            assert!(
                FailRate::from_str(bad).unwrap_err().contains("from 0 to 1"),
                "{bad}"
            );
        }
    }
}
