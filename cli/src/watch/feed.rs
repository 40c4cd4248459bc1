//! The agent's answers: two threads. Each sends one request after the other, and the agent answers
//! when there is news.
//!
//! While the agent does not answer, no requests are sent. The threads watch the socket's folder for
//! a new socket. If the folder does not exist either (systemd removes it with the service), they
//! watch the nearest existing folder above it.

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

/// Interval between an answer and the next request: continuous changes are shown twice a second.
const PACE: Duration = Duration::from_millis(500);
/// Timeout of a request: a running agent always answers within this time.
const TIMEOUT: Duration = Snapshot::SILENCE.saturating_add(Duration::from_secs(5));
/// Wait before the next request to an agent that listens and does not answer correctly, because it
/// stops or has another version. No event shows the end of this state.
const PAUSE: Duration = Duration::from_secs(2);
/// Interval of connection attempts if the folder cannot be watched.
const UNWATCHED: Duration = Duration::from_secs(5);

/// Checks the permission for the socket. Without it, no request can succeed.
pub(super) fn permitted(socket: &Path) -> anyhow::Result<()> {
    match UnixStream::connect(socket) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            anyhow::bail!("only root may use the agent's socket {}: run this as root", socket.display())
        }
        _ => Ok(()),
    }
}

/// Starts both threads. They end when the receiver is dropped.
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
            client::query_within(socket, Query::Watch { after, run }, TIMEOUT);
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

/// The error as text; a timeout has its own text.
fn why(error: &anyhow::Error) -> String {
    let kind = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            format!(
                "the agent listens, but did not answer for {} s: it hangs, or this host is overloaded",
                TIMEOUT.as_secs()
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
            // The other thread reports that the agent does not answer.
            Err(_) if sender.is_closed() => return,
            Err(_) => wait(socket),
        }
    }
}

/// Waits until a request may succeed.
fn wait(socket: &Path) {
    let mut waited = false;
    loop {
        // The watch starts before the connection attempt, so no change is missed.
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

/// Watches the nearest existing folder above the socket, until the watcher is dropped.
fn watch(socket: &Path, touched: channel::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |_| {
        // The receiver may be dropped when the wait has ended.
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
    fn new_socket_is_noticed_even_in_a_new_folder() {
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
            // The agent does the same after it listens.
            std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            ended.recv_timeout(Duration::from_secs(60)).expect("the folder reports the new socket");
        }
    }
}
