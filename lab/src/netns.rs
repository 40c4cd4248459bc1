#![allow(unsafe_code)] // unshare(CLONE_FS), which setns into a mount namespace asks for
//! Network namespaces by name, as in `ip netns`, and threads that work inside one.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::shell::{cmd, run};

const FOLDER: &str = "/run/netns";

/// A named network namespace. It stays when this value is dropped; [`Namespace::delete`] removes
/// it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates the namespace, with the loopback up.
    pub(crate) fn create(name: &str) -> Result<Self> {
        run(&mut cmd("ip", ["netns", "add", name]))?;
        run(&mut cmd("ip", ["-n", name, "link", "set", "lo", "up"]))?;
        Ok(Self { name: name.to_owned() })
    }

    /// A namespace that may exist already.
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// All namespaces on this machine.
    pub(crate) fn all() -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir(FOLDER) else { return Vec::new() };
        entries.flatten().map(|e| Self { name: e.file_name().to_string_lossy().into_owned() }).collect()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The path for CNI_NETNS.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    pub(crate) fn exists(&self) -> bool {
        self.path().exists()
    }

    /// Kills the processes of the namespace, and then removes it.
    pub(crate) fn delete(&self) -> Result<()> {
        if !self.exists() {
            return Ok(());
        }
        // This loop does not use `wait_for`, which ends at once after a termination signal. In that
        // case the removal is most important.
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let pids = self.pids();
            if pids.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                bail!("processes {pids:?} do not end");
            }
            for pid in &pids {
                // The process may have ended before the signal.
                let _gone = kill_process(*pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        run(&mut cmd("ip", ["netns", "del", &self.name]))?;
        Ok(())
    }

    /// Processes whose network namespace is this one.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        let Ok(own) = std::fs::metadata(self.path()) else { return Vec::new() };
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let own_pid = std::process::id();
        entries
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| u32::try_from(*pid) != Ok(own_pid))
            .filter(|pid| {
                let Ok(meta) = std::fs::metadata(format!("/proc/{pid}/ns/net")) else { return false };
                // A zombie still shows its namespace for a moment, and no signal ends it.
                (meta.dev(), meta.ino()) == (own.dev(), own.ino()) && !has_ended(*pid)
            })
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// Moves the calling thread into the namespace permanently. New sockets and programs of this
    /// thread are then in the namespace.
    pub(crate) fn enter(&self) -> Result<()> {
        let file = File::open(self.path()).with_context(|| format!("namespace {}", self.name))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("cannot enter namespace {}", self.name))
    }

    /// Runs `work` on a thread of its own inside this namespace.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            scope.spawn(|| self.enter().and_then(|()| work())).join().unwrap_or_else(|panic| {
                std::panic::resume_unwind(panic);
            })
        })
    }

    /// `ip -n <this> …`
    pub(crate) fn ip<const N: usize>(&self, args: [&str; N]) -> Result<String> {
        run(cmd("ip", ["-n", &self.name]).args(args))
    }
}

/// A network namespace without a link; a drop deletes it.
#[cfg(feature = "suite")]
pub(crate) struct Temporary {
    pub ns: Namespace,
    _on_stop: crate::interrupt::Registered,
}

#[cfg(feature = "suite")]
impl Temporary {
    pub(crate) fn create(name: &str) -> Result<Self> {
        let at_stop = Namespace::named(name);
        let on_stop = crate::interrupt::on_stop(move || drop(at_stop.delete()));
        Ok(Self { ns: Namespace::create(name)?, _on_stop: on_stop })
    }
}

#[cfg(feature = "suite")]
impl Drop for Temporary {
    fn drop(&mut self) {
        let _reported_by_the_next_lab = self.ns.delete();
    }
}

/// Whether a process has ended with all its threads, and so has released its files and locks. The
/// first thread may be a zombie while others are still running.
pub(crate) fn has_ended(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // "pid (comm) state …"; comm may contain parentheses.
    let zombie = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']));
    zombie && std::fs::read_dir(format!("/proc/{pid}/task")).map_or(true, |tasks| tasks.count() <= 1)
}

/// Moves the calling thread into the mount namespace of a process permanently.
pub(crate) fn enter_mounts_of(pid: u32) -> Result<()> {
    let file = File::open(format!("/proc/{pid}/ns/mnt")).with_context(|| format!("process {pid} is gone"))?;
    // SAFETY: only CLONE_FS is set: this thread gets a root and working folder of its own. The
    // table of open files stays shared, so no descriptor becomes invalid for any thread.
    unsafe { unshare_unsafe(UnshareFlags::FS) }.context("unshare(CLONE_FS)")?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount))
        .with_context(|| format!("cannot enter the mount namespace of process {pid}"))
}
