//! The settings of this node: agent.yaml, and the AgentSettings that select the node.
//!
//! ```text
//!  agent.yaml ─────────────┐
//!  AgentSettings by node ──┴─ resolve ──► Config of the node ─┬─ live fields ──────► planner
//!  (snapshot of the source)                                   └─ all other fields ─► next start
//! ```
//!
//! An AgentSettings has fields of agent.yaml, with the same names and values. So the fields are merged
//! as JSON, by their paths: a new field needs a line in the kind and in [`LIVE`] or [`AT_START`], and
//! no code here. The result passes the same check as agent.yaml.
//!
//! The planner's input contains the live fields, so every plan uses the values of its snapshot. All
//! other fields are read once, at start ([`start`]): from the last known objects, because a start must
//! not depend on the API server (only a node without a cache waits for it, for some seconds). If such a field changes, the agent runs with the old value and
//! reports the field as pending.

pub mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::Value;
use trunkline_api::control::SettingStatus;
use trunkline_api::resources::AgentSettings;

use crate::config::{Config, VlanArpSender};
use crate::plan::intent::Tunnels;
use crate::plan::remote::RemoteLimits;
use crate::plan::{GuardSettings, KernelLimits, LinkChoice, ProbeSettings, RequestedSysctls};

/// Fields that apply while the agent runs.
pub const LIVE: &[&str] = &[
    "kernelLimits.ipv6Routes",
    "kernelLimits.neighbours",
    "podMTU",
    "probes.targets",
    "serviceCIDRs",
    "sysctls.disableARPFilter",
    "sysctls.routeLocalnet",
    "unknownOverlayAddresses",
    "vlanARPSender",
    "vlanInterfaces",
    "vtepAddressCIDRs",
    "vtepLocalAddressCIDRs",
    "vxlanInterfaces",
];

/// Fields that apply at the next start of the agent.
pub const AT_START: &[&str] = &[
    "drain.settleSeconds",
    "maxPaths",
    "probes.intervalSeconds",
    "probes.size",
    "readiness.timeoutSeconds",
    "selectionDeferralSeconds",
    "services.proxy.kind",
    "services.proxy.restartSeconds",
    "services.proxy.settleMilliseconds",
    "vlanCheck.duplicateAddressWaitMilliseconds",
    "vlanCheck.timeoutSeconds",
];

/// The reason for which AgentSettings cannot be combined with agent.yaml.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The check of agent.yaml refuses the combination.
    #[error("agent.yaml with the AgentSettings of this node ({objects}): {field}: {message}")]
    Refused {
        /// The names of the AgentSettings.
        objects: String,
        /// The field.
        field: String,
        /// The fault and the fix.
        message: String,
    },
    /// The value has another type in agent.yaml.
    #[error("agent.yaml with the AgentSettings of this node ({objects}): {message}")]
    Unreadable {
        /// The names of the AgentSettings.
        objects: String,
        /// The fault.
        message: String,
    },
}

/// A field that an AgentSettings sets.
#[derive(Clone, Debug, PartialEq)]
struct Setting {
    value: Value,
    /// The object's name.
    from: String,
}

/// The fields that the AgentSettings set on a node with these labels: of several objects with a field,
/// the one with the highest priority, of equal ones the first by name.
fn settings(objects: &[AgentSettings], labels: &BTreeMap<String, String>) -> BTreeMap<String, Setting> {
    let mut selected: Vec<&AgentSettings> =
        objects.iter().filter(|object| object.spec.node_selector.selects(labels)).collect();
    selected.sort_by(|a, b| b.spec.priority().cmp(&a.spec.priority()).then_with(|| a.name().cmp(b.name())));
    let mut settings = BTreeMap::new();
    for object in selected {
        for (field, value) in object.spec.config.fields() {
            settings.entry(field).or_insert_with(|| Setting { value, from: object.name().to_owned() });
        }
    }
    settings
}

/// A configuration with other values of some fields.
fn merged<'a>(
    config: &Config,
    fields: impl Iterator<Item = (&'a str, &'a Value)>,
) -> serde_json::Result<Config> {
    let mut whole = serde_json::to_value(config)?;
    for (path, value) in fields {
        let place = path.split('.').fold(&mut whole, |section, name| &mut section[name]);
        *place = value.clone();
    }
    serde_json::from_value(whole)
}

/// The value of a field.
fn value(config: &Value, path: &str) -> Value {
    path.split('.').fold(config, |section, name| &section[name]).clone()
}

