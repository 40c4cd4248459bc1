//! The status of a peer for the operator. The speaker adds the counts of the tables.

use std::time::Instant;

use super::{Peer, Timer};
use crate::io::ConnId;
use crate::io::status::{DatedNotification, FamilyStatus, PeerStatus, SessionStatus};
use crate::wire::{Capability, Notification, Open};

impl Peer {
    /// The status without the counts of the tables, which are zero.
    pub fn status(&self, now: Instant) -> PeerStatus {
        let ago = |since: Instant| now.saturating_duration_since(since);
        let notification = |entry: &Option<(Notification, Instant)>| {
            entry.as_ref().map(|(notification, when)| DatedNotification {
                code: notification.code,
                subcode: notification.subcode,
                text: notification.to_string(),
                ago: ago(*when),
            })
        };
        let next = [Timer::IdleHold, Timer::ConnectRetry].map(|timer| self.timers.get(timer));
        let session = self.session();
        let restart = session.and_then(|session| session.negotiated.graceful_restart);
        let families = self.config.families.iter().map(|family| FamilyStatus {
            family,
            negotiated: session.is_some_and(|session| session.negotiated.families.contains(family)),
            received: 0,
            accepted: 0,
            advertised: 0,
            stale: 0,
            long_lived_stale: 0,
            restartable: restart.is_some_and(|restart| restart.keeps(family)),
            stale_expires: self.stale_until(family).map(|at| at.saturating_duration_since(now)),
            end_of_rib_received: self.end_of_rib.contains(family),
            end_of_rib_sent: false,
        });
        PeerStatus {
            peer: self.id,
            address: self.config.address,
            interface: self.config.interface,
            range: None,
            remote_as: self.config.remote_as,
            local_as: self.config.paths.as_to_peer(self.local.asn),
            rules: self.config.paths.words(),
            shutdown: self.config.shutdown,
            state: self.state,
            state_for: ago(self.state_since),
            next_attempt: next.into_iter().flatten().min().map(|at| at.saturating_duration_since(now)),
            session: self.session_status(),
            families: families.collect(),
            traffic: self.traffic,
            established_count: self.established_count,
            flaps: self.flaps,
            bfd: self.bfd_status(now),
            max_prefixes: self.config.max_prefixes,
            down_for: session.is_none().then(|| ago(self.failures.down_since())),
            no_carrier: self.failures.no_carrier(),
            last_error: self.failures.last_error(now),
            last_down: self.failures.last_loss(now),
            last_attempt: self.failures.last_attempt(now),
            losses: self.failures.losses(),
            notification_sent: notification(&self.notification_sent),
            notification_received: notification(&self.notification_received),
        }
    }

    /// The connection of the Established session.
    pub fn connection(&self) -> Option<ConnId> {
        self.established().map(|connection| connection.id)
    }

    fn session_status(&self) -> Option<SessionStatus> {
        let connection = self.established()?;
        let session = self.session()?;
        let words = |open: &Option<Open>| -> Vec<String> {
            open.iter().flat_map(|open| open.capabilities.iter().map(Capability::to_string)).collect()
        };
        Some(SessionStatus {
            local: session.local,
            remote: session.remote,
            remote_router_id: session.negotiated.remote_router_id,
            hold_time: session.negotiated.hold_time,
            keepalive: session.negotiated.keepalive,
            capabilities_sent: words(&connection.our_open),
            capabilities_received: words(&connection.their_open),
            peer_restart_time: session
                .negotiated
                .graceful_restart
                .map(|restart| u16::try_from(restart.time.as_secs()).unwrap_or(u16::MAX)),
            round_trip: None,
        })
    }
}
