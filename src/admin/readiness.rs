//! Whether the gateway serves, and with which of its promises.

use serde::Serialize;

use super::reloads::ConfigView;
use crate::store::WithoutStore;

/// The body of `/readyz`.
#[derive(Debug, PartialEq, Serialize)]
pub struct Readiness {
    pub(super) status: &'static str,
    pub(super) draining: bool,
    pub(super) store_up: bool,
    /// Whether the store decides the charges of some keys, while `store_up` is false.
    pub(super) store_partly_up: bool,
    /// Why the store is not used, while it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store_trouble: Option<String>,
    /// How charges are decided while the store is unavailable.
    pub(super) without_store: WithoutStore,
    pub(super) pending_units: u64,
    pub(super) keys_loaded: bool,
    /// Seconds since the key table was known to be current, or `None` if it never was.
    pub(super) keys_age_seconds: Option<f64>,
    pub(super) keys_usable: bool,
    pub(super) keys: usize,
    /// Why the gateway is not `ready`, as sentences for operators: reasons of the store, servers whose names do not resolve, and tiers of
    /// keys that are not configured.
    pub(super) reasons: Vec<String>,
    pub(super) config: ConfigView,
}
