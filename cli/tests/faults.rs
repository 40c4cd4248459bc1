//! Faults of a node from the operator's view. The agent is a process, and its peers are in a
//! namespace beyond a link. The tests read the output of `trunkline peers` and `trunkline status`.
//! `docs/faults.md` lists the faults.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod fabric;
mod host;
#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use trunkline_api::attach::Code;
use trunkline_api::control::{CauseKind, Peer, PeerState, Query};
use trunkline_bgp::types::Asn;
use trunkline_bgp::wire::{Capability, Open, encode_keepalive};

use fabric::{Router, Speakers, routers, scripted, speakers};
use host::{Host, address, attach, link_exists, manifests, pod_routes};
use namespace::{eventually, inside, ip, isolated, namespace, ping};

const GOOD: &str = "{asn: 65000, address: 10.255.0.1, password: k1, connectRetrySeconds: 1}";
const SUBNET: &str = "10.14.0.0/24";

fn good() -> Router {
    Router { number: 1, asn: 65000, password: Some("k1"), prefixes: 1, connects: false }
}

/// A host with one healthy, established peer.
fn settled(cidr: &str) -> (Host, OwnedFd, Speakers) {
    let routers = routers(1);
    let speakers = speakers(&routers, &[good()]);
    let mut host = Host::new("");
    host.manifests(&manifests(GOOD, cidr));
    host.start();
    established(&host, "10.255.0.1");
    (host, routers, speakers)
}

fn peer(host: &Host, address: &str) -> Peer {
    let peers: Vec<Peer> = host.ask(Query::Peers { address: Some(address.parse().unwrap()) }).unwrap();
    peers.into_iter().next().unwrap()
}

fn established(host: &Host, address: &str) {
    within(Duration::from_secs(20), "established", || {
        let peers = host.ask::<Vec<Peer>>(Query::Peers { address: Some(address.parse().unwrap()) });
        peers.is_ok_and(|peers| peers.iter().all(|peer| peer.is_established()))
    });
}

fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < until, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The session has existed since the start.
fn undisturbed(host: &Host) {
    let peer = peer(host, "10.255.0.1");
    assert_eq!((peer.state, peer.flaps, peer.sent.open), (PeerState::Established, 0, 1));
}

struct Bad {
    what: &'static str,
    from: &'static str,
    to: &'static str,
    /// The file with resource and field, and then the fix.
    says: [&'static str; 2],
}

const BAD: &[Bad] = &[
    Bad {
        what: "unknown field",
        from: "  type: Underlay",
        to: "  colour: blue\n  type: Underlay",
        says: [
            "rack1.yaml: line 6: Network rack1: spec.colour",
            "expected one of nodeSelector, netID, type, mode, config",
        ],
    },
    Bad {
        what: "wrong CIDR",
        from: "cidr: 10.14.0.0/24",
        to: "cidr: 10.14.0.0/33",
        says: ["rack1.yaml: Subnet pods: spec.range.cidr: `10.14.0.0/33`", "such as 10.14.0.0/24"],
    },
    Bad {
        what: "overlapping subnets",
        from: "kind: Subnet\n",
        to: "kind: Subnet\nmetadata: {name: wide}\nspec: {network: rack1, range: {version: \"4\", cidr: 10.14.0.0/16}}\n---\n\
             apiVersion: networking.alibaba.com/v1\nkind: Subnet\n",
        says: [
            "rack1.yaml: Subnet pods: spec.range.cidr: 10.14.0.0/24 overlaps 10.14.0.0/16 of Subnet wide",
            "write prefixes that do not overlap",
        ],
    },
    Bad {
        what: "start after end",
        from: "cidr: 10.14.0.0/24",
        to: "cidr: 10.14.0.0/24, start: 10.14.0.20, end: 10.14.0.10",
        says: [
            "rack1.yaml: Subnet pods: spec.range.start: 10.14.0.20 is after the end 10.14.0.10",
            "write a start that is not after the end",
        ],
    },
    Bad {
        what: "gateway outside",
        from: "cidr: 10.14.0.0/24",
        to: "cidr: 10.14.0.0/24, gateway: 10.9.0.1",
        says: [
            "rack1.yaml: Subnet pods: spec.range.gateway: 10.9.0.1 is not in 10.14.0.0/24",
            "write an address of that prefix",
        ],
    },
    Bad {
        what: "ASN 0",
        from: "asn: 65000",
        to: "asn: 0",
        says: [
            "rack1.yaml: Network rack1: spec.config.bgpPeers[0].asn: 0 is not an AS number",
            "1 to 4294967295",
        ],
    },
    Bad {
        what: "local ASN 0",
        from: "netID: 65001",
        to: "netID: 0",
        says: ["rack1.yaml: Network rack1: spec.netID: 0 is not an AS number", "1 to 4294967295"],
    },
    Bad {
        what: "two networks with different local ASNs",
        from: "---\n",
        to: "---\napiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {name: rack1b}\nspec:\n  netID: 65002\n  \
             mode: BGP\n  nodeSelector: {kubernetes.io/hostname: n1}\n  \
             config: {bgpPeers: [{asn: 65000, address: 10.255.0.9}]}\n---\n",
        says: [
            "rack1.yaml: Network rack1b: spec.netID: 65002 would be a second local AS on this node",
            "exclude this node by the nodeSelector of one of them",
        ],
    },
    Bad {
        what: "a password over 80 bytes",
        from: "password: k1",
        to: "password: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        says: [
            "rack1.yaml: Network rack1: spec.config.bgpPeers[0].password: the key has 81 bytes",
            "write a shorter one",
        ],
    },
    Bad {
        what: "a peer that is not an address",
        from: "address: 10.255.0.1",
        to: "address: tor1.example",
        says: [
            "rack1.yaml: Network rack1: spec.config.bgpPeers[0].address: `tor1.example` is not an IP address",
            "such as 10.14.0.1",
        ],
    },
];

