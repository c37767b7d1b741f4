//! The id of a key as an argument, and the removal of API keys from messages.
//!
//! An operator may write the API key itself in the place of its id: it is looked up by digest. Invariant: no message about
//! arguments contains an argument that may be a key, right or wrong.

use std::ffi::OsStr;

use anyhow::bail;
use clap::builder::{TypedValueParser, ValueParserFactory};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};

use super::session::{Session, UsageError};
use crate::policy::api_key::{self, KEY_CHARS_MAX, KEY_CHARS_MIN, KeyDigest, KeyError, KeyId};
use crate::policy::key_record::KeyRecord;

/// The replacement of a key in a message.
const STRUCK: &str = "(an API key, not repeated)";
/// The least characters of a secret that are worth hiding.
const SECRET_CHARS_MIN: usize = 8;

/// A key named by an argument: by its id, or by the key itself, of which only the digest is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyArgument {
    /// Its id.
    Id(KeyId),
    /// A key issued here, with its id.
    Issued(KeyDigest, KeyId),
    /// A key issued here, but incomplete or with a wrong checksum; an imported key may look the same.
    Broken(KeyDigest),
    /// A key made elsewhere, without an id.
    External(KeyDigest),
}

impl KeyArgument {
    /// The id of the key. A key is looked up by its digest, the current or previous one of a record; an id is not looked up, nor is the
    /// id in a key that is not stored.
    ///
    /// # Errors
    /// [`UsageError`] for a key that is not stored and has a wrong checksum; another for a key made elsewhere that is not stored.
    pub(super) async fn id(self, session: &Session) -> anyhow::Result<KeyId> {
        let digest = match self {
            KeyArgument::Id(id) => return Ok(id),
            KeyArgument::Issued(digest, _)
            | KeyArgument::Broken(digest)
            | KeyArgument::External(digest) => digest,
        };
        let holds = |record: &KeyRecord| record.digests().any(|held| held == digest);
        if let KeyArgument::Issued(_, id) = self
            && session.store.key(id).await?.as_ref().is_some_and(holds)
        {
            return Ok(id);
        }
        // Rare: a key from before the last rotation, or an imported one. Reads the whole table, like `keys list`.
        let mut holder = None;
        let mut look = |page: Vec<KeyRecord>| {
            if holder.is_none() {
                holder = page.into_iter().find(holds);
            }
        };
        session.store.walk_keys(&mut look).await?;
        if let Some(record) = holder {
            return Ok(record.id);
        }
        match self {
            KeyArgument::Id(id) | KeyArgument::Issued(_, id) => Ok(id),
            KeyArgument::Broken(_) => bail!(UsageError(
                "the API key is mistyped or incomplete (its checksum is wrong): write the whole key, or its id, the \
                 12 characters after the first `_`"
                    .to_owned(),
            )),
            KeyArgument::External(_) => bail!(
                "there is no such key: neither an id, which has 12 characters, nor an API key that is stored. Look for its \
                 customer with `touchline keys list`"
            ),
        }
    }
}

/// The id named by an optional argument.
///
/// # Errors
/// As [`KeyArgument::id`].
pub(super) async fn id_of(
    argument: Option<KeyArgument>,
    session: &Session,
) -> anyhow::Result<Option<KeyId>> {
    match argument {
        Some(argument) => Ok(Some(argument.id(session).await?)),
        None => Ok(None),
    }
}

/// Parses a [`KeyArgument`].
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyParser;

impl ValueParserFactory for KeyArgument {
    type Parser = KeyParser;

    fn value_parser() -> KeyParser {
        KeyParser
    }
}

impl TypedValueParser for KeyParser {
    type Value = KeyArgument;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KeyArgument, Error> {
        let text = value.to_str().unwrap_or_default();
        read(text).map_err(|problem| {
            let name = argument.map_or_else(|| "a key id".to_owned(), |one| format!("'{one}'"));
            let message = format!("invalid value for {name}: {problem}\n");
            Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

fn read(text: &str) -> Result<KeyArgument, &'static str> {
    let is_key = (KEY_CHARS_MIN..=KEY_CHARS_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    let digest = KeyDigest::of(text.as_bytes());
    match (api_key::issued_id(text), is_key) {
        (Ok(Some(id)), _) => Ok(KeyArgument::Issued(digest, id)),
        (Err(_), _) => Ok(KeyArgument::Broken(digest)),
        (Ok(None), true) => Ok(KeyArgument::External(digest)),
        (Ok(None), false) => text.parse().map(KeyArgument::Id).map_err(|_: KeyError| {
            "a key id has 12 characters of 0-9, A-Z and a-z: `touchline keys list` shows it. An API key has 24 to 256 \
             visible ASCII characters"
        }),
    }
}

/// A message of clap without arguments that may be keys.
pub(super) fn without_arguments(message: &str, arguments: &[String]) -> String {
    let mut text = message.to_owned();
    for argument in arguments {
        // clap repeats the values of `--option=VALUE` and `-oVALUE` without the option.
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
    without_keys(&text)
}

/// A text without API keys of the issued format, of any prefix.
pub(super) fn without_keys(text: &str) -> String {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_of_key) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_of_key(c)).unwrap_or(from.len());
        let (run, after) = from.split_at(end);
        shown.push_str(before);
        let has_secret = api_key::secrets(run).any(|secret| secret.len() >= SECRET_CHARS_MIN);
        shown.push_str(if has_secret { STRUCK } else { run });
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// Whether an argument may be a key of any format: long enough, of visible ASCII characters, with letters and digits.
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
    fn a_key_is_read_as_what_it_is_and_an_impossible_one_is_an_error() {
        let key = ApiKey::generate(&"live".parse().unwrap(), &mut os_entropy);
        let digest = |text: &str| KeyDigest::of(text.as_bytes());
        let issued = KeyArgument::Issued(digest(key.reveal()), key.id());
        assert_eq!(read(key.reveal()), Ok(issued));
        assert_eq!(read(key.id().as_str()), Ok(KeyArgument::Id(key.id())));
        let (short, _) = key.reveal().split_at(40);
        assert_eq!(read(short), Ok(KeyArgument::Broken(digest(short))));
        let external = "acme-live-0123456789abcdef";
        assert_eq!(read(external), Ok(KeyArgument::External(digest(external))));
        let long = "x".repeat(KEY_CHARS_MAX + 1);
        for bad in ["short", "acme live 0123456789abcdef", &long] {
            assert!(read(bad).unwrap_err().contains("12 characters"));
        }
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
        let external = "acme.live:0123456789abcdef";
        for argument in [
            external.to_owned(),
            format!("--by={external}"),
            format!("-o{external}"),
        ] {
            let message = without_arguments(&format!("invalid '{external}'"), &[argument]);
            assert_eq!(message, format!("invalid '{STRUCK}'"));
        }
        let short = without_arguments("invalid 'x'", &["x".to_owned()]);
        assert_eq!(short, "invalid 'x'");
    }
}
