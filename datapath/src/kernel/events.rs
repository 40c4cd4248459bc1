//! Notifications about changes of links, qdiscs, addresses, routes, rules and nftables by other
//! programs.
//!
//! A notification is a hint. It names one object, and the owner checks this object. If the kernel
//! dropped notifications (ENOBUFS), the owner scans. Filters prevent a busy host from waking the
//! agent. They are socket filters in the kernel, so dropped notifications do not fill the buffer.
//! They drop:
//!
//! - notifications caused by the owner's own requests: 100,000 learned routes cause 100,000
//!   notifications;
//! - routes of other programs (a routing daemon's full table), except replacements, which may
//!   replace a Trunkline route, and default routes, because the default route's link carries the
//!   VLANs. If the configuration selects a link by the route to an address, all routes pass;
//! - neighbour entries of other programs, except deletions, which may be of a Trunkline entry, and
//!   FDB entries;
//! - nftables' rules and elements of other programs: kube-proxy in mode iptables rewrites a rule for
//!   each port of each Service at every change.

use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use socket2::{SockFilter, SockRef};

use crate::bpf;
use crate::netlink::events::{Events, NFTABLES};
use crate::netlink::objects::PROTOCOL;
use crate::nft;

const GROUPS: [u32; 10] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_RULE,
    libc::RTNLGRP_TC,
    libc::RTNLGRP_IPV4_NETCONF,
];

/// Size of the receive buffers in octets.
const RECEIVE_BUFFER: usize = 8 << 20;

impl Events {
    /// Listens in the calling thread's network namespace. Notifications caused by `own_port` are
    /// dropped. `all_routes`: notifications about routes of other programs pass.
    pub(super) fn open(own_port: u32, all_routes: bool) -> io::Result<Events> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        SockRef::from(&socket).attach_filter(&filter(own_port, all_routes))?;
        Events::listen(socket, &GROUPS, RECEIVE_BUFFER)
    }

    /// Replaces the filter: whether notifications about routes of other programs pass.
    pub(super) fn filter_routes(&self, own_port: u32, all_routes: bool) -> io::Result<()> {
        self.attach(&filter(own_port, all_routes))
    }

    /// Listens for changes of the agent's nftables tables, and for new chains of all programs.
    /// Notifications caused by `own_ports` are dropped.
    pub(super) fn open_nftables(own_ports: [u32; 2]) -> io::Result<Events> {
        let socket = Socket::new(NETLINK_NETFILTER)?;
        SockRef::from(&socket).attach_filter(&nftables_filter(own_ports))?;
        Events::listen(socket, &[NFTABLES], RECEIVE_BUFFER)
    }
}

/// The socket filter, in classic BPF. Offsets are in `nlmsghdr` (type 4, flags 6, port 12), in
/// `rtmsg` (destination length 16 + 1, protocol 16 + 5), and in `ndmsg` (family 16). BPF loads in
/// network byte order, so constants in host byte order are swapped here.
fn filter(own_port: u32, all_routes: bool) -> [SockFilter; 16] {
    let half = |value: u16| u32::from(value.to_be());
    [
        bpf::load_word(12),
        bpf::equal(own_port.to_be(), 13, 0), // own request: drop
        bpf::load_half(4),
        bpf::equal(half(libc::RTM_DELROUTE), 3, 0), // jump to the destination length
        bpf::equal(half(libc::RTM_NEWROUTE), 0, 6), // not a route: jump to the neighbours
        bpf::load_half(6),
        bpf::any_bit(half(libc::NLM_F_REPLACE as u16), 7, 0),
        bpf::load_octet(17),
        bpf::equal(0, 5, 0), // a default route: keep
        bpf::load_octet(21),
        bpf::equal(u32::from(PROTOCOL), 3, if all_routes { 3 } else { 4 }),
        bpf::equal(half(libc::RTM_NEWNEIGH), 0, 2), // not a new or changed neighbour: keep
        bpf::load_octet(16),
        bpf::equal(libc::AF_BRIDGE as u32, 0, 1),
        bpf::KEEP,
        bpf::DROP,
    ]
}

