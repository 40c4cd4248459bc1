//! Pools: their status and conditions, and events about their faults.

use std::sync::Arc;

use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use trunkline_api::kube::{Kind as _, Lenient};
use trunkline_api::names::condition::{FULL, READY};
use trunkline_api::resources::{
    Condition, ConditionStatus, Count, IpVersion, ServicePoolSpec, ServicePoolStatus,
};

use super::ServiceTerm;
use super::ipam::{FamilyUsage, ForeignSpan, PoolFault};
use super::rows::PoolRow;
use crate::events::reason;
use crate::reconcile::{Context, ReconcileResult, reference, written};

/// Updates the status of a pool, and reports why it is not served.
pub async fn reconcile(context: Context, name: Arc<str>) -> ReconcileResult {
    let found = {
        let mut state = context.shared.lock();
        let state = &mut *state;
        state.services.refresh(&state.cluster);
        let term = state.services.term.as_ref();
        let row = state.services.rows.pools.get(&name);
        row.zip(term).map(|(row, term)| {
            let status = status(&name, row, term, Timestamp::now());
            let changed = (row.status.as_ref() != Some(&status)).then_some(status);
            (changed, warning(&name, row, term), Arc::clone(&row.uid))
        })
    };
    let Some((changed, warning, uid)) = found else { return Ok(()) };
    if let Some(text) = warning {
        let about = reference(ServicePoolSpec::KIND, &ServicePoolSpec::api_version(), None, &name, &uid);
        context.events.warning(about, reason::NOT_SERVED, text);
    }
    let Some(status) = changed else { return Ok(()) };
    // The object in the answer may be unreadable.
    let api: Api<Lenient<ServicePoolSpec>> = Api::all(context.client.clone());
    let patch = Patch::Merge(json!({ "metadata": { "uid": &*uid }, "status": status }));
    let answer = context.write(api.patch_status(&name, &PatchParams::default(), &patch)).await;
    written(answer, || format!("the status of ServicePool {name} was not written"))
}

/// The fault of a pool that allocates nothing, or fewer addresses than it has.
fn warning(name: &str, row: &PoolRow, term: &ServiceTerm) -> Option<String> {
    let text = unreadable(row).or_else(|| term.ipam.fault(name).map(PoolFault::to_string));
    text.or_else(|| foreign(name, term)).or_else(|| ignored(name, term))
}

fn unreadable(row: &PoolRow) -> Option<String> {
    let text = row.unreadable.as_ref()?;
    let last = if row.settings.blocks.is_empty() {
        "this pool allocates no address"
    } else {
        "the last readable settings stay in force"
    };
    Some(format!("{text}: {last}"))
}

/// The addresses of the pool that Subnets and Nodes have.
fn foreign(name: &str, term: &ServiceTerm) -> Option<String> {
    let definition = term.ipam.definition(name).filter(|pool| !pool.is_l2)?;
    let (owner, addresses) = first_of(&definition.foreign)?;
    Some(format!(
        "{owner} has {addresses}: this pool does not allocate these addresses: remove them from spec.addresses"
    ))
}

/// The addresses of the pool that younger Nodes claim.
fn ignored(name: &str, term: &ServiceTerm) -> Option<String> {
    let (owner, addresses) = first_of(&term.ipam.definition(name)?.ignored)?;
    Some(format!(
        "{owner}, which is younger than this pool, claims {addresses}: this pool allocates them all the same: \
         correct the addresses of the Node, or remove them from spec.addresses"
    ))
}

/// The owner of the first span, the span, and the number of the others.
fn first_of(spans: &[ForeignSpan]) -> Option<(&str, String)> {
    let first = spans.first()?;
    let more = match spans.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some((&first.owner, format!("{}{more}", first.span)))
}