#[test]
fn bad_manifests_are_rejected_with_file_field_and_fix() {
    isolated("bad_manifests_are_rejected_with_file_field_and_fix", |_| {
        let (host, routers, _speakers) = settled(SUBNET);
        let netns = namespace();
        let pod = address(&host.add("witness", &netns).unwrap());
        let text = manifests(GOOD, SUBNET);
        let networks = host.status().networks;
        for Bad { what, from, to, says } in BAD {
            assert_eq!(text.matches(from).count(), 1, "{what}: `{from}` occurs once");
            host.manifests(&text.replacen(from, to, 1));
            eventually(what, || !host.status().manifests.refused.is_empty());
            let status = host.prints("status");
            for words in says {
                assert!(status.contains(words), "{what}: `{words}` is not in\n{status}");
            }
            assert!(status.contains("REFUSED, the previous state stays in force"), "{what}:\n{status}");
            assert!(!status.contains("aaaa"), "the password is shown:\n{status}");
            let same = |now: &[_]| format!("{now:?}") == format!("{networks:?}");
            assert!(same(&host.status().networks), "{what}: {:?}", host.status().networks);
            undisturbed(&host);
            assert!(inside(&routers, || ping(&pod)), "{what}");
            host.manifests(&text);
            eventually(what, || host.status().manifests.refused.is_empty());
        }
        undisturbed(&host);
    });
}

#[test]
fn taken_metrics_port_is_reported_and_the_agent_runs() {
    isolated("taken_metrics_port_is_reported_and_the_agent_runs", |_| {
        let taken = TcpListener::bind("127.0.0.1:9473").unwrap();
        let (host, _routers, _speakers) = settled(SUBNET);
        host.add("c1", &namespace()).unwrap();
        let fault = host.status().http_fault.unwrap();
        assert!(fault.starts_with("127.0.0.1:9473: Address already in use"), "{fault}");
        let status = host.prints("status");
        assert!(status.contains("/metrics, /healthz and /readyz are NOT SERVED: 127.0.0.1:9473"), "{status}");
        undisturbed(&host);
        drop(taken);
        eventually("/metrics is served once the port is free", || host.status().http_fault.is_none());
        let mut stream = TcpStream::connect("127.0.0.1:9473").unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        for line in ["trunkline_attachments 1", "trunkline_bgp_peer_hold_time_seconds{peer=\"10.255.0.1\"} "]
        {
            assert!(answer.contains(line), "{line} is not in\n{answer}");
        }
    });
}

