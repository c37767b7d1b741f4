//! How values are stored in columns: counts as SQLite's signed integers, records as JSON, dates and ids as texts.

use rusqlite::Row;

/// A count as SQLite stores it. Counts stay below the limit, which is below 2^63.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A stored integer as a count. No negative count is ever written.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A value that a column has as JSON.
pub(super) fn unpacked<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(unreadable)
}

/// The error for a column that cannot be read.
pub(super) fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
}

/// A value as JSON, for a column.
pub(super) fn packed(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// A value that a column has as text.
pub(super) fn parsed<T: std::str::FromStr>(text: &str) -> rusqlite::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(unreadable)
}
