//! Random changes of Services and pools, lost requests and answers, and crashes between writes,
//! against an API server in memory ([`super::fake`]).
//!
//! After each write: no status has an address without a claim that names the Service. At rest: no
//! claim is left over, an address is in several statuses only with one sharing key and different
//! ports, no free address is withheld from a Service, and a new leader changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::advance;

use super::fake::{FakeLeader, Fate, Store, key};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Properties of a Service.
#[derive(Clone, Debug)]
struct Kind {
    families: usize,
    requested: usize,
    sharing_key: usize,
    ports: usize,
    local: bool,
    pool: bool,
}

const FAMILIES: [(&[&str], &str); 4] = [
    (&["IPv4"], "SingleStack"),
    (&["IPv6"], "SingleStack"),
    (&["IPv4", "IPv6"], "PreferDualStack"),
    (&["IPv6", "IPv4"], "RequireDualStack"),
];
const REQUESTED: [&str; 5] = ["", "", "10.0.0.2", "10.0.0.2,fd00::2", "10.9.9.9"];
const KEYS: [&str; 3] = ["", "k", "l"];
const PORTS: [&[u16]; 3] = [&[80], &[81], &[80, 82]];

impl Kind {
    fn metadata(&self) -> Value {
        let mut annotations = BTreeMap::new();
        annotations.insert("trunkline.io/addresses", REQUESTED[self.requested]);
        annotations.insert("trunkline.io/sharing-key", KEYS[self.sharing_key]);
        if self.pool {
            annotations.insert("trunkline.io/pool", "p2");
        }
        json!({ "annotations": annotations })
    }

    fn spec(&self, class: &str) -> Value {
        let (families, policy) = FAMILIES[self.families];
        let ports: Vec<Value> = PORTS[self.ports].iter().map(|port| json!({ "port": port })).collect();
        json!({
            "type": "LoadBalancer", "loadBalancerClass": class, "ipFamilies": families, "ipFamilyPolicy": policy,
            "ports": ports, "externalTrafficPolicy": if self.local { "Local" } else { "Cluster" },
        })
    }
}

const OURS: &str = "trunkline.io/load-balancer";

fn kind() -> impl Strategy<Value = Kind> {
    (0..4usize, 0..5usize, 0..3usize, 0..3usize, prop::bool::weighted(0.2), prop::bool::weighted(0.2))
        .prop_map(|(families, requested, sharing_key, ports, local, pool)| Kind {
            families,
            requested,
            sharing_key,
            ports,
            local,
            pool,
        })
}

#[derive(Clone, Debug)]
enum Move {
    /// A user creates a Service, or a new one of the same name.
    Create(usize, Kind),
    /// A user changes a Service.
    Change(usize, Kind),
    /// A user deletes a Service.
    Delete(usize),
    /// A Service becomes one of another type. The API server clears its addresses then.
    ClusterIp(usize),
    /// The leader works on a Service. Its first requests have these fates.
    Work(usize, Vec<Fate>),
    /// Another process leads.
    Lead,
    /// Late creates of earlier leaders arrive.
    Late,
    /// A second pool appears or disappears.
    Pool(bool),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Answered),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Late),
        1 => Just(Fate::CrashAfter),
        1 => Just(Fate::CrashBefore),
    ]
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => (0..5usize, kind()).prop_map(|(name, kind)| Move::Create(name, kind)),
        4 => (0..5usize, kind()).prop_map(|(name, kind)| Move::Change(name, kind)),
        2 => (0..5usize).prop_map(Move::Delete),
        1 => (0..5usize).prop_map(Move::ClusterIp),
        16 => (0..5usize, prop::collection::vec(fate(), 0..4)).prop_map(|(name, fates)| Move::Work(name, fates)),
        1 => Just(Move::Lead),
        1 => Just(Move::Late),
        1 => any::<bool>().prop_map(Move::Pool),
    ]
}

struct World {
    store: Arc<Mutex<Store>>,
    leader: FakeLeader,
    kinds: BTreeMap<usize, Kind>,
    second: bool,
    numbers: u32,
}

impl World {
    fn new() -> Self {
        let store = Arc::new(Mutex::new(Store::default()));
        let leader = FakeLeader::new(&store);
        let world = World { store, leader, kinds: BTreeMap::new(), second: true, numbers: 0 };
        world.leader.begin(&world.pools());
        world
    }

    fn pools(&self) -> Vec<(&'static str, Value)> {
        let first = ("p1", json!({"addresses": ["10.0.0.1-10.0.0.3", "fd00::1-fd00::3"]}));
        let second = ("p2", json!({"addresses": ["10.0.1.1"], "priority": 200}));
        if self.second { vec![first, second] } else { vec![first] }
    }

    /// Another process leads, with new lists.
    fn lead(&mut self) {
        self.store.lock().unwrap().dead = false;
        self.store.lock().unwrap().fates.clear();
        self.leader = FakeLeader::new(&self.store);
        self.leader.begin(&self.pools());
    }

    /// Creates or changes a Service, which keeps its status.
    fn put(&mut self, index: usize, kind: Kind, new: bool) {
        let name = NAMES[index];
        let mut store = self.store.lock().unwrap();
        let before = store.services.get(&format!("default/{name}")).cloned();
        let (number, status) = match (&before, new) {
            (Some(before), false) => {
                let uid = before["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                (
                    uid.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap(),
                    before["status"].clone(),
                )
            }
            _ => {
                self.numbers += 1;
                (self.numbers, json!({}))
            }
        };
        store.put_service(name, number, &kind.metadata(), &kind.spec(OURS), status);
        drop(store);
        self.kinds.insert(index, kind);
        self.leader.show_services();
    }

