//! The problems of a configuration file, reported all at once.

use std::cmp::Ordering;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Serialize;

use super::scalar::Scalar;
use crate::policy::store_settings::without_password;

/// One mistake and its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// The YAML path, such as `endpoints[2].tiers[0]`; empty for the whole file.
    pub path: String,
    /// The mistake.
    pub message: String,
    /// How to correct it.
    pub hint: String,
}

/// A wrong value: the mistake and how to correct it.
pub(super) struct Wrong {
    about: MessageStart,
    message: String,
    pub(super) hint: String,
}

/// The beginning of a message.
enum MessageStart {
    /// Nothing: the message is a whole sentence without the value.
    Sentence,
    /// The value as written, in quotes.
    Quoted,
    /// The value in its normal form.
    Shown,
    /// These words and the name of a file.
    File(&'static str),
    /// The same of a file with a secret, which may be in the place of the name.
    SecretFile(&'static str),
}

/// The most characters of a value in a message.
const SHOWN_CHARS_MAX: usize = 100;
/// The most problems in a summary.
const SUMMARY_PROBLEMS_MAX: usize = 20;
/// The beginning of a key or certificate in PEM format.
const PEM: &str = "-----BEGIN";

/// A value as a message shows it: without a password, and only the beginning of a long one, of several lines and of a key in PEM
/// format, which may be in the place of its file's name.
pub(super) fn brief(value: &str) -> String {
    let open = without_password(value);
    let line = open.split(char::is_control).next().unwrap_or_default();
    let end = line.find(PEM).map_or(line.len(), |start| start + PEM.len());
    let shown = line.get(..end).unwrap_or_default();
    let shown: String = shown.chars().take(SHOWN_CHARS_MAX).collect();
    match shown.len() < open.len() {
        true => format!("{shown}…"),
        false => shown,
    }
}

/// The name of a file with a secret as a message shows it: only the first character if it begins as no path, variable or PEM does, and
/// its directory does not exist.
fn path_or_start(name: &str) -> String {
    let shown = brief(name);
    let begins = |start: &&str| name.starts_with(start);
    let is_in_directory = || {
        let directory = std::path::Path::new(name).parent();
        directory
            .is_some_and(|directory| directory != std::path::Path::new("") && directory.is_dir())
    };
    match ["/", "./", "../", "$", PEM].iter().any(begins) || is_in_directory() {
        true => shown,
        false => shown.chars().take(1).chain(['…']).collect(),
    }
}

impl Wrong {
    /// A whole sentence, which contains nothing of a secret.
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Wrong {
        Wrong {
            about: MessageStart::Sentence,
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// The value is not of the right kind.
    pub(super) fn not(what: &str, hint: impl Into<String>) -> Wrong {
        Wrong {
            about: MessageStart::Quoted,
            message: format!("is not {what}"),
            hint: hint.into(),
        }
    }

    /// A mistake of the file that the value names: `words`, its name, and the mistake.
    pub(super) fn of_file(
        words: &'static str,
        mistake: impl Into<String>,
        hint: impl Into<String>,
    ) -> Wrong {
        Wrong {
            about: MessageStart::File(words),
            message: mistake.into(),
            hint: hint.into(),
        }
    }

    /// The same mistake of a file with a secret.
    pub(super) fn with_secret(mut self) -> Wrong {
        if let MessageStart::File(words) = self.about {
            self.about = MessageStart::SecretFile(words);
        }
        self
    }

    /// Whether it is a mistake of a file.
    pub(super) fn is_of_file(&self) -> bool {
        matches!(
            self.about,
            MessageStart::File(_) | MessageStart::SecretFile(_)
        )
    }

    /// The value is outside its bounds.
    pub(super) fn outside<T: Scalar + PartialOrd>(value: &T, bounds: &RangeInclusive<T>) -> Wrong {
        let too_small = value < bounds.start();
        let side = if too_small { "small" } else { "large" };
        Wrong {
            about: MessageStart::Shown,
            message: format!("is too {side}"),
            hint: format!("from {} to {}", bounds.start().show(), bounds.end().show()),
        }
    }

    /// The message with the value, or without it for `None`.
    pub(super) fn message(&self, value: Option<&str>) -> String {
        match (&self.about, value) {
            (MessageStart::Sentence, _) => self.message.clone(),
            (MessageStart::Quoted, Some(value)) => {
                format!("{:?} {}", brief(value), self.message)
            }
            (MessageStart::File(words), value) => {
                let name = value.map_or("the file".to_owned(), brief);
                format!("{words}{name}: {}", self.message)
            }
            (MessageStart::SecretFile(words), value) => {
                let name = value.map_or("the file".to_owned(), path_or_start);
                format!("{words}{name}: {}", self.message)
            }
            (MessageStart::Shown, Some(value)) => format!("{value} {}", self.message),
            // The value of a variable or a file may be a secret.
            (MessageStart::Quoted | MessageStart::Shown, None) => {
                format!("the value {}", self.message)
            }
        }
    }
}

/// Every problem of one file, in the order of the file. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file name as given.
    pub file: String,
    /// The problems by position.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    pub(super) fn new(file: &str, mut problems: Vec<Problem>) -> ConfigErrors {
        problems.sort_by(Problem::by_place);
        ConfigErrors {
            file: file.to_owned(),
            problems,
        }
    }

    /// The first problems, and how many more there are, for a log line.
    pub fn summary(&self) -> String {
        let (file, mut problems) = (self.file.clone(), self.problems.clone());
        let more = problems.len().saturating_sub(SUMMARY_PROBLEMS_MAX);
        problems.truncate(SUMMARY_PROBLEMS_MAX);
        let first = ConfigErrors { file, problems };
        match more {
            0 => first.to_string(),
            more => {
                format!("{first}\nand {more} more: `touchline check --against-running` lists all")
            }
        }
    }
}

impl Problem {
    /// Sorts by position.
    pub(super) fn by_place(&self, other: &Problem) -> Ordering {
        (self.line, self.column, &self.path).cmp(&(other.line, other.column, &other.path))
    }

    /// The line of a warning: `FILE:LINE:COLUMN: warning: path: message (hint: …)`.
    pub fn warning(&self, file: &str) -> String {
        let (line, column) = (self.line, self.column);
        format!("{file}:{line}:{column}: warning: {self}")
    }
}

/// `path: message (hint: …)`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{} (hint: {})", self.message, self.hint)
    }
}

impl std::error::Error for ConfigErrors {}

/// One line a problem: `FILE:LINE:COLUMN: path: message (hint: …)`.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            let (line, column) = (problem.line, problem.column);
            write!(f, "{}:{line}:{column}: {problem}", self.file)?;
        }
        Ok(())
    }
}
