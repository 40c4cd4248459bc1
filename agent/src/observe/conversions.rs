//! Converts the speaker's answers to types of [`trunkline_api::control`]: one function for each
//! type, without any request.

use std::net::Ipv6Addr;
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::Instant;
use trunkline_api::control::{
    self as control, AlternatePaths, BfdDiagnostic, BfdSession, BfdState, BgpListener, BgpStatus, BmpStation,
    Dated, DatedNotification, GuardStatus, Messages, Peer, PeerFamily, PeerRange, PeerSession, PeerState,
    PolicyMatch, Route, RouteOrigin,
};
use trunkline_bgp::bfd;
use trunkline_bgp::net::Monitor;
use trunkline_bgp::rib;
use trunkline_bgp::speaker::{self, BfdStatus, MessageCounts, PeerStatus, RangeStatus, State};
use trunkline_bgp::wire::Origin;
use trunkline_datapath::nft;

use crate::causes;
use crate::plan::{Mode, RefusedRange};
use crate::probe::identifiers::duplicates;
use crate::reconcile::{ListenAddress, SpeakerStatus, StoppedBgp, StoppedPeer, UndiscoveredPeer};

/// The speaker, while it runs.
pub(super) fn bgp_status(bgp: &SpeakerStatus, peers: &[PeerStatus], ranges: &[RangeStatus]) -> BgpStatus {
    BgpStatus {
        local_as: bgp.local_as,
        router_id: bgp.router_id,
        graceful_shutdown: bgp.graceful_shutdown,
        disaggregated: bgp.disaggregated.clone(),
        ways_out: Vec::new(),
        peers: peers.len() + bgp.waiting.len(),
        established: peers.iter().filter(|peer| peer.state == State::Established).count(),
        converged: bgp.converged.clone(),
        ranges: {
            let refused = bgp.refused_ranges.iter().map(refused_range);
            ranges.iter().map(range).chain(refused).collect()
        },
        stations: bgp.monitors.iter().map(station).collect(),
        listening: bgp.listening.iter().map(listener).collect(),
        duplicate_identifiers: duplicates(bgp.router_id, peers),
        fault: None,
    }
}

/// The speaker, while it does not run.
pub(super) fn stopped_bgp(stopped: &StoppedBgp) -> BgpStatus {
    BgpStatus {
        local_as: stopped.local_as,
        router_id: stopped.router_id,
        graceful_shutdown: false,
        disaggregated: None,
        ways_out: Vec::new(),
        peers: stopped.peers.len(),
        established: 0,
        converged: Vec::new(),
        ranges: Vec::new(),
        stations: Vec::new(),
        listening: Vec::new(),
        duplicate_identifiers: Vec::new(),
        fault: Some(stopped.fault.clone()),
    }
}

fn listener(listening: &ListenAddress) -> BgpListener {
    let seconds = |since: &std::time::Instant| Instant::from_std(*since).elapsed().as_secs();
    BgpListener {
        address: listening.address,
        fault: listening.fault.as_ref().map(|(fault, _)| fault.clone()),
        fault_seconds: listening.fault.as_ref().map(|(_, since)| seconds(since)),
    }
}

fn range(status: &RangeStatus) -> PeerRange {
    PeerRange {
        prefix: status.prefix,
        remote_as: status.remote_as.0,
        peers: status.peers,
        limit: status.limit,
        refused: status.refused,
        fault: None,
    }
}

/// A prefix that the planner refused.
fn refused_range((prefix, range): (&IpNet, &RefusedRange)) -> PeerRange {
    PeerRange {
        prefix: *prefix,
        remote_as: range.remote_as.0,
        peers: 0,
        limit: range.limit,
        refused: 0,
        fault: Some(range.fault.clone()),
    }
}

fn station(monitor: &Monitor) -> BmpStation {
    let status = monitor.status();
    BmpStation {
        address: monitor.address(),
        connected: status.connected,
        seconds: status.since.map_or(0, |since| Instant::from_std(since).elapsed().as_secs()),
        connections: status.connections,
        octets: status.octets,
        last_error: status.last_error,
    }
}

