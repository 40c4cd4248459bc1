//! Conversion of RemoteSubnets and RemoteVteps to rows of the planner, for both sources.

use std::net::IpAddr;

use trunkline_api::resources::{NetworkType, RemoteSubnetSpec, RemoteVtepSpec, ValueError, VtepInfo};

use crate::plan::remote::{RemoteSubnetRow, RemoteVtepRow};

/// The fault of an unreadable RemoteSubnet or RemoteVtep, with the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The name of the RemoteCluster is missing.
    #[error("spec.clusterName: missing: write the name of the RemoteCluster")]
    Cluster,
    /// A value is no address, or no MAC.
    #[error("spec.{field}: {error}")]
    Value {
        /// The field.
        field: &'static str,
        /// The value, and the fix.
        error: ValueError,
    },
}

/// The cluster and the row of a RemoteSubnet. The planner checks the range.
///
/// # Errors
/// The cluster's name is missing.
pub fn subnet_row(created: &str, spec: &RemoteSubnetSpec) -> Result<(String, RemoteSubnetRow), RemoteError> {
    let row = RemoteSubnetRow {
        created: created.into(),
        overlay: spec.network_type == Some(NetworkType::Overlay),
        range: spec.range.clone(),
    };
    Ok((cluster(&spec.cluster_name)?, row))
}

/// The cluster and the row of a RemoteVtep.
///
/// # Errors
/// The cluster's name is missing, or `ip`, `mac` or `localIPs` has a fault.
pub fn vtep_row(created: &str, spec: &RemoteVtepSpec) -> Result<(String, RemoteVtepRow), RemoteError> {
    let cluster = cluster(&spec.cluster_name)?;
    let error = |field| move |error| RemoteError::Value { field, error };
    // The fields are parsed one after the other: an error names its field.
    let mut info = VtepInfo { ip: spec.ip.clone(), ..VtepInfo::default() };
    info.parse().map_err(error("ip"))?;
    info.mac.clone_from(&spec.mac);
    info.parse().map_err(error("mac"))?;
    info.local_ips.clone_from(&spec.local_ips);
    let vtep = info.parse().map_err(error("localIPs"))?;
    let mut endpoints: Vec<IpAddr> =
        spec.endpoint_ip_list.iter().filter_map(|text| text.parse().ok()).collect();
    let malformed = spec.endpoint_ip_list.len() - endpoints.len();
    endpoints.sort_unstable();
    endpoints.dedup();
    let row = RemoteVtepRow {
        created: created.into(),
        ip: vtep.ip,
        mac: vtep.mac,
        local: vtep.local.into_iter().filter(|address| *address != vtep.ip).collect(),
        endpoints: endpoints.into(),
        malformed: u32::try_from(malformed).unwrap_or(u32::MAX),
    };
    Ok((cluster, row))
}

fn cluster(name: &str) -> Result<String, RemoteError> {
    if name.is_empty() { Err(RemoteError::Cluster) } else { Ok(name.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vtep(extra: serde_json::Value) -> Result<(String, RemoteVtepRow), RemoteError> {
        let mut spec = serde_json::json!({"clusterName": "west", "nodeName": "n1", "ip": "10.20.0.1"});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        vtep_row("", &serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn a_vtep_becomes_a_compact_row() {
        let (cluster, row) = vtep(serde_json::json!({
            "localIPs": ["10.20.0.1", "10.20.1.1"],
            "endpointIPList": ["10.210.0.9", "10.210.0.5", "10.210.0.9", "web", "10.210.0.5/32"],
        }))
        .unwrap();
        assert_eq!(cluster, "west");
        assert_eq!(row.mac, [2, 0x12, 10, 20, 0, 1], "as in a NodeInfo, it follows from the address");
        let text = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(&row.local), ["10.20.1.1"]);
        assert_eq!(text(&row.endpoints), ["10.210.0.5", "10.210.0.9"]);
        assert_eq!(row.malformed, 2);
    }

    #[test]
    fn an_error_names_the_field() {
        for (extra, words) in [
            (serde_json::json!({"clusterName": ""}), "spec.clusterName: missing"),
            (serde_json::json!({"ip": "10.20.0"}), "spec.ip: "),
            (serde_json::json!({"mac": "02"}), "spec.mac: "),
            (serde_json::json!({"localIPs": ["n1"]}), "spec.localIPs: "),
        ] {
            let error = vtep(extra).unwrap_err().to_string();
            assert!(error.starts_with(words), "{words}: {error}");
        }
    }
}
