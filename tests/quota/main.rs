//! Integration tests: quota.
