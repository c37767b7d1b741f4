//! The positions of all values of a YAML text: an index of YAML path → position, made from parser events.
//!
//! The outline also refuses YAML that a configuration does not need and that is expensive or ambiguous to read: aliases,
//! tags, a second document, duplicate keys, keys that are not short texts, unbounded nesting and unbounded numbers of values.
//! A text that passes is safe for serde_yaml.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use super::problem::Problem;

/// The deepest value of a valid file is at 5; the rest lets wrong files get precise messages.
const DEPTH_MAX: usize = 10;
const DEPTH_HINT: &str = "compare the indentation and brackets with the shipped gateway.yaml";
/// The longest key. Longer keys would only enlarge paths, and with them this index.
const KEY_CHARS_MAX: usize = 128;
/// The limit on values: room for some 10,000 endpoints, far above any real file.
const VALUES_MAX: usize = 100_000;
const VALUES_HINT: &str = "write 100000 values at most";

/// A YAML path, such as `endpoints[2].tiers[0]`; the empty path is the whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Path(String);

impl Path {
    /// The path of the value under `name`.
    pub(super) fn key(&self, name: &str) -> Path {
        let dot = if self.0.is_empty() { "" } else { "." };
        Path(format!("{}{dot}{}", self.0, name.escape_debug()))
    }

    /// The path of a list's item.
    pub(super) fn index(&self, index: usize) -> Path {
        Path(format!("{}[{index}]", self.0))
    }

    /// Parses a written path; there may be no value at it.
    pub(super) fn written(text: &str) -> Path {
        Path(text.to_owned())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A line and a column, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    pub(super) const START: Position = Position { line: 1, column: 1 };

    fn of(marker: Marker) -> Position {
        Position {
            line: marker.line().max(1),
            column: marker.col() + 1,
        }
    }

    /// The position just after `text`.
    pub(super) fn after(text: &str) -> Position {
        Position {
            line: text.matches('\n').count() + 1,
            column: text.chars().rev().take_while(|c| *c != '\n').count() + 1,
        }
    }

    /// A problem of the whole file.
    pub(super) fn of_file(self, message: &str, hint: &str) -> Problem {
        self.problem(&Path::default(), message, hint)
    }

    pub(super) fn problem(self, path: &Path, message: &str, hint: &str) -> Problem {
        Problem {
            line: self.line,
            column: self.column,
            path: path.0.clone(),
            message: message.to_owned(),
            hint: hint.to_owned(),
        }
    }
}

/// Positions by path.
#[derive(Debug, Default)]
pub(super) struct Outline {
    values: HashMap<Path, Position>,
    keys: HashMap<Path, Position>,
}

impl Outline {
    /// The outline of `text`, or the problem that makes it unusable as a configuration.
    pub(super) fn of(text: &str) -> Result<Outline, Vec<Problem>> {
        if let Some(problem) = refused_character(text) {
            return Err(vec![problem]);
        }
        let mut builder = Builder::default();
        for event in Parser::new_from_str(text) {
            let step = match event {
                Ok((event, span)) => builder.take(event, span),
                Err(error) => Err(syntax_problem(
                    text,
                    Position::of(*error.marker()),
                    error.info(),
                )),
            };
            if let Err(problem) = step {
                builder.problems.push(problem);
                break;
            }
        }
        if builder.problems.is_empty() {
            Ok(builder.outline)
        } else {
            Err(builder.problems)
        }
    }

    /// Whether the text has no value at all.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Whether there is a value at `path`.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.values.contains_key(path)
    }

    /// The position of the value at `path`: of a scalar itself, of a mapping or list its key. If there is no such value, the
    /// position of the nearest enclosing one.
    pub(super) fn value(&self, path: &Path) -> Position {
        self.values
            .get(path)
            .copied()
            .unwrap_or_else(|| self.around(path))
    }

    /// The position of the key at `path`.
    pub(super) fn key(&self, path: &Path) -> Position {
        self.keys
            .get(path)
            .copied()
            .unwrap_or_else(|| self.value(path))
    }

    fn around(&self, path: &Path) -> Position {
        let mut rest = path.0.as_str();
        while let Some(end) = rest.rfind(['.', '[']) {
            rest = rest.get(..end).unwrap_or_default();
            if let Some(position) = self.values.get(&Path(rest.to_owned())) {
                return *position;
            }
        }
        Position::START
    }
}

