//! Whether the API server answers: the state of each watch, for errors, `trunkline status` and
//! `/metrics`.
//!
//! Each watch has its own connection and can fail alone. The agent counts as connected if no watch
//! is failing and each watch received its first list. Optional watches do not count: pods do not
//! depend on them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use trunkline_api::control::{ClusterStatus, WatchStatus};

/// The state of one watch.
#[derive(Clone, Debug, Default)]
struct Watch {
    /// Whether pods do not depend on it.
    optional: bool,
    /// Whether its first list is complete.
    listed: bool,
    /// The start and the last reason of the current failure.
    failing: Option<(Instant, String)>,
    last_event: Option<Instant>,
    events: u64,
    errors: u64,
}

/// The state of all watches. Cheap to clone.
#[derive(Clone, Default)]
pub struct Health {
    watches: Arc<Mutex<BTreeMap<String, Watch>>>,
    turns: watch::Sender<()>,
}

/// The reason for which the API server is unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Duration, in seconds.
    pub seconds: u64,
    /// The last error.
    pub reason: String,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the API server has not answered for {} s ({})", self.seconds, self.reason)
    }
}

impl Health {
    /// Changes the state of a watch. A stopped watch has no state, even if a late report arrives.
    fn with<T>(&self, name: &str, change: impl FnOnce(&mut Watch) -> T) -> T {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        match watches.get_mut(name) {
            Some(watch) => change(watch),
            None => change(&mut Watch::default()),
        }
    }

    /// A watch begins.
    pub fn started(&self, name: &str) {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default();
    }

    /// A watch begins on which pods do not depend.
    pub fn started_optional(&self, name: &str) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.entry(name.to_owned()).or_default().optional = true;
    }

    /// Whether pods do not depend on a watch.
    pub fn is_optional(&self, name: &str) -> bool {
        self.with(name, |watch| watch.optional)
    }

    /// A watch was stopped.
    pub fn stopped(&self, name: &str) {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Changes whenever a watch becomes live.
    pub fn turns(&self) -> watch::Receiver<()> {
        self.turns.subscribe()
    }

    /// Records an event of a watch. Returns whether this ends a failure.
    pub fn event(&self, name: &str) -> bool {
        let ended = self.with(name, |watch| {
            watch.events += 1;
            watch.last_event = Some(Instant::now());
            watch.failing.take().is_some()
        });
        if ended {
            self.turns.send_replace(());
        }
        ended
    }

    /// Records a complete list. Returns whether this ends a failure.
    pub fn listed(&self, name: &str) -> bool {
        let (first, ended) = self.with(name, |watch| {
            (!std::mem::replace(&mut watch.listed, true), watch.failing.take().is_some())
        });
        if first || ended {
            self.turns.send_replace(());
        }
        ended
    }

    /// Records a failure. Returns whether it is a new failure.
    pub fn failed(&self, name: &str, reason: String) -> bool {
        self.with(name, |watch| {
            watch.errors += 1;
            let since = watch.failing.as_ref().map_or_else(Instant::now, |(since, _)| *since);
            watch.failing.replace((since, reason)).is_none()
        })
    }

    /// Whether a watch received its list and is not failing.
    pub fn is_live(&self, name: &str) -> bool {
        self.with(name, |watch| watch.listed && watch.failing.is_none())
    }

    /// Whether a watch received its list.
    pub fn was_listed(&self, name: &str) -> bool {
        self.with(name, |watch| watch.listed)
    }

    /// Seconds since the last event of a watch; `None` before the first.
    pub fn silence(&self, name: &str) -> Option<u64> {
        self.with(name, |watch| watch.last_event.map(|at| at.elapsed().as_secs()))
    }

    /// The current outage of the API server, if any: the longest failure of a required watch.
    pub fn outage(&self) -> Option<Outage> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let required = watches.values().filter(|watch| !watch.optional);
        let failing = required.filter_map(|watch| watch.failing.as_ref());
        let (since, reason) = failing.min_by_key(|(since, _)| *since)?;
        Some(Outage { seconds: since.elapsed().as_secs(), reason: reason.clone() })
    }

    /// The status for `trunkline status`.
    pub fn status(&self, server: &str, faults: Vec<String>, unwritten: usize) -> ClusterStatus {
        let outage = self.outage();
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        ClusterStatus {
            server: server.to_owned(),
            connected: outage.is_none() && watches.values().all(|watch| watch.listed || watch.optional),
            outage_seconds: outage.as_ref().map(|outage| outage.seconds),
            last_error: outage.map(|outage| outage.reason),
            faults,
            unwritten: unwritten as u64,
            watches: watches
                .iter()
                .map(|(name, watch)| WatchStatus {
                    name: name.clone(),
                    optional: watch.optional,
                    live: watch.listed && watch.failing.is_none(),
                    events: watch.events,
                    errors: watch.errors,
                    last_event_seconds: watch.last_event.map(|at| at.elapsed().as_secs()),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_failing_watch_is_an_outage_until_it_recovers() {
        let health = Health::default();
        health.started("networks");
        health.started("ipinstances");
        assert!(!health.status("s", Vec::new(), 0).connected, "nothing was listed yet");
        health.listed("networks");
        health.listed("ipinstances");
        assert!(health.status("s", Vec::new(), 0).connected);

        assert!(health.failed("ipinstances", "refused".to_owned()));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(
            !health.failed("ipinstances", "timed out".to_owned()),
            "a watch that already fails is not reported again"
        );
        let outage = health.outage().unwrap();
        assert_eq!((outage.seconds, outage.reason.as_str()), (7, "timed out"));
        assert!(health.is_live("networks") && !health.is_live("ipinstances"));
        let status = health.status("s", Vec::new(), 0);
        assert_eq!((status.connected, status.outage_seconds), (false, Some(7)));

        assert!(health.event("ipinstances"));
        assert_eq!(health.outage(), None);
        health.failed("ipinstances", "again".to_owned());
        health.stopped("ipinstances");
        assert!(health.status("s", Vec::new(), 0).connected, "a stopped watch does not count");
        health.started_optional("services");
        health.failed("services", "refused".to_owned());
        let status = health.status("s", Vec::new(), 0);
        assert!(status.connected && health.outage().is_none(), "an optional watch does not count");
        assert!(status.watches.iter().any(|watch| watch.optional && !watch.live));
        health.failed("ipinstances", "late".to_owned());
        assert_eq!(health.outage(), None, "a late report of a stopped watch is ignored");
    }
}
