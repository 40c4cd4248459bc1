//! Edits of an AgentSettings.

use super::Edits;

pub(super) const SETTINGS_GOOD: &[Edits] = &[
    &[("/nodeSelector", "null"), ("/priority", "0")],
    &[("/priority", "1000"), ("/config", "{}")],
    &[("/config/podMTU", "1280")],
    &[("/config/podMTU", "65535"), ("/config/vlanARPSender", "\"pod\"")],
    &[
        ("/config/vlanInterfaces/-", "\"/^eth[0-9]+$/\""),
        ("/config/vlanInterfaces/-", "\"can-reach=10.0.0.1\""),
    ],
    &[("/config/vxlanInterfaces", "[]")],
    &[("/config/vxlanInterfaces/-", "\"can-reach=2001:db8::1\"")],
    &[("/config/serviceCIDRs", r#"["10.96.0.0/12", "fd00:96::/112"]"#)],
    &[("/config/vtepAddressCIDRs", r#"["0.0.0.0/0", "::/0"]"#)],
    &[
        ("/config/vtepLocalAddressCIDRs/-", "\"10.2.0.0/16\""),
        ("/config/unknownOverlayAddresses", "\"reject\""),
    ],
    &[("/config/kernelLimits", r#"{"neighbours": 0, "ipv6Routes": 16777216}"#)],
    &[("/config/sysctls", r#"{"routeLocalnet": true, "disableARPFilter": false}"#)],
    &[("/config/probes/targets/-", "\"10.0.0.12\""), ("/config/probes/targets/-", "\"2001:db8::12\"")],
    &[("/config/probes", r#"{"intervalSeconds": 300, "size": 576}"#)],
    &[("/config/maxPaths", "64"), ("/config/selectionDeferralSeconds", "3600")],
    &[(
        "/config/services",
        r#"{"proxy": {"kind": "none", "restartSeconds": 0, "settleMilliseconds": 60000}}"#,
    )],
    &[("/config/readiness", r#"{"timeoutSeconds": 300}"#), ("/config/drain", r#"{"settleSeconds": 0}"#)],
    &[("/config/vlanCheck", r#"{"timeoutSeconds": 60, "duplicateAddressWaitMilliseconds": 0}"#)],
];

pub(super) const SETTINGS_BAD: &[(Edits, &str)] = &[
    (&[("/config", "null")], "spec.config"),
    (&[("/priority", "1001")], "spec.priority"),
    (&[("/config/podMTU", "1279")], "spec.config.podMTU"),
    (&[("/config/podMTU", "\"1400\"")], "spec.config.podMTU"),
    (&[("/config/vlanARPSender", "\"gateway\"")], "spec.config.vlanARPSender"),
    (&[("/config/unknownOverlayAddresses", "\"refuse\"")], "spec.config.unknownOverlayAddresses"),
    (&[("/config/vlanInterfaces/-", "\"/eth0\"")], "vlanInterfaces: an entry is not a link"),
    (&[("/config/vlanInterfaces/-", "\"//\"")], "vlanInterfaces: an entry is not a link"),
    (
        &[("/config/vlanInterfaces/-", "\"a-name-that-is-too-long\"")],
        "vlanInterfaces: an entry is not a link",
    ),
    (&[("/config/vlanInterfaces/-", "\"eth 0\"")], "vlanInterfaces: an entry is not a link"),
    (&[("/config/vlanInterfaces/-", "\"bond0\"")], "vlanInterfaces: a link occurs twice"),
    (&[("/config/vxlanInterfaces/-", "\"can-reach=tor1\"")], "vxlanInterfaces: an entry is not a link"),
    (&[("/config/vxlanInterfaces/-", "\"can-reach=0.0.0.0\"")], "vxlanInterfaces: an entry is not a link"),
    (&[("/config/vxlanInterfaces/-", "\"\"")], "vxlanInterfaces: an entry is not a link"),
    (&[("/config/vxlanInterfaces/-", "\"eth0\"")], "vxlanInterfaces: a link occurs twice"),
    (&[("/config/serviceCIDRs/-", "\"10.112.0.1/12\"")], "serviceCIDRs: an entry is not a prefix"),
    (&[("/config/serviceCIDRs/-", "\"0.0.0.0/0\"")], "serviceCIDRs: an entry is not a prefix"),
    (&[("/config/serviceCIDRs/-", "\"10.112.0.0\"")], "serviceCIDRs: an entry is not a prefix"),
    (&[("/config/serviceCIDRs/-", "\"10.96.0.0/12\"")], "serviceCIDRs: a prefix occurs twice"),
    (&[("/config/vtepAddressCIDRs", "[]")], "vtepAddressCIDRs is empty"),
    (&[("/config/vtepAddressCIDRs/-", "\"10.3.0.1/16\"")], "vtepAddressCIDRs: an entry is not a prefix"),
    (&[("/config/vtepAddressCIDRs/-", "\"10.1.0.0/16\"")], "vtepAddressCIDRs: a prefix occurs twice"),
    (
        &[("/config/vtepLocalAddressCIDRs/-", "\"10.3.0.1/16\"")],
        "vtepLocalAddressCIDRs: an entry is not a prefix",
    ),
    (
        &[("/config/vtepLocalAddressCIDRs", r#"["10.2.0.0/16", "10.2.0.0/16"]"#)],
        "vtepLocalAddressCIDRs: a prefix occurs twice",
    ),
    (&[("/config/kernelLimits", r#"{"neighbours": 16777217}"#)], "spec.config.kernelLimits.neighbours"),
    (&[("/config/kernelLimits", r#"{"ipv6Routes": 16777217}"#)], "spec.config.kernelLimits.ipv6Routes"),
    (&[("/config/probes/targets/-", "\"127.0.0.1\"")], "targets: an entry cannot be the address"),
    (&[("/config/probes/targets/-", "\"fe80::1\"")], "targets: an entry cannot be the address"),
    (&[("/config/probes/targets/-", "\"node2\"")], "targets: an entry cannot be the address"),
    (&[("/config/probes", r#"{"intervalSeconds": 0}"#)], "spec.config.probes.intervalSeconds"),
    (&[("/config/probes", r#"{"size": 575}"#)], "spec.config.probes.size"),
    (&[("/config/maxPaths", "65")], "spec.config.maxPaths"),
    (&[("/config/selectionDeferralSeconds", "0")], "spec.config.selectionDeferralSeconds"),
    (&[("/config/services", r#"{"proxy": {"kind": "cilium"}}"#)], "spec.config.services.proxy.kind"),
    (
        &[("/config/services", r#"{"proxy": {"restartSeconds": 3601}}"#)],
        "spec.config.services.proxy.restartSeconds",
    ),
    (
        &[("/config/services", r#"{"proxy": {"settleMilliseconds": 60001}}"#)],
        "spec.config.services.proxy.settleMilliseconds",
    ),
    (&[("/config/readiness", r#"{"timeoutSeconds": 0}"#)], "spec.config.readiness.timeoutSeconds"),
    (&[("/config/drain", r#"{"settleSeconds": 3601}"#)], "spec.config.drain.settleSeconds"),
    (&[("/config/vlanCheck", r#"{"timeoutSeconds": 61}"#)], "spec.config.vlanCheck.timeoutSeconds"),
    (
        &[("/config/vlanCheck", r#"{"duplicateAddressWaitMilliseconds": 10001}"#)],
        "spec.config.vlanCheck.duplicateAddressWaitMilliseconds",
    ),
    (
        &[("/nodeSelector", r#"{"matchExpressions": [{"key": "a", "operator": "In"}]}"#)],
        "In and NotIn need at least one value",
    ),
];
