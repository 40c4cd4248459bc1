//! From the text of a manifest file to resources.
//!
//! A file has one or more YAML documents, each a Network, a Subnet, a NodeInfo, a RemoteSubnet, a
//! RemoteVtep, an AnycastAddress, an AgentSettings, a NetworkPolicy, a ClusterNetworkPolicy or a Namespace. Every document is read, so all faults of a file are reported at once. Each [`ManifestError`] has the line, the
//! resource, the field's path and the fix. It never quotes a line of the file, which could contain
//! a password.
//!
//! The text is split at document markers before it is parsed. Then the `kind` of a document can
//! select its type, while lines and field paths stay exact.

mod place;

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::Location;

use crate::names::{API_VERSION, MULTICLUSTER_API_VERSION, OWN_API_VERSION};
use crate::network_policy::{
    ClusterPolicy, NetworkPolicy, ObjectKey, PathSegment, PolicyFault, Read, read_cluster_policy,
    read_network_policy,
};
use crate::resources::{
    AgentSettings, AnycastAddress, Ignored, Network, NodeInfo, ObjectMeta, RemoteSubnet, RemoteVtep, Subnet,
};

const KINDS: &str = "Network, Subnet, NodeInfo, RemoteSubnet, RemoteVtep, AnycastAddress, AgentSettings, \
                     NetworkPolicy, ClusterNetworkPolicy or Namespace";

/// A resource in the agent's files.
#[derive(Clone, Debug, PartialEq)]
pub enum Resource {
    /// `kind: Network`
    Network(Box<Network>),
    /// `kind: Subnet`
    Subnet(Box<Subnet>),
    /// `kind: NodeInfo`
    NodeInfo(Box<NodeInfo>),
    /// `kind: RemoteSubnet`
    RemoteSubnet(Box<RemoteSubnet>),
    /// `kind: RemoteVtep`
    RemoteVtep(Box<RemoteVtep>),
    /// `kind: AnycastAddress`
    AnycastAddress(Box<AnycastAddress>),
    /// `kind: AgentSettings`
    AgentSettings(Box<AgentSettings>),
    /// `kind: NetworkPolicy`
    NetworkPolicy(Box<NetworkPolicy>),
    /// `kind: ClusterNetworkPolicy`
    ClusterNetworkPolicy(Box<ClusterPolicy>),
    /// `kind: Namespace`
    Namespace(Box<ObjectMeta>),
}

/// A policy in a file. The reader of the API server's policies reads the spec.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PolicyDocument {
    #[serde(rename = "apiVersion")]
    _api_version: Ignored,
    #[serde(rename = "kind")]
    _kind: Ignored,
    metadata: ObjectMeta,
    spec: Value,
    #[serde(default, rename = "status")]
    _status: Ignored,
}

/// A Namespace in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NamespaceDocument {
    #[serde(rename = "apiVersion")]
    _api_version: Ignored,
    #[serde(rename = "kind")]
    _kind: Ignored,
    metadata: ObjectMeta,
    #[serde(default, rename = "spec")]
    _spec: Ignored,
    #[serde(default, rename = "status")]
    _status: Ignored,
}

/// A document that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ManifestError {
    /// Line in the text, from 1.
    pub line: u64,
    /// Kind and name, if readable: `Network rack1`.
    pub resource: String,
    /// Path of the field, such as `spec.config.bgpPeers[0].asn`; empty if the YAML itself is
    /// broken.
    pub field: String,
    /// The fault and the fix.
    pub message: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        for part in [&self.resource, &self.field, &self.message] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        Ok(())
    }
}

/// The common beginning of every document.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: HeaderMeta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HeaderMeta {
    name: Option<String>,
}

