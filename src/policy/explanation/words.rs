//! Reasons in words, for operators.

use jiff::Timestamp;

use crate::policy::endpoint::EndpointTable;
use crate::policy::key_record::{KeyRecord, Unusable};

/// Why a record is of no use now, and since when.
pub(super) fn unusable(record: &KeyRecord, why: Unusable) -> String {
    let change = &record.last_change;
    let said = match &change.reason {
        Some(reason) => format!(" ({reason})"),
        None => String::new(),
    };
    let last = format!(
        "last change: {} by {} at {}{said}",
        change.action.as_str(),
        change.who,
        record.updated
    );
    match why {
        Unusable::WrongSecret => format!("not the key's secret; {last}"),
        Unusable::Suspended => format!("the key is suspended; {last}"),
        Unusable::Revoked => format!("the key is revoked; {last}"),
        Unusable::Expired => match record.expires {
            Some(expires) => format!("the subscription ended at {expires}; {last}"),
            None => format!("the subscription has ended; {last}"),
        },
    }
}

/// Who may use it, and until when.
pub(super) fn usable_until(record: &KeyRecord, now: Timestamp) -> String {
    let mut text = format!(
        "{}, tier {}, of {}",
        record.state.as_str(),
        record.tier,
        record.customer
    );
    match record.expires {
        Some(expires) => text.push_str(&format!(", valid before {expires}")),
        None => text.push_str(", without end"),
    }
    if let Some(previous) = &record.previous {
        let until = previous.until;
        let tense = if now < until {
            "is valid until"
        } else {
            "ended at"
        };
        text.push_str(&format!(
            "; the secret before the last rotation {tense} {until}"
        ));
    }
    text
}

/// Why a path is no endpoint, with the likeliest slip.
pub(super) fn not_found(table: &EndpointTable, path: &str) -> String {
    let trimmed = path.trim_end_matches('/');
    let like = [
        trimmed.to_owned(),
        format!("{path}/"),
        path.to_ascii_lowercase(),
        trimmed.to_ascii_lowercase(),
    ];
    let near = like.iter().find_map(|path| table.find(path));
    match near {
        Some(endpoint) => format!(
            "no endpoint has this path; case and trailing slash matter: there is {}",
            endpoint.pattern
        ),
        None => "no endpoint has this path".to_owned(),
    }
}
