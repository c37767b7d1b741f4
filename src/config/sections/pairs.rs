//! Rules for two keys of a section: a secret and its file, a certificate and its private key.

use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::policy::secret::Secret;

/// A secret from its key or its `…_file` key, whichever is given, as read by `parse`. Problems do not show the secret.
pub(super) fn one_of<T>(
    check: &mut Check<'_>,
    at: &Path,
    name: &str,
    (written, file): (Option<Secret>, Option<Secret>),
    parse: fn(Secret) -> Result<T, Wrong>,
) -> Option<T> {
    let file_name = format!("{name}_file");
    let (at, file_at) = (at.key(name), at.key(&file_name));
    match (check.is_given(&at), check.is_given(&file_at)) {
        (true, true) => {
            let hint = format!("keep one of {name} and {file_name}");
            check.wrong_key(&file_at, "it is given twice", hint);
        }
        (false, false) => {
            let hint = format!("write {name}: \"${{VARIABLE}}\" or {file_name}: FILE");
            check.wrong(&at, "the key is missing", hint);
        }
        (true, false) | (false, true) => {}
    }
    let written = written.map(|secret| (&at, secret));
    let (at, secret) = written.or(file.map(|secret| (&file_at, secret)))?;
    check.accept(at, parse(secret))
}

/// Checks that a certificate and its key are both given or both missing.
pub(super) fn certificate_and_key(check: &mut Check<'_>, at: &Path) {
    let (certificate, key) = (at.key("certificate"), at.key("private_key"));
    let (missing, hint) = match (check.is_given(&certificate), check.is_given(&key)) {
        (true, false) => (key, "write private_key: FILE beside the certificate"),
        (false, true) => (
            certificate,
            "write certificate: FILE beside the private key",
        ),
        (true, true) | (false, false) => return,
    };
    check.wrong(&missing, "the key is missing", hint);
}
