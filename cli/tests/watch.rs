//! `trunkline watch` restores the terminal when one of its threads panics. The lab's operator/watch
//! tests `q`, an error and SIGTERM with a real agent.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use trunkline_cli::watch::screen::Screen;

fn modes(terminal: impl AsFd) -> String {
    let termios = tcgetattr(terminal).unwrap();
    format!("{:?} {:?} {:?}", termios.input_modes, termios.output_modes, termios.local_modes)
}

#[test]
fn panic_restores_the_terminal_before_its_message() {
    let seat = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&seat).unwrap();
    unlockpt(&seat).unwrap();
    let name = ptsname(&seat, Vec::new()).unwrap();
    let line = open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    tcsetwinsize(&line, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let before = modes(&line);
    let (line, mut seat) = (File::from(line), File::from(seat));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "panics_while_drawing", "--ignored", "--nocapture"])
        .stdin(line.try_clone().unwrap())
        .stdout(line.try_clone().unwrap())
        .stderr(line.try_clone().unwrap())
        .spawn()
        .unwrap();
    let reader = thread::spawn(move || {
        let mut octets = Vec::new();
        // If the other end is closed, the read ends with an error; the octets before it are valid.
        let _ = seat.read_to_end(&mut octets);
        String::from_utf8_lossy(&octets).into_owned()
    });
    let status = child.wait().unwrap();
    let after = modes(&line);
    drop(line);
    let text = reader.join().unwrap();
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?} in {text:?}"));
    assert!(place("\u{1b}[?1049h") < place("\u{1b}[?1049l"), "{text:?}");
    assert!(place("\u{1b}[?1049l") < place("on purpose"), "the message is on the normal screen: {text:?}");
    assert!(place("\u{1b}[?25l") < place("\u{1b}[?25h"), "{text:?}");
    assert!(place("raw: true") > 0, "raw mode was set");
    assert_eq!(after, before);
    assert_eq!(status.code(), Some(101));
    assert!(!text.contains("test result"), "the other threads continued: {text:?}");
}

#[test]
#[ignore = "this program panics at a terminal: another test runs it"]
fn panics_while_drawing() {
    let before = modes(std::io::stdin());
    let mut screen = Screen::open().unwrap();
    screen.draw(|_| ()).unwrap();
    println!("raw: {}", before != modes(std::io::stdin()));
    thread::spawn(|| panic!("on purpose")).join().unwrap_err();
}
