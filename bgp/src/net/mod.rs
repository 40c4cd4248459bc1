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
mod md5;
mod owner;
mod sockopt;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

pub use self::bmp::{Monitor, MonitorStatus};
pub use self::dump::Dump;
pub use self::error::{CommandError, Stopped};
pub use self::events::{Events, RouteChanges};
pub use self::handle::SpeakerHandle;
pub use self::heap::compact_heap;
pub use self::listener::{ListenFault, ListenStatus};
pub use self::listing::RouteListing;

use self::listener::Listeners;
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

/// Starts a speaker in a task of the current tokio runtime. It listens when this returns, where it can: an address
/// that cannot be bound is tried again, and [`SpeakerHandle::listeners`] says why it is not bound.
///
/// A wildcard address of a family that this kernel lacks is left out with a warning, as long as there is another address.
///
/// # Errors
/// If a field of the configuration is out of range.
///
/// # Panics
/// If called outside a tokio runtime.
pub fn spawn(
    config: SpeakerConfig,
    shell: &ShellConfig,
) -> Result<(SpeakerHandle, Events, RouteChanges), ConfigError> {
    let speaker = Speaker::new(config, now())?;
    let (commands, command_receiver) = mpsc::channel(COMMANDS);
    let (inputs, input_receiver) = mpsc::channel(INPUTS);
    let refused = Arc::new(AtomicU64::new(0));
    let listeners = Listeners::open(&shell.listen, inputs.clone(), Arc::clone(&refused), now());
    let status = listeners.status();
    let (event_sender, events) = events::channel();
    let owner = Owner::new(speaker, listeners, inputs, event_sender, Arc::clone(&refused), shell);
    tokio::spawn(owner.run(command_receiver, input_receiver));
    let handle = SpeakerHandle::new(commands, status, refused);
    let changes = RouteChanges::new(handle.downgrade());
    Ok((handle, events, changes))
}

/// The clock of the shell.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the shell, and the one place in it that reads the clock"
)]
fn now() -> Instant {
    Instant::now()
}
