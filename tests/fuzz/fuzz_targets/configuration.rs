//! The text of `gateway.yaml`. Laws: reading never panics; what is refused has at least one problem, each with a place in the
//! file and without a secret's text; what is taken is taken again.
#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use touchline::config::Config;

const SECRET: &str = "hunter2hunter2hunter2";

fn read(text: &str) -> Result<Config, touchline::config::ConfigErrors> {
    // Nothing outside is asked: no names, and of the environment one secret.
    let env = |name: &str| (name == "S").then(|| SECRET.into());
    let resolve = |names: &[&str]| {
        let failure = |_| Err(io::Error::other("no names here"));
        names.iter().map(failure).collect()
    };
    Config::parse_resolving("gateway.yaml", text, &env, &resolve)
}

fuzz_target!(|text: &str| {
    // Files are opened: none of the devices, some of which never end.
    if text.contains("/dev") || text.contains("/proc") {
        return;
    }
    match read(text) {
        Ok(config) => assert_eq!(read(text).unwrap().hash, config.hash),
        Err(errors) => {
            assert!(!errors.problems.is_empty());
            let lines = text.split(['\n', '\r']).count();
            for problem in &errors.problems {
                assert!((1..=lines + 1).contains(&problem.line), "{problem:?}");
                assert!(problem.column >= 1, "{problem:?}");
                // Where the text itself has the word, it is no secret there.
                let shown = [&problem.message, &problem.hint];
                let reveals = shown.iter().any(|text| text.contains(SECRET));
                assert!(!reveals || text.contains(SECRET), "{problem:?}");
            }
        }
    }
});
