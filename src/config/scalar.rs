//! The types of single scalars in the file: durations, sizes, numbers, addresses, words.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use serde_json::{Value as Json, json};

use super::choices::{Cleartext, ClientMode, Level, Protocol, ProxyProtocol};
use crate::policy::billing::{Months, UnusedKeys};
use crate::policy::choice::Choice;
use crate::policy::compression::Coding;
use crate::policy::enforcement::Enforcement;
use crate::policy::secret::Secret;
use crate::policy::store_settings::{Durability, OutagePolicy};
use crate::telemetry::access_log::Destination;
use crate::telemetry::diagnostics::Format;

/// A value with a `${VARIABLE}`, which may be anything.
pub(super) const VARIABLE: &str = r"\$\{";

/// A type that is read from one scalar.
pub(super) trait Scalar: Clone {
    /// The name of the type with its article: `a duration`.
    const WHAT: &'static str;
    /// How to write it.
    const HINT: &'static str;
    /// The JSON type of the value as written; if it is not `string`, only a variable is written as a text.
    const TYPE: &'static str = "string";
    /// Whether the value is a secret, of which no fact and no problem shows anything.
    const SECRET: bool = false;
    /// The permitted values in a word or two, besides [`Self::CHOICES`]; empty if there are no others.
    const OTHERS: &'static str = "text";
    /// The permitted words, if they can be listed.
    const CHOICES: &'static [&'static str] = &[];
    /// The other permitted forms, as a regular expression; if empty: none if there are words, otherwise any.
    const PATTERN: &'static str = "";

    fn parse(text: &str) -> Option<Self>;

    /// The value as text, the same for equal values; nothing of a secret.
    fn show(&self) -> String;

    /// The value as text like [`Self::show`], but a secret in full.
    fn effect(&self) -> String {
        self.show()
    }

    /// The value as JSON.
    fn json(&self) -> Json {
        let shown = self.show();
        match Self::TYPE {
            "string" => Json::String(shown),
            _ => serde_json::from_str(&shown).unwrap_or(Json::Null),
        }
    }

    /// Whether the value is within bounds.
    fn is_within(&self, bounds: &RangeInclusive<Self>) -> bool
    where
        Self: PartialOrd,
    {
        bounds.contains(self)
    }

    /// The permitted values, in Markdown.
    fn values() -> String {
        let words = Self::CHOICES.iter().map(|word| format!("`{word}`"));
        let others = Some(Self::OTHERS.to_owned()).filter(|others| !others.is_empty());
        let separator = match Self::TYPE {
            "boolean" => " or ",
            _ => ", ",
        };
        words.chain(others).collect::<Vec<_>>().join(separator)
    }

    /// The JSON Schema of the type's values.
    fn schema() -> Json {
        let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
        if Self::TYPE != "string" {
            return json!({ "type": [Self::TYPE, "string"], "pattern": VARIABLE });
        }
        let pattern = match Self::PATTERN {
            "" => VARIABLE.to_owned(),
            pattern => format!("{pattern}|{VARIABLE}"),
        };
        match (Self::CHOICES, Self::PATTERN) {
            ([], "") => json!({ "type": "string" }),
            ([], _) => text(&pattern),
            (words, _) => json!({ "anyOf": [{ "enum": words }, text(&pattern)] }),
        }
    }
}

/// Any text.
#[derive(Clone)]
pub(super) struct Text(String);

impl Scalar for Text {
    const WHAT: &'static str = "a text";
    const HINT: &'static str = "put it in double quotes";