/// Reads every document of a text. Empty documents, and documents with comments only, are skipped.
pub fn parse(text: &str) -> Result<Vec<Resource>, Vec<ManifestError>> {
    let mut resources = Vec::new();
    let mut errors = Vec::new();
    for document in documents(text) {
        match document.read() {
            Ok(Some(resource)) => resources.push(resource),
            Ok(None) => {}
            Err(found) => errors.extend(found),
        }
    }
    if errors.is_empty() { Ok(resources) } else { Err(errors) }
}

/// One YAML document of a text.
struct Document {
    text: String,
    /// Number of lines before it.
    offset: u64,
}

/// Splits a text at its document markers. A marker is `---` at the start of a line. In YAML no
/// other text can begin a line with `---` (YAML 1.2 §9.1.2), so the split needs no parser. The rest
/// of the marker's line belongs to the document.
fn documents(text: &str) -> Vec<Document> {
    let mut documents = vec![Document { text: String::new(), offset: 0 }];
    for (number, line) in (0..).zip(text.split_inclusive('\n')) {
        let after_marker = line.strip_prefix("---").filter(|rest| rest.starts_with([' ', '\t', '\r', '\n']));
        if let Some(rest) = after_marker.or((line == "---").then_some("")) {
            documents.push(Document { text: format!("   {rest}"), offset: number });
        } else if let Some(document) = documents.last_mut() {
            document.text.push_str(line);
        }
    }
    documents.retain(|document| {
        let nothing = |line: &str| matches!(line.trim_start().chars().next(), None | Some('#' | '%'));
        !document.text.lines().all(nothing)
    });
    documents
}

impl Document {
    fn read(&self) -> Result<Option<Resource>, Vec<ManifestError>> {
        let header: Option<Header> = self.parse("").map_err(|error| vec![error])?;
        let Some(header) = header else { return Ok(None) };
        match header.kind.as_deref() {
            Some("NetworkPolicy" | "ClusterNetworkPolicy") => self.read_policy(&header).map(Some),
            _ => self.read_other(&header).map(Some).map_err(|error| vec![error]),
        }
    }

    /// All faults of a policy are reported at once.
    fn read_policy(&self, header: &Header) -> Result<Resource, Vec<ManifestError>> {
        let resource = header.describe();
        self.check_version(header).map_err(|error| vec![error])?;
        let document: PolicyDocument = self.parse(&resource).map_err(|error| vec![error])?;
        let PolicyDocument { metadata, spec, .. } = document;
        let (read, faults) = if header.kind.as_deref() == Some("NetworkPolicy") {
            let Some(namespace) = metadata.namespace.as_deref().filter(|name| !name.is_empty()) else {
                let message = "missing: write the Namespace of the pods".to_owned();
                return Err(vec![self.refuse(header, "metadata.namespace", message)]);
            };
            let Read { object, faults, .. } =
                read_network_policy(ObjectKey::new(namespace, &metadata.name), &spec);
            (Resource::NetworkPolicy(Box::new(object)), faults)
        } else {
            let Read { object, faults, .. } = read_cluster_policy(metadata.name.into(), &spec);
            (Resource::ClusterNetworkPolicy(Box::new(object)), faults)
        };
        if faults.is_empty() {
            return Ok(read);
        }
        Err(faults.into_iter().map(|fault| self.policy_error(&resource, fault)).collect())
    }

    fn policy_error(&self, resource: &str, fault: PolicyFault) -> ManifestError {
        ManifestError {
            line: self.line_of(&fault.path),
            resource: resource.to_owned(),
            field: fault.field(),
            message: fault.message,
        }
    }

    /// The line of a field.
    fn line_of(&self, path: &[PathSegment]) -> u64 {
        place::line(&self.text, path).map_or(self.first_line(), |line| self.offset + line)
    }

    fn refuse(&self, header: &Header, field: &str, message: String) -> ManifestError {
        ManifestError {
            line: self.first_line(),
            resource: header.describe(),
            field: field.to_owned(),
            message,
        }
    }

