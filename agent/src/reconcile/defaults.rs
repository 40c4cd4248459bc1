//! Default routes of BGP networks that a plan takes away, and those that come back, as events: without one, what pods send to other networks does not
//! leave the node. Learned default routes are in no plan; [`crate::history::History::learned`] records these.

use std::collections::BTreeSet;

use ipnet::IpNet;
use trunkline_api::control::EventKind;
use trunkline_bgp::types::Family;

use crate::plan::{Mode, Plan, RouteKey, default_prefix};

/// Networks that have lost a default route.
#[derive(Debug, Default)]
pub(super) struct Defaults {
    lost: BTreeSet<(String, Family)>,
}

impl Defaults {
    /// What a plan changes: kind, prefix and text of each event.
    pub(super) fn change(&mut self, before: Option<&Plan>, after: &Plan) -> Vec<(EventKind, IpNet, String)> {
        let (had, has) = (before.map(defaults).unwrap_or_default(), defaults(after));
        let mut events = Vec::new();
        for (name, family) in had.difference(&has) {
            // A network that went away, or imports its routes from now on, has lost nothing.
            if !follows_sessions(after, name) {
                continue;
            }
            self.lost.insert((name.clone(), *family));
            let text = format!(
                "network {name}: no {family} default route is left: no peer with a next hop for it is up"
            );
            events.push((EventKind::DefaultLost, default_prefix(*family), text));
        }
        for (name, family) in has {
            if self.lost.remove(&(name.clone(), family)) {
                let text = format!("network {name}: the {family} default route is back");
                events.push((EventKind::DefaultBack, default_prefix(family), text));
            }
        }
        self.lost.retain(|(name, _)| after.networks.contains_key(name));
        events
    }
}

/// Whether the default routes of a network lead to the established peers.
fn follows_sessions(plan: &Plan, name: &str) -> bool {
    let learned = plan.kernel.learned.as_ref().map(|learned| learned.table);
    plan.networks.get(name).is_some_and(|network| {
        let is_bgp = matches!(network.mode, Mode::Bgp | Mode::GlobalBgp);
        is_bgp && network.refused.is_none() && network.table().is_some_and(|table| Some(table) != learned)
    })
}

fn defaults(plan: &Plan) -> BTreeSet<(String, Family)> {
    let mut found = BTreeSet::new();
    for (name, network) in plan.networks.iter().filter(|(name, _)| follows_sessions(plan, name)) {
        let Some(table) = network.table() else { continue };
        let there =
            |family: &Family| plan.kernel.routes.contains_key(&RouteKey::default_route(table, *family));
        found.extend(Family::ALL.into_iter().filter(there).map(|family| (name.clone(), family)));
    }
    found
}
