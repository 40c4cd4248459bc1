//! The shell around [`Speaker`]: sockets, a clock, and an async interface.
//!
//! ```text
//!  SpeakerHandle ──commands──►┌───────────────┐──events──► Events
//!  listener tasks ──inputs───►│ owner task    │
//!  connect tasks ───inputs───►│  the Speaker  │──changes─► RouteChanges (asked for, never pushed)
//!  reader tasks ────inputs───►│  the sockets  │
//!  writer tasks ────inputs───►└───────────────┘──octets──► sockets, writer tasks
//!  BFD thread ──────reports──►                 ──sessions► BFD thread
//! ```
//!
//! One task owns the engine and nobody else touches it, so nothing is locked. Everything that can wait, waits outside:
//! accepting, connecting, reading, and writing to a socket that is full.
//!
//! What bounds memory: commands and inputs come through bounded channels; a reader has two buffers that the owner
//! gives back (`connection`); octets are encoded only when a socket takes them; events that nobody fetches are
//! replaced by newer ones of the same peer ([`Events`]); changed routes stay in the engine, one entry a prefix,
//! until [`RouteChanges::next`] asks. So each of the three ways out (a slow peer, a slow FIB, a slow listener
//! to events) holds back only itself.
//!
//! Time is read here, once a turn, and given to the engine. If every [`SpeakerHandle`] is dropped the speaker stops
//! silently ([`Stop::Silent`]), so that a process that ends in disorder still ends as a graceful restart.
//!
//! [`Stop::Silent`]: crate::speaker::Stop::Silent

mod bfd;
mod bmp;
mod connect;
mod connection;
pub mod discovery;
mod dump;
mod error;
mod events;
mod handle;
mod heap;
mod listener;
mod listing;
mod owner;
mod sockopt;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tracing::warn;

pub use self::bmp::{Monitor, MonitorStatus};
pub use self::dump::Dump;
pub use self::error::{CommandError, ListenError, Stopped};
pub use self::events::{Events, RouteChanges};
pub use self::handle::SpeakerHandle;
pub use self::heap::compact_heap;
pub use self::listing::RouteListing;

use self::listener::{Admission, Listener};
use self::owner::Owner;
use crate::config::{ConfigError, SpeakerConfig};
use crate::speaker::Speaker;

/// Commands that wait for the owner. A caller past this waits for its turn.
const COMMANDS: usize = 1024;

/// Inputs of all listeners and connections that wait for the owner. A connection has at most three of them.
const INPUTS: usize = 256;

/// What the shell has to know beside the speaker's own configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellConfig {
    /// Where peers may connect to. Port 0 is the kernel's choice. Empty: every session is connected from here.
    pub listen: Vec<SocketAddr>,
    /// How long an attempt to connect may take.
    pub connect_timeout: Duration,
}

impl Default for ShellConfig {
    /// Port 179 on every address of both families; 10 s, which is three SYNs, for an attempt.
    fn default() -> Self {
        ShellConfig {
            listen: vec![(Ipv6Addr::UNSPECIFIED, 179).into(), (Ipv4Addr::UNSPECIFIED, 179).into()],
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// Why the speaker could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listening socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Starts a speaker in a task of the current tokio runtime; it listens when this returns.
///
/// A wildcard address of a family that this kernel lacks is left out with a warning, as long as another address
/// is listened on.
///
/// # Panics
/// If called outside a tokio runtime.
pub fn spawn(
    config: SpeakerConfig,
    shell: &ShellConfig,
) -> Result<(SpeakerHandle, Events, RouteChanges), StartError> {
    let speaker = Speaker::new(config, now())?;
    let mut sockets = Vec::new();
    let mut left_out = None;
    for &address in &shell.listen {
        match Listener::bind(address) {
            Ok(socket) => sockets.push((address, socket)),
            Err(error) if is_missing_family(&error) => {
                warn!(%address, "this kernel has no such address family: not listening there");
                left_out = Some(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    if let (true, Some(error)) = (sockets.is_empty(), left_out) {
        return Err(error.into());
    }

    let (commands, command_receiver) = mpsc::channel(COMMANDS);
    let (inputs, input_receiver) = mpsc::channel(INPUTS);
    let (allowed, allowed_receiver) = watch::channel(Arc::new(HashSet::new()));
    let (ranges, ranges_receiver) = watch::channel(Arc::default());
    let refused = Arc::new(AtomicU64::new(0));
    let mut listeners = Vec::new();
    let mut listening = Vec::new();
    for (address, socket) in sockets {
        let address = socket.local_addr().map_err(|source| ListenError { address, source })?;
        listening.push(address);
        listeners.push(Listener::start(
            socket,
            address,
            allowed_receiver.clone(),
            ranges_receiver.clone(),
            inputs.clone(),
            Arc::clone(&refused),
        ));
    }
    let (event_sender, events) = events::channel();
    let owner = Owner::new(
        speaker,
        listeners,
        Admission { peers: allowed, ranges },
        inputs,
        event_sender,
        Arc::clone(&refused),
        shell,
    );
    tokio::spawn(owner.run(command_receiver, input_receiver));
    let handle = SpeakerHandle::new(commands, listening, refused);
    let changes = RouteChanges::new(handle.downgrade());
    Ok((handle, events, changes))
}

fn is_missing_family(error: &ListenError) -> bool {
    let unspecified = match error.address.ip() {
        IpAddr::V4(address) => address.is_unspecified(),
        IpAddr::V6(address) => address.is_unspecified(),
    };
    // A kernel booted with ipv6.disable=1 says the first, one with the sysctl disable_ipv6 may say the second.
    unspecified && matches!(error.source.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

/// The clock of the shell.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the shell, and the one place in it that reads the clock"
)]
fn now() -> Instant {
    Instant::now()
}