/// Computes the status.
fn status(name: &str, row: &PoolRow, term: &ServiceTerm, now: Timestamp) -> ServicePoolStatus {
    let usage = term.ipam.usage(name).unwrap_or_default();
    let has = |version| row.settings.blocks.iter().any(|block| block.version() == version);
    let count = |version| has(version).then(|| count(usage.of(version)));
    let sum = |field: fn(FamilyUsage) -> u32| i64::from(field(usage.v4)) + i64::from(field(usage.v6));
    let available = sum(|usage| usage.available);
    let (ready, ready_reason, message) = if let Some(text) = unreadable(row) {
        (ConditionStatus::False, "Unreadable", text)
    } else if let Some(fault) = term.ipam.fault(name) {
        (ConditionStatus::False, "Overlap", fault.to_string())
    } else if let Some(text) = foreign(name, term) {
        (ConditionStatus::True, "PartlyForeign", text)
    } else if let Some(text) = ignored(name, term) {
        (ConditionStatus::True, "NodeIgnored", text)
    } else {
        (ConditionStatus::True, "Served", String::new())
    };
    let full = [IpVersion::V4, IpVersion::V6]
        .into_iter()
        .filter(|version| has(*version))
        .any(|version| usage.of(version).available == 0);
    let (full, full_reason, full_message) = if full {
        let text = "no address is free in one of its families: add addresses, or delete Services";
        (ConditionStatus::True, "Exhausted", text.to_owned())
    } else {
        (ConditionStatus::False, "AddressesFree", String::new())
    };
    let before = row.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let condition = |kind: &str, status, reason: &str, message| {
        let same = before.iter().find(|one| one.condition_type == kind && one.status == status);
        Condition {
            condition_type: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            last_transition_time: same.map_or_else(
                || now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                |same| same.last_transition_time.clone(),
            ),
            observed_generation: None,
        }
    };
    ServicePoolStatus {
        total: sum(|usage| usage.total),
        allocated: sum(|usage| usage.allocated),
        available,
        ipv4: count(IpVersion::V4),
        ipv6: count(IpVersion::V6),
        conditions: vec![
            condition(READY, ready, ready_reason, message),
            condition(FULL, full, full_reason, full_message),
        ],
        observed_generation: row.generation,
    }
}

