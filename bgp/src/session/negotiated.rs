//! The agreement of two OPENs: shared capabilities, the shorter Hold Time, graceful restart.
//!
//! `offer` builds this side's OPEN, `Negotiated::new` combines both. A capability counts only if
//! both sides sent it (RFC 5492 §3). A peer without any multiprotocol capability carries IPv4
//! unicast (RFC 4760 §8).

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::config::{AddPath, PeerConfig};
use crate::types::{Asn, Family, FamilySet};
use crate::wire::{
    AddPathFamily, Capability, DecodeContext, LongLivedFamily, MAX_EXTENDED, MAX_MESSAGE, Open, OpenError,
    RestartFamily,
};

/// Facts of this speaker that are the same for every session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// AS number; the configuration of a peer may replace it ([`crate::config::LocalAs`]).
    pub asn: Asn,
    /// BGP identifier.
    pub router_id: Ipv4Addr,
    /// The process was restarted, and its initial selection is not complete: OPENs carry the R bit
    /// (RFC 4724 §3).
    pub restarting: bool,
    /// The FIB of the previous process is still installed, so OPENs carry the F bits (RFC 4724 §3).
    pub forwarding: bool,
}

/// The negotiated properties of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Families that both sides carry.
    pub families: FamilySet,
    /// The peer's AS number.
    pub remote_as: Asn,
    /// The peer's BGP identifier.
    pub remote_router_id: Ipv4Addr,
    /// Peer and speaker are in the same AS.
    pub internal: bool,
    /// Hold Time; zero: no KEEPALIVEs and no hold timer.
    pub hold_time: Duration,
    /// The interval between KEEPALIVEs, before jitter; zero: none.
    pub keepalive: Duration,
    /// AS numbers of four octets (RFC 6793).
    pub four_octet_as: bool,
    /// Messages up to 65,535 octets (RFC 8654).
    pub extended_message: bool,
    /// IPv4 prefixes may have an IPv6 next hop (RFC 8950).
    pub ext_next_hop: bool,
    /// Families in which the peer's prefixes have path identifiers (RFC 7911).
    pub add_path_receive: FamilySet,
    /// Families in which this side's prefixes have path identifiers.
    pub add_path_send: FamilySet,
    /// ROUTE-REFRESH may be sent (RFC 2918).
    pub route_refresh: bool,
    /// A refresh begins and ends with a marker (RFC 7313).
    pub enhanced_refresh: bool,
    /// The peer supports long-lived stale paths: it sent that capability together with graceful
    /// restart (RFC 9494 §4.3).
    pub long_lived_stale: bool,
    /// Graceful restart; none unless both sides support it.
    pub graceful_restart: Option<PeerRestart>,
}

/// The peer's side of graceful restart (RFC 4724 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRestart {
    /// Both sides sent the N bit (RFC 8538). The peer's paths are also retained after a
    /// NOTIFICATION, except after a Hard Reset.
    pub notification: bool,
    /// The R bit: the peer was restarted. This side does not wait for its End-of-RIB before it
    /// advertises routes.
    pub restarting: bool,
    /// Restart Time: the peer's paths are retained for this time after the session is lost.
    pub time: Duration,
    /// Families of which the paths are retained.
    pub families: FamilySet,
    /// Families in which forwarding continued during the last restart (F).
    pub forwarding: FamilySet,
    /// Long-lived Stale Time, by [`Family::index`]: the peer's paths are retained for this time
    /// after the Restart Time. Zero: not retained, or one side lacks the capability (RFC 9494 §4).
    pub long_lived: [Duration; 2],
    /// Families in which forwarding continued, by the F bit of the long-lived capability.
    pub long_lived_forwarding: FamilySet,
}

