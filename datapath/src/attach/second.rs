//! A pod's further interfaces: what one gets where another, Trunkline's or anybody's, has the default route.
//!
//! The first interface has it. One that comes later, for a family in which somebody has it, leaves it there and gets:
//!
//! - **routes to the subnets of its Network**, so that its pods are reached by it without further ado. Their metric is the number of
//!   the table below, which lets any other route to the same subnet go first;
//! - **a table of its own** with everything that it would have had as the first, and a rule by which packets from its address take that:
//!   whoever is asked at an address answers from it, by the interface that has it.
//!
//! So the order of ADDs decides, family by family: a pod whose first interface is IPv4 alone has the second one's IPv6 default
//! route. When the first interface goes its default route goes with it, and no other takes it over: connections would change their source.
//!
//! **The kernel knows all of this**, and so it is not recorded. An interface is a second one where somebody else has the default route, and
//! stays one as long as its rule is there; ADD and CHECK ask the same question. A pair that was just made can have no rule and no route
//! yet, so its ADD asks for the main table alone: of the pod's namespace, where it is empty for the first interface.
//!
//! The rule is the one thing that does not go with the interface. The mark `:second` in the pair's alias, which is there before the rule
//! is, tells DEL to enter the pod and take it; no other DEL does. Where DEL comes without the namespace, and that lives on, the rule leads to
//! an empty table, which is as good as none.

use ipnet::IpNet;

use super::device::{DeviceError, Step};
use super::namespace::NamespaceConfig;
use crate::family::IpFamily;
use crate::netlink::objects::{self, MAIN_TABLE, PROTOCOL};
use crate::netlink::{Batch, Connection};
use crate::plan::{Hop, RouteTarget, Rule};

/// Plus the index of the pair's end in the pod: the interface's table there. Far from the host's, should a runtime take the host's namespace
/// for a pod's.
const FIRST_TABLE: u32 = 1_160_000;

/// The pair's end in the pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Its index.
    pub(super) index: u32,
    /// It was just made.
    pub(super) new: bool,
}

/// What an interface should have where it may not be the first. `destinations`: the subnets of its Network.
pub(super) fn settle(
    pod: &mut Connection,
    inside: NamespaceConfig,
    pair: Pair,
    destinations: &[IpNet],
) -> Result<NamespaceConfig, DeviceError> {
    let table = FIRST_TABLE + pair.index;
    let mut second = Vec::new();
    for family in inside.families() {
        let other = |hop: &Hop| hop.ifindex.is_none_or(|index| !inside.has(index));
        let elsewhere =
            |target: &RouteTarget| matches!(target, RouteTarget::Via(hops) if hops.iter().all(other));
        if default_routes(pod, family)?.iter().any(elsewhere)
            || !pair.new && !rules(pod, family, table)?.is_empty()
        {
            second.push(family);
        }
    }
    Ok(if second.is_empty() { inside } else { inside.second(&second, table, destinations) })
}

/// Where the default routes of the main table lead.
fn default_routes(pod: &mut Connection, family: IpFamily) -> Result<Vec<RouteTarget>, DeviceError> {
    let read = |body: &[u8]| {
        let route = objects::read_route(body)?;
        if route.key.table == MAIN_TABLE && route.key.prefix.prefix_len() == 0 { route.target } else { None }
    };
    pod.list(|batch| batch.dump_main_routes(family), read).step("list the routes")
}

/// Takes away what would not go with the pair, whose end in the pod has this index.
pub(super) fn forget(pod: &mut Connection, pair: u32) -> Result<(), DeviceError> {
    let mut batch = Batch::new();
    for family in IpFamily::ALL {
        for rule in rules(pod, family, FIRST_TABLE + pair)? {
            batch.delete_rule(&rule);
        }
    }
    pod.run(&mut batch).step("delete the interface's rules")?;
    Ok(())
}

/// Own rules that lead to a table.
pub(super) fn rules(pod: &mut Connection, family: IpFamily, table: u32) -> Result<Vec<Rule>, DeviceError> {
    let own = |body: &[u8]| {
        let info = objects::read_rule(body)?;
        (info.protocol == PROTOCOL && info.rule.table == table).then_some(info.rule)
    };
    pod.list(|batch| batch.dump_rules(family), own).step("list the rules")
}
