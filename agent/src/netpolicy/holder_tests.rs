//! Random histories of pods, IPInstances, policies and restarts: the decisions of the engine against
//! the second evaluator. The histories have further interfaces, pods that are deleted by force, and
//! addresses that change their holders.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use fastrand::Rng;

use super::engine::Engine;
use super::evaluate::{Packet, evaluate};
use super::feed::{AddressInput, Holder, PodIdentity, PodInput, PolicyInput, PolicyObject};
use super::input::{Change, ClusterPolicy, Direction, NetworkPolicy, ObjectKey, Pod};
use super::labels::Labels;
use super::specification::{Cluster, allowed};
use super::world_tests::{self, NAMESPACES, NODES, PORTS, PROTOCOLS, for_each_seed, pick};

const HERE: &str = NODES[0];
const PODS: usize = 6;

/// The state of the API server, and the last labels of the pods that it no longer has.
#[derive(Default)]
struct Model {
    objects: BTreeMap<PodIdentity, Pod>,
    deleted: BTreeMap<PodIdentity, Pod>,
    /// The Namespace of an address is that of its holder.
    held: BTreeMap<IpAddr, PodIdentity>,
    cluster: Cluster,
    incarnations: usize,
}

fn key(index: usize) -> ObjectKey {
    ObjectKey::new(NAMESPACES[index % NAMESPACES.len()], &format!("pod-{index}"))
}

/// A pod of this name is always on the same node.
fn node(pod: &ObjectKey) -> Arc<str> {
    let index: usize = pod.name.rsplit('-').next().unwrap().parse().unwrap();
    NODES[index / 2 % NODES.len()].into()
}

fn object<P>(policy: P) -> PolicyObject<P> {
    PolicyObject { policy, faults: Vec::new(), generation: 1, uid: "u".into() }
}

fn input((key, uid): &PodIdentity, pod: &Pod) -> PodInput {
    let pod = Pod { key: key.clone(), addresses: Vec::new(), ..pod.clone() };
    PodInput { pod, uid: uid.clone(), static_uid: None, ended: false }
}

fn address((address, (pod, uid)): (&IpAddr, &PodIdentity)) -> AddressInput {
    let holder = Holder { pod: pod.name.clone(), uid: uid.clone(), node: node(pod) };
    AddressInput { namespace: pod.namespace.clone(), address: *address, holder: Some(holder) }
}

impl Model {
    /// The pods that have an address, as the specification needs them.
    fn pods(&self) -> Vec<Pod> {
        let holders: BTreeSet<&PodIdentity> = self.held.values().collect();
        let pod = |identity: &PodIdentity| {
            let (key, uid) = identity;
            let known = self.objects.get(identity).or_else(|| self.deleted.get(identity));
            let of = self.held.iter().filter(|(_, holder)| *holder == identity);
            Pod {
                key: ObjectKey::new(&key.namespace, &format!("{}/{uid}", key.name)),
                node: node(key),
                host_network: false,
                labels: known.map_or(Labels::UNKNOWN, |pod| pod.labels.clone()),
                addresses: of.map(|(address, _)| *address).collect(),
                ports: known.map(|pod| pod.ports.clone()).unwrap_or_default(),
            }
        };
        holders.into_iter().map(pod).collect()
    }

    /// Nobody knows a pod that has neither an object nor an address.
    fn forget(&mut self) {
        let holders: BTreeSet<&PodIdentity> = self.held.values().collect();
        self.deleted.retain(|identity, _| holders.contains(identity));
    }

    fn lists(&self) -> Vec<PolicyInput> {
        let Cluster { network_policies, cluster_policies, namespaces, .. } = &self.cluster;
        vec![
            PolicyInput::Network(Change::Listed(network_policies.iter().cloned().map(object).collect())),
            PolicyInput::Cluster(Change::Listed(cluster_policies.iter().cloned().map(object).collect())),
            PolicyInput::Namespaces(Change::Listed(namespaces.clone())),
            PolicyInput::Pods(Change::Listed(
                self.objects.iter().map(|(identity, pod)| input(identity, pod)).collect(),
            )),
            PolicyInput::Addresses(Change::Listed(self.held.iter().map(address).collect())),
        ]
    }

