//! A process of a cluster: etcd, the API server, or a program of a test. It ends when its value is
//! dropped, or when the lab is interrupted. If the lab itself was killed, it ends when the next lab
//! takes over the folder. Until then a file next to the log identifies the process by its number
//! and its start time, because the number may be reused.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt::{self, Registered};
use crate::netns::has_ended;
use crate::shell::{Seen, describe, wait_for};

/// Time limit for the end of a process after a signal.
const PATIENCE: Duration = Duration::from_secs(90);

/// A process that runs or has run.
pub(crate) struct Daemon {
    name: String,
    log: PathBuf,
    mark: PathBuf,
    pid: Pid,
    child: Arc<Mutex<Child>>,
    _on_stop: Registered,
}

impl Daemon {
    /// Starts the process with both outputs in `<folder>/log/<name>.log`.
    pub(crate) fn start(folder: &Path, name: &str, mut command: Command) -> Result<Self> {
        let logs = folder.join("log");
        std::fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        let line = describe(&command);
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            // The terminal's Ctrl-C only reaches the lab, which ends its processes itself.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process number")?;
        let child = Arc::new(Mutex::new(child));
        let at_stop = Arc::clone(&child);
        let on_stop =
            interrupt::on_stop(move || end(&mut at_stop.lock().unwrap_or_else(PoisonError::into_inner)));
        let mark = folder.join(format!("{name}.pid"));
        std::fs::write(&mark, format!("{} {}", pid.as_raw_nonzero(), start_time(pid).unwrap_or_default()))?;
        Ok(Self { name: name.to_owned(), log, mark, pid, child, _on_stop: on_stop })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// The file with both outputs.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// If the process has ended, fails with the end of its log.
    pub(crate) fn still_running(&mut self) -> Result<()> {
        match self.exited()? {
            None => Ok(()),
            Some(status) => bail!("{} ended ({status}): {}", self.name, self.last_words()),
        }
    }

    /// Like [`wait_for`], but fails at once if the process has ended.
    pub(crate) fn wait_while_running<T>(
        &mut self,
        what: &str,
        bound: Duration,
        mut look: impl FnMut() -> Result<Seen<T>>,
    ) -> Result<T> {
        wait_for(what, bound, || {
            if let Err(ended) = self.still_running() {
                return Ok(Seen::Yes(Err(ended)));
            }
            Ok(match look()? {
                Seen::Yes(value) => Seen::Yes(Ok(value)),
                Seen::NotYet(last) => Seen::NotYet(last),
            })
        })?
    }

    /// Kills the process, like a crash or a power failure, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        end(&mut child);
        Ok(())
    }

    /// Stops the process as kubelet and systemd do (SIGTERM), and returns its exit status.
    pub(crate) fn stop(&mut self) -> Result<ExitStatus> {
        if self.exited()?.is_none() {
            kill_process(self.pid, Signal::TERM)?;
        }
        self.wait_at_most(PATIENCE)
    }

    /// Waits until the process ends by itself.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        self.wait_at_most(Duration::MAX)
    }

    fn wait_at_most(&mut self, bound: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        wait_for(&format!("{name} to end"), bound, || {
            Ok(self.exited()?.map_or_else(|| Seen::NotYet("running".to_owned()), Seen::Yes))
        })
    }

    /// The exit status, if the process has ended.
    pub(crate) fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait()?)
    }

    /// The last lines of its log.
    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        end(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner));
        let _absent = std::fs::remove_file(&self.mark);
    }
}

fn end(child: &mut Child) {
    // The process may have ended already.
    let _gone = child.kill();
    let _gone = child.wait();
}

/// Ends the processes that a killed lab left running in this folder.
pub(super) fn end_left_over(folder: &Path) -> Result<()> {
    let marks = std::fs::read_dir(folder)?.flatten().map(|e| e.path());
    for mark in marks.filter(|p| p.extension().is_some_and(|e| e == "pid")) {
        let text = std::fs::read_to_string(&mark)?;
        let Some((pid, started)) = text.split_once(' ') else { continue };
        let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) else { continue };
        if started.is_empty() || start_time(pid).as_deref() != Some(started) {
            continue;
        }
        let _gone = kill_process(pid, Signal::KILL);
        wait_for(&format!("process {} of an earlier lab to end", pid.as_raw_nonzero()), PATIENCE, || {
            Ok(Seen::when(has_ended(pid.as_raw_nonzero().get()), || "running".to_owned()))
        })?;
    }
    Ok(())
}

/// Start time of a process, in clock ticks since boot: field 22 of /proc/PID/stat.
fn start_time(pid: Pid) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The second field is the program's name in parentheses, and may contain spaces.
    stat.rsplit_once(") ")?.1.split_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;
    use crate::shell::cmd;

    #[test]
    fn a_daemon_ends_with_its_value_and_keeps_its_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = cmd("sh", ["-c", "echo here; exec sleep 1000"]);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        let mut daemon = Daemon::start(folder.path(), "sleeper", command).expect("sh");
        let pid = daemon.pid.as_raw_nonzero().get();
        daemon.still_running().expect("sleeping");
        wait_for("its word", PATIENCE, || Ok(Seen::when(daemon.last_words() == "here", String::new)))
            .expect("log");
        drop(daemon);
        assert!(has_ended(pid));
        assert!(folder.path().join("log/sleeper.log").exists());
        assert!(!folder.path().join("sleeper.pid").exists());
    }

    #[test]
    fn a_killed_labs_daemon_is_ended_but_no_foreign_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut left = cmd("sleep", ["1000"]).spawn().expect("sleep");
        let pid = Pid::from_child(&left);
        let mark = folder.path().join("left.pid");
        std::fs::write(&mark, format!("{} 1", pid.as_raw_nonzero())).expect("a file");
        end_left_over(folder.path()).expect("nothing to end");
        assert_eq!(left.try_wait().expect("a child"), None, "its start time is another");
        std::fs::write(&mark, format!("{} {}", pid.as_raw_nonzero(), start_time(pid).expect("running")))
            .expect("a file");
        end_left_over(folder.path()).expect("ended");
        assert_eq!(left.wait().expect("a child").signal(), Some(Signal::KILL.as_raw()));
    }
}
