//! The attach protocol: what the CNI plugin asks of the agent, and what it gets back.
//!
//! # Framing
//! The agent listens on a unix stream socket ([`DEFAULT_SOCKET`]). A connection carries one request and one reply:
//!
//! 1. The client sends **one JSON object on one line**, ended by `\n` ([`encode`], at most [`MAX_LINE`] octets).
//! 2. Where there is a network namespace, **one file descriptor** of it travels by `SCM_RIGHTS` with the **first
//!    `sendmsg`** of that line (Linux delivers it with the first octet). The agent may live in another
//!    mount namespace, so it never opens the path ([`Attach::netns`] is for people to read). A long line may take more
//!    `write`s after the first; the descriptor comes once.
//! 3. The server answers with one JSON object on one line, [`Reply`], and closes.
//!
//! The receiving side therefore calls `recvmsg` with room for descriptors until it has seen `\n`
//! (with rustix: `RecvAncillaryBuffer` over `rustix::cmsg_space!(ScmRights(1))`, flag `CMSG_CLOEXEC`), keeps the
//! first descriptor, closes any more, gives up past [`MAX_LINE`], and hands the line to [`Request::decode`].
//! `MSG_CTRUNC` means that a client sent more descriptors than one: refuse it with [`Code::InvalidContent`].
//!
//! A client that goes away (the read side sees end of file) has given up, usually because its deadline passed:
//! [`Attach::deadline_ms`] says when it will, so that the agent's own answer, which knows what was missing, comes first.
//!
//! # Versions
//! [`VERSION`] changes only with what the other side must understand. Fields that one side does not know are ignored.
//!
//! # What must hold
//! `attach` is idempotent per (container id, ifname): asked again, the answer is the same. `detach` succeeds on what is
//! not there. `gc` touches only attachments made through the same network configuration ([`Gc::conf_name`]).

mod pieces;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::Query;

pub use pieces::ListReply;

/// Version of this protocol.
pub const VERSION: u32 = 1;
/// Where the agent listens unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/trunkline/agent.sock";
/// The longest line that either side takes, in octets. A GC request for 10,000 containers has about 1 MB.
pub const MAX_LINE: usize = 8 << 20;

/// What a client asks. On the wire: `{"version":1,"command":"attach",…}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the client.
    pub version: u32,
    /// Where the question came from, for traces; not from every client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What is asked.
    #[serde(flatten)]
    pub command: Command,
}

/// Where a question came from. Nothing depends on it but what a trace of the question says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// When the client was started, by this node's clock, in nanoseconds since 1970.
    pub started_unix_nano: u64,
    /// `TRACEPARENT` of its environment: W3C Trace Context, as OpenTelemetry hands it to programs. Empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub traceparent: String,
}

/// The commands, with the [`Reply`] that each gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Command {
    /// Give a container its interface: `Reply<Attachment>`. The netns comes with it.
    Attach(Box<Attach>),
    /// Take it away: `Reply<Done>`. The netns comes with it if it is still there.
    Detach(Detach),
    /// Is it still as it was made?: `Reply<Done>`. The netns comes with it.
    Check(Check),
    /// Take away everything that is not named: `Reply<Done>`.
    Gc(Gc),
    /// Could a container be attached now?: `Reply<Done>`; an error with [`Code::NotAvailable`] or [`Code::LimitedConnectivity`] if not.
    Status,
    /// An operator's question: the reply is as [`Query`] says.
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

/// Give a container its interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attach {
    /// Which one.
    #[serde(flatten)]
    pub interface: Interface,
    /// `name` of the CNI network configuration; GC is by this name.
    pub conf_name: String,
    /// CNI_NETNS, to be shown and logged; the namespace itself comes as a descriptor.
    pub netns: String,
    /// The pod, where the runtime has pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// What was asked for by name.
    #[serde(default, skip_serializing_if = "Wanted::is_empty")]
    pub wanted: Wanted,
    /// The client waits this long, in milliseconds from now.
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

/// `namespace/name`, the name alone without a namespace, and nothing without a name.
pub fn full_name(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        (_, "") => String::new(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

/// What was asked for by name. Whatever is left open, the agent chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The Network to take addresses from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The Subnets, at most one a family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<String>,
    /// The addresses, at most one a family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The MAC address of the container's side, `02:12:34:00:00:01`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// How fast it may be.
    #[serde(default, skip_serializing_if = "Bandwidth::is_empty")]
    pub bandwidth: Bandwidth,
    /// Prefixes that it may send from besides its addresses.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub extra_prefixes: BTreeSet<IpNet>,
}

/// How fast a container's interface may be (CNI's capability `bandwidth`), seen from the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// What goes to the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<RateLimit>,
    /// What comes from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<RateLimit>,
}

impl Bandwidth {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Bandwidth::default()
    }
}

/// A limit of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// In bits per second, frames' Ethernet headers included; from [`RateLimit::MIN_RATE`] on.
    pub rate: u64,
    /// What may go at once after a pause, in bits, at most [`RateLimit::MAX_BURST`]; none: the agent chooses by the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

impl RateLimit {
    /// The slowest rate, that of Kubernetes' annotations.
    pub const MIN_RATE: u64 = 1_000;
    /// The largest burst: the kernel counts it in 32 bits of octets.
    pub const MAX_BURST: u64 = (1 << 35) - 8;
}

impl Wanted {
    /// Whether everything is left open.
    pub fn is_empty(&self) -> bool {
        *self == Wanted::default()
    }
}

/// Take a container's interface away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detach {
    /// Which one.
    #[serde(flatten)]
    pub interface: Interface,
    /// `name` of the CNI network configuration.
    pub conf_name: String,
}

