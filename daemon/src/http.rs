//! `/metrics`, `/healthz` and `/readyz`, and additional pages of a daemon.
//!
//! `/healthz` answers 200 while all main tasks respond; otherwise the process should be restarted.
//! `/readyz` answers 200 once the daemon can do its work, otherwise 503 with one reason per line.
//!
//! [`crate::connections`] limits the clients: idle or slow connections of one source never delay a
//! probe or a scrape of another source. TCP ends a connection if the client does not read its
//! answer.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

use crate::connections::{self, Connection, ConnectionLimiter, Limits, Tracked};

/// The limits of a listener of this module. A browser has several connections, and the agent's page
/// has one long response in each window.
pub const LIMITS: Limits = Limits {
    total: 256,
    per_source: 96,
    first_request: Duration::from_secs(5),
    octets: 0,
    octets_per_source: 0,
    work_per_source: 1,
};
/// Time limit from the end of a response to the end of the next request's head. It is longer than
/// Prometheus' usual interval.
const IDLE: Duration = Duration::from_secs(90);
/// A client that reads nothing of a response for this long is considered gone.
const STALLED: Duration = Duration::from_secs(30);
/// Octets of a connection's buffer: more than any request's head.
const BUFFER: usize = 16 * 1024;

/// The paths of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// `/metrics`, the probes, and the page of [`Probe::page`].
    All,
    /// `/metrics`.
    Metrics,
    /// `/healthz` and `/readyz`.
    Probes,
}

impl Paths {
    fn serves(self, path: &str) -> bool {
        match path {
            "/metrics" => self != Paths::Probes,
            "/healthz" | "/readyz" => self != Paths::Metrics,
            _ => self == Paths::All,
        }
    }

    /// Its name in errors and log lines.
    fn text(self) -> &'static str {
        match self {
            Paths::All => "/metrics, /healthz and /readyz",
            Paths::Metrics => "/metrics",
            Paths::Probes => "/healthz and /readyz",
        }
    }
}

/// Body of an answer: complete, or a stream.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Source of the answers.
pub trait Probe: Send + Sync + 'static {
    /// The metrics in Prometheus' text format.
    fn metrics(&self) -> impl Future<Output = String> + Send;
    /// Tasks that do not respond; empty if all do.
    fn unhealthy(&self) -> impl Future<Output = Vec<String>> + Send;
    /// The reasons why the daemon cannot do its work yet; empty if it can.
    fn unready(&self) -> impl Future<Output = Vec<String>> + Send;
    /// The answer for every other path; none if there is no such page.
    fn page(&self, _head: &Parts, _from: SocketAddr) -> impl Future<Output = Option<Response<Body>>> + Send {
        async { None }
    }
}

/// A complete body.
pub fn whole(octets: impl Into<Bytes>) -> Body {
    Full::new(octets.into()).boxed_unsync()
}

/// Delay between two attempts to bind an address that is in use. No event reports that the address
/// is free.
const BIND_AGAIN: Duration = Duration::from_secs(2);

/// Connections that wait for accept(2).
const BACKLOG: i32 = 1024;

/// Binds an address. The unspecified IPv6 address (`[::]`) is for both families, whatever
/// `net.ipv6.bindv6only` says; on a kernel without IPv6 it is the unspecified IPv4 address.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return TcpListener::bind(address).await;
    }
    let socket = match Socket::new(Domain::IPV6, Type::STREAM.nonblocking(), None) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => {
            return TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await;
        }
        created => created?,
    };
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// The reason why a listener is down, while it is down. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<Mutex<Option<String>>>);

impl Fault {
    /// The reason as text; none while the listener is up.
    pub fn words(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, words: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }
}

/// Binds the address, and retries until it succeeds: the daemon's main work continues meanwhile.
/// The log and `fault` have the reason.
pub async fn bind_patiently(address: SocketAddr, fault: Fault) -> TcpListener {
    loop {
        match bind(address).await {
            Ok(listener) => {
                if fault.words().is_some() {
                    tracing::info!(%address, "/metrics, /healthz and /readyz are served now");
                }
                fault.set(None);
                return listener;
            }
            Err(error) => {
                let words = format!("{address}: {error}");
                if fault.words().as_ref() != Some(&words) {
                    tracing::error!(
                        "/metrics, /healthz and /readyz are not served: {words}: \
                         free the address or configure another one; the daemon tries again"
                    );
                }
                fault.set(Some(words));
                tokio::time::sleep(BIND_AGAIN).await;
            }
        }
    }
}

/// Pauses after accept(2) failed for lack of descriptors, because no event reports a free
/// descriptor.
pub async fn pause_accepting() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Serves until it is dropped.
pub async fn serve(
    listener: TcpListener,
    limiter: Arc<ConnectionLimiter>,
    paths: Paths,
    probe: Arc<impl Probe>,
) {
    loop {
        let (connection, from) = limiter.accept(&listener).await;
        let probe = Arc::clone(&probe);
        tokio::spawn(async move {
            let client = connection.client();
            client.supervise(converse(connection, from, paths, probe)).await
        });
    }
}

async fn converse(connection: Connection, from: SocketAddr, paths: Paths, probe: Arc<impl Probe>) {
    let _ = connection.socket().set_nodelay(true);
    let _ = socket2::SockRef::from(connection.socket()).set_tcp_user_timeout(Some(STALLED));
    let client = connection.client();
    let service =
        service_fn(move |request| answer(Arc::clone(&probe), request, client.request(), from, paths));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(connection), service);
    // The client causes an error here: it closed the connection, or sent no HTTP.
    let _ = serving.await;
}

async fn answer(
    probe: Arc<impl Probe>,
    request: Request<Incoming>,
    under_way: connections::Request,
    from: SocketAddr,
    paths: Paths,
) -> Result<Response<Tracked<Body>>, Infallible> {
    // No path uses a body.
    let (head, _) = request.into_parts();
    let asks = matches!(head.method, Method::GET | Method::HEAD);
    let path = head.uri.path();
    let mut response = match path {
        _ if !paths.serves(path) => not_found(paths),
        "/metrics" if asks => text(StatusCode::OK, probe.metrics().await),
        "/healthz" if asks => verdict(probe.unhealthy().await),
        "/readyz" if asks => verdict(probe.unready().await),
        "/metrics" | "/healthz" | "/readyz" => only_get(),
        _ => match probe.page(&head, from).await {
            Some(_) if !asks => only_get(),
            Some(response) => response,
            None => not_found(paths),
        },
    };
    if path == "/metrics" && response.status() == StatusCode::OK {
        let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, format);
    }
    Ok(response.map(|body| under_way.track(body)))
}

fn not_found(paths: Paths) -> Response<Body> {
    text(StatusCode::NOT_FOUND, format!("this listener serves {}\n", paths.text()))
}

fn verdict(missing: Vec<String>) -> Response<Body> {
    match missing.as_slice() {
        [] => text(StatusCode::OK, "ok\n".to_owned()),
        missing => text(StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n"),
    }
}

fn only_get() -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// Answers 503: no capacity now, retry after this number of seconds.
pub fn try_later(seconds: &'static str, why: &str) -> Response<Body> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
    response
}

/// Answers with plain text.
pub fn text(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests;
