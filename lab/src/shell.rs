//! Execution of other programs: one way to run a command and get its output. The error has the
//! whole command line and the program's output.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Runs a command to its end and returns standard output. A status other than 0 is an error with
/// both outputs.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    run_with_input(command, "")
}

/// Like [`run`], with text on standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let line = describe(command);
    let output = output_with_input(command, input)?;
    if !output.status.success() {
        let said = [&output.stderr[..], &output.stdout[..]].concat();
        bail!("`{line}` failed ({}): {}", output.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end and returns status and outputs, with any status.
pub(crate) fn output_with_input(command: &mut Command, input: &str) -> Result<Output> {
    let line = describe(command);
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    // This cannot block: the input is far smaller than a pipe's buffer, or the program reads before
    // it writes.
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input.as_bytes()) {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(e).context(line),
            _ => {}
        }
    }
    child.wait_with_output().with_context(|| format!("`{line}`"))
}

/// A command from a program and its arguments: `sh("ip", ["link", "show"])`.
pub(crate) fn cmd<I: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

thread_local! {
    static GIVES_WAY: Cell<bool> = const { Cell::new(false) };
}

/// After this call, commands of [`giving_way`] that this thread starts use only idle time of
/// processors and disks.
pub(crate) fn give_way() -> Result<()> {
    let [program, args @ ..] = GIVING_WAY;
    run(cmd(program, args).arg("true"))?;
    GIVES_WAY.set(true);
    Ok(())
}

const GIVING_WAY: [&str; 6] = ["chrt", "--idle", "0", "ionice", "--class", "3"];

/// A command with low priority if this thread has called [`give_way`]. The command itself lowers
/// its priority, not this thread. If the thread had a low priority, its child process might wait
/// before it executes its program. During this time it would hold all files and sockets of this
/// process.
pub(crate) fn giving_way(program: impl AsRef<OsStr>) -> Command {
    if !GIVES_WAY.get() {
        return Command::new(program);
    }
    let [first, args @ ..] = GIVING_WAY;
    let mut command = cmd(first, args);
    command.arg(program);
    command
}

/// The command line as a user would type it.
pub(crate) fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        let arg = arg.to_string_lossy();
        line.push(' ');
        if arg.is_empty() || arg.contains([' ', '\n']) {
            line.push_str(&format!("{arg:?}"));
        } else {
            line.push_str(&arg);
        }
    }
    line
}

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Polls until there is an answer or the deadline has passed. The lab never sleeps for a fixed
/// time. The awaited condition has a name, and the error has that name and the last observation.
pub(crate) fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<Seen<T>>,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        crate::interrupt::check()?;
        let last = match look() {
            Ok(Seen::Yes(value)) => return Ok(value),
            Ok(Seen::NotYet(last)) => last,
            Err(e) => format!("{e:#}"),
        };
        if start.elapsed() > deadline {
            bail!("waited {:.1} s for {what}; last seen: {last}", start.elapsed().as_secs_f64());
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(100));
    }
}

/// Result of one observation.
pub(crate) enum Seen<T> {
    Yes(T),
    /// There is no result yet. The text describes the observed state.
    NotYet(String),
}

impl Seen<()> {
    pub(crate) fn when(there: bool, otherwise: impl FnOnce() -> String) -> Self {
        if there { Self::Yes(()) } else { Self::NotYet(otherwise()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_has_its_line_and_output_in_the_error() {
        let error = run(&mut cmd("sh", ["-c", "echo no such peer >&2; exit 3"])).expect_err("status 3");
        let text = format!("{error:#}");
        assert!(text.contains("sh -c") && text.contains("no such peer") && text.contains('3'), "{text}");
    }

    #[test]
    fn a_wait_ends_at_its_deadline_with_the_last_observation() {
        let error = wait_for::<()>("rain", Duration::from_millis(20), || Ok(Seen::NotYet("sun".into())));
        let text = error.expect_err("no rain").to_string();
        assert!(text.contains("rain") && text.contains("sun"), "{text}");
    }
}
