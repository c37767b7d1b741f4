//! The readable parts of a refused head, for its answer and its line in the access log.

use crate::policy::target::Absolute;

const X_REQUEST_ID: &[u8] = b"x-request-id";
const X_API_KEY: &[u8] = b"x-api-key";

/// The method and the path of a refused head, to the extent that they can be read, for the access log.
pub fn method_and_path(head: &[u8]) -> (String, String) {
    let line = head
        .trim_ascii_start()
        .split(|byte| matches!(byte, b'\r' | b'\n'))
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let mut word = || {
        let word = words.next().unwrap_or_default();
        let word = word.get(..word.len().min(256)).unwrap_or_default();
        String::from_utf8_lossy(word).into_owned()
    };
    let (method, target) = (word(), word());
    let absolute = Absolute::of(target.as_bytes()).map(|absolute| absolute.origin_form());
    let target = match &absolute {
        Some(origin) => String::from_utf8_lossy(origin),
        None => target.into(),
    };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    (method, path.to_owned())
}

/// The value of `X-Request-Id` in a refused head, complete or not, if it can be read.
pub fn request_id(head: &[u8]) -> Option<&[u8]> {
    value(head, X_REQUEST_ID)
}

/// The same of `X-API-Key`.
pub fn api_key(head: &[u8]) -> Option<&[u8]> {
    value(head, X_API_KEY)
}

fn value<'h>(head: &'h [u8], wanted: &[u8]) -> Option<&'h [u8]> {
    // The last line may be incomplete, and its value with it.
    let whole = head.iter().rposition(|byte| *byte == b'\n')?;
    let lines = head
        .get(..whole)?
        .trim_ascii_start()
        .split(|byte| *byte == b'\n');
    lines
        .skip(1)
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .take_while(|line| !line.is_empty())
        .find_map(|line| {
            let (name, value) = line.split_at_checked(wanted.len())?;
            let value = value.strip_prefix(b":")?;
            name.eq_ignore_ascii_case(wanted)
                .then(|| value.trim_ascii())
        })
}

#[cfg(test)]
mod tests;
