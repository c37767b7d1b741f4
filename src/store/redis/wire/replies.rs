//! Replies of Redis, from the bytes as they arrive (RESP2, <https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! A reply may arrive in many parts. Its end is searched for from where the last search ended, so that a reply of many megabytes is
//! searched once; only a complete one is parsed, by the client library.

use memchr::memchr;
use redis::{RedisResult, Value};

/// The search for the end of a reply.
#[derive(Debug)]
pub struct ReplySearch {
    /// Where the next value of the reply begins.
    at: usize,
    /// The values that are missing, those in lists included.
    missing: u64,
}

impl Default for ReplySearch {
    fn default() -> ReplySearch {
        ReplySearch { at: 0, missing: 1 }
    }
}

/// The bytes are no reply; for operators.
#[derive(Debug, thiserror::Error)]
#[error("the server sent something that is no reply of Redis")]
pub struct NotAReply;

impl ReplySearch {
    /// The length of the reply at the beginning of `received`, or `None` if its end is missing. Until it is found, `received` may only
    /// grow; then the search begins anew.
    ///
    /// # Errors
    /// [`NotAReply`], after which nothing further can be read.
    pub fn end(&mut self, received: &[u8]) -> Result<Option<usize>, NotAReply> {
        while self.missing > 0 {
            let rest = received.get(self.at..).unwrap_or_default();
            let Some((kind, number, line)) = header(rest)? else {
                return Ok(None);
            };
            let length = match (kind, number) {
                (b'+' | b'-' | b':', _) | (b'$' | b'*', Some(-1)) => line,
                (b'$', Some(bytes @ 0..)) => {
                    let bytes = usize::try_from(bytes).map_err(|_| NotAReply)?;
                    let end = line.checked_add(bytes).and_then(|end| end.checked_add(2));
                    end.ok_or(NotAReply)?
                }
                (b'*', Some(values @ 0..)) => {
                    let missing = self.missing.checked_add(values.unsigned_abs());
                    self.missing = missing.ok_or(NotAReply)?;
                    line
                }
                _ => return Err(NotAReply),
            };
            if rest.len() < length {
                return Ok(None);
            }
            self.at += length;
            self.missing -= 1;
        }
        let end = std::mem::take(self).at;
        Ok(Some(end))
    }
}

/// The first byte of a line, the number in it if it is one, and the line's length with its end; `None` if its end is missing.
fn header(bytes: &[u8]) -> Result<Option<(u8, Option<i64>, usize)>, NotAReply> {
    let Some(end) = memchr(b'\n', bytes) else {
        return Ok(None);
    };
    let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r"));
    let (kind, number) = line.and_then(<[u8]>::split_first).ok_or(NotAReply)?;
    let number = std::str::from_utf8(number).ok();
    Ok(Some((
        *kind,
        number.and_then(|number| number.parse().ok()),
        end + 1,
    )))
}

/// Reads a complete reply. Errors of the server are values.
///
/// # Errors
/// If it is malformed.
pub fn read(reply: &[u8]) -> RedisResult<Value> {
    // The reply of the charge script: the most frequent one, and the library's parser is not needed for it.
    match text_of(reply) {
        Some(text) => Ok(Value::BulkString(text.to_vec())),
        None => redis::parse_redis_value(reply),
    }
}

/// The text of a reply that is one text.
fn text_of(reply: &[u8]) -> Option<&[u8]> {
    let rest = reply
        .strip_prefix(b"$")
        .filter(|rest| !rest.starts_with(b"-"))?;
    let begin = memchr(b'\n', rest)? + 1;
    rest.get(begin..rest.len().checked_sub(2)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Replies of all kinds, as they are sent.
    fn replies() -> impl Strategy<Value = String> {
        let one = prop_oneof![
            "[a-z ]{0,9}".prop_map(|text| format!("+{text}\r\n")),
            "[A-Z]{1,5} [a-z$*]{0,9}".prop_map(|text| format!("-{text}\r\n")),
            any::<i64>().prop_map(|number| format!(":{number}\r\n")),
            "[a-z\r\n$*:]{0,20}".prop_map(|text| format!("${}\r\n{text}\r\n", text.len())),
            Just("$-1\r\n".to_owned()),
            Just("*-1\r\n".to_owned()),
        ];
        one.prop_recursive(3, 24, 4, |each| {
            prop::collection::vec(each, 0..4)
                .prop_map(|all| format!("*{}\r\n{}", all.len(), all.concat()))
        })
    }

    proptest! {
        #[test]
        fn each_reply_is_found_and_read_as_the_library_does_however_it_arrives(
            all in prop::collection::vec(replies(), 1..5),
            parts in prop::collection::vec(1..9_usize, 1..200),
        ) {
            let sent = all.concat();
            let mut lengths = parts.into_iter().cycle();
            let (mut search, mut received, mut found) = (ReplySearch::default(), Vec::new(), Vec::new());
            let mut rest = sent.as_bytes();
            while !rest.is_empty() {
                let (part, after) = rest.split_at(lengths.next().unwrap().min(rest.len()));
                received.extend_from_slice(part);
                rest = after;
                while let Some(end) = search.end(&received).unwrap() {
                    let reply: Vec<u8> = received.drain(..end).collect();
                    found.push(String::from_utf8(reply).unwrap());
                }
            }
            prop_assert_eq!(&found, &all);
            for reply in &all {
                let expected = redis::parse_redis_value(reply.as_bytes()).unwrap();
                prop_assert_eq!(read(reply.as_bytes()).unwrap(), expected);
            }
        }

        #[test]
        fn nothing_that_is_sent_makes_the_search_panic(
            sent in "[$*:+-]?[0-9-]{0,20}\r?\n?[$*:+-]?[0-9-]{0,20}\r?\n?",
        ) {
            let _ = ReplySearch::default().end(sent.as_bytes());
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for sent in [
            "\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
            "+OK\n",
            "$x\r\n",
            "$-2\r\n",
            "*-2\r\n",
            "*9223372036854775807\r\n*9223372036854775807\r\n*9\r\n",
        ] {
            assert!(
                ReplySearch::default().end(sent.as_bytes()).is_err(),
                "{sent}"
            );
        }
    }
}
