//! The marks of translated connections, in a real kernel.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod namespace;
mod policy;

use std::process::Command;

use namespace::isolated;
use policy::{echoes, pods};
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};
use trunkline_datapath::plan::{KernelPlan, LINK_BITS, TranslatedRules, mark_of};

/// The number of the client's link.
const LINK: u32 = 3;

fn nft(words: &str) -> String {
    let output = Command::new("nft").arg(words).output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The packets of replies with the number of the client's link, since the last call.
fn marked_replies() -> u32 {
    let text = nft("reset counter inet test marked");
    let packets = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
    packets.unwrap().parse().unwrap()
}

/// The first packet of a connection can pass between the NAT rule of another program and the marks.
#[test]
fn a_connection_from_before_the_marks_is_answered_by_its_link() {
    isolated("a_connection_from_before_the_marks_is_answered_by_its_link", |runtime| {
        let [client, backend] = pods();
        backend.serve(80);
        let value = mark_of(LINK).value;
        for rule in [
            "add table inet test",
            "add counter inet test marked",
            "add chain inet test pre { type nat hook prerouting priority dstnat; }",
            "add rule inet test pre ip daddr 10.0.1.1 tcp dport 8080 dnat ip to 10.0.2.2:80",
            "add rule inet test pre ip6 daddr fd00:1::1 tcp dport 8080 dnat ip6 to [fd00:2::2]:80",
            "add chain inet test count { type filter hook prerouting priority -80; }",
            &format!(
                "add rule inet test count ct direction reply meta mark & {LINK_BITS} == {value} counter name marked"
            ),
        ] {
            nft(rule);
        }
        let frontends = ["10.0.1.1", "fd00:1::1"].map(|address| address.parse().unwrap());
        let connect = || frontends.map(|frontend| client.connect(frontend, 8080).unwrap());
        let mut before = connect();

        let (kernel, _events) = KernelHandle::spawn(KernelConfig::default()).unwrap();
        let plan = KernelPlan {
            translated: TranslatedRules {
                always: true,
                pods: ["10.0.0.0/16".parse().unwrap(), "fd00::/16".parse().unwrap()].into(),
                links: [("pod1".to_owned(), LINK)].into(),
                hairpin: false,
            },
            ..KernelPlan::default()
        };
        assert_eq!(runtime.block_on(kernel.set_plan(plan)).unwrap().faults, [""; 0]);
        for connection in before.iter_mut().chain(&mut connect()) {
            marked_replies();
            assert!(echoes(connection));
            assert!(marked_replies() >= 1, "{connection:?}");
        }
        assert_eq!(runtime.block_on(kernel.resync()).unwrap(), 0, "the rules are as the kernel lists them");
    });
}
