//! Where the settings of a checked file stand, for those who have to say which of them was decisive.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::outline::{Outline, Path};

/// The file and the index of its values.
pub struct Places {
    file: String,
    outline: Arc<Outline>,
}

/// Where one setting stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Its path, such as `tiers.pro.daily`.
    pub path: String,
    /// The file as it was named.
    pub file: String,
    /// The line, counted from 1: of the setting, or of what it would belong to where it is left out.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// Whether it is written there; else it has its default.
    pub written: bool,
}

impl Places {
    pub(super) fn new(file: &str, outline: Arc<Outline>) -> Places {
        Places {
            file: file.to_owned(),
            outline,
        }
    }

    /// Where the setting with this path stands.
    pub fn of(&self, path: &str) -> Place {
        let at = Path::written(path);
        let position = self.outline.value(&at);
        Place {
            path: path.to_owned(),
            file: self.file.clone(),
            line: position.line,
            column: position.column,
            written: self.outline.has(&at),
        }
    }
}

/// Without the thousands of positions.
impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Places").field(&self.file).finish()
    }
}

/// `FILE:LINE:COLUMN path`, with a word on a default.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let note = if self.written { "" } else { " (default)" };
        let Place {
            file,
            line,
            column,
            path,
            ..
        } = self;
        write!(f, "{file}:{line}:{column} {path}{note}")
    }
}
