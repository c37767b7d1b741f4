//! The keys of a command, and the slot of the first one.
//!
//! Follows the Redis Cluster specification: CRC16 (XMODEM) of the key, or of its first non-empty `{tag}`, modulo 16,384.

use redis::{Arg, Cmd};

/// The slots of every cluster.
pub const SLOTS: u16 = 16_384;
/// How many of the keys of a script are shown to operators: a call may be about hundreds.
const NAMES_SHOWN: usize = 3;

/// The slot of a command's key, or `None` for a command that any node can answer.
pub fn slot_of(command: &Cmd) -> Option<u16> {
    let first = argument(command, first_key(command)?)?;
    Some(slot(first))
}

/// The name of the first key of a command, of a script the first three; for operators.
pub fn names_of(command: &Cmd) -> String {
    let Some(first) = first_key(command) else {
        return String::new();
    };
    // The number of a script's keys is before them.
    let number = argument(command, first - 1).and_then(|number| std::str::from_utf8(number).ok());
    let keys = number.and_then(|number| number.parse().ok()).unwrap_or(1);
    let shown = (first..first + keys.min(NAMES_SHOWN)).filter_map(|at| argument(command, at));
    let shown = shown.map(String::from_utf8_lossy);
    Vec::from_iter(shown).join(", ")
}

/// Whether a command runs a script.
pub fn is_script(command: &Cmd) -> bool {
    let name = argument(command, 0).unwrap_or_default();
    [&b"EVAL"[..], b"EVALSHA"]
        .iter()
        .any(|script| name.eq_ignore_ascii_case(script))
}

/// The place of the first key among the arguments of a command, if it has one.
fn first_key(command: &Cmd) -> Option<usize> {
    let name = argument(command, 0)?.to_ascii_uppercase();
    match name.as_slice() {
        b"PING" | b"TIME" | b"SCRIPT" | b"INFO" | b"ROLE" | b"CONFIG" | b"CLUSTER" | b"SCAN"
        | b"CLIENT" | b"DBSIZE" | b"WAIT" => None,
        b"EVAL" | b"EVALSHA" => Some(3),
        b"XINFO" | b"OBJECT" | b"MEMORY" => Some(2),
        _ => Some(1),
    }
}

fn argument(command: &Cmd, place: usize) -> Option<&[u8]> {
    match command.args_iter().nth(place)? {
        Arg::Simple(text) => Some(text),
        _ => None,
    }
}

/// The slot of a key.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key
        .iter()
        .position(|byte| *byte == b'{')
        .and_then(|open| key.get(open + 1..))
        .and_then(|rest| {
            let close = rest.iter().position(|byte| *byte == b'}')?;
            rest.get(..close).filter(|tag| !tag.is_empty())
        });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"a{}{b}"), crc16(b"a{}{b}") % SLOTS);
        assert_eq!(slot(b"a{{b}}"), slot(b"{b"));
        assert_eq!(slot(b"a{b"), crc16(b"a{b") % SLOTS);
    }

    #[test]
    fn the_names_of_a_command_are_those_of_its_keys_and_of_a_script_the_first_three() {
        for (words, names) in [
            ("GET a", "a"),
            ("HGET a b", "a"),
            ("XINFO STREAM a", "a"),
            ("EVALSHA f 2 a b c", "a, b"),
            ("EVAL f 4 a b c d e", "a, b, c"),
            ("EVAL f 0 a", ""),
            ("TIME", ""),
        ] {
            let mut words_of = words.split(' ');
            let mut command = redis::cmd(words_of.next().unwrap());
            command.arg(Vec::from_iter(words_of));
            assert_eq!(names_of(&command), names, "{words}");
        }
    }

    #[test]
    fn a_command_goes_where_its_key_is() {
        let command = |words: &str| {
            let mut words = words.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            for word in words {
                command.arg(word);
            }
            slot_of(&command)
        };
        let foo = Some(12_182);
        for words in [
            "GET foo",
            "hget foo field",
            "EVALSHA sha 1 foo x",
            "EVAL text 2 foo {foo}2",
            "XINFO STREAM foo",
        ] {
            assert_eq!(command(words), foo, "{words}");
        }
        for words in ["PING", "TIME", "SCRIPT LOAD foo", "SCAN 0", "EVAL text 0"] {
            assert_eq!(command(words), None, "{words}");
        }
    }
}
