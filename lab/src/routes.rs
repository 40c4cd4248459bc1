//! A route monitor: watches a namespace's routing table and records when each prefix was added and
//! removed, to the microsecond and without polling. With the monitor the lab detects a pod's route
//! on a ToR or a spine.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::netns::Namespace;

/// Changes of which each time is kept; more only count.
const RECORDED: usize = 10_000;

const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_ROUTE: u32 = 11;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTN_UNICAST: u8 = 1;
const RTA_DST: u16 = 1;

/// A route change reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub prefix: IpNet,
    pub added: bool,
}

#[derive(Debug, Default)]
struct Seen {
    /// The last change of each prefix, and the time at which it was read.
    last: HashMap<IpNet, (Instant, bool)>,
    ever_removed: HashSet<IpNet>,
    /// The first [`RECORDED`] changes.
    first: Vec<(Instant, IpNet)>,
    added: u64,
    removed: u64,
    /// The time at which the newest change was read.
    newest: Option<Instant>,
    /// The kernel dropped messages that were not read fast enough: the counts are no longer
    /// reliable.
    overrun: bool,
}

/// A monitor that watches from [`RouteMonitor::start`] until it is dropped.
pub(crate) struct RouteMonitor {
    name: String,
    shared: Arc<(Mutex<Seen>, Condvar)>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RouteMonitor {
    /// Watches this namespace. The monitor records every change after this function returns.
    pub(crate) fn start(ns: &Namespace) -> Result<Self> {
        let shared = Arc::new((Mutex::new(Seen::default()), Condvar::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let thread = {
            let (ns, shared, stop) = (ns.clone(), Arc::clone(&shared), Arc::clone(&stop));
            std::thread::spawn(move || match open(&ns) {
                Ok(socket) => {
                    let _waiting = ready.send(Ok(()));
                    listen(&socket, &shared, &stop);
                }
                Err(e) => {
                    let _waiting = ready.send(Err(e));
                }
            })
        };
        is_ready.recv().context("the route monitor's thread ended")??;
        Ok(Self { name: ns.name().to_owned(), shared, stop, thread: Some(thread) })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the last change of each prefix is its addition (or removal); returns the time of
    /// each.
    pub(crate) fn wait(&self, prefixes: &[IpNet], added: bool, deadline: Duration) -> Result<Vec<Instant>> {
        let end = Instant::now() + deadline;
        let mut seen = self.seen();
        loop {
            crate::interrupt::check()?;
            let is = |p: &IpNet| seen.last.get(p).filter(|(_, a)| *a == added).map(|(at, _)| *at);
            let there: Vec<Instant> = prefixes.iter().filter_map(is).collect();
            if there.len() == prefixes.len() {
                return Ok(there);
            }
            if Instant::now() > end {
                let missing: Vec<String> =
                    prefixes.iter().filter(|p| is(p).is_none()).map(ToString::to_string).collect();
                bail!(
                    "{}: waited {:.1} s for routes to {}: {}",
                    self.name,
                    deadline.as_secs_f64(),
                    if added { "appear" } else { "vanish" },
                    crate::pinger::some(&missing)
                );
            }
            let pause = Duration::from_millis(100);
            seen = self.shared.1.wait_timeout(seen, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until a prefix was added or changed after a time; returns the time of its last change.
    pub(crate) fn wait_after(&self, prefix: IpNet, since: Instant, deadline: Duration) -> Result<Instant> {
        let end = Instant::now() + deadline;
        let mut seen = self.seen();
        loop {
            crate::interrupt::check()?;
            let last = seen.last.get(&prefix).filter(|(at, added)| *added && *at > since);
            if let Some((at, _)) = last {
                return Ok(*at);
            }
            if Instant::now() > end {
                bail!("{}: no change of the route to {prefix} in {deadline:?}", self.name);
            }
            let pause = Duration::from_millis(100);
            seen = self.shared.1.wait_timeout(seen, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until this number of routes was added since the start; returns the time of the newest
    /// change.
    pub(crate) fn wait_count(&self, added: u64, deadline: Duration) -> Result<Instant> {
        self.wait_changes("added", |seen| seen.added, added, deadline)
    }

    /// Waits until this number of routes was removed since the start; returns the time of the
    /// newest change.
    pub(crate) fn wait_removed(&self, removed: u64, deadline: Duration) -> Result<Instant> {
        self.wait_changes("removed", |seen| seen.removed, removed, deadline)
    }

    fn wait_changes(
        &self,
        what: &str,
        count: fn(&Seen) -> u64,
        wanted: u64,
        deadline: Duration,
    ) -> Result<Instant> {
        let end = Instant::now() + deadline;
        let mut seen = self.seen();
        loop {
            crate::interrupt::check()?;
            if seen.overrun {
                bail!("{}: the kernel dropped route messages; the count is not reliable", self.name);
            }
            if let Some(at) = seen.newest.filter(|_| count(&seen) >= wanted) {
                return Ok(at);
            }
            if Instant::now() > end {
                let (there, waited) = (count(&seen), deadline.as_secs_f64());
                bail!("{}: {there} of {wanted} routes {what} after {waited:.1} s", self.name);
            }
            let pause = Duration::from_millis(100);
            seen = self.shared.1.wait_timeout(seen, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The prefixes among these that were removed at any time since the start, even if they were
    /// added again.
    pub(crate) fn removed(&self, prefixes: &[IpNet]) -> Vec<IpNet> {
        let seen = self.seen();
        prefixes.iter().filter(|p| seen.ever_removed.contains(*p)).copied().collect()
    }

    /// The times at which a prefix was added, changed or removed, among the first 10,000 changes.
    pub(crate) fn times(&self, prefix: &IpNet) -> Vec<Instant> {
        let seen = self.seen();
        seen.first.iter().filter(|(_, changed)| changed == prefix).map(|(at, _)| *at).collect()
    }
}

impl Drop for RouteMonitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

fn open(ns: &Namespace) -> Result<Socket> {
    ns.enter()?;
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    // The buffer must be large, because a table of 100,000 routes arrives in a second. Root may
    // exceed rmem_max.
    socket2::SockRef::from(&socket).set_recv_buffer_size(64 << 20)?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20)?;
    socket.add_membership(RTNLGRP_IPV4_ROUTE)?;
    socket.add_membership(RTNLGRP_IPV6_ROUTE)?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

fn listen(socket: &Socket, shared: &(Mutex<Seen>, Condvar), stop: &AtomicBool) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut buffer = vec![0_u8; 1 << 16];
    while !stop.load(Ordering::SeqCst) {
        let _timed_out = poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)], Some(&timeout));
        loop {
            let length = match socket.recv(&mut &mut buffer[..], 0) {
                Ok(length) => length,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    shared.0.lock().unwrap_or_else(PoisonError::into_inner).overrun = true;
                    break;
                }
            };
            let now = Instant::now();
            let mut seen = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            for change in changes(&buffer[..length]) {
                if seen.first.len() < RECORDED {
                    seen.first.push((now, change.prefix));
                }
                seen.last.insert(change.prefix, (now, change.added));
                seen.newest = Some(now);
                if change.added {
                    seen.added += 1;
                } else {
                    seen.removed += 1;
                    seen.ever_removed.insert(change.prefix);
                }
            }
            drop(seen);
            shared.1.notify_all();
        }
    }
}

/// The unicast routes in a datagram of netlink messages. The messages are in host byte order.
fn changes(mut data: &[u8]) -> Vec<Change> {
    let mut found = Vec::new();
    while let Some(length) = u32_at(data, 0) {
        let length = length as usize;
        let Some(message) = data.get(..length).filter(|_| length >= 16) else { break };
        if let Some(change) = change(message) {
            found.push(change);
        }
        data = data.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// nlmsghdr (16 octets), rtmsg (12), then attributes.
fn change(message: &[u8]) -> Option<Change> {
    let kind = u16_at(message, 4)?;
    if kind != RTM_NEWROUTE && kind != RTM_DELROUTE {
        return None;
    }
    let rtmsg = message.get(16..28)?;
    let (family, length, route_type) = (rtmsg[0], rtmsg[1], rtmsg[7]);
    if route_type != RTN_UNICAST {
        return None;
    }
    let mut attributes = &message[28..];
    let mut destination = None;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        let Some(value) = attributes.get(4..length) else { break };
        if kind == RTA_DST {
            destination = Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    // A default route has no destination.
    let address: IpAddr = match (family, destination) {
        (2, Some(value)) => <[u8; 4]>::try_from(value).ok()?.into(),
        (10, Some(value)) => <[u8; 16]>::try_from(value).ok()?.into(),
        (2, None) => [0_u8; 4].into(),
        (10, None) => [0_u8; 16].into(),
        _ => return None,
    };
    Some(Change { prefix: IpNet::new(address, length).ok()?, added: kind == RTM_NEWROUTE })
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, family: u8, length: u8, destination: &[u8]) -> Vec<u8> {
        let mut attributes = Vec::new();
        attributes.extend(8_u16.to_ne_bytes());
        attributes.extend(15_u16.to_ne_bytes()); // RTA_TABLE
        attributes.extend(254_u32.to_ne_bytes());
        attributes.extend(u16::try_from(4 + destination.len()).expect("short").to_ne_bytes());
        attributes.extend(RTA_DST.to_ne_bytes());
        attributes.extend(destination);
        let mut m = u32::try_from(28 + attributes.len()).expect("short").to_ne_bytes().to_vec();
        m.extend(kind.to_ne_bytes());
        m.extend([0; 10]);
        m.extend([family, length, 0, 0, 254, 116, 0, RTN_UNICAST, 0, 0, 0, 0]);
        m.extend(attributes);
        m
    }

    #[test]
    fn routes_are_read_from_a_datagram_with_several_messages() {
        let mut data = message(RTM_NEWROUTE, 2, 32, &[10, 200, 11, 1]);
        data.extend(message(20, 2, 32, &[10, 0, 0, 1])); // an address, not a route
        data.extend(message(
            RTM_DELROUTE,
            10,
            128,
            &"fd00::1".parse::<std::net::Ipv6Addr>().expect("v6").octets(),
        ));
        let prefix = |p: &str| p.parse().expect("a prefix");
        assert_eq!(
            changes(&data),
            [
                Change { prefix: prefix("10.200.11.1/32"), added: true },
                Change { prefix: prefix("fd00::1/128"), added: false },
            ]
        );
    }

    #[test]
    fn an_incomplete_message_is_not_read() {
        let data = message(RTM_NEWROUTE, 2, 32, &[10, 200, 11, 1]);
        for cut in 0..data.len() {
            assert!(changes(&data[..cut]).is_empty());
        }
    }
}
