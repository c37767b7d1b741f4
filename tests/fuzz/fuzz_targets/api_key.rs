//! Keys as clients present them. Laws: a value that is taken is found by its own digest, has a possible length and visible
//! characters; a key of ours is not found with any one character changed; and whatever stands around a key of ours in a text, its
//! secret is gone from what goes into a log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use touchline::policy::api_key::{ApiKey, KeyDigest, KeyPrefix, parse_presented, redacted};

/// What the default prefix makes of the beginning of a key.
const PREFIX: &str = "fpd_";

fuzz_target!(|value: &[u8]| {
    let prefix = KeyPrefix::default();
    if let Ok(digest) = parse_presented(value, &prefix) {
        assert!(digest == KeyDigest::of(value));
        assert!((24..=256).contains(&value.len()));
        assert!(value.iter().all(u8::is_ascii_graphic));
    }
    // A key made of these bytes, put between two halves of them.
    let mut entropy = value.iter().copied().cycle();
    let issued = ApiKey::generate(&prefix, &mut |out| {
        out.iter_mut()
            .for_each(|byte| *byte = entropy.next().unwrap_or(7) % 248);
    });
    let key = issued.reveal().as_bytes();
    assert!(parse_presented(key, &prefix) == Ok(KeyDigest::of(key)));
    // One character after the prefix mistyped.
    if let [at, typed, ..] = value {
        let mut mistyped = key.to_vec();
        let at = PREFIX.len() + usize::from(*at) % (key.len() - PREFIX.len());
        mistyped[at] = *typed;
        assert!(mistyped == key || parse_presented(&mistyped, &prefix) != Ok(KeyDigest::of(key)));
    }
    let text = String::from_utf8_lossy(value);
    let (public, secret) = issued.reveal().rsplit_once('_').unwrap();
    let half = (0..=text.len() / 2)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    let (before, after) = text.split_at(half);
    if [text.as_ref(), &format!("{before}{public}_")].iter().any(|known| known.contains(secret)) {
        // It is known already, and not as a part of the key.
        return;
    }
    let logged = format!("{before}{}{after}", issued.reveal());
    let shown = redacted(&logged, &prefix);
    assert!(!shown.contains(secret), "{shown}");
});
