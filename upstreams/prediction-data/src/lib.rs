//! A prediction-data service for football: the sample upstream behind Touchline, and a model for a real one.
//!
//! Read in this order; a module uses only those above it.
//!
//! | Module | Job |
//! |---|---|
//! | [`probability`] | published probabilities in whole ten-thousandths, so that they sum to exactly 1 |
//! | [`data_set`] | files → a checked [`DataSet`](data_set::DataSet), or every mistake in them with file and line |
//! | [`model`] | results → strengths of teams → the chance of every score (Maher's Poisson model) |
//! | [`catalogue`] | the five resources, computed once at start: predictions, markets, insights, sentiment, rankings |
//! | [`query`] | query strings → checked filters and pages, or every problem with its parameter |
//! | [`answer`] | JSON bodies, ETags, `304`, problem documents (RFC 9457) |
//! | [`fault`] | answering slowly or failing on purpose, for tests of this service's clients |
//! | [`access_log`] | one JSON line for each request |
//! | [`router`] | paths → answers |
//! | [`options`] | the command line |
//!
//! Everything up to [`query`] is pure: no clock, no randomness, no I/O but the reading of the data files. The same files give the
//! same bytes, on every request and every machine.

pub mod access_log;
pub mod answer;
pub mod catalogue;
pub mod data_set;
pub mod fault;
pub mod model;
pub mod options;
pub mod probability;
pub mod query;
pub mod router;
