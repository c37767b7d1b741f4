//! A file of keys: its format, and whether its content has problems.

use std::path::Path;

use clap::ValueEnum;

/// The formats of a file of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FileFormat {
    /// Rows with a header line.
    Csv,
    /// One JSON object per line.
    Jsonl,
}

impl FileFormat {
    /// The requested format, or the format from the end of the file name; `None` if neither is known.
    pub(super) fn of(asked: Option<FileFormat>, file: &Path) -> Option<FileFormat> {
        let ending = file.extension().and_then(|ending| ending.to_str());
        let by_ending = match ending.map(str::to_ascii_lowercase).as_deref() {
            Some("csv") => Some(FileFormat::Csv),
            Some("jsonl" | "ndjson") => Some(FileFormat::Jsonl),
            Some(_) | None => None,
        };
        asked.or(by_ending)
    }
}

/// The value, unless there are problems.
pub(super) fn or_problems<T, P>(value: T, problems: Vec<P>) -> Result<T, Vec<P>> {
    match problems.is_empty() {
        true => Ok(value),
        false => Err(problems),
    }
}

/// Whether a file name means standard input or output.
pub(super) fn is_standard(file: &Path) -> bool {
    file == Path::new("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_file_is_an_argument_or_derived_from_its_ending() {
        let of = |asked, name: &str| FileFormat::of(asked, Path::new(name));
        assert_eq!(of(None, "keys.csv"), Some(FileFormat::Csv));
        assert_eq!(of(None, "a.csv/keys.jsonl"), Some(FileFormat::Jsonl));
        assert_eq!(of(None, "keys.ndjson"), Some(FileFormat::Jsonl));
        assert_eq!(of(None, "KEYS.JSONL"), Some(FileFormat::Jsonl));
        let asked = Some(FileFormat::Jsonl);
        assert_eq!(of(asked, "keys.csv"), asked);
        for unsaid in ["-", "keys", "keys.txt", "csv"] {
            assert_eq!(of(None, unsaid), None, "{unsaid}");
            assert_eq!(of(asked, unsaid), asked, "{unsaid}");
        }
    }
}
