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
//! stays one as long as its rule is there; ADD and CHECK ask the same question. The rule is the one thing that does not go with
//! the interface. DEL takes it if it comes with the namespace; in a namespace that lives on without, it leads to an empty table,
//! which is as good as none.

use ipnet::IpNet;
use trunkline_bgp::types::Family;

use super::check;
use super::device::{DeviceError, Step};
use super::inside::Inside;
use crate::kernel::netlink::objects::{self, MAIN_TABLE, PROTOCOL};
use crate::kernel::netlink::{Batch, Connection};
use crate::plan::{Hop, RouteTarget, Rule};

/// Plus the index of the pair's end in the pod: the interface's table there. Far from the host's, should a runtime take the host's namespace
/// for a pod's.
const FIRST_TABLE: u32 = 1_160_000;

/// What an interface should have where it may not be the first. `pair`: index of the pair's end in the pod; `destinations`: the subnets
/// of its Network.
pub(super) fn settle(
    pod: &mut Connection,
    inside: Inside,
    pair: u32,
    destinations: &[IpNet],
) -> Result<Inside, DeviceError> {
    let table = FIRST_TABLE + pair;
    let mut second = Vec::new();
    for family in inside.families() {
        let other = |hop: &Hop| hop.ifindex.is_none_or(|index| !inside.has(index));
        let elsewhere =
            |target: &RouteTarget| matches!(target, RouteTarget::Via(hops) if hops.iter().all(other));
        let routes = check::routes(pod, family)?;
        let mut defaults = routes.iter().filter(|(at, to, _)| *at == MAIN_TABLE && to.prefix_len() == 0);
        if defaults.any(|(.., target)| elsewhere(target)) || !rules(pod, family, table)?.is_empty() {
            second.push(family);
        }
    }
    Ok(if second.is_empty() { inside } else { inside.second(&second, table, destinations) })
}

/// Takes away what would not go with the pair, whose end in the pod has this index.
pub(super) fn forget(pod: &mut Connection, pair: u32) -> Result<(), DeviceError> {
    let mut batch = Batch::new();
    for family in Family::ALL {
        for rule in rules(pod, family, FIRST_TABLE + pair)? {
            batch.delete_rule(&rule);
        }
    }
    pod.run(&mut batch).step("delete the interface's rules")?;
    Ok(())
}

/// Own rules that lead to a table.
pub(super) fn rules(pod: &mut Connection, family: Family, table: u32) -> Result<Vec<Rule>, DeviceError> {
    let own = |body: &[u8]| {
        let info = objects::read_rule(body)?;
        (info.protocol == PROTOCOL && info.rule.table == table).then_some(info.rule)
    };
    pod.list(|batch| batch.dump_rules(family), own).step("list the rules")
}
