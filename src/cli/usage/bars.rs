//! Bars behind the rows of a table, on terminals only and as wide as the terminal permits.

use crate::cli::output::{columns_of, is_coloured};

/// The longest bar.
const WIDTH_MAX: usize = 40;
/// The shortest useful bar.
const WIDTH_MIN: usize = 8;
/// The space between a row and its bar.
const GAP: usize = 2;
const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// The output of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Screen {
    /// Columns of the terminal; `None` for a file or a pipe.
    pub columns: Option<usize>,
    /// Whether to write colours.
    pub is_coloured: bool,
}

impl Screen {
    /// Standard output.
    pub fn of_stdout() -> Screen {
        let stdout = std::io::stdout();
        Screen {
            is_coloured: is_coloured(&stdout),
            columns: columns_of(stdout).map(usize::from),
        }
    }

    /// Puts a bar behind each line, none of which is wider than `width` columns; that of `most` is the longest.
    pub(super) fn put_bars(self, lines: &mut [String], amounts: &[i64], width: usize, most: i64) {
        let left = self
            .columns
            .and_then(|columns| columns.checked_sub(width + GAP));
        // If rows take several lines, the terminal has no space for bars.
        let Some(room) = left.filter(|left| *left >= WIDTH_MIN && lines.len() == amounts.len())
        else {
            return;
        };
        for (line, amount) in lines.iter_mut().zip(amounts) {
            let bar = bar(*amount, most, room.min(WIDTH_MAX));
            if bar.is_empty() {
                continue;
            }
            let gap = width.saturating_sub(line.chars().count()) + GAP;
            line.push_str(&" ".repeat(gap));
            if self.is_coloured {
                line.push_str(&format!("\u{1b}[36m{bar}\u{1b}[0m"));
            } else {
                line.push_str(&bar);
            }
        }
    }
}

/// A bar of `amount / most` of `room`, to an eighth of a column; never empty for a positive amount.
fn bar(amount: i64, most: i64, room: usize) -> String {
    let (Ok(amount), Ok(most)) = (u128::try_from(amount), u128::try_from(most)) else {
        return String::new();
    };
    if amount == 0 || most == 0 {
        return String::new();
    }
    let eighths = (amount * (room as u128) * 8 / most).max(1);
    let whole = usize::try_from(eighths / 8).unwrap_or(room);
    let rest = usize::try_from(eighths % 8).unwrap_or(0);
    let mut bar = "█".repeat(whole);
    if rest > 0 {
        bar.extend(EIGHTHS.get(rest));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(columns: Option<usize>, is_coloured: bool) -> Vec<String> {
        let mut lines = vec!["abc".to_owned(), "a".to_owned(), "total".to_owned()];
        let screen = Screen {
            columns,
            is_coloured,
        };
        screen.put_bars(&mut lines, &[100, 1, 0], 5, 100);
        lines
    }

    #[test]
    fn bars_fill_the_room_that_a_terminal_has() {
        let full = format!("abc    {}", "█".repeat(13));
        assert_eq!(drawn(Some(20), false), [&full, "a      ▏", "total"]);
        let most = format!("abc    {}", "█".repeat(WIDTH_MAX));
        assert_eq!(drawn(Some(500), false)[0], most);
    }

    #[test]
    fn files_and_narrow_terminals_get_none() {
        let plain = ["abc", "a", "total"];
        assert_eq!(drawn(None, false), plain);
        assert_eq!(drawn(Some(14), true), plain);
        assert_ne!(drawn(Some(15), true), plain);
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        assert!(drawn(Some(80), true)[0].contains("\u{1b}[36m"));
        assert!(!drawn(Some(80), false)[0].contains('\u{1b}'));
    }

    #[test]
    fn nothing_and_less_have_no_bar() {
        for amount in [0, -5] {
            assert_eq!(bar(amount, 10, 20), "");
            assert_eq!(bar(5, amount, 20), "");
        }
        assert_eq!(bar(i64::MAX, i64::MAX, 3), "███");
    }
}
