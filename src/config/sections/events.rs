//! Events of keys near their limits, and the webhook that receives them.

use std::time::Duration;

use super::pairs::one_of;
use super::values::{HOUR, MINUTE, MS, http_url, seconds};
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::rows::{distinct, leaf, rows, secret_file, section, text, within};
use crate::policy::secret::Secret;
use crate::policy::threshold_event::{SHARES_MAX, Share, Shares, SigningSecret};

rows! {
    /// Events of keys near their limits, and the webhook that receives them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Events {
        /// Shares of a key's limit, such as 80%. Each is reported once for a key and day, by log line, metric and webhook; [] reports
        /// nothing.
        shares: Shares = distinct(|| text(share)).or_list("80% 95% 100%").then(shares);
        /// The webhook that receives events by HTTP POST; without it, none is sent.
        webhook: Option<Webhook> = section(webhook);
    }

    struct WebhookRows {
        /// The URL of the webhook: http:// or https://.
        url: Option<Secret> = leaf();
        /// A file with the URL.
        url_file: Option<Secret> = secret_file();
        /// The secret that signs events (Standard Webhooks): whsec_ and the base64 of 24 to 64 bytes.
        secret: Option<Secret> = leaf();
        /// A file with the secret.
        secret_file: Option<Secret> = secret_file();
        /// The timeout of one attempt.
        timeout: Duration = within(seconds(5), MS * 100..=MINUTE);
        /// The age after which an event is no longer sent.
        give_up: Duration = within(72 * HOUR, MINUTE..=144 * HOUR);
    }
}

/// The webhook that receives events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// An `http` or `https` URL; its path is often a secret.
    pub url: Secret,
    /// The secret that signs events.
    pub secret: SigningSecret,
    /// The timeout of one attempt.
    pub timeout: Duration,
    /// The age after which an event is no longer sent.
    pub give_up: Duration,
}

fn webhook(check: &mut Check<'_>, at: &Path, rows: WebhookRows) -> Option<Webhook> {
    let url = one_of(check, at, "url", (rows.url, rows.url_file), |url| {
        http_url(
            url,
            "the value is not the URL of a webhook",
            "write https://host/path",
        )
    });
    let secret = (rows.secret, rows.secret_file);
    let secret = one_of(check, at, "secret", secret, |secret| {
        SigningSecret::parse(secret.reveal())
            .map_err(|error| Wrong::new("the value is not a signing secret", error.to_string()))
    });
    Some(Webhook {
        url: url?,
        secret: secret?,
        timeout: rows.timeout,
        give_up: rows.give_up,
    })
}

fn shares(check: &mut Check<'_>, at: &Path, shares: Vec<Share>) -> Shares {
    Shares::new(shares).unwrap_or_else(|| {
        let hint = format!("at most {SHARES_MAX}");
        check.wrong(at, "there are too many shares", hint);
        Shares::default()
    })
}

fn share(text: &str) -> Result<Share, Wrong> {
    let hint = "write a whole percentage from 1% to 100%, such as 80%";
    let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
    let share = percent.and_then(Share::of_percent);
    share.ok_or_else(|| Wrong::not("a share", hint))
}
