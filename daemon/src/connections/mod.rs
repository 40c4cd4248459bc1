//! Limits on the clients of one TCP listener: many idle or slow connections of one source do not
//! affect another source.
//!
//! ```text
//! accept ──► Registry: admit, evict another, or refuse ──► Connection ──► supervise(serve) ──► closed, and removed from the registry
//! ```
//!
//! - A source is an IPv4 address or an IPv6 /64. It has at most [`Limits::per_source`] connections,
//!   the listener at most [`Limits::total`].
//! - At a limit a new connection evicts another one. The classes are evicted in this order: no
//!   complete request head yet, idle between two requests, a request that takes longer than
//!   [`SLOW`], a request under way. Within a class the source with the most connections comes
//!   first, and of these the oldest connection. A source never evicts a connection of a source that
//!   has as few connections as itself.
//! - The first request head, the TLS handshake included, must be complete within
//!   [`Limits::first_request`]. After that an idle connection may stay until another one needs its
//!   place.
//! - Accepting never waits for a place. If the process has no free descriptor
//!   ([`ConnectionLimiter::accept`]), a connection is evicted too.
//! - Request bodies ([`Request::charge`]) and expensive work ([`Client::work`]) have budgets per
//!   source.

mod registry;
mod stream;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Registry as Metrics};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use trunkline_api::metrics::Metric;

use registry::{Admission, Entry, Registry};
pub use stream::{Connection, Tracked};

/// A request that takes longer may be evicted in favour of another connection.
pub const SLOW: Duration = Duration::from_secs(10);
/// Number of evicted connections that may still be closing. Beyond that, accepting waits for them,
/// which bounds memory and descriptors.
const CLOSING: usize = 64;
/// Delay before the next accept when the process has no free descriptor and this listener has no
/// connection to evict. No event reports a free descriptor.
const RETRY: Duration = Duration::from_millis(50);

/// The limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections.
    pub total: usize,
    /// Maximum number of connections of one source.
    pub per_source: usize,
    /// Time from accept to the end of the first request head, the TLS handshake included.
    pub first_request: Duration,
    /// Octets of request bodies in memory, of all sources.
    pub octets: usize,
    /// Octets of request bodies in memory, of one source.
    pub octets_per_source: usize,
    /// Concurrent units of expensive work of one source.
    pub work_per_source: usize,
}

/// The unit that the limits count: an IPv4 address or an IPv6 /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(IpAddr);

impl Source {
    /// The source of an address. One host can have all addresses of an IPv6 /64.
    pub fn of(address: IpAddr) -> Source {
        Source(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => std::net::Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(formatter, "{address}"),
            IpAddr::V6(address) => write!(formatter, "{address}/64"),
        }
    }
}

/// The reason why the listener closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Evicted in favour of a newer connection.
    Evicted,
    /// There was no complete request head in time.
    NoRequest,
    /// Refused: its source already has the maximum number of requests under way.
    SourceLimit,
    /// Refused: all connections have a request under way, and no source has more of them than this
    /// one.
    TotalLimit,
    /// Evicted because the process has no free descriptor.
    Descriptors,
}

impl Reason {
    const ALL: [Reason; 5] =
        [Reason::Evicted, Reason::NoRequest, Reason::SourceLimit, Reason::TotalLimit, Reason::Descriptors];

    fn label(self) -> &'static str {
        match self {
            Reason::Evicted => "evicted",
            Reason::NoRequest => "no_request",
            Reason::SourceLimit => "source_limit",
            Reason::TotalLimit => "total_limit",
            Reason::Descriptors => "descriptors",
        }
    }
}

/// The metrics of a daemon's listeners.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    open: IntGaugeVec,
    dropped: IntCounterVec,
}

impl ConnectionMetrics {
    /// Registers both metrics of the catalogue: `open` with the label `listener`, `dropped` with
    /// `listener` and `reason`.
    ///
    /// # Errors
    /// The registry has one of them already.
    pub fn register(registry: &Metrics, open: &Metric, dropped: &Metric) -> prometheus::Result<Self> {
        Ok(ConnectionMetrics {
            open: crate::metrics::gauge(registry, open)?,
            dropped: crate::metrics::counter(registry, dropped)?,
        })
    }

    /// The metrics of one listener. Creates every series.
    pub fn listener(&self, name: &'static str) -> ListenerMetrics {
        for reason in Reason::ALL {
            self.dropped.with_label_values(&[name, reason.label()]);
        }
        let open = self.open.with_label_values(&[name]);
        ListenerMetrics { name, open, dropped: self.dropped.clone() }
    }
}

/// The metrics of one listener.
#[derive(Clone, Debug)]
pub struct ListenerMetrics {
    name: &'static str,
    open: IntGauge,
    dropped: IntCounterVec,
}

impl ListenerMetrics {
    fn dropped(&self, reason: Reason) {
        self.dropped.with_label_values(&[self.name, reason.label()]).inc();
    }
}

/// Current usage of one source.
#[derive(Debug)]
struct Account {
    octets: AtomicUsize,
    work: Arc<Semaphore>,
}

