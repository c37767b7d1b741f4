//! What can be wrong with a configuration file, told all at once.

use std::cmp::Ordering;
use std::fmt;
use std::ops::RangeInclusive;

use super::scalar::Quantity;

/// One mistake and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// The YAML path, such as `endpoints[2].tiers[0]`; empty where the whole file is meant.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// How to make it right.
    pub hint: Option<String>,
}

/// A wrong value: what is wrong and how to make it right.
pub(super) struct Wrong {
    about: About,
    message: String,
    pub(super) hint: String,
}

/// What a message begins with.
enum About {
    /// Nothing: it is a whole sentence, without the value.
    Sentence,
    /// The value as it is written, in quotes.
    Quoted,
    /// The value in its one form.
    Shown,
}

impl Wrong {
    /// A whole sentence, which has nothing of a secret in it.
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Wrong {
        Wrong {
            about: About::Sentence,
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// That the value is not what it should be.
    pub(super) fn not(what: &str, hint: impl Into<String>) -> Wrong {
        Wrong {
            about: About::Quoted,
            message: format!("is not {what}"),
            hint: hint.into(),
        }
    }

    /// That the value is on the wrong side of its bounds.
    pub(super) fn outside<T: Quantity>(value: &T, bounds: &RangeInclusive<T>) -> Wrong {
        let too_small = value < bounds.start();
        let side = if too_small { "small" } else { "large" };
        Wrong {
            about: About::Shown,
            message: format!("is too {side}"),
            hint: format!("from {} to {}", bounds.start().show(), bounds.end().show()),
        }
    }

    /// The message on a value; on `None` without it.
    pub(super) fn message(&self, value: Option<&str>) -> String {
        match (&self.about, value) {
            (About::Sentence, _) => self.message.clone(),
            (About::Quoted, Some(value)) => format!("{value:?} {}", self.message),
            (About::Shown, Some(value)) => format!("{value} {}", self.message),
            // What a variable or a file holds may be a secret.
            (About::Quoted | About::Shown, None) => format!("its value {}", self.message),
        }
    }
}

/// Every problem of one file, in the order of the file. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file as it was named.
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
}

impl Problem {
    /// The order of the file.
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
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
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
