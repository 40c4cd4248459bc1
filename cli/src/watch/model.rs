//! The displayed state: the agent's last answer, events, and the operator's selection. No clock, no
//! terminal.
//!
//! A selected row is identified by its name and not by its number. So the same row stays selected
//! when a session goes down and moves to the top. While the agent does not answer, the displayed
//! times do not advance, because the real ones are not known.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use trunkline_api::control::{
    AdvertisementState, AgentStatus, BfdState, Dated, Events, Peer, PeerState, PodState, PodStatus,
    ServiceView, Severity, Snapshot,
};

/// Maximum number of stored events, including those of earlier runs of the agent.
const KEPT: usize = 2000;

/// The displayed tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Peers,
    Pods,
    Events,
    Services,
}

impl Tab {
    pub(super) const ALL: [Tab; 4] = [Tab::Peers, Tab::Pods, Tab::Events, Tab::Services];

    fn after(self, places: usize) -> Tab {
        Tab::ALL[(self as usize + places) % Tab::ALL.len()]
    }
}

/// The popup over the tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Popup {
    Nothing,
    /// All details of the selected row, from this line on.
    Detail(usize),
    Help,
}

/// An update of the agent, or the fact that it does not answer.
#[derive(Debug)]
pub(super) enum AgentUpdate {
    /// The agent's state; `at`: time of arrival, RFC 3339.
    State {
        snapshot: Box<Snapshot>,
        at: String,
    },
    Events(Events),
    /// The agent has not answered since `at`.
    Unreachable {
        text: String,
        at: String,
    },
}

/// An action of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    NextTab,
    PreviousTab,
    Go(Tab),
    Open,
    Back,
    Filter,
    Type(char),
    Erase,
    EraseAll,
    Help,
    Quit,
}

/// The agent does not answer.
#[derive(Debug)]
pub(super) struct AgentUnreachable {
    pub(super) text: String,
    /// Time of detection, RFC 3339.
    pub(super) at: String,
    since: Duration,
}

/// An event.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Counted from 1 since the start of this program.
    pub(super) number: u64,
    pub(super) at: String,
    pub(super) warning: bool,
    pub(super) kind: &'static str,
    pub(super) peer: Option<String>,
    pub(super) text: String,
}

/// The visible size, for keys that scroll by pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibleRows {
    /// Rows of the table.
    pub(super) rows: usize,
    /// The last line at which the details can begin.
    pub(super) last_line: usize,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) socket: String,
    pub(super) tab: Tab,
    pub(super) popup: Popup,
    pub(super) filter: String,
    pub(super) unreachable: Option<AgentUnreachable>,
    /// Written by the view.
    pub(super) visible_rows: Cell<VisibleRows>,
    typing: bool,
    snapshot: Option<Snapshot>,
    updated: Duration,
    now: Duration,
    entries: VecDeque<Entry>,
    counted: u64,
    /// The run of the agent that sent the last events.
    run: Option<u64>,
    /// The name of the selected row of each tab; the first row if none.
    chosen: [Option<String>; 4],
}

impl Model {
    pub(super) fn new(socket: String) -> Model {
        Model {
            socket,
            tab: Tab::Peers,
            popup: Popup::Nothing,
            filter: String::new(),
            unreachable: None,
            visible_rows: Cell::new(VisibleRows { rows: 1, last_line: 0 }),
            typing: false,
            snapshot: None,
            updated: Duration::ZERO,
            now: Duration::ZERO,
            entries: VecDeque::new(),
            counted: 0,
            run: None,
            chosen: [None, None, None, None],
        }
    }

    /// Sets the time since the start of this program.
    pub(super) fn pass(&mut self, now: Duration) {
        self.now = now;
    }

