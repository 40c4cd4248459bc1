//! Manifests of hybridnet's users load unchanged, with the same meaning.
#![allow(missing_docs, reason = "a test")]

use trunkline_api::manifest::{self, Resource};
use trunkline_api::resources::{
    Endpoint, IPInstance, Network, NetworkMode, NetworkType, RemoteClusterSpec, RemoteClusterState,
    RemoteClusterStatus, Subnet,
};
use trunkline_api::validate::{unsupported_subnet, validate, validate_nodes};

fn load(texts: &[&str]) -> (Vec<Network>, Vec<Subnet>) {
    let (mut networks, mut subnets) = (Vec::new(), Vec::new());
    for text in texts {
        for resource in manifest::parse(text).expect("a manifest") {
            match resource {
                Resource::Network(network) => networks.push(*network),
                Resource::Subnet(subnet) => subnets.push(*subnet),
                Resource::NodeInfo(node) => panic!("NodeInfo {} among networks and subnets", node.name()),
                Resource::AgentSettings(settings) => panic!("AgentSettings {} of hybridnet", settings.name()),
                Resource::AnycastAddress(anycast) => panic!("AnycastAddress {} of hybridnet", anycast.name()),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(validate(&networks, &subnets), Ok(()));
    (networks, subnets)
}

#[test]
fn bgp_sample() {
    let (networks, subnets) = load(&[include_str!("fixtures/bgp-sample.yaml")]);
    let network = &networks[0];
    assert_eq!((network.network_type(), network.mode()), (NetworkType::Underlay, NetworkMode::BGP));
    assert_eq!(network.spec.net_id, Some(64701));
    let peer = &network.peers()[0];
    assert_eq!((peer.asn, peer.graceful_restart()), (64601, 600));
    assert_eq!(peer.endpoint().unwrap(), Endpoint::Address("192.0.2.254".parse().unwrap(), None));
    assert_eq!(peer.password().unwrap().expose(), "54321");
    assert!(!peer.does_not_route_traffic && !peer.allow_not_established && peer.import.is_none());

    let range = subnets[0].spec.range.parse().unwrap();
    assert_eq!(range.first.to_string(), "198.51.100.1");
    assert_eq!(range.last.to_string(), "198.51.100.254");
    assert!(!subnets[0].is_private() && !subnets[0].nat_outgoing(network.mode()));
    assert_eq!(unsupported_subnet(&subnets[0]), None);
}

#[test]
fn bgp_network_as_documented() {
    let (networks, _) = load(&[include_str!("fixtures/bgp-documented.yaml")]);
    assert_eq!(networks[0].spec.net_id, Some(4_200_000_001));
    let peers = networks[0].peers();
    assert_eq!(peers[0].password().unwrap().expose(), "a key");
    assert_eq!(peers[1].graceful_restart(), 300, "0 and an absent value are 300 s");
    assert!(
        peers[1].password().is_none() && peers[1].does_not_route_traffic && peers[1].allow_not_established
    );
}

#[test]
fn vlan_and_vxlan_samples() {
    for (text, mode) in [
        (include_str!("fixtures/vlan.yaml"), NetworkMode::VLAN),
        (include_str!("fixtures/vxlan.yaml"), NetworkMode::VXLAN),
    ] {
        let (networks, subnets) = load(&[text]);
        assert_eq!(networks[0].mode(), mode, "the type's default");
        assert_eq!(unsupported_subnet(&subnets[0]), None);
        assert_eq!(subnets[0].nat_outgoing(mode), mode == NetworkMode::VXLAN, "an overlay's default");
    }
}

#[test]
fn node_info_as_the_daemon_writes_it() {
    let text = include_str!("fixtures/nodeinfo.yaml");
    let resources = manifest::parse(text).unwrap();
    let [Resource::NodeInfo(node)] = resources.as_slice() else { panic!("{resources:?}") };
    let vtep = node.vtep().unwrap().unwrap();
    assert_eq!((node.name(), vtep.ip.to_string(), vtep.mac[5]), ("node1", "192.0.2.11".to_owned(), 0x0b));
    assert_eq!(vtep.local.len(), 2, "its own address and one more");
    assert_eq!(node.pod_cidrs().unwrap(), []);
    assert_eq!(validate_nodes(&[(**node).clone()], &[], &[]), Ok(()));
}

#[test]
fn subnet_as_documented() {
    let network = include_str!("fixtures/vlan.yaml").split("\n---\n").nth(1).unwrap();
    let (_, subnets) = load(&[network, include_str!("fixtures/subnet-documented.yaml")]);
    let range = subnets[0].spec.range.parse().unwrap();
    assert_eq!(
        (range.first.to_string(), range.last.to_string()),
        ("192.0.2.100".into(), "192.0.2.200".into())
    );
    assert_eq!(range.gateway, Some("192.0.2.1".parse().unwrap()));
    assert_eq!((range.reserved.len(), range.excluded.len()), (2, 2));
    assert!(subnets[0].is_private());
    assert_eq!(unsupported_subnet(&subnets[0]), None);
}

#[test]
fn objects_from_the_api_server() {
    let (networks, subnets) = load(&[include_str!("fixtures/as-the-server-gives-it.yaml")]);
    assert_eq!(networks[0].status.as_ref().unwrap().statistics.unwrap().used, 4);
    assert_eq!(networks[0].metadata.resource_version.as_deref(), Some("4711"));
    assert_eq!(subnets[0].spec.range.parse().unwrap().last.to_string(), "2001:db8:b::ffff");
    assert_eq!(unsupported_subnet(&subnets[0]), None, "empty texts count as absent");
}

#[test]
fn reserved_fields_are_refused_by_name() {
    for (field, value) in [("gatewayType", "l3"), ("gatewayNode", "n1"), ("allowSubnets", "[a]")] {
        let text = include_str!("fixtures/bgp-sample.yaml").replace(
            "  network: underlay-rack1\n  range",
            &format!("  network: underlay-rack1\n  config: {{{field}: {value}}}\n  range"),
        );
        let (_, subnets) = load(&[&text]);
        let refusal = unsupported_subnet(&subnets[0]).unwrap();
        assert_eq!(refusal, format!("Subnet rack1-pods: spec.config.{field} is not supported: leave it out"));
    }
}

#[test]
fn remote_objects_as_the_manager_writes_them() {
    let resources = manifest::parse(include_str!("fixtures/remote.yaml")).unwrap();
    let [Resource::RemoteSubnet(subnet), Resource::RemoteVtep(vtep)] = resources.as_slice() else {
        panic!("{resources:?}")
    };
    assert_eq!(subnet.spec.network_type, Some(NetworkType::Overlay));
    let range = subnet.spec.range.parse().unwrap();
    assert_eq!((range.first.to_string(), range.gateway), ("198.51.100.10".to_owned(), None));
    assert_eq!((vtep.spec.node_name.as_str(), vtep.spec.local_ips.len()), ("node1", 2));
    assert_eq!(vtep.spec.endpoint_ip_list, ["198.51.100.10", "198.51.100.11"]);
}

#[test]
fn remote_cluster_as_documented() {
    let spec = r#"{"apiEndpoint": "https://192.0.2.1:6443", "caData": "YQ==", "certData": "Yg==", "keyData": "Yw==", "timeout": 5}"#;
    let spec: RemoteClusterSpec = serde_json::from_str(spec).unwrap();
    assert_eq!((spec.timeout, spec.key_data.expose()), (5, "Yw=="));
    let status = r#"{
        "uuid": "11111111-2222-3333-4444-555555555555", "state": "Ready",
        "conditions": [{"type": "HealthProbe", "status": "True", "reason": "CheckPass", "message": "",
                        "observedGeneration": 1, "lastTransitionTime": "2022-05-06T07:08:09Z"}]
    }"#;
    let status: RemoteClusterStatus = serde_json::from_str(status).unwrap();
    assert_eq!((status.state, status.conditions.len()), (Some(RemoteClusterState::Ready), 1));
    let cleared: RemoteClusterStatus =
        serde_json::from_str(r#"{"uuid": "", "state": "Offline", "conditions": null}"#).unwrap();
    assert!(cleared.conditions.is_empty());
}

#[test]
fn ip_instance() {
    let json = r#"{
        "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
        "metadata": {"name": "10-14-0-7", "namespace": "default", "labels": {"networking.alibaba.com/node": "n1"},
                     "finalizers": ["networking.alibaba.com/ip-allocated"]},
        "spec": {"network": "rack1", "subnet": "rack1-v4",
                 "address": {"version": "4", "ip": "10.14.0.7/24", "gateway": "10.14.0.1", "netID": null, "mac": "02:12:34:aa:bb:cc"},
                 "binding": {"referredObject": {"kind": "StatefulSet", "name": "db", "uid": "u1"}, "nodeName": "n1",
                             "podUID": "u2", "podName": "db-0", "stateful": {"index": 0}}},
        "status": {"nodeName": "n1", "podName": "db-0", "podNamespace": "default", "sandboxID": "s1", "updateTimestamp": null}
    }"#;
    let instance: IPInstance = serde_json::from_str(json).unwrap();
    assert_eq!(instance.spec.binding.pod_uid, "u2");
    assert_eq!(instance.spec.binding.stateful.as_ref().unwrap().index, Some(0));
    let again: IPInstance = serde_json::from_str(&serde_json::to_string(&instance).unwrap()).unwrap();
    assert_eq!(again, instance);
    let unknown = json.replace("\"mac\"", "\"macc\"");
    assert!(serde_json::from_str::<IPInstance>(&unknown).unwrap_err().to_string().contains("macc"));
}
