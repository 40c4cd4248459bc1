//! Valid and invalid configurations, and the example of the documentation.

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("/etc/trunkline/agent.yaml")).map_err(|error| error.to_string())
}

#[test]
fn an_empty_configuration_has_the_defaults() {
    assert_eq!(parse("").unwrap(), Config::default());
    assert_eq!(parse("# only a comment\n---\n").unwrap(), Config::default());
}

#[test]
fn the_documented_example_is_valid_and_names_every_field() {
    let text = include_str!("../../docs/agent.example.yaml");
    let config = parse(text).unwrap();
    assert_eq!(config.node_name(), "rack1-node1");
    assert_eq!(config.http_address.port(), 9473);
    // All properties in the schema: in sections, lists, maps and choices.
    let (mut values, mut fields) = (vec![schema::schema()], Vec::new());
    while let Some(value) = values.pop() {
        if let Some(properties) = value["properties"].as_object() {
            fields.extend(properties.keys().cloned());
        }
        values.extend(value.as_object().into_iter().flat_map(|object| object.values().cloned()));
        values.extend(value.as_array().into_iter().flatten().cloned());
    }
    assert!(fields.len() > 30, "{fields:?}");
    for field in fields {
        assert!(text.contains(&format!("{field}:")), "{field} is not in the example");
    }
}

