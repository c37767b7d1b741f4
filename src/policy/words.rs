//! Enums whose values are words, each written once, beside its value; and numbers of things in sentences.

use std::fmt::Display;

/// A number and the words for what it counts: `one` of it, or `many`.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    let words = match number == N::from(1) {
        true => one,
        false => many,
    };
    format!("{number} {words}")
}

/// Declares enums: a value is `VALUE = "WORD"`, or `VALUE` if it is its own word. Each enum gets its values as `ALL`, in the order of
/// declaration, their words as `WORDS`, and conversions from and to the words.
macro_rules! words {
    (@word $value:ident) => { stringify!($value) };
    (@word $value:ident $word:literal) => { $word };
    ($($(#[$doc:meta])* $vis:vis enum $name:ident {
        $($(#[$about:meta])* $value:ident $(= $word:literal)?,)+
    })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$about])* $value,)+ }

        #[allow(dead_code, reason = "an enum need not use all of them")]
        impl $name {
            /// The words, in the order of [`Self::ALL`].
            $vis const WORDS: &'static [&'static str] =
                &[$($crate::policy::words::words!(@word $value $($word)?)),+];

            /// Every value.
            $vis const ALL: [$name; $name::WORDS.len()] = [$($name::$value),+];

            /// The word of the value.
            $vis fn as_str(self) -> &'static str {
                match self {
                    $($name::$value => $crate::policy::words::words!(@word $value $($word)?),)+
                }
            }

            /// The value of the word.
            $vis fn of_str(word: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|value| value.as_str() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )+};
}
pub(crate) use words;

/// Has types serialised as their text, and read as [`std::str::FromStr`] reads it.
macro_rules! serde_by_text {
    ($name:ty) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$name, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_by_text;
