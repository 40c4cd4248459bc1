//! Service addresses in the reconcile task: the prefixes that the services task sends, and the
//! facts that it needs from here.
//!
//! The prefixes are not part of the plan. But every plan, drain and change of a link applies *all*
//! prefixes of the node, so this module keeps them ([`ServiceOriginations`]).
//!
//! **Pods win.** If a pod or a Subnet has the prefix of a service address, its origination is in
//! force. The service address's origination returns after the pod.
//!
//! **Tags.** A prefix with tags is originated only if the peers' policies in force know one of its
//! tags. Otherwise peers would receive it without the attributes of its ServiceAdvertisement, and
//! peers that should not receive it would receive it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::watch;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::Tag;
use trunkline_datapath::plan::{KernelHost, POD_TABLE, PodPlan};

use super::DrainStage;
use super::bgp::Prefixes;
use super::originated::OriginatedPrefixes;
use crate::plan::{PlannedPod, ServiceTags};
use crate::services::anycast::AnycastPlan;
use crate::services::{LocalPods, NodeStage, ServicesPlan};

/// The sender of prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefixSource {
    /// The services task.
    Services,
    /// The anycast task.
    Anycast,
}

/// The prefixes of service addresses and of anycast addresses.
#[derive(Debug, Default)]
pub(super) struct ServiceOriginations {
    prefixes: OriginatedPrefixes,
    anycast: Prefixes,
    /// The tags of ServiceAdvertisements.
    pub(super) tags: ServiceTags,
}

/// Changes for the speaker.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ServiceChanges {
    pub(super) remove: BTreeSet<IpNet>,
    pub(super) add: Prefixes,
}

impl ServiceOriginations {
    /// Takes over changes of a task. Returns the part for the speaker. `known`: the tags in the
    /// peers' policies; `others`: prefixes of pods and Subnets.
    pub(super) fn take(
        &mut self,
        source: PrefixSource,
        changes: Vec<(IpNet, Option<Origination>)>,
        known: &BTreeSet<Tag>,
        others: &BTreeSet<IpNet>,
    ) -> ServiceChanges {
        let mut result = ServiceChanges::default();
        for (prefix, origination) in changes {
            match (source, origination) {
                (PrefixSource::Services, Some(origination)) => self.prefixes.insert(prefix, &origination),
                (PrefixSource::Services, None) => drop(self.prefixes.remove(&prefix)),
                (PrefixSource::Anycast, Some(origination)) => {
                    drop(self.anycast.insert(prefix, origination));
                }
                (PrefixSource::Anycast, None) => drop(self.anycast.remove(&prefix)),
            }
            if others.contains(&prefix) {
                continue;
            }
            match self.get(&prefix, known).cloned() {
                Some(origination) => {
                    result.remove.remove(&prefix);
                    result.add.insert(prefix, origination);
                }
                None => {
                    result.add.remove(&prefix);
                    result.remove.insert(prefix);
                }
            }
        }
        result
    }

    /// All prefixes, with those of pods and Subnets.
    pub(super) fn merge(&self, others: Prefixes, known: &BTreeSet<Tag>) -> Prefixes {
        let mut all = self.anycast.clone();
        let sent = self.prefixes.iter().filter(|(_, origination)| is_known(origination, known));
        all.extend(sent.map(|(prefix, origination)| (*prefix, origination.clone())));
        all.extend(others);
        all
    }

    /// The origination of a prefix in force, if no pod or Subnet has the prefix.
    fn get(&self, prefix: &IpNet, known: &BTreeSet<Tag>) -> Option<&Origination> {
        let of_service = self.prefixes.get(prefix).filter(|origination| is_known(origination, known));
        of_service.or_else(|| self.anycast.get(prefix))
    }

    /// The advertised anycast addresses.
    pub(super) fn anycast(&self) -> BTreeSet<IpAddr> {
        self.anycast.keys().map(IpNet::addr).collect()
    }

    /// The prefixes among these, which a pod no longer has.
    pub(super) fn returning(&self, prefixes: &BTreeSet<IpNet>, known: &BTreeSet<Tag>) -> Prefixes {
        let found = prefixes.iter().filter_map(|prefix| Some((*prefix, self.get(prefix, known)?.clone())));
        found.collect()
    }
}

