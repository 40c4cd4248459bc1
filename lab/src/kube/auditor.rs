//! An auditor of addresses: it watches every IPInstance, and records each address that two
//! IPInstances have at the same time.
//!
//! One watch reports the changes of all namespaces in etcd's order, so a duplicate in the watch is
//! a real duplicate. An IPInstance with a deletion timestamp still has its address until it is
//! gone. After a gap (a long outage of the API server) a list replaces the watch. Then only the
//! result of the changes during the gap is visible.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use trunkline_api::kube::Lenient;
use trunkline_api::resources::IPInstanceSpec;
use trunkline_controller::watch::delays::Delays;

use super::Cluster;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// The relevant fields of an IPInstance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub address: IpAddr,
    /// The UID of its pod; empty while the address is retained.
    pub pod_uid: String,
    pub pod_name: String,
    pub node: String,
    /// The owner's kind: `StatefulSet` for a retained address.
    pub owner: String,
}

/// State of the auditor.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub instances: BTreeMap<Key, Held>,
    /// Every duplicate address found.
    pub twice: Vec<String>,
    /// Unreadable IPInstances.
    pub faults: Vec<String>,
    /// Number of IPInstances created since the start.
    pub made: u64,
    by_address: BTreeMap<IpAddr, BTreeSet<Key>>,
    by_pod: BTreeMap<String, (Instant, BTreeSet<Key>)>,
    /// The current list, until it is complete. Only a complete list shows the deletions during the
    /// gap.
    listing: Option<BTreeMap<Key, Held>>,
}

impl State {
    /// The addresses that are bound to a pod, by its UID.
    pub(crate) fn of_pod(&self, uid: &str) -> Vec<IpAddr> {
        let keys = self.by_pod.get(uid).map(|(_, keys)| keys);
        keys.into_iter().flatten().filter_map(|key| Some(self.instances.get(key)?.address)).collect()
    }

    /// The time at which the first IPInstance of this pod was seen.
    pub(crate) fn first_seen(&self, uid: &str) -> Option<Instant> {
        self.by_pod.get(uid).map(|(seen, _)| *seen)
    }

    fn apply(&mut self, key: Key, held: Held) {
        let before = self.remove(&key);
        self.made += u64::from(before.is_none());
        let holders = self.by_address.entry(held.address).or_default();
        holders.insert(key.clone());
        if holders.len() > 1 {
            let who: Vec<String> =
                holders.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
            self.twice.push(format!("{}: {}", held.address, who.join(" and ")));
        }
        if !held.pod_uid.is_empty() {
            let (_, keys) =
                self.by_pod.entry(held.pod_uid.clone()).or_insert_with(|| (Instant::now(), BTreeSet::new()));
            keys.insert(key.clone());
        }
        self.instances.insert(key, held);
    }

    fn remove(&mut self, key: &Key) -> Option<Held> {
        let held = self.instances.remove(key)?;
        if let Some(holders) = self.by_address.get_mut(&held.address) {
            holders.remove(key);
        }
        // The pod stays in the map, because its first time is needed after the pod is gone.
        if let Some((_, keys)) = self.by_pod.get_mut(&held.pod_uid) {
            keys.remove(key);
        }
        Some(held)
    }

    fn handle(&mut self, event: watcher::Event<Lenient<IPInstanceSpec>>) {
        match event {
            watcher::Event::Init => self.listing = Some(BTreeMap::new()),
            watcher::Event::InitDone => {
                let listed = self.listing.take().unwrap_or_default();
                let gone: Vec<Key> =
                    self.instances.keys().filter(|key| !listed.contains_key(*key)).cloned().collect();
                for key in gone {
                    self.remove(&key);
                }
                for (key, held) in listed {
                    self.apply(key, held);
                }
            }
            watcher::Event::Delete(instance) => {
                self.remove(&key_of(&instance));
            }
            watcher::Event::InitApply(instance) | watcher::Event::Apply(instance) => {
                let key = key_of(&instance);
                match (read(instance), &mut self.listing) {
                    (Ok(held), Some(listing)) => drop(listing.insert(key, held)),
                    (Ok(held), None) => self.apply(key, held),
                    (Err(fault), _) => self.faults.push(fault),
                }
            }
        }
    }
}

/// A running auditor, until the value is dropped.
pub(crate) struct AddressAuditor {
    client: Client,
    state: Arc<Mutex<State>>,
    changes: watch::Receiver<u64>,
    task: tokio::task::JoinHandle<()>,
}

impl AddressAuditor {
    /// Starts the auditor, and waits until the first list is complete.
    pub(crate) fn open(cluster: &Cluster) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let (changed, changes) = watch::channel(0);
        let task = cluster.spawn(audit(cluster.client(), Arc::clone(&state), changed));
        let auditor = Self { client: cluster.client(), state, changes, task };
        cluster.wait(auditor.until("the first list of IPInstances", Duration::from_secs(60), |state| {
            state.listing.is_none().then_some(())
        }))?;
        Ok(auditor)
    }

    /// The current state.
    pub(crate) fn now(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repeats the look-up after every change until it has a result.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        bound: Duration,
        mut look: impl FnMut(&State) -> Option<T>,
    ) -> Result<T> {
        let mut changes = self.changes.clone();
        let answer = async {
            loop {
                changes.borrow_and_update();
                if let Some(answer) = look(&self.now()) {
                    return Some(answer);
                }
                changes.changed().await.ok()?;
            }
        };
        match tokio::time::timeout(bound, answer).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => bail!("waited for {what}, and the watch of IPInstances ended"),
            Err(_) => bail!(
                "waited {} s for {what}; {} IPInstances are there",
                bound.as_secs(),
                self.now().instances.len()
            ),
        }
    }
}

