//! Runs other programs and reads their output, with limits on time and size.

use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::archive::LARGEST;
use super::step::now;

/// The output of a program, standard output and standard error together.
pub(super) struct Printed {
    /// The output as text, in whole lines.
    pub(super) text: String,
    /// Whether the program ended with status 0.
    pub(super) succeeded: bool,
}

/// Runs a program and waits for its end; kills it after `within`. The error text is for the
/// bundle's list of missing data.
pub(super) fn run(program: &str, args: &[&str], within: Duration) -> anyhow::Result<Printed> {
    let deadline = now() + within;
    let name = || program.to_owned();
    let (mut reader, writer) = io::pipe().with_context(name)?;
    let mut command = Command::new(program);
    let both = writer.try_clone().with_context(name)?;
    // The program runs in the C locale, because code parses its output.
    command.args(args).env("LC_ALL", "C").stdin(Stdio::null()).stdout(writer).stderr(both);
    let mut child = match command.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("{program} is not installed");
        }
        spawned => spawned.with_context(name)?,
    };
    // The command has the other end of the pipe, so it must be dropped.
    drop(command);
    let read = read(&mut reader, deadline);
    if !matches!(read, Ok((_, true))) {
        // The program has ended meanwhile, or is killed now.
        let _ = child.kill();
    }
    // A program that has closed its outputs ends soon.
    let status = child.wait().with_context(name)?;
    let (mut octets, ended) = read.with_context(name)?;
    if !ended && octets.len() < LARGEST {
        bail!("{program} did not end within {} s", within.as_secs_f32());
    }
    if !ended {
        octets.truncate(octets.iter().rposition(|octet| *octet == b'\n').map_or(0, |end| end + 1));
    }
    let mut text = String::from_utf8_lossy(&octets).into_owned();
    if !ended {
        text.push_str("… the rest is omitted\n");
    }
    Ok(Printed { text, succeeded: !ended || status.success() })
}

/// The octets, and whether the output ended by itself: not by the deadline or the size limit.
fn read(reader: &mut io::PipeReader, deadline: Instant) -> io::Result<(Vec<u8>, bool)> {
    let mut octets = Vec::new();
    let mut block = vec![0; 64 << 10];
    while octets.len() < LARGEST {
        let left = deadline.saturating_duration_since(now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut ready = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)];
        match poll(&mut ready, Some(&left)) {
            Err(rustix::io::Errno::INTR) => continue,
            outcome => {
                if outcome? == 0 {
                    return Ok((octets, false));
                }
            }
        }
        let room = block.len().min(LARGEST - octets.len());
        match reader.read(&mut block[..room])? {
            0 => return Ok((octets, true)),
            count => octets.extend_from_slice(&block[..count]),
        }
    }
    Ok((octets, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn both_outputs_are_read_and_a_hanging_program_is_killed() {
        let printed = run("sh", &["-c", "echo one; echo two >&2; exit 3"], LONG).unwrap();
        assert_eq!((printed.text.as_str(), printed.succeeded), ("one\ntwo\n", false));
        let began = now();
        let error =
            run("sh", &["-c", "echo one; exec sleep 1000"], Duration::from_millis(200)).err().unwrap();
        assert_eq!(error.to_string(), "sh did not end within 0.2 s");
        assert!(now() - began < LONG);
        let error = run("no-such-program", &[], LONG).err().unwrap();
        assert_eq!(error.to_string(), "no-such-program is not installed");
    }

    #[test]
    fn endless_output_is_cut_at_a_line() {
        let printed = run("yes", &["a line of some length"], LONG).unwrap();
        assert!(printed.succeeded && printed.text.len() <= LARGEST + 100);
        assert!(printed.text.ends_with("a line of some length\n… the rest is omitted\n"));
    }
}
