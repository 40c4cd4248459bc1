//! The page of metrics matches the catalogue.

use std::path::Path;

#[test]
fn the_page_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let there = std::fs::read_to_string(page).unwrap();
    assert!(there == trunkline_api::metrics::page(), "docs/metrics.md is not current: run `cargo lab docs`");
}

/// The expressions in place of hybridnet's metrics use names and labels of the catalogue.
#[test]
fn expressions_for_users_of_hybridnet_are_valid() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let page = std::fs::read_to_string(docs.join("hybridnet-differences.md")).unwrap();
    let rows = trunkline_api::metrics::page();
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut names = 0;
    for (start, _) in page.match_indices("trunkline_") {
        let rest = &page[start..];
        let (name, rest) = rest.split_at(rest.find(|letter| !is_part(letter)).unwrap_or(rest.len()));
        let base = name.trim_end_matches("_bucket").trim_end_matches("_count");
        let row = rows
            .lines()
            .find(|row| row.starts_with(&format!("| `{base}`")) || row.starts_with(&format!("| `{base}{{")))
            .unwrap_or_else(|| panic!("{base} is not in the catalogue"));
        let labels = row.split(['{', '}']).nth(1).unwrap_or_default();
        if let Some(selector) = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()) {
            for label in selector.split(',').filter_map(|pair| pair.split('=').next()) {
                assert!(
                    labels.split(',').any(|known| known == label),
                    "{name} has {labels}, and not {label}"
                );
            }
        }
        names += 1;
    }
    assert!(names >= 10, "{names} names on the page");
}