    fn check_version(&self, header: &Header) -> Result<(), ManifestError> {
        let refuse = |field: &str, message: String| self.refuse(header, field, message);
        let kind = header.kind.as_deref();
        let version = version_of(kind);
        match header.api_version.as_deref() {
            Some(given) if given == version => Ok(()),
            // The fault is the kind: files have no other kind of this version.
            Some(OWN_API_VERSION) if version == API_VERSION && !is_hybridnet(kind) => Ok(()),
            Some(other) => Err(refuse("apiVersion", format!("`{other}` is not known: write {version}"))),
            None => Err(refuse("apiVersion", format!("missing: write {version}"))),
        }
    }

    fn read_other(&self, header: &Header) -> Result<Resource, ManifestError> {
        self.check_version(header)?;
        let refuse = |field: &str, message: String| self.refuse(header, field, message);
        let resource = header.describe();
        match header.kind.as_deref() {
            Some("Network") => Ok(Resource::Network(self.parse(&resource)?)),
            Some("Subnet") => Ok(Resource::Subnet(self.parse(&resource)?)),
            Some("NodeInfo") => Ok(Resource::NodeInfo(self.parse(&resource)?)),
            Some("RemoteSubnet") => Ok(Resource::RemoteSubnet(self.parse(&resource)?)),
            Some("RemoteVtep") => Ok(Resource::RemoteVtep(self.parse(&resource)?)),
            Some("AnycastAddress") => Ok(Resource::AnycastAddress(self.parse(&resource)?)),
            Some("AgentSettings") => Ok(Resource::AgentSettings(self.parse(&resource)?)),
            Some("Namespace") => {
                let NamespaceDocument { metadata, .. } = self.parse(&resource)?;
                Ok(Resource::Namespace(Box::new(metadata)))
            }
            Some(other) => Err(refuse("kind", format!("`{other}` is not read from files: write {KINDS}"))),
            None => Err(refuse("kind", format!("missing: write {KINDS}"))),
        }
    }

    /// The first line that is neither empty nor a comment.
    fn first_line(&self) -> u64 {
        let blank = |line: &&str| matches!(line.trim_start().chars().next(), None | Some('#'));
        self.offset + 1 + self.text.lines().take_while(blank).count() as u64
    }

    fn parse<T: DeserializeOwned>(&self, resource: &str) -> Result<T, ManifestError> {
        let mut field = String::new();
        let parsed = serde_saphyr::with_deserializer_from_str(&self.text, |deserializer| {
            serde_path_to_error::deserialize(deserializer).map_err(|error| {
                field = error.path().to_string();
                error.into_inner()
            })
        });
        parsed.map_err(|error: serde_saphyr::Error| {
            let line = error.location().map_or(self.first_line(), |place| self.offset + place.line());
            ManifestError {
                line,
                resource: resource.to_owned(),
                field: field.trim_end_matches(['.', '?']).to_owned(),
                message: self.message(&error),
            }
        })
    }
}

impl Document {
    /// The parser's message without position and quoted lines. Messages about the parser itself are
    /// replaced.
    fn message(&self, error: &serde_saphyr::Error) -> String {
        use serde_saphyr::Error;

        let error = error.without_snippet();
        let number = |range: &str, place: &Location| {
            let value = self.scalar(place.line(), place.column());
            format!("`{value}` is not a whole number from {range}")
        };
        match error {
            Error::InvalidScalar { ty: "u8", location } => number("0 to 255", location),
            Error::InvalidScalar { ty: "u16", location } => number("0 to 65535", location),
            Error::InvalidScalar { ty: "u32", location } => number("0 to 4294967295", location),
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("`{key}` is given twice: remove one of the two")
            }
            Error::Unexpected { expected: "mapping start", .. } => {
                "expected a mapping, `key: value`".to_owned()
            }
            Error::Unexpected { expected: "sequence start", .. } => "expected a list, `- item`".to_owned(),
            error => {
                let text = error.to_string();
                let Some(place) = error.location() else { return text };
                let position = format!(" at line {}, column {}", place.line(), place.column());
                text.strip_suffix(&position).unwrap_or(&text).to_owned()
            }
        }
    }

    /// The plain value at a position, counted from 1. Only used for numbers, which are no secrets.
    fn scalar(&self, line: u64, column: u64) -> &str {
        let index = |number: u64| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
        let line = self.text.lines().nth(index(line)).unwrap_or_default();
        let start = line.char_indices().nth(index(column)).map_or(line.len(), |(offset, _)| offset);
        let rest = &line[start..];
        rest.split([',', '}', ']', ' ', '#']).next().unwrap_or(rest)
    }
}

