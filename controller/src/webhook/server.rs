//! HTTP/1.1 over TLS, for one client: the API server.
//!
//! Any host that reaches the port can connect, so each resource has a bound. The bounds are for
//! connections ([`trunkline_daemon::connections`]), for the time of the TLS handshake and the first
//! request head, and for the size of a body. Further bounds are for the memory of all bodies, the
//! reads from the API server ([`super::review`]), and the time to a decision. With a client CA
//! (`--webhook-client-ca`) a client without a certificate of that CA fails in the handshake.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline_daemon::connections::{self, Connection, ConnectionLimiter, Limits, Tracked};

use super::certificates::Served;
use super::review::{ReviewKind, Reviewer};
use crate::cluster::ClusterReader;

/// An API server opens a connection for each concurrent request. By default, it has at most 600
/// requests under way.
pub(super) const LIMITS: Limits = Limits {
    total: 1024,
    per_source: 640,
    first_request: Duration::from_secs(5),
    octets: 64 << 20,
    octets_per_source: 32 << 20,
    work_per_source: 8,
};
/// Time limit from the end of a response to the end of the next request's head. An API server keeps
/// an idle connection for 90 s, and the limit is longer: if a connection closes during a request,
/// the webhook call fails.
const IDLE: Duration = Duration::from_secs(150);
/// The largest request: the old and the new object at etcd's limit (1.5 MiB), with room for the
/// JSON.
const MAX_BODY: usize = 8 << 20;
/// Octets of a request's body outside the memory budget: most pods are smaller.
const SMALL_BODY: usize = 64 << 10;
/// Time to an answer. Less than the API server's 10 s, so that the error text reaches it.
const DEADLINE: Duration = Duration::from_secs(8);
/// Time for the requests under way at shutdown.
const FAREWELL: Duration = Duration::from_secs(10);

/// The TLS configuration; with a client CA, clients need a certificate of this CA.
pub(super) fn tls(served: Arc<Served>, client_ca: Option<RootCertStore>) -> anyhow::Result<ServerConfig> {
    let builder =
        ServerConfig::builder_with_provider(served.provider()).with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        Some(roots) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), served.provider()).build()?,
        ),
        None => builder.with_no_client_auth(),
    };
    let mut tls = builder.with_cert_resolver(served);
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

/// Serves until shutdown, then finishes the requests under way.
pub(super) async fn serve<V: ClusterReader>(
    listener: TcpListener,
    limiter: Arc<ConnectionLimiter>,
    tls: ServerConfig,
    reviewer: Arc<Reviewer<V>>,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let connections = TaskTracker::new();
    loop {
        let connection = tokio::select! {
            () = shutdown.cancelled() => break,
            (connection, _) = limiter.accept(&listener) => connection,
        };
        let (acceptor, reviewer, shutdown) = (acceptor.clone(), Arc::clone(&reviewer), shutdown.clone());
        connections.spawn(async move {
            let client = connection.client();
            client.supervise(converse(connection, acceptor, reviewer, shutdown)).await
        });
    }
    connections.close();
    // A client that takes longer has timed out on its own side.
    let _ = tokio::time::timeout(FAREWELL, connections.wait()).await;
}

async fn converse<V: ClusterReader>(
    connection: Connection,
    acceptor: TlsAcceptor,
    reviewer: Arc<Reviewer<V>>,
    shutdown: CancellationToken,
) {
    let client = connection.client();
    let stream = match acceptor.accept(connection).await {
        Ok(stream) => stream,
        // This is a port scan, a client without a certificate, or an API server that does not trust
        // this certificate (its own log has the reason).
        Err(error) => return tracing::debug!(source = %client.source(), %error, "a TLS handshake failed"),
    };
    let service = service_fn(move |request| answer(Arc::clone(&reviewer), request, client.request()));
    let mut serving = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .serve_connection(TokioIo::new(stream), service)
    );
    // The client causes an error here: it closed the connection, or sent no HTTP.
    let _ = tokio::select! {
        done = serving.as_mut() => done,
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
}

async fn answer<V: ClusterReader>(
    reviewer: Arc<Reviewer<V>>,
    request: Request<Incoming>,
    mut under_way: connections::Request,
) -> Result<Response<Tracked<Full<Bytes>>>, Infallible> {
    let response = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/healthz") => text(StatusCode::OK, "ok\n"),
        (&Method::POST, "/validate") => {
            verdict(&reviewer, ReviewKind::Validate, request, &mut under_way).await
        }
        (&Method::POST, "/mutate") => verdict(&reviewer, ReviewKind::Mutate, request, &mut under_way).await,
        (_, "/validate" | "/mutate" | "/healthz") => {
            text(StatusCode::METHOD_NOT_ALLOWED, "POST to /validate and /mutate, GET /healthz\n")
        }
        _ => text(StatusCode::NOT_FOUND, "use /validate, /mutate or /healthz\n"),
    };
    Ok(response.map(|body| under_way.track(body)))
}

async fn verdict<V: ClusterReader>(
    reviewer: &Reviewer<V>,
    kind: ReviewKind,
    request: Request<Incoming>,
    under_way: &mut connections::Request,
) -> Response<Full<Bytes>> {
    let verdict = async {
        let body = match read(request.into_body(), under_way).await {
            Ok(body) => body,
            Err((status, why)) => return text(status, why),
        };
        match reviewer.review(kind, &body, under_way.client()).await {
            Ok(review) => json(review),
            Err(error) => text(error.status(), &format!("{error}\n")),
        }
    };
    tokio::time::timeout(DEADLINE, verdict).await.unwrap_or_else(|_| {
        reviewer.timed_out(kind, under_way.client());
        text(
            StatusCode::SERVICE_UNAVAILABLE,
            "no verdict in 8 s: the API server did not answer the webhook's own requests\n",
        )
    })
}

/// Reads the whole body, within its limits.
async fn read(
    mut body: Incoming,
    under_way: &mut connections::Request,
) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let mut octets = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err((
                StatusCode::BAD_REQUEST,
                "the request is \
            incomplete\n",
            ));
        };
        let Ok(data) = frame.into_data() else { continue };
        let (before, after) = (octets.len(), octets.len() + data.len());
        if after > MAX_BODY {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "a request has at most 8 MiB\n"));
        }
        if !under_way.charge(after.max(SMALL_BODY) - before.max(SMALL_BODY)) {
            return Err((
                StatusCode::SERVICE_UNAVAILABLE,
                "too many large requests are under way: try again\n",
            ));
        }
        octets.extend_from_slice(&data);
    }
    Ok(octets)
}

fn json(body: Vec<u8>) -> Response<Full<Bytes>> {
    with(StatusCode::OK, "application/json", body.into())
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    with(status, "text/plain; charset=utf-8", text.to_owned().into())
}

fn with(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
