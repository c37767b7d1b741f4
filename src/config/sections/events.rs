//! What is told of keys near their limits, and to whom.

use std::path::PathBuf;

use super::{HOUR, MINUTE, MS, http_url, seconds};
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::scalar::Text;
use crate::config::text::{EventsText, Leaf, Section, WebhookText};
use crate::config::{Events, Secret, Webhook};
use crate::policy::crossing::{SHARES_MAX, Share, Shares, SigningSecret};

const SHARES: [u64; 3] = [80, 95, 100];
const SHARE_HINT: &str = "write a whole percentage from 1% to 100%, such as 80%";

/// The section, by default the three shares of the shipped file without a webhook.
pub(super) fn events(check: &mut Check<'_>, at: &Path, section: Section<EventsText>) -> Events {
    let text = check.section(at, section).unwrap_or_default();
    let shares_at = at.key("shares");
    let shipped = SHARES.map(|percent| format!("{percent}%"));
    check.default(&shares_at, shipped.to_vec());
    let shares = check.texts(&shares_at, text.shares, |text| {
        let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
        let share = percent.and_then(Share::of_percent);
        share.ok_or_else(|| Wrong::new(format!("{text:?} is not a share"), SHARE_HINT))
    });
    let shares =
        shares.unwrap_or_else(|| SHARES.into_iter().filter_map(Share::of_percent).collect());
    let shares = Shares::new(shares).unwrap_or_else(|| {
        let hint = format!("at most {SHARES_MAX}");
        check.wrong(&shares_at, "there are too many shares", hint);
        Shares::default()
    });
    Events {
        shares,
        webhook: webhook(check, &at.key("webhook"), text.webhook),
    }
}

fn webhook(check: &mut Check<'_>, at: &Path, section: Section<WebhookText>) -> Option<Webhook> {
    let text = check.section(at, section)?;
    let url = one_of(
        check,
        at,
        ("url", &text.url),
        ("url_file", &text.url_file),
        checked_url,
    );
    let secret = (("secret", &text.secret), ("secret_file", &text.secret_file));
    let secret = one_of(check, at, secret.0, secret.1, |text| {
        SigningSecret::parse(text)
            .map_err(|error| Wrong::new("it is not a signing secret", error.to_string()))
    });
    let timeout = check.bounded(
        &at.key("timeout"),
        &text.timeout,
        seconds(5),
        MS * 100..=MINUTE,
    );
    let give_up = check.bounded(
        &at.key("give_up"),
        &text.give_up,
        72 * HOUR,
        MINUTE..=144 * HOUR,
    );
    Some(Webhook {
        url: url?,
        secret: secret?,
        timeout,
        give_up,
    })
}

/// The one of a text and a file that is given, as `parse` reads it. What is wrong is told without the text.
fn one_of<T>(
    check: &mut Check<'_>,
    at: &Path,
    (name, written): (&str, &Leaf<Text>),
    (file_name, file): (&str, &Leaf<PathBuf>),
    parse: impl Fn(&str) -> Result<T, Wrong>,
) -> Option<T> {
    let (at, file_at) = (at.key(name), at.key(file_name));
    let path = check.leaf(&file_at, file);
    let text = check.leaf(&at, written);
    if written.is_given() && file.is_given() {
        let hint = format!("keep one of {name} and {file_name}");
        check.wrong_key(&file_at, "it is given twice", hint);
        return None;
    }
    if !written.is_given() && !file.is_given() {
        let hint = format!("write {name}: or {file_name}:");
        check.wrong(&at, "the key is missing", hint);
        return None;
    }
    let (at, secret) = match (path, text) {
        (Some(path), _) => (file_at.clone(), check.secret_file(&file_at, &path)?),
        (None, Some(Text(text))) => (at, Secret::from(text)),
        (None, None) => return None,
    };
    match parse(secret.reveal()) {
        Ok(value) => Some(value),
        Err(wrong) => {
            check.wrong(&at, wrong.message, wrong.hint);
            None
        }
    }
}

fn checked_url(text: &str) -> Result<Secret, Wrong> {
    http_url(
        text,
        "it is not the URL of a webhook",
        "write https://host/path",
    )
}
