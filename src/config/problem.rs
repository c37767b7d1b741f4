//! What can be wrong with a configuration file, told all at once.

use std::cmp::Ordering;
use std::fmt;

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
