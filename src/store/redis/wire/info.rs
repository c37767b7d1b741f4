//! The reply of `INFO`.

use std::collections::HashMap;

/// The reply of `INFO` by field.
#[derive(Debug, Default)]
pub struct Info<'t>(HashMap<&'t str, &'t str>);

impl<'t> Info<'t> {
    /// The fields of a reply.
    pub fn of(text: &'t str) -> Info<'t> {
        let fields = text
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'));
        Info(fields.collect())
    }

    /// A text, empty if there is none.
    pub fn text(&self, field: &str) -> String {
        self.0.get(field).copied().unwrap_or_default().to_owned()
    }

    /// A number, or 0 if there is none.
    pub fn number(&self, field: &str) -> u64 {
        self.0
            .get(field)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }
}
