//! Targets. Laws: a target that is taken is taken byte for byte (what is matched is a part of what came, and what the upstream
//! receives); and no upstream, however it normalises, reads another endpoint from it than the one that was matched.
#![no_main]

#[path = "../../harness/src/paths.rs"]
#[allow(dead_code)]
mod paths;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use paths::NORMALISERS;
use pingora::http::RequestHeader;
use touchline::config::Config;
use touchline::policy::target::Target;

static CONFIG: OnceLock<Config> = OnceLock::new();

fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        let text = include_str!("../../edge/normalisers.yaml");
        Config::parse("normalisers.yaml", text, &|_| None).unwrap()
    })
}

fuzz_target!(|raw: &[u8]| {
    let Ok(target) = Target::parse(raw) else {
        return;
    };
    let whole = match target.query {
        Some(query) => format!("{}?{query}", target.path),
        None => target.path.to_owned(),
    };
    assert_eq!(whole.as_bytes(), raw);
    // What pingora holds of it is what it writes to the upstream.
    let header = RequestHeader::build(http::Method::GET, raw, None).unwrap();
    assert_eq!(header.raw_path(), raw);
    assert_eq!(header.uri.path(), target.path);
    let Some(endpoint) = config().endpoints.find(target.path) else {
        return;
    };
    for (name, normalise) in NORMALISERS {
        let read = normalise(target.path);
        if let Some(other) = config().endpoints.find(&read) {
            assert_eq!(
                endpoint.pattern, other.pattern,
                "{} is {read}: {name}",
                target.path
            );
        }
    }
});
