//! Which certificate a client gets, by the requested name (SNI, RFC 6066 section 3).
//!
//! Names are compared according to RFC 6125 section 6.4: in ASCII lower case, label by label; a `*` stands for exactly one whole
//! label, the first, followed by at least one other. An exact name precedes a wildcard, and of several certificates with the same
//! name the first is used. Invariant: every result is the number of a given certificate.

use std::collections::HashMap;

/// The names of some certificates, each identified by its number.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServerNames {
    exact: HashMap<String, Vec<usize>>,
    /// The part after `*.`.
    wildcard: HashMap<String, Vec<usize>>,
}

impl ServerNames {
    /// The names of each certificate, in the order of their numbers. Invalid names and other wildcards are ignored.
    pub fn new<N: AsRef<str>>(certificates: impl IntoIterator<Item = Vec<N>>) -> ServerNames {
        let mut names = ServerNames::default();
        for (number, certificate) in certificates.into_iter().enumerate() {
            for name in &certificate {
                names.add(name.as_ref(), number);
            }
        }
        names
    }

    fn add(&mut self, name: &str, number: usize) {
        let name = name.to_ascii_lowercase();
        let numbers = match name.strip_prefix("*.") {
            Some(rest) if is_name(rest) => self.wildcard.entry(rest.to_owned()).or_default(),
            None if is_name(&name) => self.exact.entry(name).or_default(),
            Some(_) | None => return,
        };
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }

    /// The certificates for a client that requests `name`, the best one first. Costs one allocation.
    pub fn find(&self, name: &str) -> impl Iterator<Item = usize> + use<'_> {
        let name = name.to_ascii_lowercase();
        let wildcard = match name.split_once('.') {
            Some((first, rest)) if !first.is_empty() => self.wildcard.get(rest),
            Some(_) | None => None,
        };
        let exact = self.exact.get(&name);
        [exact, wildcard].into_iter().flatten().flatten().copied()
    }
}

/// Labels of letters, digits, `-` and `_` with dots between them.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(certificates: &[&[&str]], name: &str) -> Vec<usize> {
        let names = certificates.iter().map(|names| names.to_vec());
        ServerNames::new(names).find(name).collect()
    }

    #[test]
    fn a_wildcard_stands_for_one_whole_label_only() {
        let certificates: &[&[&str]] = &[&["*.example.com"]];
        for (name, expected) in [
            ("a.example.com", vec![0]),
            ("A.EXAMPLE.com", vec![0]),
            ("xn--bcher-kva.example.com", vec![0]),
            ("example.com", vec![]),
            (".example.com", vec![]),
            ("a.b.example.com", vec![]),
            ("a.example.com.evil", vec![]),
            ("aexample.com", vec![]),
            ("", vec![]),
            ("*.example.com", vec![0]),
        ] {
            assert_eq!(found(certificates, name), expected, "{name}");
        }
    }

    #[test]
    fn wildcards_of_another_kind_are_no_names() {
        for name in [
            "*",
            "*.",
            "f*.example.com",
            "*f.example.com",
            "a.*.com",
            "*.*.com",
            "**.com",
        ] {
            let names = ServerNames::new([vec![name]]);
            assert_eq!(names, ServerNames::default(), "{name}");
        }
    }

    #[test]
    fn exact_names_go_before_wildcards_and_earlier_certificates_before_later_ones() {
        let certificates: &[&[&str]] = &[
            &["*.example.com", "other.example"],
            &["api.example.com", "API.example.com"],
            &["api.example.com", "*.example.com"],
        ];
        assert_eq!(found(certificates, "api.example.com"), [1, 2, 0, 2]);
        assert_eq!(found(certificates, "www.example.com"), [0, 2]);
        assert_eq!(found(certificates, "other.example"), [0]);
        assert_eq!(found(certificates, "unknown.example"), [0; 0]);
    }

    proptest! {
        #[test]
        fn whatever_name_is_requested_only_given_certificates_are_found(
            names in proptest::collection::vec(proptest::collection::vec("[*a-b.]{0,6}", 0..3), 0..4),
            asked in "[*a-b.]{0,8}",
        ) {
            let given = names.len();
            let found: Vec<usize> = ServerNames::new(names).find(&asked).collect();
            prop_assert!(found.iter().all(|number| *number < given));
        }
    }
}
