//! Integration tests: house.
