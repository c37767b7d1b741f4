//! Finding and showing keys, without changing any.

use std::io::{BufWriter, Write};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::json;

use super::named::{configured_tier, existing, limit_on};
use super::view::{KeyView, LIST_HEADER, detailed, detailed_fields};
use crate::cli::output::long_table::write_long_table;
use crate::cli::output::{RecordFormat, RowsFormat, write_csv, write_json_rows, write_record};
use crate::cli::session::Session;
use crate::policy::api_key::KeyId;
use crate::policy::audit::Wanted;
use crate::policy::key_record::{Action, KeyRecord, TierName};
use crate::policy::words::words;

#[derive(Debug, Args)]
pub(in crate::cli) struct ListArguments {
    /// Only keys of this customer, written exactly as stored.
    #[arg(long)]
    customer: Option<String>,
    /// Only keys of this tier: a configured one, or a removed one that keys still have.
    #[arg(long)]
    tier: Option<TierName>,
    /// Only keys in this state.
    #[arg(long, value_enum)]
    state: Option<ShownState>,
    /// Only keys with this text in id, customer or label, ignoring case.
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    output: RowsFormat,
}

words! {
    /// The state of a key in a table.
    #[derive(ValueEnum)]
    enum ShownState {
        /// Active, and its subscription has not ended.
        Active = "active",
        /// Refused until resumed.
        Suspended = "suspended",
        /// Refused permanently.
        Revoked = "revoked",
        /// Active, but its subscription has ended.
        Expired = "expired",
    }
}

impl ListArguments {
    /// The text by which the store finds the records: that of `--search`, or the customer, or `None` to read all.
    fn indexed_text(&self) -> Option<&str> {
        self.search
            .as_deref()
            .or(self.customer.as_deref().map(str::trim))
    }

    /// Whether a record matches every filter.
    fn holds(&self, record: &KeyRecord, now: Timestamp) -> bool {
        let state = KeyView::of(record, now).shown_state();
        let has_text = |text: &String| record.search_text().contains(&text.to_lowercase());
        let is_of = |customer: &String| *customer.trim() == *record.customer;
        self.customer.as_ref().is_none_or(is_of)
            && self.tier.as_ref().is_none_or(|tier| *tier == record.tier)
            && self.state.is_none_or(|wanted| wanted.as_str() == state)
            && self.search.as_ref().is_none_or(has_text)
    }
}

/// Lists the keys that match the filters.
pub(super) async fn list(
    session: &Session,
    wanted: &ListArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let now = session.store.server_time().await?;
    let mut found = Vec::new();
    let mut take = |page: Vec<KeyRecord>| {
        let page = page.into_iter();
        found.extend(page.filter(|record| wanted.holds(record, now)));
    };
    match wanted.indexed_text() {
        Some(text) => take(session.store.search_keys(text).await?),
        None => session.store.walk_keys(&mut take).await?,
    }
    if let Some(tier) = &wanted.tier
        && found.is_empty()
        && let Err(unknown) = configured_tier(&session.config, tier.as_str())
    {
        // Perhaps other keys have the tier.
        let mut is_held = false;
        let mut look = |page: Vec<KeyRecord>| {
            is_held |= page.iter().any(|record| record.tier == *tier);
        };
        session.store.walk_keys(&mut look).await?;
        if !is_held {
            return Err(unknown);
        }
    }
    found.sort_unstable_by_key(|record| (record.created, record.id));
    let views = || found.iter().map(|record| KeyView::of(record, now));
    let out = &mut BufWriter::new(out);
    match wanted.output {
        RowsFormat::Json => write_json_rows(out, views()),
        RowsFormat::Csv => write_csv(out, &LIST_HEADER, views()),
        RowsFormat::Table => {
            let calendar = &session.config.calendar;
            let cells = |record: &KeyRecord| {
                let fields = KeyView::of(record, now).fields(calendar).into_iter();
                Ok(fields.map(|(_, value)| value).collect())
            };
            write_long_table(out, &LIST_HEADER, &[], &found, cells, &[])
        }
    }
}

