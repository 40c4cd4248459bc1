//! Objects that admission refuses: overlaps, pools in use, and claims of others.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::world::World;

impl World<'_> {
    /// Objects that the webhook refuses, with its texts.
    pub(super) fn admission(&self) -> Result<usize> {
        let pool = |spec: Value| ("ServicePool", spec);
        let addresses = |texts: &[&str]| pool(json!({"addresses": texts}));
        let l2 = |text: &str| pool(json!({"addresses": [text], "mode": "L2", "l2": {"network": "vlan"}}));
        let advertisement = |spec: Value| ("ServiceAdvertisement", spec);
        let anycast = |text: &str| ("AnycastAddress", json!({"addresses": [text]}));
        let subnet =
            |cidr: &str| ("Subnet", json!({"network": "rack1", "range": {"version": "4", "cidr": cidr}}));
        let cases = [
            (addresses(&["10.80.0.0/24"]), ""),
            (
                addresses(&["10.10.0.0/28"]),
                "spec.addresses[0]: 10.10.0.0/28 overlaps 10.10.0.0/24 of Subnet rack1-v4: write addresses that no pod, pool, peer or node has",
            ),
            (
                addresses(&["10.80.0.0/24", "10.60.0.63"]),
                "spec.addresses[1]: 10.60.0.63 overlaps 10.60.0.0/26 of ServicePool usual",
            ),
            (addresses(&["172.16.0.0/24"]), "overlaps 172.16.0.1 of Node n1"),
            (addresses(&["10.77.1.0/24"]), "overlaps 10.77.0.0/16 of extraPrefixes of Network rack1"),
            (addresses(&["192.0.2.0/28"]), "from which Network rack1 accepts BGP peers"),
            (addresses(&["10.80.0.9-10.80.0.1"]), "write 10.80.0.1-10.80.0.9"),
            (l2("10.20.0.200-10.20.0.210"), ""),
            (l2("10.20.0.90-10.20.0.110"), "which Subnet vlan-v4 allocates or needs"),
            (l2("10.30.0.1"), "is not inside one Subnet of Network vlan"),
            (
                subnet("10.60.0.0/24"),
                "overlaps 10.60.0.0/26 of ServicePool usual, and an address would belong to a pod and to a Service",
            ),
            (advertisement(json!({})), ""),
            (
                advertisement(json!({"addresses": ["External"], "externalCIDRs": ["10.10.0.0/16"]})),
                "spec.externalCIDRs[0]: 10.10.0.0/16 overlaps 10.10.0.0/24 of Subnet rack1-v4",
            ),
            (
                advertisement(json!({"pools": ["small"], "aggregationLength": {"ipv4": 24}})),
                "the aggregate 10.62.0.0/24 has addresses outside of 10.62.0.1-10.62.0.2 of ServicePool small",
            ),
            (anycast("10.90.0.1"), ""),
            (anycast("10.60.0.7"), "spec.addresses[0]: 10.60.0.7 overlaps 10.60.0.0/26 of ServicePool usual"),
        ];
        let mut refused = 0;
        for ((kind, spec), text) in &cases {
            let group = if *kind == "Subnet" { "networking.alibaba.com/v1" } else { "trunkline.io/v1alpha1" };
            let object =
                json!({"apiVersion": group, "kind": kind, "metadata": {"name": "case"}, "spec": spec});
            refused += usize::from(self.expect(
                &["create", "--dry-run=server", "-f", "-"],
                &object.to_string(),
                text,
            )?);
        }
        // Used addresses keep their pool.
        let patch = r#"{"spec": {"addresses": ["10.61.0.0/30"]}}"#;
        refused += usize::from(self.expect(
            &["patch", "servicepool", "later", "--type=merge", "--patch", patch],
            "",
            "would not be in it any more: delete these Services first, or keep the range",
        )?);
        refused += usize::from(self.expect(
            &["delete", "servicepool", "later"],
            "",
            "its addresses are allocated: delete these Services first: 10.61.0.",
        )?);
        let warned = self.output(
            &["create", "--dry-run=server", "-f", "-"],
            &json!({"apiVersion": "trunkline.io/v1alpha1", "kind": "ServiceAdvertisement", "metadata": {"name": "case"},
                    "spec": {"peers": ["10.1.0.9"]}})
            .to_string(),
        )?;
        ensure!(warned.contains("Warning: spec.peers[0]: no Network has a BGP peer 10.1.0.9"), "{warned}");
        Ok(refused)
    }

    /// Only the controller creates and changes claims.
    pub(super) fn others_claims(&self) -> Result<()> {
        let claim = json!({
            "apiVersion": "trunkline.io/v1alpha1", "kind": "ServiceAddress", "metadata": {"name": "10-60-0-33"},
            "spec": {"address": "10.60.0.33", "pool": "usual", "services": [{"namespace": "default", "name": "x", "uid": "y"}]},
        });
        let text = "only Trunkline's controller creates and changes a ServiceAddress";
        self.expect(&["create", "--dry-run=server", "-f", "-"], &claim.to_string(), text)?;
        let patch = r#"{"spec": {"sharingKey": "mine"}}"#;
        self.expect(
            &["patch", "serviceaddress", "10-61-0-7", "--type=merge", "--dry-run=server", "--patch", patch],
            "",
            text,
        )?;
        Ok(())
    }
}
