//! Records changes of the default routes of BGP networks as events. These are: routes that a plan
//! removes or adds again, peers that become or stop being next hops, and the last peer that offers
//! a default route. Learned default routes are in no plan; [`crate::history::History::learned`]
//! records these.

use std::collections::BTreeSet;

use ipnet::IpNet;
use trunkline_api::control::EventKind;
use trunkline_bgp::types::Family;
use trunkline_datapath::plan::{RouteKey, default_prefix};

use crate::family::ip_family;
use crate::plan::selection::{Basis, Cause, ExcludedPeer};
use crate::plan::{DefaultRouteSelection, Mode, Plan};

/// The reported losses that have not ended.
#[derive(Debug, Default)]
pub(super) struct LostDefaultRoutes {
    /// Networks that have lost a default route.
    lost: BTreeSet<(String, Family)>,
    /// Peers that are not next hops.
    left_out: BTreeSet<(Family, String)>,
    /// Families in which the last peer has withdrawn its default route.
    unoffered: BTreeSet<Family>,
}

/// An event for the history.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) kind: EventKind,
    pub(super) peer: Option<String>,
    pub(super) prefix: IpNet,
    pub(super) text: String,
}

impl LostDefaultRoutes {
    /// The events for the changes between two plans.
    pub(super) fn change(&mut self, before: Option<&Plan>, after: &Plan) -> Vec<Change> {
        let (had, has) = (before.map(defaults).unwrap_or_default(), defaults(after));
        let mut changes = Vec::new();
        let of_network =
            |kind, family, text| Change { kind, peer: None, prefix: default_prefix(ip_family(family)), text };
        for (name, family) in had.difference(&has) {
            // A network that was removed, or now imports its routes, has lost nothing.
            if !follows_sessions(after, name) {
                continue;
            }
            self.lost.insert((name.clone(), *family));
            let text = format!(
                "network {name}: no {family} default route is left, because no established peer has a next hop for this family"
            );
            changes.push(of_network(EventKind::DefaultLost, *family, text));
        }
        for (name, family) in has {
            if self.lost.remove(&(name.clone(), family)) {
                let text = format!("network {name}: the {family} default route is back");
                changes.push(of_network(EventKind::DefaultBack, family, text));
            }
        }
        self.lost.retain(|(name, _)| after.networks.contains_key(name));
        for (family, way) in &after.ways_out {
            let before = before.and_then(|before| before.ways_out.get(family));
            changes.extend(self.change_way(before, *family, way));
        }
        changes
    }

    fn change_way(
        &mut self,
        before: Option<&DefaultRouteSelection>,
        family: Family,
        way: &DefaultRouteSelection,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut add = |kind, peer: Option<&str>, text| {
            changes.push(Change {
                kind,
                peer: peer.map(str::to_owned),
                prefix: default_prefix(ip_family(family)),
                text,
            });
        };
        let names = way.names();
        // A peer with routes still to come is not reported, because it will soon be a next hop. A
        // peer without a default route is reported only while another peer advertises one.
        let known = |out: &&ExcludedPeer| match out.cause {
            Cause::Pending => false,
            Cause::ProbeFault => true,
            Cause::Withdrawn | Cause::NotOffered => way.basis == Basis::Offered,
        };
        for out in way.left_out.iter().filter(known) {
            if self.left_out.insert((family, out.peer.clone())) {
                let text =
                    format!("{}: pods' {family} packets use {names} and not this peer", out.cause.words());
                add(EventKind::NextHopOut, Some(&out.peer), text);
            }
        }
        for (peer, _) in &way.next_hops {
            if self.left_out.remove(&(family, peer.clone())) {
                add(EventKind::NextHopIn, Some(peer), format!("pods' {family} packets use {names} again"));
            }
        }
        let had = before.filter(|before| !before.next_hops.is_empty()).map(|before| before.basis);
        match (had, way.basis) {
            (Some(Basis::Offered), Basis::Configured) if !way.next_hops.is_empty() => {
                self.unoffered.insert(family);
                let text = format!(
                    "no peer advertises a default route of {family} any more: pods' packets still use {names}, as configured"
                );
                add(EventKind::DefaultLost, None, text);
            }
            (_, Basis::Offered) if self.unoffered.remove(&family) => {
                let text = format!("{names} advertises a default route of {family} again");
                add(EventKind::DefaultBack, None, text);
            }
            _ => {}
        }
        changes
    }
}

