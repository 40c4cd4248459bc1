//! Which ServiceAdvertisements apply to a service address on this node.
//!
//! Three steps, from the rarest to the most frequent change: [`matching`] compares labels of the
//! Service and of its Namespace, [`select`] the kind of the address, its pool and its prefix, and
//! [`apply`] the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use smallvec::SmallVec;
use trunkline_api::control::WithheldReason;
use trunkline_api::names::label;
use trunkline_api::resources::{AggregationLength, LabelSelector, ServiceAdvertisementSpec};
use trunkline_api::service::AddressKind;
use trunkline_bgp::types::Tag;

use super::decide::NodeBarrier;
use super::{NodeInput, PlannedAdvertisement, PlannedPool, ServicesPlan};

/// Names of advertisements, ascending. The default advertisement has an empty name.
pub(super) type Names = SmallVec<[Arc<str>; 1]>;

/// The default advertisement: in force in a cluster without any ServiceAdvertisement.
static DEFAULT: LazyLock<PlannedAdvertisement> = LazyLock::new(|| {
    let spec = ServiceAdvertisementSpec::default();
    PlannedAdvertisement {
        tag: Tag(0),
        services: LabelSelector::default(),
        namespaces: LabelSelector::default(),
        nodes: LabelSelector::default(),
        peers: Vec::new(),
        pools: BTreeSet::new(),
        kinds: spec.address_kinds(),
        external_cidrs: Vec::new(),
        withdraw_cordoned: false,
        withdraw_excluded: true,
        aggregation: AggregationLength::default(),
        weights: false,
        graceful_shutdown: spec.graceful_shutdown(),
    }
});

/// The name of the default advertisement: every Service refers to it.
static DEFAULT_NAME: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(""));

/// The advertisement with this name.
pub(super) fn find<'a>(plan: &'a ServicesPlan, name: &str) -> Option<&'a PlannedAdvertisement> {
    match name {
        "" => plan.default_advertisement.then(|| &*DEFAULT),
        name => plan.advertisements.get(name),
    }
}

/// The origination tag of the advertisement with this name; none for the default advertisement.
pub(super) fn tag(plan: &ServicesPlan, name: &str) -> Option<Tag> {
    plan.advertisements.get(name).map(|advertisement| advertisement.tag)
}

/// All advertisements, by name.
fn all(plan: &ServicesPlan) -> impl Iterator<Item = (Arc<str>, &PlannedAdvertisement)> {
    let default = plan.default_advertisement.then(|| (Arc::clone(&DEFAULT_NAME), &*DEFAULT));
    default.into_iter().chain(plan.advertisements.iter().map(|(name, of)| (Arc::clone(name), of)))
}

/// Whether an advertisement has a selector of Namespaces. If not, their labels are not needed.
pub(super) fn needs_namespaces(plan: &ServicesPlan) -> bool {
    plan.advertisements.values().any(|of| !of.namespaces.is_empty())
}

/// Whether an advertisement has a selector of Services.
pub(super) fn needs_labels(plan: &ServicesPlan) -> bool {
    plan.advertisements.values().any(|of| !of.services.is_empty())
}

/// The kinds of addresses that some advertisement has. LoadBalancer addresses always count, so that
/// each of them has a state.
pub(super) fn kinds(plan: &ServicesPlan) -> BTreeSet<AddressKind> {
    let named = plan.advertisements.values().flat_map(|of| of.kinds.iter().copied());
    named.chain([AddressKind::LoadBalancer]).collect()
}

/// The advertisements whose selectors match the labels of a Service and of its Namespace. Of labels
/// that exceed their bound, nothing is known: only an empty selector matches them.
pub(super) fn matching(
    plan: &ServicesPlan,
    service: impl FnOnce() -> Option<BTreeMap<String, String>>,
    namespace: Option<&BTreeMap<String, String>>,
) -> Names {
    let service = if needs_labels(plan) { service() } else { None };
    let selects = |selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>| {
        selector.is_empty() || labels.is_some_and(|labels| selector.selects(labels))
    };
    let matches = |of: &PlannedAdvertisement| {
        selects(&of.services, service.as_ref()) && selects(&of.namespaces, namespace)
    };
    all(plan).filter(|(_, of)| matches(of)).map(|(name, _)| name).collect()
}

