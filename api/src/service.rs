//! The annotations and fields of a Service that request its addresses, parsed in one place; and the
//! properties of a Service that several programs need.
//!
//! The annotations are Trunkline's own, or MetalLB's. If a Service has both and they differ,
//! Trunkline's count, and [`conflicts`] names them. An empty value counts as absent. No webhook
//! checks a Service. So a fault is an event of the Service, and the Service keeps the address that
//! it has.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::fault::{Fault, annotation_field};
use crate::names::{annotation, full_name};
use crate::value::parse_address;

/// A kind of a Service's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum AddressKind {
    /// The addresses of `status.loadBalancer.ingress` that a ServicePool has.
    LoadBalancer,
    /// The addresses of `spec.externalIPs`.
    External,
    /// The addresses of `spec.clusterIPs`.
    Cluster,
}

impl AddressKind {
    /// All kinds.
    pub const ALL: [AddressKind; 3] =
        [AddressKind::LoadBalancer, AddressKind::External, AddressKind::Cluster];

    /// The name in YAML and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            AddressKind::LoadBalancer => "LoadBalancer",
            AddressKind::External => "External",
            AddressKind::Cluster => "Cluster",
        }
    }
}

/// `externalTrafficPolicy` or `internalTrafficPolicy` of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Each node forwards to every endpoint.
    #[default]
    Cluster,
    /// Each node forwards only to its own endpoints.
    Local,
}

impl TrafficPolicy {
    /// The name in YAML and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        }
    }
}

impl fmt::Display for TrafficPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The protocol of a Service's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The number in an IP header (IANA).
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The protocol with this number.
    pub const fn from_number(number: u8) -> Option<Protocol> {
        match number {
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            132 => Some(Protocol::Sctp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        })
    }
}

/// A port of a Service: it is unique on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortKey {
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl fmt::Display for PortKey {
    /// `TCP port 80`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.protocol, self.port)
    }
}

/// The addresses that a Service requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServiceRequest {
    /// Its addresses: at most one of each IP family, IPv4 first. Empty: any address.
    pub addresses: Vec<IpAddr>,
    /// The ServicePool of its addresses.
    pub pool: Option<String>,
    /// It shares its address with the Services of this key.
    pub sharing_key: Option<String>,
}

/// The annotations of a Service about its addresses.
pub fn request_annotations() -> impl Iterator<Item = &'static str> {
    let own = [annotation::ADDRESSES, annotation::POOL, annotation::SHARING_KEY];
    let metallb =
        [&annotation::metallb::ADDRESSES, &annotation::metallb::POOL, &annotation::metallb::SHARING_KEY];
    own.into_iter().chain(metallb.into_iter().flatten().copied())
}

impl ServiceRequest {
    /// The request of the Service `namespace/name` with these annotations and this
    /// `spec.loadBalancerIP`. The field counts only without an annotation for the addresses.
    ///
    /// # Errors
    /// A fault for each unreadable value, with the annotation or field.
    pub fn read(
        namespace: &str,
        name: &str,
        annotations: &BTreeMap<String, String>,
        load_balancer_ip: Option<&str>,
    ) -> Result<ServiceRequest, Vec<Fault>> {
        let mut found = Vec::new();
        let value = |own: &'static str, aliases: &'static [&'static str]| {
            present(annotations, own, aliases).next().map(|(name, text)| (annotation_field(name), text))
        };
        let field = || {
            let text = load_balancer_ip.map(str::trim).filter(|text| !text.is_empty())?;
            Some(("spec.loadBalancerIP".to_owned(), text))
        };
        let mut addresses = Vec::new();
        let wanted = value(annotation::ADDRESSES, &annotation::metallb::ADDRESSES).or_else(field);
        if let Some((field, text)) = wanted {
            match read_addresses(text) {
                Ok(read) => addresses = read,
                Err(message) => {
                    found.push(Fault { kind: "Service", name: full_name(namespace, name), field, message });
                }
            }
        }
        let text = |own, aliases| value(own, aliases).map(|(_, text)| text.to_owned());
        let request = ServiceRequest {
            addresses,
            pool: text(annotation::POOL, &annotation::metallb::POOL),
            sharing_key: text(annotation::SHARING_KEY, &annotation::metallb::SHARING_KEY),
        };
        if found.is_empty() { Ok(request) } else { Err(found) }
    }
}

/// Two annotations of a Service that mean the same and have different values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the annotations {used} (`{value}`) and {ignored} (`{other}`) differ, and {used} counts: remove one of the two"
)]
pub struct AnnotationConflict {
    /// The annotation that counts.
    pub used: String,
    /// Its value.
    pub value: String,
    /// The annotation that has no effect.
    pub ignored: String,
    /// Its value.
    pub other: String,
}

/// The annotations of a Service that mean the same and have different values.
pub fn conflicts(annotations: &BTreeMap<String, String>) -> Vec<AnnotationConflict> {
    let mut found = Vec::new();
    for (own, aliases) in [
        (annotation::ADDRESSES, &annotation::metallb::ADDRESSES),
        (annotation::POOL, &annotation::metallb::POOL),
        (annotation::SHARING_KEY, &annotation::metallb::SHARING_KEY),
    ] {
        let mut present = present(annotations, own, aliases);
        let Some((used, value)) = present.next() else { continue };
        for (ignored, other) in present.filter(|(_, other)| *other != value) {
            found.push(AnnotationConflict {
                used: used.to_owned(),
                value: value.to_owned(),
                ignored: ignored.to_owned(),
                other: other.to_owned(),
            });
        }
    }
    found
}