/// The filter for nftables: it keeps a datagram with a message about a table whose name begins like
/// those of the agent, or about a new chain. A datagram has up to 4 KiB of messages of one
/// transaction, so the filter follows the messages' lengths. Classic BPF has no loops: the steps
/// repeat. Offsets are in `nlmsghdr` (length 0, type 4, port 12); after `nfgenmsg`, the first
/// attribute is the table's name (value at 24).
fn nftables_filter([guard, policies]: [u32; 2]) -> Vec<SockFilter> {
    /// More messages than a datagram has.
    const MESSAGES: usize = 96;
    const NAME: [u8; 4] = *b"trun";
    /// Cells of the scratch memory.
    const OFFSET: u32 = 0;
    const LENGTH: u32 = 1;
    // The lower octets of a length; a datagram is shorter than 64 KiB.
    let [low, high] = if cfg!(target_endian = "little") { [0, 1] } else { [3, 2] };
    let new_chain = u32::from(nft::NEW_CHAIN.to_be());
    let message = || {
        [
            bpf::load_half_at_index(4),
            bpf::equal(new_chain, 2, 0), // jump to KEEP
            bpf::load_word_at_index(24),
            bpf::equal(u32::from_be_bytes(NAME), 0, 1),
            bpf::KEEP,
            bpf::store_index(OFFSET),
            bpf::load_octet_at_index(high),
            bpf::shift_left(8),
            bpf::store(LENGTH),
            bpf::load_octet_at_index(low),
            bpf::restore_index(LENGTH),
            bpf::OR_INDEX,
            bpf::add(3),
            bpf::mask(!3),
            bpf::restore_index(OFFSET),
            bpf::ADD_INDEX,
            bpf::INDEX_IS_VALUE, // the next message; beyond the end, its load drops the datagram
        ]
    };
    // All messages of a datagram belong to one transaction, so they have one port.
    let mut filter = vec![
        bpf::load_word(12),
        bpf::equal(guard.to_be(), 1, 0), // jump to DROP
        bpf::equal(policies.to_be(), 0, 1),
        bpf::DROP,
        bpf::set_index(0),
    ];
    (0..MESSAGES).for_each(|_| filter.extend(message()));
    filter.push(bpf::KEEP);
    filter
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// A message about a table.
    fn message(kind: u16, port: u32, table: &str, rest: usize) -> Vec<u8> {
        let name = [table.as_bytes(), &[0]].concat();
        let attribute = [&(4 + name.len() as u16).to_ne_bytes()[..], &1_u16.to_ne_bytes(), &name].concat();
        let mut body = [vec![2, 0, 0, 7], attribute].concat();
        body.resize(body.len().next_multiple_of(4) + rest, 0);
        let header = [16 + body.len() as u32, u32::from(kind), 1, port].map(u32::to_ne_bytes).concat();
        let mut message = [header, body].concat();
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    #[test]
    fn only_own_tables_and_new_chains_pass_the_nftables_filter() {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        SockRef::from(&receiver).attach_filter(&nftables_filter([7, 8])).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let passes = |messages: &[Vec<u8>]| {
            sender.send(&messages.concat()).unwrap();
            receiver.recv(&mut [0; 8192]).is_ok()
        };
        let (rule, chain, generation) = (10 << 8 | 6, nft::NEW_CHAIN, 10 << 8 | 15);
        let foreign = || message(rule, 9, "nat", 400);
        let own = message(rule, 9, "trunkline-guard", 100);
        assert!(passes(std::slice::from_ref(&own)));
        assert!(!passes(&[foreign()]));
        assert!(passes(&[foreign(), foreign(), own.clone()]), "the third message");
        assert!(passes(&[message(rule, 9, "kube-proxy", 3), own]), "lengths are rounded up");
        assert!(!passes(&[message(rule, 7, "trunkline", 40)]), "own request");
        assert!(!passes(&[message(rule, 8, "trunkline-policy", 40)]), "own request");
        assert!(passes(&[message(rule, 9, "trunkline-policy", 40)]));
        assert!(passes(&[message(chain, 9, "nat", 40)]));
        assert!(!passes(&[message(generation, 9, "x", 12)]));
        assert!(!passes(&vec![message(rule, 9, "f", 0); 90]));
        assert!(passes(&[vec![0; 40]]), "an impossible length: the owner decides");
        assert!(!passes(&[vec![1; 3]]));
    }
}
