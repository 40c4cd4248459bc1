//! Memory limits of running programs, by control groups. A kill by the kernel is counted, so a test
//! can assert that there was none.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::process::Pid;

/// The files of a hierarchy.
#[derive(Clone, Copy)]
struct Files {
    limit: &'static str,
    events: &'static str,
}

const V1: Files = Files { limit: "memory.limit_in_bytes", events: "memory.oom_control" };
const V2: Files = Files { limit: "memory.max", events: "memory.events" };

/// A control group with a memory limit. A drop moves its processes to the parent and removes it.
pub(crate) struct MemoryLimit {
    parent: PathBuf,
    folder: PathBuf,
    files: Files,
}

impl MemoryLimit {
    /// A new group. None: the machine has no hierarchy with the memory controller.
    pub(crate) fn create(name: &str, octets: u64) -> Result<Option<Self>> {
        let Some((parent, files)) = hierarchy() else { return Ok(None) };
        let folder = parent.join(name);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let group = Self { parent, folder, files };
        let limit = group.folder.join(files.limit);
        std::fs::write(&limit, octets.to_string()).with_context(|| limit.display().to_string())?;
        Ok(Some(group))
    }

    /// Moves a process into the group. Memory that it already has counts for its former group.
    pub(crate) fn insert(&self, pid: Pid) -> Result<()> {
        let file = self.folder.join("cgroup.procs");
        std::fs::write(&file, pid.as_raw_nonzero().to_string()).with_context(|| file.display().to_string())
    }

    /// Processes that the kernel killed because of the limit.
    pub(crate) fn kills(&self) -> Result<u64> {
        let file = self.folder.join(self.files.events);
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        read_kills(&text).with_context(|| format!("no oom_kill in {}", file.display()))
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let inside = std::fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines() {
            // The process may have ended.
            let _ended = std::fs::write(self.parent.join("cgroup.procs"), pid);
        }
        let _not_empty = std::fs::remove_dir(&self.folder);
    }
}

fn read_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// The folder in which groups with a memory limit can be made.
fn hierarchy() -> Option<(PathBuf, Files)> {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    if v1.join(V1.limit).exists() || v1.join("cgroup.procs").exists() {
        return Some((v1.to_owned(), V1));
    }
    let v2 = Path::new("/sys/fs/cgroup");
    let controllers = std::fs::read_to_string(v2.join("cgroup.controllers")).ok()?;
    if !controllers.split_whitespace().any(|name| name == "memory") {
        return None;
    }
    // It is on already where another program makes groups.
    let _is_on = std::fs::write(v2.join("cgroup.subtree_control"), "+memory");
    let on = std::fs::read_to_string(v2.join("cgroup.subtree_control")).ok()?;
    on.split_whitespace().any(|name| name == "memory").then(|| (v2.to_owned(), V2))
}

#[cfg(test)]
mod tests {
    use super::read_kills;

    #[test]
    fn kills_are_read_from_both_versions() {
        assert_eq!(read_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(read_kills("low 0\nhigh 0\nmax 2\noom 1\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(read_kills("low 0\n"), None);
    }
}
