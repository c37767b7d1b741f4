//! The rows of the file: one place for everything about a key (type, default, bounds, whether it is required, whether a change needs
//! a restart, whether it is a secret, its sentence of help).
//!
//! [`rows!`] declares a section as a struct with the values of its keys. The right side of each row is a [`Kind`], which reads the
//! value for the check and describes the permitted values for the schema. Rules between several keys, and conversions to other
//! types, are functions passed to [`always`] or [`section`]. No kind stops at a problem: it notes the problem and uses a
//! substitute for the value, so that the rest is checked too; the result of a file with problems is discarded.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::{Map, Value as Json};
use serde_yaml::{Mapping, Value};

use super::check::{Check, Wrong, key_text, kind_of};
use super::outline::Path;
use super::scalar::{ByteSize, Percent, Scalar, Text, VARIABLE};
use crate::policy::secret::Secret;

/// Reads the value at a path as a `T`; `None` if nothing is written there.
type ValueReader<T> = dyn Fn(&mut Check<'_>, &Path, Option<Value>) -> T;

/// How the value at one place of the file is read as a `T`, and which values are permitted.
pub(super) struct Kind<T> {
    read: Box<ValueReader<T>>,
    form: Box<dyn Fn() -> Form>,
}

/// The values permitted at one place of the file.
pub(super) struct Form {
    pub(super) what: What,
    /// The values of a scalar, in Markdown.
    pub(super) values: String,
    /// The default.
    pub(super) default: Option<Json>,
    /// The least and the most.
    pub(super) bounds: Option<(String, String)>,
    /// Further keywords of JSON Schema, such as `minItems`.
    pub(super) rules: Map<String, Json>,
    /// Whether a value is required.
    pub(super) is_required: bool,
    /// Whether a change of the value, or of any beneath it, needs a restart.
    pub(super) needs_restart: bool,
    /// Whether it is a secret, which is never shown.
    pub(super) is_secret: bool,
}

/// The kind of the value.
pub(super) enum What {
    /// A scalar with the JSON Schema of its type.
    Scalar(Json),
    List(Box<Form>),
    /// A mapping of names of the operators' choice.
    Named(Vec<Row>),
    /// A mapping of known keys.
    Section(Vec<Row>),
    /// Either of two kinds.
    Either(Box<[Form; 2]>),
}

/// One key of a section.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) form: Form,
}

/// A section: a struct made by [`rows!`].
pub(super) trait Rows: Sized + 'static {
    const NAMES: &'static [&'static str];

    fn read(check: &mut Check<'_>, at: &Path, written: Mapping) -> Self;

    fn rows() -> Vec<Row>;
}

