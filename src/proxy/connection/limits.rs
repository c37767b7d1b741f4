//! The configured limits as types of the rooms that enforce them.

use super::writes::Patience;
use crate::config::Limits;
use crate::policy::http2::ControlRates;

pub(super) fn patience_of(limits: &Limits) -> Patience {
    let window = limits.response_write;
    let bytes = limits.response_rate.saturating_mul(window.as_secs());
    Patience { window, bytes }
}

pub(super) fn rates_of(limits: &Limits) -> ControlRates {
    ControlRates {
        resets: limits.h2_resets,
        control_frames: limits.h2_control_frames,
    }
}