fn count(usage: FamilyUsage) -> Count {
    Count { total: usage.total.into(), used: usage.allocated.into(), available: usage.available.into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::super::{ServiceQueues, ServiceState};
    use super::*;
    use crate::cluster::{Cluster, NodeRow};
    use crate::state::ControllerState;

    fn pool(name: &str, created: &str, spec: Value) -> (Arc<str>, PoolRow) {
        let object: Lenient<ServicePoolSpec> = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": created, "generation": 3}, "spec": spec,
        }))
        .unwrap();
        (name.into(), PoolRow::of(&object, None))
    }

    /// A Node with `count` addresses from 10.0.0.0 on.
    fn node(name: &str, created: &str, count: u32) -> NodeRow {
        let address = |number: u32| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + number);
            json!({"type": "InternalIP", "address": address.to_string()})
        };
        let addresses: Vec<Value> = (0..count).map(address).collect();
        let object = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": created},
            "status": {"addresses": addresses},
        });
        NodeRow::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_node_cannot_empty_a_pool_by_its_addresses() {
        let (early, middle, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z");
        let mut state = ControllerState::default();
        let (name, row) = pool("a", middle, json!({"addresses": ["10.0.0.0/24"]}));
        state.services.set_pool(&name, row);
        let queues = ServiceQueues::new(Duration::ZERO);
        state.services.begin_term(&state.cluster, Arc::clone(&queues));
        let look = |state: &mut ControllerState| {
            state.services.refresh(&state.cluster);
            let term = state.services.term.as_ref().unwrap();
            let now = late.parse().unwrap();
            let status = status(&name, state.services.rows.pools.get(&name).unwrap(), term, now);
            let text = format!("{} {}", status.conditions[0].reason, status.conditions[0].message);
            (
                status.total,
                text,
                warning(&name, state.services.rows.pools.get(&name).unwrap(), term).is_some(),
            )
        };
        assert_eq!(look(&mut state), (256, "Served ".to_owned(), false));
        // The kubelet of a younger Node.
        state.set_node(&"young".into(), node("young", late, 256));
        let (total, text, is_reported) = look(&mut state);
        assert!(total == 256 && is_reported, "{total}");
        let words = "NodeIgnored Node young, which is younger than this pool, claims 10.0.0.0 and 15 more: ";
        assert!(text.starts_with(words), "{text}");
        // The kubelet of an older Node.
        state.set_node(&"old".into(), node("old", early, 256));
        let (total, text, _) = look(&mut state);
        assert_eq!(total, 240, "{text}");
        assert!(text.starts_with("PartlyForeign Node old has 10.0.0.0 and 15 more: "), "{text}");
        state.remove_node(&"old".into());
        assert_eq!(look(&mut state).0, 256);
    }

    #[test]
    fn addresses_of_nodes_outside_of_pools_cause_no_work() {
        let early = "2026-01-01T00:00:00Z";
        let mut state = ControllerState::default();
        let (name, row) = pool("a", early, json!({"addresses": ["10.9.0.0/24"]}));
        state.services.set_pool(&name, row);
        state.services.begin_term(&state.cluster, ServiceQueues::new(Duration::ZERO));
        state.services.refresh(&state.cluster);
        let waits = crate::cluster::Key::new("shop", "web");
        state.services.term.as_mut().unwrap().waiting.insert(&waits, []);
        for count in [1, 5, 0, 16] {
            state.set_node(&"n1".into(), node("n1", early, count));
        }
        state.remove_node(&"n1".into());
        let waiting = &state.services.term.as_ref().unwrap().waiting;
        assert!(waiting.len() == 1 && !waiting.has_all_changed(), "no Service is tried again");
    }

    #[test]
    fn conditions_name_fault_and_fix() {
        let mut services = ServiceState::default();
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        for (name, row) in [
            pool("a", late, json!({"addresses": ["10.0.0.0/28"]})),
            pool("b", early, json!({"addresses": ["10.0.0.8-10.0.0.9", "fd00::/120"]})),
            pool("c", early, json!({"addresses": ["10.9.0.0/30"], "exclude": ["10.9.0.0/30"]})),
            pool("d", early, json!({"addresses": ["10.8.0.9-10.8.0.1"]})),
        ] {
            services.set_pool(&name, row);
        }
        services.begin_term(&Cluster::default(), ServiceQueues::new(Duration::ZERO));
        let term = services.term.as_ref().unwrap();
        let at = |time: &str| time.parse::<Timestamp>().unwrap();
        let of = |name: &str| {
            status(name, services.rows.pools.get(name).unwrap(), term, at("2026-02-01T00:00:00Z"))
        };
        let text = |status: &ServicePoolStatus| {
            let conditions = status.conditions.iter();
            conditions
                .map(|one| format!("{:?} {} {}", one.status, one.reason, one.message))
                .collect::<Vec<_>>()
        };
        let a = of("a");
        assert_eq!((a.total, a.available, a.observed_generation), (0, 0, Some(3)));
        let words = "10.0.0.0/28 overlaps 10.0.0.8/31 of ServicePool b, which is older: this pool allocates no address";
        assert!(text(&a)[0].starts_with("False Overlap") && text(&a)[0].contains(words), "{a:?}");
        let b = of("b");
        assert_eq!((b.total, b.allocated, b.available), (258, 0, 258));
        assert_eq!(text(&b), ["True Served ", "False AddressesFree "]);
        assert!(text(&of("c"))[1].starts_with("True Exhausted no address is free"), "{:?}", of("c"));
        let words = "False Unreadable spec.addresses: 10.8.0.9 is after 10.8.0.1: write 10.8.0.1-10.8.0.9: \
            this pool allocates no address";
        assert_eq!(text(&of("d"))[0], words);

        // The time of a condition is that of its last change.
        let mut row = services.rows.pools.get("b").unwrap().clone();
        row.status = Some(b.clone());
        assert_eq!(status("b", &row, term, at("2026-03-01T00:00:00Z")), b);
    }
}