pub(super) fn peer(status: &PeerStatus, bgp: &SpeakerStatus) -> Peer {
    let dated = |value: &Option<speaker::Failure>| {
        value.as_ref().map(|value| Dated { text: value.text.clone(), seconds_ago: value.ago.as_secs() })
    };
    let notification = |value: &Option<speaker::DatedNotification>| {
        value.as_ref().map(|value| DatedNotification {
            code: value.code,
            subcode: value.subcode,
            text: value.text.clone(),
            seconds_ago: value.ago.as_secs(),
        })
    };
    let causes = causes::of(status);
    Peer {
        address: status.address,
        interface: status.key().interface().map(|name| name.to_string()),
        range: status.range,
        remote_as: status.remote_as.0,
        local_as: status.local_as.0,
        rules: status.rules.clone(),
        state: peer_state(status.state),
        state_seconds: status.state_for.as_secs(),
        down_seconds: status.down_for.map(|time| time.as_secs()),
        cause: causes.cause,
        last_attempt: causes.last_attempt,
        last_loss: causes.last_loss,
        losses: causes.losses,
        next_attempt_seconds: status.next_attempt.map(|after| after.as_secs()),
        shutdown: status.shutdown,
        optional: bgp.optional.contains(&status.key()),
        session: status.session.as_ref().map(|session| PeerSession {
            local: session.local,
            remote: session.remote,
            router_id: session.remote_router_id,
            hold_seconds: session.hold_time.as_secs(),
            keepalive_seconds: session.keepalive.as_secs(),
            capabilities_sent: session.capabilities_sent.clone(),
            capabilities_received: session.capabilities_received.clone(),
            peer_restart_seconds: session.peer_restart_time,
            round_trip_microseconds: session
                .round_trip
                .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
        }),
        families: status
            .families
            .iter()
            .map(|family| PeerFamily {
                family: family.family.to_string(),
                negotiated: family.negotiated,
                received: family.received,
                accepted: family.accepted,
                advertised: family.advertised,
                stale: family.stale,
                long_lived_stale: family.long_lived_stale,
                restartable: family.restartable,
                stale_expires_seconds: family.stale_expires.map(|after| after.as_secs()),
                end_of_rib_received: family.end_of_rib_received,
                end_of_rib_sent: family.end_of_rib_sent,
            })
            .collect(),
        received: messages(&status.traffic.received),
        sent: messages(&status.traffic.sent),
        flaps: status.flaps,
        last_down: dated(&status.last_down),
        bfd: status.bfd.as_ref().map(bfd_session),
        max_prefixes: status.max_prefixes,
        last_error: dated(&status.last_error),
        notification_sent: notification(&status.notification_sent),
        notification_received: notification(&status.notification_received),
    }
}

/// An unnumbered peer before its discovery, shown in state Idle.
pub(super) fn waiting_peer(waiting: &UndiscoveredPeer, bgp: &SpeakerStatus) -> Peer {
    Peer {
        interface: Some(waiting.interface.to_string()),
        remote_as: waiting.remote_as,
        local_as: waiting.local_as.unwrap_or(bgp.local_as),
        optional: waiting.optional,
        last_error: Some(Dated { text: waiting.reason.clone(), seconds_ago: 0 }),
        cause: Some(causes::not_found(waiting)),
        ..idle_peer()
    }
}

/// A configured peer while no speaker runs, shown in state Idle.
pub(super) fn stopped_peer(peer: &StoppedPeer, stopped: &StoppedBgp) -> Peer {
    let seconds = stopped.since.elapsed().as_secs();
    let interface = peer.interface.or(peer.key.and_then(|key| key.interface()));
    Peer {
        address: peer.key.map_or(Ipv6Addr::UNSPECIFIED.into(), |key| key.address()),
        interface: interface.map(|name| name.to_string()),
        remote_as: peer.remote_as,
        local_as: stopped.local_as,
        state_seconds: seconds,
        optional: peer.optional,
        last_error: Some(Dated { text: stopped.fault.clone(), seconds_ago: seconds }),
        down_seconds: Some(seconds),
        cause: Some(causes::no_speaker(&stopped.fault, stopped.since.elapsed())),
        ..idle_peer()
    }
}

fn idle_peer() -> Peer {
    Peer {
        address: Ipv6Addr::UNSPECIFIED.into(),
        interface: None,
        range: None,
        remote_as: 0,
        local_as: 0,
        state: PeerState::Idle,
        state_seconds: 0,
        down_seconds: None,
        cause: None,
        last_attempt: None,
        last_loss: None,
        losses: Vec::new(),
        next_attempt_seconds: None,
        shutdown: false,
        optional: false,
        session: None,
        families: Vec::new(),
        received: Messages::default(),
        sent: Messages::default(),
        flaps: 0,
        last_down: None,
        bfd: None,
        max_prefixes: None,
        rules: Vec::new(),
        last_error: None,
        notification_sent: None,
        notification_received: None,
    }
}

fn bfd_session(bfd: &BfdStatus) -> BfdSession {
    let status = &bfd.status;
    let milliseconds = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    BfdSession {
        state: bfd_state(status.state),
        state_seconds: bfd.state_for.as_secs(),
        remote_state: bfd_state(status.remote_state),
        diagnostic: diagnostic(status.diagnostic),
        remote_diagnostic: diagnostic(status.remote_diagnostic),
        multihop: status.multihop,
        transmit_milliseconds: milliseconds(status.transmit_interval),
        detection_milliseconds: status.detection_time.map(milliseconds),
        control_plane_independent: status.control_plane_independent,
        local_discriminator: status.local_discriminator,
        remote_discriminator: status.remote_discriminator,
        ups: status.up_count,
        downs: status.down_count,
        detections: status.expired_count,
        packets_received: bfd.packets_received,
        packets_sent: bfd.packets_sent,
    }
}