/// Declares sections: a row is `KEY: TYPE = KIND;`, or `FIELD as "KEY": …` if the field has another name than the key.
macro_rules! rows {
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
    ($($(#[$doc:meta])* $vis:vis struct $name:ident {
        $($(#[doc = $help:literal])+ $field:ident $(as $key:literal)?: $type:ty = $kind:expr;)*
    })*) => {$(
        $(#[$doc])*
        $vis struct $name { $($(#[doc = $help])+ pub $field: $type,)* }

        impl $crate::config::rows::Rows for $name {
            const NAMES: &'static [&'static str] = &[$(rows!(@key $field $($key)?)),*];

            fn read(
                check: &mut $crate::config::check::Check<'_>,
                at: &$crate::config::outline::Path,
                mut written: serde_yaml::Mapping,
            ) -> $name {
                let rows = $name {$(
                    $field: {
                        let name = rows!(@key $field $($key)?);
                        $kind.read(check, &at.key(name), written.remove(name))
                    },
                )*};
                check.refuse_keys(at, &written, Self::NAMES);
                rows
            }

            fn rows() -> Vec<$crate::config::rows::Row> {
                vec![$({
                    let kind: $crate::config::rows::Kind<$type> = $kind;
                    $crate::config::rows::Row {
                        name: rows!(@key $field $($key)?),
                        help: concat!($($help),+).trim_ascii(),
                        form: kind.form(),
                    }
                }),*]
            }
        }
    )*};
}
pub(super) use rows;

impl<T: 'static> Kind<T> {
    pub(super) fn new(
        read: impl Fn(&mut Check<'_>, &Path, Option<Value>) -> T + 'static,
        form: impl Fn() -> Form + 'static,
    ) -> Kind<T> {
        let (read, form) = (Box::new(read), Box::new(form));
        Kind { read, form }
    }

    pub(super) fn read(&self, check: &mut Check<'_>, at: &Path, written: Option<Value>) -> T {
        (self.read)(check, at, written)
    }

    pub(super) fn form(&self) -> Form {
        (self.form)()
    }

    /// The same form with another reader, made from this one.
    fn around<U: 'static>(
        self,
        read: impl Fn(&ValueReader<T>, &mut Check<'_>, &Path, Option<Value>) -> U + 'static,
    ) -> Kind<U> {
        let inner = self.read;
        Kind {
            read: Box::new(move |check, at, written| read(&*inner, check, at, written)),
            form: self.form,
        }
    }

    fn formed(self, change: impl Fn(&mut Form) + 'static) -> Kind<T> {
        let inner = self.form;
        let form = move || {
            let mut form = inner();
            change(&mut form);
            form
        };
        Kind {
            read: self.read,
            form: Box::new(form),
        }
    }

    /// Adds a keyword of JSON Schema, without a check.
    fn ruled(self, keyword: &'static str, value: impl Into<Json>) -> Kind<T> {
        let value = value.into();
        self.formed(move |form| {
            form.rules.insert(keyword.to_owned(), value.clone());
        })
    }

    pub(super) fn map<U: 'static>(self, make: fn(T) -> U) -> Kind<U> {
        self.around(move |read, check, at, written| make(read(check, at, written)))
    }

    /// Converts the value with a function that may note problems.
    pub(super) fn then<U: 'static>(self, make: fn(&mut Check<'_>, &Path, T) -> U) -> Kind<U> {
        self.around(move |read, check, at, written| {
            let value = read(check, at, written);
            make(check, at, value)
        })
    }

    /// Requires at least one item of a list, if the list is written.
    pub(super) fn not_empty(self, message: &'static str, hint: &'static str) -> Kind<T> {
        let kind = self.ruled("minItems", 1);
        kind.around(move |read, check, at, written| {
            if let Some(Value::Sequence(items)) = &written
                && items.is_empty()
            {
                check.wrong(at, message, hint);
            }
            read(check, at, written)
        })
    }
}

impl Form {
    fn of(what: What) -> Form {
        Form {
            what,
            values: String::new(),
            default: None,
            bounds: None,
            rules: Map::new(),
            is_required: false,
            needs_restart: false,
            is_secret: false,
        }
    }

    /// Either of two kinds.
    pub(super) fn either(one: Form, other: Form) -> Form {
        Form::of(What::Either(Box::new([one, other])))
    }
}

/// A scalar that is read as a `T` and converted to a `U`.
fn made<T: Scalar + 'static, U: 'static>(
    make: impl Fn(T) -> Result<U, Wrong> + 'static,
) -> Kind<Option<U>> {
    let form = || Form {
        values: T::values(),
        is_secret: T::SECRET,
        ..Form::of(What::Scalar(T::schema()))
    };
    Kind::new(
        move |check, at, written| check.leaf(at, &written?, &make),
        form,
    )
}

/// A scalar without a default: `None` if the key is not given. [`Kind::or`] adds one.
pub(super) fn leaf<T: Scalar + 'static>() -> Kind<Option<T>> {
    made(Ok)
}

/// A text that `parse` accepts.
pub(super) fn text<U: 'static>(parse: fn(&str) -> Result<U, Wrong>) -> Kind<Option<U>> {
    made(move |text: Text| parse(&text.show()))
}

/// A secret that `parse` accepts; nothing of it is shown.
pub(super) fn secret<U: 'static>(parse: fn(Secret) -> Result<U, Wrong>) -> Kind<Option<U>> {
    made(parse)
}

/// A URL that `parse` accepts; a user and password in it are not shown.
pub(super) fn url<U: 'static>(parse: fn(Secret) -> Result<U, Wrong>) -> Kind<Option<U>> {
    made(move |text: Text| parse(Secret::hide(text.show())))
}

