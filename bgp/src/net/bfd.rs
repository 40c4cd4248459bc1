//! Sockets and clock of BFD: a separate thread around [`Endpoint`].
//!
//! ```text
//!  owner task ──Command, a wake-up octet──► thread "bfd" ──Report──► owner task
//!                                            │  ▲
//!                 one socket per session ◄───┘  └─── up to four sockets: 3784, 4784; IPv4, IPv6
//! ```
//!
//! BFD has a thread and not a task, because a session at 10 ms × 3 fails after a delay of 30 ms. A
//! large table can keep the runtime's workers busy for longer. The thread raises its priority if
//! the process may do that (CAP_SYS_NICE). If the pods of a node use every core, an ordinary thread
//! waits for the processor. The peer would then treat the path as dead. The thread works a few
//! microseconds per packet and sleeps otherwise. It takes no lock that an ordinary thread may hold
//! while it waits for a processor. The heap has such a lock. So while no session changes, the
//! thread allocates nothing and grows no buffer. (A vector that grew by one `realloc` in each round
//! broke sessions at 10 ms, and on a busy node some at 50 ms.)
//!
//! A late thread does not count as the peer's silence. The kernel timestamps each packet, the
//! thread empties the sockets before it checks a timer, and detection uses the timestamps. Sends
//! have absolute deadlines.
//!
//! A filter in each receiving socket drops packets of no session (see `filter`): a flood does not
//! wake the thread. The endpoint checks the remaining packets again, and the thread counts refused
//! packets by reason.
//!
//! A socket is opened when the first session needs it. Opening may fail: the port is in use, or the
//! interface or the local address does not exist yet. The thread then tries again with each packet
//! that is due (once a second), and logs the failure once.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, OnceLock};

use socket2::Socket;
use tokio::sync::mpsc;
use tracing::warn;

use self::sockets::PORTS;
use self::thread::Thread;
use super::sockopt::datagram;
use crate::bfd::{Down, HostLink, Reason, Status, Target};
use crate::types::PeerId;

mod filter;
mod sockets;
mod thread;

/// The maximum number of reports queued for the owner; further reports are merged until there is
/// room.
const REPORTS: usize = 64;

/// Packet counters of a session.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
}

/// A request of the owner.
enum Command {
    Set(PeerId, Target, Arc<Counters>),
    Remove(PeerId),
    Links(Vec<HostLink>),
}

/// A change of a session.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) peer: PeerId,
    /// The remote address of the session, because the peer may have been replaced since.
    pub(super) remote: IpAddr,
    pub(super) down: Option<Down>,
    pub(super) status: Status,
}

/// Counters of all sessions together. The thread writes without a lock, and a reader does not wake
/// the thread.
#[derive(Default)]
struct RejectionCounters {
    by_reason: [AtomicU64; Reason::ALL.len()],
    /// Copies of the receiving sockets, from which the kernel's counters of drops are read.
    sockets: [OnceLock<Socket>; PORTS],
}

/// The owner's end. The thread starts with the first session, and ends when this is dropped.
pub(super) struct Bfd {
    reports: mpsc::Sender<Report>,
    thread: Option<(std_mpsc::Sender<Command>, UnixStream)>,
    counters: BTreeMap<PeerId, Arc<Counters>>,
    host: Option<Vec<HostLink>>,
    refused: Arc<RejectionCounters>,
    /// For each receiving socket: the kernel's counter (32 bits) at the last reading, and the sum.
    dropped: [(u32, u64); PORTS],
}

impl Bfd {
    pub(super) fn new() -> (Bfd, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS);
        let bfd = Bfd {
            reports,
            thread: None,
            counters: BTreeMap::new(),
            host: None,
            refused: Arc::default(),
            dropped: [(0, 0); PORTS],
        };
        (bfd, receiver)
    }

    /// Starts a session or changes it.
    pub(super) fn set(&mut self, peer: PeerId, target: Target) {
        let counters = Arc::clone(self.counters.entry(peer).or_default());
        if self.thread.is_none() {
            match start(self.reports.clone(), self.host.clone(), Arc::clone(&self.refused)) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => return warn!(%error, "BFD cannot be started: its sessions stay Down"),
            }
        }
        self.command(Command::Set(peer, target, counters));
    }

    /// Ends a session with AdminDown.
    pub(super) fn remove(&mut self, peer: PeerId) {
        self.counters.remove(&peer);
        self.command(Command::Remove(peer));
    }

    /// Sets the host's links.
    pub(super) fn set_links(&mut self, links: Vec<HostLink>) {
        if self.host.as_ref() != Some(&links) {
            self.host = Some(links.clone());
            self.command(Command::Links(links));
        }
    }

    /// Rejected packets, by reason.
    pub(super) fn refused(&mut self) -> Vec<(&'static str, u64)> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let reasons = Reason::ALL.iter().map(|reason| reason.label());
        let mut refused: Vec<_> = reasons.zip(self.refused.by_reason.iter().map(count)).collect();
        for (socket, (last, sum)) in self.refused.sockets.iter().zip(&mut self.dropped) {
            if let Some(drops) = socket.get().and_then(|socket| datagram::drops(socket).ok()) {
                *sum += u64::from(drops.wrapping_sub(*last));
                *last = drops;
            }
        }
        refused.push(("socket", self.dropped.iter().map(|(_, sum)| sum).sum()));
        refused
    }

    /// Packets received and sent.
    pub(super) fn packets(&self, peer: PeerId) -> (u64, u64) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.counters.get(&peer).map_or((0, 0), |counters| (count(&counters.received), count(&counters.sent)))
    }

    fn command(&mut self, command: Command) {
        let Some((commands, wake)) = &mut self.thread else { return };
        // The write fails only if the thread has ended, and the thread ends only after this object.
        // A full pipe also wakes the thread.
        let _ = commands.send(command);
        let _ = wake.write(&[0]);
    }
}

fn start(
    reports: mpsc::Sender<Report>,
    host: Option<Vec<HostLink>>,
    refused: Arc<RejectionCounters>,
) -> io::Result<(std_mpsc::Sender<Command>, UnixStream)> {
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let (commands, inbox) = std_mpsc::channel();
    let work = move || Thread::new(inbox, woken, reports, host, refused).run();
    std::thread::Builder::new().name("bfd".to_owned()).spawn(work)?;
    Ok((commands, wake))
}
