//! Second interfaces of a pod: their configuration if another interface has the default route. The
//! other interface may be another program's.
//!
//! The first interface has the default route. A later interface, for a family that already has a
//! default route, does not replace it. It gets:
//!
//! - **routes to the subnets of its Network**, so the pod reaches the other pods of this Network
//!   through it. Their metric is the number of the table below, so any other route to the same
//!   subnet is preferred.
//! - **its own table** with all routes that it would have as the first interface, and a rule that
//!   sends packets from its address to this table. So a reply leaves by the interface with the
//!   address of the request.
//!
//! So the order of ADDs decides, for each family: if a pod's first interface has only IPv4, the
//! second one gets the IPv6 default route. If the first interface is deleted, its default route is
//! deleted too. No other interface gets a default route then, because connections would change
//! their source.
//!
//! A pod with several interfaces of Trunkline ([`super::device::DeviceSpec::several`]) has a table and a
//! rule for its first interface too. Otherwise a packet from the first address to a subnet of another
//! interface would leave by that one, and the host drops packets with the address of another interface.
//!
//! **The kernel is the only record.** An interface is a second one if another interface has the
//! default route, and as long as its rule exists. ADD and CHECK test the same condition. A new pair
//! cannot have a rule or a route yet. So its ADD lists only the main table of the pod's namespace,
//! which is empty for the first interface.
//!
//! Only the rule is not deleted with the interface. The mark `:second` in the pair's alias is
//! written before the rule is added. If the alias has this mark, DEL enters the pod and deletes the
//! rule. Otherwise DEL does not enter the pod. If DEL has no namespace and the namespace continues
//! to exist, the rule refers to an empty table and has no effect.

use ipnet::IpNet;

use super::device::{DeviceError, Step};
use super::namespace::NamespaceConfig;
use crate::family::IpFamily;
use crate::netlink::objects::{self, MAIN_TABLE, PROTOCOL};
use crate::netlink::{Batch, Connection};
use crate::plan::{Hop, RouteTarget, Rule};

/// Table of a second interface in the pod, minus the index of its pod interface. The numbers differ
/// from the host's tables, in case a runtime passes the host's namespace as a pod's.
const FIRST_TABLE: u32 = 1_160_000;

/// The pod interface of a pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Interface index.
    pub(super) index: u32,
    /// Whether it was just created.
    pub(super) new: bool,
}

/// The configuration of an interface that may be a second one. `destinations`: the subnets of its
/// Network.
pub(super) fn settle(
    pod: &mut Connection,
    inside: NamespaceConfig,
    pair: Pair,
    destinations: &[IpNet],
    several: bool,
) -> Result<NamespaceConfig, DeviceError> {
    let table = FIRST_TABLE + pair.index;
    let (mut second, mut first) = (Vec::new(), Vec::new());
    for family in inside.families() {
        let other = |hop: &Hop| hop.ifindex.is_none_or(|index| !inside.has(index));
        let elsewhere =
            |target: &RouteTarget| matches!(target, RouteTarget::Via(hops) if hops.iter().all(other));
        let is_elsewhere = default_routes(pod, family)?.iter().any(elsewhere);
        if is_elsewhere || !several && !pair.new && !rules(pod, family, table)?.is_empty() {
            second.push(family);
        } else if several {
            first.push(family);
        }
    }
    let inside = if first.is_empty() { inside } else { inside.first(&first, table) };
    Ok(if second.is_empty() { inside } else { inside.second(&second, table, destinations) })
}

/// Targets of the default routes in the main table.
fn default_routes(pod: &mut Connection, family: IpFamily) -> Result<Vec<RouteTarget>, DeviceError> {
    let read = |body: &[u8]| {
        let route = objects::read_route(body)?;
        if route.key.table == MAIN_TABLE && route.key.prefix.prefix_len() == 0 { route.target } else { None }
    };
    pod.list(|batch| batch.dump_main_routes(family), read).step("list the routes")
}

/// Deletes the rules of the pair with this index in the pod. The kernel does not delete them with
/// the pair.
pub(super) fn delete_rules(pod: &mut Connection, pair: u32) -> Result<(), DeviceError> {
    let mut batch = Batch::new();
    for family in IpFamily::ALL {
        for rule in rules(pod, family, FIRST_TABLE + pair)? {
            batch.delete_rule(&rule);
        }
    }
    pod.run(&mut batch).step("delete the interface's rules")?;
    Ok(())
}

/// Trunkline's rules that refer to a table.
pub(super) fn rules(pod: &mut Connection, family: IpFamily, table: u32) -> Result<Vec<Rule>, DeviceError> {
    let own = |body: &[u8]| {
        let info = objects::read_rule(body)?;
        (info.protocol == PROTOCOL && info.rule.table == table).then_some(info.rule)
    };
    pod.list(|batch| batch.dump_rules(family), own).step("list the rules")
}