/// Is a container's interface still as it was made?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Which one.
    #[serde(flatten)]
    pub interface: Interface,
    /// `name` of the CNI network configuration.
    pub conf_name: String,
    /// The addresses that the runtime believes it has (`prevResult`).
    pub addresses: Vec<IpNet>,
}

/// Take away every attachment of this network configuration that is not named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gc {
    /// `name` of the CNI network configuration.
    pub conf_name: String,
    /// What stays.
    pub valid: Vec<Interface>,
}

/// What the agent answers. On the wire: `{"ok":{…}}` or `{"error":{…}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply<T> {
    /// It was done.
    Ok(T),
    /// It was not.
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

/// Nothing more to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// An interface as it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    /// The Network that its addresses are from.
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
}

/// An address of an [`Attachment`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedAddress {
    /// With the length it has on the interface, `10.14.0.7/32`.
    pub address: IpNet,
    /// Next hop of the container's default route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The Subnet it is from.
    pub subnet: String,
}

/// A route inside the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedRoute {
    /// Destination.
    pub destination: IpNet,
    /// Next hop; on the link if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// Why something was not done. Passed on to the runtime as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}{details}", if details.is_empty() { "" } else { ": " })]
pub struct Failure {
    /// What kind.
    pub code: Code,
    /// In one sentence, with the field or value and the fix.
    pub message: String,
    /// More for whoever looks into it; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Failure {
    /// A failure without further details.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), details: String::new() }
    }

    /// The same failure, with more for whoever looks into it.
    #[must_use]
    pub fn with_details(self, details: impl Into<String>) -> Self {
        Failure { details: details.into(), ..self }
    }
}

/// Error codes of the CNI specification 1.1.0, and Trunkline's own from 100 on. On the wire: the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u32", from = "u32")]
pub enum Code {
    /// 1: a CNI version that the plugin does not speak.
    IncompatibleVersion,
    /// 2: a field of the network configuration that is not supported.
    UnsupportedField,
    /// 3: the container is not known, or its namespace is gone. The runtime need not clean up.
    UnknownContainer,
    /// 4: CNI_… variables are missing or wrong.
    InvalidEnvironment,
    /// 5: reading or writing failed.
    Io,
    /// 6: something could not be decoded.
    InvalidContent,
    /// 7: the network configuration is wrong.
    InvalidConfiguration,
    /// 8: CNI_NETNS is not the namespace of a container (libcni's number; the specification has none).
    InvalidNamespace,
    /// 11: it may well work later.
    TryAgainLater,
    /// 50: STATUS: nothing can be attached now.
    NotAvailable,
    /// 51: STATUS: nothing can be attached now, and what is attached may not reach everything.
    LimitedConnectivity,
    /// 100: no address is left.
    PoolExhausted,
    /// 101: CHECK found something that is not as it was made.
    CheckFailed,
    /// 102: the Network or Subnet that was asked for is not there, or not on this node.
    NoSuchNetwork,
    /// 103: the address that was asked for belongs to someone else, or to no subnet.
    AddressNotAvailable,
    /// 999: everything else.
    Internal,
    /// A number this version does not know.
    Other(u32),
}

/// One row a code: the number and its name.
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

/// A line that is no message of this protocol.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Another version.
    #[error(
        "the other side speaks version {theirs} of the attach protocol, this one {VERSION}: install the same version of trunkline and trunkline-cni"
    )]
    Version {
        /// What it said.
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
    /// A request of this version.
    pub fn new(command: Command) -> Self {
        Request { version: VERSION, origin: None, command }
    }

    /// Reads a request line, with or without its `\n`. The version is looked at first, so that a client of
    /// another version is told so, whatever else has changed.
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

/// One line, `\n` included.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Reads a reply line, with or without its `\n`.
pub fn decode_reply<T: DeserializeOwned>(line: &[u8]) -> Result<Reply<T>, DecodeError> {
    Ok(serde_json::from_slice(line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface() -> Interface {
        Interface { container_id: "c1".into(), ifname: "eth0".into() }
    }

    #[test]
    fn a_name_needs_no_namespace() {
        assert_eq!(full_name("default", "web"), "default/web");
        assert_eq!(full_name("", "web"), "web");
        assert_eq!((full_name("default", ""), full_name("", "")), (String::new(), String::new()));
    }

    #[test]
    fn every_command_survives_the_wire() {
        let commands = [
            Command::Attach(Box::new(Attach {
                interface: interface(),
                conf_name: "pods".into(),
                netns: "/run/netns/c1".into(),
                pod: Some(Pod { namespace: "default".into(), name: "web-0".into(), uid: String::new() }),
                wanted: Wanted {
                    network: Some("rack1".into()),
                    subnets: vec!["v4".into(), "v6".into()],
                    addresses: vec!["10.14.0.7".parse().unwrap(), "2001:db8::7".parse().unwrap()],
                    mac: Some("02:12:34:00:00:01".into()),
                    bandwidth: Bandwidth {
                        ingress: Some(RateLimit { rate: 10_000_000, burst: None }),
                        egress: Some(RateLimit { rate: 1_000_000, burst: Some(800_000) }),
                    },
                    extra_prefixes: ["10.9.0.0/16".parse().unwrap()].into(),
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
    fn codes_are_the_specification_s_numbers() {
        for (number, code) in CODES {
            assert_eq!(u32::from(code), number);
            assert_eq!(Code::from(number), code);
        }
        assert_eq!(u32::from(Code::from(4711)), 4711);
    }
}