/// This side's OPEN. `forwarding`: the FIB entries from before are still installed (F bit of every
/// family).
pub(crate) fn offer(config: &PeerConfig, local: &Local, forwarding: bool) -> Open {
    let mut capabilities: Vec<Capability> =
        config.families.iter().map(|family| Capability::Multiprotocol(family.into())).collect();
    capabilities.extend([Capability::RouteRefresh, Capability::EnhancedRouteRefresh]);
    if config.families.contains(Family::Ipv4Unicast) {
        let entry = (Family::Ipv4Unicast.into(), Family::Ipv6Unicast.afi());
        capabilities.push(Capability::ExtendedNextHop(vec![entry]));
    }
    if config.extended_messages {
        capabilities.push(Capability::ExtendedMessage);
    }
    capabilities.extend(config.paths.local_role.map(Capability::Role));
    let AddPath { receive, send } = config.add_path;
    if receive || send.is_some() {
        let families = config.families.iter();
        let entry = |family: Family| AddPathFamily { family: family.into(), receive, send: send.is_some() };
        capabilities.push(Capability::AddPath(families.map(entry).collect()));
    }
    if let Some(restart_time) = config.graceful_restart {
        let families =
            config.families.iter().map(|family| RestartFamily { family: family.into(), forwarding });
        capabilities.push(Capability::GracefulRestart {
            restarting: local.restarting,
            notification: config.restart_notification,
            restart_time,
            families: families.collect(),
        });
    }
    // The configuration enables each family separately (RFC 9494 §5).
    let long_lived = config.families.iter().filter_map(|family| {
        let stale_time = config.long_lived[family.index()]?;
        Some(LongLivedFamily { family: family.into(), forwarding, stale_time })
    });
    let long_lived: Vec<LongLivedFamily> = long_lived.collect();
    if config.graceful_restart.is_some() && !long_lived.is_empty() {
        capabilities.push(Capability::LongLivedGracefulRestart(long_lived));
    }
    let my_as = config.paths.as_to_peer(local.asn);
    capabilities.push(Capability::FourOctetAs(my_as));
    // PeerConfig::validate keeps the Hold Time within 16 bits.
    let hold_time = u16::try_from(config.hold_time.as_secs()).unwrap_or(u16::MAX);
    Open::new(my_as, hold_time, local.router_id, capabilities)
}

impl Negotiated {
    /// The agreement of `ours` and `theirs`, or the reason why the peer does not match its
    /// configuration.
    pub(crate) fn new(config: &PeerConfig, ours: &Open, theirs: &Open) -> Result<Negotiated, OpenError> {
        if theirs.my_as != config.remote_as {
            return Err(OpenError::PeerAs { expected: config.remote_as, got: theirs.my_as });
        }
        let internal = ours.my_as == theirs.my_as;
        // Between ASes the same identifier is not an error (RFC 6286 §2.2).
        if internal && ours.router_id == theirs.router_id {
            return Err(OpenError::Identifier { identifier: theirs.router_id });
        }
        check_role(config, theirs)?;
        let families = config.families.intersection(families(theirs));
        if families.is_empty() {
            let missing = config.families.iter().map(|family| Capability::Multiprotocol(family.into()));
            return Err(OpenError::MissingCapability { missing: missing.collect() });
        }
        let hold_time = Duration::from_secs(u64::from(ours.hold_time.min(theirs.hold_time)));
        let both = |is: fn(&Capability) -> bool| {
            ours.capabilities.iter().any(is) && theirs.capabilities.iter().any(is)
        };
        let graceful_restart = config.graceful_restart.and_then(|_| PeerRestart::of(theirs, config));
        Ok(Negotiated {
            families,
            remote_as: theirs.my_as,
            remote_router_id: theirs.router_id,
            internal,
            hold_time,
            keepalive: keepalive(config, hold_time),
            four_octet_as: both(|c| matches!(c, Capability::FourOctetAs(_))),
            extended_message: both(|c| matches!(c, Capability::ExtendedMessage)),
            ext_next_hop: both(is_ipv4_over_ipv6),
            add_path_receive: add_path(ours, theirs, |ours, theirs| ours.receive && theirs.send)
                .intersection(families),
            add_path_send: add_path(ours, theirs, |ours, theirs| ours.send && theirs.receive)
                .intersection(families),
            route_refresh: both(|c| matches!(c, Capability::RouteRefresh)),
            enhanced_refresh: both(|c| matches!(c, Capability::EnhancedRouteRefresh)),
            // Without graceful restart the capability is ignored (RFC 9494 §4.1).
            long_lived_stale: long_lived(theirs).is_some()
                && theirs.capabilities.iter().any(|c| matches!(c, Capability::GracefulRestart { .. })),
            graceful_restart,
        })
    }

    /// The maximum message length in both directions.
    pub fn max_message(&self) -> usize {
        if self.extended_message { MAX_EXTENDED } else { MAX_MESSAGE }
    }

    /// Applies a changed keepalive interval of the configuration.
    pub(crate) fn set_keepalive(&mut self, config: &PeerConfig) {
        self.keepalive = keepalive(config, self.hold_time);
    }