/// Whether the peers' policies know the prefix. Without tags, the prefix has no attributes of a
/// ServiceAdvertisement.
fn is_known(origination: &Origination, known: &BTreeSet<Tag>) -> bool {
    let tags = origination.tags.as_slice();
    tags.is_empty() || tags.iter().any(|tag| known.contains(tag))
}

/// Facts for the services task.
pub(super) struct ServiceFacts {
    local_pods: watch::Sender<LocalPods>,
    /// The host interface of each address in `local_pods`.
    owners: BTreeMap<IpAddr, String>,
    stage: watch::Sender<NodeStage>,
    plan: watch::Sender<Option<Arc<ServicesPlan>>>,
    anycast: watch::Sender<Option<Arc<AnycastPlan>>>,
}

/// Receivers of facts for the services task.
#[derive(Clone, Debug)]
pub struct ServiceFactReceivers {
    /// Addresses of this node's endpoints.
    pub local_pods: watch::Receiver<LocalPods>,
    /// The stage of a drain.
    pub stage: watch::Receiver<NodeStage>,
    /// The plan's part for service addresses; none before the first plan.
    pub plan: watch::Receiver<Option<Arc<ServicesPlan>>>,
    /// The plan's part for anycast addresses; none before the first plan.
    pub anycast: watch::Receiver<Option<Arc<AnycastPlan>>>,
}

impl ServiceFacts {
    /// The facts before the first plan: the addresses of the last run's pods, by host interface.
    pub(super) fn new(
        pods: BTreeMap<IpAddr, String>,
        host: &BTreeSet<IpAddr>,
        stage: &DrainStage,
    ) -> (ServiceFacts, ServiceFactReceivers) {
        let local =
            LocalPods { pods: Arc::new(pods.keys().copied().collect()), host: Arc::new(host.clone()) };
        let (local_pods, pods_receiver) = watch::channel(local);
        let (stage, stage_receiver) = watch::channel(node_stage(stage));
        let (plan, plan_receiver) = watch::channel(None);
        let (anycast, anycast_receiver) = watch::channel(None);
        let receivers = ServiceFactReceivers {
            local_pods: pods_receiver,
            stage: stage_receiver,
            plan: plan_receiver,
            anycast: anycast_receiver,
        };
        (ServiceFacts { local_pods, owners: pods, stage, plan, anycast }, receivers)
    }

    /// A pod's host routes are in the kernel.
    pub(super) fn add_pod(&mut self, host_ifname: &str, pod: &PodPlan) {
        self.local_pods.send_if_modified(|local| {
            let mut changed = false;
            for address in addresses(pod) {
                self.owners.insert(address, host_ifname.to_owned());
                if !local.pods.contains(&address) {
                    changed |= Arc::make_mut(&mut local.pods).insert(address);
                }
            }
            changed
        });
    }

    /// A pod or its link is gone.
    pub(super) fn remove_pod(&mut self, host_ifname: &str, pod: &PodPlan) {
        self.local_pods.send_if_modified(|local| {
            let mut changed = false;
            for address in addresses(pod) {
                // Another pod may have the address in the meantime.
                if self.owners.get(&address).is_some_and(|owner| owner == host_ifname) {
                    self.owners.remove(&address);
                    changed |= Arc::make_mut(&mut local.pods).remove(&address);
                }
            }
            changed
        });
    }

    /// These are all pods.
    pub(super) fn set_pods(&mut self, planned: &BTreeMap<String, PlannedPod>) {
        self.owners = planned
            .iter()
            .flat_map(|(ifname, pod)| addresses(&pod.kernel).map(move |address| (address, ifname.clone())))
            .collect();
        self.local_pods.send_if_modified(|local| {
            let changed = !local.pods.iter().eq(self.owners.keys());
            if changed {
                local.pods = Arc::new(self.owners.keys().copied().collect());
            }
            changed
        });
    }

    /// These are the host's addresses.
    pub(super) fn set_host(&self, host: &KernelHost) {
        let addresses = host_addresses(host);
        self.local_pods.send_if_modified(|local| {
            let changed = *local.host != addresses;
            if changed {
                local.host = Arc::new(addresses);
            }
            changed
        });
    }

