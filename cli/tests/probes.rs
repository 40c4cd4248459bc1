//! Probes through a forwarding router beyond a link. Each fault is reported although BGP does not
//! detect it, and the report ends with the cause. No pod receives a probe.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod fabric;
mod host;
#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::fs;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trunkline_api::control::{EventKind, Events, Peer, ProbeFaultKind, ProbeState, ProbedRouter, Query};

use fabric::{Router, Speakers, routers, speakers};
use host::{Host, address};
use namespace::{inside, ip, isolated, namespace};

/// Another node, beyond the router.
const TARGET: &str = "10.99.0.9";

struct Rack {
    host: Host,
    router: OwnedFd,
    pod: OwnedFd,
    pod_address: String,
    _speakers: Speakers,
}

impl Rack {
    fn new(probes: &str) -> Rack {
        let router = routers(1);
        sh(&router, "sysctl -qw net.ipv4.ip_forward=1 && ip addr add 10.99.0.9/32 dev lo");
        let speakers = speakers(&router, &[Router { number: 1, asn: 65000, ..Router::default() }]);
        let mut host = Host::new("");
        let config = host.path("agent.yaml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, format!("{text}probes: {{intervalSeconds: 1, targets: [{TARGET}]{probes}}}\n"))
            .unwrap();
        host.start();
        within("established", || {
            let peers = host.ask::<Vec<Peer>>(Query::Peers { address: None });
            peers.is_ok_and(|peers| !peers.is_empty() && peers.iter().all(|peer| peer.is_established()))
        });
        let pod = namespace();
        let attachment = host.add("c1", &pod).unwrap();
        let rack = Rack { host, router, pod, pod_address: address(&attachment), _speakers: speakers };
        rack.good();
        rack
    }

    fn probed(&self) -> Option<ProbedRouter> {
        self.host.status().probes?.routers.pop()
    }

    /// Waits until every check passes.
    fn good(&self) {
        within("all checks are good", || {
            self.probed().is_some_and(|router| {
                router.checks.len() == 6
                    && router.checks.iter().all(|check| check.state == ProbeState::Good)
                    && router.faults.is_empty()
            })
        });
    }

    /// Waits until this fault is the only one.
    fn has(&self, kind: ProbeFaultKind) {
        within(kind.name(), || {
            let faults = self.probed().map(|router| router.faults).unwrap_or_default();
            faults.iter().map(|fault| fault.kind).eq([kind])
        });
        let text = self.probed().unwrap().faults.remove(0).text;
        let events: Events = self.host.ask(Query::Events { after: 0, run: None, wait: false }).unwrap();
        let last = events.events.iter().rev().find(|event| event.kind == EventKind::ProbeFailing).unwrap();
        assert_eq!((last.text.as_str(), last.peer.as_deref()), (text.as_str(), Some("10.255.0.1")));
        assert!(self.host.prints("status").contains(&text), "{text}");
        assert!(self.doctor().contains(&text), "{text}");
        let peers: Vec<Peer> = self.host.ask(Query::Peers { address: None }).unwrap();
        assert!(peers.iter().all(|peer| peer.is_established() && peer.flaps == 0), "{peers:?}");
    }

    fn doctor(&self) -> String {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_trunkline"));
        doctor.args(["doctor", "--config"]).arg(self.host.path("agent.yaml"));
        String::from_utf8(doctor.output().unwrap().stdout).unwrap()
    }

    /// Packets that the pod has received, by protocol.
    fn received(&self) -> (u64, u64) {
        let text = inside(&self.pod, || fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
        let value = |protocol: &str, name: &str| -> u64 {
            let mut lines = text.lines().filter(|line| line.starts_with(protocol));
            let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
            let index = names.split(' ').position(|word| word == name).unwrap();
            values.split(' ').nth(index).unwrap().parse().unwrap()
        };
        (value("Icmp:", "InMsgs"), value("Udp:", "InDatagrams") + value("Udp:", "NoPorts"))
    }
}

fn sh(netns: &OwnedFd, script: &str) {
    inside(netns, || {
        let status = Command::new("sh").args(["-c", script]).stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "{script}");
    });
}

fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn faults_without_a_session_loss_are_reported_and_end() {
    isolated("faults_without_a_session_loss_are_reported_and_end", |_| {
        let rack = Rack::new("");
        let filter =
            |rule: &str| format!("nft 'table ip faults {{ chain c {{ type filter hook {rule}; }}; }}'");
        let no_filter = "nft delete table ip faults".to_owned();
        for (kind, begin, end) in [
            (
                ProbeFaultKind::Size,
                "ip link set r1 mtu 1400".to_owned(),
                "ip link set r1 mtu 1500".to_owned(),
            ),
            (
                ProbeFaultKind::ToPods,
                "ip route del 10.14.0.0/24".to_owned(),
                format!("ip route add 10.14.0.0/24 via {}", fabric::HOST),
            ),
            (
                ProbeFaultKind::FromPods,
                filter("forward priority 0; ip saddr 10.14.0.0/24 drop"),
                no_filter.clone(),
            ),
            (
                ProbeFaultKind::Silent,
                // The rule drops packets in one direction, except BGP.
                filter("postrouting priority 0; oifname r1 meta l4proto != 6 drop"),
                no_filter.clone(),
            ),
            (ProbeFaultKind::Target, filter("input priority 0; ip daddr 10.99.0.9 drop"), no_filter.clone()),
            (
                ProbeFaultKind::TargetSize,
                filter("input priority 0; ip daddr 10.99.0.9 meta length > 1400 drop"),
                no_filter,
            ),
        ] {
            sh(&rack.router, &begin);
            rack.has(kind);
            sh(&rack.router, &end);
            rack.good();
        }
        assert_eq!(rack.received(), (0, 0), "probes that the pod received");
    });
}

#[test]
fn a_pod_can_neither_answer_nor_forge_a_probe() {
    isolated("a_pod_can_neither_answer_nor_forge_a_probe", |_| {
        let rack = Rack::new("");
        sh(&rack.router, "ip route del 10.14.0.0/24");
        rack.has(ProbeFaultKind::ToPods);
        // The pod knows the magic, the ports and the addresses of probes, but not the secrets.
        let forge = |from: &OwnedFd, bind: &str| {
            let content = [&b"tlpr"[..], &[0x5a; 60]].concat();
            inside(from, || {
                let socket = UdpSocket::bind((bind, 0)).unwrap();
                for destination in [fabric::HOST, &rack.pod_address] {
                    for _ in 0..200 {
                        let _ = socket.send_to(&content, (destination, 33_434));
                    }
                }
            });
        };
        let until = Instant::now() + Duration::from_secs(6);
        while Instant::now() < until {
            forge(&rack.pod, &rack.pod_address);
            forge(&rack.router, "0.0.0.0");
            std::thread::sleep(Duration::from_millis(50));
            let faults = rack.probed().unwrap().faults;
            assert!(faults.iter().any(|fault| fault.kind == ProbeFaultKind::ToPods), "{faults:?}");
        }
        sh(&rack.router, &format!("ip route add 10.14.0.0/24 via {}", fabric::HOST));
        rack.good();
        // Packets of other hosts to the pod with the magic of probes are dropped on the uplink,
        // too.
        let before = rack.received().1;
        forge(&rack.router, "0.0.0.0");
        rack.good();
        assert_eq!(rack.received().1, before);
    });
}

#[test]
fn without_probes_no_packet_is_sent_and_no_table_exists() {
    isolated("without_probes_no_packet_is_sent_and_no_table_exists", |_| {
        let router = routers(1);
        let _speakers = speakers(&router, &[Router { number: 1, asn: 65000, ..Router::default() }]);
        let mut host = Host::new("");
        host.start();
        let table = || {
            let listed = Command::new("nft").args(["list", "tables"]).output().unwrap();
            String::from_utf8(listed.stdout).unwrap().contains("trunkline-probes")
        };
        within("the table", table);
        host.kill();
        let config = host.path("agent.yaml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, format!("{text}probes: {{enabled: false}}\n")).unwrap();
        host.start();
        within("no table", || !table());
        assert!(host.status().probes.is_none());
        // The links have not changed.
        assert!(ip("link").contains("up1"));
    });
}