/// The `apiVersion` of a kind. A kind without one has hybridnet's, for the error.
fn version_of(kind: Option<&str>) -> &'static str {
    match kind {
        Some("RemoteSubnet" | "RemoteVtep") => MULTICLUSTER_API_VERSION,
        Some("AnycastAddress" | "AgentSettings") => OWN_API_VERSION,
        Some("NetworkPolicy") => "networking.k8s.io/v1",
        Some("ClusterNetworkPolicy") => "policy.networking.k8s.io/v1beta1",
        Some("Namespace") => "v1",
        _ => API_VERSION,
    }
}

fn is_hybridnet(kind: Option<&str>) -> bool {
    matches!(kind, Some("Network" | "Subnet" | "NodeInfo"))
}

impl Header {
    fn describe(&self) -> String {
        let kind = self.kind.as_deref().unwrap_or_default();
        let name = self.metadata.name.as_deref().unwrap_or_default();
        format!("{kind} {name}").trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only error of a Network with this spec (indented by two).
    fn network_error(spec: &str) -> ManifestError {
        let text = format!(
            "# a comment\n---\napiVersion: {API_VERSION}\nkind: Network\nmetadata: {{name: rack1}}\nspec:\n{spec}\n"
        );
        let mut errors = parse(&text).expect_err("refused");
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors.remove(0)
    }

    #[test]
    fn an_error_names_line_resource_field_and_fix() {
        // (spec, line, field, text of the message)
        let table = [
            ("  netIDD: 3", 7, "spec.netIDD", "unknown field `netIDD`, expected one of nodeSelector, netID"),
            (
                "  mode: FOO",
                7,
                "spec.mode",
                "unknown variant `FOO`, expected one of VLAN, VXLAN, BGP, GlobalBGP",
            ),
            ("  netID: -1 # no", 7, "spec.netID", "`-1` is not a whole number from 0 to 4294967295"),
            (
                "  config: {bgpPeers: [{asn: 4294967296, address: 10.0.0.1}]}",
                7,
                "spec.config.bgpPeers[0].asn",
                "`4294967296` is not a whole number from 0 to 4294967295",
            ),
            (
                "  config:\n    bgpPeers:\n    - asn: 1\n      address: 10.0.0.1\n    - asn: x",
                11,
                "spec.config.bgpPeers[1].asn",
                "`x` is not a whole number from 0 to 4294967295",
            ),
            (
                "  config: {bgpPeers: [{address: 10.0.0.1}]}",
                7,
                "spec.config.bgpPeers[0]",
                "missing field `asn`",
            ),
            (
                "  config: {bgpPeers: [{asn: 1, port: 70000}]}",
                7,
                "spec.config.bgpPeers[0].port",
                "0 to 65535",
            ),
            (
                "  config: {bgpPeers: [{asn: 1, asnn: 2}]}",
                7,
                "spec.config.bgpPeers[0].asnn",
                "unknown field `asnn`, expected one of asn, address",
            ),
            (
                "  config: {bgpPeers: [{asn: 1, import: {rules: [{action: drop}]}}]}",
                7,
                "spec.config.bgpPeers[0].import.rules[0].action",
                "unknown variant `drop`, expected one of accept, reject",
            ),
            ("  config: 7", 7, "spec.config", "expected a mapping"),
        ];
        for (spec, line, field, message) in table {
            let error = network_error(spec);
            assert_eq!((error.line, error.field.as_str()), (line, field), "{error}");
            assert!(error.message.contains(message), "{error}");
            assert!(error.to_string().contains("Network rack1"), "{error}");
        }
        let error = network_error("  netID: 1\n  netID: 2");
        assert!(error.message.contains("`netID` is given twice"), "{error}");
        let error = network_error("  mode: BGP\n   netID: 2");
        assert_eq!(error.line, 8, "{error}");
    }

    #[test]
    fn secrets_are_in_no_error() {
        for peer in [
            "{asn: 1, address: 10.0.0.1, password: [hunter2]}",
            "{asn: 1, address: 10.0.0.1, password: {a: hunter2}}",
            "{asn: 1, address: 10.0.0.1, password: hunter2, password: hunter2}",
            "{asn: 1, address: 10.0.0.1, password: \"hunter2}",
            "{asn: x, address: 10.0.0.1, password: hunter2}",
            "{asn: 1, address: 10.0.0.1, passwrd: hunter2}",
            "{address: 10.0.0.1, password: hunter2}",
        ] {
            let error = network_error(&format!("  config: {{bgpPeers: [{peer}]}}"));
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn other_kinds_and_versions_are_refused_by_name() {
        let errors = parse(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n---\nkind: Subnet\n--- # third\n\n# here\napiVersion: \
             networking.alibaba.com/v1\nkind: IPInstance\nmetadata: {name: n1}\n---\n[]\n",
        )
        .unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "line 1: Pod web: apiVersion: `v1` is not known: write networking.alibaba.com/v1",
                "line 5: Subnet: apiVersion: missing: write networking.alibaba.com/v1",
                "line 9: IPInstance n1: kind: `IPInstance` is not read from files: write Network, Subnet, NodeInfo, RemoteSubnet, RemoteVtep, AnycastAddress, AgentSettings, NetworkPolicy, ClusterNetworkPolicy or Namespace",
                "line 13: expected a mapping, `key: value`",
            ]
        );
    }

    #[test]
    fn own_kinds_have_their_own_version() {
        let anycast = |version: &str| {
            parse(&format!(
                "apiVersion: {version}\nkind: AnycastAddress\nmetadata: {{name: dns}}\nspec: {{addresses: [10.0.0.53]}}\n"
            ))
        };
        assert!(matches!(
            anycast("trunkline.io/v1alpha1").as_deref(),
            Ok([Resource::AnycastAddress(dns)]) if dns.name() == "dns" && dns.spec.addresses == ["10.0.0.53"]
        ));
        let text = |errors: Vec<ManifestError>| {
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            text(anycast(API_VERSION).unwrap_err()),
            "line 1: AnycastAddress dns: apiVersion: `networking.alibaba.com/v1` is not known: write trunkline.io/v1alpha1"
        );
        for (kind, error) in [
            ("Subnet", "apiVersion: `trunkline.io/v1alpha1` is not known: write networking.alibaba.com/v1"),
            (
                "ServicePool",
                "kind: `ServicePool` is not read from files: write Network, Subnet, NodeInfo, RemoteSubnet, RemoteVtep, AnycastAddress, AgentSettings, NetworkPolicy, ClusterNetworkPolicy or Namespace",
            ),
        ] {
            let document =
                format!("apiVersion: trunkline.io/v1alpha1\nkind: {kind}\nmetadata: {{name: a}}\n");
            assert_eq!(text(parse(&document).unwrap_err()), format!("line 1: {kind} a: {error}"));
        }
    }

    #[test]
    fn an_empty_text_is_no_error() {
        for text in ["", "\n\n", "# only a comment\n", "---\n---\n", "%YAML 1.2\n---\n"] {
            assert_eq!(parse(text), Ok(Vec::new()), "{text:?}");
        }
    }
}