/// A file that `parse` reads or checks.
pub(super) fn file<U: 'static>(parse: fn(&str) -> Result<U, Wrong>) -> Kind<Option<U>> {
    let read = move |check: &mut Check<'_>, at: &Path, written: Option<Value>| {
        check.file(at, &written?, parse)
    };
    Kind::new(read, || leaf::<PathBuf>().form())
}

/// A file of the TLS listener.
pub(super) fn listener_file() -> Kind<Option<PathBuf>> {
    let read = |check: &mut Check<'_>, at: &Path, written: Option<Value>| {
        let surroundings = check.surroundings;
        check.file(at, &written?, |name| surroundings.listener_file(name))
    };
    Kind::new(read, || leaf::<PathBuf>().form())
}

/// A file with a secret in it.
pub(super) fn secret_file() -> Kind<Option<Secret>> {
    let form = || leaf::<PathBuf>().form();
    Kind::new(|check, at, written| check.secret_file(at, &written?), form)
}

/// A quantity within bounds, without a default: `None` if the key is not given. See [`within`].
pub(super) fn between<T: Scalar + PartialOrd + 'static>(
    bounds: RangeInclusive<T>,
) -> Kind<Option<T>> {
    let shown = (bounds.start().show(), bounds.end().show());
    let check = move |value: T| match value.is_within(&bounds) {
        true => Ok(value),
        false => Err(Wrong::outside(&value, &bounds)),
    };
    made(check).formed(move |form| form.bounds = Some(shown.clone()))
}

impl<T: 'static> Kind<Option<T>> {
    /// Describes the accepted texts by a regular expression that matches each of them, and perhaps others.
    pub(super) fn like(self, pattern: &str) -> Kind<Option<T>> {
        self.ruled("pattern", format!("{pattern}|{VARIABLE}"))
    }
}

impl<T: Scalar + 'static> Kind<Option<T>> {
    /// Adds a default.
    pub(super) fn or(self, default: T) -> Kind<T> {
        let json = default.json();
        let kind = self.formed(move |form| form.default = Some(json.clone()));
        kind.around(move |read, check, at, written| {
            read(check, at, written).unwrap_or_else(|| {
                check.note(at, default.show(), default.effect());
                default.clone()
            })
        })
    }
}

impl<T: Default + 'static> Kind<Option<T>> {
    /// Adds a default as written in the file.
    pub(super) fn or_text(self, default: &'static str) -> Kind<T> {
        let kind = self.formed(move |form| form.default = Some(default.into()));
        kind.around(move |read, check, at, written| {
            let value = read(check, at, written);
            let value = value.or_else(|| read(check, at, Some(default.into())));
            value.unwrap_or_default()
        })
    }
}

impl<T: 'static> Kind<Vec<T>> {
    /// Adds a default to a list: words separated by spaces.
    pub(super) fn or_list(self, default: &'static str) -> Kind<Vec<T>> {
        let words = || default.split_whitespace();
        let kind = self.formed(move |form| form.default = Some(words().collect()));
        kind.around(move |read, check, at, written| {
            let default = || words().map(Value::from).collect();
            let written = written.unwrap_or_else(|| Value::Sequence(default()));
            read(check, at, Some(written))
        })
    }

    pub(super) fn at_most(self, most: usize) -> Kind<Vec<T>> {
        let kind = self.ruled("maxItems", most);
        kind.around(move |read, check, at, written| {
            if let Some(Value::Sequence(items)) = &written
                && items.len() > most
            {
                let message = format!("{} are too many", items.len());
                check.wrong(at, message, format!("at most {most}"));
                return Vec::new();
            }
            read(check, at, written)
        })
    }
}

/// A quantity within bounds, with a default. See [`between`].
pub(super) fn within<T: Scalar + PartialOrd + 'static>(
    default: T,
    bounds: RangeInclusive<T>,
) -> Kind<T> {
    between(bounds).or(default)
}

