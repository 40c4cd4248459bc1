//! The shell around [`Speaker`]: sockets, a clock, and an async interface.
//!
//! ```text
//!  SpeakerHandle ──commands──►┌───────────────┐──events──► Events
//!  listener tasks ──inputs───►│ owner task    │
//!  connect tasks ───inputs───►│  the Speaker  │──changes─► RouteChanges (requested, never pushed)
//!  reader tasks ────inputs───►│  the sockets  │
//!  writer tasks ────inputs───►└───────────────┘──octets──► sockets, writer tasks
//!  BFD thread ──────reports──►                 ──sessions► BFD thread
//! ```
//!
//! One task owns the engine, so there are no locks. All waiting is outside that task: accepting,
//! connecting, reading, and writing to a full socket.
//!
//! Memory is bounded:
//! - Commands and inputs use bounded channels.
//! - A reader has two buffers, which the owner returns (`connection`).
//! - Octets are encoded only when a socket accepts them.
//! - A newer event of the same peer replaces an unread one ([`Events`]).
//! - Changed routes stay in the engine, one entry per prefix, until [`RouteChanges::next`] requests
//!   them.
//!
//! So a slow peer, a slow FIB or a slow reader of events delays only itself.
//!
//! The shell reads the clock once per turn and passes the time to the engine. If every
//! [`SpeakerHandle`] is dropped, the speaker stops silently ([`Stop::Silent`]). So even a process
//! that ends abnormally ends as a graceful restart.
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
pub use self::heap::{compact_heap, release_free_memory};
pub use self::listener::{ListenFault, ListenStatus};
pub use self::listing::RouteListing;

use self::listener::Listeners;
use self::owner::Owner;
use crate::config::{ConfigError, SpeakerConfig};
use crate::speaker::Speaker;

/// Commands queued for the owner; more callers wait.
const COMMANDS: usize = 1024;

/// Inputs of all listeners and connections queued for the owner. A connection has at most three.
const INPUTS: usize = 256;

/// Settings of the shell in addition to the speaker's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellConfig {
    /// The addresses to listen on. Port 0: the kernel chooses. Empty: this side opens all
    /// connections.
    pub listen: Vec<SocketAddr>,
    /// The longest time of an attempt to connect.
    pub connect_timeout: Duration,
}

impl Default for ShellConfig {
    /// Port 179 on every address of both families; 10 s for an attempt, enough for three SYNs.
    fn default() -> Self {
        ShellConfig {
            listen: vec![(Ipv6Addr::UNSPECIFIED, 179).into(), (Ipv4Addr::UNSPECIFIED, 179).into()],
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// Starts a speaker in a task of the current tokio runtime. On return it listens on every address
/// that could be bound. The speaker tries the other addresses again, and
/// [`SpeakerHandle::listeners`] has the reasons.
///
/// A wildcard address of a family that this kernel lacks is skipped with a warning if another
/// address exists.
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
