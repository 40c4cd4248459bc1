//! The attach protocol: the requests of the CNI plugin, and the agent's replies.
//!
//! # Framing
//! The agent listens on a unix stream socket ([`DEFAULT_SOCKET`]). A connection carries one request
//! and one reply:
//!
//! 1. The client sends **one JSON object on one line**, terminated by `\n` ([`encode`], at most
//!    [`MAX_LINE`] octets).
//! 2. If there is a network namespace, **one file descriptor** of this namespace travels by
//!    `SCM_RIGHTS` with the **first `sendmsg`** of that line (Linux delivers it with the first
//!    octet). The agent may be in another mount namespace, so it never opens the path
//!    ([`Attach::netns`] is for people to read). A long line may take more `write`s after the
//!    first; the descriptor is sent once.
//! 3. The server answers with one JSON object on one line, [`Reply`], and closes.
//!
//! The receiving side therefore calls `recvmsg` with room for descriptors until it has seen `\n`
//! (with rustix: `RecvAncillaryBuffer` over `rustix::cmsg_space!(ScmRights(1))`, flag
//! `CMSG_CLOEXEC`). It keeps the first descriptor, closes any others, gives up beyond [`MAX_LINE`],
//! and passes the line to [`Request::decode`]. `MSG_CTRUNC` means that a client sent more than one
//! descriptor: refuse it with [`Code::InvalidContent`].
//!
//! A client that closes (the read side sees end of file) has given up, usually because its deadline
//! passed. [`Attach::deadline_ms`] is that deadline, so that the agent's own, more precise answer
//! arrives first.
//!
//! # Versions
//! [`VERSION`] changes only with incompatible additions. Each side ignores fields that it does not
//! know.
//!
//! # Invariants
//! `attach` is idempotent for each (container id, ifname): a repeated request gets the same answer.
//! `detach` succeeds for an attachment that does not exist. `gc` deletes only attachments of the
//! same network configuration ([`Gc::conf_name`]).

mod pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Bandwidth;
use crate::control::Query;
use crate::resources::SubnetDns;

pub use pieces::ListReply;

/// Version of this protocol.
pub const VERSION: u32 = 1;
/// Default path of the agent's socket.
pub const DEFAULT_SOCKET: &str = "/run/trunkline/agent.sock";
/// The longest line of either side, in octets. A GC request for 10,000 containers has about 1 MB.
pub const MAX_LINE: usize = 8 << 20;

/// A request. On the wire: `{"version":1,"command":"attach",…}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the client.
    pub version: u32,
    /// Origin of the request, for traces; not all clients send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The command.
    #[serde(flatten)]
    pub command: Command,
}

/// Origin of a request. It only affects traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// When the client was started, by this node's clock, in nanoseconds since 1970.
    pub started_unix_nano: u64,
    /// `TRACEPARENT` of its environment: W3C Trace Context, as OpenTelemetry passes it to programs.
    /// Empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub traceparent: String,
}

/// The commands, with the [`Reply`] to each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Command {
    /// Attach a container: `Reply<Attachment>`. The request carries the netns.
    Attach(Box<Attach>),
    /// Detach a container: `Reply<Done>`. The request carries the netns if it still exists.
    Detach(Detach),
    /// Check that an attachment is unchanged: `Reply<Done>`. The request carries the netns.
    Check(Check),
    /// Delete all attachments that are not named: `Reply<Done>`.
    Gc(Gc),
    /// Check whether a container could be attached now: `Reply<Done>`; otherwise an error with
    /// [`Code::NotAvailable`] or [`Code::LimitedConnectivity`].
    Status,
    /// An operator's query; [`Query`] documents the reply.
    Query(Query),
}

/// A container's interface: the key of an attachment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Interface {
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_IFNAME, the name inside the container.
    pub ifname: String,
}

/// Request to attach a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attach {
    /// The interface.
    #[serde(flatten)]
    pub interface: Interface,
    /// `name` of the CNI network configuration; GC selects by this name.
    pub conf_name: String,
    /// CNI_NETNS, for display and logs; the namespace itself arrives as a descriptor.
    pub netns: String,
    /// The pod, if the runtime has pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// Values that the request names.
    #[serde(default, skip_serializing_if = "AttachOptions::is_empty")]
    pub wanted: AttachOptions,
    /// The client's timeout, in milliseconds from now.
    pub deadline_ms: u64,
}