fn messages(counts: &MessageCounts) -> Messages {
    Messages {
        open: counts.open,
        update: counts.update,
        notification: counts.notification,
        keepalive: counts.keepalive,
        route_refresh: counts.route_refresh,
        octets: counts.octets,
    }
}

/// The state of a peer. See [`State`].
pub(crate) fn peer_state(state: State) -> PeerState {
    match state {
        State::Idle => PeerState::Idle,
        State::Connect => PeerState::Connect,
        State::Active => PeerState::Active,
        State::OpenSent => PeerState::OpenSent,
        State::OpenConfirm => PeerState::OpenConfirm,
        State::Established => PeerState::Established,
    }
}

/// The state of a BFD session. See [`bfd::State`].
pub(crate) fn bfd_state(state: bfd::State) -> BfdState {
    match state {
        bfd::State::AdminDown => BfdState::AdminDown,
        bfd::State::Down => BfdState::Down,
        bfd::State::Init => BfdState::Init,
        bfd::State::Up => BfdState::Up,
    }
}

fn diagnostic(diagnostic: bfd::Diagnostic) -> BfdDiagnostic {
    match diagnostic {
        bfd::Diagnostic::NONE => BfdDiagnostic::None,
        other => BfdDiagnostic::Text(other.to_string()),
    }
}

fn origin(origin: Origin) -> RouteOrigin {
    match origin {
        Origin::Igp => RouteOrigin::Igp,
        Origin::Egp => RouteOrigin::Egp,
        Origin::Incomplete => RouteOrigin::Incomplete,
    }
}

pub(super) fn mode(mode: Mode) -> control::Mode {
    match mode {
        Mode::Bgp => control::Mode::Bgp,
        Mode::GlobalBgp => control::Mode::GlobalBgp,
        Mode::Vlan => control::Mode::Vlan,
        Mode::Vxlan => control::Mode::Vxlan,
    }
}

pub(super) fn path_standing(standing: speaker::PathStanding) -> control::PathStanding {
    match standing {
        speaker::PathStanding::Best => control::PathStanding::Best,
        speaker::PathStanding::Used => control::PathStanding::Used,
        speaker::PathStanding::Lost => control::PathStanding::Lost,
        speaker::PathStanding::Refused => control::PathStanding::Refused,
        speaker::PathStanding::Waiting => control::PathStanding::Waiting,
    }
}

pub(super) fn export_standing(standing: speaker::ExportStanding) -> control::ExportStanding {
    match standing {
        speaker::ExportStanding::Advertised => control::ExportStanding::Advertised,
        speaker::ExportStanding::Pending => control::ExportStanding::Pending,
        speaker::ExportStanding::Withheld => control::ExportStanding::Withheld,
        speaker::ExportStanding::Withdrawing => control::ExportStanding::Withdrawing,
    }
}

pub(super) fn ruling(ruling: &rib::PolicyMatch) -> PolicyMatch {
    PolicyMatch { accepted: ruling.accepted, rule: ruling.rule, name: ruling.name.clone() }
}

pub(super) fn route(route: &speaker::Route) -> Route {
    let large = route.large_communities.iter().map(ToString::to_string);
    let extended = route.extended_communities.iter().map(ToString::to_string);
    Route {
        prefix: route.prefix,
        peer: route.peer.map(|peer| peer.to_string()),
        next_hop: route.next_hop.map(|next_hop| next_hop.address()),
        origin: origin(route.origin),
        as_path: route.as_path.clone(),
        path_id: route.path_id,
        med: route.med,
        local_pref: route.local_pref,
        communities: route.communities.iter().map(ToString::to_string).chain(large).chain(extended).collect(),
        best: route.best,
        filtered: route.filtered.map(str::to_owned),
        stale: route.stale,
    }
}

/// The current counters of alternate paths in the kernel.
pub(super) fn alternate_paths(there: bool) -> Option<AlternatePaths> {
    let counters = there.then(nft::alternate::counters)?.ok()?;
    let value = |name| counters.iter().find(|(found, _)| found == name).map(|(_, packets)| *packets);
    Some(AlternatePaths {
        forwarded: value(nft::alternate::FORWARDED)?,
        dropped: value(nft::alternate::DROPPED)?,
    })
}

/// The guard with its current counters in the kernel.
pub(super) fn guard(status: trunkline_datapath::kernel::GuardStatus) -> GuardStatus {
    let dropped = if status.enabled { nft::guard::counters().unwrap_or_default() } else { Vec::new() };
    GuardStatus {
        enabled: status.enabled,
        in_force: status.in_force,
        fault: status.fault,
        repairs: status.repairs,
        dropped: dropped.into_iter().collect(),
    }
}
