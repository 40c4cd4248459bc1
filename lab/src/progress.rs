//! Progress at the terminal: steps with their time. It is on standard error, so standard output has
//! only results. A step's title stays on an open line until its time is appended. If another thread
//! prints meanwhile, its text gets its own line, and the title is printed again.

use std::cell::Cell;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;

/// The thread with an open title, if any.
static OPEN: Mutex<Option<std::thread::ThreadId>> = Mutex::new(None);

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread quiet: it prints no progress, and returns only its errors.
pub(crate) fn be_quiet() {
    QUIET.set(true);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.get()
}

/// Runs one step: prints its title at once, and its outcome and time at the end.
pub(crate) fn step<T>(title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    step_with(title, work, |_| String::new())
}

/// Like [`step`], with a short text made from the result.
pub(crate) fn step_with<T>(
    title: &str,
    work: impl FnOnce() -> Result<T>,
    words: impl FnOnce(&T) -> String,
) -> Result<T> {
    if is_quiet() {
        return work();
    }
    let title = format!("  {title:<58} ");
    write(&title, true);
    let start = Instant::now();
    let result = work();
    let time = seconds(start.elapsed().as_secs_f64());
    let outcome = match &result {
        Ok(value) => format!("{time:>8}  {}", words(value)),
        Err(_) => format!("{time:>8}  FAILED"),
    };
    if !continues() {
        write(&title, true);
    }
    write(&format!("{outcome}\n"), false);
    result
}

/// Prints a line.
pub(crate) fn say(text: &str) {
    if !is_quiet() {
        print_line(text);
    }
}

/// Like [`say`], also from a quiet thread.
pub(crate) fn print_line(text: &str) {
    // The line may interrupt a step of this thread.
    write(&format!("{text}\n"), false);
}

/// Whether the output of this thread continues its open title.
fn continues() -> bool {
    *OPEN.lock().unwrap_or_else(PoisonError::into_inner) == Some(std::thread::current().id())
}

/// Prints a text; an open line of another thread is ended first.
fn write(text: &str, open: bool) {
    let me = std::thread::current().id();
    let mut standing = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut err = std::io::stderr().lock();
    let cut = if standing.is_some_and(|other| other != me) { "\n" } else { "" };
    // A failed write of the progress is no reason to stop.
    let _unseen = write!(err, "{cut}{text}").and_then(|()| err.flush());
    *standing = open.then_some(me);
}

/// Formats seconds in a suitable unit.
pub(crate) fn seconds(s: f64) -> String {
    match s {
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), s % 60.0),
    }
}

/// Formats rows under a headline, with columns as wide as their widest cell.
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
    fn times_have_suitable_units() {
        assert_eq!(seconds(0.000_012), "12 µs");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(185.0), "3 min 05 s");
    }
}
