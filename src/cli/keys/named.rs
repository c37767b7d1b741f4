//! The tier and the key that an argument names, or an error with where to look for it; and the key's limit.

use anyhow::{Context, anyhow};
use jiff::civil::Date;

use crate::cli::session::Session;
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::key_record::{KeyRecord, TierName};

/// The configured tier with this name, or a clause with the configured ones.
pub(super) fn tier_named(config: &Config, name: &str) -> Result<TierName, String> {
    let tiers = config.tiers.iter().map(|(tier, _)| tier);
    let found = tiers.clone().find(|tier| tier.as_str() == name);
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = tiers.map(TierName::as_str).collect();
        format!("the configured tiers are {}", names.join(", "))
    })
}

/// The configured tier with this name.
pub(super) fn configured_tier(config: &Config, name: &str) -> anyhow::Result<TierName> {
    tier_named(config, name).map_err(|names| anyhow!("there is no tier {name:?}; {names}"))
}

/// The limit of a key on a day; `None` if its tier is not configured.
pub(super) fn limit_on(config: &Config, record: &KeyRecord, date: Date) -> Option<u64> {
    let tier = config.tier(&record.tier)?;
    Some(record.limit_on(date, tier.daily.get()))
}

/// The record of the key with this id.
pub(super) async fn existing(session: &Session, id: KeyId) -> anyhow::Result<KeyRecord> {
    session
        .store
        .key(id)
        .await?
        .with_context(|| format!("there is no key {id}: look for it with `touchline keys list`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_tier_is_reported_with_the_configured_ones() {
        let config = Config::parse("g", include_str!("../../../gateway.yaml"), &|_| None).unwrap();
        assert_eq!(configured_tier(&config, "pro").unwrap().as_str(), "pro");
        assert_eq!(
            configured_tier(&config, "gold").unwrap_err().to_string(),
            "there is no tier \"gold\"; the configured tiers are starter, pro, enterprise"
        );
    }
}
