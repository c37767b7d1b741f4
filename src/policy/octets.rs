//! Sets of octets for grammars, as look-up tables; searches among octets; and octets as hexadecimal text.

/// Some of the 256 octets.
#[derive(Debug)]
pub struct OctetSet([bool; 256]);

impl OctetSet {
    /// The letters and digits of ASCII, and `others`.
    #[allow(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        reason = "an octet is below 256, checked by the compiler that runs it"
    )]
    pub const fn alphanumeric_and(others: &[u8]) -> OctetSet {
        let mut members = [false; 256];
        let mut octet = 0;
        while octet < members.len() {
            members[octet] = (octet as u8).is_ascii_alphanumeric();
            octet += 1;
        }
        let mut other = 0;
        while other < others.len() {
            members[others[other] as usize] = true;
            other += 1;
        }
        OctetSet(members)
    }

    /// Whether the set contains this octet.
    pub fn contains(&self, octet: u8) -> bool {
        self.0.get(usize::from(octet)).copied().unwrap_or(false)
    }

    /// Whether the set contains all of these octets.
    pub fn contains_all(&self, octets: &[u8]) -> bool {
        octets.iter().all(|octet| self.contains(*octet))
    }
}

/// Whether any of the octets satisfies `is`, which should be arithmetic: the compiler makes vector instructions of it. The last
/// octets of a text are examined together with some before them, so that none is examined alone unless there are fewer than four.
pub fn any(octets: &[u8], is: impl Fn(u8) -> bool) -> bool {
    if let Some(last) = octets.last_chunk::<16>() {
        let (sixteens, _) = octets.as_chunks::<16>();
        return sixteens.iter().any(|sixteen| any_of(sixteen, &is)) || any_of(last, &is);
    }
    if let (Some(first), Some(last)) = (octets.first_chunk::<8>(), octets.last_chunk::<8>()) {
        return any_of(first, &is) | any_of(last, &is);
    }
    if let (Some(first), Some(last)) = (octets.first_chunk::<4>(), octets.last_chunk::<4>()) {
        return any_of(first, &is) | any_of(last, &is);
    }
    octets.iter().any(|octet| is(*octet))
}

/// Whether any of the octets satisfies `is`, without a branch for each.
fn any_of<const COUNT: usize>(octets: &[u8; COUNT], is: impl Fn(u8) -> bool) -> bool {
    octets.iter().fold(false, |any, octet| any | is(*octet))
}

/// Appends octets to a text as lower-case hexadecimal digits, two each. Allocates only if the text lacks capacity.
pub fn push_hex<const OCTETS: usize>(text: &mut Vec<u8>, octets: [u8; OCTETS]) {
    let digit = |nibble: u8| if nibble < 10 { b'0' } else { b'a' - 10 } + nibble;
    let digits = octets.map(|octet| [digit(octet >> 4), digit(octet & 0x0f)]);
    text.extend_from_slice(digits.as_flattened());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_letters_digits_and_what_it_was_given() {
        const SET: OctetSet = OctetSet::alphanumeric_and(b"-\xff");
        for octet in 0..=255_u8 {
            let expected = octet.is_ascii_alphanumeric() || octet == b'-' || octet == 0xff;
            assert_eq!(SET.contains(octet), expected, "{octet}");
        }
        assert!(SET.contains_all(b"a-9") && !SET.contains_all(b"a 9") && SET.contains_all(b""));
    }

    #[test]
    fn any_octet_is_found_at_any_place() {
        for length in 0..40 {
            let mut octets = vec![1; length];
            assert!(!any(&octets, |octet| octet == 2), "{length}");
            for place in 0..length {
                octets[place] = 2;
                assert!(any(&octets, |octet| octet == 2), "{place} of {length}");
                octets[place] = 1;
            }
        }
    }

    #[test]
    fn every_octet_is_written_in_two_lower_case_digits() {
        for octet in 0..=255_u8 {
            let mut text = b"x".to_vec();
            push_hex(&mut text, [octet]);
            assert_eq!(text, format!("x{octet:02x}").into_bytes());
        }
    }
}