/// The pool of an address.
pub(super) fn pool(plan: &ServicesPlan, address: IpAddr) -> Option<&PlannedPool> {
    plan.pools.iter().find(|pool| pool.blocks.iter().any(|block| block.contains(address)))
}

/// Whether a node answers ARP requests and Neighbour Solicitations for the address, instead of BGP.
pub(super) fn is_l2(plan: &ServicesPlan, address: IpAddr) -> bool {
    pool(plan, address).is_some_and(|pool| !pool.bgp)
}

/// The advertisements among `matching` that have an address of a Service; none for an address of an
/// L2 pool, which needs none.
///
/// # Errors
/// There is none: the reason.
pub(super) fn select(
    plan: &ServicesPlan,
    matching: &Names,
    kind: AddressKind,
    address: IpAddr,
) -> Result<Names, WithheldReason> {
    let pool = match kind {
        AddressKind::LoadBalancer => {
            let pool = pool(plan, address).ok_or(WithheldReason::NotInPool)?;
            if !pool.bgp {
                let is_here = pool.links.iter().any(|prefix| prefix.contains(&address));
                return if is_here { Ok(Names::new()) } else { Err(WithheldReason::NoVlan) };
            }
            Some(pool)
        }
        AddressKind::External | AddressKind::Cluster => None,
    };
    let mut reason = WithheldReason::NotSelected;
    let mut selected = Names::new();
    for name in matching {
        let Some(of) = find(plan, name).filter(|of| of.kinds.contains(&kind)) else { continue };
        match kind {
            AddressKind::LoadBalancer
                if !of.pools.is_empty() && pool.is_none_or(|pool| !of.pools.contains(&pool.name)) => {}
            AddressKind::External if !of.external_cidrs.iter().any(|prefix| prefix.contains(&address)) => {
                reason = WithheldReason::NotAllowed;
            }
            _ => selected.push(Arc::clone(name)),
        }
    }
    if selected.is_empty() { Err(reason) } else { Ok(selected) }
}

/// The advertisements of an address on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    /// Their names. If none applies to the node, those that select the address.
    pub(super) names: Names,
    /// The reason for which none applies to the node.
    pub(super) barrier: Option<NodeBarrier>,
    /// The longest time between GRACEFUL_SHUTDOWN and withdrawal.
    pub(super) graceful_shutdown: Duration,
}

/// The same for an address of an L2 pool, which no advertisement selects.
pub(super) fn apply_l2(node: &NodeInput) -> Applied {
    let of = &*DEFAULT;
    Applied { names: Names::new(), barrier: barrier(of, node), graceful_shutdown: of.graceful_shutdown }
}

/// The advertisements among `selected` that apply to the node.
pub(super) fn apply(plan: &ServicesPlan, selected: &Names, node: &NodeInput) -> Applied {
    let barrier_of = |name: &Arc<str>| find(plan, name).and_then(|of| barrier(of, node));
    let here: Names = selected.iter().filter(|name| barrier_of(name).is_none()).cloned().collect();
    let barrier = if here.is_empty() { selected.iter().filter_map(barrier_of).min() } else { None };
    let names = if here.is_empty() { selected.clone() } else { here };
    let time = names.iter().filter_map(|name| find(plan, name)).map(|of| of.graceful_shutdown).max();
    Applied { names, barrier, graceful_shutdown: time.unwrap_or_default() }
}

