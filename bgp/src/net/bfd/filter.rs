//! The filter of a receiving socket, in classic BPF.
//!
//! A dropped packet wakes no thread and fills no buffer. A pod that floods the port uses its own
//! processor time, not the real-time thread's. For a single hop the filter checks the TTL (255). On
//! the single-hop and the multihop port it checks the source address and the interface. The
//! endpoint repeats these checks.
//!
//! The kernel replaces the filter of a socket in one step: no packet meets a socket without a
//! filter. The filter changes when a session starts, when a session ends, and when the links of a
//! session change.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use socket2::{SockFilter, Socket};

use super::sockets::Port;
use crate::bfd::Links;

/// The network header (`SKF_NET_OFF`); the packet's own data begins at the UDP header.
const NETWORK: u32 = (-0x10_0000_i32) as u32;
/// The index of the interface (`SKF_AD_OFF + SKF_AD_IFINDEX`).
const INTERFACE: u32 = (-0x1000_i32 + 8) as u32;

/// The longest program, in instructions. The kernel accepts 4,096, but charges the translated
/// program against `net.core.optmem_max`.
const LONGEST: usize = 1024;
/// The maximum number of links of one session in the exact filter, because a jump reaches only 255
/// instructions.
const MOST_LINKS: usize = 64;

/// Attaches the filter for these sessions. If the program is too long for the kernel, a coarser
/// filter checks the links alone.
///
/// # Errors
/// If the kernel accepts neither filter. The socket then has no filter, and the endpoint alone
/// decides.
pub(super) fn attach(socket: &Socket, port: Port, sessions: &[(IpAddr, &Links)]) -> io::Result<()> {
    let exact = exact(port, sessions);
    if exact.len() <= LONGEST && socket.attach_filter(&exact).is_ok() {
        return Ok(());
    }
    socket.attach_filter(&coarse(port, sessions)).inspect_err(|_| {
        // The previous filter is removed, because it does not contain the newest session.
        let _ = socket.detach_filter();
    })
}

/// The filter by addresses and links. A session with a matching address does not end the search:
/// two link-local peers on two links may have the same address.
fn exact(port: Port, sessions: &[(IpAddr, &Links)]) -> Vec<SockFilter> {
    let (ipv6, _) = port;
    let mut program = begin(port);
    for (remote, links) in sessions {
        let on_link = on_link(links);
        let (offset, words): (u32, Vec<u32>) = match remote {
            IpAddr::V4(v4) => (12, vec![u32::from(*v4)]),
            IpAddr::V6(v6) => (8, v6.octets().chunks(4).map(word).collect()),
        };
        debug_assert_eq!(ipv6, remote.is_ipv6());
        let mut left = words.len();
        for (offset, word) in (offset..).step_by(4).zip(words) {
            left -= 1;
            program.push(load_word(NETWORK.wrapping_add(offset)));
            program.push(unless(word, 2 * left + on_link.len()));
        }
        program.extend(on_link);
    }
    program.push(DROP);
    program
}

/// The filter by links alone.
fn coarse(port: Port, sessions: &[(IpAddr, &Links)]) -> Vec<SockFilter> {
    let mut program = begin(port);
    let mut all = BTreeSet::new();
    let mut any = false;
    for (_, links) in sessions {
        match links {
            Links::Only(indices) => all.extend(indices.iter().copied()),
            Links::Any => any = true,
        }
    }
    let all = if any { Links::Any } else { Links::Only(all.into_iter().collect()) };
    program.extend(on_link(&all));
    program.push(DROP);
    program
}

/// The check of the TTL for a single hop (RFC 5881 §5).
fn begin((ipv6, multihop): Port) -> Vec<SockFilter> {
    // TTL and hop limit.
    let offset = if ipv6 { 7 } else { 8 };
    match multihop {
        true => Vec::new(),
        false => vec![load_octet(NETWORK + offset), when(255, 1), DROP],
    }
}

