//! Services of a test, by kubectl as the administrator.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use trunkline_controller::ipam::instance_name;

use crate::kube::Cluster;
use crate::shell::{Seen, run, run_with_input, wait_for};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const OURS: &str = "trunkline.io/load-balancer";

/// A cluster with pools.
pub(super) struct World<'a> {
    pub cluster: &'a Cluster,
}

/// A Service `name`, or `namespace/name`, with these annotations and fields of its spec.
pub(super) fn service(name: &str, annotations: Value, spec: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let mut all = json!({
        "type": "LoadBalancer", "loadBalancerClass": OURS, "ports": [{"port": 80, "name": "web"}],
        "allocateLoadBalancerNodePorts": false, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        all[field] = value.clone();
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations}, "spec": all,
    })
}

pub(super) fn ports(port: u16) -> Value {
    json!([{"port": port, "name": "web"}])
}

pub(super) fn both() -> Value {
    json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"})
}

impl World<'_> {
    pub(super) fn apply(&self, objects: &[Value]) -> Result<()> {
        let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
        self.cluster.apply(&texts.join("\n---\n")).map(drop)
    }

    pub(super) fn get(&self, name: &str) -> Result<Value> {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        let text = self.cluster.kubectl(["get", "service", name, "-n", namespace, "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The addresses in the status of a Service, separated by commas.
    pub(super) fn addresses(&self, name: &str) -> Result<String> {
        let service = self.get(name)?;
        let points = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
        let mut texts = Vec::new();
        for point in points {
            ensure!(point["ipMode"] == "VIP", "{name}: {point}");
            texts.push(point["ip"].as_str().context("an ip")?.to_owned());
        }
        Ok(texts.join(","))
    }

    /// Waits until the addresses of a Service begin like this, and its condition is true.
    pub(super) fn wait(&self, name: &str, start: &str) -> Result<String> {
        wait_for(&format!("{name} to have {start}"), PATIENCE, || {
            let has = self.addresses(name)?;
            let condition = self.condition(name)?;
            let is = has.starts_with(start) && !has.is_empty() && condition["status"] == "True";
            Ok(if is { Seen::Yes(has) } else { Seen::NotYet(format!("{has:?} {condition}")) })
        })
    }

    pub(super) fn condition(&self, name: &str) -> Result<Value> {
        let service = self.get(name)?;
        let conditions = service["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let own = conditions.into_iter().find(|one| one["type"] == "trunkline.io/AddressAllocated");
        Ok(own.unwrap_or(Value::Null))
    }

    /// Waits for an event on a Service with this text, and for the condition with the same text.
    pub(super) fn wait_fault(&self, name: &str, reason: &str, text: &str) -> Result<()> {
        wait_for(&format!("{name}: the condition {reason}: {text}"), PATIENCE, || {
            let condition = self.condition(name)?;
            let message = condition["message"].as_str().unwrap_or_default();
            let is = condition["reason"] == reason && message.contains(text);
            Ok(Seen::when(is, || condition.to_string()))
        })?;
        wait_for(&format!("{name}: an event with {text}"), PATIENCE, || {
            let events = self.events(name)?;
            let is = events.iter().any(|event| event.starts_with("AllocationFailed") && event.contains(text));
            Ok(Seen::when(is, || format!("{events:?}")))
        })
    }

    /// Reason and text of each event on a Service.
    pub(super) fn events(&self, name: &str) -> Result<Vec<String>> {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        let selector = format!("involvedObject.kind=Service,involvedObject.name={name}");
        let text = self.cluster.kubectl([
            "get",
            "events",
            "-n",
            namespace,
            "--field-selector",
            &selector,
            "-o",
            "json",
        ])?;
        let list: Value = serde_json::from_str(&text)?;
        let event = |event: &Value| {
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("reason"), text("message"))
        };
        // The API server writes such an event if its check of cluster IPs meets a new Service.
        let is_own = |event: &&Value| event["reason"] != "ClusterIPNotAllocated";
        Ok(list["items"].as_array().into_iter().flatten().filter(is_own).map(event).collect())
    }

    pub(super) fn claim(&self, address: &str) -> Result<Option<Value>> {
        let name = instance_name(address.parse()?);
        let mut command = self.cluster.kubectl_command(&[
            "get",
            "serviceaddress",
            &name,
            "--ignore-not-found",
            "-o",
            "json",
        ]);
        let text = run(&mut command)?;
        if text.trim().is_empty() { Ok(None) } else { Ok(Some(serde_json::from_str(&text)?)) }
    }

    /// The addresses of all Services of type LoadBalancer by `namespace/name`.
    pub(super) fn all(&self) -> Result<BTreeMap<String, String>> {
        let text = self.cluster.kubectl(["get", "services", "-A", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text)?;
        let mut all = BTreeMap::new();
        for service in list["items"].as_array().into_iter().flatten() {
            if service["spec"]["type"] != "LoadBalancer" {
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let points = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
            let has: Vec<String> = points.iter().map(|point| text(&point["ip"])).collect();
            let metadata = &service["metadata"];
            all.insert(
                format!("{}/{}", text(&metadata["namespace"]), text(&metadata["name"])),
                has.join(","),
            );
        }
        Ok(all)
    }

    pub(super) fn delete(&self, name: &str) -> Result<()> {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        self.cluster.kubectl(["delete", "service", name, "-n", namespace]).map(drop)
    }

    /// Expects that kubectl is refused with this text, or succeeds if the text is empty. Returns
    /// whether it was refused.
    pub(super) fn expect(&self, args: &[&str], input: &str, text: &str) -> Result<bool> {
        // The webhook may miss a request of the moment at which its certificate is replaced.
        let began = Instant::now();
        loop {
            let refused = run_with_input(&mut self.cluster.kubectl_command(args), input).err();
            match refused.map(|error| format!("{error:#}")) {
                None if text.is_empty() => return Ok(false),
                Some(error) if !text.is_empty() && error.contains(text) => return Ok(true),
                Some(error) if error.contains("failed calling webhook") && began.elapsed() < PATIENCE => {}
                other => bail!("{args:?} {input}: {other:?} instead of {text:?}"),
            }
        }
    }

    /// Both outputs of kubectl.
    pub(super) fn output(&self, args: &[&str], input: &str) -> Result<String> {
        let output = crate::shell::output_with_input(&mut self.cluster.kubectl_command(args), input)?;
        Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }
}
