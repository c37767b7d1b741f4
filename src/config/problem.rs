//! What can be wrong with a configuration file, told all at once.

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
        problems.sort_by(|one, other| {
            (one.line, one.column, &one.path).cmp(&(other.line, other.column, &other.path))
        });
        ConfigErrors {
            file: file.to_owned(),
            problems,
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
            write!(f, "{}:{}:{}: ", self.file, problem.line, problem.column)?;
            if !problem.path.is_empty() {
                write!(f, "{}: ", problem.path)?;
            }
            f.write_str(&problem.message)?;
            if let Some(hint) = &problem.hint {
                write!(f, " (hint: {hint})")?;
            }
        }
        Ok(())
    }
}