#[test]
fn bad_manifest_at_start_is_reported_and_later_applied() {
    isolated("bad_manifest_at_start_is_reported_and_later_applied", |_| {
        let routers = routers(1);
        let _speakers = speakers(&routers, &[good()]);
        let mut host = Host::new("");
        host.manifests(&manifests(GOOD, "10.14.0.0/33"));
        host.launch();
        eventually("it answers", || host.ask::<Vec<Peer>>(Query::Peers { address: None }).is_ok());
        eventually("the fault is shown", || {
            host.prints("status").contains("REFUSED, nothing was applied yet")
        });
        let failure = host.add("c1", &namespace()).unwrap_err();
        assert_eq!(failure.code, Code::TryAgainLater, "{failure}");
        host.manifests(&manifests(GOOD, SUBNET));
        established(&host, "10.255.0.1");
        host.add("c1", &namespace()).unwrap();
    });
}

/// An OPEN of AS 65000 and a KEEPALIVE: enough for Established.
fn greeting(asn: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    Open::new(Asn(asn), 90, [10, 255, 0, 99].into(), vec![Capability::FourOctetAs(Asn(asn))])
        .encode(&mut octets);
    encode_keepalive(&mut octets);
    octets
}

#[test]
fn misbehaving_peers_show_their_cause() {
    isolated("misbehaving_peers_show_their_cause", |_| {
        let routers = routers(8);
        let other = |number, asn, password, prefixes| Router {
            number,
            asn,
            password,
            prefixes,
            connects: number == 2,
        };
        let _speakers = speakers(
            &routers,
            &[
                good(),
                other(2, 65000, Some("another"), 0),
                other(3, 65009, None, 0),
                other(6, 65000, None, 4),
                other(7, 65000, None, 3),
            ],
        );
        scripted(&routers, 4, greeting(65000));
        scripted(&routers, 5, b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
        let peers = [
            GOOD,
            "{asn: 65000, address: 10.255.0.2, password: k2, connectRetrySeconds: 1}",
            "{asn: 65000, address: 10.255.0.3, connectRetrySeconds: 1}",
            "{asn: 65000, address: 10.255.0.4, connectRetrySeconds: 1, holdTimeSeconds: 3}",
            "{asn: 65000, address: 10.255.0.5, connectRetrySeconds: 1}",
            "{asn: 65000, address: 10.255.0.6, connectRetrySeconds: 1, maxPrefixes: 3}",
            "{asn: 65000, address: 10.255.0.7, connectRetrySeconds: 1, maxPrefixes: 3}",
            "{asn: 65000, address: 10.255.0.8, connectRetrySeconds: 1}",
        ];
        let mut host = Host::new("");
        host.manifests(&manifests(&peers.join("\n"), SUBNET));
        host.start();
        established(&host, "10.255.0.1");
        for (number, kind, words, advice) in [
            (
                2,
                CauseKind::Passwords,
                "the passwords differ: the kernel refused ",
                "compare the password of 10.255.0.2 with the router's",
            ),
            (
                3,
                CauseKind::WrongAs,
                "Bad Peer AS",
                "the router is in AS 65009 and the Network has 65000: correct asn of this peer",
            ),
            (
                4,
                CauseKind::HoldTimer,
                "hold timer expired: no message from the peer for 3 s",
                "run `ping 10.255.0.4`. No answer: the link or the router is dead",
            ),
            (5, CauseKind::Protocol, "Connection Not Synchronized", "compare both sides' BGP configuration"),
            (
                6,
                CauseKind::PrefixLimit,
                "4 prefixes received, the limit is 3: raise the limit, or filter at the peer",
                "the router sends more prefixes than this node's limit of 3",
            ),
            (
                8,
                CauseKind::Refused,
                "10.255.0.8:179 refused the connection",
                "no BGP process listens at 10.255.0.8",
            ),
        ] {
            let address = format!("10.255.0.{number} ");
            let line = || {
                let text = host.prints("peers");
                text.lines().find(|line| line.starts_with(&address)).unwrap().to_owned()
            };
            // Peer 4 returns each time, and shows its cause while it is down.
            within(Duration::from_secs(20), words, || line().contains(words));
            within(Duration::from_secs(20), words, || {
                let one = host.prints(&format!("peers 10.255.0.{number}"));
                one.contains(words) && one.contains(advice)
            });
            within(Duration::from_secs(20), words, || {
                peer(&host, address.trim()).cause.is_some_and(|cause| cause.kind == kind)
            });
        }
        within(Duration::from_secs(20), "the AS number is shown", || {
            let all = host.prints("peers");
            assert!(!all.contains("k2"), "the password is shown:\n{all}");
            all.contains("65009")
        });
        assert_eq!(
            peer(&host, "10.255.0.7").state,
            PeerState::Established,
            "a number of prefixes equal to the limit is accepted"
        );
        for number in [2, 3, 5, 6] {
            assert_ne!(peer(&host, &format!("10.255.0.{number}")).state, PeerState::Established, "{number}");
        }
        undisturbed(&host);
        host.add("c1", &namespace()).unwrap();
    });
}

#[test]
fn an_exhausted_pool_names_its_subnet_and_counts() {
    isolated("an_exhausted_pool_names_its_subnet_and_counts", |_| {
        let (host, _routers, _speakers) = settled("10.14.0.0/29");
        for number in 0..6 {
            host.add(&format!("c{number}"), &namespace()).unwrap();
        }
        let failure = host.add("one-more", &namespace()).unwrap_err();
        assert_eq!(failure.code, Code::PoolExhausted);
        assert!(failure.to_string().contains("subnet pods has 6 of 6 in use"), "{failure}");
        let line = host.prints("status").lines().last().unwrap().to_owned();
        assert!(line.ends_with("6     0     6"), "used, free, total: {line}");
        host.del("c0").unwrap();
        host.add("one-more", &namespace()).unwrap();
    });
}

/// A separate file system for the store, until this value is dropped. Only this thread and its
/// child processes see it.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(path: std::path::PathBuf) -> SmallDisk {
        fs::create_dir(&path).unwrap();
        namespace::unshare_mounts();
        run("mount", &["--make-rprivate", "/"]);
        run("mount", &["-t", "tmpfs", "-o", "size=8m", "trunkline-test", path.to_str().unwrap()]);
        SmallDisk(path)
    }

    fn fill(&self) {
        let zeros = vec![0; 9 << 20];
        fs::write(self.0.join("filler"), zeros).unwrap_err();
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Process::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    assert!(Process::new(program).args(arguments).status().unwrap().success(), "{program} {arguments:?}");
}

