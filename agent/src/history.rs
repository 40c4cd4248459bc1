//! Recent events for an operator who looks later: the last `KEPT` session and route events, in
//! memory, and on disk for the next run.
//!
//! ```text
//!  reconcile task ──sessions, originations──┐         ┌─► since, subscribe: `trunkline events`, the page
//!  pump ────────────learned routes──────────┼─► ring ─┤
//!  kernel ──────────repairs─────────────────┤    ▲    └─► keeper ──► events.jsonl, last-run.json
//!  operator's commands ─────────────────────┘    └──────── at the start ───┘
//! ```
//!
//! Recording an event never waits, and no reader delays a writer. A reader requests the events
//! after its last number. If the ring already dropped some of them, the answer contains their
//! number. Each new event wakes all waiting readers, so no reader polls.
//!
//! A dozen session events may cause a hundred thousand route changes, and the session events
//! explain the route changes. So many simultaneous routes are one event (`FEW`). If the ring is
//! full and routes fill more than half of it, the oldest route event is dropped instead of the
//! oldest event.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use trunkline_api::control::{self, EventKind, Events, Severity};
use trunkline_bgp::bfd::{self, Cause};
use trunkline_bgp::rib::RouteChange;
use trunkline_bgp::speaker::Event;
use trunkline_bgp::types::{Family, FamilySet, PeerKey};

pub mod file;
pub mod keeper;
pub mod last_run;
pub mod repairs;

/// Maximum number of events in the ring.
const KEPT: usize = 1000;
/// Up to this number of simultaneous route changes have an event each. More changes share one
/// event.
const FEW: usize = 8;

/// A handle of the ring. Cheap to clone.
#[derive(Clone, Debug)]
pub struct History {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    run: u64,
    /// The number of the last event of earlier runs.
    restored: u64,
    ring: Mutex<Ring>,
    newest: watch::Sender<Newest>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    number: u64,
    /// Whether the agent stops. Then no reader waits.
    closed: bool,
}

#[derive(Debug)]
struct Ring {
    capacity: usize,
    events: VecDeque<control::Event>,
    /// Number of route events in the ring.
    of_routes: usize,
    last: u64,
    /// Whether the kernel gets the peers' best paths.
    imports: bool,
    /// Families that lost their last learned default route.
    lost_defaults: FamilySet,
}

impl Default for History {
    fn default() -> Self {
        History::keeping(KEPT, Vec::new())
    }
}

impl History {
    /// A history that starts with the events of earlier runs.
    fn after(events: Vec<control::Event>) -> History {
        History::keeping(KEPT, events)
    }