    /// Handles an update of the agent.
    pub(super) fn handle_update(&mut self, update: AgentUpdate) {
        match update {
            AgentUpdate::State { snapshot, at } => {
                self.updated = self.now;
                self.snapshot = Some(*snapshot);
                if let Some(unreachable) = self.unreachable.take() {
                    let seconds = self.now.saturating_sub(unreachable.since).as_secs();
                    self.note(at, false, format!("the agent answers again, after {seconds} s"));
                }
            }
            AgentUpdate::Unreachable { text, at } => match &mut self.unreachable {
                Some(unreachable) => unreachable.text = text,
                None => {
                    self.note(at.clone(), true, format!("the agent does not answer: {text}"));
                    self.unreachable = Some(AgentUnreachable { text, at, since: self.now });
                }
            },
            AgentUpdate::Events(events) => {
                if self.run.is_some_and(|run| run != events.run) {
                    let at = events.events.first().map(|event| event.at.clone()).unwrap_or_default();
                    self.note(at, false, "the next events of another run of the agent follow".to_owned());
                }
                self.run = Some(events.run);
                if events.missed > 0 {
                    let at = events.events.first().map(|event| event.at.clone()).unwrap_or_default();
                    self.note(at, false, format!("{} older events were dropped", events.missed));
                }
                for event in events.events {
                    let warning = event.severity == Severity::Warning;
                    self.enter(event.at, warning, event.kind.name(), event.peer, event.text);
                }
            }
        }
    }

    fn note(&mut self, at: String, warning: bool, text: String) {
        self.enter(at, warning, "watch", None, text);
    }

