//! Entries of network policies that are not in force as written. The agents enforce them as
//! [`trunkline_api::network_policy`] defines; the leader reports them, because nothing else shows
//! them to the author of the policy.
//!
//! A policy gets an event when its faults change, and a gauge has the number of policies with
//! faults. Only these policies have a row.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;

use trunkline_api::kept;

use crate::cluster::{Key, Table};
use crate::events::{Events, reason};

/// Most octets of the text about a policy. An event has at most 1024.
const MAX_TEXT: usize = 900;

/// A kind of policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// NetworkPolicies.
    Network,
    /// ClusterNetworkPolicies. Their keys have no Namespace.
    Cluster,
}

impl PolicyKind {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [PolicyKind; 2] = [PolicyKind::Network, PolicyKind::Cluster];

    /// The kind in the API server, and value of the metric's label `kind`.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Network => "NetworkPolicy",
            PolicyKind::Cluster => "ClusterNetworkPolicy",
        }
    }

    fn api_version(self) -> &'static str {
        match self {
            PolicyKind::Network => "networking.k8s.io/v1",
            PolicyKind::Cluster => "policy.networking.k8s.io/v1beta1",
        }
    }
}

/// The faults of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FaultyPolicy {
    uid: Arc<str>,
    text: String,
}

/// The policies with faults of a term.
#[derive(Default)]
pub struct PolicyFaults {
    tables: [Table<Key, FaultyPolicy>; PolicyKind::ALL.len()],
    events: Option<Events>,
}

impl PolicyFaults {
    /// Begins a term without policies.
    pub fn new(events: Events) -> Self {
        PolicyFaults { events: Some(events), ..PolicyFaults::default() }
    }

    /// Number of policies with faults.
    pub fn count(&self, kind: PolicyKind) -> usize {
        self.tables[kind as usize].len()
    }

    /// A list begins.
    pub fn begin(&mut self, kind: PolicyKind) {
        self.tables[kind as usize].begin();
    }

    /// Handles an added or changed policy. Returns whether its faults are new.
    pub fn set(&mut self, kind: PolicyKind, key: &Key, uid: &str, faults: &[String]) -> bool {
        let table = &mut self.tables[kind as usize];
        if faults.is_empty() {
            table.remove(key);
            return false;
        }
        let policy = FaultyPolicy { uid: uid.into(), text: kept::join(faults, MAX_TEXT) };
        if table.set(key.clone(), policy.clone()).as_ref() == Some(&policy) {
            return false;
        }
        tracing::warn!(kind = kind.name(), policy = %key, faults = policy.text, "a network policy is not in force as written");
        if let Some(events) = &self.events {
            let about = ObjectReference {
                api_version: Some(kind.api_version().to_owned()),
                kind: Some(kind.name().to_owned()),
                namespace: Some(key.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
                name: Some(key.name.to_string()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            };
            events.warning(about, reason::INVALID_POLICY_ENTRY, policy.text);
        }
        true
    }

    /// Handles a deleted policy.
    pub fn remove(&mut self, kind: PolicyKind, key: &Key) {
        self.tables[kind as usize].remove(key);
    }

    /// The list is complete.
    pub fn end(&mut self, kind: PolicyKind) {
        let table = &mut self.tables[kind as usize];
        for key in table.end() {
            table.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: PolicyKind = PolicyKind::Network;

    fn set(faults: &mut PolicyFaults, name: &str, uid: &str, texts: &[&str]) -> bool {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        faults.set(KIND, &Key::new("default", name), uid, &texts)
    }

    #[test]
    fn kinds_are_in_the_order_of_their_discriminants() {
        for (index, kind) in PolicyKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[test]
    fn faults_are_reported_when_they_change() {
        let mut faults = PolicyFaults::default();
        faults.begin(KIND);
        assert!(!set(&mut faults, "good", "u1", &[]));
        assert!(set(&mut faults, "bad", "u2", &["a"]));
        faults.end(KIND);
        assert_eq!((faults.count(KIND), faults.count(PolicyKind::Cluster)), (1, 0));
        assert!(!set(&mut faults, "bad", "u2", &["a"]), "a change elsewhere in the policy");
        assert!(set(&mut faults, "bad", "u2", &["a", "b"]));
        assert!(set(&mut faults, "bad", "u3", &["a", "b"]), "a new policy of the same name");
        assert!(!set(&mut faults, "bad", "u3", &[]));
        assert_eq!(faults.count(KIND), 0);
    }

    #[test]
    fn text_about_a_policy_is_bounded() {
        let many: Vec<String> = (0..10_000).map(|number| format!("spec.ingress[{number}]: x")).collect();
        let mut faults = PolicyFaults::default();
        assert!(faults.set(KIND, &Key::new("default", "bad"), "u", &many));
        let text = &faults.tables[KIND as usize].get(&Key::new("default", "bad")).unwrap().text;
        assert!(text.len() < 1024 && text.ends_with(" more faults"), "{text}");
    }

    #[test]
    fn a_new_list_repeats_no_event_and_removes_deleted_policies() {
        let mut faults = PolicyFaults::default();
        for (name, is_new) in [("a", true), ("b", true), ("a", false)] {
            assert_eq!(set(&mut faults, name, name, &["x"]), is_new);
        }
        faults.begin(KIND);
        assert!(!set(&mut faults, "a", "a", &["x"]));
        faults.end(KIND);
        assert_eq!(faults.count(KIND), 1);
        faults.remove(KIND, &Key::new("default", "a"));
        assert_eq!(faults.count(KIND), 0);
    }
}
