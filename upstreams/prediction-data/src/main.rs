//! The sample upstream.
fn main() {}
