//! Cells of Markdown tables.

/// Joins a text into one line and escapes each `|`, also within code, since Markdown splits a table
/// into cells first.
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