/// A Kubernetes pod, or a container with a name, from CNI_ARGS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// K8S_POD_NAMESPACE; empty from runtimes without namespaces.
    pub namespace: String,
    /// K8S_POD_NAME.
    pub name: String,
    /// K8S_POD_UID; empty from old runtimes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Values that a request names. The agent chooses the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachOptions {
    /// The Network to take addresses from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The Subnets, at most one of each family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<String>,
    /// The addresses, at most one of each family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The MAC address of the container's side, `02:12:34:00:00:01`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its rate limits.
    #[serde(default, skip_serializing_if = "Bandwidth::is_empty")]
    pub bandwidth: Bandwidth,
    /// Prefixes from which the container may send in addition to its addresses.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub extra_prefixes: BTreeSet<IpNet>,
    /// The container's labels, for the selectors of network policies without an API server. At most
    /// [`MAX_LABELS`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The maximum number of a container's labels in a request.
pub const MAX_LABELS: usize = 64;

impl AttachOptions {
    /// Whether the request names no value.
    pub fn is_empty(&self) -> bool {
        *self == AttachOptions::default()
    }
}

/// Request to detach a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detach {
    /// The interface.
    #[serde(flatten)]
    pub interface: Interface,
    /// `name` of the CNI network configuration.
    pub conf_name: String,
}

/// Request to check that a container's interface is unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The interface.
    #[serde(flatten)]
    pub interface: Interface,
    /// `name` of the CNI network configuration.
    pub conf_name: String,
    /// The interface's addresses in the runtime's view (`prevResult`).
    pub addresses: Vec<IpNet>,
}

/// Request to delete every attachment of this network configuration that is not named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gc {
    /// `name` of the CNI network configuration.
    pub conf_name: String,
    /// Attachments to keep.
    pub valid: Vec<Interface>,
}

/// The agent's reply. On the wire: `{"ok":{…}}` or `{"error":{…}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply<T> {
    /// Success.
    Ok(T),
    /// Failure.
    Error(Failure),
}

impl<T> From<Result<T, Failure>> for Reply<T> {
    fn from(result: Result<T, Failure>) -> Self {
        match result {
            Ok(value) => Reply::Ok(value),
            Err(failure) => Reply::Error(failure),
        }
    }
}

impl<T> From<Reply<T>> for Result<T, Failure> {
    fn from(reply: Reply<T>) -> Self {
        match reply {
            Reply::Ok(value) => Ok(value),
            Reply::Error(failure) => Err(failure),
        }
    }
}

/// A success without further data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// An attached interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    /// The Network of its addresses.
    pub network: String,
    /// Its addresses, IPv4 first.
    pub addresses: Vec<AttachedAddress>,
    /// The routes inside the container.
    pub routes: Vec<AttachedRoute>,
    /// MAC address inside the container.
    pub mac: String,
    /// The host's end.
    pub host_ifname: String,
    /// MAC address of the host's end.
    pub host_mac: String,
    /// In octets.
    pub mtu: u32,
    /// DNS settings of its Subnet.
    #[serde(default, skip_serializing_if = "SubnetDns::is_empty")]
    pub dns: SubnetDns,
}

/// An address of an [`Attachment`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedAddress {
    /// With its prefix length on the interface, `10.14.0.7/32`.
    pub address: IpNet,
    /// Next hop of the container's default route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Its Subnet.
    pub subnet: String,
}

/// A route inside the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedRoute {
    /// Destination.
    pub destination: IpNet,
    /// Next hop; none for a route on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// Reason for a failure, which the plugin passes on to the runtime unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}{details}", if details.is_empty() { "" } else { ": " })]
pub struct Failure {
    /// The kind of failure.
    pub code: Code,
    /// One sentence with the field or value, and the fix.
    pub message: String,
    /// Details for an analysis; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Failure {
    /// A failure without details.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), details: String::new() }
    }

    /// The same failure, with details.
    #[must_use]
    pub fn with_details(self, details: impl Into<String>) -> Self {
        Failure { details: details.into(), ..self }
    }
}

