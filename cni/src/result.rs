//! Results in the requested CNI version, appended to those of the previous plugins.
//!
//! `prevResult` is kept as JSON, so keys that are unknown to this plugin are preserved. The runtime
//! converts it to the version of the configuration, and the additions have the same version:
//!
//! | | 0.4.0 | 1.0.0 | 1.1.0 |
//! |---|---|---|---|
//! | `ips[].version` | "4" or "6" | – | – |
//! | `interfaces[].mtu` | – | – | in octets |

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use trunkline_api::attach::{Attachment, Failure};

use crate::configuration::{Configuration, NEWEST, invalid};

/// The result of ADD.
pub(crate) fn added(
    configuration: &Configuration,
    ifname: &str,
    sandbox: &str,
    attachment: &Attachment,
) -> Value {
    let version = configuration.version();
    let mut result = configuration.previous_result().ok().flatten().cloned().unwrap_or_default();
    result.insert("cniVersion".to_owned(), version.into());

    let mut interfaces = taken(&mut result, "interfaces");
    let own = interfaces.len() + 1; // behind the host's end
    let mut host = json!({"name": attachment.host_ifname, "mac": attachment.host_mac});
    let mut container = json!({"name": ifname, "mac": attachment.mac, "sandbox": sandbox});
    if version == NEWEST {
        host["mtu"] = attachment.mtu.into();
        container["mtu"] = attachment.mtu.into();
    }
    interfaces.extend([host, container]);
    result.insert("interfaces".to_owned(), interfaces.into());

    let mut ips = taken(&mut result, "ips");
    ips.extend(attachment.addresses.iter().map(|entry| {
        let mut ip = json!({"address": entry.address.to_string(), "interface": own});
        if let Some(gateway) = entry.gateway {
            ip["gateway"] = gateway.to_string().into();
        }
        if version == "0.4.0" {
            ip["version"] = if entry.address.addr().is_ipv4() { "4" } else { "6" }.into();
        }
        ip
    }));
    result.insert("ips".to_owned(), ips.into());

    let mut routes = taken(&mut result, "routes");
    routes.extend(attachment.routes.iter().map(|route| {
        let mut shown = json!({"dst": route.destination.to_string()});
        if let Some(gateway) = route.gateway {
            shown["gw"] = gateway.to_string().into();
        }
        shown
    }));
    result.insert("routes".to_owned(), routes.into());

    if let Ok(Some(dns)) = configuration.object("dns")
        && !dns.is_empty()
    {
        result.insert("dns".to_owned(), Value::Object(dns.clone()));
    } else if !attachment.dns.is_empty() {
        result.insert("dns".to_owned(), json!(attachment.dns));
    }
    Value::Object(result)
}

/// Takes the list at a key for changes; empty if it is absent (Go also writes `null`).
fn taken(result: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match result.remove(key) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// Refuses a previous result that already has the interface.
pub(crate) fn refuse_same_interface(
    previous: &Map<String, Value>,
    ifname: &str,
    sandbox: &str,
) -> Result<(), Failure> {
    match position(previous, ifname, sandbox) {
        None => Ok(()),
        Some(index) => Err(invalid(
            &format!("prevResult.interfaces[{index}].name"),
            format!(
                "an earlier plugin of the chain has already created {ifname}: remove one of the \
                 two from the chain"
            ),
        )),
    }
}

/// For CHECK: the addresses that ADD assigned to the interface.
pub(crate) fn addresses_of(
    previous: &Map<String, Value>,
    ifname: &str,
    sandbox: &str,
) -> Result<Vec<IpNet>, Failure> {
    let Some(own) = position(previous, ifname, sandbox) else {
        return Err(invalid(
            "prevResult.interfaces",
            format!("there is no {ifname} in {sandbox}: this is not the result of ADD"),
        ));
    };
    let ips = previous.get("ips").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut addresses = Vec::new();
    for (index, ip) in ips.iter().enumerate() {
        if ip.get("interface").and_then(Value::as_u64) != Some(own as u64) {
            continue;
        }
        let text = ip.get("address").and_then(Value::as_str).unwrap_or_default();
        addresses.push(text.parse().map_err(|_| {
            invalid(
                &format!("prevResult.ips[{index}].address"),
                format!("`{text}` is not an address with its length"),
            )
        })?);
    }
    if addresses.is_empty() {
        return Err(invalid("prevResult.ips", format!("there is no address of {ifname}")));
    }
    Ok(addresses)
}

/// The position of the container's interface of this name in `interfaces`.
fn position(result: &Map<String, Value>, ifname: &str, sandbox: &str) -> Option<usize> {
    let has =
        |interface: &Value, key: &str, value: &str| interface.get(key).and_then(Value::as_str) == Some(value);
    let interfaces = result.get("interfaces")?.as_array()?;
    interfaces
        .iter()
        .position(|interface| has(interface, "name", ifname) && has(interface, "sandbox", sandbox))
}
