//! Where traces are exported to.

use super::{MINUTE, MS, http_url, seconds, upstreams};
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::scalar::Percent;
use crate::config::text::{OtlpText, Section, TracingText};
use crate::config::{Otlp, Secret, Tracing};

const SAMPLE_PERCENT: u64 = 1;

pub(super) fn tracing(check: &mut Check<'_>, at: &Path, section: Section<TracingText>) -> Tracing {
    let text = check.section(at, section).unwrap_or_default();
    Tracing {
        otlp: otlp(check, &at.key("otlp"), text.otlp),
    }
}

fn otlp(check: &mut Check<'_>, at: &Path, section: Section<OtlpText>) -> Option<Otlp> {
    let text = check.section(at, section)?;
    let url_at = at.key("url");
    check.required(
        &url_at,
        &text.url,
        "write url: http://127.0.0.1:4318/v1/traces",
    );
    let url = check.parsed(&url_at, &text.url, checked_url);
    let header = upstreams::header(check, &at.key("header"), text.header);
    let sample = check.bounded(
        &at.key("sample"),
        &text.sample,
        Percent(SAMPLE_PERCENT),
        Percent(0)..=Percent(100),
    );
    let timeout = check.bounded(
        &at.key("timeout"),
        &text.timeout,
        seconds(5),
        MS * 100..=MINUTE,
    );
    Some(Otlp {
        url: url?,
        header,
        sample_percent: u8::try_from(sample.0).unwrap_or(100),
        timeout,
    })
}

fn checked_url(text: &str) -> Result<Secret, Wrong> {
    http_url(
        text,
        "it is not the URL of a collector",
        "write it whole, such as https://collector.example:4318/v1/traces",
    )
}
