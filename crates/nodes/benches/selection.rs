//! How long a selection takes.
fn main() {}