/// Error codes of the CNI specification 1.1.0, and Trunkline's own from 100 on. On the wire: the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u32", from = "u32")]
pub enum Code {
    /// 1: a CNI version that the plugin does not support.
    IncompatibleVersion,
    /// 2: a field of the network configuration that is not supported.
    UnsupportedField,
    /// 3: the container is unknown, or its namespace is gone. The runtime need not clean up.
    UnknownContainer,
    /// 4: CNI_… variables are missing or wrong.
    InvalidEnvironment,
    /// 5: a read or write failed.
    Io,
    /// 6: an input could not be decoded.
    InvalidContent,
    /// 7: the network configuration is invalid.
    InvalidConfiguration,
    /// 8: CNI_NETNS is not the namespace of a container (libcni's number; the specification has
    /// none).
    InvalidNamespace,
    /// 11: a later attempt may succeed.
    TryAgainLater,
    /// 50: STATUS: nothing can be attached now.
    NotAvailable,
    /// 51: STATUS: nothing can be attached now, and existing attachments may have limited
    /// connectivity.
    LimitedConnectivity,
    /// 100: no address is free.
    PoolExhausted,
    /// 101: CHECK found a difference from the attachment.
    CheckFailed,
    /// 102: the requested Network or Subnet does not exist, or is not on this node.
    NoSuchNetwork,
    /// 103: the requested address is in use, or outside all subnets.
    AddressNotAvailable,
    /// 999: everything else.
    Internal,
    /// A code that this version does not know.
    Other(u32),
}

/// Number and name of each code.
const CODES: [(u32, Code); 16] = [
    (1, Code::IncompatibleVersion),
    (2, Code::UnsupportedField),
    (3, Code::UnknownContainer),
    (4, Code::InvalidEnvironment),
    (5, Code::Io),
    (6, Code::InvalidContent),
    (7, Code::InvalidConfiguration),
    (8, Code::InvalidNamespace),
    (11, Code::TryAgainLater),
    (50, Code::NotAvailable),
    (51, Code::LimitedConnectivity),
    (100, Code::PoolExhausted),
    (101, Code::CheckFailed),
    (102, Code::NoSuchNetwork),
    (103, Code::AddressNotAvailable),
    (999, Code::Internal),
];

impl From<u32> for Code {
    fn from(number: u32) -> Self {
        CODES.iter().find(|row| row.0 == number).map_or(Code::Other(number), |row| row.1)
    }
}

impl From<Code> for u32 {
    fn from(code: Code) -> Self {
        match code {
            Code::Other(number) => number,
            code => CODES.iter().find(|row| row.1 == code).map_or(999, |row| row.0),
        }
    }
}

/// The reason why a line is not a message of this protocol.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The line has another version.
    #[error(
        "the other side speaks version {theirs} of the attach protocol, this one {VERSION}: install the same version of trunkline and trunkline-cni"
    )]
    Version {
        /// The version in the line.
        theirs: u32,
    },
    /// Not JSON, or not of the expected shape.
    #[error("not a message of the attach protocol: {0}")]
    Json(#[from] serde_json::Error),
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Failure::new(Code::InvalidContent, error.to_string())
    }
}

impl Request {
    /// A request with this version.
    pub fn new(command: Command) -> Self {
        Request { version: VERSION, origin: None, command }
    }

    /// Decodes a request line, with or without its `\n`. The version is checked first, so that a
    /// client of another version gets the matching error, whatever else has changed.
    pub fn decode(line: &[u8]) -> Result<Request, DecodeError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(line)?;
        if version != VERSION {
            return Err(DecodeError::Version { theirs: version });
        }
        Ok(serde_json::from_slice(line)?)
    }
}

