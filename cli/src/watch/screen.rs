//! The terminal: its modes are changed, and restored at every end of the program.
//!
//! A drop of [`Screen`] restores the terminal, also after an error or a signal. The panic hook
//! restores it before the panic message is printed. Otherwise the message would be on the alternate
//! screen, which disappears, or (for another thread) in the middle of a continuing view.

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

/// The exit code of a Rust program after a panic.
const PANICKED: i32 = 101;

/// A terminal with changed modes.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    _guard: TerminalGuard,
}

/// Restores the terminal's modes when it is dropped.
struct TerminalGuard;

impl Screen {
    /// Changes the modes of the terminal on standard output. From then on, a panic of any thread
    /// restores them and ends the process.
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

    /// Draws, and writes the differences to the terminal.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal's modes. Every step runs, even if one fails, because a closed terminal
/// needs no restored modes.
fn restore() {
    let _ = execute!(stdout(), ResetColor, Show, LeaveAlternateScreen);
    let _ = stdout().flush();
    let _ = disable_raw_mode();
}
