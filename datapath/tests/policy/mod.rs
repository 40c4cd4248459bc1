//! A router with pods, and tables of policies, for tests in a real kernel.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use trunkline_api::service::Protocol;
use trunkline_datapath::plan::policy::{
    ChainId, CounterId, Direction, Element, LinkPolicies, PolicyChain, PolicyRule, PolicySet, PolicySetKind,
    PolicyTable, PortMatch, PortNumbers, SetId, Verdict,
};

pub(crate) mod icmp;

use crate::namespace::{eventually, inside, ip, namespace, ping};

/// Time after which a packet counts as dropped.
const SILENCE: Duration = Duration::from_millis(400);

/// A namespace behind the router, with an address of each family.
pub(crate) struct Pod {
    pub(crate) namespace: OwnedFd,
    pub(crate) index: u32,
    pub(crate) v4: IpAddr,
    pub(crate) v6: IpAddr,
}

impl Pod {
    /// The addresses of both families.
    pub(crate) fn addresses(&self) -> [IpAddr; 2] {
        [self.v4, self.v6]
    }

    /// The elements of a set with this pod.
    pub(crate) fn elements(&self) -> [Element; 2] {
        self.addresses().map(Element::Address)
    }

    /// Listens on a port of TCP and answers each connection with what it sends.
    pub(crate) fn serve(&self, port: u16) {
        for any in ["0.0.0.0", "::"] {
            let address = SocketAddr::new(any.parse().unwrap(), port);
            let listener = inside(&self.namespace, move || {
                let socket =
                    socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None);
                let socket = socket.unwrap();
                socket.set_reuse_address(true).unwrap();
                if address.is_ipv6() {
                    socket.set_only_v6(true).unwrap();
                }
                socket.bind(&address.into()).unwrap();
                socket.listen(64).unwrap();
                TcpListener::from(socket)
            });
            std::thread::spawn(move || {
                while let Ok((mut stream, _)) = listener.accept() {
                    std::thread::spawn(move || {
                        let mut buffer = [0; 64];
                        while let Ok(length @ 1..) = stream.read(&mut buffer) {
                            let _ = stream.write_all(&buffer[..length]);
                        }
                    });
                }
            });
        }
    }

    /// Connects to a port. None: the packets were dropped.
    pub(crate) fn connect(&self, to: IpAddr, port: u16) -> Option<TcpStream> {
        inside(&self.namespace, || TcpStream::connect_timeout(&SocketAddr::new(to, port), SILENCE).ok())
    }

    pub(crate) fn reaches(&self, to: IpAddr, port: u16) -> bool {
        self.connect(to, port).is_some()
    }

    /// Whether connections to the port over IPv4 and IPv6 succeed.
    pub(crate) fn reaches_pod(&self, to: &Pod, port: u16) -> [bool; 2] {
        to.addresses().map(|address| self.reaches(address, port))
    }

    pub(crate) fn ping(&self, to: IpAddr) -> bool {
        let address = to.to_string();
        inside(&self.namespace, move || {
            let arguments = ["-c", "1", "-W", "0.4", &address];
            Command::new("ping").args(arguments).output().unwrap().status.success()
        })
    }

    pub(crate) fn udp(&self, port: u16) -> UdpSocket {
        let address = SocketAddr::new(self.v4, port);
        let socket = inside(&self.namespace, move || UdpSocket::bind(address).unwrap());
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        socket
    }
}

/// Sends and receives on an open connection.
pub(crate) fn echoes(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    stream.write_all(b"x").is_ok() && stream.read(&mut [0; 1]).is_ok_and(|length| length == 1)
}

/// Adds pods to this thread's namespace, which becomes their router.
pub(crate) fn pods<const N: usize>() -> [Pod; N] {
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
    skip_address_checks();
    let pods = std::array::from_fn(|number| pod(number + 1));
    // Router and pods have resolved each other, so the first packet of a test is not delayed.
    for pod in &pods {
        for address in pod.addresses() {
            eventually("a neighbour", || ping(&address.to_string()));
        }
    }
    pods
}

/// Link-local addresses of new devices are usable at once: without them, no neighbour of IPv6 is
/// resolved.
fn skip_address_checks() {
    for scope in ["all", "default"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0").unwrap();
    }
}

