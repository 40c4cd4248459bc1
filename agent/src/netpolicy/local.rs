//! The pods of this node: each has the object of the API server and the links of its attachments.
//!
//! The two arrive separately. A pod object without a link has no rules yet; a link without its pod
//! object waits. The identity of a pod is its UID: after the replacement of a StatefulSet's pod, the
//! links of the old pod and the object of the new pod exist at the same time under one name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::feed::PodInput;
use super::input::{ObjectKey, Pod};
use super::labels::Labels;

/// A link of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyLink {
    /// Namespace and name of the pod.
    pub pod: ObjectKey,
    /// The pod's UID as the runtime passed it; empty if it passed none.
    pub uid: Arc<str>,
    /// The host interface.
    pub host_ifname: String,
    /// The index of the host interface.
    pub ifindex: u32,
    /// The addresses of the link.
    pub addresses: Vec<IpAddr>,
    /// Whether its packets pass the host's stack. Those of an IPVLAN slave do not.
    pub enforceable: bool,
    /// The pod's labels, if no API server has them.
    pub labels: Option<Labels>,
}

/// One pod.
#[derive(Debug, Default)]
struct Slot {
    /// The pod without addresses of links. None: its object has not arrived.
    pod: Option<Pod>,
    /// Whether the object is gone or ended. The pod stays while it has a link.
    gone: bool,
    /// Its links by the host interface.
    links: BTreeSet<String>,
}

/// Name and UID.
type Identity = (ObjectKey, Arc<str>);

/// The pods of this node.
#[derive(Debug)]
pub(super) struct LocalPods {
    node: Arc<str>,
    slots: BTreeMap<Identity, Slot>,
    links: BTreeMap<String, (Identity, PolicyLink)>,
    /// The UID of the object with this name.
    current: BTreeMap<ObjectKey, Arc<str>>,
}

/// A pod for the compiler, or its removal.
#[derive(Debug, PartialEq)]
pub(super) enum Row {
    Set(Pod),
    Remove(ObjectKey),
}

/// The compiler's key of a pod of this node. A pod's name has no slash.
fn row_key((key, uid): &Identity) -> ObjectKey {
    ObjectKey { namespace: key.namespace.clone(), name: format!("{}/{uid}", key.name).into() }
}

/// The name of a pod by the compiler's key.
pub(super) fn pod_name(key: &ObjectKey) -> ObjectKey {
    match key.name.split_once('/') {
        Some((name, _)) => ObjectKey { namespace: key.namespace.clone(), name: name.into() },
        None => key.clone(),
    }
}

impl LocalPods {
    pub(super) fn new(node: Arc<str>) -> LocalPods {
        LocalPods { node, slots: BTreeMap::new(), links: BTreeMap::new(), current: BTreeMap::new() }
    }

    /// Takes an object of a pod of this node.
    pub(super) fn apply(&mut self, input: PodInput) -> Vec<Row> {
        let PodInput { pod, uid, static_uid, ended } = input;
        let uid = static_uid.unwrap_or(uid);
        let key = pod.key.clone();
        let mut rows = Vec::new();
        if self.current.get(&key).is_some_and(|current| *current != uid) {
            rows.extend(self.delete(&key));
        }
        self.current.insert(key.clone(), uid.clone());
        self.adopt(&key, &uid);
        let identity = (key, uid);
        let slot = self.slots.entry(identity.clone()).or_default();
        (slot.pod, slot.gone) = (Some(pod), ended);
        rows.extend(self.row(&identity));
        rows
    }

    /// The object with this name is gone.
    pub(super) fn delete(&mut self, key: &ObjectKey) -> Option<Row> {
        let identity = (key.clone(), self.current.remove(key)?);
        self.slots.get_mut(&identity)?.gone = true;
        self.row(&identity)
    }

    /// The names of the objects that exist.
    pub(super) fn names(&self) -> impl Iterator<Item = &ObjectKey> {
        self.current.keys()
    }

    /// Takes a link.
    pub(super) fn attach(&mut self, link: PolicyLink) -> Vec<Row> {
        let mut rows: Vec<Row> = self.detach(&link.host_ifname).into_iter().collect();
        let uid = match self.current.get(&link.pod) {
            Some(current) if link.uid.is_empty() => current.clone(),
            _ => link.uid.clone(),
        };
        let identity = (link.pod.clone(), uid);
        let slot = self.slots.entry(identity.clone()).or_default();
        slot.links.insert(link.host_ifname.clone());
        if let Some(labels) = &link.labels {
            slot.pod = Some(Pod {
                key: link.pod.clone(),
                node: Arc::from(""),
                host_network: false,
                labels: labels.clone(),
                addresses: Vec::new(),
                ports: Vec::new(),
            });
            slot.gone = true;
        }
        self.links.insert(link.host_ifname.clone(), (identity.clone(), link));
        rows.extend(self.row(&identity));
        rows
    }

