//! The reader of the service proxy's rules, in a real kernel: rules in the layout of kube-proxy in
//! both modes, written by `nft` and `iptables-nft-restore`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod namespace;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use ipnet::IpNet;
use namespace::isolated;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use trunkline_api::service::Protocol;
use trunkline_datapath::proxy_rules::{
    AddressPort, Backend, PortRules, ProxyRules, RECEIVE_BUFFER, RuleUpdate, find_backend,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// kube-proxy's table in a family: `ip` or `ip6`.
fn table(ip: &str) -> String {
    let address = if ip == "ip" { "ipv4_addr" } else { "ipv6_addr" };
    format!(
        "add table {ip} kube-proxy
         add chain {ip} kube-proxy nat-prerouting {{ type nat hook prerouting priority -100; }}
         add chain {ip} kube-proxy services
         add chain {ip} kube-proxy external-web
         add map {ip} kube-proxy service-ips {{ type {address} . inet_proto . inet_service : verdict; }}
         add map {ip} kube-proxy no-endpoint-services {{ type {address} . inet_proto . inet_service : verdict; }}
         add rule {ip} kube-proxy nat-prerouting jump services
         add rule {ip} kube-proxy services {ip} daddr . meta l4proto . th dport vmap @service-ips\n"
    )
}

fn forward(ip: &str, address: &str, port: &str) -> String {
    format!("add element {ip} kube-proxy service-ips {{ {address} . {port} : goto external-web }}\n")
}

/// Rules of kube-proxy in mode iptables, as it writes them at each change.
fn chains(ports: impl IntoIterator<Item = u16>, blocked: &[u16]) -> String {
    let mut text = "*filter\n:KUBE-EXTERNAL-SERVICES - [0:0]\n".to_owned();
    for port in blocked {
        text += &format!(
            "-A KUBE-EXTERNAL-SERVICES -m comment --comment \"default/web:http has no local endpoints\" -m tcp -p tcp -d 192.0.2.1 --dport {port} -j DROP\n"
        );
    }
    text += "COMMIT\n*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-EXT-WEB - [0:0]\n";
    for port in ports {
        text += &format!(
            "-A KUBE-SERVICES -m comment --comment \"default/web:http loadbalancer IP\" -m tcp -p tcp -d 192.0.2.1 --dport {port} -j KUBE-EXT-WEB\n"
        );
    }
    text + "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n"
}

fn pipe(program: &str, arguments: &[&str], input: &str) {
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program}: {input}");
}

fn nft(script: &str) {
    pipe("nft", &["-f", "-"], script);
}

fn iptables(rules: &str) {
    pipe("iptables-nft-restore", &["--noflush"], rules);
}

/// kube-proxy's rule that leads packets to its chain.
fn dispatch() {
    iptables(
        "*nat\n:KUBE-SERVICES - [0:0]\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n",
    );
}

/// A reader, and the sum of its updates.
struct Reader<'a> {
    runtime: &'a Runtime,
    rules: ProxyRules,
    interest: watch::Sender<Vec<IpNet>>,
    updates: mpsc::UnboundedReceiver<RuleUpdate>,
    ports: BTreeMap<AddressPort, PortRules>,
}

impl<'a> Reader<'a> {
    fn start(runtime: &'a Runtime, receive_buffer: usize) -> Self {
        let prefixes = ["192.0.2.0/24", "2001:db8::/64"].map(|prefix| prefix.parse().unwrap());
        let (interest, receiver) = watch::channel(prefixes.to_vec());
        let (rules, updates) = ProxyRules::spawn(receiver, receive_buffer).unwrap();
        Reader { runtime, rules, interest, updates, ports: BTreeMap::new() }
    }

    fn next(&mut self, what: &str) -> RuleUpdate {
        let next = async { tokio::time::timeout(PATIENCE, self.updates.recv()).await };
        let update = self.runtime.block_on(next).unwrap_or_else(|_| panic!("no update: {what}")).unwrap();
        if update.complete {
            self.ports.clear();
        }
        self.ports.extend(update.changes.iter().map(|change| (change.port, change.rules)));
        update
    }

    /// The next update has this backend and exactly these changes.
    fn expect(&mut self, what: &str, backend: Backend, changes: &[(&str, Protocol, u16, PortRules)]) {
        let update = self.next(what);
        let mut found: Vec<_> = update.changes.iter().map(|change| (change.port, change.rules)).collect();
        let port =
            |address: &str, protocol, port| AddressPort { address: address.parse().unwrap(), protocol, port };
        let mut wanted: Vec<_> = changes
            .iter()
            .map(|(address, protocol, number, rules)| (port(address, *protocol, *number), *rules))
            .collect();
        found.sort();
        wanted.sort();
        assert_eq!((update.backend, found), (backend, wanted), "{what}");
    }