/// Keeps a packet that arrived on one of the links; otherwise the program continues after this
/// part.
fn on_link(links: &Links) -> Vec<SockFilter> {
    match links {
        Links::Only(indices) if indices.len() <= MOST_LINKS => {
            let mut part = vec![load_word(INTERFACE)];
            for index in indices {
                part.extend([unless(*index, 1), KEEP]);
            }
            part
        }
        Links::Only(_) | Links::Any => vec![KEEP],
    }
}

fn word(octets: &[u8]) -> u32 {
    octets.iter().fold(0, |word, octet| word << 8 | u32::from(*octet))
}

const KEEP: SockFilter = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX);
const DROP: SockFilter = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);

fn load_word(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, offset)
}

fn load_octet(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, offset)
}

/// Skips this many instructions if the loaded value is equal.
fn when(value: u32, skipped: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, skipped, 0, value)
}

/// Skips this many instructions if the loaded value differs.
fn unless(value: u32, skipped: usize) -> SockFilter {
    // Three words of an address and 64 links are 135 instructions.
    debug_assert!(skipped <= usize::from(u8::MAX));
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, skipped as u8, value)
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::sync::atomic::{AtomicU32, Ordering};

    use socket2::{Domain, Type};

    use super::*;
    use crate::net::sockopt;
    use crate::net::sockopt::datagram;

    fn links(indices: &[u32]) -> Links {
        Links::Only(indices.iter().copied().collect())
    }

    /// A socket on every address of a family, like BFD's sockets, on a port that the kernel
    /// chooses.
    fn receiver(ipv6: bool) -> (Socket, u16) {
        let (domain, any) = if ipv6 { (Domain::IPV6, "[::]:0") } else { (Domain::IPV4, "0.0.0.0:0") };
        let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&any.parse::<SocketAddr>().unwrap().into()).unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        (socket, port)
    }

    /// Whether a packet from this address, with this TTL, through `lo`, passes the filter of these
    /// sessions.
    fn passes(port: Port, sessions: &[(IpAddr, &Links)], from: IpAddr, ttl: u8) -> bool {
        let (socket, to) = receiver(port.0);
        let sender = UdpSocket::bind(SocketAddr::new(from, 0)).unwrap();
        sockopt::set_ttl(&sender, from, Some(ttl)).unwrap();
        attach(&socket, port, sessions).unwrap();
        let before = datagram::drops(&socket).unwrap();
        // On `lo` a packet is in the socket, or dropped, when `send_to` returns.
        sender
            .send_to(b"packet", SocketAddr::new(if port.0 { from } else { [127, 0, 0, 1].into() }, to))
            .unwrap();
        let got = datagram::receive(&socket, &mut [0; 64]).is_ok();
        let dropped = datagram::drops(&socket).unwrap() - before;
        assert_eq!(dropped, u32::from(!got), "the kernel counts the dropped packets");
        got
    }

    #[test]
    fn only_the_peer_on_its_link_passes() {
        let (lo, other) = (links(&[9, 1]), links(&[9, 8]));
        let (peer, far): (IpAddr, IpAddr) = ([127, 0, 0, 7].into(), [127, 0, 0, 8].into());
        let one_hop = (false, false);
        let sessions: &[(IpAddr, &Links)] = &[(far, &other), (peer, &lo)];
        assert!(passes(one_hop, sessions, peer, 255));
        assert!(!passes(one_hop, sessions, peer, 254), "TTL");
        assert!(!passes(one_hop, sessions, far, 255), "link");
        assert!(!passes(one_hop, sessions, [127, 0, 0, 9].into(), 255), "address");
        assert!(!passes(one_hop, &[], peer, 255), "no session");
        assert!(passes(one_hop, &[(peer, &other), (peer, &lo)], peer, 255), "one address on two links");
        assert!(passes(one_hop, &[(peer, &Links::Any)], peer, 255));
        let multihop = (false, true);
        assert!(passes(multihop, sessions, peer, 61), "any TTL");
        assert!(!passes(multihop, sessions, far, 61), "link");
        assert!(!passes(multihop, sessions, [127, 0, 0, 9].into(), 61), "address");
    }

    #[test]
    fn only_the_peer_on_its_link_passes_ipv6() {
        if UdpSocket::bind("[::1]:0").is_err() {
            return;
        }
        let (lo, other) = (links(&[1]), links(&[2]));
        let own: IpAddr = "::1".parse().unwrap();
        let [first, last]: [IpAddr; 2] = ["2001::1", "::2"].map(|text| text.parse().unwrap());
        let one_hop = (true, false);
        assert!(passes(one_hop, &[(first, &lo), (last, &lo), (own, &lo)], own, 255));
        assert!(!passes(one_hop, &[(own, &lo)], own, 254), "hop limit");
        assert!(!passes(one_hop, &[(own, &other)], own, 255), "link");
        assert!(!passes(one_hop, &[(first, &lo), (last, &lo)], own, 255), "address");
        assert!(passes((true, true), &[(own, &lo)], own, 3), "any hop limit");
    }

    #[test]
    fn many_sessions_or_links_get_a_coarser_filter() {
        let (lo, other) = (links(&[1]), links(&[2]));
        let peer: IpAddr = [127, 0, 0, 7].into();
        let stranger: IpAddr = [127, 0, 0, 8].into();
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + number));
        let many = |links| (0..2000).map(|number| (address(number), links)).collect::<Vec<_>>();
        let one_hop = (false, false);
        assert!(passes(one_hop, &many(&lo), stranger, 255), "by its link");
        assert!(!passes(one_hop, &many(&lo), stranger, 254), "TTL");
        assert!(!passes(one_hop, &many(&other), stranger, 255), "link");
        let mut mixed = many(&other);
        mixed.push((peer, &Links::Any));
        assert!(passes(one_hop, &mixed, peer, 255), "one session accepts any link");
        let wide: Vec<u32> = (2..=2 + MOST_LINKS as u32).collect();
        assert!(passes(one_hop, &[(peer, &links(&wide))], peer, 255), "too many links for the exact filter");
        assert!(!passes(one_hop, &[(peer, &links(&wide))], stranger, 255), "address");
        // The longest jump.
        let wide: Vec<u32> = (2..1 + MOST_LINKS as u32).chain([1]).collect();
        let last: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(wide.len(), MOST_LINKS);
        assert!(passes(one_hop, &[(peer, &links(&wide))], peer, 255));
        if UdpSocket::bind("[::1]:0").is_ok() {
            let own: IpAddr = "::1".parse().unwrap();
            assert!(passes((true, false), &[(last, &links(&wide)), (own, &lo)], own, 255));
        }
    }

    #[test]
    fn replacing_a_filter_drops_no_packet_of_a_session() {
        let peer: IpAddr = [127, 0, 0, 7].into();
        let (socket, to) = receiver(false);
        let sender = UdpSocket::bind(SocketAddr::new(peer, 0)).unwrap();
        sockopt::set_ttl(&sender, peer, Some(255)).unwrap();
        let lo = links(&[1]);
        attach(&socket, (false, false), &[(peer, &lo)]).unwrap();
        let received = AtomicU32::new(0);
        let mut replaced = 0_u32;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..5000_u32 {
                    // The socket's buffer has room for 64 packets in any case.
                    while number - received.load(Ordering::Relaxed) > 64 {
                        std::thread::yield_now();
                    }
                    sender.send_to(&number.to_be_bytes(), ("127.0.0.1", to)).unwrap();
                }
            });
            let mut buffer = [0; 8];
            while received.load(Ordering::Relaxed) < 5000 && datagram::drops(&socket).unwrap() == 0 {
                let other = IpAddr::from(std::net::Ipv4Addr::from(replaced));
                attach(&socket, (false, false), &[(other, &lo), (peer, &lo)]).unwrap();
                replaced += 1;
                while datagram::receive(&socket, &mut buffer).is_ok() {
                    received.fetch_add(1, Ordering::Relaxed);
                }
            }
            received.fetch_max(5000, Ordering::Relaxed);
        });
        assert_eq!(datagram::drops(&socket).unwrap(), 0, "{replaced} times replaced");
        assert!(replaced > 50, "{replaced} times replaced");
    }
}
