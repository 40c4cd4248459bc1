//! An auditor of service addresses. It watches Services and ServiceAddresses (claims), and replays
//! their changes in etcd's order.
//!
//! The two watches arrive independently of each other, but all versions are those of one etcd. So
//! the changes are sorted by version and replayed at the end: at no moment may a status have an
//! address without a claim that names the Service, and two Services have one address only if its
//! claim has a sharing key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use trunkline_api::kube::Lenient;
use trunkline_api::resources::ServiceAddressSpec;
use trunkline_controller::watch::delays::Delays;

use super::Cluster;

/// A Service, as one version of it was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Published {
    /// Its UID.
    pub uid: String,
    /// The addresses of its status.
    pub addresses: Vec<String>,
}

/// A claim, as one version of it was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Held {
    sharing_key: String,
    /// UIDs of its Services.
    uids: BTreeSet<String>,
}

/// A change: the object's key, and its state, or its end.
#[derive(Debug, Clone)]
enum Change {
    Service(String, Option<Published>),
    Claim(String, Option<Held>),
}

/// The state of the auditor.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The present Services of type LoadBalancer by `namespace/name`.
    pub services: BTreeMap<String, Published>,
    /// The addresses of the present claims.
    pub claims: BTreeSet<String>,
    /// Unreadable claims.
    pub faults: Vec<String>,
    /// Number of Services that got an address.
    pub given: u64,
    history: Vec<(u64, Change)>,
}

impl Seen {
    fn record(&mut self, version: Option<String>, change: Change) {
        let version = version.and_then(|version| version.parse().ok()).unwrap_or(u64::MAX);
        match &change {
            Change::Service(key, Some(published)) => {
                let old = self.services.insert(key.clone(), published.clone());
                let had = old.is_some_and(|old| !old.addresses.is_empty());
                self.given += u64::from(!had && !published.addresses.is_empty());
            }
            Change::Service(key, None) => drop(self.services.remove(key)),
            Change::Claim(address, Some(_)) => drop(self.claims.insert(address.clone())),
            Change::Claim(address, None) => drop(self.claims.remove(address)),
        }
        self.history.push((version, change));
    }

    /// All violations so far, at most one for each address and kind.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut history = self.history.clone();
        history.sort_by_key(|(version, _)| *version);
        let mut services: BTreeMap<String, Published> = BTreeMap::new();
        let mut claims: BTreeMap<String, Held> = BTreeMap::new();
        let mut found = BTreeMap::new();
        for (version, change) in history {
            match change {
                Change::Service(key, Some(published)) => drop(services.insert(key, published)),
                Change::Service(key, None) => drop(services.remove(&key)),
                Change::Claim(address, Some(held)) => drop(claims.insert(address, held)),
                Change::Claim(address, None) => drop(claims.remove(&address)),
            }
            let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (key, Published { uid, addresses }) in &services {
                for address in addresses {
                    users.entry(address).or_default().push(key);
                    let claimed = claims.get(address).is_some_and(|held| held.uids.contains(uid));
                    if !claimed {
                        let text = format!("version {version}: {key} ({uid}) has {address} without a claim");
                        found.entry((address.clone(), "claim")).or_insert(text);
                    }
                }
            }
            for (address, users) in users.iter().filter(|(_, users)| users.len() > 1) {
                if claims.get(*address).is_none_or(|held| held.sharing_key.is_empty()) {
                    let text =
                        format!("version {version}: {address} is in the statuses of {}", users.join(" and "));
                    found.entry(((*address).to_owned(), "twice")).or_insert(text);
                }
            }
        }
        found.into_values().collect()
    }
}

/// A running auditor, until the value is dropped.
pub(crate) struct ServiceAuditor {
    seen: Arc<Mutex<Seen>>,
    changes: watch::Receiver<u64>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl ServiceAuditor {
    /// Starts the auditor, and waits until both first lists are complete.
    pub(crate) fn open(cluster: &Cluster) -> Result<Self> {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (changed, changes) = watch::channel(0);
        let (listed, mut lists) = watch::channel(0);
        let notify = (changed, listed);
        let services = audit(
            Api::<Service>::all(cluster.client()),
            Arc::clone(&seen),
            notify.clone(),
            |service| (service.resource_version(), published(service)),
            |service| Change::Service(key_of(service), None),
        );
        let claims = audit(
            Api::<Lenient<ServiceAddressSpec>>::all(cluster.client()),
            Arc::clone(&seen),
            notify,
            |claim| (claim.resource_version(), held(claim)),
            |claim| Change::Claim(address_of(claim), None),
        );
        let tasks = [cluster.spawn(services), cluster.spawn(claims)];
        let auditor = Self { seen, changes, tasks };
        cluster.wait(async {
            let both = lists.wait_for(|lists| *lists >= 2);
            match tokio::time::timeout(Duration::from_secs(60), both).await {
                Ok(Ok(_)) => Ok(()),
                _ => bail!("Services and ServiceAddresses were not listed"),
            }
        })?;
        Ok(auditor)
    }

    /// The current state.
    pub(crate) fn now(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repeats the look-up after every change until it has a result.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        bound: Duration,
        mut look: impl FnMut(&Seen) -> Option<T>,
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
            Ok(None) => bail!("waited for {what}, and the watches ended"),
            Err(_) => {
                let seen = self.now();
                bail!(
                    "waited {} s for {what}; Services: {:?}; claims: {:?}",
                    bound.as_secs(),
                    seen.services,
                    seen.claims
                )
            }
        }
    }
}