/// Whether the default routes of a network lead to the established peers.
fn follows_sessions(plan: &Plan, name: &str) -> bool {
    let learned = plan.kernel.learned;
    plan.networks.get(name).is_some_and(|network| {
        let is_bgp = matches!(network.mode, Mode::Bgp | Mode::GlobalBgp);
        is_bgp && network.refused.is_none() && network.table().is_some_and(|table| Some(table) != learned)
    })
}

fn defaults(plan: &Plan) -> BTreeSet<(String, Family)> {
    let mut found = BTreeSet::new();
    for (name, network) in plan.networks.iter().filter(|(name, _)| follows_sessions(plan, name)) {
        let Some(table) = network.table() else { continue };
        let there = |family: &Family| {
            plan.kernel.routes.contains_key(&RouteKey::default_route(table, ip_family(*family)))
        };
        found.extend(Family::ALL.into_iter().filter(there).map(|family| (name.clone(), family)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_datapath::plan::Hop;

    const V4: Family = Family::Ipv4Unicast;

    fn plan(basis: Basis, used: &[&str], out: &[(&str, Cause)]) -> Plan {
        let hop = |peer: &&str| ((*peer).to_owned(), Hop::to(peer.parse().unwrap()));
        let left_out =
            |(peer, cause): &(&str, Cause)| ExcludedPeer { peer: (*peer).to_owned(), cause: *cause };
        let way = DefaultRouteSelection {
            table: 10_000,
            basis,
            next_hops: used.iter().map(hop).collect(),
            left_out: out.iter().map(left_out).collect(),
        };
        Plan { ways_out: [(V4, way)].into(), ..Plan::default() }
    }

    #[test]
    fn each_change_of_the_next_hops_is_one_event() {
        let (a, b) = ("192.0.2.1", "192.0.2.3");
        let mut defaults = LostDefaultRoutes::default();
        let mut before = None;
        let mut then = |basis, used: &[&str], out: &[(&str, Cause)]| {
            let after = plan(basis, used, out);
            let changes = defaults.change(before.as_ref(), &after);
            before = Some(after);
            let words = changes.into_iter().map(|change| {
                let peer = change.peer.map(|peer| format!(" {peer}")).unwrap_or_default();
                format!("{}{peer}: {}", change.kind.name(), change.text)
            });
            words.collect::<Vec<_>>()
        };
        assert_eq!(then(Basis::Configured, &[a, b], &[]), [""; 0]);
        assert_eq!(
            then(Basis::Offered, &[a], &[(b, Cause::Pending)]),
            [""; 0],
            "a pending peer is not reported"
        );
        assert_eq!(then(Basis::Offered, &[a, b], &[]), [""; 0]);
        let out = [(b, Cause::Withdrawn)];
        assert_eq!(
            then(Basis::Offered, &[a], &out),
            [
                "nextHopOut 192.0.2.3: withdrew its default route: pods' ipv4-unicast packets use 192.0.2.1 and not this peer"
            ]
        );
        assert_eq!(then(Basis::Offered, &[a], &out), [""; 0]);
        // The session is lost and then established again.
        assert_eq!(then(Basis::Offered, &[a], &[]), [""; 0]);
        assert_eq!(then(Basis::Offered, &[a], &[(b, Cause::Pending)]), [""; 0]);
        assert_eq!(
            then(Basis::Offered, &[a, b], &[]),
            ["nextHopIn 192.0.2.3: pods' ipv4-unicast packets use 192.0.2.1, 192.0.2.3 again"]
        );
        // Both peers withdraw their default routes, one after the other.
        then(Basis::Offered, &[a], &out);
        assert_eq!(
            then(Basis::Configured, &[a, b], &[]),
            [
                "nextHopIn 192.0.2.3: pods' ipv4-unicast packets use 192.0.2.1, 192.0.2.3 again",
                "defaultLost: no peer advertises a default route of ipv4-unicast any more: pods' packets still use \
                 192.0.2.1, 192.0.2.3, as configured"
            ]
        );
        assert_eq!(
            then(Basis::Offered, &[b], &[(a, Cause::Withdrawn)]),
            [
                "nextHopOut 192.0.2.1: withdrew its default route: pods' ipv4-unicast packets use 192.0.2.3 and not this peer",
                "defaultBack: 192.0.2.3 advertises a default route of ipv4-unicast again"
            ]
        );
    }
}