    fn keeping(capacity: usize, earlier: Vec<control::Event>) -> History {
        let mut ring = Ring {
            capacity,
            events: VecDeque::with_capacity(capacity),
            of_routes: 0,
            last: 0,
            imports: false,
            lost_defaults: FamilySet::EMPTY,
        };
        for mut event in earlier {
            ring.last += 1;
            event.number = ring.last;
            ring.push(event);
        }
        let restored = ring.last;
        // A JavaScript number has 53 bits, and 0 is not a valid run.
        let run = (fastrand::u64(..) >> 11) | 1;
        History {
            shared: Arc::new(Shared {
                run,
                restored,
                ring: Mutex::new(ring),
                newest: watch::Sender::new(Newest { number: restored, closed: false }),
            }),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Ring) -> T) -> T {
        // No code panics while it holds the lock, and a partly changed ring is still usable.
        work(&mut self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records an event with the usual severity of its kind.
    pub fn record(&self, kind: EventKind, peer: Option<String>, prefix: Option<IpNet>, text: String) {
        self.record_as(kind.severity(), kind, peer, prefix, text);
    }

    /// Records an event with its own severity.
    fn record_as(
        &self,
        severity: Severity,
        kind: EventKind,
        peer: Option<String>,
        prefix: Option<IpNet>,
        text: String,
    ) {
        let at = format!("{:.3}", Timestamp::now());
        let number = self.with(|ring| {
            ring.last += 1;
            let number = ring.last;
            ring.push(control::Event { number, at, kind, severity, peer, prefix, text });
            number
        });
        // Two writers may reach this point in reverse order, but the newest number must never
        // decrease.
        self.shared.newest.send_if_modified(|newest| {
            let newer = number > newest.number;
            newest.number = number.max(newest.number);
            newer
        });
    }

    /// All events in the ring after this number.
    pub fn since(&self, after: u64) -> Events {
        self.with(|ring| {
            let newer = ring.events.iter().filter(|event| event.number > after);
            let events: Vec<control::Event> = newer.cloned().collect();
            let missed = ring.last.saturating_sub(after).saturating_sub(events.len() as u64);
            Events { run: self.shared.run, missed, events }
        })
    }

    /// The number of this run and the number of its newest event.
    pub fn newest(&self) -> (u64, u64) {
        (self.shared.run, self.shared.newest.borrow().number)
    }

    /// The number of the last event of earlier runs; 0 if there is none.
    pub fn restored(&self) -> u64 {
        self.shared.restored
    }

    /// The event number from which a reader continues. The reader has read up to `after` in the run
    /// `run` (None: this run). A reader of another run continues with the first event of this run.
    pub fn number_of(&self, after: u64, run: Option<u64>) -> u64 {
        if run.is_none_or(|run| run == self.shared.run) { after } else { self.shared.restored }
    }

    /// Returns when the history is closed.
    pub async fn closed(&self) {
        // A dropped sender also means closed.
        let _ = self.shared.newest.subscribe().wait_for(|newest| newest.closed).await;
    }

    /// Wakes all waiting readers, and no reader waits afterwards. Called when the agent stops.
    pub fn close(&self) {
        self.shared.newest.send_modify(|newest| newest.closed = true);
    }

    /// Reads from this event number on, and waits for the next event.
    pub fn subscribe(&self, after: u64) -> Subscription {
        Subscription { history: self.clone(), newest: self.shared.newest.subscribe(), after }
    }

    /// Records an event of the speaker.
    pub fn record_speaker_event(&self, event: &Event) {
        if let Some((kind, peer, prefix, text)) = words(event) {
            self.record(kind, peer.map(|peer| peer.to_string()), prefix, text);
        }
    }

    /// Records prefixes that this node now advertises, or advertises with other attributes.
    pub fn originated(&self, prefixes: impl ExactSizeIterator<Item = IpNet>) {
        self.own(EventKind::Originated, "advertised", prefixes);
    }

    /// Records prefixes that this node withdrew.
    pub fn withdrawn(&self, prefixes: impl ExactSizeIterator<Item = IpNet>) {
        self.own(EventKind::Withdrawn, "no longer advertised", prefixes);
    }

    fn own(&self, kind: EventKind, what: &str, prefixes: impl ExactSizeIterator<Item = IpNet>) {
        match prefixes.len() {
            0 => {}
            number if number > FEW => {
                self.record(kind, None, None, format!("{number} prefixes of this node are {what}"));
            }
            _ => prefixes
                .for_each(|prefix| self.record(kind, None, Some(prefix), format!("{prefix} is {what}"))),
        }
    }

    /// Sets whether the kernel gets the peers' best paths. If not, the peers' paths carry no
    /// packets, and the plan's default routes have their own events.
    pub fn set_imports(&self, imports: bool) {
        self.with(|ring| ring.imports = imports);
    }

    /// Records prefixes with best paths that changed.
    pub fn learned(&self, changes: &[RouteChange]) {
        let (defaults, changes): (Vec<_>, Vec<_>) =
            changes.iter().partition(|change| change.prefix.prefix_len() == 0);
        for change in defaults {
            self.learned_default(change);
        }
        if changes.len() > FEW {
            let lost = changes.iter().filter(|change| change.paths.is_empty()).count();
            let text = match (changes.len() - lost, lost) {
                (kept, 0) => format!("{kept} prefixes have other paths"),
                (0, lost) => format!("{lost} prefixes have lost their last path"),
                (kept, lost) => format!("{kept} prefixes have other paths, {lost} have lost their last path"),
            };
            return self.record(EventKind::Learned, None, None, text);
        }
        for change in changes {
            self.learned_one(EventKind::Learned, change);
        }
    }

    /// The loss of the last path of a default route is a warning, and the next path ends it.
    fn learned_default(&self, change: &RouteChange) {
        if !self.with(|ring| ring.imports) {
            return self.learned_one(EventKind::Learned, change);
        }
        let family = Family::of(&change.prefix);
        let was_lost = self.with(|ring| {
            let was_lost = ring.lost_defaults.contains(family);
            if change.paths.is_empty() {
                ring.lost_defaults.insert(family);
            } else {
                ring.lost_defaults.remove(family);
            }
            was_lost
        });
        self.learned_one(
            match (change.paths.is_empty(), was_lost) {
                (true, _) => EventKind::DefaultLost,
                (false, true) => EventKind::DefaultBack,
                (false, false) => EventKind::Learned,
            },
            change,
        );
    }

    fn learned_one(&self, kind: EventKind, change: &RouteChange) {
        let hops: Vec<String> = change.paths.iter().map(|path| path.next_hop.address().to_string()).collect();
        let text = match hops.as_slice() {
            [] => format!("{} has lost its last path", change.prefix),
            hops if self.with(|ring| ring.imports) => {
                format!("{} is routed through {}", change.prefix, hops.join(", "))
            }
            hops => format!("{}: best path through {}", change.prefix, hops.join(", ")),
        };
        let peer = match change.paths.as_slice() {
            [path] => Some(path.peer.to_string()),
            _ => None,
        };
        self.record(kind, peer, Some(change.prefix), text);
    }
}

impl Ring {
    fn push(&mut self, event: control::Event) {
        while self.events.len() >= self.capacity {
            let oldest = if self.of_routes > self.capacity / 2 {
                self.events.iter().position(|event| event.kind.is_of_routes()).unwrap_or(0)
            } else {
                0
            };
            let Some(gone) = self.events.remove(oldest) else { break };
            self.of_routes -= usize::from(gone.kind.is_of_routes());
        }
        self.of_routes += usize::from(event.kind.is_of_routes());
        self.events.push_back(event);
    }
}

/// A reader that keeps its position.
#[derive(Debug)]
pub struct Subscription {
    history: History,
    newest: watch::Receiver<Newest>,
    after: u64,
}

impl Subscription {
    /// Waits for events after the last read event, and returns all of them. None once the agent
    /// stops. The future is cancel-safe.
    pub async fn next(&mut self) -> Option<Events> {
        let after = self.after;
        let newest = *self.newest.wait_for(|newest| newest.number > after || newest.closed).await.ok()?;
        if newest.number <= after {
            return None;
        }
        let events = self.history.since(after);
        self.after = events.events.last().map_or(after + events.missed, |event| event.number);
        Some(events)
    }
}

/// The text of a speaker's event. None for events that no operator needs.
fn words(event: &Event) -> Option<(EventKind, Option<PeerKey>, Option<IpNet>, String)> {
    let about = |kind, address: &PeerKey, text| Some((kind, Some(*address), None, text));
    match event {
        Event::PeerUp { address, remote_as, families, .. } => {
            let names: Vec<String> = families.iter().map(|family| family.to_string()).collect();
            let text = format!("session with AS {remote_as} is Established: {}", names.join(", "));
            about(EventKind::SessionUp, address, text)
        }
        Event::PeerDown { address, reason, retained, .. } => {
            let kept: Vec<String> = retained.iter().map(|family| family.to_string()).collect();
            let text = match kept.is_empty() {
                true => format!("session down: {reason}"),
                false => format!("session down: {reason}; its paths are retained: {}", kept.join(", ")),
            };
            about(EventKind::SessionDown, address, text)
        }
        Event::PeerError { address, error, .. } => about(EventKind::SessionError, address, error.clone()),
        Event::Bfd { address, down: Some(down), .. } => {
            let cause = match down.cause {
                Cause::TimeExpired => "no packet was received in the detection time",
                Cause::NeighborDown => {
                    "the peer is in state Down: it receives no packets from this node, or was restarted"
                }
                Cause::NeighborAdminDown => "the peer's operator disabled it",
            };
            about(EventKind::BfdDown, address, format!("BFD session down: {cause}"))
        }
        Event::Bfd { address, state: bfd::State::Up, .. } => {
            about(EventKind::BfdUp, address, "BFD session Up".to_owned())
        }
        Event::MalformedUpdate { address, fault, .. } => {
            about(EventKind::MalformedUpdate, address, format!("malformed UPDATE: {fault}"))
        }
        Event::EndOfRib { address, family, .. } => {
            about(EventKind::EndOfRib, address, format!("the whole table of {family} was received"))
        }
        Event::LongLivedStale { address, family, paths, removed, time, .. } => about(
            EventKind::LongLivedStale,
            address,
            format!(
                "{paths} paths of {family} are retained as least preferred, for at most {} s; {removed} were removed",
                time.as_secs()
            ),
        ),
        Event::StaleSwept { address, family, paths, .. } => {
            about(EventKind::StaleSwept, address, format!("{paths} stale paths of {family} were removed"))
        }
        Event::PeerGone { address, .. } => {
            about(EventKind::NeighbourGone, address, "the dynamic neighbour is gone".to_owned())
        }
        Event::RangeFull { prefix, limit, refused } => Some((
            EventKind::RangeFull,
            Some(*refused),
            Some(*prefix),
            format!("refused: {limit} neighbours from {prefix} are already connected, which is the limit"),
        )),
        Event::Converged { family } => Some((
            EventKind::Converged,
            None,
            None,
            format!("the first selection of {family} after the start is done"),
        )),
        // The plan records the consequences of a default route.
        Event::Bfd { .. } | Event::Advertised { .. } | Event::DefaultRoute { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;
    use trunkline_api::control::Severity;
    use trunkline_bgp::types::PeerId;

    use super::*;

    fn session(history: &History, text: &str) {
        history.record(EventKind::SessionDown, None, None, text.to_owned());
    }

    fn texts(events: &Events) -> Vec<&str> {
        events.events.iter().map(|event| event.text.as_str()).collect()
    }

    #[test]
    fn the_oldest_event_is_dropped_first_and_counted_as_missed() {
        let history = History::keeping(3, Vec::new());
        for text in ["a", "b", "c", "d", "e"] {
            session(&history, text);
        }
        let all = history.since(0);
        assert_eq!((texts(&all), all.missed), (vec!["c", "d", "e"], 2));
        assert_eq!(all.events[0].number, 3);
        let rest = history.since(4);
        assert_eq!((texts(&rest), rest.missed), (vec!["e"], 0));
        assert_eq!(history.since(5), Events { run: all.run, missed: 0, events: Vec::new() });
        assert_eq!([None, Some(all.run), Some(0)].map(|run| history.number_of(4, run)), [4, 4, 0]);
    }

    #[test]
    fn many_route_events_do_not_displace_session_events() {
        let history = History::keeping(10, Vec::new());
        (0..4).for_each(|number| session(&history, &number.to_string()));
        let prefix = |number: u32| IpNet::from(std::net::IpAddr::V4(number.into()));
        (0..1000).for_each(|number| history.originated([prefix(number)].into_iter()));
        let kept = history.since(0).events;
        assert_eq!(kept.len(), 10);
        assert_eq!(kept.iter().filter(|event| !event.kind.is_of_routes()).count(), 4);
        // Session events may fill the whole ring.
        (0..20).for_each(|number| session(&history, &number.to_string()));
        let kept = history.since(0).events;
        assert_eq!((kept.len(), kept[9].text.as_str()), (10, "19"));
        assert!(kept.iter().filter(|event| event.kind.is_of_routes()).count() <= 5);
        // Many simultaneous withdrawals are one event.
        history.withdrawn((0..FEW as u32 + 1).map(prefix).collect::<Vec<_>>().into_iter());
        let last = history.since(0).events.pop().unwrap();
        assert_eq!(last.text, "9 prefixes of this node are no longer advertised");
        let change = |number| RouteChange { prefix: prefix(number), paths: Vec::new() };
        history.learned(&[change(1)]);
        assert_eq!(history.since(0).events.pop().unwrap().text, "0.0.0.1/32 has lost its last path");
        history.learned(&(0..50).map(change).collect::<Vec<_>>());
        assert_eq!(history.since(0).events.pop().unwrap().text, "50 prefixes have lost their last path");
    }

    #[test]
    fn the_loss_of_the_last_default_route_is_a_warning() {
        let history = History::default();
        history.set_imports(true);
        let change = |prefix: &str| RouteChange { prefix: prefix.parse().unwrap(), paths: Vec::new() };
        // The prefix is in a batch with many others.
        let mut changes: Vec<RouteChange> = (0..50).map(|n| change(&format!("10.0.0.{n}/32"))).collect();
        changes.push(change("::/0"));
        history.learned(&changes);
        let events = history.since(0).events;
        let [lost, others] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((lost.kind, lost.severity), (EventKind::DefaultLost, Severity::Warning));
        assert_eq!((lost.prefix, lost.text.as_str()), ("::/0".parse().ok(), "::/0 has lost its last path"));
        assert_eq!(others.text, "50 prefixes have lost their last path");
    }

    #[tokio::test]
    async fn a_subscriber_waits_and_reads_on() {
        let history = History::keeping(3, Vec::new());
        session(&history, "before");
        let mut reader = history.subscribe(0);
        assert_eq!(texts(&reader.next().await.unwrap()), ["before"]);
        let waits = timeout(Duration::from_millis(20), reader.next()).await;
        assert!(waits.is_err(), "there is nothing newer");
        let writer = history.clone();
        let (events, ()) = tokio::join!(reader.next(), async move { session(&writer, "after") });
        assert_eq!(texts(&events.unwrap()), ["after"]);
        (0..5).for_each(|number| session(&history, &number.to_string()));
        let events = reader.next().await.unwrap();
        assert_eq!((texts(&events), events.missed), (vec!["2", "3", "4"], 2));
        let (events, ()) = tokio::join!(reader.next(), async { history.close() });
        assert_eq!(events, None, "a waiting reader does not delay the agent's stop");
    }

    #[test]
    fn events_of_the_speaker_are_recorded_as_text() {
        let history = History::default();
        let (peer, address) = (PeerId(0), "192.0.2.1".parse().unwrap());
        history.record_speaker_event(&Event::PeerDown {
            peer,
            address,
            reason: "hold timer expired".to_owned(),
            cause: trunkline_bgp::speaker::Cause::Closed,
            retained: FamilySet::EMPTY,
        });
        history.record_speaker_event(&Event::Advertised { prefix: "10.0.0.0/8".parse().unwrap(), peer });
        let kept = history.since(0).events;
        assert_eq!(kept.len(), 1, "an event that no operator needs is not recorded");
        let event = &kept[0];
        assert_eq!((event.kind, event.severity), (EventKind::SessionDown, Severity::Warning));
        assert_eq!(event.peer.as_deref(), Some("192.0.2.1"));
        assert_eq!(event.text, "session down: hold timer expired");
        assert!(event.at.ends_with('Z') && event.at.contains('.'), "{}", event.at);
    }
}
