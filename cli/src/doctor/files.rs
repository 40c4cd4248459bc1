//! The agent's files: its manifests and its store.

use std::path::Path;

use rustix::fs::statvfs;
use trunkline_agent::config::Config;
use trunkline_agent::source::folder::{self, Context};
use trunkline_agent::source::kube::SourceKind;

use super::Finding;

/// Minimum free space on the store's disk, in octets.
const ROOM: u64 = 32 * 1024 * 1024;

/// Checks the files. If the agent runs, its answers replace the check of the manifests.
pub(super) fn check(config: &Config, running: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if config.source == SourceKind::Manifests && !running {
        let context = Context { labels: config.node_labels(), running: None };
        if let Err(refused) = folder::read(&config.manifests, &context) {
            findings.extend(refused.faults.iter().map(|fault| {
                Finding::error(
                    "manifests",
                    fault.clone(),
                    "correct the named field: the agent reads the manifests at its start",
                )
            }));
        }
    }
    findings.extend(store(&config.store, running));
    findings
}

fn store(path: &Path, running: bool) -> Option<Finding> {
    let folder = path.ancestors().skip(1).find(|folder| folder.exists())?;
    if let Ok(disk) = statvfs(folder) {
        let room = disk.f_bavail.saturating_mul(disk.f_frsize);
        if room < ROOM {
            return Some(Finding::error(
                "store",
                format!("{} has {} MiB left on its disk", path.display(), room / (1024 * 1024)),
                "free space: without space the agent allocates no address, because a lost record would cause a duplicate address",
            ));
        }
    }
    // A running agent has the file open, and its answers contain the store's state.
    let read = || std::fs::File::open(path).map(drop);
    match read() {
        Err(error) if !running && error.kind() != std::io::ErrorKind::NotFound => Some(Finding::error(
            "store",
            format!("{} cannot be read: {error}", path.display()),
            "run this as root; as root, correct the file's owner and mode (root, 600)",
        )),
        _ => None,
    }
}