    fn parse(text: &str) -> Option<Text> {
        Some(Text(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

impl Scalar for Secret {
    const WHAT: &'static str = Text::WHAT;
    const HINT: &'static str = Text::HINT;
    const SECRET: bool = true;

    fn parse(text: &str) -> Option<Secret> {
        Some(Secret::hide(text.to_owned()))
    }

    fn show(&self) -> String {
        "…".to_owned()
    }

    fn effect(&self) -> String {
        self.reveal().to_owned()
    }
}

/// A size in bytes.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct ByteSize(pub(super) u64);

const BYTE_UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl Scalar for ByteSize {
    const WHAT: &'static str = "a size";
    const HINT: &'static str = "write a whole number and B, KiB, MiB or GiB, such as 16KiB";
    const OTHERS: &'static str = "size";
    const PATTERN: &'static str = "^[0-9]+(B|KiB|MiB|GiB)$";

    fn parse(text: &str) -> Option<ByteSize> {
        with_unit(text, &BYTE_UNITS).map(ByteSize)
    }

    fn show(&self) -> String {
        show_unit(self.0, &BYTE_UNITS)
    }
}

const MILLISECOND_UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

impl Scalar for Duration {
    const WHAT: &'static str = "a duration";
    const HINT: &'static str = "write a whole number and ms, s, m, h or d, such as 100ms";
    const OTHERS: &'static str = "duration";
    const PATTERN: &'static str = "^[0-9]+(ms|s|m|h|d)$";

    fn parse(text: &str) -> Option<Duration> {
        with_unit(text, &MILLISECOND_UNITS).map(Duration::from_millis)
    }

    fn show(&self) -> String {
        show_unit(
            u64::try_from(self.as_millis()).unwrap_or(u64::MAX),
            &MILLISECOND_UNITS,
        )
    }
}

/// Parses digits directly followed by one of the units.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text.strip_prefix(digits)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    whole_number(digits)?.checked_mul(*factor)
}

/// Writes the amount in the largest unit that leaves a whole number.
fn show_unit(amount: u64, units: &[(&str, u64)]) -> String {
    units
        .iter()
        .find(|(_, factor)| amount > 0 && amount.is_multiple_of(*factor))
        .or(units.last())
        .map(|(name, factor)| format!("{}{name}", amount / factor))
        .unwrap_or_default()
}

fn whole_number(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

impl Scalar for u64 {
    const WHAT: &'static str = "a whole number";
    const HINT: &'static str = "write digits only, such as 1000";
    const OTHERS: &'static str = "whole number";
    const TYPE: &'static str = "integer";

    fn parse(text: &str) -> Option<u64> {
        whole_number(text)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for SocketAddr {
    const WHAT: &'static str = "an address to listen on";
    const HINT: &'static str =
        "write an IP address and a port, such as 127.0.0.1:8080 or \"[::]:8080\"";
    const OTHERS: &'static str = "address:port";
    const PATTERN: &'static str = ":[0-9]+$";

    fn parse(text: &str) -> Option<SocketAddr> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for PathBuf {
    const WHAT: &'static str = "a file name";
    const HINT: &'static str = "write a path, absolute or from the working directory";
    const PATTERN: &'static str = ".";

    fn parse(text: &str) -> Option<PathBuf> {
        // A text of several lines is rather the contents of a file than its name.
        let fits = !text.is_empty() && !text.contains(char::is_control);
        fits.then(|| PathBuf::from(text))
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

/// Implements scalars for enums of words.
macro_rules! choices {
    ($($type:ty, $json:literal, $what:literal, $hint:literal;)*) => {$(
        impl Scalar for $type {
            const WHAT: &'static str = $what;
            const HINT: &'static str = $hint;
            const TYPE: &'static str = $json;
            const OTHERS: &'static str = "";
            const CHOICES: &'static [&'static str] = <$type>::WORDS;

            fn parse(text: &str) -> Option<$type> {
                <$type>::of_str(text)
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

choices! {
    Enforcement, "boolean", "true or false", "write true, or false to count requests of the tier without refusing any";
    ProxyProtocol, "boolean", "true or false", "write true, or false for connections without such a header";
    Cleartext, "string", "a choice for cleartext", "write loopback or allowed";
    ClientMode, "string", "a mode of client certificates", "write required or optional";
    OutagePolicy, "string", "an outage policy", "write bounded, deny or open";
    Choice, "string", "a way to choose a server", "write round_robin, least_loaded or by_key";
    Protocol, "string", "a version of HTTP", "write http1, http2 or auto";
    Level, "string", "a log level", "write error, warn, info, debug or trace";
    Months, "string", "a way to bill months", "write by_day or whole";
    UnusedKeys, "string", "a way to bill unused keys", "write bill or skip";
    Format, "string", "a log format", "write json or pretty";
    Coding, "string", "a coding that the gateway supports", "write zstd or gzip";
}

/// The methods of endpoints. `CONNECT` and `TRACE` are not forwarded by a gateway; `HEAD` is allowed with `GET`.
impl Scalar for Method {
    const WHAT: &'static str = "a method that an endpoint can have";
    const HINT: &'static str = "write GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS";
    const OTHERS: &'static str = "";
    const CHOICES: &'static [&'static str] =
        &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

    fn parse(text: &str) -> Option<Method> {
        Self::CHOICES.contains(&text).then(|| text.parse().ok())?
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for Durability {
    const WHAT: &'static str = "a durability";
    const HINT: &'static str = "write commit, or a duration such as 1s";
    const OTHERS: &'static str = Duration::OTHERS;
    const CHOICES: &'static [&'static str] = &["commit"];
    const PATTERN: &'static str = Duration::PATTERN;

    fn parse(text: &str) -> Option<Durability> {
        match text {
            "commit" => Some(Durability::Commit),
            _ => Duration::parse(text).map(Durability::Interval),
        }
    }

    fn show(&self) -> String {
        match self {
            Durability::Commit => "commit".to_owned(),
            Durability::Interval(interval) => interval.show(),
        }
    }

    fn is_within(&self, bounds: &RangeInclusive<Durability>) -> bool {
        *self == Durability::Commit || bounds.contains(self)
    }
}

/// A share in hundredths.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Percent(pub(super) u64);

impl Scalar for Percent {
    const WHAT: &'static str = "a percentage";
    const HINT: &'static str = "write a whole number and %, such as 2%";
    const OTHERS: &'static str = "percentage";
    const PATTERN: &'static str = "^[0-9]+%$";

    fn parse(text: &str) -> Option<Percent> {
        with_unit(text, &[("%", 1)]).map(Percent)
    }

    fn show(&self) -> String {
        format!("{}%", self.0)
    }
}

/// An amount of money in cents of US dollars.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Price(pub(super) u64);

impl Scalar for Price {
    const WHAT: &'static str = "a price";
    const HINT: &'static str = "write US dollars, with or without cents, such as 99 or 99.50";
    const OTHERS: &'static str = "number";
    const TYPE: &'static str = "number";

    /// Parses digits only: the gateway holds no amount as a floating-point number.
    fn parse(text: &str) -> Option<Price> {
        let (dollars, cents) = match text.split_once('.') {
            None => (text, 0),
            // YAML writes the number 99.50 as 99.5.
            Some((dollars, tens)) if tens.len() == 1 => (dollars, whole_number(tens)? * 10),
            Some((dollars, cents)) if cents.len() == 2 => (dollars, whole_number(cents)?),
            Some(_) => return None,
        };
        whole_number(dollars)?
            .checked_mul(100)?
            .checked_add(cents)
            .map(Price)
    }

    fn show(&self) -> String {
        format!("{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

impl Scalar for Destination {
    const WHAT: &'static str = "a destination for the access log";
    const HINT: &'static str =
        "write stdout, stderr, off or a file name with a slash in it, such as var/access.log";
    const OTHERS: &'static str = "file with a slash in its name";
    const CHOICES: &'static [&'static str] = &["stdout", "stderr", "off"];
    const PATTERN: &'static str = "/";

    fn parse(text: &str) -> Option<Destination> {
        match text {
            "stdout" => Some(Destination::Stdout),
            "stderr" => Some(Destination::Stderr),
            "off" => Some(Destination::Off),
            // A word without a slash is more likely a misspelt choice than a file.
            file if file.contains('/') => PathBuf::parse(file).map(Destination::File),
            _ => None,
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        for (text, expected) in [
            ("100ms", Some(100)),
            ("1s", Some(1_000)),
            ("0s", Some(0)),
            ("5m", Some(300_000)),
            ("24h", Some(86_400_000)),
            ("1d", Some(86_400_000)),
            ("", None),
            ("s", None),
            ("1", None),
            ("1 s", None),
            ("-1s", None),
            ("+1s", None),
            ("1.5s", None),
            ("1S", None),
            ("1sec", None),
            ("18446744073709551615s", None),
            ("99999999999999999999ms", None),
        ] {
            assert_eq!(
                Duration::parse(text),
                expected.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }

    #[test]
    fn sizes_are_whole_numbers_with_a_binary_unit() {
        for (text, expected) in [
            ("0B", Some(0)),
            ("16KiB", Some(16_384)),
            ("1MiB", Some(1 << 20)),
            ("2GiB", Some(2 << 30)),
            ("16KB", None),
            ("16kib", None),
            ("16", None),
            ("16 KiB", None),
            ("18446744073709551615KiB", None),
        ] {
            assert_eq!(
                ByteSize::parse(text).map(|bytes| bytes.0),
                expected,
                "{text:?}"
            );
        }
    }

    #[test]
    fn quantities_are_shown_in_their_largest_whole_unit() {
        assert_eq!(Duration::from_millis(1_500).show(), "1500ms");
        assert_eq!(Duration::from_secs(7_200).show(), "2h");
        assert_eq!(Duration::ZERO.show(), "0ms");
        assert_eq!(ByteSize(1 << 20).show(), "1MiB");
        assert_eq!(ByteSize(1_000).show(), "1000B");
    }

    #[test]
    fn a_price_is_read_to_the_cent() {
        for (text, cents) in [
            ("99", Some(9_900)),
            ("99.5", Some(9_950)),
            ("99.50", Some(9_950)),
            ("0.05", Some(5)),
            ("0", Some(0)),
            ("99.999", None),
            ("99.", None),
            (".5", None),
            ("-1", None),
            ("1e3", None),
            ("184467440737095517", None),
            ("", None),
        ] {
            let price = Price::parse(text);
            assert_eq!(price.map(|price| price.0), cents, "{text:?}");
        }
        assert_eq!(Price(9_905).show(), "99.05");
    }

    #[test]
    fn an_access_log_goes_to_a_stream_a_file_or_nowhere() {
        assert_eq!(Destination::parse("off"), Some(Destination::Off));
        assert_eq!(
            Destination::parse("var/a.log"),
            Some(Destination::File("var/a.log".into()))
        );
        assert_eq!(Destination::parse("stdour"), None);
    }
}
