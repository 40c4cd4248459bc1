//! Text for cells of a terminal: invisible characters are made visible, long text is cut or
//! wrapped.

use ratatui::text::Span;

/// The number of columns of a text.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text as one line; control characters and direction marks are replaced by their numbers. The
/// agent already does this with texts of peers. Here it covers all texts, such as a pod's name or
/// texts of an agent of another version.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.trim_end().chars() {
        match letter {
            '\n' | '\t' => shown.push(' '),
            _ if letter.is_control() || turns(letter) => shown.extend(letter.escape_unicode()),
            _ => shown.push(letter),
        }
    }
    shown
}

/// Whether a character changes the direction of the text around it.
fn turns(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with this number of columns: padded with blanks, or cut and marked.
pub(super) fn fit(text: &str, columns: usize) -> String {
    let wide = width(text);
    if wide <= columns {
        return format!("{text}{}", " ".repeat(columns - wide));
    }
    let mut shown = String::new();
    let mut used = 1;
    for letter in text.chars() {
        used += width(letter.encode_utf8(&mut [0; 4]));
        if used > columns {
            break;
        }
        shown.push(letter);
    }
    if columns > 0 {
        shown.push('…');
    }
    let wide = width(&shown);
    shown + &" ".repeat(columns.saturating_sub(wide))
}

/// The text in lines with this number of columns, broken at blanks if possible. All lines but the
/// first begin with `indent` blanks.
pub(super) fn wrap(text: &str, columns: usize, indent: usize) -> Vec<String> {
    let indent = if indent * 2 > columns { 0 } else { indent };
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_inclusive(' ') {
        let begins = lines.is_empty() || line.len() > indent;
        if width(line.as_str()) + width(word.trim_end()) > columns && begins && !line.trim().is_empty() {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
        }
        for letter in word.chars() {
            let wide = width(letter.encode_utf8(&mut [0; 4]));
            if letter != ' ' && width(&line) + wide > columns {
                lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            }
            line.push(letter);
        }
    }
    lines.push(line);
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Cells under headings, in columns of the necessary width. The last column gets the remaining
/// width and is cut, or omitted if no width remains.
#[derive(Debug)]
pub(super) struct Grid {
    headings: Vec<Heading>,
    rows: Vec<Vec<String>>,
}

/// The heading of a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heading {
    text: &'static str,
    /// Numbers are aligned to the right.
    number: bool,
    /// If the width is too small, columns are omitted in this order, 1 first; columns with 0 stay.
    spare: u8,
}

pub(super) const fn words(text: &'static str, spare: u8) -> Heading {
    Heading { text, number: false, spare }
}

pub(super) const fn number(text: &'static str, spare: u8) -> Heading {
    Heading { text, number: true, spare }
}

impl Grid {
    pub(super) fn new(headings: &[Heading]) -> Grid {
        Grid { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with as many cells as headings.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| plain(&cell)).collect());
    }

    /// The heading and the rows with this number of columns.
    pub(super) fn lines(mut self, columns: usize) -> (String, Vec<String>) {
        const LEAST: usize = 10;
        let mut widths: Vec<usize> = self.headings.iter().map(|heading| width(heading.text)).collect();
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(cell));
            }
        }
        let needed = |widths: &[usize]| widths.iter().map(|width| width + 1).sum::<usize>();
        loop {
            let least = widths.last().map_or(0, |width| (*width).min(LEAST));
            if needed(&widths[..widths.len().saturating_sub(1)]) + least <= columns {
                break;
            }
            let spare = self.headings.iter().enumerate().filter(|(_, heading)| heading.spare > 0);
            let Some((place, _)) = spare.min_by_key(|(_, heading)| heading.spare) else { break };
            self.headings.remove(place);
            widths.remove(place);
            self.rows.iter_mut().for_each(|row| drop(row.remove(place)));
        }
        if let Some((last, others)) = widths.split_last_mut() {
            *last = columns.saturating_sub(needed(others));
        }
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells = cells.zip(&widths).zip(&self.headings).map(|((cell, wide), heading)| {
                let blanks = wide.saturating_sub(width(cell));
                if heading.number { " ".repeat(blanks) + cell } else { fit(cell, *wide) }
            });
            fit(&cells.collect::<Vec<String>>().join(" "), columns)
        };
        let head = line(&mut self.headings.iter().map(|heading| heading.text));
        (head, self.rows.iter().map(|row| line(&mut row.iter().map(String::as_str))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_padded_and_wrapped_by_their_width() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdef", 5), "abcd…");
        // Each of these characters has two columns.
        assert_eq!(fit("機架機架", 6), "機架… ");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(wrap("hold timer expired", 11, 2), ["hold timer", "  expired"]);
        assert_eq!(wrap("abcdefgh", 3, 0), ["abc", "def", "gh"]);
        assert_eq!(wrap("name   a b", 80, 7), ["name   a b"]);
    }

    #[test]
    fn control_characters_are_shown_as_numbers() {
        assert_eq!(plain("a\u{1b}[2Jb\u{202e}c\nd"), "a\\u{1b}[2Jb\\u{202e}c d");
        assert_eq!(plain("\u{9b}31m\u{7}"), "\\u{9b}31m\\u{7}");
        assert_eq!(plain("Grüße, 東京"), "Grüße, 東京");
    }

    #[test]
    fn narrow_grid_omits_spare_columns() {
        let grid = || {
            let mut grid =
                Grid::new(&[words("PEER", 0), number("AS", 2), number("RECV", 1), words("ERROR", 3)]);
            grid.row(["192.0.2.1", "65001", "7", "hold timer expired"].map(str::to_owned));
            grid
        };
        assert_eq!(grid().lines(34).1, ["192.0.2.1 65001    7 hold timer e…"]);
        assert_eq!(
            grid().lines(28),
            ("PEER         AS ERROR       ".to_owned(), vec!["192.0.2.1 65001 hold timer …".to_owned()])
        );
        assert_eq!(grid().lines(22).1, ["192.0.2.1 hold timer …"]);
        assert_eq!(grid().lines(9).1, ["192.0.2.1"]);
    }
}