    /// No update is pending after a transaction that the reader has seen.
    fn expect_nothing(&mut self, what: &str, marker: &str, backend: Backend) {
        nft(marker);
        let update = self.next(what);
        assert_eq!((update.changes.len(), update.backend), (1, backend), "{what}: {update:?}");
    }
}

use PortRules::{Blocked, Forwarded, Missing};
use Protocol::{Sctp, Tcp, Udp};

const WEB: &str = "192.0.2.1";
const WEB6: &str = "2001:db8::1";

#[test]
fn maps_of_kube_proxy_are_followed() {
    isolated("maps_of_kube_proxy_are_followed", |runtime| {
        let mut reader = Reader::start(runtime, RECEIVE_BUFFER);
        reader.expect("the start", Backend::Absent, &[]);
        nft(&format!("{}{}", table("ip"), forward("ip", WEB, "tcp . 80")));
        reader.expect("the first element", Backend::Nftables, &[(WEB, Tcp, 80, Forwarded)]);
        nft(&format!("{}{}", table("ip6"), forward("ip6", WEB6, "udp . 53")));
        reader.expect("IPv6", Backend::Nftables, &[(WEB6, Udp, 53, Forwarded)]);

        nft(
            "add element ip kube-proxy no-endpoint-services { 192.0.2.1 . tcp . 80 comment \"default/web:http\" : drop }",
        );
        reader.expect("the last endpoint is gone", Backend::Nftables, &[(WEB, Tcp, 80, Blocked)]);
        nft("delete element ip kube-proxy no-endpoint-services { 192.0.2.1 . tcp . 80 }");
        reader.expect("an endpoint is back", Backend::Nftables, &[(WEB, Tcp, 80, Forwarded)]);

        // An element with another value, the rules of a whole synchronisation, an address outside
        // of the prefixes, and tables of other programs.
        nft("delete element ip kube-proxy service-ips { 192.0.2.1 . tcp . 80 : goto external-web }
             add chain ip kube-proxy external-other
             add element ip kube-proxy service-ips { 192.0.2.1 . tcp . 80 : goto external-other }
             flush chain ip kube-proxy services
             add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
             add element ip kube-proxy service-ips { 198.51.100.1 . tcp . 80 : goto external-web }
             add table ip other
             add set ip other service-ips { type ipv4_addr; elements = { 192.0.2.1 } }");
        let marker = forward("ip", WEB, "sctp . 9");
        reader.expect_nothing("no difference", &marker, Backend::Nftables);

        // Without the rule, the elements have no effect.
        nft("flush table ip kube-proxy");
        let all = [(WEB, Tcp, 80, Missing), (WEB, Sctp, 9, Missing)];
        reader.expect("the rules are gone", Backend::Nftables, &all);
        nft("add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips");
        let all = [(WEB, Tcp, 80, Forwarded), (WEB, Sctp, 9, Forwarded)];
        reader.expect("the rules are back", Backend::Nftables, &all);

        // A change of the interest reports everything of the new one.
        reader.interest.send(vec!["2001:db8::/64".parse().unwrap()]).unwrap();
        reader.expect("another interest", Backend::Nftables, &[(WEB6, Udp, 53, Forwarded)]);
        reader.interest.send(vec!["0.0.0.0/0".parse().unwrap()]).unwrap();
        let all =
            [("198.51.100.1", Tcp, 80, Forwarded), (WEB, Tcp, 80, Forwarded), (WEB, Sctp, 9, Forwarded)];
        reader.expect("all IPv4 addresses", Backend::Nftables, &all);

        // Without an interest only the backend is read.
        reader.interest.send(Vec::new()).unwrap();
        reader.expect("no interest", Backend::Nftables, &[]);
        nft("delete table ip6 kube-proxy");
        reader.interest.send(vec!["0.0.0.0/0".parse().unwrap()]).unwrap();
        reader.expect("an interest again", Backend::Nftables, &all);

        nft("flush ruleset");
        let all = all.map(|(address, protocol, port, _)| (address, protocol, port, Missing));
        reader.expect("flush ruleset", Backend::Absent, &all);

        // A second reader lists what exists already.
        nft(&format!("{}{}", table("ip"), forward("ip", WEB, "tcp . 80")));
        reader.expect("kube-proxy repairs", Backend::Nftables, &[(WEB, Tcp, 80, Forwarded)]);
        assert_eq!(find_backend().unwrap(), Backend::Nftables);
        let mut second = Reader::start(runtime, RECEIVE_BUFFER);
        second.expect("the start", Backend::Nftables, &[(WEB, Tcp, 80, Forwarded)]);
        nft("delete table ip kube-proxy");
        second.expect("the table is deleted", Backend::Absent, &[(WEB, Tcp, 80, Missing)]);
        assert_eq!(find_backend().unwrap(), Backend::Absent);
    });
}

#[test]
fn chains_of_kube_proxy_are_followed() {
    isolated("chains_of_kube_proxy_are_followed", |runtime| {
        if Command::new("iptables-nft-restore").arg("--version").output().is_err() {
            println!("skipped, iptables is not installed");
            return;
        }
        let mut reader = Reader::start(runtime, RECEIVE_BUFFER);
        reader.expect("the start", Backend::Absent, &[]);
        dispatch();
        iptables(&chains([80], &[]));
        reader.expect("the first rule", Backend::IptablesNft, &[(WEB, Tcp, 80, Forwarded)]);
        iptables(&chains([80, 81], &[]));
        reader.expect("a new port", Backend::IptablesNft, &[(WEB, Tcp, 81, Forwarded)]);
        iptables(&chains([80, 81], &[80]));
        reader.expect("no local endpoint", Backend::IptablesNft, &[(WEB, Tcp, 80, Blocked)]);

        // The table `filter` is written before `nat`: the port waits for `nat`.
        iptables("*filter\n:KUBE-EXTERNAL-SERVICES - [0:0]\nCOMMIT\n");
        iptables(&chains([80, 81, 82], &[]));
        let all = [(WEB, Tcp, 80, Forwarded), (WEB, Tcp, 82, Forwarded)];
        reader.expect("both tables are written", Backend::IptablesNft, &all);

        // Each synchronisation writes all rules again.
        for _ in 0..3 {
            iptables(&chains([80, 81, 82], &[]));
        }
        iptables(&chains([80, 81], &[]));
        reader.expect("only the difference", Backend::IptablesNft, &[(WEB, Tcp, 82, Missing)]);

        iptables(
            "*nat\n-I KUBE-SERVICES -p udp -m udp -d 192.0.2.1 --dport 53 -j KUBE-EXT-WEB\n-I KUBE-SERVICES -p sctp -m sctp -d 192.0.2.1 --dport 9 -j KUBE-EXT-WEB\nCOMMIT\n",
        );
        let all = [(WEB, Udp, 53, Forwarded), (WEB, Sctp, 9, Forwarded)];
        reader.expect("UDP and SCTP", Backend::IptablesNft, &all);
        // A rule with another condition does not translate each packet.
        iptables(
            "*nat\n-I KUBE-SERVICES -s 203.0.113.1 -p tcp -m tcp -d 192.0.2.1 --dport 99 -j KUBE-EXT-WEB\nCOMMIT\n",
        );
        iptables("*nat\n-I KUBE-SERVICES -p tcp -m tcp -d 192.0.2.1 --dport 98 -j KUBE-EXT-WEB\nCOMMIT\n");
        reader.expect("the other condition", Backend::IptablesNft, &[(WEB, Tcp, 98, Forwarded)]);

        let mut second = Reader::start(runtime, RECEIVE_BUFFER);
        second.next("the start");
        reader.ports.retain(|_, rules| *rules != Missing);
        assert_eq!(second.ports, reader.ports);
        assert_eq!(find_backend().unwrap(), Backend::IptablesNft);

        // Without the rule in PREROUTING no packet comes to these rules.
        iptables("*nat\n-F PREROUTING\nCOMMIT\n");
        let gone = reader.next("PREROUTING is empty");
        assert_eq!((gone.changes.len(), gone.backend), (5, Backend::IptablesNft));
        assert!(gone.changes.iter().all(|change| change.rules == Missing));
        iptables("*nat\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n");
        assert_eq!(reader.next("PREROUTING is back").changes.len(), 5);
        assert!(Command::new("iptables-nft").args(["-t", "nat", "-F"]).status().unwrap().success());
        let gone = reader.next("iptables -F");
        assert_eq!((gone.changes.len(), gone.backend), (5, Backend::Absent));
    });
}

#[test]
fn lost_notifications_lead_to_a_dump() {
    isolated("lost_notifications_lead_to_a_dump", |runtime| {
        let mut reader = Reader::start(runtime, 4096);
        reader.expect("the start", Backend::Absent, &[]);
        nft(&table("ip"));
        // The reader can keep up with some of the writes.
        let mut rounds = 0_u16;
        while rounds < 3 || reader.rules.rereads() == 0 {
            assert!(rounds < 30, "the small buffer never overflows");
            let ports = (1..=2000_u16)
                .map(|port| format!("192.0.2.1 . tcp . {} : goto external-web", rounds * 2000 + port));
            let elements = ports.collect::<Vec<_>>().join(", ");
            nft(&format!("add element ip kube-proxy service-ips {{ {elements} }}"));
            rounds += 1;
        }
        while reader.ports.len() < usize::from(rounds) * 2000 {
            reader.next("all elements");
        }
        assert!(reader.ports.values().all(|rules| *rules == Forwarded));
        nft("flush map ip kube-proxy service-ips");
        while reader.ports.values().any(|rules| *rules == Forwarded) {
            reader.next("no element");
        }
    });
}
