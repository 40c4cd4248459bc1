//! Random histories of pods, IPInstances, policies and restarts: the decisions of the engine against
//! the second evaluator. The histories have further interfaces, pods that are deleted by force, and
//! addresses that change their holders. In half of them the watches keep only the labels that policies
//! name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use fastrand::Rng;

use super::engine::Engine;
use super::evaluate::{Packet, evaluate};
use super::feed::{AddressInput, Holder, PodIdentity, PodInput, PolicyInput, PolicyObject};
use super::input::{Change, ClusterPolicy, Direction, Namespace, NetworkPolicy, ObjectKey, Pod};
use super::keys::{KeptLabels, LabelKeys, Labelled};
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
    /// The version of each object, and the last version.
    versions: BTreeMap<PodIdentity, u64>,
    version: u64,
    has_keys: bool,
    keys: Option<Arc<LabelKeys>>,
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
    PolicyObject { policy, faults: Vec::new(), above_bound: false, generation: 1, uid: "u".into() }
}

fn address((address, (pod, uid)): (&IpAddr, &PodIdentity)) -> AddressInput {
    let holder = Holder { pod: pod.name.clone(), uid: uid.clone(), node: node(pod) };
    AddressInput { namespace: pod.namespace.clone(), address: *address, holder: Some(holder) }
}

impl Model {
    /// A start of the agent.
    fn start(&mut self) -> Engine {
        self.keys = self.has_keys.then(Arc::default);
        Engine::new(HERE, self.keys.clone())
    }

    /// The labels that a watch keeps.
    fn keep(&self, kind: Labelled, namespace: &str, labels: &Labels) -> KeptLabels {
        let Some(keys) = &self.keys else {
            return KeptLabels { own: labels.clone(), others: Labels::default(), keys: u64::MAX };
        };
        let all = labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        keys.keep(kind, namespace, Some(all.collect()))
    }

    fn input(&self, identity: &PodIdentity, pod: &Pod) -> PodInput {
        let (key, uid) = identity.clone();
        let KeptLabels { own, others, keys } = self.keep(Labelled::Pods, &key.namespace, &pod.labels);
        PodInput {
            pod: Pod { key, addresses: Vec::new(), labels: own, ..pod.clone() },
            others,
            keys,
            uid,
            static_uid: None,
            version: self.versions.get(identity).copied().unwrap_or_default(),
            ended: false,
        }
    }

    fn namespace(&self, namespace: &Namespace) -> Namespace {
        let kept = self.keep(Labelled::Namespaces, &namespace.name, &namespace.labels);
        Namespace { labels: kept.all(), ..namespace.clone() }
    }

    fn all_namespaces(&self) -> Vec<PolicyInput> {
        let all = self.cluster.namespaces.iter().map(|namespace| self.namespace(namespace));
        let change = PolicyInput::Namespaces(Change::Listed(all.collect()));
        self.converted(Labelled::Namespaces).into_iter().chain([change]).collect()
    }

    fn converted(&self, kind: Labelled) -> Option<PolicyInput> {
        self.keys.as_ref().map(|keys| PolicyInput::Converted { kind, keys: keys.last(kind) })
    }

    /// The lists that policies with new keys need.
    fn relist(&mut self, engine: &mut Engine) {
        let Some(keys) = self.keys.clone() else { return };
        let wanted = engine.wanted();
        if wanted.namespace_keys.is_some_and(|there| there < keys.last(Labelled::Namespaces)) {
            self.all_namespaces().into_iter().for_each(|input| engine.handle_input(input));
        }
        let Some(there) = wanted.pod_keys else { return };
        let (new, last) = keys.after(Labelled::Pods, there);
        for key in new {
            let with_key = self.objects.iter().filter(|(_, pod)| pod.labels.get(&key).is_some());
            let pods = with_key.map(|(identity, pod)| self.input(identity, pod)).collect();
            engine.handle_input(PolicyInput::Relisted(pods));
        }
        engine.handle_input(PolicyInput::Covered(last));
        self.follow_keys(engine, wanted.pod_keys);
    }

    /// Nobody has the labels with new keys of deleted pods.
    fn follow_keys(&mut self, engine: &Engine, before: Option<u64>) {
        if before.is_some_and(|before| engine.wanted().pod_keys > Some(before)) {
            self.deleted.values_mut().for_each(|pod| pod.labels = Labels::UNKNOWN);
        }
    }

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

    /// All lists. The watches convert objects after the policies have registered their keys, or before.
    fn list(&mut self, engine: &mut Engine, is_early: bool) {
        let before = engine.wanted().pod_keys;
        let Cluster { network_policies, cluster_policies, .. } = &self.cluster;
        let policies = [
            PolicyInput::Network(Change::Listed(network_policies.iter().cloned().map(object).collect())),
            PolicyInput::Cluster(Change::Listed(cluster_policies.iter().cloned().map(object).collect())),
        ];
        let others = || {
            let mut others = self.all_namespaces();
            others.extend(self.converted(Labelled::Pods));
            let pods = self.objects.iter().map(|(identity, pod)| self.input(identity, pod));
            others.push(PolicyInput::Pods(Change::Listed(pods.collect())));
            others.push(PolicyInput::Addresses(Change::Listed(self.held.iter().map(address).collect())));
            others
        };
        let early = is_early.then(others);
        policies.into_iter().for_each(|input| engine.handle_input(input));
        early.unwrap_or_else(others).into_iter().for_each(|input| engine.handle_input(input));
        self.follow_keys(engine, before);
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
                    engine.handle_input(PolicyInput::Namespaces(Change::Applied(self.namespace(&namespace))));
                    self.cluster.namespaces.push(namespace);
                } else {
                    engine.handle_input(PolicyInput::Namespaces(Change::Deleted(name.into())));
                }
            }
            _ => self.restart(rng, engine),
        }
        if rng.u8(..3) == 0 {
            self.relist(engine);
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
        self.version += 1;
        self.versions.insert(identity.clone(), self.version);
        engine.handle_input(PolicyInput::Pods(Change::Applied(self.input(&identity, &pod))));
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
            // The agent writes no file while it lacks lists, or labels that the policies of a list name.
            // It keeps no pods without a policy.
            1 if !engine.is_current() || !engine.wants_pods() => {
                *engine = self.start();
                self.deleted.clear();
            }
            0 => {
                *engine = self.start();
                self.deleted.clear();
            }
            1 => {
                *engine = self.start();
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
        self.list(engine, rng.bool());
    }

    /// Compares every pair of addresses.
    fn compare(&mut self, seed: u64, engine: &mut Engine) -> u64 {
        self.relist(engine);
        self.cluster.pods = self.pods();
        engine.compile_pending();
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
        let mut model = Model { has_keys: seed % 2 == 1, ..Model::default() };
        let mut engine = model.start();
        model.list(&mut engine, false);
        let mut compared = 0;
        for _ in 0..60 {
            model.change(rng, &mut engine);
            if rng.u8(..4) == 0 {
                compared += model.compare(seed, &mut engine);
            }
        }
        compared + model.compare(seed, &mut engine)
    });
    assert!(compared > 0);
}