#[test]
fn full_disk_allocates_no_address_and_stops_no_pod() {
    isolated("full_disk_allocates_no_address_and_stops_no_pod", |_| {
        let routers = routers(1);
        let _speakers = speakers(&routers, &[good()]);
        let mut host = Host::new("");
        host.manifests(&manifests(GOOD, SUBNET));
        let disk = SmallDisk::mount(host.path("disk"));
        let config = fs::read_to_string(host.path("agent.yaml")).unwrap();
        fs::write(host.path("agent.yaml"), config.replace("store.redb", "disk/store.redb")).unwrap();
        host.start();
        established(&host, "10.255.0.1");
        let netns = namespace();
        let pod = address(&host.add("witness", &netns).unwrap());

        disk.fill();
        // The file has some free space before it must grow.
        let mut given = Vec::new();
        let (name, failure) = (0..200)
            .find_map(|number| {
                let name = format!("c{number}");
                match host.add(&name, &namespace()) {
                    Ok(attachment) => {
                        given.push(address(&attachment));
                        None
                    }
                    Err(failure) => Some((name, failure)),
                }
            })
            .expect("200 pods on a full disk");
        assert_eq!(failure.code, Code::TryAgainLater);
        for words in
            ["disk/store.redb cannot be written", "No space left", "no address is allocated", "free space"]
        {
            assert!(failure.to_string().contains(words), "`{words}`: {failure}");
        }
        host.add(&name, &namespace()).unwrap_err();
        assert!(host.pods().iter().all(|(container, _)| *container != name), "{name} has no interface");
        let status = host.prints("status");
        assert!(status.contains("UNUSABLE: store") && status.contains("No space left"), "{status}");
        assert!(inside(&routers, || ping(&pod)), "running pods keep working");
        undisturbed(&host);

        disk.free();
        let after = namespace();
        let next = address(&host.add("after", &after).unwrap());
        assert!(next != pod && !given.contains(&next), "{next} is allocated twice");
        assert!(host.status().store.fault.is_none());
        host.kill();
        host.start();
        assert!(host.pods().iter().any(|(container, state)| container == "after" && state == "attached"));
    });
}

