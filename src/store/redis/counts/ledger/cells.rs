//! One field of the ledger's hash: its name is `<producer>|<endpoint>`, its value numbers and a tier, separated by spaces.
//!
//! The numbers are those of [`Totals`] in their order, then limit and granted units; the tier's name is last. Every version
//! reads the numbers that it knows from the front and ignores the rest. A value of five numbers is from the oldest version, and
//! has no tier.

use crate::policy::key_record::TierName;
use crate::store::Totals;
use crate::store::ledger::{Ceiling, Cell, numbers_of, row_of};

/// The value of a field.
pub fn written(totals: &Totals, ceiling: Ceiling, tier: Option<&TierName>) -> String {
    let numbers = numbers_of((*totals, ceiling));
    let mut words = Vec::from(numbers.map(|number| number.to_string()));
    words.extend(tier.map(TierName::to_string));
    words.join(" ")
}

/// The producer of a field and its entry, or `None` if it is not a field of the ledger.
pub fn read<'f>(field: &'f str, value: &str) -> Option<(&'f str, Cell)> {
    let (producer, endpoint) = field.split_once('|')?;
    let mut words = value.split(' ').peekable();
    let mut read = Vec::new();
    while let Some(number) = words.peek().and_then(|word| word.parse::<u64>().ok()) {
        read.push(number);
        words.next();
    }
    // The first five are as old as the ledger.
    if read.len() < 5 {
        return None;
    }
    let mut numbers = read.into_iter();
    let (totals, ceiling) = row_of(std::array::from_fn(|_| numbers.next().unwrap_or(0)));
    let cell = Cell {
        tier: words.next().and_then(|tier| tier.parse().ok()),
        endpoint: endpoint.to_owned(),
        totals,
        ceiling,
    };
    Some((producer, cell))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_its_written_form() {
        let cell = Cell {
            tier: Some("pro".parse().unwrap()),
            endpoint: "/x|y".into(),
            totals: Totals::of_numbers([1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ceiling: Ceiling {
                limit: 10,
                granted: 11,
            },
        };
        let value = written(&cell.totals, cell.ceiling, cell.tier.as_ref());
        assert_eq!(value, "1 2 3 4 5 6 7 8 9 10 11 pro");
        assert_eq!(read("a.0|/x|y", &value), Some(("a.0", cell)));
    }

    #[test]
    fn what_an_older_version_wrote_is_read_and_what_no_version_wrote_is_not() {
        let (producer, cell) = read("a.0|/x", "1 2 3 4 5").unwrap();
        assert_eq!((producer, cell.tier), ("a.0", None));
        assert_eq!(cell.totals.numbers(), [1, 2, 3, 4, 5, 0, 0, 0, 0]);
        assert_eq!(cell.ceiling, Ceiling::default());
        assert_eq!(read("a.0", "1 2 3 4 5"), None);
        assert_eq!(read("a.0|/x", "1 2"), None);
        assert_eq!(read("a.0|/x", "1 2 x 4 5"), None);
    }
}
