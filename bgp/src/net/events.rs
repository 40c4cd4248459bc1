//! What leaves the speaker for its process: events, and changes of learned routes.
//!
//! Neither may grow when nobody listens. Events have one place per peer and matter, and a newer one takes the place of
//! an older that was not fetched: who is slow misses that a session went down and up again (its counters tell), never
//! how it stands. Route changes are not queued at all: the engine keeps the set of changed prefixes, and a batch of
//! their state of now is taken when it is asked for.

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use ipnet::IpNet;
use tokio::sync::{Notify, mpsc, oneshot};

use super::error::Stopped;
use super::owner::Command;
use crate::rib::RouteChange;
use crate::speaker::Event;
use crate::types::{Family, PeerKey};

/// What an event is about: a newer one about the same replaces it.
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
        // Nothing panics while it holds the lock, and a queue half changed would still be a queue.
        work(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn channel() -> (EventSender, Events) {
    let shared = Arc::new(Shared::default());
    (EventSender { shared: Arc::clone(&shared) }, Events { shared })
}

/// The owner's end.
#[derive(Debug)]
pub(super) struct EventSender {
    shared: Arc<Shared>,
}

impl EventSender {
    /// Never waits.
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
            // Resolves a watch and is nobody else's.
            Event::Advertised { .. } => return,
        };
        self.shared.with(|queue| {
            // To the end, so that the order is the one in which the latest things happened.
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

/// What happens with the speaker: sessions up and down, errors, End-of-RIB, convergence.
///
/// An event that was not fetched is replaced by a newer one about the same peer and matter.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

impl Events {
    /// The next event; none once the speaker has stopped and all were fetched. Dropping the future loses nothing.
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

/// Changes of the learned routes, for one consumer that puts them into a FIB.
#[derive(Debug)]
pub struct RouteChanges {
    // Weak, so that a consumer that waits doesn't keep a speaker running that nobody has a handle of.
    commands: mpsc::WeakSender<Command>,
    asked: Option<oneshot::Receiver<Vec<RouteChange>>>,
}

impl RouteChanges {
    pub(super) fn new(commands: mpsc::WeakSender<Command>) -> Self {
        RouteChanges { commands, asked: None }
    }

    /// Waits until learned best paths have changed, and takes up to `max` prefixes with their state of now; never an
    /// empty list. Dropping the future loses nothing: what was already taken is given to the next call, however
    /// many it asks for.
    pub async fn next(&mut self, max: usize) -> Result<Vec<RouteChange>, Stopped> {
        if self.asked.is_none() {
            let (sender, receiver) = oneshot::channel();
            let command: Command = Box::new(move |owner, _| owner.request_route_changes(max.max(1), sender));
            let commands = self.commands.upgrade().ok_or(Stopped)?;
            commands.send(command).await.map_err(|_| Stopped)?;
            self.asked = Some(receiver);
        }
        let Some(asked) = &mut self.asked else { return Err(Stopped) };
        let changes = asked.await;
        self.asked = None;
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
    async fn the_newest_event_of_a_peer_is_kept_and_the_queue_stays_small() {
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
