//! The embedded store: the shared suite.
