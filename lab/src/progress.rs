//! What the person at the terminal sees: steps with their time on standard error, so that standard output stays free
//! for results. A step's title stands open until its time comes behind it; a line that another thread says meanwhile
//! gets a line of its own, and the title is said again.

use std::cell::Cell;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;

/// The thread whose title stands open, if any.
static OPEN: Mutex<Option<std::thread::ThreadId>> = Mutex::new(None);

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread says nothing: others speak, and its errors say what there is to say.
pub(crate) fn be_quiet() {
    QUIET.set(true);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.get()
}

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

/// A line of its own.
pub(crate) fn say(text: &str) {
    if !is_quiet() {
        tell(text);
    }
}

/// As [`say`], also from a thread that is quiet otherwise.
pub(crate) fn tell(text: &str) {
    // A step of this thread's own may be told of in its middle.
    write(&format!("{text}\n"), false);
}

/// Whether what this thread writes stands behind its open title.
fn continues() -> bool {
    *OPEN.lock().unwrap_or_else(PoisonError::into_inner) == Some(std::thread::current().id())
}

/// Writes; whoever left a line open, if it was not this thread, keeps what it wrote as a line of its own.
fn write(text: &str, open: bool) {
    let me = std::thread::current().id();
    let mut standing = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut err = std::io::stderr().lock();
    let cut = if standing.is_some_and(|other| other != me) { "\n" } else { "" };
    // Progress that cannot be written is no reason to stop.
    let _unseen = write!(err, "{cut}{text}").and_then(|()| err.flush());
    *standing = open.then_some(me);
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
