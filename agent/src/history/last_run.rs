//! The record on disk of the last run of the agent: its start, its stop, and how long each router
//! keeps the node's routes without the agent.
//!
//! `trunkline doctor` reads it if no agent answers. A killed run leaves no stop time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Maximum size of the file in octets. The agent never writes a larger file.
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
    /// Its Established sessions; none if the node was in no BGP network.
    pub sessions: Option<Vec<Retention>>,
}

/// The time for which a router keeps this node's routes after a session that ended without a
/// NOTIFICATION (RFC 4724).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// The peer.
    pub peer: String,
    /// The Restart Time that this node advertised, in seconds; 0 if the session has no graceful
    /// restart.
    pub seconds: u16,
}

/// The path of the last-run file of an agent with this store.
pub fn path_for_store(store: &Path) -> PathBuf {
    store.with_file_name("last-run.json")
}

impl LastRun {
    /// A new record for the run that starts now.
    pub fn begins(former: Option<&LastRun>) -> LastRun {
        LastRun {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: Timestamp::now(),
            stopped: None,
            // Until this run has its own sessions, the routers keep the routes for the Restart Time
            // that the former run advertised.
            sessions: former.and_then(|former| former.sessions.clone()),
        }
    }

    /// The last run, if its file exists and is complete.
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

    /// The text about the end of this run, for the start event of the next run.
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
    fn a_run_is_read_back_and_a_damaged_file_is_ignored() {
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