impl AddressAuditor {
    /// What the API server has of a pod and its IPInstances, and what the watch has reported of them: for
    /// the text of a failure.
    pub(crate) async fn stored(&self, namespace: &str, pod: &str) -> String {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let instances: Api<Lenient<IPInstanceSpec>> = Api::namespaced(self.client.clone(), namespace);
        let found = pods.get_opt(pod).await;
        let uid =
            found.map(|found| found.map(|found| (found.metadata.uid, found.metadata.deletion_timestamp)));
        let listed = instances.list(&ListParams::default()).await.map(|listed| {
            let all = listed.items.into_iter().map(|instance| (key_of(&instance).1, read(instance)));
            all.filter(|(_, held)| held.as_ref().is_ok_and(|held| held.pod_name == pod)).collect::<Vec<_>>()
        });
        let watched: Vec<Held> =
            self.now().instances.values().filter(|held| held.pod_name == pod).cloned().collect();
        format!("the API server has pod {uid:?} and IPInstances {listed:?}; the watch has {watched:?}")
    }
}

impl Drop for AddressAuditor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn audit(client: Client, state: Arc<Mutex<State>>, changed: watch::Sender<u64>) {
    // The state is incomplete until the first list.
    state.lock().unwrap_or_else(PoisonError::into_inner).listing = Some(BTreeMap::new());
    let events = watcher(Api::<Lenient<IPInstanceSpec>>::all(client), watcher::Config::default());
    let mut events = std::pin::pin!(events.backoff(Delays::default()));
    while let Some(event) = events.next().await {
        // An error is an outage, after which the watcher continues.
        if let Ok(event) = event {
            state.lock().unwrap_or_else(PoisonError::into_inner).handle(event);
            changed.send_modify(|n| *n += 1);
        }
    }
}

fn key_of(instance: &Lenient<IPInstanceSpec>) -> Key {
    use kube::ResourceExt as _;
    (instance.namespace().unwrap_or_default(), instance.name_any())
}

fn read(instance: Lenient<IPInstanceSpec>) -> Result<Held, String> {
    let instance = instance.0.map_err(|unreadable| unreadable.to_string())?;
    let (address, binding) = (instance.spec.address, instance.spec.binding);
    let parsed = address.ip.split('/').next().and_then(|ip| ip.parse().ok());
    Ok(Held {
        address: parsed
            .ok_or_else(|| format!("{:?}: spec.address.ip {:?}", instance.metadata.name, address.ip))?,
        pod_uid: binding.pod_uid,
        pod_name: binding.pod_name,
        node: binding.node_name,
        owner: binding.referred_object.kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(address: &str, pod_uid: &str) -> Held {
        Held {
            address: address.parse().expect("an address"),
            pod_uid: pod_uid.to_owned(),
            pod_name: pod_uid.to_owned(),
            node: "n".to_owned(),
            owner: "Pod".to_owned(),
        }
    }

    fn key(namespace: &str, name: &str) -> Key {
        (namespace.to_owned(), name.to_owned())
    }

    #[test]
    fn an_address_in_two_namespaces_at_once_is_recorded() {
        let mut state = State::default();
        state.apply(key("a", "10-0-0-1"), held("10.0.0.1", "one"));
        state.remove(&key("a", "10-0-0-1"));
        state.apply(key("b", "10-0-0-1"), held("10.0.0.1", "two"));
        assert_eq!(state.twice, Vec::<String>::new());
        state.apply(key("a", "10-0-0-1"), held("10.0.0.1", "three"));
        assert_eq!(state.twice, ["10.0.0.1: a/10-0-0-1 and b/10-0-0-1"]);
        assert_eq!(state.made, 3);
    }

    #[test]
    fn a_list_removes_missing_objects_before_the_comparison() {
        let mut state = State::default();
        state.apply(key("a", "1"), held("10.0.0.1", "one"));
        state.apply(key("a", "2"), held("10.0.0.2", "two"));
        state.handle(watcher::Event::Init);
        state
            .listing
            .as_mut()
            .expect("a list")
            .extend([(key("b", "1"), held("10.0.0.1", "three")), (key("a", "2"), held("10.0.0.2", "two"))]);
        state.handle(watcher::Event::InitDone);
        assert_eq!(state.instances.keys().collect::<Vec<_>>(), [&key("a", "2"), &key("b", "1")]);
        assert_eq!(
            (state.of_pod("one").len(), state.of_pod("two").len(), state.of_pod("three").len()),
            (0, 1, 1)
        );
        assert_eq!(state.twice, Vec::<String>::new());
        state.handle(watcher::Event::Init);
        let same = [(key("a", "2"), held("10.0.0.2", "two")), (key("b", "2"), held("10.0.0.2", "four"))];
        state.listing.as_mut().expect("a list").extend(same);
        state.handle(watcher::Event::InitDone);
        assert_eq!(state.twice, ["10.0.0.2: a/2 and b/2"]);
    }
}
