//! What the person at the terminal sees: steps with their time on standard error, so that standard output stays free
//! for results.

use std::io::Write as _;
use std::time::Instant;

use anyhow::Result;

/// Runs one step: its title is shown at once, its outcome and time when it has ended.
pub(crate) fn step<T>(title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    step_with(title, work, |_| String::new())
}

/// As [`step`], with a few words made from the result.
pub(crate) fn step_with<T>(
    title: &str,
    work: impl FnOnce() -> Result<T>,
    words: impl FnOnce(&T) -> String,
) -> Result<T> {
    let mut err = std::io::stderr();
    // Progress that cannot be written is no reason to stop.
    let _unseen = write!(err, "  {title:<58} ").and_then(|()| err.flush());
    let start = Instant::now();
    let result = work();
    let time = seconds(start.elapsed().as_secs_f64());
    let _unseen = match &result {
        Ok(value) => writeln!(err, "{time:>8}  {}", words(value)),
        Err(_) => writeln!(err, "{time:>8}  FAILED"),
    };
    result
}

/// A line of its own.
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

/// Seconds, in the unit that reads best.
pub(crate) fn seconds(s: f64) -> String {
    match s {
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), s % 60.0),
    }
}

/// Rows under a headline, columns as wide as their widest cell.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!(" {cell:<width$} "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        assert_eq!(seconds(0.000_012), "12 µs");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(185.0), "3 min 05 s");
    }
}
