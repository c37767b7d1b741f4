//! The configuration of Redis: its servers, the login, the key prefix, the timeouts, and service during an outage.

pub use crate::policy::store_settings::{
    OutagePolicy, OutageSettings, RedisSettings as Settings, RedisTls as Tls, Servers,
    without_password,
};
