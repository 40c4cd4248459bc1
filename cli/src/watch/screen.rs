//! The terminal: taken, drawn on, and given back as it was, whatever happens.
//!
//! It is given back by dropping, which an error and a signal come to on their ways out, and by the panic hook before the panic is told:
//! its words would otherwise go to the screen that is about to vanish, and those of a thread would stand amid a view that goes on.

use std::io::{self, Stdout, Write, stdout};
use std::panic;
use std::process;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::ResetColor;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};

/// What Rust's own programs end with after a panic.
const PANICKED: i32 = 101;

/// A terminal that is drawn on.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    _guard: TerminalGuard,
}

/// The terminal's state is changed; dropping it changes it back.
struct TerminalGuard;

impl Screen {
    /// Takes the terminal that is standard output. From here on a panic of any thread gives it back and ends the process.
    pub fn open() -> io::Result<Screen> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
            process::exit(PANICKED);
        }));
        enable_raw_mode()?;
        let taken = TerminalGuard;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(Screen { terminal: Terminal::new(CrosstermBackend::new(stdout()))?, _guard: taken })
    }

    /// Draws, and writes what differs from before.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back. Each step is tried, whatever became of the one before: a terminal that is gone needs none.
fn restore() {
    let _ = execute!(stdout(), ResetColor, Show, LeaveAlternateScreen);
    let _ = stdout().flush();
    let _ = disable_raw_mode();
}
