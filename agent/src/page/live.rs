//! Sends changes to every open page: server-sent events.
//!
//! ```text
//!  ChangeNotifier ──► the press: records the trends, and with clients makes one document ──► watch ──► streams ──► sockets
//! ```
//!
//! One task, the press, sends requests to the owners at most once in [`PACE`], whatever the number
//! of notifications and clients. Without clients it only records the trends. All streams send the
//! same octets. A stream with a slow client skips documents: it sends the newest one when the
//! socket accepts it. So a stream costs its socket's buffer, and there are at most [`STREAMS`].
//!
//! Every [`TICK`] a stream sends a keepalive. So the page detects a lost agent, and the agent
//! detects a lost page.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use trunkline_daemon::http::Body;

use super::state;
use super::trend::Trends;
use crate::change_notifier::ChangeNotifier;
use crate::observe::Observer;

/// Maximum number of simultaneous streams.
pub(super) const STREAMS: usize = 64;
/// Minimum time between two documents.
const PACE: Duration = Duration::from_secs(1);
/// Time between two keepalives.
const TICK: Duration = Duration::from_secs(15);

/// The connected clients, and their document.
#[derive(Debug)]
pub(super) struct LiveClients {
    newest: watch::Sender<Option<Bytes>>,
    watching: AtomicUsize,
    /// Notified when a client connects.
    come: Notify,
    places: Arc<Semaphore>,
}

impl Default for LiveClients {
    fn default() -> Self {
        LiveClients {
            newest: watch::Sender::new(None),
            watching: AtomicUsize::new(0),
            come: Notify::new(),
            places: Arc::new(Semaphore::new(STREAMS)),
        }
    }
}

/// A connected client.
struct LiveClient {
    clients: Arc<LiveClients>,
    newest: watch::Receiver<Option<Bytes>>,
    _place: OwnedSemaphorePermit,
}

impl Drop for LiveClient {
    fn drop(&mut self) {
        if self.clients.watching.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Without clients the document becomes out of date, so the next client waits for a new
            // document.
            self.clients.newest.send_replace(None);
        }
    }
}

impl LiveClients {
    /// The body of a stream; none if all places are in use.
    pub(super) fn join(self: &Arc<Self>) -> Option<Body> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        self.watching.fetch_add(1, Ordering::AcqRel);
        let mut newest = self.newest.subscribe();
        // The existing document is sent at once.
        newest.mark_changed();
        self.come.notify_one();
        let client = LiveClient { clients: Arc::clone(self), newest, _place: place };
        let frames = stream::unfold(client, |mut client| async move {
            let frame = client.next().await?;
            Some((Ok::<_, Infallible>(Frame::data(frame)), client))
        });
        Some(StreamBody::new(frames).boxed_unsync())
    }

    /// Whether a place for a stream is free.
    pub(super) fn has_place(&self) -> bool {
        self.places.available_permits() > 0
    }
}

impl LiveClient {
    async fn next(&mut self) -> Option<Bytes> {
        let due = Instant::now() + TICK;
        loop {
            match timeout_at(due, self.newest.changed()).await {
                Ok(Ok(())) => {
                    if let Some(frame) = self.newest.borrow_and_update().clone() {
                        return Some(frame);
                    }
                }
                Ok(Err(_)) => return None,
                Err(_) => return Some(tick()),
            }
        }
    }
}

fn tick() -> Bytes {
    Bytes::from(format!("event: tick\ndata: {}\n\n", state::unix_now()))
}

/// The press. It runs until the process ends.
pub(super) async fn press(observer: Arc<Observer>, notifier: ChangeNotifier, clients: Arc<LiveClients>) {
    let mut changes = notifier.subscribe();
    let mut trends = Trends::new(observer.began);
    loop {
        let began = Instant::now();
        changes.borrow_and_update();
        let sessions = state::note(&observer, &mut trends).await;
        if clients.watching.load(Ordering::Acquire) > 0 {
            let document = state::document(&observer, &trends, sessions).await;
            match serde_json::to_string(&document) {
                Ok(text) => {
                    let frame = Bytes::from(format!("event: state\ndata: {text}\n\n"));
                    clients.newest.send_replace(Some(frame));
                }
                Err(error) => tracing::error!(%error, "the page's document cannot be written"),
            }
        }
        sleep_until(began + PACE).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = clients.come.notified() => {}
        }
    }
}
