//! Random schedules and random octets. After any history, two speakers converge again. No input of
//! a peer causes a panic, and no effect of an input remains after the peer's session.

use std::time::Duration;

use trunkline_bgp::speaker::{State, Stop};

use crate::net::{Net, announce, encoded, end_of_rib, keepalive, message, net, open, secs};

/// xorshift: deterministic for a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn two_speakers_converge_after_any_schedule() {
    for seed in 1..=150 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut all = Net::pair();
        all.boot_all();
        for _ in 0..12 {
            all.run(Duration::from_millis(random.below(15_000)));
            let host = 1 + random.below(2) as u8;
            let other = 3 - host;
            let runs = all.nodes[&host].speaker.is_some();
            match random.below(8) {
                0 | 1 if runs => all.kill(host),
                2 if runs => all.lose_power(host),
                3 if runs => all.stop(host, Stop::Silent),
                4 if runs => all.stop(host, Stop::Cease { communication: "bye".to_owned() }),
                5 if !all.cut => all.cut(),
                6 if runs => {
                    let hold = secs(30 + random.below(60));
                    all.edit(host, other, |peer| peer.hold_time = hold);
                }
                _ if !runs => all.reboot(host),
                _ => all.cut = false,
            }
        }
        all.cut = false;
        for host in [1, 2] {
            if all.nodes[&host].speaker.is_none() {
                all.reboot(host);
            }
        }
        // This time covers the Hold Time, the Restart Time, the longest pause between attempts, and
        // the deferral.
        all.run(secs(400));
        for (host, other) in [(1, 2), (2, 1)] {
            let status = all.status(host, other);
            assert_eq!(
                status.state,
                State::Established,
                "seed {seed} {status:#?} {:#?}",
                all.status(other, host)
            );
            assert!(status.families.iter().all(|f| f.stale == 0 && f.end_of_rib_sent), "seed {seed}");
            let fib: Vec<_> = all.nodes[&host].fib.keys().copied().collect();
            assert_eq!(fib, [net(&format!("10.{other}.0.0/16"))], "seed {seed}");
        }
    }
}

#[test]
fn random_octets_of_a_peer_do_no_harm() {
    let sentences = [
        encoded(&open()),
        keepalive(),
        announce(&[[10, 2, 0], [10, 2, 1]]),
        end_of_rib(),
        message(5, &[0, 1, 0, 1]),
        message(3, &[6, 2, 3, b'a', b'b', b'c']),
    ];
    let mut established = 0;
    for seed in 1..=400u64 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut all = Net::scripted(|peer| peer.max_prefixes = Some(100));
        all.boot(1);
        let pipe = all.script_accept();
        if random.below(3) > 0 {
            all.script_send(pipe, &sentences[0]);
            all.script_send(pipe, &sentences[1]);
        }
        for _ in 0..20 {
            let mut bytes = sentences[random.below(6) as usize].clone();
            for _ in 0..random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            if random.below(8) == 0 {
                bytes.truncate(random.below(bytes.len() as u64) as usize);
            }
            all.script_send(pipe, &bytes);
        }
        established += usize::from(all.status(1, 2).established_count > 0);
        if all.is_closed(pipe) {
            let notified = all.script_notification(pipe).is_some();
            let status = all.status(1, 2);
            assert!(
                notified || status.notification_received.is_some(),
                "seed {seed}: closed without a NOTIFICATION"
            );
            assert!(status.last_error.is_some(), "seed {seed}");
        }
        // The script is silent, so every session ends. Afterwards no route of a session is left.
        all.scripts.clear();
        all.run(secs(600));
        assert!(all.state(1, 2) <= State::Active, "seed {seed}");
        assert!(all.nodes[&1].fib.is_empty(), "seed {seed}");
    }
    assert!(established > 200, "{established}");
}
