//! Bandwidth limits while the agent runs: limits that other programs remove are restored.
#![allow(clippy::disallowed_methods, reason = "tests measure")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod host;
#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::process::Command as Process;

use host::{Host, OPTIONAL, attach, interface, link_exists};
use namespace::{eventually, ip, isolated, namespace};
use trunkline_api::attach::{Attachment, Check, Command, Done};
use trunkline_api::bandwidth::{Bandwidth, RateLimit};
use trunkline_datapath::naming::host_ifname;

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Process::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn limits_that_others_remove_are_restored() {
    isolated("limits_that_others_remove_are_restored", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let netns = namespace();
        let Command::Attach(mut request) = attach("c1") else { unreachable!() };
        let limit = |rate| Some(RateLimit { rate, burst: None });
        request.wanted.bandwidth = Bandwidth { ingress: limit(20_000_000), egress: limit(10_000_000) };
        let pod: Attachment = host.call(Command::Attach(request), Some(&netns)).unwrap();
        let check = || {
            let addresses = pod.addresses.iter().map(|address| address.address).collect();
            let check = Check { interface: interface("c1"), conf_name: "pods".to_owned(), addresses };
            host.call::<Done>(Command::Check(check), Some(&netns))
        };
        check().unwrap();
        let pair = host_ifname("c1", "eth0");
        let ifb = pair.replacen("tl", "tb", 1);
        for command in [
            format!("tc qdisc del dev {pair} root"),
            format!("tc qdisc change dev {pair} handle 1: root tbf rate 1mbit burst 9kb latency 1ms"),
            format!("tc qdisc replace dev {ifb} root pfifo"),
            format!("tc qdisc del dev {ifb} root"),
            format!("tc filter del dev {pair} ingress"),
            format!("tc qdisc del dev {pair} clsact"),
            format!("ip link set {ifb} down"),
            format!("ip link del {ifb}"),
        ] {
            run(&command);
            eventually(&command, || check().is_ok());
        }
        // Limits of a deleted pod are not restored.
        host.del("c1").unwrap();
        assert!(!link_exists("c1") && !ip("link").contains(&ifb));
    });
}