    fn change(&mut self, rng: &mut Rng, engine: &mut Engine) {
        let index = rng.usize(..PODS);
        let existing = self.objects.keys().find(|(name, _)| *name == key(index)).cloned();
        match rng.u8(..12) {
            0..=2 => self.apply(rng, engine, index, existing),
            3 => {
                if let Some(identity) = existing {
                    self.delete(engine, &identity);
                }
            }
            4..=6 => self.bind(rng, engine, index, existing),
            7 => self.unbind(rng, engine),
            8 => {
                let policy = world_tests::network_policy(rng, index);
                self.cluster.network_policies.retain(|there| there.key != policy.key);
                self.cluster.network_policies.push(policy.clone());
                engine.handle_input(PolicyInput::Network(Change::Applied(object::<NetworkPolicy>(policy))));
            }
            9 => {
                let policy = world_tests::cluster_policy(rng, index);
                self.cluster.cluster_policies.retain(|there| there.name != policy.name);
                self.cluster.cluster_policies.push(policy.clone());
                engine.handle_input(PolicyInput::Cluster(Change::Applied(object::<ClusterPolicy>(policy))));
            }
            10 => {
                let name = *pick(rng, &NAMESPACES);
                self.cluster.namespaces.retain(|there| &*there.name != name);
                if rng.bool() {
                    let namespace = world_tests::namespace(rng, name);
                    self.cluster.namespaces.push(namespace.clone());
                    engine.handle_input(PolicyInput::Namespaces(Change::Applied(namespace)));
                } else {
                    engine.handle_input(PolicyInput::Namespaces(Change::Deleted(name.into())));
                }
            }
            _ => self.restart(rng, engine),
        }
        self.forget();
    }

    /// A new pod, or other labels of an existing one. The former pod of the name may still run.
    fn apply(&mut self, rng: &mut Rng, engine: &mut Engine, index: usize, existing: Option<PodIdentity>) {
        let pod = world_tests::pod(rng, index);
        let labels = if pod.labels.is_known() { pod.labels.clone() } else { Labels::default() };
        let pod = Pod { labels, node: node(&pod.key), host_network: false, ..pod };
        let identity = match existing {
            Some(identity) if rng.bool() => identity,
            former => {
                if let Some(former) = former {
                    self.delete(engine, &former);
                }
                self.incarnations += 1;
                (key(index), format!("u{}", self.incarnations).into())
            }
        };
        engine.handle_input(PolicyInput::Pods(Change::Applied(input(&identity, &pod))));
        self.objects.insert(identity, pod);
    }

    fn delete(&mut self, engine: &mut Engine, identity: &PodIdentity) {
        let Some(pod) = self.objects.remove(identity) else { return };
        self.deleted.insert(identity.clone(), pod);
        engine.handle_input(PolicyInput::Pods(Change::Deleted(identity.clone())));
        self.forget();
    }

    /// Binds an address to a pod, to one of which the object arrives never, or to its next one.
    fn bind(&mut self, rng: &mut Rng, engine: &mut Engine, index: usize, existing: Option<PodIdentity>) {
        let holder = existing.unwrap_or_else(|| (key(index), "none".into()));
        let number = rng.usize(..2 * PODS);
        let place = *pick(rng, &world_tests::address(number));
        let former = self.held.insert(place, holder.clone());
        if let Some((pod, _)) = former.filter(|(pod, _)| pod.namespace != holder.0.namespace) {
            engine.handle_input(PolicyInput::Addresses(Change::Deleted((place, pod.namespace))));
        }
        engine.handle_input(PolicyInput::Addresses(Change::Applied(address((&place, &holder)))));
    }

