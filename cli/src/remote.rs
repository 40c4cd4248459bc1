//! Remote clusters, and ignored claims of other nodes, in `trunkline status`.

use trunkline_api::control::{IgnoredClaims, RemoteClusterStatus, RemoteSubnetStatus};

/// Number of subnets in the text; `-o json` has all of them.
const SUBNETS: usize = 4;

/// One line for the cluster, and one for each fault.
pub(crate) fn lines(cluster: &RemoteClusterStatus) -> Vec<String> {
    let shown: Vec<String> = cluster.subnets.iter().take(SUBNETS).map(subnet).collect();
    let subnets = match cluster.subnets.len() {
        0 => "no subnets".to_owned(),
        number if number > SUBNETS => format!("{number} subnets: {}, …", shown.join(", ")),
        number => format!("{number} subnets: {}", shown.join(", ")),
    };
    let ignored = ignored(cluster).map(|ignored| format!(", IGNORED: {ignored}")).unwrap_or_default();
    let first = format!(
        "{}: {} VTEPs, {} endpoints, {subnets}{ignored}",
        cluster.name, cluster.vteps, cluster.endpoints
    );
    std::iter::once(first).chain(cluster.faults.iter().cloned()).collect()
}

/// One line with the numbers, and one for each reason. None if no claim is ignored.
pub(crate) fn ignored_claims(claims: &IgnoredClaims) -> Vec<String> {
    if claims.is_empty() {
        return Vec::new();
    }
    let first = format!("IGNORED: {} VTEPs, {} local addresses of NodeInfos", claims.vteps, claims.addresses);
    std::iter::once(first).chain(claims.faults.iter().cloned()).collect()
}

fn subnet(subnet: &RemoteSubnetStatus) -> String {
    format!("{} {}", subnet.prefix, if subnet.overlay { "overlay" } else { "underlay" })
}

/// The ignored parts; none if there are none.
pub(crate) fn ignored(cluster: &RemoteClusterStatus) -> Option<String> {
    let ignored = cluster.ignored;
    let parts = [
        (ignored.subnets, "RemoteSubnets"),
        (ignored.vteps, "RemoteVteps"),
        (ignored.addresses, "local addresses"),
        (ignored.endpoints, "endpoints"),
    ];
    let words: Vec<String> = parts
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{number} {what}"))
        .collect();
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::IgnoredParts;

    use super::*;

    #[test]
    fn ignored_claims_have_a_line_and_their_reasons() {
        assert!(ignored_claims(&IgnoredClaims::default()).is_empty());
        let faults = vec!["NodeInfo evil: spec.vtepInfo.localIPs: 10.1.0.1 is a router".to_owned()];
        let lines = ignored_claims(&IgnoredClaims { vteps: 0, addresses: 1, faults: faults.clone() });
        assert_eq!(lines, ["IGNORED: 0 VTEPs, 1 local addresses of NodeInfos".to_owned(), faults[0].clone()]);
    }

    #[test]
    fn a_remote_cluster_has_a_line_and_its_faults() {
        let subnet = |prefix: &str, overlay| RemoteSubnetStatus {
            name: "s".to_owned(),
            prefix: prefix.parse().unwrap(),
            overlay,
        };
        let mut cluster = RemoteClusterStatus {
            name: "west".to_owned(),
            subnets: vec![subnet("10.210.0.0/16", true), subnet("10.9.0.0/24", false)],
            vteps: 2,
            endpoints: 7,
            ..RemoteClusterStatus::default()
        };
        let line = "west: 2 VTEPs, 7 endpoints, 2 subnets: 10.210.0.0/16 overlay, 10.9.0.0/24 underlay";
        assert_eq!(lines(&cluster), [line]);
        cluster.ignored = IgnoredParts { subnets: 1, endpoints: 3, ..IgnoredParts::default() };
        cluster.faults = vec!["a fault".to_owned()];
        let line = format!("{line}, IGNORED: 1 RemoteSubnets, 3 endpoints");
        assert_eq!(lines(&cluster), [line.as_str(), "a fault"]);
    }
}
