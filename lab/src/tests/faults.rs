//! Misbehaving peers: `trunkline peers` shows each with its last error as text, and none affects
//! the good one.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::shell::{Seen, wait_for};
use crate::{daemons, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "faults/password",
        about: "the error of a peer with another TCP-MD5 key names this cause",
        run: password,
    },
    Test {
        name: "faults/asn",
        about: "the error of a peer with another AS number names this cause",
        run: asn,
    },
    Test {
        name: "faults/garbage",
        about: "a peer that sends garbage gets a NOTIFICATION, and its error is shown",
        run: garbage,
    },
    Test {
        name: "faults/prefix-limit",
        about: "the session with a peer with too many prefixes ends, and the error is shown",
        run: prefix_limit,
    },
    Test {
        name: "faults/hold-timer",
        about: "a silent peer is detected within its hold time",
        run: hold_timer,
    },
    Test {
        name: "faults/stranger",
        about: "an address that is not configured as a peer gets no session",
        run: stranger,
    },
];

const GOOD: &str = "10.1.0.1";

/// The good peer's session is up, and is still the same session.
fn good_is_well(bed: &Bed<'_>) -> Result<()> {
    wait_for("the good peer's session", PATIENCE, || {
        let peer = bed.peer(GOOD)?;
        Ok(Seen::when(peer.is_established(), || peer.state.to_string()))
    })?;
    let peer = bed.peer(GOOD)?;
    ensure!(peer.flaps == 0, "the good peer's session was lost {} times", peer.flaps);
    let (_, attached) = bed.attached("after", "rack1")?;
    ensure!(attached.addresses.len() == 1, "a pod got {:?}", attached.addresses);
    Ok(())
}

fn password(context: &Context) -> Result<Verdict> {
    lab(context, "faults", |bed| {
        // The kernel drops a segment with a wrong key, so the peer seems not to answer.
        let error = bed.wait_peer_error("10.2.0.1", &["password", "md5", "timed out"])?;
        ensure!(!bed.peer("10.2.0.1")?.is_established(), "established with a wrong password");
        ensure!(!error.contains("lab-secret"), "the password is in the error: {error}");
        good_is_well(bed)?;
        passed(error)
    })
}

fn asn(context: &Context) -> Result<Verdict> {
    lab(context, "faults", |bed| {
        let error = bed.wait_peer_error("10.3.0.1", &["Bad Peer AS", "65003"])?;
        ensure!(!bed.peer("10.3.0.1")?.is_established(), "established with a wrong AS");
        good_is_well(bed)?;
        passed(error)
    })
}

/// Answers every connection with octets that are no BGP, and stores the received octets.
fn garbage(context: &Context) -> Result<Verdict> {
    lab(context, "faults", |bed| {
        let stop = Arc::new(AtomicBool::new(false));
        let ns = bed.host("garbage")?.ns.clone();
        let listener = ns.within(|| Ok(TcpListener::bind("10.4.0.1:179")?))?;
        listener.set_nonblocking(true)?;
        let stopped = Arc::clone(&stop);
        let server = std::thread::spawn(move || {
            let mut received = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                let Ok((mut connection, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let sent = connection
                    .set_nonblocking(false)
                    .and_then(|()| connection.set_read_timeout(Some(Duration::from_secs(2))))
                    .and_then(|()| {
                        connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\nthis is not the BGP you want")
                    });
                let mut all = Vec::new();
                if sent.is_ok() && connection.read_to_end(&mut all).is_ok() {
                    received.push(all);
                }
            }
            received
        });
        let error = bed.wait_peer_error("10.4.0.1", &["synchroni", "marker"]);
        stop.store(true, Ordering::SeqCst);
        let received = server.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
        let error = error?;
        // The agent's last message: NOTIFICATION (3), Message Header Error (1), Connection Not
        // Synchronized (1).
        let notified = |all: &Vec<u8>| all.windows(5).any(|w| w == [0, 21, 3, 1, 1]);
        ensure!(received.iter().any(notified), "no NOTIFICATION 1/1 among {} connections", received.len());
        good_is_well(bed)?;
        passed(error)
    })
}

fn prefix_limit(context: &Context) -> Result<Verdict> {
    lab(context, "faults", |bed| {
        let error = bed.wait_peer_error("10.5.0.1", &["prefix"])?;
        // FRR receives it as Cease/Maximum Number of Prefixes Reached (RFC 4486).
        let many = bed.host("many")?;
        wait_for("the peer to receive the reason", PATIENCE, || {
            let neighbour = routers::neighbour(many, "10.5.0.11")?;
            let reason = neighbour["lastNotificationReason"].to_string();
            Ok(Seen::when(reason.contains("Maximum Number of Prefixes"), || reason))
        })?;
        good_is_well(bed)?;
        passed(error)
    })
}

fn hold_timer(context: &Context) -> Result<Verdict> {
    lab(context, "faults", |bed| {
        let silent = bed.host("silent")?;
        routers::wait_neighbour(silent, "10.6.0.11", true, PATIENCE)?;
        let hold = bed.peer("10.6.0.1")?.session.map(|s| s.hold_seconds);
        ensure!(hold == Some(3), "the hold time is {hold:?}, 3 s were configured");
        silent.sh("nft add table inet cut; \
             nft 'add chain inet cut in { type filter hook input priority 0; }'; \
             nft 'add chain inet cut out { type filter hook output priority 0; }'; \
             nft add rule inet cut in tcp dport 179 drop; nft add rule inet cut in tcp sport 179 drop; \
             nft add rule inet cut out tcp dport 179 drop; nft add rule inet cut out tcp sport 179 drop")?;
        let start = std::time::Instant::now();
        let error = bed.wait_peer_error("10.6.0.1", &["hold timer"])?;
        let took = start.elapsed();
        good_is_well(bed)?;
        silent.sh("nft delete table inet cut")?;
        routers::wait_neighbour(silent, "10.6.0.11", true, PATIENCE)?;
        passed(format!("{error}; noticed in {:.1} s, and back", took.as_secs_f64()))
    })
}

/// FRR at an address without a configured peer tries to connect; the agent closes the connection
/// and continues.
fn stranger(context: &Context) -> Result<Verdict> {
    lab(context, "faults", |bed| {
        let good = bed.host("good")?;
        good.sh("ip addr add 10.1.0.66/24 dev eth1")?;
        daemons::vtysh(
            good,
            &[
                "configure terminal",
                "router bgp 65001",
                "no neighbor 10.1.0.11 password",
                "neighbor 10.1.0.11 update-source 10.1.0.66",
            ],
        )?;
        wait_for("the connection of the unknown address to be refused", PATIENCE, || {
            let tried = routers::neighbour(good, "10.1.0.11")?;
            let dropped = tried["connectionsDropped"].as_u64().unwrap_or_default();
            let reset = tried["lastResetDueTo"].to_string();
            Ok(Seen::when(tried["bgpState"] != "Established" && (dropped > 0 || reset != "null"), || {
                tried["bgpState"].to_string()
            }))
        })?;
        ensure!(
            !bed.peer(GOOD)?.is_established(),
            "an address that is not configured as a peer has a session"
        );
        passed("")
    })
}