impl Drop for ServiceAuditor {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

async fn audit<K>(
    api: Api<K>,
    seen: Arc<Mutex<Seen>>,
    (changed, listed): (watch::Sender<u64>, watch::Sender<u64>),
    state: impl Fn(&K) -> (Option<String>, Result<Change, String>),
    end: impl Fn(&K) -> Change,
) where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).backoff(Delays::default()));
    while let Some(event) = events.next().await {
        {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    match state(&object) {
                        (version, Ok(change)) => seen.record(version, change),
                        (_, Err(fault)) => seen.faults.push(fault),
                    }
                }
                Ok(watcher::Event::Delete(object)) => seen.record(object.resource_version(), end(&object)),
                Ok(watcher::Event::InitDone) => listed.send_modify(|count| *count += 1),
                // An error is an outage, after which the watcher continues.
                Ok(watcher::Event::Init) | Err(_) => {}
            }
        }
        changed.send_modify(|count| *count += 1);
    }
}

fn key_of(service: &Service) -> String {
    format!("{}/{}", service.namespace().unwrap_or_default(), service.name_any())
}

fn published(service: &Service) -> Result<Change, String> {
    let key = key_of(service);
    let is_balancer = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
    if !is_balancer {
        return Ok(Change::Service(key, None));
    }
    let points = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = points.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    let addresses = points.filter_map(|point| point.ip.clone()).collect();
    Ok(Change::Service(key, Some(Published { uid: service.uid().unwrap_or_default(), addresses })))
}

fn address_of(claim: &Lenient<ServiceAddressSpec>) -> String {
    match &claim.0 {
        Ok(object) => object.spec.address.clone(),
        Err(_) => claim.name_any(),
    }
}

fn held(claim: &Lenient<ServiceAddressSpec>) -> Result<Change, String> {
    let object = claim.0.as_ref().map_err(|unreadable| unreadable.to_string())?;
    let uids = object.spec.services.iter().map(|service| service.uid.clone()).collect();
    let held = Held { sharing_key: object.spec.sharing_key.clone(), uids };
    Ok(Change::Claim(object.spec.address.clone(), Some(held)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, addresses: &[&str]) -> Change {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        Change::Service(name.to_owned(), Some(Published { uid: format!("uid-{name}"), addresses }))
    }

    fn claim(address: &str, sharing_key: &str, names: &[&str]) -> Change {
        let uids = names.iter().map(|name| format!("uid-{name}")).collect();
        Change::Claim(address.to_owned(), Some(Held { sharing_key: sharing_key.to_owned(), uids }))
    }

    /// The violations of changes that arrive in any order.
    fn found(changes: Vec<(u64, Change)>) -> Vec<String> {
        let mut seen = Seen::default();
        for (version, change) in changes {
            seen.record(Some(version.to_string()), change);
        }
        seen.violations()
    }

    #[test]
    fn changes_are_replayed_in_order_of_their_versions() {
        let good = vec![
            (4, service("a", &["10.0.0.1"])),
            (7, service("b", &["10.0.0.1"])),
            (1, service("a", &[])),
            (3, claim("10.0.0.1", "", &["a"])),
            (5, Change::Service("a".to_owned(), None)),
            (6, claim("10.0.0.1", "", &["b"])),
        ];
        assert_eq!(found(good), [""; 0]);
        let early = vec![(3, service("a", &["10.0.0.1"])), (4, claim("10.0.0.1", "", &["a"]))];
        assert_eq!(found(early), ["version 3: a (uid-a) has 10.0.0.1 without a claim"]);
        let removed = vec![
            (1, claim("10.0.0.1", "", &["a"])),
            (2, service("a", &["10.0.0.1"])),
            (3, Change::Claim("10.0.0.1".to_owned(), None)),
        ];
        assert_eq!(found(removed), ["version 3: a (uid-a) has 10.0.0.1 without a claim"]);
    }

    #[test]
    fn only_a_sharing_key_allows_an_address_in_two_statuses() {
        let both = |key: &str| {
            vec![
                (1, claim("10.0.0.1", key, &["a", "b"])),
                (2, service("a", &["10.0.0.1"])),
                (3, service("b", &["10.0.0.1"])),
            ]
        };
        assert_eq!(found(both("k")), [""; 0]);
        assert_eq!(found(both("")), ["version 3: 10.0.0.1 is in the statuses of a and b"]);
    }
}
