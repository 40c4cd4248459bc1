//! The faults that a router's checks show. If a fault causes others, only the cause is reported, so
//! one fault has one name.

use std::collections::BTreeMap;
use std::net::IpAddr;

use trunkline_api::control::{ProbeFault, ProbeFaultKind};

use super::schedule::CheckName;
use super::state::State;

/// The subject of a fault's text.
pub(super) struct FaultSubject<'a> {
    pub(super) peer: &'a str,
    pub(super) family: &'a str,
    pub(super) link: &'a str,
    /// The pod with the probed addresses.
    pub(super) pod: Option<IpAddr>,
    /// Octets of a large packet.
    pub(super) size: usize,
    /// The next hop and this node's address on its link, for commands.
    pub(super) gateway: IpAddr,
}

/// The faults that the checks show. `alone`: no other router of the family is probed.
/// `others_reach_targets`: another router reaches a target.
pub(super) fn kinds(
    checks: &BTreeMap<CheckName, State>,
    alone: bool,
    others_reach_targets: bool,
) -> Vec<ProbeFaultKind> {
    let state = |name: CheckName| checks.get(&name).copied().unwrap_or(State::Unproven);
    let failing = |name: CheckName| state(name) == State::Failing;
    let small = [CheckName::Peer, CheckName::ToPods, CheckName::FromPods];
    let any_good = small.iter().any(|name| state(*name) == State::Good);
    // A router without an echo reply proves nothing: many routers limit or filter ICMP to
    // themselves.
    if (failing(CheckName::ToPods) || failing(CheckName::FromPods)) && !any_good {
        return vec![ProbeFaultKind::Silent];
    }
    let mut found = Vec::new();
    found.extend(failing(CheckName::ToPods).then_some(ProbeFaultKind::ToPods));
    found.extend(failing(CheckName::FromPods).then_some(ProbeFaultKind::FromPods));
    if !found.is_empty() {
        return found;
    }
    if failing(CheckName::Size) {
        return vec![ProbeFaultKind::Size];
    }
    if failing(CheckName::Target) {
        // Targets that no router reaches are down themselves, and prove no fault of a router.
        let by_this_router = alone || others_reach_targets;
        return Vec::from_iter(by_this_router.then_some(ProbeFaultKind::Target));
    }
    Vec::from_iter(failing(CheckName::TargetSize).then_some(ProbeFaultKind::TargetSize))
}

/// The text of a fault.
pub(super) fn words(kind: ProbeFaultKind, about: &FaultSubject<'_>) -> ProbeFault {
    let FaultSubject { peer, family, link, size, gateway, .. } = about;
    let pod = about.pod.map_or_else(|| "the pods".to_owned(), |pod| format!("pod {pod}"));
    let (text, fix) = match kind {
        ProbeFaultKind::Silent => (
            format!("no probe through peer {peer} on {link} returns ({family}), although its session is up"),
            format!(
                "look for loss in one direction: counters of {link} (`ip -s link show {link}`) and of the router's port, filters on both sides; \
                 `bfd` in the peer's manifest ends such a session within a second"
            ),
        ),
        ProbeFaultKind::ToPods => (
            format!(
                "peer {peer} on {link} does not forward packets for {pod} to this node ({family}): it rejects the pods' routes, or filters packets to pods"
            ),
            format!(
                "compare the routes that the router has accepted with `trunkline routes --advertised {peer}`: prefix lists, route maps and \
                 maximum-prefix of its side, then its packet filters"
            ),
        ),
        ProbeFaultKind::FromPods => (
            format!("peer {peer} on {link} drops packets from {pod} ({family})"),
            "look at the router's packet filters and source checks (uRPF, IP source guard) on the port to this node: pods' prefixes must pass"
                .to_owned(),
        ),
        ProbeFaultKind::Size => (
            format!(
                "peer {peer} on {link} loses packets of {size} octets and passes small ones ({family}): an MTU on the path is smaller than the pods'"
            ),
            format!(
                "set the MTU of the router's port to {size} or more, or the MTU of {link} to the \
                 router's; `ping -M do -s {} {gateway}` shows the limit",
                size.saturating_sub(if gateway.is_ipv4() { 28 } else { 48 })
            ),
        ),
        ProbeFaultKind::Target => (
            format!("no other node answers {pod} through peer {peer} on {link} ({family})"),
            "follow the path beyond the router: its uplinks, its routes to the other nodes' addresses, filters on pods' prefixes in the fabric"
                .to_owned(),
        ),
        ProbeFaultKind::TargetSize => (
            format!(
                "other nodes answer small packets of {pod} through peer {peer} on {link} and none of {size} octets ({family}): an MTU beyond the router is smaller"
            ),
            format!("compare the MTUs of the router's uplinks and of the spines with {size}"),
        ),
    };
    ProbeFault { kind, text, fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(checks: &[(CheckName, State)]) -> Vec<ProbeFaultKind> {
        kinds(&checks.iter().copied().collect(), false, true)
    }

    #[test]
    fn one_fault_has_one_name() {
        use CheckName::{FromPods, Peer, Size, Target, TargetSize, ToPods};
        use State::{Failing, Good, Unproven};
        let all = |state| [Peer, ToPods, FromPods, Size, Target, TargetSize].map(|name| (name, state));
        assert!(found(&all(Good)).is_empty() && found(&all(Unproven)).is_empty());
        assert_eq!(found(&all(Failing)), [ProbeFaultKind::Silent]);
        let (silent_cpu, mtu) = ([(Peer, Failing), (ToPods, Good)], [(ToPods, Good), (Size, Failing)]);
        assert!(
            found(&silent_cpu).is_empty(),
            "the router forwards packets, and only does not answer echo requests"
        );
        assert!(
            found(&[(Peer, Failing)]).is_empty(),
            "without a pod, the router's missing answer proves no fault"
        );
        assert_eq!(found(&mtu), [ProbeFaultKind::Size]);
        let filtered =
            [(Peer, Good), (ToPods, Failing), (FromPods, Good), (Size, Failing), (Target, Failing)];
        assert_eq!(found(&filtered), [ProbeFaultKind::ToPods]);
        let guarded = [(Peer, Good), (ToPods, Good), (FromPods, Failing), (Target, Failing)];
        assert_eq!(found(&guarded), [ProbeFaultKind::FromPods]);
        let beyond =
            [(Peer, Good), (ToPods, Good), (FromPods, Good), (Target, Failing), (TargetSize, Failing)];
        assert_eq!(found(&beyond), [ProbeFaultKind::Target]);
        let beyond: BTreeMap<_, _> = beyond.into();
        assert!(kinds(&beyond, false, false).is_empty(), "the target is down");
        assert_eq!(kinds(&beyond, true, false), [ProbeFaultKind::Target]);
        let last = [(ToPods, Good), (Target, Good), (TargetSize, Failing)];
        assert_eq!(found(&last), [ProbeFaultKind::TargetSize]);
    }
}
