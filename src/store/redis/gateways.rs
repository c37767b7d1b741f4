//! The register of gateways, and this one's entry in it.

pub mod gateway_id;
pub mod heartbeat;
pub mod presence;
pub mod register;
