//! What passes an interface, as tcpdump prints it, from a moment on that is certain.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::netns::Namespace;
use crate::shell::{Seen, cmd, wait_for};

/// Ends when it is dropped.
pub(crate) struct Capture {
    tcpdump: Child,
    lines: Arc<Mutex<Vec<String>>>,
    what: String,
}

impl Capture {
    /// Returns once everything that passes is seen. The filter is tcpdump's; each packet is a line that begins with
    /// both MAC addresses.
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
                // tcpdump's ring has places for whole packets of 256 KiB: eight on `any`, and more that come at once are lost. What
                // a line says stands in the first octets.
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
        // What it says at its end has to go somewhere.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Ok(capture)
    }

    /// What passed until now.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a packet whose line has all of these words.
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
        // It may have ended with its namespace.
        let _ended = self.tcpdump.kill();
        let _reaped = self.tcpdump.wait();
    }
}
