//! A table with columns of the necessary width.

/// Rows under a header; the last column is not padded.
#[derive(Clone, Debug)]
pub struct Columns {
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// Creates a table with these headings.
    pub fn new(headings: &[&str]) -> Columns {
        Columns { rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    /// Adds a row with as many cells as headings. An empty cell is shown as `-`.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell });
        self.rows.push(cells.collect());
    }

    /// The lines, each with a newline.
    pub fn render(&self) -> String {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (width, cell) in widths.iter().zip(row) {
                let pad = width - cell.chars().count() + 2;
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', pad));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A duration for people: `42s`, `3m05s`, `2h10m`, `5d03h`.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut columns = Columns::new(&["PEER", "STATE", "LAST"]);
        columns.row(["10.0.0.1".to_owned(), "Established".to_owned(), String::new()]);
        columns.row(["x".to_owned(), "Idle".to_owned(), "a b".to_owned()]);
        assert_eq!(
            columns.render(),
            "PEER      STATE        LAST\n10.0.0.1  Established  -\nx         Idle         a b\n"
        );
    }

    #[test]
    fn durations_are_short() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (185, "3m05s"), (7800, "2h10m"), (442_800, "5d03h")] {
            assert_eq!(duration(seconds), text);
        }
    }
}
