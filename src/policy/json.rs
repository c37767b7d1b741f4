//! JSON written member by member (RFC 8259), for the texts that a request writes: its line in the access log and a problem body.
//!
//! Invariant: a text is written unchanged only if nothing in it needs escaping; otherwise `serde_json` writes it. What a terminal would
//! not simply show is escaped too, so that no request acts on the terminal of those who read the log.

use super::octets;

/// Appends `before`, which is the separator and name of a member, and a text as its value. Allocates only if `out` lacks capacity.
pub fn push_text(out: &mut Vec<u8>, before: &str, text: &str) {
    let is_escaped = |octet: u8| !(0x20..0x7f).contains(&octet) || octet == b'"' || octet == b'\\';
    out.extend_from_slice(before.as_bytes());
    if octets::any(text.as_bytes(), is_escaped) {
        return push_escaped(out, text);
    }
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, text: &str) {
    // A text never fails.
    for c in serde_json::to_string(text).unwrap_or_default().chars() {
        if is_unshowable(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.extend_from_slice(b"\\u");
                octets::push_hex(out, unit.to_be_bytes());
            }
        } else {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

/// Whether a terminal would act on the character, or reorder others, instead of showing it.
pub fn is_unshowable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
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
    fn what_a_terminal_would_act_on_is_escaped() {
        let mut out = Vec::new();
        push_text(&mut out, "", "é\u{9b}31m\u{7f}\u{2028}\u{202e}\n");
        let expected = r#""é\u009b31m\u007f\u2028\u202e\n""#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn numbers_come_back_unchanged() {
        for number in [i64::MIN, -1, 0, 9, 10, i64::MAX] {
            assert_eq!(written("", number)["number"], number);
        }
    }
}
