//! Each fault of a Service's request, with its condition and its event.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::pools::{ADDRESSES, KEY, POOL};
use super::world::{PATIENCE, World, both, ports, service};
use crate::shell::{Seen, wait_for};

impl World<'_> {
    /// Each fault, with its condition and event.
    pub(super) fn faults(&self) -> Result<usize> {
        let none = || json!({});
        let small = || json!({POOL: "small"});
        self.apply(&[service("small-1", small(), none()), service("small-2", small(), none())])?;
        self.wait("small-1", "10.62.0.")?;
        self.wait("small-2", "10.62.0.")?;
        let local = json!({"ports": ports(90), "externalTrafficPolicy": "Local"});
        let cases = [
            (
                "bad-full",
                small(),
                none(),
                "Exhausted",
                "no IPv4 address for default/bad-full: ServicePool small has 0 of 2 free: add addresses to it, or delete a Service",
            ),
            (
                "bad-outside",
                json!({ADDRESSES: "10.99.0.1"}),
                none(),
                "NotInPool",
                "10.99.0.1 cannot be given to default/bad-outside: no ServicePool has it: request an address of",
            ),
            (
                "bad-namespace",
                json!({ADDRESSES: "10.63.0.5"}),
                none(),
                "NotSelected",
                "ServicePool shop has it, but its namespaceSelectors do not select namespace default",
            ),
            (
                "bad-labels",
                json!({ADDRESSES: "10.64.0.5"}),
                none(),
                "NotSelected",
                "ServicePool gold has it, but its serviceSelectors do not select the labels of the Service",
            ),
            (
                "bad-taken",
                json!({ADDRESSES: "10.61.0.7"}),
                none(),
                "Taken",
                "Service default/metallb has it: request another one, or give both the same trunkline.io/sharing-key",
            ),
            (
                "bad-key",
                json!({ADDRESSES: "10.60.0.60", KEY: "l"}),
                json!({"ports": ports(90)}),
                "SharingKey",
                "Service default/share-1 shares it under another key",
            ),
            (
                "bad-no-key",
                json!({ADDRESSES: "10.61.0.7", KEY: "l"}),
                none(),
                "SharingKey",
                "Service default/metallb has it without a sharing key",
            ),
            (
                "bad-port",
                json!({ADDRESSES: "10.60.0.60", KEY: "k"}),
                json!({"ports": ports(81)}),
                "PortTaken",
                "TCP port 81 is used by default/share-2, which shares it: use another port",
            ),
            (
                "bad-policy",
                json!({ADDRESSES: "10.60.0.60", KEY: "k"}),
                local,
                "PolicyDiffers",
                "shares it with externalTrafficPolicy Cluster, and this Service has Local: one address is advertised from the same nodes for all",
            ),
            (
                "bad-family",
                json!({ADDRESSES: "fd00:60::5"}),
                none(),
                "FamilyMissing",
                "fd00:60::5 cannot be given to default/bad-family: the Service has only IPv4 (spec.ipFamilies): set ipFamilyPolicy: PreferDualStack, or leave the address out",
            ),
            (
                "bad-half",
                json!({POOL: "later"}),
                both(),
                "FamilyMissing",
                "no IPv6 address for default/bad-half: ServicePool later has none",
            ),
            (
                "bad-pool",
                json!({POOL: "silver"}),
                none(),
                "PoolUnknown",
                "trunkline.io/pool: there is no ServicePool silver: write ",
            ),
            (
                "bad-text",
                json!({ADDRESSES: "web"}),
                none(),
                "Annotation",
                "metadata.annotations[trunkline.io/addresses]: `web` is not an IP address",
            ),
        ];
        let objects: Vec<Value> = cases
            .iter()
            .map(|(name, annotations, spec, ..)| service(name, annotations.clone(), spec.clone()))
            .collect();
        self.apply(&objects)?;
        for (name, _, _, reason, text) in &cases {
            self.wait_fault(name, reason, text)?;
            ensure!(self.addresses(name)?.is_empty(), "{name} has {}", self.addresses(name)?);
        }
        // A released address goes to the Service that waits for it.
        self.delete("small-1")?;
        self.wait("bad-full", "10.62.0.")?;
        self.apply(&[service("bad-taken", none(), none())])?;
        self.wait("bad-taken", "10.60.0.")?;
        // A younger Service whose port becomes equal gets another address.
        self.apply(&[service("share-3", json!({KEY: "k"}), json!({"ports": ports(81)}))])?;
        wait_for("share-3 to have another address", PATIENCE, || {
            let has = self.addresses("share-3")?;
            Ok(Seen::when(!has.is_empty() && has != "10.60.0.60", || has))
        })?;
        for (name, ..) in &cases {
            self.delete(name)?;
        }
        Ok(cases.len())
    }
}
