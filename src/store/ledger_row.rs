//! A row of the ledger in the SQLite files of both stores: its numbers, and in the embedded store its name, which is its tier and its
//! endpoint.

use rusqlite::{Row, Statement};

use super::chain::ROW_NUMBERS;
use super::ledger::{Ceiling, Totals};
use super::sqlite::{signed, unsigned};
use crate::policy::api_key::KeyId;
use crate::policy::key_record::TierName;

/// The numbers of a row as they are stored: the totals, the largest limit, and the granted units in it.
pub type RowNumbers = [i64; ROW_NUMBERS.len()];

/// The numbers of a row, or those to be added to it.
pub type Addition = (Totals, Ceiling);

/// The name of the row for units without an endpoint: their producers exported the count, but not the ledger. No endpoint has this name.
pub const UNATTRIBUTED: &str = "unattributed";

/// The name of an endpoint's row: the tier, a space, the endpoint; without a tier, the endpoint alone.
pub fn row_name(tier: Option<&TierName>, endpoint: &str) -> String {
    match tier {
        Some(tier) => format!("{tier} {endpoint}"),
        None => endpoint.to_owned(),
    }
}

/// The tier and the endpoint of a row's name. An endpoint begins with a slash or is one word; a tier's name has no space.
pub fn tier_and_endpoint(text: &str) -> (Option<TierName>, &str) {
    let parts = text
        .split_once(' ')
        .and_then(|(tier, endpoint)| Some((tier.parse::<TierName>().ok()?, endpoint)));
    match parts {
        Some((tier, endpoint)) => (Some(tier), endpoint),
        None => (None, text),
    }
}

/// The numbers in the columns from `first` on.
pub fn read_numbers(row: &Row<'_>, first: usize) -> rusqlite::Result<RowNumbers> {
    let mut numbers = RowNumbers::default();
    for (number, column) in numbers.iter_mut().zip(first..) {
        *number = row.get(column)?;
    }
    Ok(numbers)
}

/// Adds to a row: sums of the totals, the larger limit and grants.
pub fn add_numbers(numbers: &mut RowNumbers, added: RowNumbers) {
    let [sums @ .., limit, granted] = numbers;
    let [totals @ .., added_limit, added_granted] = added;
    for (sum, number) in sums.iter_mut().zip(totals) {
        *sum = sum.saturating_add(number);
    }
    *limit = added_limit.max(*limit);
    *granted = added_granted.max(*granted);
}

/// An addition as it is stored.
pub fn numbers_of((totals, ceiling): Addition) -> RowNumbers {
    let mut numbers = RowNumbers::default();
    let counts = totals.numbers().into_iter();
    let counts = counts.chain([ceiling.limit, ceiling.granted]);
    for (number, count) in numbers.iter_mut().zip(counts) {
        *number = signed(count);
    }
    numbers
}

/// Stored numbers as counts.
pub fn counts_of(numbers: RowNumbers) -> Addition {
    let [totals @ .., limit, granted] = numbers.map(unsigned);
    (Totals::of_numbers(totals), Ceiling { limit, granted })
}

/// Executes a statement with date, key, name and numbers of a row as its parameters.
pub fn execute_with_row(
    statement: &mut Statement<'_>,
    (date, key): (&str, KeyId),
    name: &str,
    addition: Addition,
) -> rusqlite::Result<()> {
    statement.raw_bind_parameter(1, date)?;
    statement.raw_bind_parameter(2, key.as_str())?;
    statement.raw_bind_parameter(3, name)?;
    bind_numbers(statement, 4, addition)?;
    statement.raw_execute()?;
    Ok(())
}

/// Binds the numbers of a row to the parameters from `first` on.
pub fn bind_numbers(
    statement: &mut Statement<'_>,
    first: usize,
    addition: Addition,
) -> rusqlite::Result<()> {
    for (parameter, number) in (first..).zip(numbers_of(addition)) {
        statement.raw_bind_parameter(parameter, number)?;
    }
    Ok(())
}