    fn delete(&mut self, index: usize) {
        self.store.lock().unwrap().services.remove(&format!("default/{}", NAMES[index]));
        self.kinds.remove(&index);
        self.leader.show_services();
    }

    fn cluster_ip(&mut self, index: usize) {
        let mut store = self.store.lock().unwrap();
        if let Some(service) = store.services.get_mut(&format!("default/{}", NAMES[index])) {
            service["spec"] = json!({"type": "ClusterIP", "ipFamilies": ["IPv4"], "ports": [{"port": 80}]});
            service["status"]["loadBalancer"] = json!({});
            // A new version, as after each write.
            let (spec, status) = (service["spec"].clone(), service["status"].clone());
            let uid = service["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let number = uid.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap();
            store.put_service(NAMES[index], number, &json!({}), &spec, status);
        }
        drop(store);
        self.kinds.remove(&index);
        self.leader.show_services();
    }

    /// Works until nothing changes.
    async fn rest(&mut self) {
        self.store.lock().unwrap().fates.clear();
        if self.store.lock().unwrap().dead {
            self.lead();
        }
        self.store.lock().unwrap().deliver();
        // In the first round a Service may wait for an address that was released a moment ago.
        let mut quiet = 0;
        for _ in 0..20 {
            advance(Duration::from_secs(3)).await;
            let before = self.store.lock().unwrap().version();
            self.leader.show_claims();
            self.leader.show_services();
            for name in NAMES {
                self.leader.settle(name).await;
            }
            quiet = if self.store.lock().unwrap().version() == before { quiet + 1 } else { 0 };
            if quiet == 2 {
                return;
            }
        }
        panic!("the Services never rest");
    }

    fn statuses(&self) -> BTreeMap<usize, Vec<String>> {
        let store = self.store.lock().unwrap();
        (0..NAMES.len()).map(|index| (index, store.ingress(NAMES[index]))).collect()
    }

    /// The invariants at rest.
    fn check(&self) -> Result<(), TestCaseError> {
        let store = self.store.lock().unwrap();
        prop_assert_eq!(&store.violations, &Vec::<String>::new());
        prop_assert_eq!(store.unclaimed(), Vec::<String>::new());
        let mut users: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, name) in NAMES.iter().enumerate() {
            for address in store.ingress(name) {
                users.entry(address).or_default().push(index);
            }
        }
        for (address, users) in &users {
            let mut uids: Vec<String> = users
                .iter()
                .map(|index| store.services[&format!("default/{}", NAMES[*index])]["metadata"]["uid"].clone())
                .map(|uid| uid.as_str().unwrap_or_default().to_owned())
                .collect();
            uids.sort_unstable();
            let mut holders = store.holders(address).unwrap_or_default();
            holders.sort_unstable();
            prop_assert_eq!(holders, uids, "{}", address);
            let mut ports = BTreeSet::new();
            for index in users {
                let all = PORTS[self.kinds[index].ports];
                prop_assert!(all.iter().all(|port| ports.insert(*port)), "{}: equal ports", address);
            }
        }
        prop_assert_eq!(store.claims.len(), users.len(), "claims without a Service");
        let state = self.leader.context.shared.lock();
        let term = state.services.term.as_ref().unwrap();
        for name in NAMES {
            prop_assert!(term.ipam.pending(&key(name)).is_empty());
        }
        let used = ["p1", "p2"].map(|pool| term.ipam.usage(pool).unwrap_or_default());
        let used: u32 = used.iter().map(|usage| usage.v4.allocated + usage.v6.allocated).sum();
        prop_assert_eq!(used as usize + term.ipam.strays(), users.len());
        // A Service without a request has an address if one is free.
        for (index, kind) in &self.kinds {
            if !REQUESTED[kind.requested].is_empty() || kind.pool || kind.families == 3 {
                continue;
            }
            let usage = term.ipam.usage("p1").unwrap_or_default();
            let free = if kind.families == 1 { usage.v6 } else { usage.v4 }.available;
            let has = !store.ingress(NAMES[*index]).is_empty();
            prop_assert!(has || free == 0, "{} has no address, and {} are free", NAMES[*index], free);
        }
        Ok(())
    }

    async fn step(&mut self, step: Move) {
        match step {
            Move::Create(index, kind) => self.put(index, kind, true),
            Move::Change(index, kind) if self.kinds.contains_key(&index) => self.put(index, kind, false),
            Move::Change(..) => {}
            Move::Delete(index) => self.delete(index),
            Move::ClusterIp(index) => self.cluster_ip(index),
            Move::Work(index, fates) => {
                self.store.lock().unwrap().fates = fates.into();
                self.leader.work(NAMES[index]).await;
                if self.store.lock().unwrap().dead {
                    self.lead();
                }
            }
            Move::Lead => self.lead(),
            Move::Late => {
                self.store.lock().unwrap().deliver();
                self.leader.show_claims();
            }
            Move::Pool(second) => {
                self.second = second;
                if second {
                    let (name, spec) = &self.pools()[1];
                    self.leader.set_pool(name, spec);
                } else {
                    self.leader.context.shared.lock().services.remove_pool(&"p2".into());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn no_address_is_lost_leaked_or_given_twice(steps in prop::collection::vec(moves(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for step in steps {
                world.step(step).await;
            }
            world.rest().await;
            world.check()?;
            // A new leader changes nothing.
            let before = (world.statuses(), world.store.lock().unwrap().version());
            world.lead();
            world.rest().await;
            world.check()?;
            let after = (world.statuses(), world.store.lock().unwrap().version());
            prop_assert_eq!(before, after);
            Ok(())
        })?;
    }
}
