//! Placeholder until the first commit of this crate.
fn main() {}