/// Shows one key and the units it used today.
pub(super) async fn show(
    session: &Session,
    id: KeyId,
    output: RecordFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let now = session.store.server_time().await?;
    let record = existing(session, id).await?;
    let day = session.config.calendar.day_at(now)?;
    let usage = session.store.usage_of(day.date, day.date, &[id]).await?;
    let used: u64 = usage.iter().map(|usage| usage.used).sum();
    let limit = limit_on(&session.config, &record, day.date);
    let grants = Wanted {
        key: Some(id),
        what: Some(Action::Grant),
        ..Wanted::default()
    };
    let grants = session.store.audit(grants).await?;
    let granted = grants.iter().filter_map(|one| {
        let (date, extra) = one.granted()?;
        let (reason, who, at) = (&one.reason, &one.who, one.at);
        Some(json!({ "date": date, "extra": extra, "reason": reason, "who": who, "at": at }))
    });
    // Null, like the limit, if the key's tier is not configured.
    let remaining = limit.map(|limit| limit.saturating_sub(used));
    let more = json!({
        "granted": granted.collect::<Vec<_>>(),
        "today": { "date": day.date, "used": used, "limit": limit, "remaining": remaining },
    });
    output.write(out, &detailed(&record, now, more), |out| {
        let mut fields = detailed_fields(&record, now, &session.config.calendar, &grants);
        let limit = limit.map_or_else(
            || "an unknown limit: the tier is not configured".to_owned(),
            |limit| limit.to_string(),
        );
        fields.push(("used today", format!("{used} of {limit}")));
        write_record(out, &fields)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::key_record::KeyState;
    use crate::policy::key_record::tests::key_of;

    fn wanted() -> ListArguments {
        ListArguments {
            customer: None,
            tier: None,
            state: None,
            search: None,
            output: RowsFormat::Table,
        }
    }

    #[test]
    fn a_key_is_listed_if_it_meets_every_filter() {
        let (_, mut record) = key_of("pro");
        record.label = Some("Söhne live".into());
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let text = |text: &str| Some(text.to_owned());
        let of = |tier: &str| Some(tier.parse().unwrap());
        for (filter, holds) in [
            (wanted(), true),
            (
                ListArguments {
                    customer: text("Acme"),
                    ..wanted()
                },
                true,
            ),
            (
                ListArguments {
                    customer: text("Acm"),
                    ..wanted()
                },
                false,
            ),
            (
                ListArguments {
                    tier: of("pro"),
                    ..wanted()
                },
                true,
            ),
            (
                ListArguments {
                    tier: of("starter"),
                    ..wanted()
                },
                false,
            ),
            (
                ListArguments {
                    search: text("ACM"),
                    ..wanted()
                },
                true,
            ),
            (
                ListArguments {
                    search: text("sÖHNE"),
                    ..wanted()
                },
                true,
            ),
            (
                ListArguments {
                    search: text(record.id.as_str()),
                    ..wanted()
                },
                true,
            ),
            (
                ListArguments {
                    search: text("pro"),
                    ..wanted()
                },
                false,
            ),
            (
                ListArguments {
                    tier: of("pro"),
                    search: text("none"),
                    ..wanted()
                },
                false,
            ),
        ] {
            assert_eq!(filter.holds(&record, now), holds, "{filter:?}");
        }
    }

    #[test]
    fn each_key_is_in_the_one_state_that_the_table_shows() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let states = ShownState::value_variants();
        for (state, expires, expected) in [
            (KeyState::Active, None, ShownState::Active),
            (KeyState::Active, Some(now), ShownState::Expired),
            (KeyState::Suspended, Some(now), ShownState::Suspended),
            (KeyState::Revoked, None, ShownState::Revoked),
        ] {
            let (_, mut record) = key_of("pro");
            (record.state, record.expires) = (state, expires);
            let listed: Vec<ShownState> = states
                .iter()
                .copied()
                .filter(|one| {
                    ListArguments {
                        state: Some(*one),
                        ..wanted()
                    }
                    .holds(&record, now)
                })
                .collect();
            assert_eq!(listed, [expected]);
        }
    }
}