/// The present annotations of one meaning, with their values; the one that counts is the first.
fn present<'a>(
    annotations: &'a BTreeMap<String, String>,
    own: &'a str,
    aliases: &'a [&'a str],
) -> impl Iterator<Item = (&'a str, &'a str)> {
    std::iter::once(own).chain(aliases.iter().copied()).filter_map(move |name| {
        let text = annotations.get(name)?.trim();
        (!text.is_empty()).then_some((name, text))
    })
}

/// Parses addresses separated by commas, at most one of each IP family.
fn read_addresses(text: &str) -> Result<Vec<IpAddr>, String> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for part in text.split(',').map(str::trim) {
        let address = parse_address(part).map_err(|error| error.to_string())?;
        if let Some(other) = addresses.iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
            return Err(format!(
                "{other} and {address} are of one family, and a Service has at most one address of each: \
                 write one IPv4 address, one IPv6 address, or one of each"
            ));
        }
        addresses.push(address);
    }
    addresses.sort_unstable();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn read(pairs: &[(&str, &str)], load_balancer_ip: Option<&str>) -> Result<ServiceRequest, String> {
        ServiceRequest::read("default", "web", &map(pairs), load_balancer_ip)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    fn addresses(pairs: &[(&str, &str)], load_balancer_ip: Option<&str>) -> Vec<String> {
        read(pairs, load_balancer_ip).unwrap().addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn own_annotations_precede_metallbs_and_the_field() {
        let own = ("trunkline.io/addresses", "fd00::5, 10.0.0.5");
        let today = ("metallb.io/loadBalancerIPs", "10.0.0.6");
        let before = ("metallb.universe.tf/loadBalancerIPs", "10.0.0.7");
        let field = Some("10.0.0.8");
        assert_eq!(addresses(&[own, today, before], field), ["10.0.0.5", "fd00::5"]);
        assert_eq!(addresses(&[today, before], field), ["10.0.0.6"]);
        assert_eq!(addresses(&[before], field), ["10.0.0.7"]);
        assert_eq!(addresses(&[("trunkline.io/addresses", " ")], field), ["10.0.0.8"]);
        assert_eq!(addresses(&[], Some("")), [""; 0]);
    }

    #[test]
    fn pool_and_sharing_key_have_aliases() {
        for prefix in ["metallb.io", "metallb.universe.tf"] {
            let pool = format!("{prefix}/address-pool");
            let key = format!("{prefix}/allow-shared-ip");
            let request = read(&[(&pool, "gold"), (&key, "web")], None).unwrap();
            assert_eq!(
                (request.pool.as_deref(), request.sharing_key.as_deref()),
                (Some("gold"), Some("web"))
            );
            let own = [("trunkline.io/pool", "p"), ("trunkline.io/sharing-key", "k")];
            let request = read(&[own[0], own[1], (&pool, "gold"), (&key, "web")], None).unwrap();
            assert_eq!((request.pool.as_deref(), request.sharing_key.as_deref()), (Some("p"), Some("k")));
        }
        assert_eq!(read(&[], None), Ok(ServiceRequest::default()));
    }

    #[test]
    fn a_fault_names_annotation_value_and_fix() {
        for (annotation, value, words) in [
            (
                "trunkline.io/addresses",
                "10.0.0.5,web",
                "Service default/web: metadata.annotations[trunkline.io/addresses]: `web` is not an IP address",
            ),
            (
                "metallb.io/loadBalancerIPs",
                "10.0.0.5,",
                "[metallb.io/loadBalancerIPs]: `` is not an IP address",
            ),
            ("trunkline.io/addresses", "10.0.0.5,10.0.0.6", "10.0.0.5 and 10.0.0.6 are of one family"),
            ("trunkline.io/addresses", "10.0.0.0/24", "`10.0.0.0/24` is not an IP address"),
        ] {
            let error = read(&[(annotation, value)], None).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let error = read(&[], Some("web")).unwrap_err();
        assert!(error.contains("spec.loadBalancerIP: `web` is not an IP address"), "{error}");
    }

    #[test]
    fn different_annotations_of_one_meaning_conflict() {
        let found = conflicts(&map(&[
            ("trunkline.io/pool", "gold"),
            ("metallb.io/address-pool", "silver"),
            ("metallb.universe.tf/address-pool", "gold"),
            ("metallb.io/allow-shared-ip", "web"),
            ("trunkline.io/sharing-key", ""),
        ]));
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "the annotations trunkline.io/pool (`gold`) and metallb.io/address-pool (`silver`) differ, and \
              trunkline.io/pool counts: remove one of the two"
            ]
        );
    }

    #[test]
    fn names_and_numbers_are_those_of_kubernetes_and_iana() {
        for kind in AddressKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
        }
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            assert_eq!(serde_json::to_value(protocol).unwrap(), protocol.to_string());
            assert_eq!(Protocol::from_number(protocol.number()), Some(protocol));
        }
        assert_eq!(Protocol::from_number(1), None);
        assert_eq!(PortKey { protocol: Protocol::Tcp, port: 80 }.to_string(), "TCP port 80");
    }
}