/// The links of pods on this host.
fn links() -> Vec<String> {
    ip("-br link").lines().filter(|line| line.starts_with("tl")).map(str::to_owned).collect()
}

const AT_ONCE: usize = 4;
const ROUNDS: u32 = 16;

/// Kills the agent during several requests of one kind, later in each round, until after the
/// duration of undisturbed requests.
fn storm(verb: &str) {
    let (mut host, routers, _speakers) = settled(SUBNET);
    let netns = namespace();
    let witness = address(&host.add("witness", &netns).unwrap());
    let mut whole = Duration::from_secs(5);
    let (mut answered, mut asked) = (0, 0);
    for round in 0..=ROUNDS {
        let pods: Vec<(String, OwnedFd)> =
            (0..AT_ONCE).map(|number| (format!("r{round}p{number}"), namespace())).collect();
        if verb == "DEL" {
            for (name, netns) in &pods {
                host.add(name, netns).unwrap();
            }
        }
        let mut agent = host.agent.take().unwrap();
        let request = |(name, netns): &(String, OwnedFd)| match verb {
            "ADD" => host.add(name, netns).is_ok(),
            _ => host.del(name).is_ok(),
        };
        let began = Instant::now();
        let good = std::thread::scope(|scope| {
            let requests: Vec<_> = pods.iter().map(|pod| scope.spawn(|| request(pod))).collect();
            if round > 0 {
                std::thread::sleep(whole * (round - 1) / (ROUNDS - 1));
                agent.kill().unwrap();
            }
            requests.into_iter().map(|request| usize::from(request.join().unwrap())).sum::<usize>()
        });
        match round {
            0 => (whole, _) = (began.elapsed(), assert_eq!(good, AT_ONCE)),
            _ => (answered, asked) = (answered + good, asked + AT_ONCE),
        }
        host.agent = Some(agent);
        host.kill();
        assert!(inside(&routers, || ping(&witness)), "round {round}: without an agent");

        host.start();
        // After the start, each attachment is complete, or it is marked as broken because a DEL was
        // killed. No partial ADD remains.
        let states = host.pods();
        for (name, state) in &states {
            let known = state == "attached" && link_exists(name) || verb == "DEL" && state == "broken";
            assert!(known, "round {round}: {name} is {state}; links {:?}", links());
        }
        let attached = states.iter().filter(|(_, state)| state == "attached").count();
        assert_eq!(links().len(), attached, "round {round}: {:?}, {states:?}", links());
        established(&host, "10.255.0.1");
        host.gc(&["witness"]);
        assert_eq!(host.pods(), [("witness".to_owned(), "attached".to_owned())], "round {round}");
        assert_eq!((links().len(), pod_routes()), (1, 1), "round {round}: {:?}", links());
        for (name, netns) in &pods {
            assert!(!inside(netns, || ip("-br link").contains("eth0")), "round {round}: {name} has its end");
        }
        assert!(inside(&routers, || ping(&witness)), "round {round}");
    }
    println!("{verb}: {AT_ONCE} take {whole:?}; {answered} of {asked} answered");
    assert!(answered < asked, "no kill interrupted a request");
    // All addresses are free again.
    let used: u32 = host.status().networks.iter().flat_map(|n| &n.subnets).map(|subnet| subnet.used).sum();
    assert_eq!(used, 1);
}

#[test]
fn start_and_gc_clean_up_after_sigkill_in_add() {
    isolated("start_and_gc_clean_up_after_sigkill_in_add", |_| {
        storm("ADD");
    });
}

#[test]
fn start_and_gc_clean_up_after_sigkill_in_del() {
    isolated("start_and_gc_clean_up_after_sigkill_in_del", |_| {
        storm("DEL");
    });
}

#[test]
fn add_of_a_killed_runtime_is_undone() {
    isolated("add_of_a_killed_runtime_is_undone", |_| {
        // No peer answers, so the ADD waits.
        let mut host = Host::new("");
        let config = fs::read_to_string(host.path("agent.yaml")).unwrap();
        fs::write(host.path("agent.yaml"), config.replace("timeoutSeconds: 1", "timeoutSeconds: 60"))
            .unwrap();
        host.start();
        let netns = namespace();
        let stream = host.request(attach("c1"), Some(&netns)).unwrap();
        eventually("it waits", || pod_routes() == 1);
        drop(stream);
        eventually("the ADD is undone", || host.pods().is_empty());
        assert_eq!((pod_routes(), links().len()), (0, 0));
        assert!(!inside(&netns, || ip("-br link").contains("eth0")));
    });
}