    /// A link is gone.
    pub(super) fn detach(&mut self, host_ifname: &str) -> Option<Row> {
        let (identity, _) = self.links.remove(host_ifname)?;
        self.slots.get_mut(&identity)?.links.remove(host_ifname);
        self.row(&identity)
    }

    /// The object of a link's pod is known.
    pub(super) fn has_pod(&self, host_ifname: &str) -> bool {
        let identity = self.links.get(host_ifname).map(|(identity, _)| identity);
        identity.and_then(|identity| self.slots.get(identity)).is_some_and(|slot| slot.pod.is_some())
    }

    /// A link by its host interface.
    pub(super) fn link(&self, host_ifname: &str) -> Option<&PolicyLink> {
        self.links.get(host_ifname).map(|(_, link)| link)
    }

    /// The compiler's key of a link's pod.
    pub(super) fn row_of_link(&self, host_ifname: &str) -> Option<ObjectKey> {
        self.links.get(host_ifname).map(|(identity, _)| row_key(identity))
    }

    /// The objects that exist, and those that are gone and have a link, with the UIDs that the
    /// kubelet passes.
    pub(super) fn objects(&self) -> impl Iterator<Item = PodInput> {
        let counts = |slot: &Slot| !slot.gone || !slot.links.is_empty();
        self.slots.iter().filter(move |(_, slot)| counts(slot)).filter_map(|((_, uid), slot)| {
            let pod = slot.pod.clone()?;
            Some(PodInput { pod, uid: uid.clone(), static_uid: None, ended: false })
        })
    }

    /// All rows for the compiler.
    pub(super) fn rows(&self) -> Vec<Pod> {
        self.slots.keys().filter_map(|identity| self.merged(identity)).collect()
    }

    /// The links of a pod by the compiler's key.
    pub(super) fn links_of(&self, row: &ObjectKey) -> Vec<&PolicyLink> {
        let Some((name, uid)) = row.name.split_once('/') else { return Vec::new() };
        let identity = (ObjectKey { namespace: row.namespace.clone(), name: name.into() }, Arc::from(uid));
        let Some(slot) = self.slots.get(&identity) else { return Vec::new() };
        slot.links.iter().filter_map(|name| self.link(name)).collect()
    }

    /// All links.
    pub(super) fn links(&self) -> impl Iterator<Item = &PolicyLink> {
        self.links.values().map(|(_, link)| link)
    }

    /// Links without a UID belong to the object that has their pod's name.
    fn adopt(&mut self, key: &ObjectKey, uid: &Arc<str>) {
        let unnamed = (key.clone(), Arc::from(""));
        if uid.is_empty() || self.slots.get(&unnamed).is_none_or(|slot| slot.pod.is_some()) {
            return;
        }
        let Some(slot) = self.slots.remove(&unnamed) else { return };
        let identity = (key.clone(), uid.clone());
        for name in &slot.links {
            if let Some((of, _)) = self.links.get_mut(name) {
                *of = identity.clone();
            }
        }
        self.slots.entry(identity).or_default().links.extend(slot.links);
    }

    /// The row of a pod after a change.
    fn row(&mut self, identity: &Identity) -> Option<Row> {
        let slot = self.slots.get(identity)?;
        if slot.links.is_empty() && (slot.gone || slot.pod.is_none()) {
            self.slots.remove(identity);
            return Some(Row::Remove(row_key(identity)));
        }
        self.merged(identity).map(Row::Set)
    }

