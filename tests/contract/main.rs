//! Integration tests: contract.
