//! The plugin.
fn main() {}
