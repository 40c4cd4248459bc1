//! Watches the folder and reads it again after a change.
//!
//! inotify only triggers a read: its details are not used, and the whole folder is read. An editor
//! or a `cp` of several files causes many events within milliseconds. So a read waits until no
//! event arrived for `SETTLE`, at most `PATIENCE` after the first event. Folders of password files
//! are watched too, so a new key applies.
//!
//! If the folder cannot be watched (it does not exist yet), the nearest existing parent is watched
//! instead.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::folder::{self, Context, FolderContent};
use crate::plan::intent::SnapshotRefusal;

/// Quiet time after which an edit is complete.
const SETTLE: Duration = Duration::from_millis(50);
/// Maximum time to a read of a folder with continuous writes.
const PATIENCE: Duration = Duration::from_secs(1);

/// A watched folder.
pub struct FolderSource {
    folder: PathBuf,
    watcher: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
    /// Password files of the last snapshot.
    files: Vec<PathBuf>,
    events: mpsc::Receiver<()>,
}

impl FolderSource {
    /// Watches the folder.
    pub fn new(folder: &Path) -> notify::Result<FolderSource> {
        // Capacity 1: a pending event represents all later events.
        let (sender, events) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !matters(&event)) {
                return;
            }
            let _ = sender.try_send(());
        })?;
        let mut source = FolderSource {
            folder: folder.to_owned(),
            watcher,
            watched: BTreeSet::new(),
            files: Vec::new(),
            events,
        };
        source.watch();
        Ok(source)
    }

    /// Reads the folder as it is now.
    pub async fn read(&mut self, context: Context) -> Result<FolderContent, SnapshotRefusal> {
        let folder = self.folder.clone();
        let outcome = match tokio::task::spawn_blocking(move || folder::read(&folder, &context)).await {
            Ok(outcome) => outcome,
            Err(error) => {
                Err(SnapshotRefusal { faults: vec![format!("the manifests could not be read: {error}")] })
            }
        };
        if let Ok(content) = &outcome {
            self.files.clone_from(&content.snapshot.files);
        }
        self.watch();
        outcome
    }

    /// Waits until something changed and has settled; `None` if no more changes can arrive.
    /// Dropping the future loses only settling time.
    pub async fn changed(&mut self) -> Option<()> {
        self.events.recv().await?;
        let latest = Instant::now() + PATIENCE;
        loop {
            let settled = (Instant::now() + SETTLE).min(latest);
            match tokio::time::timeout_at(settled, self.events.recv()).await {
                Ok(Some(())) if Instant::now() < latest => {}
                _ => return Some(()),
            }
        }
    }

    fn watch(&mut self) {
        let mut wanted = BTreeSet::new();
        wanted.extend(self.folder.ancestors().find(|path| path.is_dir()).map(Path::to_owned));
        wanted.extend(self.files.iter().filter_map(|file| file.parent()).map(Path::to_owned));
        for gone in self.watched.difference(&wanted).cloned().collect::<Vec<_>>() {
            // The folder may no longer exist, and then it is no longer watched.
            let _ = self.watcher.unwatch(&gone);
            self.watched.remove(&gone);
        }
        for path in wanted {
            // This includes folders that are already watched, because a folder that was removed and
            // created again needs a new watch.
            match self.watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.watched.insert(path)),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "changes in this folder are not detected");
                }
            }
        }
    }
}

/// Whether the event can change the result of a read. Reading a file cannot. A file during a write
/// is read after its close.
fn matters(event: &notify::Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) | EventKind::Modify(notify::event::ModifyKind::Data(_)) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn noticed(source: &mut FolderSource) -> bool {
        tokio::time::timeout(Duration::from_secs(5), source.changed()).await == Ok(Some(()))
    }

    #[tokio::test]
    async fn edits_are_detected_and_reads_are_ignored() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("manifests");
        let mut source = FolderSource::new(&folder).unwrap();
        assert!(source.read(Context::default()).await.is_err(), "there is no folder yet");

        fs::create_dir(&folder).unwrap();
        assert!(noticed(&mut source).await, "the folder appears");
        assert!(source.read(Context::default()).await.is_ok());

        fs::write(folder.join("a.yaml"), "kind: [").unwrap();
        assert!(noticed(&mut source).await, "a file is written");
        assert!(source.read(Context::default()).await.is_err());

        fs::rename(folder.join("a.yaml"), folder.join("a.txt")).unwrap();
        assert!(noticed(&mut source).await, "a file is renamed");
        assert!(source.read(Context::default()).await.is_ok());

        let quiet = tokio::time::timeout(Duration::from_millis(300), source.changed()).await;
        assert!(quiet.is_err(), "a read is no change");
    }
}