/// A number as a type whose range includes the bounds of its row.
pub(super) fn fitting<T, U: TryFrom<T>>(number: T) -> U {
    U::try_from(number).unwrap_or_else(|_| unreachable!("the bounds are in the type's range"))
}

/// A whole number with default and bounds, as any type whose range includes them.
pub(super) fn number<U: TryFrom<u64> + 'static>(
    default: u64,
    bounds: RangeInclusive<u64>,
) -> Kind<U> {
    within(default, bounds).map(fitting)
}

/// A number above 0.
pub(super) fn positive<U: TryFrom<NonZeroU64> + 'static>(
    default: u64,
    bounds: RangeInclusive<u64>,
) -> Kind<U> {
    within(default, bounds).map(non_zero)
}

/// A number that the bounds of its row keep above 0, as a type without 0.
pub(super) fn non_zero<U: TryFrom<NonZeroU64>>(number: u64) -> U {
    fitting(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
}

/// A size in bytes.
pub(super) fn size<U: TryFrom<u64> + 'static>(
    default: u64,
    bounds: RangeInclusive<u64>,
) -> Kind<U> {
    let bounds = ByteSize(*bounds.start())..=ByteSize(*bounds.end());
    within(ByteSize(default), bounds).map(|ByteSize(bytes)| fitting(bytes))
}

/// From 0% to 100%.
pub(super) fn percent<U: TryFrom<u64> + 'static>(default: u64) -> Kind<U> {
    within(Percent(default), Percent(0)..=Percent(100)).map(|Percent(part)| fitting(part))
}

pub(super) fn list<T: 'static>(item: fn() -> Kind<T>) -> Kind<Vec<T>> {
    let read = move |check: &mut Check<'_>, at: &Path, written: Option<Value>| {
        let items = check.items(at, written).into_iter();
        let item = item();
        items
            .map(|(at, written)| item.read(check, &at, Some(written)))
            .collect()
    };
    Kind::new(read, move || Form::of(What::List(Box::new(item().form()))))
}

/// A list of values of a kind, none twice. The list is noted as a whole.
pub(super) fn distinct<T: PartialEq + 'static>(
    item: impl Fn() -> Kind<Option<T>> + Clone + 'static,
) -> Kind<Vec<T>> {
    placed(item).map(|values| values.into_iter().map(|one| one.value).collect())
}

/// A value of a list.
pub(super) struct Placed<T> {
    /// Its path.
    pub(super) at: Path,
    pub(super) value: T,
    /// The text from which it was read, with its variables.
    pub(super) written: String,
}

/// The list with the path and the text of each value.
pub(super) fn placed<T: PartialEq + 'static>(
    item: impl Fn() -> Kind<Option<T>> + Clone + 'static,
) -> Kind<Vec<Placed<T>>> {
    let form = item.clone();
    let read = move |check: &mut Check<'_>, at: &Path, written: Option<Value>| {
        let is_written = written.is_some();
        let items = check.items(at, written);
        if is_written {
            let texts: Vec<&str> = items.iter().filter_map(|(_, item)| item.as_str()).collect();
            check.note(at, texts.join(", "), texts.join(", "));
        }
        let item = flagged(item(), |check| &mut check.is_silent);
        let mut values: Vec<Placed<T>> = Vec::new();
        for (at, item_written) in items {
            let written = item_written.as_str().unwrap_or_default().to_owned();
            let Some(value) = item.read(check, &at, Some(item_written)) else {
                continue;
            };
            if values.iter().any(|known| known.value == value) {
                check.wrong(&at, "it is in the list already", "remove one of them");
            } else {
                values.push(Placed { at, value, written });
            }
        }
        values
    };
    let form = move || Form::of(What::List(Box::new(form().form())));
    Kind::new(read, form).ruled("uniqueItems", true)
}