    /// The drain has this stage.
    pub(super) fn set_stage(&self, stage: &DrainStage) {
        let stage = node_stage(stage);
        self.stage.send_if_modified(|known| std::mem::replace(known, stage) != stage);
    }

    /// A plan is in force.
    pub(super) fn set_plan(&self, plan: &ServicesPlan) {
        replace(&self.plan, plan);
    }

    /// A plan is in force.
    pub(super) fn set_anycast(&self, plan: &AnycastPlan) {
        replace(&self.anycast, plan);
    }
}

/// Sends a value if it differs from the last one.
fn replace<T: Clone + PartialEq>(sender: &watch::Sender<Option<Arc<T>>>, value: &T) {
    sender.send_if_modified(|known| {
        let changed = known.as_deref() != Some(value);
        if changed {
            *known = Some(Arc::new(value.clone()));
        }
        changed
    });
}

/// The addresses of the host's links, for pods with `hostNetwork`.
pub(crate) fn host_addresses(host: &KernelHost) -> BTreeSet<IpAddr> {
    host.links.iter().flat_map(|link| &link.addresses).map(|prefix| prefix.addr()).collect()
}

/// The addresses of a pod with a host route.
fn addresses(pod: &PodPlan) -> impl Iterator<Item = IpAddr> {
    pod.routes.keys().filter(|key| key.table == POD_TABLE).map(|key| key.prefix.addr())
}

fn node_stage(stage: &DrainStage) -> NodeStage {
    match stage {
        DrainStage::Active => NodeStage::Active,
        DrainStage::Announcing => NodeStage::Announcing,
        DrainStage::Withdrawn | DrainStage::Down { .. } => NodeStage::Withdrawn,
    }
}

#[cfg(test)]
mod tests {
    use trunkline_bgp::types::Tags;
    use trunkline_datapath::plan::{Hop, RouteKey, RouteTarget};

    use super::*;

    fn prefix(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn tagged(tags: &[u16]) -> Origination {
        let tags = Tags::new(tags.iter().copied().map(Tag)).unwrap();
        Origination { tags, ..Origination::default() }
    }

    #[test]
    fn every_full_set_of_prefixes_has_the_service_prefixes() {
        let mut services = ServiceOriginations::default();
        let (known, none) = (BTreeSet::from([Tag(1)]), BTreeSet::new());
        let (web, api) = (prefix("203.0.113.1/32"), prefix("203.0.113.2/32"));
        let changes = services.take(
            PrefixSource::Services,
            vec![(web, Some(tagged(&[1]))), (api, Some(tagged(&[])))],
            &known,
            &none,
        );
        assert_eq!(changes.add, [(web, tagged(&[1])), (api, tagged(&[]))].into());
        let pods = Prefixes::from([(prefix("10.1.0.5/32"), Origination::default())]);
        let all = services.merge(pods.clone(), &known);
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), [prefix("10.1.0.5/32"), web, api]);

