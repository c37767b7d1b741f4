//! The positions of settings in a checked file, for messages that name the decisive setting.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::outline::{Outline, Path};

/// The file and the index of its values.
pub struct SourcePositions {
    file: String,
    outline: Arc<Outline>,
}

/// The position of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourcePosition {
    /// The setting's path, such as `tiers.pro.daily`.
    pub path: String,
    /// The file name as given.
    pub file: String,
    /// The line, counted from 1: of the setting, or of its nearest enclosing key if it is left out.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// Whether the setting is written in the file; otherwise it has its default.
    pub written: bool,
}

impl SourcePositions {
    pub(super) fn new(file: &str, outline: Arc<Outline>) -> SourcePositions {
        SourcePositions {
            file: file.to_owned(),
            outline,
        }
    }

    /// The position of the setting with this path.
    pub fn of(&self, path: &str) -> SourcePosition {
        let at = Path::written(path);
        let position = self.outline.value(&at);
        SourcePosition {
            path: path.to_owned(),
            file: self.file.clone(),
            line: position.line,
            column: position.column,
            written: self.outline.has(&at),
        }
    }
}

/// Omits the positions, of which there are thousands.
impl fmt::Debug for SourcePositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SourcePositions").field(&self.file).finish()
    }
}

/// `FILE:LINE:COLUMN path`, with a note if the setting has its default.
impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let note = if self.written { "" } else { " (default)" };
        let (line, column) = (self.line, self.column);
        write!(f, "{}:{line}:{column} {}{note}", self.file, self.path)
    }
}