    fn unbind(&mut self, rng: &mut Rng, engine: &mut Engine) {
        let all: Vec<IpAddr> = self.held.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let place = *pick(rng, &all);
        let Some((pod, _)) = self.held.remove(&place) else { return };
        let namespace = pod.namespace;
        let change = match rng.bool() {
            true => Change::Deleted((place, namespace)),
            // The address is retained.
            false => Change::Applied(AddressInput { namespace, address: place, holder: None }),
        };
        engine.handle_input(PolicyInput::Addresses(change));
    }

    /// A restart of the agent, with the file of the last run or without, or new lists of watches.
    fn restart(&mut self, rng: &mut Rng, engine: &mut Engine) {
        let world = engine.world();
        match rng.u8(..3) {
            0 => {
                *engine = Engine::new(HERE);
                self.deleted.clear();
            }
            1 => {
                *engine = Engine::new(HERE);
                engine.handle_cached(vec![
                    PolicyInput::Network(Change::Listed(world.network)),
                    PolicyInput::Cluster(Change::Listed(world.cluster)),
                    PolicyInput::Namespaces(Change::Listed(world.namespaces)),
                    PolicyInput::Addresses(Change::Listed(world.addresses)),
                    PolicyInput::Pods(Change::Listed(world.pods)),
                ]);
            }
            _ => {}
        }
        self.lists().into_iter().for_each(|input| engine.handle_input(input));
    }

    /// Compares every pair of addresses.
    fn compare(&mut self, seed: u64, engine: &Engine) -> u64 {
        self.cluster.pods = self.pods();
        let rules = engine.compiler().rules();
        let pods: BTreeMap<IpAddr, &Pod> = self
            .cluster
            .pods
            .iter()
            .flat_map(|pod| pod.addresses.iter().map(move |address| (*address, pod)))
            .collect();
        let outside = IpAddr::from([192, 0, 2, 1]);
        let all: Vec<IpAddr> = pods.keys().copied().chain([outside]).collect();
        let ports = [None, Some((PROTOCOLS[0], PORTS[0])), Some((PROTOCOLS[1], PORTS[1]))];
        let mut compared = 0;
        for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (*from, *to))) {
            let (source, destination) = (pods.get(&from), pods.get(&to));
            for port in ports.iter().filter(|_| from.is_ipv4() == to.is_ipv4()) {
                let packet = Packet {
                    source: from,
                    destination: to,
                    protocol: port.map(|(protocol, _)| protocol),
                    port: port.map_or(0, |(_, port)| port),
                    established: false,
                    from_node: false,
                    same_pod: source.is_some()
                        && source.map(|pod| &pod.key) == destination.map(|pod| &pod.key),
                };
                let expected = allowed(&self.cluster, from, to, *port);
                let ends = [
                    (destination, Direction::Ingress, expected.ingress),
                    (source, Direction::Egress, expected.egress),
                ];
                for (pod, direction, expected) in ends {
                    let Some(pod) = pod.filter(|pod| &*pod.node == HERE) else { continue };
                    assert_eq!(
                        evaluate(&rules, &pod.key, direction, &packet).accepted,
                        expected,
                        "seed {seed}: {direction:?} of {from} to {to}, {port:?}: {:#?}",
                        self.cluster
                    );
                    compared += 1;
                }
            }
        }
        compared
    }
}

#[test]
fn decisions_follow_the_holders_of_addresses() {
    let compared = for_each_seed(150, |seed| {
        let rng = &mut Rng::with_seed(seed);
        let (mut model, mut engine) = (Model::default(), Engine::new(HERE));
        model.lists().into_iter().for_each(|input| engine.handle_input(input));
        let mut compared = 0;
        for _ in 0..60 {
            model.change(rng, &mut engine);
            if rng.u8(..4) == 0 {
                compared += model.compare(seed, &engine);
            }
        }
        compared + model.compare(seed, &engine)
    });
    assert!(compared > 0);
}