/// The clients of one listener.
#[derive(Debug)]
pub struct ConnectionLimiter {
    limits: Limits,
    registry: Mutex<Registry>,
    /// Octets of request bodies, of all sources.
    octets: AtomicUsize,
    /// Notifies that a connection was closed and its descriptor is free.
    closed: Notify,
    metrics: ListenerMetrics,
}

impl ConnectionLimiter {
    /// Creates a limiter without connections.
    pub fn new(limits: Limits, metrics: ListenerMetrics) -> Arc<Self> {
        Arc::new(ConnectionLimiter {
            limits,
            registry: Mutex::new(Registry::new(limits)),
            octets: AtomicUsize::new(0),
            closed: Notify::new(),
            metrics,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts the next admitted connection. Cancel-safe: a drop loses no connection.
    pub async fn accept(self: &Arc<Self>, listener: &TcpListener) -> (Connection, SocketAddr) {
        loop {
            while self.lock().closing() >= CLOSING {
                self.closed.notified().await;
            }
            match listener.accept().await {
                Ok((stream, from)) => {
                    if let Some(connection) = self.admit(stream, from) {
                        return (connection, from);
                    }
                }
                Err(error) if is_exhausted(&error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    self.free_descriptor().await;
                }
                // The client closed the connection, or a network error ended its handshake:
                // accept(2).
                Err(error) => tracing::debug!(%error, "a connection was not accepted"),
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) -> Option<Connection> {
        let source = Source::of(from.ip());
        let mut registry = self.lock();
        match registry.admission(source, Instant::now()) {
            Admission::Admit => {}
            Admission::Evict(other) => registry.evict(&other, Reason::Evicted),
            Admission::Refuse(reason) => {
                drop(registry);
                self.metrics.dropped(reason);
                stream::reset(&stream);
                return None;
            }
        }
        let entry = registry.insert(source);
        drop(registry);
        Some(Connection::new(stream, Client { limiter: Arc::clone(self), entry }))
    }

    /// Frees a descriptor, or waits until one may be free.
    async fn free_descriptor(&self) {
        let (evicted, is_empty) = {
            let mut registry = self.lock();
            let victim = registry.victim(Instant::now());
            if let Some(victim) = &victim {
                registry.evict(victim, Reason::Descriptors);
            }
            (victim.is_some(), registry.is_empty())
        };
        if evicted || !is_empty {
            self.closed.notified().await;
        } else {
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Whether accept(2) failed for lack of descriptors or memory.
fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
    error.raw_os_error().is_some_and(|code| lacks.iter().any(|errno| errno.raw_os_error() == code))
}

/// Raises the soft limit of descriptors to the hard limit. Then the limits of connections are
/// reached first.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "the limit of descriptors was not raised");
    }
}

/// The client at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Client {
    limiter: Arc<ConnectionLimiter>,
    entry: Arc<Entry>,
}

impl Client {
    /// Its source.
    pub fn source(&self) -> Source {
        self.entry.source
    }

    /// Permits for expensive work of its source.
    pub fn work(&self) -> &Semaphore {
        &self.entry.account.work
    }

    /// Runs the service of the connection. None if the connection was evicted, or had no complete
    /// request head in time; the caller must then drop it, which closes it.
    pub async fn supervise<F: Future>(&self, serve: F) -> Option<F::Output> {
        let late = async {
            tokio::time::sleep(self.limiter.limits.first_request).await;
            if !self.entry.is_opening() {
                std::future::pending::<()>().await;
            }
            // This happens before the drop of `serve`, which closes the connection.
            self.limiter.lock().evict(&self.entry, Reason::NoRequest);
        };
        tokio::select! {
            biased;
            () = self.entry.evicted() => None,
            output = serve => Some(output),
            () = late => None,
        }
    }

    /// Begins a request, after its head is complete. The request is under way until the value is
    /// dropped and the response is on the wire.
    pub fn request(&self) -> Request {
        self.entry.begin();
        Request { client: self.clone(), octets: 0 }
    }
}

/// A request that is under way.
#[derive(Debug)]
pub struct Request {
    client: Client,
    octets: usize,
}

impl Request {
    /// Reserves memory for octets of the request's body. False if the budget of the listener, or
    /// the share of this source, is exhausted.
    pub fn charge(&mut self, octets: usize) -> bool {
        let Client { limiter, entry } = &self.client;
        let take = |used: &AtomicUsize, limit: usize| {
            let add = |used: usize| used.checked_add(octets).filter(|sum| *sum <= limit);
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
        };
        if !take(&entry.account.octets, limiter.limits.octets_per_source) {
            return false;
        }
        if !take(&limiter.octets, limiter.limits.octets) {
            entry.account.octets.fetch_sub(octets, Ordering::Relaxed);
            return false;
        }
        self.octets += octets;
        true
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Wraps the response's body, which keeps the request under way until it is sent.
    pub fn track<B>(self, body: B) -> Tracked<B> {
        Tracked::new(body, self)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Client { limiter, entry } = &self.client;
        entry.account.octets.fetch_sub(self.octets, Ordering::Relaxed);
        limiter.octets.fetch_sub(self.octets, Ordering::Relaxed);
        entry.finish();
    }
}

#[cfg(test)]
mod tests;
