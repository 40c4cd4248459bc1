//! `/metrics`, `/healthz` and `/readyz`, and what a daemon serves beside them.
//!
//! `/healthz` answers 200 while the tasks that own something answer: a process that fails it is to be restarted.
//! `/readyz` answers 200 once the daemon can do its work, otherwise 503 with one reason a line.
//!
//! [`crate::connections`] limits the clients: idle or slow connections of one source never keep a probe or a scrape of another source waiting. TCP
//! ends a connection whose client does not take its answer.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
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
use tokio::net::TcpListener;

use crate::connections::{self, Connection, ConnectionLimiter, Limits, Tracked};

/// The limits of a listener of this module. A browser has some connections, and the agent's page has one long response in each window.
pub const LIMITS: Limits = Limits {
    total: 256,
    per_source: 96,
    first_request: Duration::from_secs(5),
    octets: 0,
    octets_per_source: 0,
    work_per_source: 1,
};
/// From the end of a response to the end of the next request's head: longer than Prometheus' usual interval.
const IDLE: Duration = Duration::from_secs(90);
/// A client that takes nothing of a response for this long has no more use for it.
const STALLED: Duration = Duration::from_secs(30);
/// Octets that a connection may buffer: more than any request's head.
const BUFFER: usize = 16 * 1024;

/// Which paths a listener serves.
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

    /// As errors and log lines name them.
    fn text(self) -> &'static str {
        match self {
            Paths::All => "/metrics, /healthz and /readyz",
            Paths::Metrics => "/metrics",
            Paths::Probes => "/healthz and /readyz",
        }
    }
}

/// An answer's body: whole, or told bit by bit.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What is asked.
pub trait Probe: Send + Sync + 'static {
    /// The metrics in Prometheus' text format.
    fn metrics(&self) -> impl Future<Output = String> + Send;
    /// What does not answer; empty if everything does.
    fn unhealthy(&self) -> impl Future<Output = Vec<String>> + Send;
    /// What is missing before it can do its work; empty if nothing is.
    fn unready(&self) -> impl Future<Output = Vec<String>> + Send;
    /// What is served on every other path; none where there is nothing.
    fn page(&self, _head: &Parts, _from: SocketAddr) -> impl Future<Output = Option<Response<Body>>> + Send {
        async { None }
    }
}

/// A body that is there as a whole.
pub fn whole(octets: impl Into<Bytes>) -> Body {
    Full::new(octets.into()).boxed_unsync()
}

/// Between two tries to get an address that is taken. Nobody tells when it is free.
const BIND_AGAIN: Duration = Duration::from_secs(2);

/// Binds the address.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Why nothing is served, while nothing is. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<Mutex<Option<String>>>);

impl Fault {
    /// In words; none while all is well.
    pub fn words(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, words: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }
}

/// Binds the address, and tries again for as long as that fails: whoever has more to do than to be asked how it does runs on meanwhile. The
/// log and `fault` say so.
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
                         free the address or configure another; it is tried again"
                    );
                }
                fault.set(Some(words));
                tokio::time::sleep(BIND_AGAIN).await;
            }
        }
    }
}

/// A pause after accept(2) failed for lack of descriptors: no event reports that one is free again.
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
    // An error is the client's: it broke off, or sent no HTTP.
    let _ = serving.await;
}

async fn answer(
    probe: Arc<impl Probe>,
    request: Request<Incoming>,
    under_way: connections::Request,
    from: SocketAddr,
    paths: Paths,
) -> Result<Response<Tracked<Body>>, Infallible> {
    // No path has a use for a body.
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

/// 503: there is no room now, and when to come again, in seconds.
pub fn try_later(seconds: &'static str, why: &str) -> Response<Body> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
    response
}

/// Plain text.
pub fn text(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests;
