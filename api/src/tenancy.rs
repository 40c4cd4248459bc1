//! The Networks of the pods of a Namespace. The controller and its webhook enforce this binding with
//! `--tenancy`, the chart's `tenancy.enabled`; a ValidatingAdmissionPolicy checks it too.
//!
//! A Namespace that names a Network in the annotation or label
//! `networking.alibaba.com/specified-network` binds its pods to this Network, and to those of its
//! annotation `trunkline.io/allowed-networks`. It does not matter which annotation or label of a
//! pod requests an address of another Network: the decision is about the Network of the address.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::{annotation, label};

/// The Networks that a Namespace allows to its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkBinding {
    own: String,
    further: BTreeSet<String>,
}

/// A Network that a Namespace does not allow to its pods.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Namespace {namespace} allows its pods the Networks {allowed}, and not {}: name one of these Networks, or add \
     the other one to the Namespace's annotation {}",
    .network.as_deref().unwrap_or("one that follows from the node"), annotation::ALLOWED_NETWORKS
)]
pub struct NetworkNotAllowed {
    /// The Namespace.
    pub namespace: String,
    /// The Network; none if it is not known yet.
    pub network: Option<String>,
    allowed: String,
}

impl NetworkBinding {
    /// Reads the annotations and labels of a Namespace; none if it binds its pods to no Network.
    pub fn read(
        annotations: &BTreeMap<String, String>,
        labels: &BTreeMap<String, String>,
    ) -> Option<NetworkBinding> {
        let named = |map: &BTreeMap<String, String>, name: &str| {
            map.get(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let own = named(annotations, annotation::SPECIFIED_NETWORK)
            .or_else(|| named(labels, label::SPECIFIED_NETWORK))?;
        let further = annotations.get(annotation::ALLOWED_NETWORKS).map_or("", String::as_str);
        let further = further.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        Some(NetworkBinding { own, further: further.collect() })
    }

    /// Checks the Network of an address. `None` means that it is not known yet.
    ///
    /// # Errors
    /// The Namespace does not allow it.
    pub fn check(&self, namespace: &str, network: Option<&str>) -> Result<(), NetworkNotAllowed> {
        if network.is_some_and(|network| self.own == network || self.further.contains(network)) {
            return Ok(());
        }
        let further = self.further.iter().map(String::as_str).filter(|name| *name != self.own);
        Err(NetworkNotAllowed {
            namespace: namespace.to_owned(),
            network: network.map(str::to_owned),
            allowed: std::iter::once(self.own.as_str()).chain(further).collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_namespace_is_bound_by_annotation_or_label() {
        let own = [(annotation::SPECIFIED_NETWORK, "blue")];
        let other = [(label::SPECIFIED_NETWORK, "red")];
        for (annotations, labels, network) in [
            (&own[..], &[][..], Some("blue")),
            (&[], &other, Some("red")),
            (&own, &other, Some("blue")),
            (&[(annotation::SPECIFIED_NETWORK, " ")], &other, Some("red")),
            (&[(annotation::ALLOWED_NETWORKS, "blue")], &[], None),
            (&[], &[], None),
        ] {
            let found = NetworkBinding::read(&map(annotations), &map(labels));
            assert_eq!(
                found.map(|found| found.own),
                network.map(str::to_owned),
                "{annotations:?} {labels:?}"
            );
        }
    }

    #[test]
    fn only_own_and_listed_networks_are_allowed() {
        let annotations =
            [(annotation::SPECIFIED_NETWORK, "blue"), (annotation::ALLOWED_NETWORKS, "storage, media,,")];
        let binding = NetworkBinding::read(&map(&annotations), &map(&[])).unwrap();
        for (network, allowed) in [
            (Some("blue"), true),
            (Some("storage"), true),
            (Some("media"), true),
            (Some("red"), false),
            (Some(""), false),
            (Some("storage, media"), false),
            (None, false),
        ] {
            assert_eq!(binding.check("shop", network).is_ok(), allowed, "{network:?}");
        }
        assert_eq!(
            binding.check("shop", Some("red")).unwrap_err().to_string(),
            "Namespace shop allows its pods the Networks blue, media, storage, and not red: name one of these \
             Networks, or add the other one to the Namespace's annotation trunkline.io/allowed-networks"
        );
    }
}
