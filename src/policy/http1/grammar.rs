//! Names and values as every head has them (RFC 9110 section 5).

use crate::policy::octets::{self, OctetSet};

/// A valid `Content-Length`: digits only (RFC 9110 section 8.6), 19 at most.
pub fn length(value: &[u8]) -> Option<u64> {
    let is_number = (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    let digits = value.iter().map(|digit| u64::from(digit - b'0'));
    is_number.then(|| digits.fold(0, |number, digit| number * 10 + digit))
}

/// The common length of all `Content-Length` values of an answer, each a number or a list of numbers: a recipient may treat equal
/// ones as one (RFC 9110 section 8.6). `None` if they differ or are not numbers.
pub fn agreed_length<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<u64> {
    let mut all = values
        .into_iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(|element| length(element.trim_ascii()));
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
}

/// A registered name or address with an optional port; no user, path, list or space (RFC 9110 section 7.2).
pub fn is_host(host: &[u8]) -> bool {
    let name = match host.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !host.ends_with(b"]") => {
            let (name, port) = host.split_at(colon);
            if port.len() > 6 || !port.iter().skip(1).all(u8::is_ascii_digit) {
                return false;
            }
            let digits = port.iter().skip(1).map(|digit| u32::from(digit - b'0'));
            if digits.fold(0, |port, digit| port * 10 + digit) > u32::from(u16::MAX) {
                return false;
            }
            name
        }
        _ => host,
    };
    match name.strip_prefix(b"[").map(|rest| rest.strip_suffix(b"]")) {
        Some(Some(address)) => std::str::from_utf8(address)
            .is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok()),
        Some(None) => false,
        None => !name.is_empty() && HOST_NAME.contains_all(name),
    }
}

/// A character of a registered name, as used in practice.
static HOST_NAME: OctetSet = OctetSet::alphanumeric_and(b"-._");

/// A character of a token (RFC 9110 section 5.6.2).
pub(super) static TOKEN: OctetSet = OctetSet::alphanumeric_and(b"!#$%&'*+-.^_`|~");

/// Whether all characters are allowed in a field's value (RFC 9110 section 5.5): no control character except the tab.
pub(super) fn is_field_value(value: &[u8]) -> bool {
    !octets::any(value, |octet| {
        (octet < b' ' && octet != b'\t') || octet == 0x7f
    })
}
