//! The fields of a reply of `INFO`.

use redis::InfoDict;

/// A text, empty if there is none.
pub fn text_of(info: &InfoDict, field: &str) -> String {
    info.get(field).unwrap_or_default()
}

/// A number, or 0 if there is none.
pub fn number_of(info: &InfoDict, field: &str) -> u64 {
    info.get(field).unwrap_or_default()
}
