//! Integration tests: the gateway as its operators meet it.
