//! Requirements that every case checks on its IPInstances.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;
use trunkline_api::kube::IPInstanceObject;
use trunkline_api::resources::IpVersion;
use trunkline_controller::ipam::instance_name;

use super::step::{OURS, World, address};

/// Checks the IPInstances of a pod: names, labels, owner, finalizer, binding, and that the address
/// matches its Subnet and Network.
pub(super) fn well_formed(world: &World<'_>, pod: &DynamicObject, all: &[IPInstanceObject]) -> Result<()> {
    let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
    let node = pod.data["spec"]["nodeName"].as_str().unwrap_or_default();
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    let stateful = owner.filter(|owner| world.stateful.contains(&owner.kind.as_str()));
    let (kind, owner_name, owner_uid) = match stateful {
        Some(owner) => (owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()),
        None => ("Pod", name.as_str(), uid.as_str()),
    };
    let family = match all {
        [_, _] => "DualStack",
        [one] if one.spec.address.version == IpVersion::V6 => "IPv6",
        _ => "IPv4",
    };
    for instance in all {
        let seen = format!("{instance:?}");
        let (spec, binding) = (&instance.spec, &instance.spec.binding);
        let subnet = world.get("Subnet", &spec.subnet)?.context("its Subnet")?;
        let network = world.get("Network", &spec.network)?.context("its Network")?;
        let (range, text) = (&subnet.data["spec"]["range"], address(instance));

        ensure!(instance.name_any() == instance_name(text.parse()?), "name: {seen}");
        let wanted = [
            ("version", "v1.2"),
            ("network", &spec.network),
            ("subnet", &spec.subnet),
            ("node", node),
            ("pod", &name),
            ("pod-uid", &uid),
        ];
        for (label, value) in wanted {
            let is = instance.labels().get(&format!("{OURS}{label}")).map(String::as_str);
            ensure!(is == Some(value), "label {label} is {is:?} and not {value:?}: {seen}");
        }
        let said = instance.annotations().get(&format!("{OURS}ip-family")).map(String::as_str);
        ensure!(said == Some(family), "annotation ip-family is {said:?} and not {family:?}: {seen}");
        ensure!(instance.finalizers() == [format!("{OURS}ip-allocated")], "finalizers: {seen}");
        // With a retention, only the binding has the workload.
        let references = instance.owner_references();
        if instance.annotations().contains_key("trunkline.io/workload-api-version") {
            ensure!(references.is_empty(), "owner and retention: {seen}");
        } else {
            let [reference] = references else { anyhow::bail!("one owner: {seen}") };
            owned(reference, (kind, owner_name, owner_uid)).with_context(|| seen.clone())?;
        }
        ensure!(subnet.data["spec"]["network"] == spec.network.as_str(), "network: {seen}");
        let length = range["cidr"].as_str().and_then(|cidr| cidr.split('/').nth(1)).context("a length")?;
        ensure!(spec.address.ip == format!("{text}/{length}"), "length {length}: {seen}");
        ensure!(spec.address.gateway == range["gateway"].as_str().unwrap_or_default(), "gateway: {seen}");
        let number = subnet.data["spec"]["netID"].as_u64().or(network.data["spec"]["netID"].as_u64());
        ensure!(spec.address.net_id.map(u64::from) == number, "netID {number:?}: {seen}");
        ensure!(
            spec.address.mac == all[0].spec.address.mac,
            "the two addresses have different MAC addresses: {seen}"
        );
        ensure!(binding.pod_name == name && binding.node_name == node, "binding: {seen}");
        let referred = &binding.referred_object;
        ensure!(
            (referred.kind.as_str(), referred.name.as_str(), referred.uid.as_str())
                == (kind, owner_name, owner_uid),
            "referred object {kind} {owner_name}: {seen}"
        );
        let ordinal = name.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse().ok());
        let index = binding.stateful.as_ref().map(|stateful| stateful.index);
        ensure!(index == stateful.map(|_| ordinal), "index: {seen}");
    }
    Ok(())
}

fn owned(reference: &OwnerReference, (kind, name, uid): (&str, &str, &str)) -> Result<()> {
    let is = (reference.kind.as_str(), reference.name.as_str(), reference.uid.as_str());
    ensure!(is == (kind, name, uid) && reference.controller == Some(true), "owner {kind} {name}");
    Ok(())
}

/// Checks that an IPInstance is for a future pod, and belongs to no pod and no node.
pub(super) fn reserved(instance: &IPInstanceObject) -> Result<()> {
    let (binding, seen) = (&instance.spec.binding, format!("{instance:?}"));
    ensure!(binding.node_name.is_empty() && binding.pod_uid.is_empty(), "bound: {seen}");
    ensure!(!binding.pod_name.is_empty(), "retained for no pod: {seen}");
    for label in ["node", "pod-uid"] {
        ensure!(!instance.labels().contains_key(&format!("{OURS}{label}")), "label {label}: {seen}");
    }
    ensure!(instance.finalizers() == [format!("{OURS}ip-allocated")], "finalizers: {seen}");
    ensure!(instance.metadata.deletion_timestamp.is_none(), "deleted: {seen}");
    let status = instance.status.clone().unwrap_or_default();
    ensure!(
        status.node_name.is_empty() && status.pod_name.is_empty() && status.sandbox_id.is_empty(),
        "its status shows the address as in use: {seen}"
    );
    Ok(())
}

/// The first difference between an object and the wanted values. Fields without a wanted value are
/// ignored; null means absent; lists are compared as a whole.
pub(super) fn difference(wanted: &Value, there: &Value) -> Option<String> {
    match (wanted, there) {
        (Value::Object(wanted), there) => wanted.iter().find_map(|(name, wanted)| {
            let there = there.get(name).unwrap_or(&Value::Null);
            difference(wanted, there).map(|found| format!(".{name}{found}"))
        }),
        (Value::Array(wanted), Value::Array(there)) if wanted.len() == there.len() => {
            wanted.iter().zip(there).find_map(|(wanted, there)| difference(wanted, there))
        }
        _ => (wanted != there).then(|| format!(" is {there} and not {wanted}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::difference;

    #[test]
    fn only_the_wanted_state_is_checked() {
        let there = json!({"a": {"b": 1, "c": [{"d": 2, "e": 3}]}});
        for wanted in [
            json!({}),
            json!({"a": {"b": 1}}),
            json!({"a": {"c": [{"d": 2}]}}),
            json!({"x": null, "a": {"x": null}}),
        ] {
            assert_eq!(difference(&wanted, &there), None, "{wanted}");
        }
        for (wanted, found) in [
            (json!({"a": {"b": 2}}), ".a.b is 1 and not 2"),
            (json!({"a": {"b": null}}), ".a.b is 1 and not null"),
            (json!({"a": {"c": []}}), ".a.c is [{\"d\":2,\"e\":3}] and not []"),
            (json!({"x": {"y": 1}}), ".x.y is null and not 1"),
        ] {
            assert_eq!(difference(&wanted, &there).as_deref(), Some(found));
        }
    }
}
