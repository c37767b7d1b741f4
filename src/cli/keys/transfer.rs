//! Moving keys in and out: `touchline keys import` and `keys export`.
//!
//! Both use the same rows (see [`rows`]), so that an export with digests can be imported elsewhere. Invariants: nothing is written
//! unless the whole file is valid; no message about a file or its mistakes repeats a key or a digest.

mod check;
mod export;
mod file;
mod import;
mod rows;

pub(super) use self::export::{ExportArguments, export};
pub(super) use self::import::{ImportArguments, import, rehearse};
