//! JSON written member by member (RFC 8259), for the texts that a request writes: its line in the access log and a problem body.
//!
//! Invariant: a text is written unchanged only if nothing in it needs escaping; otherwise `serde_json` writes it.

use super::octets;

/// Appends `before`, which is the separator and name of a member, and a text as its value. Allocates only if `out` lacks capacity.
pub fn push_text(out: &mut Vec<u8>, before: &str, text: &str) {
    let is_escaped = |octet: u8| octet < 0x20 || octet == b'"' || octet == b'\\';
    if octets::any(text.as_bytes(), is_escaped) {
        out.extend_from_slice(before.as_bytes());
        // Writing to memory never fails.
        let _ = serde_json::to_writer(out, text);
        return;
    }
    out.extend_from_slice(before.as_bytes());
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Appends `before`, which is the separator and name of a member, and a number as its value.
pub fn push_number(out: &mut Vec<u8>, before: &str, number: impl itoa::Integer) {
    out.extend_from_slice(before.as_bytes());
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, number: i64) -> serde_json::Value {
        let mut out = Vec::new();
        push_text(&mut out, "{\"text\":", text);
        push_number(&mut out, ",\"number\":", number);
        out.push(b'}');
        serde_json::from_slice(&out)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
    }

    #[test]
    fn every_character_comes_back_unchanged() {
        for character in (0..0x300)
            .chain([0x2028, 0xfeff, 0x1_f600])
            .filter_map(char::from_u32)
        {
            let text = format!("/a{character}b{character}");
            assert_eq!(written(&text, 0)["text"], text, "{character:?}");
        }
    }

    #[test]
    fn numbers_come_back_unchanged() {
        for number in [i64::MIN, -1, 0, 9, 10, i64::MAX] {
            assert_eq!(written("", number)["number"], number);
        }
    }
}
