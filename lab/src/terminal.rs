//! A program at a terminal: a pseudo-terminal with a reader of the screen and a writer of keys.
//!
//! Such a program writes only the changes of its screen, so its octets alone mean little. The tests
//! read the screen that a terminal would show (`vt100`).

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::shell::{Seen, wait_for};

/// The default size of a terminal, and of the parser.
const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// A terminal with a running program.
pub(crate) struct Terminal {
    /// The user's side.
    seat: File,
    /// The program's side.
    line: File,
    parser: Arc<Mutex<vt100::Parser>>,
    before: Termios,
    child: Child,
    /// Whether the program had taken the terminal at the last key or signal.
    was_taken: bool,
}

impl Terminal {
    /// Starts the program in a session of its own, with this terminal as `/dev/tty`. Without it, the
    /// program would find the size of the terminal that the lab runs in.
    pub(crate) fn start(command: &Command) -> Result<Terminal> {
        let seat = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&seat)?;
        unlockpt(&seat)?;
        let name = ptsname(&seat, Vec::new())?;
        let line = open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        tcsetwinsize(&line, SIZE)?;
        let before = tcgetattr(&line)?;
        let [seat, line] = [seat, line].map(File::from);
        // It replaces itself by the program, so the child is the program.
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            session.current_dir(folder);
        }
        let child = session
            .stdin(line.try_clone()?)
            .stdout(line.try_clone()?)
            .stderr(line.try_clone()?)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .spawn()?;
        let parser = Arc::new(Mutex::new(vt100::Parser::default()));
        let (mut reader, screen) = (seat.try_clone()?, Arc::clone(&parser));
        // The thread ends with the terminal. The terminal exists until this value is dropped.
        std::thread::spawn(move || {
            let mut octets = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut octets) {
                screen.lock().unwrap_or_else(PoisonError::into_inner).process(&octets[..length]);
            }
        });
        Ok(Terminal { seat, line, parser, before, child, was_taken: false })
    }

    fn parser(&self) -> MutexGuard<'_, vt100::Parser> {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text on the screen.
    pub(crate) fn text(&self) -> String {
        self.parser().screen().contents()
    }

    /// Waits until all these words are on the screen; returns its text.
    pub(crate) fn wait_for(&self, words: &[&str], patience: Duration) -> Result<String> {
        wait_for(&format!("{words:?} on the screen"), patience, || {
            let text = self.text();
            let there = words.iter().all(|word| text.contains(word));
            Ok(if there { Seen::Yes(text) } else { Seen::NotYet(format!("\n{text}\n")) })
        })
    }

    /// Waits until this word is no longer on the screen.
    pub(crate) fn wait_without(&self, word: &str, patience: Duration) -> Result<()> {
        wait_for(&format!("{word:?} to disappear from the screen"), patience, || {
            let text = self.text();
            Ok(Seen::when(!text.contains(word), || format!("\n{text}\n")))
        })
    }

    /// The colour of the first cell of a line with this beginning.
    pub(crate) fn colour_of(&self, beginning: &str) -> Result<vt100::Color> {
        let parser = self.parser();
        let screen = parser.screen();
        let row = screen.rows(0, SIZE.ws_col).position(|row| row.starts_with(beginning));
        let row =
            row.with_context(|| format!("no line begins with {beginning:?}:\n{}", screen.contents()))?;
        Ok(screen.cell(u16::try_from(row)?, 0).context("no such cell")?.fgcolor())
    }

    /// Types these keys.
    pub(crate) fn press(&mut self, keys: &str) -> Result<()> {
        self.was_taken |= self.is_taken()?;
        self.seat.write_all(keys.as_bytes()).context("typing")
    }

    /// Sends the program a signal.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        self.was_taken |= self.is_taken()?;
        let pid = Pid::from_raw(i32::try_from(self.child.id())?).context("no process")?;
        kill_process(pid, signal).context("the signal")
    }

    /// Waits until the program has ended, and fails unless the terminal's state is as before.
    pub(crate) fn wait_ended(&mut self, patience: Duration) -> Result<ExitStatus> {
        // The key or signal before may have ended it already.
        ensure!(
            self.was_taken || self.is_taken()?,
            "the program did not change the terminal: its restoration cannot be tested"
        );
        let status = wait_for("the program to end", patience, || {
            Ok(match self.child.try_wait()? {
                Some(status) => Seen::Yes(status),
                None => Seen::NotYet(format!("\n{}\n", self.parser().screen().contents())),
            })
        })?;
        wait_for("the terminal to be restored", patience, || {
            Ok(Seen::when(!self.is_taken()? && !self.parser().screen().hide_cursor(), || self.text()))
        })?;
        ensure!(
            modes(&tcgetattr(&self.line)?) == modes(&self.before),
            "the terminal has other modes than before"
        );
        Ok(status)
    }

    /// Whether the alternate screen is shown, or keys are read unbuffered.
    fn is_taken(&self) -> Result<bool> {
        let modes_changed = modes(&tcgetattr(&self.line)?) != modes(&self.before);
        Ok(self.parser().screen().alternate_screen() || modes_changed)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The settings that raw mode changes.
fn modes(termios: &Termios) -> String {
    format!(
        "{:?} {:?} {:?} {:?}",
        termios.input_modes, termios.output_modes, termios.control_modes, termios.local_modes
    )
}
