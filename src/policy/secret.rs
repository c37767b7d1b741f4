//! Texts that are never shown.

use std::fmt;

/// A password, or a URL with a password. The type has no `Display`, and its `Debug` shows nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text. If a row of the configuration read it as another type than a secret, it has already been shown.
    pub fn hide(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself, for the connection that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret::hide(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