/// A mapping of names to sections, at least one.
pub(super) fn named<R: Rows, U: 'static>(
    hint: &'static str,
    make: fn(&mut Check<'_>, &Path, &str, R) -> Option<U>,
) -> Kind<Option<Vec<U>>> {
    let read = move |check: &mut Check<'_>, at: &Path, written: Option<Value>| {
        let message = match written? {
            Value::Mapping(entries) if !entries.is_empty() => {
                let entries = entries.into_iter().filter_map(|(key, value)| {
                    let name = key_text(&key);
                    let at = at.key(&name);
                    check.making(
                        |check| plain().read(check, &at, Some(value)),
                        |check, rows| make(check, &at, &name, rows),
                    )
                });
                return Some(entries.collect());
            }
            Value::Mapping(_) | Value::Null => "at least one is needed".to_owned(),
            other => format!(
                "expected names with their values, found {}",
                kind_of(&other)
            ),
        };
        check.wrong(at, message, hint);
        None
    };
    required(hint, Kind::new(read, || Form::of(What::Named(R::rows()))))
}

/// An optional section; without it, its feature is off.
pub(super) fn section<R: Rows, U: 'static>(
    make: fn(&mut Check<'_>, &Path, R) -> Option<U>,
) -> Kind<Option<U>> {
    let read = move |check: &mut Check<'_>, at: &Path, written: Option<Value>| {
        let written = check.mapping(at, written?, R::NAMES)?;
        check.section(at, |check| {
            check.making(
                |check| R::read(check, at, written),
                |check, rows| make(check, at, rows),
            )
        })
    };
    Kind::new(read, || Form::of(What::Section(R::rows())))
}

/// An optional section that is used as its rows.
pub(super) fn optional<R: Rows>() -> Kind<Option<R>> {
    section(|_, _, rows| Some(rows))
}

/// A section that may be left out for all its defaults.
pub(super) fn always<R: Rows, U: 'static>(make: fn(&mut Check<'_>, &Path, R) -> U) -> Kind<U> {
    let read = move |check: &mut Check<'_>, at: &Path, written: Option<Value>| {
        let is_given = written.is_some();
        let written = written.and_then(|written| check.mapping(at, written, R::NAMES));
        // If the value is no section, keys missing in it are no further problem.
        let is_spurious = is_given && written.is_none();
        let problems = check.problems.len();
        let made = check.section(at, |check| {
            check.making(
                |check| R::read(check, at, written.unwrap_or_default()),
                |check, rows| make(check, at, rows),
            )
        });
        if is_spurious {
            check.problems.truncate(problems);
        }
        made
    };
    Kind::new(read, || Form::of(What::Section(R::rows())))
}

/// A section that is used as its rows.
pub(super) fn plain<R: Rows>() -> Kind<R> {
    always(|_, _, rows| rows)
}

/// A required value.
pub(super) fn required<T: 'static>(hint: &'static str, kind: Kind<T>) -> Kind<T> {
    required_as("the key is missing", hint, kind)
}

/// A required value with its own message.
pub(super) fn required_as<T: 'static>(
    message: &'static str,
    hint: &'static str,
    kind: Kind<T>,
) -> Kind<T> {
    let kind = kind.around(move |read, check, at, written| {
        if written.is_none() {
            check.wrong(at, message, hint);
        }
        read(check, at, written)
    });
    kind.formed(|form| form.is_required = true)
}

/// A required value, with an empty substitute if it is missing.
pub(super) fn needed<T: Default + 'static>(hint: &'static str, kind: Kind<Option<T>>) -> Kind<T> {
    required(hint, kind).map(Option::unwrap_or_default)
}

/// A value that only a serving gateway uses, no command on the store; also all values beneath it.
pub(super) fn serving<T: 'static>(kind: Kind<T>) -> Kind<T> {
    flagged(kind, |check| &mut check.in_service)
}

/// A value whose change needs a restart; also all values beneath it.
pub(super) fn restart<T: 'static>(kind: Kind<T>) -> Kind<T> {
    let kind = flagged(kind, |check| &mut check.in_foundation);
    kind.formed(|form| form.needs_restart = true)
}

/// A value during whose reading a flag is set.
pub(super) fn flagged<T: 'static>(
    kind: Kind<T>,
    flag: for<'a> fn(&'a mut Check<'_>) -> &'a mut bool,
) -> Kind<T> {
    kind.around(move |read, check, at, written| {
        let outer = std::mem::replace(flag(check), true);
        let value = read(check, at, written);
        *flag(check) = outer;
        value
    })
}
