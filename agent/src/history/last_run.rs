//! What outlives a run of the agent: when it started and stopped, and for how long its routers keep the node's routes without it.
//!
//! `trunkline doctor` reads it while no agent answers. A run that is killed leaves no time of its end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// More is no file of ours.
const LIMIT: u64 = 1024 * 1024;

/// A run of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastRun {
    /// The agent's version.
    pub version: String,
    /// When it started, by the node's clock.
    pub started: Timestamp,
    /// When it stopped; none while it runs, and after it was killed.
    pub stopped: Option<Timestamp>,
    /// Its Established sessions; none where the node was in no BGP network.
    pub sessions: Option<Vec<Retention>>,
}

/// For how long a router keeps this node's routes after the session ended without a NOTIFICATION (RFC 4724).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// The peer.
    pub peer: String,
    /// The Restart Time that this node announced, in seconds; 0 if the session has no graceful restart.
    pub seconds: u16,
}

/// Where the last run of an agent with this store is.
pub fn path_for_store(store: &Path) -> PathBuf {
    store.with_file_name("last-run.json")
}

impl LastRun {
    /// The run that begins now.
    pub fn begins(former: Option<&LastRun>) -> LastRun {
        LastRun {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: Timestamp::now(),
            stopped: None,
            // Until this run has sessions of its own, routers keep what the former one told.
            sessions: former.and_then(|former| former.sessions.clone()),
        }
    }

    /// The last run, if its file is there and whole.
    pub fn read(path: &Path) -> Option<LastRun> {
        if fs::metadata(path).ok()?.len() > LIMIT {
            return None;
        }
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        super::file::replace(path, &text).map(drop)
    }

    /// How it ended, for the event of the next start.
    pub(super) fn end(&self) -> String {
        match self.stopped {
            Some(stopped) => format!("the last run stopped at {stopped:.0}"),
            None => format!(
                "the last run (since {:.0}) ended without a stop: it was killed, it crashed, or the host restarted",
                self.started
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_back_and_damage_is_no_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_for_store(&folder.path().join("store.redb"));
        assert_eq!(LastRun::read(&path), None);
        let mut run = LastRun::begins(None);
        run.sessions = Some(vec![Retention { peer: "10.0.0.1".to_owned(), seconds: 300 }]);
        run.write(&path).unwrap();
        assert_eq!(LastRun::read(&path), Some(run.clone()));
        assert_eq!(LastRun::begins(Some(&run)).sessions, run.sessions);
        assert!(run.end().contains("ended without a stop"), "{}", run.end());
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(LastRun::read(&path), None);
        run.stopped = Some("2026-11-21T03:09:07Z".parse().unwrap());
        assert_eq!(run.end(), "the last run stopped at 2026-11-21T03:09:07Z");
    }
}