/// The reason for which an advertisement does not apply to the node.
fn barrier(of: &PlannedAdvertisement, node: &NodeInput) -> Option<NodeBarrier> {
    if of.withdraw_excluded && node.labels.contains_key(label::EXCLUDE_BALANCERS) {
        Some(NodeBarrier::Excluded)
    } else if of.withdraw_cordoned && node.cordoned {
        Some(NodeBarrier::Cordoned)
    } else if !of.nodes.selects(&node.labels) {
        Some(NodeBarrier::NotSelected)
    } else {
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    use trunkline_api::resources::AddressBlock;

    use super::*;

    pub(in crate::services) fn selector(pairs: &[(&str, &str)]) -> LabelSelector {
        LabelSelector { match_labels: labels(pairs).into(), ..LabelSelector::default() }
    }

    pub(in crate::services) fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// An advertisement of everything with this tag.
    pub(in crate::services) fn advertisement(tag: u16) -> PlannedAdvertisement {
        PlannedAdvertisement { tag: Tag(tag), ..DEFAULT.clone() }
    }

    /// A plan with pool p1 (10.9.0.0/24, fd09::/64), L2 pool p2 (10.8.0.0/24, the first half on this node), and these
    /// advertisements.
    pub(in crate::services) fn plan(advertisements: &[(&str, PlannedAdvertisement)]) -> ServicesPlan {
        let pool = |name: &str, blocks: &[&str], bgp: bool| PlannedPool {
            name: Arc::from(name),
            blocks: blocks.iter().map(|block| block.parse::<AddressBlock>().unwrap()).collect(),
            bgp,
            links: if bgp { Vec::new() } else { vec!["10.8.0.0/25".parse().unwrap()] },
        };
        ServicesPlan {
            complete: true,
            bgp: true,
            pools: vec![pool("p1", &["10.9.0.0/24", "fd09::/64"], true), pool("p2", &["10.8.0.0/24"], false)],
            advertisements: advertisements.iter().map(|(name, of)| (Arc::from(*name), of.clone())).collect(),
            default_advertisement: advertisements.is_empty(),
        }
    }

    fn names(names: &[&str]) -> Names {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_default_advertises_load_balancer_addresses_of_bgp_pools() {
        let plan = plan(&[]);
        let matching = matching(&plan, || None, None);
        assert_eq!(matching, names(&[""]));
        let load_balancer = |address| select(&plan, &matching, AddressKind::LoadBalancer, ip(address));
        assert_eq!(load_balancer("10.9.0.7"), Ok(names(&[""])));
        assert_eq!(load_balancer("fd09::7"), Ok(names(&[""])));
        assert_eq!(load_balancer("10.8.0.7"), Ok(names(&[])), "L2");
        assert_eq!(load_balancer("10.8.0.200"), Err(WithheldReason::NoVlan));
        assert!(is_l2(&plan, ip("10.8.0.200")) && !is_l2(&plan, ip("10.9.0.7")));
        assert_eq!(load_balancer("10.7.0.7"), Err(WithheldReason::NotInPool));
        for kind in [AddressKind::External, AddressKind::Cluster] {
            assert_eq!(select(&plan, &matching, kind, ip("10.9.0.7")), Err(WithheldReason::NotSelected));
        }
        assert_eq!(tag(&plan, ""), None);
    }

    #[test]
    fn selectors_of_services_and_namespaces_must_both_match() {
        let web = PlannedAdvertisement { services: selector(&[("app", "web")]), ..advertisement(1) };
        let shop = PlannedAdvertisement { namespaces: selector(&[("team", "shop")]), ..web.clone() };
        let plan = plan(&[("shop", shop), ("web", web)]);
        let matches = |service: &[(&str, &str)], namespace: &[(&str, &str)]| {
            matching(&plan, || Some(labels(service)), Some(&labels(namespace)))
        };
        assert_eq!(matches(&[("app", "web")], &[("team", "shop")]), names(&["shop", "web"]));
        assert_eq!(matches(&[("app", "web")], &[]), names(&["web"]));
        assert_eq!(matches(&[], &[("team", "shop")]), names(&[]));
        assert_eq!(matching(&plan, || None, None), names(&[]), "the default is not in force");
        assert!(needs_namespaces(&plan));
    }

    #[test]
    fn large_labels_match_no_selector() {
        let without = |key: &str| LabelSelector {
            match_expressions: serde_json::from_value(
                serde_json::json!([{"key": key, "operator": "DoesNotExist"}]),
            )
            .unwrap(),
            ..LabelSelector::default()
        };
        let by_service = PlannedAdvertisement { services: without("internal"), ..advertisement(1) };
        let by_namespace = PlannedAdvertisement { namespaces: without("guest"), ..advertisement(2) };
        let plan = plan(&[("all", advertisement(3)), ("namespace", by_namespace), ("service", by_service)]);
        let few = labels(&[]);
        assert_eq!(
            matching(&plan, || Some(few.clone()), Some(&few)),
            names(&["all", "namespace", "service"])
        );
        assert_eq!(matching(&plan, || None, Some(&few)), names(&["all", "namespace"]));
        assert_eq!(matching(&plan, || Some(few.clone()), None), names(&["all", "service"]));
    }

    #[test]
    fn pools_prefixes_and_kinds_limit_the_addresses() {
        let pool = PlannedAdvertisement { pools: [Arc::from("p3")].into(), ..advertisement(1) };
        let external = PlannedAdvertisement {
            kinds: [AddressKind::External].into(),
            external_cidrs: vec!["192.0.2.0/24".parse().unwrap()],
            ..advertisement(2)
        };
        let cluster = PlannedAdvertisement { kinds: [AddressKind::Cluster].into(), ..advertisement(3) };
        let plan = plan(&[("cluster", cluster), ("external", external), ("pool", pool)]);
        assert_eq!(kinds(&plan), AddressKind::ALL.into());
        let all = names(&["cluster", "external", "pool"]);
        let (lb, external, cluster) =
            (AddressKind::LoadBalancer, AddressKind::External, AddressKind::Cluster);
        assert_eq!(select(&plan, &all, lb, ip("10.9.0.7")), Err(WithheldReason::NotSelected));
        assert_eq!(select(&plan, &all, external, ip("192.0.2.7")), Ok(names(&["external"])));
        assert_eq!(select(&plan, &all, external, ip("10.9.0.7")), Err(WithheldReason::NotAllowed));
        assert_eq!(select(&plan, &all, cluster, ip("10.96.0.1")), Ok(names(&["cluster"])));
    }

    #[test]
    fn an_address_stays_while_one_advertisement_applies_to_the_node() {
        let strict = PlannedAdvertisement {
            withdraw_cordoned: true,
            graceful_shutdown: Duration::from_secs(60),
            ..advertisement(1)
        };
        let rack = PlannedAdvertisement {
            nodes: selector(&[("rack", "1")]),
            withdraw_excluded: false,
            ..advertisement(2)
        };
        let plan = plan(&[("rack", rack), ("strict", strict)]);
        let both = names(&["rack", "strict"]);
        let applied = |pairs: &[(&str, &str)], cordoned| {
            apply(&plan, &both, &NodeInput { labels: labels(pairs), cordoned })
        };
        assert_eq!(applied(&[("rack", "1")], false).names, both);
        let cordoned = applied(&[("rack", "1")], true);
        assert_eq!((cordoned.names, cordoned.barrier), (names(&["rack"]), None));
        assert_eq!(cordoned.graceful_shutdown, Duration::from_secs(5));
        let elsewhere = applied(&[], true);
        assert_eq!((elsewhere.names, elsewhere.barrier), (both.clone(), Some(NodeBarrier::Cordoned)));
        assert_eq!(elsewhere.graceful_shutdown, Duration::from_secs(60), "the longest counts");
        let excluded = applied(&[(label::EXCLUDE_BALANCERS, "")], false);
        assert_eq!(excluded.barrier, Some(NodeBarrier::Excluded));
    }
}
