//! HTTP/1.1 over TLS, for one client: the API server.
//!
//! What anybody else can do here is bounded: connections, the time for a handshake and for a request's head, the size of a body, the time
//! to an answer. Client certificates are not asked for: an API server has one for webhooks only if its operator gave it one, and
//! a verdict tells nobody a secret.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::View;
use super::certificates::Served;
use super::review::{Asked, Reviewer};

/// Connections at a time; more wait to be accepted. An API server keeps some and opens more under load.
const CONNECTIONS: usize = 1024;
/// For a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For a request's head, which is also how long a connection may be idle: longer than an API server keeps one (90 s), since it would
/// take a connection that is closed under a request for a webhook that fails.
const HEAD: Duration = Duration::from_secs(150);
/// The largest request: an object of etcd's limit (1.5 MiB), as it is and as it was, with room for what JSON makes of it.
const MAX_BODY: usize = 8 << 20;
/// To an answer. Less than the 10 s that the API server waits, so that it hears why.
const DEADLINE: Duration = Duration::from_secs(8);
/// For the requests that are under way when the end comes.
const FAREWELL: Duration = Duration::from_secs(10);

/// Serves until the end, and then what is under way.
pub(super) async fn serve<V: View>(
    listener: TcpListener,
    served: Arc<Served>,
    reviewer: Arc<Reviewer<V>>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut tls = ServerConfig::builder_with_provider(served.provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(served);
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let connections = TaskTracker::new();
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, stream) = tokio::select! {
            () = shutdown.cancelled() => break,
            (slot, accepted) = accepted => match accepted {
                Ok((stream, _)) => (slot, stream),
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    trunkline_daemon::http::pause_accepting().await;
                    continue;
                }
            },
        };
        let (acceptor, reviewer, shutdown) = (acceptor.clone(), Arc::clone(&reviewer), shutdown.clone());
        connections.spawn(async move {
            connection(stream, acceptor, reviewer, shutdown).await;
            drop(slot);
        });
    }
    connections.close();
    // Who takes longer than that has timed out at the other end.
    let _ = tokio::time::timeout(FAREWELL, connections.wait()).await;
    Ok(())
}

async fn connection<V: View>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    reviewer: Arc<Reviewer<V>>,
    shutdown: CancellationToken,
) {
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        // A port scan, or an API server that does not trust the certificate (it says so in its own log).
        Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => return,
    };
    let service = service_fn(|request| answer(Arc::clone(&reviewer), request));
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service)
    );
    // A client that breaks off is its own business.
    let _ = tokio::select! {
        done = connection.as_mut() => done,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
}

async fn answer<V: View>(
    reviewer: Arc<Reviewer<V>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let asked = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/healthz") => return Ok(text(StatusCode::OK, "ok\n")),
        (&Method::POST, "/validate") => Asked::Validate,
        (&Method::POST, "/mutate") => Asked::Mutate,
        (_, "/validate" | "/mutate" | "/healthz") => {
            return Ok(text(StatusCode::METHOD_NOT_ALLOWED, "POST to /validate and /mutate, GET /healthz\n"));
        }
        _ => return Ok(text(StatusCode::NOT_FOUND, "there are /validate, /mutate and /healthz\n")),
    };
    let verdict = async {
        let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return text(StatusCode::PAYLOAD_TOO_LARGE, "a request has at most 8 MiB\n");
            }
            Err(_) => return text(StatusCode::BAD_REQUEST, "the request broke off\n"),
        };
        match reviewer.review(asked, &body).await {
            Ok(review) => json(review),
            Err(error) => text(error.status(), &format!("{error}\n")),
        }
    };
    let answer = tokio::time::timeout(DEADLINE, verdict).await;
    Ok(answer.unwrap_or_else(|_| {
        reviewer.timed_out(asked);
        text(
            StatusCode::SERVICE_UNAVAILABLE,
            "no verdict in 8 s: the API server did not answer the webhook's own questions\n",
        )
    }))
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
