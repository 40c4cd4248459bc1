//! Packets on an interface, as tcpdump prints them. The capture begins at a known time.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::netns::Namespace;
use crate::shell::{Seen, cmd, wait_for};

/// Ends when it is dropped.
pub(crate) struct Capture {
    tcpdump: Child,
    lines: Arc<Mutex<Vec<String>>>,
    what: String,
}

impl Capture {
    /// Starts a capture. Returns when tcpdump captures every passing packet. The filter is
    /// tcpdump's; each packet is a line that begins with both MAC addresses.
    pub(crate) fn start(ns: &Namespace, interface: &str, filter: &str) -> Result<Self> {
        let mut tcpdump = cmd("nsenter", [format!("--net={}", ns.path().display())])
            .args([
                "tcpdump",
                "-Z",
                "root",
                "--immediate-mode",
                "-l",
                "-n",
                "-t",
                "-e",
                // tcpdump's ring has slots for whole packets of 256 KiB: only eight on `any`, and a
                // larger burst is lost. The first octets contain all fields that a line shows.
                "-s",
                "256",
                "-i",
                interface,
                filter,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("tcpdump")?;
        let (stdout, stderr) = (tcpdump.stdout.take(), tcpdump.stderr.take());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let capture = Self { tcpdump, lines: Arc::clone(&lines), what: format!("{filter} on {interface}") };
        let mut said = BufReader::new(stderr.context("standard error")?);
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            if said.read_line(&mut line)? == 0 {
                bail!("tcpdump of {} in {} ended", capture.what, ns.name());
            }
        }
        let packets = BufReader::new(stdout.context("standard output")?);
        std::thread::spawn(move || {
            for packet in packets.lines().map_while(Result::ok) {
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(packet);
            }
        });
        // tcpdump's final output needs a reader.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Ok(capture)
    }

    /// Lines so far.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a packet. Its line must have all of these words.
    pub(crate) fn wait(&self, words: &[&str], deadline: Duration) -> Result<String> {
        wait_for(&format!("{words:?} among {}", self.what), deadline, || {
            let seen = self.seen();
            let found = seen.iter().find(|line| words.iter().all(|word| line.contains(word)));
            Ok(found.map_or_else(|| Seen::NotYet(format!("{seen:?}")), |line| Seen::Yes(line.clone())))
        })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // tcpdump may have ended already, together with its namespace.
        let _ended = self.tcpdump.kill();
        let _reaped = self.tcpdump.wait();
    }
}

/// Packets by source address. They reveal a translated address, or a packet that passed twice.
pub(crate) struct Senders(pub Capture);

impl Senders {
    /// Captures echo requests on all links.
    pub(crate) fn of_requests(ns: &Namespace) -> Result<Senders> {
        Ok(Senders(Capture::start(ns, "any", "icmp[icmptype]=icmp-echo or icmp6[icmp6type]=icmp6-echo")?))
    }

    /// Sources of packets to an address.
    pub(crate) fn to(&self, to: IpAddr) -> BTreeSet<IpAddr> {
        let sender = |line: &String| {
            let (from, rest) = line.rsplit_once(" > ")?;
            let (destination, _) = rest.split_once(": ")?;
            (destination == to.to_string()).then(|| from.rsplit(' ').next()?.parse().ok())?
        };
        self.0.seen().iter().filter_map(sender).collect()
    }

    /// Waits until the capture shows packets from these sources to an address. It may show a packet
    /// a little after the packet's answer.
    pub(crate) fn wait(&self, to: IpAddr, from: &BTreeSet<IpAddr>, deadline: Duration) -> Result<()> {
        wait_for(&format!("requests to {to}"), deadline, || {
            let seen = self.to(to);
            let missing: Vec<&IpAddr> = from.difference(&seen).collect();
            Ok(Seen::when(missing.is_empty(), || format!("none from {missing:?}, but from {seen:?}")))
        })
    }

    /// Waits until this source has sent to an address. Fails if any other source has sent to it.
    pub(crate) fn only(&self, to: IpAddr, from: IpAddr, deadline: Duration) -> Result<()> {
        wait_for(&format!("a request to {to}"), deadline, || {
            Ok(Seen::when(!self.to(to).is_empty(), || format!("{:?}", self.0.seen())))
        })?;
        let seen = self.to(to);
        ensure!(seen == BTreeSet::from([from]), "packets to {to} came from {seen:?} instead of {from}");
        Ok(())
    }
}