    fn enter(&mut self, at: String, warning: bool, kind: &'static str, peer: Option<String>, text: String) {
        self.counted += 1;
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { number: self.counted, at, warning, kind, peer, text });
    }

    /// Runs an action of the operator. Break: the operator quits.
    pub(super) fn act(&mut self, action: Action) -> ControlFlow<()> {
        let page = self.visible_rows.get().rows.saturating_sub(1).max(1) as isize;
        match action {
            Action::Quit => return ControlFlow::Break(()),
            Action::Up => self.step(-1),
            Action::Down => self.step(1),
            Action::PageUp => self.step(-page),
            Action::PageDown => self.step(page),
            Action::First => self.step(-isize::MAX),
            Action::Last => self.step(isize::MAX),
            Action::NextTab => self.go(self.tab.after(1)),
            Action::PreviousTab => self.go(self.tab.after(Tab::ALL.len() - 1)),
            Action::Go(tab) => self.go(tab),
            Action::Open if self.typing => self.typing = false,
            Action::Open => {
                self.popup = match self.popup {
                    Popup::Nothing if !self.names().is_empty() => Popup::Detail(0),
                    _ => Popup::Nothing,
                }
            }
            // The key closes only one thing at a time.
            Action::Back if self.typing || self.popup == Popup::Nothing => {
                self.typing = false;
                self.filter.clear();
            }
            Action::Back => self.popup = Popup::Nothing,
            Action::Filter => (self.typing, self.popup) = (true, Popup::Nothing),
            Action::Type(letter) => self.filter.push(letter),
            Action::Erase => drop(self.filter.pop()),
            Action::EraseAll => self.filter.clear(),
            Action::Help => {
                self.popup = if self.popup == Popup::Help { Popup::Nothing } else { Popup::Help };
            }
        }
        ControlFlow::Continue(())
    }

    fn go(&mut self, tab: Tab) {
        (self.tab, self.popup, self.typing) = (tab, Popup::Nothing, false);
    }

    fn step(&mut self, rows: isize) {
        match self.popup {
            Popup::Detail(line) => {
                let line = line.saturating_add_signed(rows).min(self.visible_rows.get().last_line);
                self.popup = Popup::Detail(line);
            }
            Popup::Help => {}
            Popup::Nothing => {
                let names = self.names();
                let row = self.row(&names).saturating_add_signed(rows).min(names.len().saturating_sub(1));
                // If the newest event is selected, the selection stays at the newest one.
                let newest = self.tab == Tab::Events && row == 0;
                self.chosen[self.tab as usize] = names.into_iter().nth(row).filter(|_| !newest);
            }
        }
    }

    fn names(&self) -> Vec<String> {
        match self.tab {
            Tab::Peers => self.peers().iter().map(Peer::name).collect(),
            Tab::Pods => self.pods().into_iter().map(name_of).collect(),
            Tab::Events => self.entries().map(|entry| entry.number.to_string()).collect(),
            Tab::Services => {
                self.services().iter().map(|view| format!("{} {}", view.title(), view.address)).collect()
            }
        }
    }

    fn row(&self, names: &[String]) -> usize {
        let chosen = self.chosen[self.tab as usize].as_ref();
        chosen.and_then(|chosen| names.iter().position(|name| name == chosen)).unwrap_or_default()
    }

    /// The number of the selected row.
    pub(super) fn chosen(&self) -> usize {
        self.row(&self.names())
    }

    /// Whether letters go to the filter.
    pub(super) fn is_typing(&self) -> bool {
        self.typing
    }

    /// Time since the agent stopped answering.
    pub(super) fn silent_for(&self) -> Option<Duration> {
        self.unreachable.as_ref().map(|unreachable| self.now.saturating_sub(unreachable.since))
    }

    /// Time since the agent's last state. It does not advance while the agent does not answer.
    fn age(&self) -> u64 {
        let until = self.unreachable.as_ref().map_or(self.now, |unreachable| unreachable.since);
        until.saturating_sub(self.updated).as_secs()
    }

    /// The agent's status with current times.
    pub(super) fn agent(&self) -> Option<AgentStatus> {
        let age = self.age();
        let mut agent = self.snapshot.as_ref()?.agent.clone();
        agent.uptime_seconds += age;
        agent.drain.phase_seconds += age;
        let cluster = agent.cluster.as_mut().and_then(|cluster| cluster.outage_seconds.as_mut());
        cluster.into_iter().for_each(|seconds| *seconds += age);
        agent.drain.settle_seconds.iter_mut().for_each(|left| *left = left.saturating_sub(age));
        Some(agent)
    }

    /// All peers with current times; peers that are down first.
    pub(super) fn all_peers(&self) -> Vec<Peer> {
        let age = self.age();
        let peers = self.snapshot.iter().flat_map(|snapshot| &snapshot.peers);
        let mut peers: Vec<Peer> = peers.map(|peer| aged(peer, age)).collect();
        // The sort is stable, so peers of equal health keep the agent's order.
        peers.sort_by_key(peer_health);
        peers
    }

    /// The peers that match the filter.
    pub(super) fn peers(&self) -> Vec<Peer> {
        let mut peers = self.all_peers();
        peers.retain(|peer| {
            let said =
                [&peer.last_down, &peer.last_error].map(|said| said.as_ref().map_or("", |it| &it.text));
            let cause = peer.cause.as_ref().map_or("", |cause| &cause.text);
            self.passes(&[&peer.name(), &peer.remote_as.to_string(), state(peer), said[0], said[1], cause])
        });
        peers
    }

    /// The number of pods.
    pub(super) fn pod_count(&self) -> usize {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.pods.len())
    }

    /// The pods that match the filter, pods with faults first.
    pub(super) fn pods(&self) -> Vec<&PodStatus> {
        let pods = self.snapshot.iter().flat_map(|snapshot| &snapshot.pods);
        let mut pods: Vec<&PodStatus> = pods
            .filter(|pod| {
                let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
                self.passes(&[
                    &pod.title(),
                    &pod.container_id,
                    &pod.network,
                    &addresses.join(" "),
                    pod.state.name(),
                ])
            })
            .collect();
        pods.sort_by_cached_key(|pod| (pod.state == PodState::Attached, pod.title(), pod.ifname.clone()));
        pods
    }

    /// The number of service addresses.
    pub(super) fn service_count(&self) -> usize {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.service_count)
    }

    /// The service addresses that match the filter, with current times; advertised ones last.
    pub(super) fn services(&self) -> Vec<ServiceView> {
        let age = self.age();
        let views = self.snapshot.iter().flat_map(|snapshot| &snapshot.services);
        let matching = views.filter(|view| {
            let (address, pool) = (view.address.to_string(), view.pool.as_deref().unwrap_or_default());
            self.passes(&[&view.title(), &address, pool, view.policy.name(), view.state.name(), &view.text])
        });
        let aged =
            |view: &ServiceView| ServiceView { since_seconds: view.since_seconds + age, ..view.clone() };
        let mut views: Vec<ServiceView> = matching.map(aged).collect();
        // The sort is stable, so addresses of equal state keep the agent's order.
        views.sort_by_key(|view| view.state == AdvertisementState::Advertised);
        views
    }

    /// The number of events.
    pub(super) fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// The newest events, without the filter.
    pub(super) fn newest(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    /// The events that match the filter, newest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.newest().filter(|entry| {
            self.passes(&[&entry.at, entry.kind, entry.peer.as_deref().unwrap_or_default(), &entry.text])
        })
    }

    fn passes(&self, texts: &[&str]) -> bool {
        let wanted = self.filter.to_lowercase();
        wanted.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&wanted))
    }
}

