//! The task that writes two files: the events ([`super::file`]) and the record of this run
//! ([`super::last_run`]).
//!
//! The task is an ordinary reader of the history, so recording an event never waits for the disk.
//! It writes the first event at once. It then writes all events of the next `PACE` together.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::task::JoinHandle;
use trunkline_api::control::{Event, EventKind, Severity};

use super::file::EventFile;
use super::last_run::{self, LastRun, Retention};
use super::{History, file};

/// Minimum time between two writes. When the agent stops, the last write does not wait.
const PACE: Duration = Duration::from_secs(1);

/// A source of the current sessions.
pub trait Sessions: Send + 'static {
    /// The Established sessions. `Some(None)`: the node is in no BGP network. `None`: the sessions
    /// are unknown.
    fn retention(&self) -> impl Future<Output = Option<Option<Vec<Retention>>>> + Send;
}

/// The files, and the state of the writer.
struct Disk {
    events: EventFile,
    path: PathBuf,
    run: LastRun,
    /// The record of this run as last written to disk.
    written: Option<LastRun>,
    failed: bool,
}

impl History {
    /// Returns the history, with the saved events of earlier runs, and the record of the new run.
    /// The first event of the new run is `AgentStarted`.
    pub fn begin(store: &std::path::Path) -> (History, LastRun) {
        let history = History::after(file::read(&file::path_for_store(store)));
        let former = LastRun::read(&last_run::path_for_store(store));
        let run = LastRun::begins(former.as_ref());
        let started = format!("agent {} started", run.version);
        let (severity, text) = match &former {
            Some(former) if former.stopped.is_none() => {
                (Severity::Warning, format!("{started}; {}", former.end()))
            }
            Some(former) => (Severity::Info, format!("{started}; {}", former.end())),
            None => (Severity::Info, started),
        };
        history.record_as(severity, EventKind::AgentStarted, None, None, text);
        (history, run)
    }

    /// Starts the task that writes this run's events into the store's folder. The task ends after
    /// the history is closed and all events are written.
    pub fn keep(&self, store: &std::path::Path, run: LastRun, sessions: impl Sessions) -> JoinHandle<()> {
        let disk = Disk {
            events: EventFile::new(file::path_for_store(store)),
            path: last_run::path_for_store(store),
            run,
            written: None,
            failed: false,
        };
        tokio::spawn(keep(self.clone(), disk, sessions))
    }
}

async fn keep(history: History, mut disk: Disk, sessions: impl Sessions) {
    let mut events = history.subscribe(history.restored());
    while let Some(new) = events.next().await {
        let of_sessions = [EventKind::SessionUp, EventKind::SessionDown];
        if new.events.iter().any(|event| of_sessions.contains(&event.kind))
            && let Some(known) = sessions.retention().await
        {
            disk.run.sessions = known;
        }
        disk = match disk.write_apart(history.clone(), new.events).await {
            Some(disk) => disk,
            None => return,
        };
        tokio::select! {
            () = tokio::time::sleep(PACE) => {}
            () = history.closed() => {}
        }
    }
    disk.run.stopped = Some(Timestamp::now());
    disk.write_apart(history, Vec::new()).await;
}

impl Disk {
    /// Writes on a thread that may block. None if that thread panicked.
    async fn write_apart(mut self, history: History, new: Vec<Event>) -> Option<Disk> {
        let written = tokio::task::spawn_blocking(move || {
            self.write(&history, &new);
            self
        });
        written.await.ok()
    }

    fn write(&mut self, history: &History, new: &[Event]) {
        let events = self.events.write(new, || history.since(0).events);
        let run = if self.written.as_ref() == Some(&self.run) {
            Ok(())
        } else {
            self.run.write(&self.path).map(|()| self.written = Some(self.run.clone()))
        };
        match events.and(run) {
            Ok(()) => self.failed = false,
            // Log only the first failure, until a write succeeds.
            Err(_) if self.failed => {}
            Err(error) => {
                self.failed = true;
                let folder =
                    self.path.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
                tracing::warn!(folder, %error, "the event history cannot be written to disk: a restart loses it");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Known;

    impl Sessions for Known {
        async fn retention(&self) -> Option<Option<Vec<Retention>>> {
            Some(Some(vec![Retention { peer: "10.0.0.1".to_owned(), seconds: 120 }]))
        }
    }

    fn texts(history: &History) -> Vec<String> {
        history.since(0).events.into_iter().map(|event| event.text).collect()
    }

    #[tokio::test]
    async fn events_survive_a_restart_with_the_end_of_the_last_run() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store.redb");
        let (first, run) = History::begin(&store);
        let keeper = first.keep(&store, run, Known);
        first.record(EventKind::SessionUp, Some("10.0.0.1".to_owned()), None, "up".to_owned());
        first.record(EventKind::AgentStopped, None, None, "stops".to_owned());
        first.close();
        keeper.await.unwrap();

        let (second, run) = History::begin(&store);
        assert_eq!(run.sessions, Some(vec![Retention { peer: "10.0.0.1".to_owned(), seconds: 120 }]));
        let kept = texts(&second);
        assert_eq!(kept[1..3], ["up", "stops"]);
        assert!(kept[0].ends_with(" started") && kept[3].contains("; the last run stopped at "), "{kept:?}");
        let events = second.since(0).events;
        assert_eq!((events[3].number, events[3].severity, second.restored()), (4, Severity::Info, 3));
        // A reader whose last event number is from an earlier run continues with the first event of
        // this run.
        assert_eq!(second.number_of(2, Some(first.newest().0)), 3);
        assert_eq!(second.number_of(0, None), 0);

        // This run is killed.
        let keeper = second.keep(&store, run, Known);
        second.record(EventKind::SessionUp, None, None, "again".to_owned());
        while file::read(&file::path_for_store(&store)).len() < 5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        keeper.abort();
        let (third, _) = History::begin(&store);
        let last = third.since(0).events.pop().unwrap();
        assert!(last.text.contains("ended without a stop"), "{}", last.text);
        assert_eq!((last.kind, last.severity), (EventKind::AgentStarted, Severity::Warning));
    }
}