/// A syntax error, with a hint if its line suggests one. An indenting tab is reported at its own position, because parsers
/// report it only where the line before seems to continue.
pub(super) fn syntax_problem(text: &str, position: Position, message: &str) -> Problem {
    for (number, line) in (1..)
        .zip(text.lines())
        .skip(position.line.saturating_sub(1))
        .take(2)
    {
        let indent = line.split(|c| c != ' ' && c != '\t').next();
        if let Some(spaces) = indent.and_then(|indent| indent.find('\t')) {
            let tab = Position {
                line: number,
                column: spaces + 1,
            };
            return tab.of_file(
                "this is not YAML: a tab indents the line",
                "indent with spaces",
            );
        }
    }
    let line = text
        .lines()
        .nth(position.line.saturating_sub(1))
        .unwrap_or_default();
    let is_quoted = |before: &str| before.matches(['"', '\'']).count() % 2 == 1;
    let in_path = line.split_once("/{").map(|(before, _)| before);
    let hint = if line.contains("${") {
        "put a value with ${VARIABLE} in double quotes"
    } else if in_path.is_some_and(|before| !is_quoted(before)) {
        "put a path with {…} in double quotes"
    } else {
        "compare the indentation, colons, quotes and brackets of this line and the one above with other entries"
    };
    position.of_file(&format!("this is not YAML: {message}"), hint)
}

/// The problem of the first character in a text that YAML does not permit, or that ends a line, and thus a comment, for one of its
/// versions only.
fn refused_character(text: &str) -> Option<Problem> {
    // YAML 1.2.2 sections 5.1 and 5.4.
    let ends_some_lines = |c| matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}');
    let is_refused = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    let is_refused = |c: &(usize, char)| is_refused(c.1) || ends_some_lines(c.1);
    let (at, found) = text.char_indices().find(is_refused)?;
    let code = u32::from(found);
    let message = match ends_some_lines(found) {
        true => format!("the line separator U+{code:04X}"),
        false => format!("this is not YAML: the control character U+{code:04X}"),
    };
    Some(Position::after(text.get(..at)?).of_file(&message, "remove it"))
}

/// A mapping or list whose end has not been read yet.
enum Open {
    Mapping {
        path: Path,
        seen: HashMap<String, Position>,
        /// The path of the next value; `None` if a key comes next.
        pending: Option<Path>,
    },
    List {
        path: Path,
        items: usize,
    },
}

#[derive(Default)]
struct Builder {
    outline: Outline,
    open: Vec<Open>,
    problems: Vec<Problem>,
    documents: usize,
    values: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
        let position = Position::of(span.start);
        if let Event::Scalar(_, _, _, tag)
        | Event::SequenceStart(_, tag)
        | Event::MappingStart(_, tag) = &event
            && tag.as_ref().is_some_and(|tag| !tag.is_yaml_core_schema())
        {
            return Err(position.problem(
                &self.next_path(),
                "tags (`!name`) are not supported",
                "remove the tag, or put the text in quotes",
            ));
        }
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(position.of_file(
                        "a second YAML document begins here",
                        "write one document per file",
                    ));
                }
            }
            Event::Alias(_) => {
                return Err(position.problem(
                    &self.next_path(),
                    "aliases (`*name`, `<<`) are not supported",
                    "write out the value",
                ));
            }
            Event::Scalar(text, style, _, _) => {
                if !self.take_key(&text, position)? {
                    let empty = span.is_empty();
                    let path = self.take_value((!empty).then_some(position), position)?;
                    if style == ScalarStyle::Plain && is_too_large_a_number(&text) {
                        self.problems.push(position.problem(
                            &path,
                            "the number is too large",
                            "write a smaller one, or put a text of digits in quotes",
                        ));
                    }
                }
            }
            Event::SequenceStart(..) => {
                let path = self.begin(position)?;
                self.open.push(Open::List { path, items: 0 });
            }
            Event::MappingStart(..) => {
                let path = self.begin(position)?;
                self.open.push(Open::Mapping {
                    path,
                    seen: HashMap::new(),
                    pending: None,
                });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
            }
        }
        Ok(())
    }

    /// The path of the next event's value, without consuming the event.
    fn next_path(&self) -> Path {
        match self.open.last() {
            None => Path::default(),
            Some(Open::Mapping { path, pending, .. }) => pending.as_ref().unwrap_or(path).clone(),
            Some(Open::List { path, items }) => path.index(*items),
        }
    }

    /// Begins a mapping or list.
    fn begin(&mut self, position: Position) -> Result<Path, Problem> {
        let path = self.next_path();
        if let Some(Open::Mapping { pending: None, .. }) = self.open.last() {
            return Err(position.problem(
                &path,
                "a key must be a text",
                "a list or mapping cannot be a key",
            ));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(position.problem(&path, "values are nested too deeply", DEPTH_HINT));
        }
        self.take_value(None, position)
    }

    /// Takes a scalar as a key if one is due. Returns whether it was.
    fn take_key(&mut self, text: &str, position: Position) -> Result<bool, Problem> {
        let Some(Open::Mapping {
            path,
            seen,
            pending: pending @ None,
        }) = self.open.last_mut()
        else {
            return Ok(false);
        };
        if text.chars().count() > KEY_CHARS_MAX {
            return Err(position.problem(
                path,
                "a key is too long",
                "keys have at most 128 characters",
            ));
        }
        let key = path.key(text);
        if let Some(first) = seen.get(text) {
            let message = format!("the key is given twice, first on line {}", first.line);
            self.problems.push(position.problem(
                &key,
                &message,
                "remove one of them; the rest of the file is checked then",
            ));
        } else {
            seen.insert(text.to_owned(), position);
            self.outline.keys.insert(key.clone(), position);
        }
        *pending = Some(key);
        Ok(true)
    }

    /// Takes a value; `own` is the position for its errors, `None` for the position of its key.
    fn take_value(&mut self, own: Option<Position>, start: Position) -> Result<Path, Problem> {
        let path = self.next_path();
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(start.problem(&path, "the file has too many values", VALUES_HINT));
        }
        match self.open.last_mut() {
            None => {}
            Some(Open::Mapping { pending, .. }) => *pending = None,
            Some(Open::List { items, .. }) => *items += 1,
        }
        let position = own
            .or_else(|| self.outline.keys.get(&path).copied())
            .unwrap_or(start);
        self.outline.values.entry(path.clone()).or_insert(position);
        Ok(path)
    }
}

