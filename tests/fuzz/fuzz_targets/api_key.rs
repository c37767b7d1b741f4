//! Keys as clients present them. Laws: a value that is taken is found by its own digest, has a possible length and visible
//! characters, and, where it begins like one of ours, any other last character makes it refused; whatever the text, no secret of a
//! key of ours is left in what goes into a log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use touchline::policy::api_key::{ApiKey, KeyDigest, KeyPrefix, parse_presented, redacted};

fuzz_target!(|value: &[u8]| {
    let prefix = KeyPrefix::default();
    if let Ok(digest) = parse_presented(value, &prefix) {
        assert!(digest == KeyDigest::of(value));
        assert!((24..=256).contains(&value.len()));
        assert!(value.iter().all(u8::is_ascii_graphic));
        if value.starts_with(b"fpd_") {
            let mut mistyped = value.to_vec();
            let last = mistyped.last_mut().unwrap();
            *last = if *last == b'a' { b'b' } else { b'a' };
            assert!(parse_presented(&mistyped, &prefix).is_err());
        }
    }
    // A key made of these bytes, put between two halves of them.
    let mut entropy = value.iter().copied().cycle();
    let issued = ApiKey::generate(&prefix, &mut |out| {
        out.iter_mut()
            .for_each(|byte| *byte = entropy.next().unwrap_or(7) % 248);
    });
    assert!(parse_presented(issued.reveal().as_bytes(), &prefix).is_ok());
    let text = String::from_utf8_lossy(value);
    let half = (0..=text.len() / 2)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    let (before, after) = text.split_at(half);
    let logged = format!("{before}{}{after}", issued.reveal());
    let shown = redacted(&logged, &prefix);
    let secret = issued.reveal().rsplit_once('_').unwrap().1;
    assert!(!shown.contains(secret), "{shown}");
});