#[test]
fn deleted_kernel_objects_are_restored_or_reported() {
    isolated("deleted_kernel_objects_are_restored_or_reported", |_| {
        let (host, routers, _speakers) = settled(SUBNET);
        let (one, two) = (namespace(), namespace());
        let pod = address(&host.add("c1", &one).unwrap());
        host.add("c2", &two).unwrap();
        let look = || {
            let mut lines: Vec<String> = [ip("rule"), ip("route show table all proto 116")]
                .concat()
                .lines()
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines
        };
        eventually("a way out", || look().iter().any(|line| line.starts_with("default")));
        let before = look();
        let mut repairs = host.status().kernel.repairs;
        for harm in [
            format!("route del {pod} table 39999"),
            "route flush table 10000".to_owned(),
            "route flush table 39998".to_owned(),
            "rule del pref 1000".to_owned(),
            "rule del pref 1030".to_owned(),
            "rule del pref 1100".to_owned(),
        ] {
            ip(&harm);
            eventually(&harm, || look() == before && host.status().kernel.repairs > repairs);
            assert!(inside(&routers, || ping(&pod)), "{harm}");
            repairs = host.status().kernel.repairs;
        }
        eventually("an event reports the repairs", || {
            host.prints("events").contains("changed by others and restored: ")
        });
        // A veth pair cannot be created again without its other end in the pod's namespace, so it
        // is reported.
        let link = trunkline_datapath::naming::host_ifname("c1", "eth0");
        ip(&format!("link del {link}"));
        eventually("the missing link is reported", || {
            host.pods().contains(&("c1".to_owned(), "broken".to_owned()))
        });
        assert!(host.prints("pods").contains("broken"));
        assert!(
            !host.prints("routes --advertised 10.255.0.1").contains(&format!("{pod}/32")),
            "the pod is withdrawn"
        );
        let other = address(&host.add("c3", &namespace()).unwrap());
        assert_ne!(other, pod, "its address stays allocated");
        host.del("c1").unwrap();
        assert_eq!(host.pods().len(), 2);
        undisturbed(&host);
    });
}

/// The output of `trunkline doctor`.
fn doctor(host: &Host) -> String {
    let mut process = Process::new(env!("CARGO_BIN_EXE_trunkline"));
    let output = process.arg("doctor").arg("--config").arg(host.path("agent.yaml")).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn events_survive_a_restart_and_a_stopped_agent_has_a_deadline() {
    isolated("events_survive_a_restart_and_a_stopped_agent_has_a_deadline", |_| {
        let (mut host, _routers, speakers) = settled(SUBNET);
        assert!(host.prints("events").contains(" agentStarted "));
        // The network loses its default route with its only peer, and gets it back with the peer.
        host.manifests(&manifests(&GOOD.replace("k1", "k2"), SUBNET));
        within(Duration::from_secs(20), "a lost default route", || {
            host.prints("events").contains("network rack1: no ipv4-unicast default route is left")
        });
        host.manifests(&manifests(GOOD, SUBNET));
        within(Duration::from_secs(20), "a default route", || {
            host.prints("events").contains("network rack1: the ipv4-unicast default route is back")
        });
        let agent = host.agent.as_mut().unwrap();
        let pid = rustix::process::Pid::from_child(agent);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        agent.wait().unwrap();
        host.agent = None;

        let words = doctor(&host);
        let deadline = "Routers keep this node's routes until ";
        assert!(words.contains(deadline) && words.contains("(300 s after the agent ended at "), "{words}");
        host.start();
        let events = host.prints("events");
        for words in [" defaultLost ", " agentStopped ", "; the last run stopped at "] {
            assert!(events.contains(words), "{words}: {events}");
        }
        established(&host, "10.255.0.1");

        host.kill();
        let words = doctor(&host);
        assert!(words.contains("for 300 s after the agent ended"), "{words}");
        assert!(words.contains("When it ended is unknown"), "{words}");
        host.start();
        let events = host.prints("events");
        assert!(events.contains("ended without a stop") && events.contains(" agentStopped "), "{events}");
        drop(speakers);
    });
}
