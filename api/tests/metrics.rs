//! The page of metrics matches the catalogue.

use std::path::Path;

#[test]
fn the_page_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let there = std::fs::read_to_string(page).unwrap();
    assert!(there == trunkline_api::metrics::page(), "docs/metrics.md is not current: run `cargo lab docs`");
}
