//! Default routes of BGP networks: from the last run, and installed by this run.

use std::collections::{BTreeMap, BTreeSet};

use crate::family::IpFamily;

use super::Owner;
use crate::plan::{Hop, RouteKey, RouteTarget, SUBNET_RULE};

impl Owner {
    /// Default routes found at the start that are in no plan yet, in the tables of subnets' rules.
    pub(super) fn found_defaults(&self) -> BTreeMap<RouteKey, RouteTarget> {
        let rules = self.found_rules.iter().chain(&self.rules).filter(|rule| rule.priority == SUBNET_RULE);
        let keys: BTreeSet<RouteKey> =
            rules.map(|rule| RouteKey::default_route(rule.table, rule.family)).collect();
        let found = |key: RouteKey| Some((key, self.found.get(&key)?.0.clone()?));
        keys.into_iter().filter_map(found).collect()
    }

    /// The next hops of a table's installed default routes.
    pub(super) fn ways_out(&self, table: u32) -> BTreeMap<IpFamily, (u32, Vec<Hop>)> {
        let installed = |family| {
            let key = RouteKey::default_route(table, family);
            let route = self.routes.get(&key).and_then(|entry| entry.installed());
            // Until the plan has the route, use the route of the last run.
            let route = route.or_else(|| self.found.get(&key)?.0.as_ref());
            (family, (table, route.map(|route| route.hops().to_vec()).unwrap_or_default()))
        };
        IpFamily::ALL.into_iter().map(installed).collect()
    }
}