        let changes = services.take(PrefixSource::Services, vec![(api, None)], &known, &none);
        assert_eq!(changes, ServiceChanges { remove: [api].into(), add: Prefixes::new() });
        assert_eq!(services.merge(Prefixes::new(), &known), [(web, tagged(&[1]))].into());
        let changes =
            services.take(PrefixSource::Services, vec![(web, None), (web, Some(tagged(&[])))], &known, &none);
        assert_eq!((changes.remove.len(), changes.add.len()), (0, 1), "the last change counts");
    }

    #[test]
    fn a_prefix_of_a_pod_stays_the_pods() {
        let mut services = ServiceOriginations::default();
        let (address, known) = (prefix("10.1.0.5/32"), BTreeSet::new());
        let shut = Origination { med: Some(7), ..Origination::default() };
        let changes = services.take(
            PrefixSource::Services,
            vec![(address, Some(shut.clone()))],
            &known,
            &[address].into(),
        );
        assert_eq!(changes, ServiceChanges::default());
        let pods = Prefixes::from([(address, Origination::default())]);
        assert_eq!(services.merge(pods.clone(), &known), pods);
        assert_eq!(services.returning(&[address].into(), &known), [(address, shut)].into());
        let changes = services.take(PrefixSource::Services, vec![(address, None)], &known, &[address].into());
        assert_eq!(changes, ServiceChanges::default(), "the pod's origination stays");
        assert_eq!(services.returning(&[address].into(), &known), Prefixes::new());
    }

    #[test]
    fn an_anycast_address_is_independent_of_a_service_address() {
        let mut all = ServiceOriginations::default();
        let (address, none, no_tags) = (prefix("203.0.113.1/32"), BTreeSet::new(), BTreeSet::new());
        let anycast = Origination { med: Some(7), ..Origination::default() };
        let service = Origination::default();
        let mut take = |source, origination: Option<&Origination>| {
            let changes = all.take(source, vec![(address, origination.cloned())], &no_tags, &none);
            assert_eq!(changes.add, all.merge(Prefixes::new(), &no_tags));
            assert_eq!(changes.remove.is_empty(), !changes.add.is_empty());
            (changes.add.get(&address).cloned(), all.anycast().len())
        };
        assert_eq!(take(PrefixSource::Anycast, Some(&anycast)), (Some(anycast.clone()), 1));
        assert_eq!(take(PrefixSource::Services, Some(&service)), (Some(service.clone()), 1));
        assert_eq!(take(PrefixSource::Services, None), (Some(anycast), 1));
        assert_eq!(take(PrefixSource::Anycast, None), (None, 0));
    }

    #[test]
    fn a_prefix_without_a_rule_for_its_tags_is_not_originated() {
        let mut services = ServiceOriginations::default();
        let (web, none) = (prefix("203.0.113.1/32"), BTreeSet::new());
        let changes = services.take(
            PrefixSource::Services,
            vec![(web, Some(tagged(&[1, 2])))],
            &none,
            &BTreeSet::new(),
        );
        assert_eq!(changes, ServiceChanges { remove: [web].into(), add: Prefixes::new() });
        assert_eq!(services.merge(Prefixes::new(), &none), Prefixes::new());
        let one = BTreeSet::from([Tag(2)]);
        assert_eq!(services.merge(Prefixes::new(), &one).len(), 1, "one rule is enough");
    }

    #[test]
    fn facts_change_only_with_their_values() {
        let pod = |texts: &[&str]| PodPlan {
            routes: texts
                .iter()
                .map(|text| {
                    let key = RouteKey { table: POD_TABLE, prefix: prefix(text) };
                    (key, RouteTarget::via(vec![Hop::link(7)]))
                })
                .collect(),
            ..PodPlan::default()
        };
        let former = BTreeMap::from([("10.1.0.5".parse().unwrap(), "tl1".to_owned())]);
        let host = BTreeSet::from(["192.0.2.1".parse().unwrap()]);
        let (mut facts, receivers) = ServiceFacts::new(former, &host, &DrainStage::Active);
        let mut local = receivers.local_pods;
        let pods = |local: &mut watch::Receiver<LocalPods>| {
            let changed = local.has_changed().unwrap();
            (changed, local.borrow_and_update().pods.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(pods(&mut local), (false, vec!["10.1.0.5".to_owned()]));
        facts.add_pod("tl1", &pod(&["10.1.0.5/32"]));
        assert!(!pods(&mut local).0, "the address was known");
        facts.add_pod("tl2", &pod(&["10.1.0.6/32", "fd00::6/128"]));
        assert_eq!(pods(&mut local).1.len(), 3);
        // A new pod has the address of the old one before the old one's DEL.
        facts.add_pod("tl3", &pod(&["10.1.0.5/32"]));
        facts.remove_pod("tl1", &pod(&["10.1.0.5/32"]));
        assert!(!pods(&mut local).0);
        facts.remove_pod("tl3", &pod(&["10.1.0.5/32"]));
        assert_eq!(pods(&mut local), (true, vec!["10.1.0.6".to_owned(), "fd00::6".to_owned()]));
        facts.set_pods(&BTreeMap::new());
        assert_eq!(pods(&mut local), (true, Vec::new()));

        facts.set_stage(&DrainStage::Active);
        assert!(!receivers.stage.has_changed().unwrap());
        facts.set_stage(&DrainStage::Down { message: String::new() });
        assert_eq!(*receivers.stage.borrow(), NodeStage::Withdrawn);
        facts.set_plan(&ServicesPlan::default());
        assert!(receivers.plan.borrow().is_some());
    }
}
