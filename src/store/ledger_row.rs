//! A row of the ledger in the SQLite files of both stores: its numbers, and in the embedded store its name, which is its tier and its
//! endpoint.

use rusqlite::{Row, Statement, ToSql, params_from_iter};

use super::ledger::{ROW_LENGTH, RowTotals, numbers_of, row_of};
use super::sqlite::{signed, unsigned};
use crate::policy::key_record::TierName;

/// The numbers of a row as they are stored: the totals, the largest limit, and the granted units in it.
pub type RowNumbers = [i64; ROW_LENGTH];

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

/// A row as it is stored.
pub fn stored(row: RowTotals) -> RowNumbers {
    numbers_of(row).map(signed)
}

/// The row that is stored as these numbers.
pub fn read_row(numbers: RowNumbers) -> RowTotals {
    row_of(numbers.map(unsigned))
}

/// Executes a statement whose parameters are these values, followed by the numbers of a row.
pub fn execute_with_row(
    statement: &mut Statement<'_>,
    values: &[&dyn ToSql],
    row: RowTotals,
) -> rusqlite::Result<()> {
    let numbers = stored(row);
    let numbers = numbers.iter().map(|number| number as &dyn ToSql);
    let parameters = values.iter().copied().chain(numbers);
    statement.execute(params_from_iter(parameters)).map(drop)
}
