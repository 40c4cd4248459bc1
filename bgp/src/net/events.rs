//! The speaker's output for its process: events, and changes of received routes.
//!
//! Neither output grows while the process does not read it. Events have one place for each peer and
//! subject: a newer event replaces an older one that was not read. So a slow reader may miss that a
//! session went down and up again, but it always gets the current state. The peer's counters show
//! what it missed. Route changes are not queued: the engine keeps the set of changed prefixes, and
//! a request returns a batch with their current state.

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use ipnet::IpNet;
use tokio::sync::{Notify, mpsc, oneshot};

use super::error::Stopped;
use super::owner::Command;
use crate::rib::RouteChange;
use crate::speaker::Event;
use crate::types::{Family, PeerKey};

/// The subject of an event: a newer event about the same subject replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Session(PeerKey),
    Error(PeerKey),
    Malformed(PeerKey),
    Bfd(PeerKey),
    EndOfRib(PeerKey, Family),
    DefaultRoute(PeerKey, Family),
    LongLivedStale(PeerKey, Family),
    StaleSwept(PeerKey, Family),
    Converged(Family),
    RangeFull(IpNet),
}

#[derive(Debug, Default)]
struct Queue {
    events: IndexMap<Subject, Event>,
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    notify: Notify,
}

impl Shared {
    fn with<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        // No code panics while it holds the lock, and a half-changed queue would still be valid.
        work(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn channel() -> (EventSender, Events) {
    let shared = Arc::new(Shared::default());
    (EventSender { shared: Arc::clone(&shared) }, Events { shared })
}

/// The owner's side.
#[derive(Debug)]
pub(super) struct EventSender {
    shared: Arc<Shared>,
}

impl EventSender {
    /// Sends an event; never waits.
    pub(super) fn send(&self, event: Event) {
        let subject = match &event {
            Event::PeerUp { address, .. }
            | Event::PeerDown { address, .. }
            | Event::PeerGone { address, .. } => Subject::Session(*address),
            Event::PeerError { address, .. } => Subject::Error(*address),
            Event::Bfd { address, .. } => Subject::Bfd(*address),
            Event::MalformedUpdate { address, .. } => Subject::Malformed(*address),
            Event::EndOfRib { address, family, .. } => Subject::EndOfRib(*address, *family),
            Event::DefaultRoute { address, family, .. } => Subject::DefaultRoute(*address, *family),
            Event::LongLivedStale { address, family, .. } => Subject::LongLivedStale(*address, *family),
            Event::StaleSwept { address, family, .. } => Subject::StaleSwept(*address, *family),
            Event::Converged { family } => Subject::Converged(*family),
            Event::RangeFull { prefix, .. } => Subject::RangeFull(*prefix),
            // This event completes a watch and has no other reader.
            Event::Advertised { .. } => return,
        };
        self.shared.with(|queue| {
            // Append it at the end: events are in the order of their last change.
            queue.events.shift_remove(&subject);
            queue.events.insert(subject, event);
        });
        self.shared.notify.notify_one();
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.shared.with(|queue| queue.ended = true);
        self.shared.notify.notify_one();
    }
}

/// Events of the speaker: sessions up and down, errors, End-of-RIB, convergence.
///
/// A newer event replaces an unread one about the same peer and subject.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

impl Events {
    /// The next event; none after the speaker has stopped and all events were read. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let (event, ended) = self.shared.with(|queue| (queue.events.shift_remove_index(0), queue.ended));
            match event {
                Some((_, event)) => return Some(event),
                None if ended => return None,
                None => self.shared.notify.notified().await,
            }
        }
    }
}

/// Changes of the received routes, for one consumer that installs them in a FIB.
#[derive(Debug)]
pub struct RouteChanges {
    // The sender is weak: a waiting consumer does not keep a speaker running without handles.
    commands: mpsc::WeakSender<Command>,
    requested: Option<oneshot::Receiver<Vec<RouteChange>>>,
}

impl RouteChanges {
    pub(super) fn new(commands: mpsc::WeakSender<Command>) -> Self {
        RouteChanges { commands, requested: None }
    }

    /// Waits until received best paths have changed, and returns up to `max` prefixes with their
    /// current state; never an empty list. Cancel safe: the next call returns a batch that was
    /// already taken, even if the batch exceeds the new `max`.
    ///
    /// # Errors
    /// If the speaker has ended.
    pub async fn next(&mut self, max: usize) -> Result<Vec<RouteChange>, Stopped> {
        if self.requested.is_none() {
            let (sender, receiver) = oneshot::channel();
            let command: Command = Box::new(move |owner, _| owner.request_route_changes(max.max(1), sender));
            let commands = self.commands.upgrade().ok_or(Stopped)?;
            commands.send(command).await.map_err(|_| Stopped)?;
            self.requested = Some(receiver);
        }
        let Some(requested) = &mut self.requested else { return Err(Stopped) };
        let changes = requested.await;
        self.requested = None;
        changes.map_err(|_| Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{FamilySet, PeerId};

    fn down(address: &str, reason: &str) -> Event {
        Event::PeerDown {
            peer: PeerId(1),
            address: address.parse().unwrap(),
            reason: reason.to_owned(),
            cause: crate::speaker::Cause::Other,
            retained: FamilySet::EMPTY,
        }
    }

    #[tokio::test]
    async fn the_queue_keeps_the_newest_event_of_each_subject() {
        let (sender, mut events) = channel();
        for index in 0..10_000 {
            sender.send(down("192.0.2.1", &index.to_string()));
        }
        sender.send(down("192.0.2.2", "other"));
        sender.send(Event::Converged { family: Family::Ipv4Unicast });
        assert_eq!(sender.shared.with(|queue| queue.events.len()), 3);
        assert_eq!(events.next().await, Some(down("192.0.2.1", "9999")));
        assert_eq!(events.next().await, Some(down("192.0.2.2", "other")));
        drop(sender);
        assert_eq!(events.next().await, Some(Event::Converged { family: Family::Ipv4Unicast }));
        assert_eq!(events.next().await, None);
        assert_eq!(events.next().await, None);
    }
}
