//! What the agent tells: two threads, each with one question after the other, each answered once there is something new.
//!
//! An agent that does not answer is waited for without asking: the folder of the socket says when a socket is made there. A folder that is gone
//! too (systemd removes it with the service) is waited for in the nearest one above it that exists.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc as channel;
use std::thread;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use trunkline_api::control::{Events, Query, Snapshot};

use super::LoopEvent;
use super::model::AgentUpdate;
use crate::client;

/// Between an answer and the next question: what changes without end is shown twice a second.
const PACE: Duration = Duration::from_millis(500);
/// An agent that is there has answered by then, whatever happened.
const PATIENCE: Duration = Snapshot::SILENCE.saturating_add(Duration::from_secs(5));
/// Before an agent that listens and does not answer as it should (it stops, or is of another version) is asked again: no event tells.
const PAUSE: Duration = Duration::from_secs(2);
/// Where the folder cannot be watched, its socket is tried so often.
const UNWATCHED: Duration = Duration::from_secs(5);

/// An error if asking is of no use, whoever comes up.
pub(super) fn permitted(socket: &Path) -> anyhow::Result<()> {
    match UnixStream::connect(socket) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            anyhow::bail!("the agent's socket {} is for root only: run this as root", socket.display())
        }
        _ => Ok(()),
    }
}

/// Starts both threads. They end when nobody hears them any more.
pub(super) fn start(socket: &Path, sender: &mpsc::Sender<LoopEvent>) -> io::Result<()> {
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    let (path, sender_of_state) = (PathBuf::from(socket), sender.clone());
    named("state").spawn(move || state(&path, &sender_of_state))?;
    let (path, sender_of_events) = (PathBuf::from(socket), sender.clone());
    named("events").spawn(move || events(&path, &sender_of_events))?;
    Ok(())
}

fn state(socket: &Path, sender: &mpsc::Sender<LoopEvent>) {
    let (mut after, mut run) = (0, None);
    loop {
        let answer: anyhow::Result<Snapshot> =
            client::query_within(socket, Query::Watch { after, run }, PATIENCE);
        let (answers, at) = (answer.is_ok(), format!("{:.0}", Timestamp::now()));
        let update = match answer {
            Ok(snapshot) => {
                (after, run) = (snapshot.number, Some(snapshot.run));
                AgentUpdate::State { snapshot: Box::new(snapshot), at }
            }
            Err(error) => AgentUpdate::Unreachable { text: why(&error), at },
        };
        if sender.blocking_send(LoopEvent::Agent(update)).is_err() {
            return;
        }
        if answers { thread::sleep(PACE) } else { wait(socket) }
    }
}

/// A read that took too long is said as what it means.
fn why(error: &anyhow::Error) -> String {
    let kind = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            format!(
                "it listens, and said nothing for {} s: it hangs, or this machine does",
                PATIENCE.as_secs()
            )
        }
        _ => format!("{error:#}"),
    }
}

fn events(socket: &Path, sender: &mpsc::Sender<LoopEvent>) {
    let (mut after, mut run) = (0, None);
    loop {
        match client::query_when::<Events>(socket, Query::Events { after, run, wait: true }) {
            Ok(events) => {
                after = events.events.last().map_or(after, |event| event.number);
                run = Some(events.run);
                if sender.blocking_send(LoopEvent::Agent(AgentUpdate::Events(events))).is_err() {
                    return;
                }
                thread::sleep(PACE);
            }
            // That it does not answer is the other thread's to say.
            Err(_) if sender.is_closed() => return,
            Err(_) => wait(socket),
        }
    }
}

/// Waits until there is reason to ask again.
fn wait(socket: &Path) {
    let mut waited = false;
    loop {
        // The watch is there before the look, so that nothing happens between them.
        let (touched, touches) = channel::channel();
        let watcher = watch(socket, touched);
        if UnixStream::connect(socket).is_ok() {
            if !waited {
                thread::sleep(PAUSE);
            }
            return;
        }
        waited = true;
        let _ = match &watcher {
            Ok(_) => touches.recv().map_err(Into::into),
            Err(_) => touches.recv_timeout(UNWATCHED),
        };
    }
}

/// Watches the nearest folder above the socket that exists, until the watcher is dropped.
fn watch(socket: &Path, touched: channel::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |_| {
        // Who waits no more has dropped the other end.
        let _ = touched.send(());
    })?;
    let socket = std::path::absolute(socket).map_err(notify::Error::io)?;
    let folder = socket.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_that_comes_up_is_noticed_wherever_its_folder_was() {
        let folder = tempfile::tempdir().unwrap();
        for socket in [folder.path().join("agent.sock"), folder.path().join("gone/too/agent.sock")] {
            let (over, ended) = channel::channel();
            {
                let socket = socket.clone();
                thread::spawn(move || {
                    wait(&socket);
                    over.send(())
                });
            }
            ended.recv_timeout(Duration::from_millis(50)).expect_err("there is no agent yet");
            std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
            let _listener = UnixListener::bind(&socket).unwrap();
            // As the agent does, after it listens.
            std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            ended.recv_timeout(Duration::from_secs(60)).expect("the folder tells of it");
        }
    }
}
