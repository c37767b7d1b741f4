//! The id of a key as an argument, and what keeps API keys out of messages.
//!
//! An operator who has an API key at hand writes it where an id belongs. Its id is used; neither is the key repeated, right or
//! wrong. Invariant: no message about arguments contains an argument that may be a key.

use std::ffi::OsStr;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};

use crate::policy::api_key::{self, KEY_CHARS_MIN, KeyError, KeyId};

/// In the place of a key in a message.
const STRUCK: &str = "(an API key, not repeated)";
/// The characters of an id.
const ID_CHARS: usize = 12;
/// Fewer characters of a secret are of no use.
const SECRET_CHARS_MIN: usize = 8;

/// Reads a key id, or the id that is in an API key.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyIdParser;

impl TypedValueParser for KeyIdParser {
    type Value = KeyId;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KeyId, Error> {
        let text = value.to_str().unwrap_or_default();
        read(text).map_err(|problem| {
            let name = argument.map_or_else(|| "a key id".to_owned(), |one| format!("'{one}'"));
            let message = format!("invalid value for {name}: {problem}\n");
            Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

fn read(text: &str) -> Result<KeyId, &'static str> {
    match api_key::issued_id(text) {
        Ok(Some(id)) => Ok(id),
        Err(_) => Err("an API key that is mistyped or incomplete, its checksum is wrong: \
             write the whole key, or its id, the 12 characters after the first `_`"),
        Ok(None) if text.len() >= KEY_CHARS_MIN => Err(
            "not a key id, which has 12 characters of 0-9, A-Z and a-z. An API key that was made elsewhere does not \
             contain its id: find it by `touchline keys list --customer NAME`, or by the SHA-256 of the key in \
             `touchline keys export --with-digests`",
        ),
        Ok(None) => text.parse().map_err(|_: KeyError| {
            "a key id has 12 characters of 0-9, A-Z and a-z: `touchline keys list` shows it"
        }),
    }
}

/// A message of clap without the arguments that may be keys; `None` if it has none of them and can be printed unchanged.
pub(super) fn without_arguments(message: &str, arguments: &[String]) -> Option<String> {
    let mut text = message.to_owned();
    for argument in arguments {
        // `--option=VALUE` and `-oVALUE` are repeated without the option.
        let value = argument.split_once('=').map(|(_, value)| value);
        let short = argument.strip_prefix('-').and_then(|rest| rest.get(1..));
        for part in [Some(argument.as_str()), value, short]
            .into_iter()
            .flatten()
        {
            if may_be_key(part) {
                text = text.replace(part, STRUCK);
            }
        }
    }
    let text = without_keys(&text);
    (text != message).then_some(text)
}

/// A text without the API keys of the form that this program issues, of any prefix.
pub(super) fn without_keys(text: &str) -> String {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_of_key) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_of_key(c)).unwrap_or(from.len());
        let (run, after) = from.split_at(end);
        shown.push_str(before);
        shown.push_str(if has_secret(run) { STRUCK } else { run });
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// Whether an id and enough of a secret follow each other in a run of letters, digits and underscores.
fn has_secret(run: &str) -> bool {
    let parts = run.split('_').skip(1);
    let mut parts = parts.map(str::len).peekable();
    while let Some(chars) = parts.next() {
        let secret = parts.peek().copied().unwrap_or(0);
        if chars == ID_CHARS && secret >= SECRET_CHARS_MIN {
            return true;
        }
    }
    false
}

/// Whether an argument may be a key of any make: long enough, of visible ASCII characters, letters and digits among them.
fn may_be_key(text: &str) -> bool {
    text.len() >= KEY_CHARS_MIN
        && text.bytes().all(|byte| byte.is_ascii_graphic())
        && text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::api_key::{ApiKey, os_entropy};

    #[test]
    fn a_key_is_read_as_its_id_and_a_wrong_one_is_not_repeated() {
        let key = ApiKey::generate(&"live".parse().unwrap(), &mut os_entropy);
        assert_eq!(read(key.reveal()), Ok(key.id()));
        assert_eq!(read(key.id().as_str()), Ok(key.id()));
        let (short, _) = key.reveal().split_at(40);
        assert!(read(short).unwrap_err().contains("checksum is wrong"));
        let foreign = read("acme-live-0123456789abcdef").unwrap_err();
        assert!(foreign.contains("keys list --customer"));
        assert!(read("short").unwrap_err().contains("12 characters"));
    }

    #[test]
    fn messages_lose_keys_and_keep_the_rest() {
        let key = ApiKey::generate(&"live".parse().unwrap(), &mut os_entropy);
        let key = key.reveal();
        let struck = format!("there is no tier \"{STRUCK}\"; é");
        assert_eq!(
            without_keys(&format!("there is no tier \"{key}\"; é")),
            struck
        );
        let plain = "unexpected argument '--from_somewhere_else' found, fpd_4fZk09QwXy2B_x";
        assert_eq!(without_keys(plain), plain);
        let foreign = "acme.live:0123456789abcdef";
        for argument in [
            foreign.to_owned(),
            format!("--by={foreign}"),
            format!("-o{foreign}"),
        ] {
            let told = without_arguments(&format!("invalid '{foreign}'"), &[argument]);
            assert_eq!(told, Some(format!("invalid '{STRUCK}'")));
        }
        assert_eq!(without_arguments("invalid 'x'", &["x".to_owned()]), None);
    }
}