/// agent.yaml with the AgentSettings of a node.
fn resolve(file: &Config, settings: &BTreeMap<String, Setting>) -> Result<Config, SettingsError> {
    if settings.is_empty() {
        return Ok(file.clone());
    }
    let objects = || {
        let names: BTreeSet<&str> = settings.values().map(|setting| setting.from.as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    let fields = settings.iter().map(|(path, setting)| (path.as_str(), &setting.value));
    let config = merged(file, fields)
        .map_err(|error| SettingsError::Unreadable { objects: objects(), message: error.to_string() })?;
    config.check().map_err(|(field, message)| SettingsError::Refused {
        objects: objects(),
        field: field.to_owned(),
        message,
    })?;
    Ok(config)
}

/// The planner's settings of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSettings {
    /// Prefixes of Services.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Links that may carry VLANs, the preferred one first.
    pub vlan_interfaces: Vec<LinkChoice>,
    /// Whether ARP requests on VLAN devices have the address of a local pod as sender.
    pub pods_send_arp: bool,
    /// The largest MTU of pods, in octets.
    pub pod_mtu: Option<u16>,
    /// Settings of tunnels.
    pub tunnels: Tunnels,
    /// Settings of the guard.
    pub guard: GuardSettings,
    /// Limits of the kernel.
    pub kernel_limits: KernelLimits,
    /// Prefixes that remote clusters may use.
    pub remote_limits: RemoteLimits,
    /// Requested sysctls.
    pub sysctls: RequestedSysctls,
    /// Settings of probes.
    pub probes: ProbeSettings,
    /// The addresses whose links the planner needs.
    pub reached: BTreeSet<IpAddr>,
}

impl PlanSettings {
    fn of(config: &Config) -> PlanSettings {
        PlanSettings {
            service_cidrs: config.service_cidrs.clone(),
            vlan_interfaces: config.vlan_interfaces(),
            pods_send_arp: config.vlan_arp_sender == VlanArpSender::Pod,
            pod_mtu: config.pod_mtu,
            tunnels: config.tunnels(),
            guard: config.guard(),
            kernel_limits: config.kernel_limits(),
            remote_limits: config.remote_clusters.limits(),
            sysctls: config.sysctls(),
            probes: config.probe_plan(),
            reached: config.reached_addresses(),
        }
    }
}

/// The settings of this node with the AgentSettings of one snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSettings {
    /// The planner's input.
    pub plan: PlanSettings,
    /// The fields that an AgentSettings sets or that are pending, by name.
    pub fields: Vec<SettingStatus>,
}

/// The inputs of [`NodeSettings`].
#[derive(Debug, PartialEq)]
struct Inputs {
    objects: Vec<AgentSettings>,
    labels: BTreeMap<String, String>,
}

/// Computes [`NodeSettings`].
#[derive(Debug)]
pub struct Settings {
    /// agent.yaml.
    file: Config,
    /// The configuration with which this run of the agent started.
    started: Config,
    /// The last result.
    last: Option<(Inputs, Arc<NodeSettings>)>,
}

impl Settings {
    /// `file` is agent.yaml, `started` the configuration with which the agent starts.
    pub fn new(file: Config, started: Config) -> Settings {
        Settings { file, started, last: None }
    }

    /// The settings of this node.
    ///
    /// # Errors
    /// The objects cannot be combined with agent.yaml.
    pub fn of_node(
        &mut self,
        objects: &[AgentSettings],
        labels: &BTreeMap<String, String>,
    ) -> Result<Arc<NodeSettings>, SettingsError> {
        if let Some((inputs, result)) = &self.last
            && inputs.objects == objects
            && inputs.labels == *labels
        {
            return Ok(Arc::clone(result));
        }
        let result = Arc::new(self.compute(&settings(objects, labels))?);
        let inputs = Inputs { objects: objects.to_vec(), labels: labels.clone() };
        self.last = Some((inputs, Arc::clone(&result)));
        Ok(result)
    }

    fn compute(&self, settings: &BTreeMap<String, Setting>) -> Result<NodeSettings, SettingsError> {
        let resolved = resolve(&self.file, settings)?;
        let unreadable = |error: serde_json::Error| SettingsError::Unreadable {
            objects: String::new(),
            message: error.to_string(),
        };
        let wanted = serde_json::to_value(&resolved).map_err(unreadable)?;
        let started = serde_json::to_value(&self.started).map_err(unreadable)?;
        let pending = |field: &str| !LIVE.contains(&field) && value(&wanted, field) != value(&started, field);
        let mut fields: Vec<SettingStatus> = settings
            .iter()
            .map(|(field, setting)| SettingStatus {
                field: field.clone(),
                value: setting.value.clone(),
                from: Some(setting.from.clone()),
                pending_restart: pending(field),
            })
            .collect();
        let removed = AT_START.iter().filter(|field| !settings.contains_key(**field) && pending(field));
        fields.extend(removed.map(|field| SettingStatus {
            field: (*field).to_owned(),
            value: value(&wanted, field),
            from: None,
            pending_restart: true,
        }));
        fields.sort_by(|a, b| a.field.cmp(&b.field));
        Ok(NodeSettings { plan: PlanSettings::of(&resolved), fields })
    }
}

#[cfg(test)]
mod tests;