    /// The decoder settings for this session's UPDATEs.
    pub(crate) fn decode_context(&self) -> DecodeContext {
        DecodeContext {
            four_octet_as: self.four_octet_as,
            ext_next_hop: self.ext_next_hop,
            families: self.families,
            add_path: self.add_path_receive,
            ebgp: !self.internal,
        }
    }
}

impl PeerRestart {
    fn of(open: &Open, config: &PeerConfig) -> Option<PeerRestart> {
        let mut long_lived = [Duration::ZERO; 2];
        let mut long_lived_forwarding = FamilySet::EMPTY;
        for entry in self::long_lived(open).unwrap_or_default() {
            let Some(family) = entry.family.family() else { continue };
            if config.long_lived[family.index()].is_none() {
                continue;
            }
            long_lived[family.index()] = Duration::from_secs(entry.stale_time.into());
            if entry.forwarding {
                long_lived_forwarding.insert(family);
            }
        }
        open.capabilities.iter().find_map(|capability| match capability {
            Capability::GracefulRestart { restarting, notification, restart_time, families } => {
                Some(PeerRestart {
                    notification: *notification && config.restart_notification,
                    restarting: *restarting,
                    time: Duration::from_secs(u64::from(*restart_time)),
                    families: families.iter().filter_map(|entry| entry.family.family()).collect(),
                    forwarding: families
                        .iter()
                        .filter(|entry| entry.forwarding)
                        .filter_map(|entry| entry.family.family())
                        .collect(),
                    long_lived,
                    long_lived_forwarding,
                })
            }
            _ => None,
        })
    }
}

/// Checks that the peer's role is the counterpart of the local role, if one is configured (RFC 9234
/// §4.2). A repeated role counts once. Two different roles match no role.
fn check_role(config: &PeerConfig, theirs: &Open) -> Result<(), OpenError> {
    let Some(local) = config.paths.local_role else { return Ok(()) };
    let roles = theirs.capabilities.iter().filter(|capability| capability.code() == 9);
    let remote: Vec<Capability> = roles.cloned().collect();
    let matches = remote.iter().all(|role| *role == Capability::Role(local.counterpart()));
    if matches && !(remote.is_empty() && config.paths.local_role_strict) {
        return Ok(());
    }
    Err(OpenError::RoleMismatch { local, remote })
}

/// Families for which the RFC 7911 capabilities of both sides agree. If a family is listed twice,
/// its first entry counts (§4).
fn add_path(ours: &Open, theirs: &Open, agree: fn(&AddPathFamily, &AddPathFamily) -> bool) -> FamilySet {
    let entry = |open: &Open, family: Family| {
        let entries = open.capabilities.iter().filter_map(|capability| match capability {
            Capability::AddPath(entries) => Some(entries.as_slice()),
            _ => None,
        });
        entries.flatten().find(|entry| entry.family.family() == Some(family)).copied()
    };
    let both = |family: &Family| {
        entry(ours, *family).zip(entry(theirs, *family)).is_some_and(|(ours, theirs)| agree(&ours, &theirs))
    };
    Family::ALL.into_iter().filter(both).collect()
}

/// The families of the RFC 9494 capability, if the OPEN has it.
fn long_lived(open: &Open) -> Option<&[LongLivedFamily]> {
    open.capabilities.iter().find_map(|capability| match capability {
        Capability::LongLivedGracefulRestart(families) => Some(families.as_slice()),
        _ => None,
    })
}

/// The configured interval if it is shorter than the Hold Time, else a third of the Hold Time.
fn keepalive(config: &PeerConfig, hold_time: Duration) -> Duration {
    match config.keepalive {
        _ if hold_time.is_zero() => Duration::ZERO,
        Some(keepalive) if keepalive < hold_time => keepalive,
        _ => hold_time / 3,
    }
}

fn families(open: &Open) -> FamilySet {
    let mut multiprotocol = false;
    let mut families = FamilySet::EMPTY;
    for capability in &open.capabilities {
        if let Capability::Multiprotocol(family) = capability {
            multiprotocol = true;
            family.family().into_iter().for_each(|family| families.insert(family));
        }
    }
    if !multiprotocol {
        families.insert(Family::Ipv4Unicast);
    }
    families
}

