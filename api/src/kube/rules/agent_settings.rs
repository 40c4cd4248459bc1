//! Rules and bounds of AgentSettings.

use serde_json::{Value, json};

use super::{Row, each};

/// Whether the text is a link: a regular expression, an address behind `can-reach=`, or a name. The
/// syntax of the expression is left to the webhook.
const IS_LINK: &str = "t.startsWith('can-reach=') ? isIP(t.substring(10)) && !ip(t.substring(10)).isUnspecified() : \
     t.startsWith('/') ? size(t) > 2 && t.endsWith('/') : t.matches('^[^/:\\\\s]{1,15}$') && t != '.' && t != '..'";

const IS_PREFIX: &str = "isCIDR(t) && cidr(t).masked() == cidr(t)";

const IS_TARGET: &str = "isIP(t) && ip(t).isGlobalUnicast() && t != '255.255.255.255'";

/// A condition that no text of a list occurs twice.
fn distinct(list: &str) -> String {
    each(list, &format!("self.{list}.exists_one(o, o == t)"))
}

/// The same for a list of prefixes, each in any form of writing.
fn distinct_prefixes(list: &str) -> String {
    each(list, &format!("!isCIDR(t) || self.{list}.exists_one(o, isCIDR(o) && cidr(o) == cidr(t))"))
}

/// Rules of `spec.config`.
pub(super) fn config() -> Vec<Row> {
    vec![
        (
            each("vlanInterfaces", IS_LINK),
            "vlanInterfaces: an entry is not a link: write a name, a regular expression such as /^eth[0-9]+$/, \
             or can-reach=ADDRESS",
        ),
        (distinct("vlanInterfaces"), "vlanInterfaces: a link occurs twice: delete one of the two"),
        (
            each("vxlanInterfaces", IS_LINK),
            "vxlanInterfaces: an entry is not a link: write a name, a regular expression such as \
             /^eth[0-9]+$/, or can-reach=ADDRESS",
        ),
        (distinct("vxlanInterfaces"), "vxlanInterfaces: a link occurs twice: delete one of the two"),
        (
            each("serviceCIDRs", &format!("{IS_PREFIX} && cidr(t).prefixLength() > 0")),
            "serviceCIDRs: an entry is not a prefix of Services, or has host bits: write prefixes such as \
             10.96.0.0/12",
        ),
        (distinct_prefixes("serviceCIDRs"), "serviceCIDRs: a prefix occurs twice: delete one of the two"),
        (
            each("vtepAddressCIDRs", IS_PREFIX),
            "vtepAddressCIDRs: an entry is not a prefix, or has host bits: write prefixes such as 10.1.0.0/16",
        ),
        (
            distinct_prefixes("vtepAddressCIDRs"),
            "vtepAddressCIDRs: a prefix occurs twice: delete one of the two",
        ),
        (
            "!has(self.vtepAddressCIDRs) || size(self.vtepAddressCIDRs) > 0".to_owned(),
            "vtepAddressCIDRs is empty: write a prefix of the nodes' addresses, or leave the field out",
        ),
        (
            each("vtepLocalAddressCIDRs", IS_PREFIX),
            "vtepLocalAddressCIDRs: an entry is not a prefix, or has host bits: write prefixes such as \
             10.2.0.0/16",
        ),
        (
            distinct_prefixes("vtepLocalAddressCIDRs"),
            "vtepLocalAddressCIDRs: a prefix occurs twice: delete one of the two",
        ),
    ]
}

/// Rules of `spec.config.probes`.
pub(super) fn probes() -> Vec<Row> {
    vec![(
        each("targets", IS_TARGET),
        "targets: an entry cannot be the address of another node: write addresses that routers reach, such \
         as 10.0.0.12",
    )]
}

/// Bounds of all fields.
pub(super) fn bounds() -> [(&'static str, Value); 20] {
    let span = |least: u32, most: u32| json!({"minimum": least, "maximum": most});
    let list = |most: u32, text: u32| json!({"maxItems": most, "items": {"maxLength": text}});
    [
        ("spec.priority", json!({"maximum": 1000, "default": 100})),
        ("spec.config.podMTU", span(1280, 65535)),
        ("spec.config.vlanInterfaces", list(32, 256)),
        ("spec.config.vxlanInterfaces", list(32, 256)),
        ("spec.config.serviceCIDRs", list(64, 49)),
        ("spec.config.vtepAddressCIDRs", list(64, 49)),
        ("spec.config.vtepLocalAddressCIDRs", list(64, 49)),
        ("spec.config.kernelLimits.neighbours", span(0, 1 << 24)),
        ("spec.config.kernelLimits.ipv6Routes", span(0, 1 << 24)),
        ("spec.config.probes.targets", list(64, 45)),
        ("spec.config.probes.intervalSeconds", span(1, 300)),
        ("spec.config.probes.size", span(576, 65535)),
        ("spec.config.maxPaths", span(1, 64)),
        ("spec.config.selectionDeferralSeconds", span(1, 3600)),
        ("spec.config.services.proxy.restartSeconds", span(0, 3600)),
        ("spec.config.services.proxy.settleMilliseconds", span(0, 60_000)),
        ("spec.config.readiness.timeoutSeconds", span(1, 300)),
        ("spec.config.drain.settleSeconds", span(0, 3600)),
        ("spec.config.vlanCheck.timeoutSeconds", span(1, 60)),
        ("spec.config.vlanCheck.duplicateAddressWaitMilliseconds", span(0, 10_000)),
    ]
}