#[test]
fn a_bad_value_is_refused_with_file_field_and_fix() {
    for (text, field, fix) in [
        ("storage: /x", "storage", "agent.yaml"),
        ("selectionDeferralSeconds: 0", "selectionDeferralSeconds", "1 to 3600"),
        ("maxPaths: 65", "maxPaths", "1 to 64"),
        ("serviceCIDRs: [10.96.0.1/12]", "serviceCIDRs", "10.96.0.0/12"),
        ("serviceCIDRs: [0.0.0.0/0]", "serviceCIDRs", "10.96.0.0/12"),
        ("serviceCIDRs: [10.96.0.0]", "serviceCIDRs", "agent.yaml"),
        ("vxlanPort: 0", "vxlanPort", "1 to 65535"),
        ("vtepAddressCIDRs: []", "vtepAddressCIDRs", "leave the field out"),
        ("readiness: {timeoutSeconds: 301}", "readiness.timeoutSeconds", "1 to 300"),
        ("probes: {intervalSeconds: 0}", "probes.intervalSeconds", "1 to 300"),
        ("probes: {size: 575}", "probes.size", "576 to 65535"),
        ("probes: {targets: [127.0.0.1]}", "probes.targets", "that routers reach"),
        ("probes: {targets: [fe80::1]}", "probes.targets", "that routers reach"),
        ("probes: {enabled: false, failover: true}", "probes.failover", "enabled: true"),
        ("probes: {interval: 3}", "interval", "agent.yaml"),
        ("services: {proxy: {kind: ipvs}}", "kind", "agent.yaml"),
        ("services: {proxy: {healthAddress: '0.0.0.0:10256'}}", "healthAddress", "127.0.0.1:10256"),
        ("services: {proxy: {restartSeconds: 3601}}", "services.proxy.restartSeconds", "0 to 3600"),
        ("services: {proxy: {settleMilliseconds: 60001}}", "services.proxy.settleMilliseconds", "0 to 60000"),
        ("drain: {settleSeconds: 3601}", "drain.settleSeconds", "0 to 3600"),
        ("drain: {followCordon: true}", "drain.followCordon", "source: kube"),
        ("readiness: {timeout: 3}", "timeout", "agent.yaml"),
        ("vlanCheck: {timeoutSeconds: 0}", "vlanCheck.timeoutSeconds", "1 to 60"),
        (
            "vlanCheck: {duplicateAddressWaitMilliseconds: 10001}",
            "vlanCheck.duplicateAddressWaitMilliseconds",
            "0 to 10000",
        ),
        ("routerID: 0.0.0.0", "routerID", "leave the field out"),
        ("clusterID: 0.0.0.0", "clusterID", "leave the field out"),
        ("vlanInterfaces: [eth0, 'a/b']", "vlanInterfaces", "agent.yaml"),
        ("vlanInterfaces: [eth0, eth0]", "vlanInterfaces", "twice"),
        ("routerID: 2001:db8::1", "IPv4", "agent.yaml"),
        ("httpAddress: localhost", "socket address", "agent.yaml"),
        ("page: off", "page", "nowhere"),
        ("listen: ['10.0.0.1:0']", "listen", "179"),
        ("listen: ['10.0.0.1:179', '10.0.0.1:179']", "listen", "twice"),
        ("store: store.redb", "store", "absolute path"),
        ("nodeName: ''", "nodeName", "leave the field out"),
        ("source: folder", "source", "manifests"),
        ("source: kube\nnodeLabels: {a: b}", "nodeLabels", "leave the field out"),
        ("kube: {kubeconfig: admin.conf}", "kube.kubeconfig", "absolute path"),
        ("kube: {cache: cluster.json}", "kube.cache", "absolute path"),
        ("telemetry: {otlp: {}}", "endpoint", "agent.yaml"),
        (
            "telemetry: {otlp: {endpoint: 'collector:4318'}}",
            "telemetry.otlp.endpoint",
            "http://127.0.0.1:4318",
        ),
        (
            "telemetry: {otlp: {endpoint: 'grpc://a:4317'}}",
            "telemetry.otlp.endpoint",
            "http://127.0.0.1:4318",
        ),
        ("telemetry: {otlp: {endpoint: 'http://a:1/?x=1'}}", "telemetry.otlp.endpoint", "query"),
        (
            "telemetry: {otlp: {endpoint: 'http://a:1', timeoutSeconds: 0}}",
            "telemetry.otlp.timeoutSeconds",
            "1 to 60",
        ),
        (
            "telemetry: {otlp: {endpoint: 'http://a:1', serviceName: ''}}",
            "telemetry.otlp.serviceName",
            "leave the field out",
        ),
        (
            "telemetry: {otlp: {endpoint: 'http://a:1', caFile: ca.pem}}",
            "telemetry.otlp.caFile",
            "absolute path",
        ),
        (
            "telemetry: {otlp: {endpoint: 'http://a:1', headers: {a: {file: b}}}}",
            "telemetry.otlp.headers",
            "absolute path",
        ),
        (
            "telemetry: {otlp: {endpoint: 'http://a:1', headers: {'a b': {env: C}}}}",
            "telemetry.otlp.headers",
            "header's name",
        ),
        (
            "telemetry: {otlp: {endpoint: 'http://a:1', headers: {host: {env: C}}}}",
            "telemetry.otlp.headers",
            "leave it out",
        ),
        (
            "telemetry: {otlp: {endpoint: 'http://a:1', headers: {a: {env: ''}}}}",
            "telemetry.otlp.headers",
            "name of a variable",
        ),
        ("nodeAddressCIDRs: [10.9.0.1/16]", "nodeAddressCIDRs", "write 10.9.0.0/16"),
        ("vtepLocalAddressCIDRs: [10.9.0.1/16]", "vtepLocalAddressCIDRs", "write 10.9.0.0/16"),
        ("vtepLocalAddressCIDRs: [10.9.0.0/16, 10.9.0.0/16]", "vtepLocalAddressCIDRs", "remove one"),
        ("vlanARPSender: gateway", "gateway", "agent.yaml"),
        ("podMTU: 1279", "podMTU", "write 1280 to 65535"),
        ("vlanInterfaces: ['/eth[/']", "vlanInterfaces", "unclosed character class: write one such as"),
        ("vlanInterfaces: [/eth0]", "vlanInterfaces", "between two slashes"),
        ("vxlanInterfaces: ['//']", "vxlanInterfaces", "between two slashes"),
        ("vxlanInterfaces: [a-name-that-is-too-long]", "vxlanInterfaces", "can-reach=ADDRESS"),
        ("vxlanInterfaces: [eth0, eth0]", "vxlanInterfaces", "remove one"),
        ("vxlanInterfaces: [can-reach=tor1]", "vxlanInterfaces", "can-reach=10.0.0.1"),
        ("unknownOverlayAddresses: refuse", "refuse", "agent.yaml"),
        ("sysctls: {arpFilter: true}", "arpFilter", "agent.yaml"),
        ("log: {level: 'trunkline=loud'}", "log.level", "write error"),
        ("log: {format: xml}", "xml", "agent.yaml"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains("/etc/trunkline/agent.yaml"), "{text}: {error}");
        assert!(error.contains(field), "{text}: {error}");
        assert!(error.contains(fix), "{text}: {error}");
    }
}

#[test]
fn a_literal_secret_is_refused_and_not_repeated() {
    for text in [
        "telemetry:\n  otlp:\n    endpoint: http://a:1\n    headers: {authorization: s3cret}",
        "telemetry:\n  otlp:\n    endpoint: http://a:1\n    headers: {authorization: {value: s3cret}}",
        "telemetry:\n  otlp:\n    endpoint: http://a:1\n    headers: {authorization: [s3cret]}",
        "telemetry:\n  otlp:\n    endpoint: http://user:s3cret@a:1",
        "telemetry:\n  otlp:\n    endpoint: http://a:1/?token=s3cret",
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains("telemetry.otlp.") && !error.contains("s3cret"), "{text}: {error}");
    }
}

#[test]
fn the_host_name_label_defaults_to_the_node_name() {
    let config = parse("nodeName: a").unwrap();
    assert_eq!(config.node_labels()["kubernetes.io/hostname"], "a");
    let config = parse("nodeName: a\nnodeLabels: {kubernetes.io/hostname: b}").unwrap();
    assert_eq!(config.node_labels()["kubernetes.io/hostname"], "b");
}
