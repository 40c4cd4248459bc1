//! Cells of Markdown tables.

/// One line, in which no `|` ends the cell (not within code either, as tables are cut into cells before anything else is read).
pub(super) fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn a_cell_is_one_line_and_one_cell() {
        assert_eq!(cell("a\n  b | `c|d`"), "a b \\| `c\\|d`");
    }
}