fn pod(number: usize) -> Pod {
    let pod = namespace();
    inside(&pod, skip_address_checks);
    let name = format!("pod{number}");
    let fd = format!("/proc/{}/fd/{}", std::process::id(), pod.as_raw_fd());
    ip(&format!("link add {name} type veth peer name eth0 netns {fd}"));
    ip(&format!("addr add 10.0.{number}.1/24 dev {name}"));
    ip(&format!("addr add fd00:{number}::1/64 dev {name} nodad"));
    ip(&format!("link set {name} up"));
    inside(&pod, || {
        ip(&format!("addr add 10.0.{number}.2/24 dev eth0"));
        ip(&format!("addr add fd00:{number}::2/64 dev eth0 nodad"));
        ip("link set eth0 up");
        ip(&format!("route add default via 10.0.{number}.1"));
        ip(&format!("-6 route add default via fd00:{number}::1"));
    });
    eventually("carrier", || ip(&format!("link show {name}")).contains("LOWER_UP"));
    let shown = ip(&format!("-o link show {name}"));
    Pod {
        namespace: pod,
        index: shown.split(':').next().unwrap().trim().parse().unwrap(),
        v4: format!("10.0.{number}.2").parse().unwrap(),
        v6: format!("fd00:{number}::2").parse().unwrap(),
    }
}

/// A rule for every packet.
pub(crate) fn every(verdict: Verdict) -> PolicyRule {
    PolicyRule { peers: None, ports: PortMatch::Any, verdict, counter: None, logged: false }
}

/// A rule for the packets of a set of peers.
pub(crate) fn peers(set: u64, verdict: Verdict) -> PolicyRule {
    PolicyRule { peers: Some(SetId::from(set)), ..every(verdict) }
}

/// A rule for a range of ports of TCP.
pub(crate) fn tcp(first: u16, last: u16, verdict: Verdict) -> PolicyRule {
    numbered(Protocol::Tcp, PortNumbers::Range(first, last), verdict)
}

/// A rule for the ports of a set.
pub(crate) fn tcp_set(set: u64, verdict: Verdict) -> PolicyRule {
    numbered(Protocol::Tcp, PortNumbers::Set(SetId::from(set)), verdict)
}

pub(crate) fn numbered(protocol: Protocol, ports: PortNumbers, verdict: Verdict) -> PolicyRule {
    PolicyRule { ports: PortMatch::Numbered { protocol, ports }, ..every(verdict) }
}

/// A set of port numbers.
pub(crate) fn ports(ranges: &[(u16, u16)]) -> PolicySet {
    let range = |(first, last): &(u16, u16)| Element::PortRange(*first, *last);
    set(PolicySetKind::PortRanges, ranges.iter().map(range))
}

pub(crate) fn jump(chain: u64) -> Verdict {
    Verdict::Jump(ChainId::from(chain))
}

pub(crate) fn counted(counter: u64, rule: PolicyRule) -> PolicyRule {
    PolicyRule { counter: Some(CounterId::from(counter)), ..rule }
}

pub(crate) fn chain(direction: Direction, rules: &[PolicyRule]) -> Arc<PolicyChain> {
    Arc::new(PolicyChain { direction, rules: rules.to_vec() })
}

pub(crate) fn set(kind: PolicySetKind, elements: impl IntoIterator<Item = Element>) -> PolicySet {
    PolicySet { kind, elements: elements.into_iter().collect() }
}

pub(crate) fn addresses(elements: impl IntoIterator<Item = Element>) -> PolicySet {
    set(PolicySetKind::Addresses, elements)
}

pub(crate) fn range(first: &str, last: &str) -> Element {
    Element::Range(first.parse().unwrap(), last.parse().unwrap())
}

/// The policies of a link with the numbers of its entry chains.
pub(crate) fn link(index: u32, ingress: Option<u64>, egress: Option<u64>) -> LinkPolicies {
    LinkPolicies {
        ingress: ingress.map(ChainId::from),
        egress: egress.map(ChainId::from),
        siblings: BTreeSet::from([index]),
    }
}

/// A table with these sets, chains and links.
pub(crate) fn table(
    sets: impl IntoIterator<Item = (u64, PolicySet)>,
    chains: impl IntoIterator<Item = (u64, Arc<PolicyChain>)>,
    links: impl IntoIterator<Item = (u32, LinkPolicies)>,
) -> PolicyTable {
    PolicyTable {
        sets: sets.into_iter().map(|(id, set)| (SetId::from(id), set)).collect(),
        chains: chains.into_iter().map(|(id, chain)| (ChainId::from(id), chain)).collect(),
        links: links.into_iter().collect(),
        addresses: BTreeMap::new(),
    }
}

/// Runs `nft`; it must succeed.
pub(crate) fn nft(arguments: &str) -> String {
    let output = Command::new("nft").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "nft {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The table in the format of `nft`, each line without white space at its ends.
pub(crate) fn listed() -> Vec<String> {
    nft("list table inet trunkline-policy").lines().map(|line| line.trim().to_owned()).collect()
}