/// Whether the text is a number too large for serde_yaml, which would refuse the whole file.
fn is_too_large_a_number(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit() || first == '-' || first == '+')
        && serde_yaml::from_str::<serde_yaml::Value>(text).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: usize, column: usize) -> Position {
        Position { line, column }
    }

    #[test]
    fn scalars_stand_where_they_begin_and_collections_at_their_key() {
        let outline = Outline::of("a:\n  b: [x, {c: 1}]\n  é: 'ü'\nd:\n- 1\n- e: 2\nf:\n").unwrap();
        let path = |names: &[&str]| {
            names
                .iter()
                .fold(Path::default(), |path, name| path.key(name))
        };
        let a = path(&["a"]);
        assert_eq!(outline.value(&a), at(1, 1));
        assert_eq!(outline.value(&a.key("b")), at(2, 3));
        assert_eq!(outline.value(&a.key("b").index(0)), at(2, 7));
        assert_eq!(outline.value(&a.key("b").index(1)), at(2, 10));
        assert_eq!(outline.value(&a.key("b").index(1).key("c")), at(2, 14));
        assert_eq!(outline.value(&a.key("é")), at(3, 6));
        assert_eq!(outline.value(&path(&["d"]).index(1).key("e")), at(6, 6));
        assert_eq!(outline.key(&path(&["d"]).index(1).key("e")), at(6, 3));
        assert_eq!(outline.value(&path(&["f"])), at(7, 1));
        assert_eq!(outline.value(&a.key("none").key("at all")), at(1, 1));
    }

    #[test]
    fn what_a_configuration_has_no_need_for_is_refused_where_it_stands() {
        for (text, expected) in [
            ("a: &x 1\nb: *x\n", at(2, 4)),
            ("a: !secret x\n", at(1, 4)),
            ("a: 1\n---\nb: 1\n", at(2, 1)),
            ("a: 1\nb: 2\na: 3\n", at(3, 1)),
            ("? [a]\n: 1\n", at(1, 3)),
            ("a: [[[[[[[[[[[1]]]]]]]]]]]\n", at(1, 13)),
            ("a: 99999999999999999999999\n", at(1, 4)),
            ("a: 1\n\tb: 2\n", at(2, 1)),
            ("a: [1\n", at(2, 1)),
        ] {
            let problems = Outline::of(text).unwrap_err();
            let found: Vec<Position> = problems
                .iter()
                .map(|problem| at(problem.line, problem.column))
                .collect();
            assert_eq!(found, [expected], "{text:?}: {problems:?}");
            assert!(!problems[0].hint.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn every_duplicate_key_is_reported() {
        let problems = Outline::of("a: 1\na: 2\nb: {c: 1, c: 2}\na: 3\n").unwrap_err();
        let hint = "remove one of them; the rest of the file is checked then";
        let hints = problems.iter().map(|problem| problem.hint.as_str());
        assert_eq!(hints.collect::<Vec<_>>(), [hint; 3]);
    }
}
