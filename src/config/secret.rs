//! Texts that must not be shown.

use std::fmt;

/// A password or a URL with one in it. It has no `Display`, and its `Debug` shows nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text. What a row has read as something else than a secret was shown before.
    pub(super) fn hide(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself, for the connection that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