fn is_ipv4_over_ipv6(capability: &Capability) -> bool {
    match capability {
        Capability::ExtendedNextHop(entries) => entries.iter().any(|(family, next_hop_afi)| {
            family.family() == Some(Family::Ipv4Unicast) && *next_hop_afi == Family::Ipv6Unicast.afi()
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> Local {
        Local { asn: Asn(65000), router_id: Ipv4Addr::new(10, 0, 0, 1), restarting: false, forwarding: false }
    }

    fn config() -> PeerConfig {
        PeerConfig::new("192.0.2.1".parse().unwrap(), Asn(4_200_000_000))
    }

    fn theirs() -> Open {
        let local = Local {
            asn: Asn(4_200_000_000),
            router_id: Ipv4Addr::new(10, 0, 0, 2),
            restarting: true,
            forwarding: true,
        };
        offer(&config(), &local, true)
    }

    fn negotiate(config: &PeerConfig, theirs: &Open) -> Result<Negotiated, OpenError> {
        Negotiated::new(config, &offer(config, &local(), false), theirs)
    }

    #[test]
    fn equal_sides_negotiate_every_capability() {
        let agreed = negotiate(&config(), &theirs()).unwrap();
        assert_eq!(agreed.families, FamilySet::ALL);
        assert!(
            agreed.four_octet_as && agreed.extended_message && agreed.ext_next_hop && agreed.route_refresh
        );
        assert_eq!(agreed.hold_time, Duration::from_secs(90));
        assert_eq!(agreed.keepalive, Duration::from_secs(30));
        assert!(!agreed.internal);
        let restart = agreed.graceful_restart.unwrap();
        assert!(restart.restarting);
        assert_eq!(restart.time, Duration::from_secs(120));
        assert_eq!(restart.forwarding, FamilySet::ALL);
    }

    #[test]
    fn a_capability_counts_only_if_both_sides_have_it() {
        for (code, changed) in [
            (2, (|n| !n.route_refresh) as fn(&Negotiated) -> bool),
            (5, |n| !n.ext_next_hop),
            (6, |n| n.max_message() == MAX_MESSAGE),
            (70, |n| !n.enhanced_refresh),
            (64, |n| n.graceful_restart.is_none()),
            (65, |n| !n.four_octet_as),
            (1, |n| n.families == FamilySet::from_iter([Family::Ipv4Unicast])),
        ] {
            let mut theirs = theirs();
            theirs.capabilities.retain(|capability| capability.code() != code);
            assert!(changed(&negotiate(&config(), &theirs).unwrap()), "without capability {code}");
        }
        let mut config = config();
        config.graceful_restart = None;
        assert_eq!(negotiate(&config, &theirs()).unwrap().graceful_restart, None);
    }

    #[test]
    fn hold_time_is_the_shorter_and_keepalive_stays_under_it() {
        let mut config = config();
        for (ours, keepalive, theirs_hold, hold, between) in [
            (90, None, 9, 9, 3),
            (9, Some(4), 90, 9, 4),
            (90, Some(20), 9, 9, 3),
            (0, None, 90, 0, 0),
            (90, Some(5), 0, 0, 0),
        ] {
            config.hold_time = Duration::from_secs(ours);
            config.keepalive = keepalive.map(Duration::from_secs);
            let mut theirs = theirs();
            theirs.hold_time = theirs_hold;
            let agreed = negotiate(&config, &theirs).unwrap();
            assert_eq!((agreed.hold_time.as_secs(), agreed.keepalive.as_secs()), (hold, between));
        }
    }

    #[test]
    fn an_unexpected_peer_is_rejected() {
        let mut wrong_as = theirs();
        wrong_as.my_as = Asn(65001);
        assert!(matches!(negotiate(&config(), &wrong_as), Err(OpenError::PeerAs { .. })));

        let mut same_id = theirs();
        same_id.router_id = local().router_id;
        negotiate(&config(), &same_id).expect("another AS may use the same identifier");
        let mut internal = config();
        internal.remote_as = local().asn;
        same_id.my_as = local().asn;
        assert!(matches!(negotiate(&internal, &same_id), Err(OpenError::Identifier { .. })));

        let mut ipv6_only = config();
        ipv6_only.families = FamilySet::from_iter([Family::Ipv6Unicast]);
        let mut no_mp = theirs();
        no_mp.capabilities.retain(|capability| capability.code() != 1);
        assert!(matches!(negotiate(&ipv6_only, &no_mp), Err(OpenError::MissingCapability { .. })));
    }
}