    /// The object of a pod with the addresses of its links.
    fn merged(&self, identity: &Identity) -> Option<Pod> {
        let slot = self.slots.get(identity)?;
        let mut pod = slot.pod.clone()?;
        (pod.key, pod.node) = (row_key(identity), self.node.clone());
        if !slot.links.is_empty() {
            let links = slot.links.iter().filter_map(|name| self.link(name));
            pod.addresses = links.flat_map(|link| link.addresses.iter().copied()).collect();
        }
        Some(pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(uid: &str, label: &str) -> PodInput {
        PodInput {
            pod: Pod {
                key: ObjectKey::new("shop", "db-0"),
                node: "here".into(),
                host_network: false,
                labels: Labels::from_iter([("app", label)]),
                addresses: Vec::new(),
                ports: Vec::new(),
            },
            uid: uid.into(),
            static_uid: None,
            ended: false,
        }
    }

    fn link(uid: &str, ifname: &str, address: &str) -> PolicyLink {
        PolicyLink {
            pod: ObjectKey::new("shop", "db-0"),
            uid: uid.into(),
            host_ifname: ifname.to_owned(),
            ifindex: 7,
            addresses: vec![address.parse().unwrap()],
            enforceable: true,
            labels: None,
        }
    }

    fn shown(rows: impl IntoIterator<Item = Row>) -> Vec<String> {
        let text = |row| match row {
            Row::Set(pod) => format!("{} {:?} {:?}", pod.key, pod.labels.get("app"), pod.addresses),
            Row::Remove(key) => format!("-{key}"),
        };
        rows.into_iter().map(text).collect()
    }

    #[test]
    fn addresses_are_those_of_the_links() {
        let mut pods = LocalPods::new("here".into());
        assert_eq!(shown(pods.apply(input("a", "x"))), ["shop/db-0/a Some(\"x\") []"]);
        assert_eq!(shown(pods.attach(link("a", "tl1", "10.0.0.1"))), ["shop/db-0/a Some(\"x\") [10.0.0.1]"]);
        let both = ["shop/db-0/a Some(\"x\") [10.0.0.1, 10.0.0.2]"];
        assert_eq!(shown(pods.attach(link("a", "tl2", "10.0.0.2"))), both);
        assert_eq!(shown(pods.detach("tl1")), ["shop/db-0/a Some(\"x\") [10.0.0.2]"]);
    }

    #[test]
    fn the_links_of_a_replaced_pod_keep_its_labels() {
        let mut pods = LocalPods::new("here".into());
        pods.apply(input("a", "x"));
        pods.attach(link("a", "tl1", "10.0.0.1"));
        let rows = shown(pods.apply(input("b", "y")));
        assert_eq!(rows, ["shop/db-0/a Some(\"x\") [10.0.0.1]", "shop/db-0/b Some(\"y\") []"]);
        assert_eq!(shown(pods.attach(link("b", "tl2", "10.0.0.1"))), ["shop/db-0/b Some(\"y\") [10.0.0.1]"]);
        assert_eq!(shown(pods.detach("tl1")), ["-shop/db-0/a"]);
        assert_eq!(
            shown(pods.delete(&ObjectKey::new("shop", "db-0"))),
            ["shop/db-0/b Some(\"y\") [10.0.0.1]"]
        );
        assert_eq!(shown(pods.detach("tl2")), ["-shop/db-0/b"]);
        assert!(pods.slots.is_empty() && pods.links.is_empty());
    }

    #[test]
    fn a_link_waits_for_its_pod() {
        let mut pods = LocalPods::new("here".into());
        pods.apply(input("a", "x"));
        assert_eq!(shown(pods.attach(link("b", "tl1", "10.0.0.1"))), [""; 0]);
        assert!(!pods.has_pod("tl1"));
        pods.apply(input("b", "y"));
        assert!(pods.has_pod("tl1"));
        // A runtime that passes no UID.
        let mut pods = LocalPods::new("here".into());
        pods.attach(link("", "tl1", "10.0.0.1"));
        assert!(!pods.has_pod("tl1"));
        assert_eq!(shown(pods.apply(input("b", "y"))), ["shop/db-0/b Some(\"y\") [10.0.0.1]"]);
        assert!(pods.has_pod("tl1"));
    }

    #[test]
    fn a_static_pod_has_the_uid_of_its_kubelet() {
        let mut pods = LocalPods::new("here".into());
        pods.apply(PodInput { static_uid: Some("s".into()), ..input("a", "x") });
        pods.attach(link("s", "tl1", "10.0.0.1"));
        assert!(pods.has_pod("tl1"));
    }

    #[test]
    fn labels_of_the_runtime_need_no_object() {
        let mut pods = LocalPods::new("here".into());
        let labels = Some(Labels::from_iter([("app", "web")]));
        let rows = pods.attach(PolicyLink { labels, ..link("", "tl1", "10.0.0.1") });
        assert_eq!(shown(rows), ["shop/db-0/ Some(\"web\") [10.0.0.1]"]);
        assert_eq!(shown(pods.detach("tl1")), ["-shop/db-0/"]);
    }
}
