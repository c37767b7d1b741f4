//! The `touchline` program.

fn main() {}