/// The name of a row: a pod has a row for each of its interfaces.
fn name_of(pod: &PodStatus) -> String {
    format!("{} {}", pod.container_id, pod.ifname)
}

/// The health of a peer, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerHealth {
    /// Down; an operator should act.
    Down,
    /// Down as intended, or pods do not need the peer.
    ExpectedDown,
    /// The session is up, but something else is faulty.
    Degraded,
    Up,
}

pub(super) fn peer_health(peer: &Peer) -> PeerHealth {
    let bfd = peer.bfd.as_ref().is_some_and(|bfd| bfd.state != BfdState::Up);
    let stale = peer.families.iter().any(|family| family.stale > 0);
    match (peer.is_established(), peer.shutdown || peer.optional) {
        (true, _) if bfd || stale => PeerHealth::Degraded,
        (true, _) => PeerHealth::Up,
        (false, true) => PeerHealth::ExpectedDown,
        (false, false) => PeerHealth::Down,
    }
}

pub(super) fn state(peer: &Peer) -> &'static str {
    if peer.shutdown { "Shutdown" } else { peer.state.name() }
}

/// Seconds since the session was established or lost; none if an older agent does not report it.
/// Between two attempts the state changes every few seconds, so this is not the time of the last
/// change.
pub(super) fn since(peer: &Peer) -> Option<u64> {
    match peer.state {
        PeerState::Established => Some(peer.state_seconds),
        _ => peer.down_seconds.or(peer.last_down.as_ref().map(|down| down.seconds_ago)),
    }
}

/// The peer with its times increased by `age` seconds.
fn aged(peer: &Peer, age: u64) -> Peer {
    let mut peer = peer.clone();
    peer.state_seconds += age;
    peer.down_seconds.iter_mut().for_each(|seconds| *seconds += age);
    let causes = [&mut peer.cause, &mut peer.last_loss, &mut peer.last_attempt];
    causes.into_iter().flatten().for_each(|cause| cause.seconds_ago += age);
    let said = [&mut peer.last_down, &mut peer.last_error];
    said.into_iter().flatten().for_each(|said: &mut Dated| said.seconds_ago += age);
    let notifications = [&mut peer.notification_sent, &mut peer.notification_received];
    notifications.into_iter().flatten().for_each(|said| said.seconds_ago += age);
    peer.bfd.iter_mut().for_each(|bfd| bfd.state_seconds += age);
    peer.next_attempt_seconds.iter_mut().for_each(|left| *left = left.saturating_sub(age));
    for family in &mut peer.families {
        family.stale_expires_seconds.iter_mut().for_each(|left| *left = left.saturating_sub(age));
    }
    peer
}