/// Encodes a message as one line, `\n` included.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Decodes a reply line, with or without its `\n`.
pub fn decode_reply<T: DeserializeOwned>(line: &[u8]) -> Result<Reply<T>, DecodeError> {
    Ok(serde_json::from_slice(line)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bandwidth::RateLimit;

    fn interface() -> Interface {
        Interface { container_id: "c1".into(), ifname: "eth0".into() }
    }

    #[test]
    fn every_command_survives_the_wire() {
        let commands = [
            Command::Attach(Box::new(Attach {
                interface: interface(),
                conf_name: "pods".into(),
                netns: "/run/netns/c1".into(),
                pod: Some(Pod { namespace: "default".into(), name: "web-0".into(), uid: String::new() }),
                wanted: AttachOptions {
                    network: Some("rack1".into()),
                    subnets: vec!["v4".into(), "v6".into()],
                    addresses: vec!["10.14.0.7".parse().unwrap(), "2001:db8::7".parse().unwrap()],
                    mac: Some("02:12:34:00:00:01".into()),
                    bandwidth: Bandwidth {
                        ingress: Some(RateLimit { rate: 10_000_000, burst: None }),
                        egress: Some(RateLimit { rate: 1_000_000, burst: Some(800_000) }),
                    },
                    extra_prefixes: ["10.9.0.0/16".parse().unwrap()].into(),
                    labels: [("app".into(), "web".into())].into(),
                },
                deadline_ms: 60_000,
            })),
            Command::Detach(Detach { interface: interface(), conf_name: "pods".into() }),
            Command::Check(Check {
                interface: interface(),
                conf_name: "pods".into(),
                addresses: vec!["10.14.0.7/32".parse().unwrap()],
            }),
            Command::Gc(Gc { conf_name: "pods".into(), valid: vec![interface()] }),
            Command::Status,
        ];
        for command in commands {
            let request = Request::new(command);
            let line = encode(&request).unwrap();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
            assert_eq!(line.last(), Some(&b'\n'));
            assert_eq!(Request::decode(&line).unwrap(), request);
        }
    }

    #[test]
    fn the_wire_form_is_flat_and_stable() {
        let line = encode(&Request::new(Command::Detach(Detach {
            interface: interface(),
            conf_name: "pods".into(),
        })));
        let expected = "{\"version\":1,\"command\":\"detach\",\"container_id\":\"c1\",\"ifname\":\"eth0\",\"conf_name\":\"pods\"}\n";
        assert_eq!(String::from_utf8(line.unwrap()).unwrap(), expected);
        assert_eq!(
            Request::decode(b"{\"version\":1,\"command\":\"status\"}").unwrap().command,
            Command::Status
        );
    }

    #[test]
    fn replies_survive_the_wire() {
        let attachment = Attachment {
            network: "rack1".into(),
            addresses: vec![AttachedAddress {
                address: "10.14.0.7/32".parse().unwrap(),
                gateway: Some("169.254.1.1".parse().unwrap()),
                subnet: "rack1-v4".into(),
            }],
            routes: vec![AttachedRoute { destination: "0.0.0.0/0".parse().unwrap(), gateway: None }],
            mac: "02:12:34:00:00:01".into(),
            host_ifname: "tl0123456789ab".into(),
            host_mac: "ee:ee:ee:ee:ee:ee".into(),
            mtu: 1500,
            dns: SubnetDns { nameservers: vec!["10.0.0.53".into()], ..SubnetDns::default() },
        };
        let reply = Reply::Ok(attachment);
        assert_eq!(decode_reply::<Attachment>(&encode(&reply).unwrap()).unwrap(), reply);

        let failure = Failure::new(Code::PoolExhausted, "no address left").with_details("254 of 254 used");
        let line = encode(&Reply::<Done>::Error(failure.clone())).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&line),
            "{\"error\":{\"code\":100,\"message\":\"no address left\",\"details\":\"254 of 254 used\"}}\n"
        );
        assert_eq!(decode_reply::<Done>(&line).unwrap(), Reply::Error(failure));
        assert_eq!(decode_reply::<Done>(b"{\"ok\":{}}").unwrap(), Reply::Ok(Done {}));
    }

    #[test]
    fn another_version_is_named_even_if_its_shape_is_unknown() {
        let error = Request::decode(b"{\"version\":2,\"verb\":[]}").unwrap_err();
        assert!(matches!(error, DecodeError::Version { theirs: 2 }));
        assert!(error.to_string().contains("version 2"), "{error}");
        assert!(matches!(Request::decode(b"{\"version\":1,\"command\":\"x\"}"), Err(DecodeError::Json(_))));
        assert!(matches!(Request::decode(b"hello"), Err(DecodeError::Json(_))));
    }

    #[test]
    fn codes_are_those_of_the_specification() {
        for (number, code) in CODES {
            assert_eq!(u32::from(code), number);
            assert_eq!(Code::from(number), code);
        }
        assert_eq!(u32::from(Code::from(4711)), 4711);
    }
}
