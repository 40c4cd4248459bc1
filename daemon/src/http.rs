//! `/metrics`, `/healthz` and `/readyz`, and what a daemon serves beside them.
//!
//! `/healthz` answers 200 while the tasks that own something answer: a process that fails it is to be restarted.
//! `/readyz` answers 200 once the daemon can do its work, otherwise 503 with one reason a line.
//!
//! **However many connect, memory is bounded and a probe is answered.** [`CONNECTIONS`] at a time may ask for anything. Who comes when all
//! of these are taken is answered one question, and only what a supervisor or Prometheus asks: anything else is 503 with Retry-After. There are
//! [`RESERVE`] of those, soon over; who comes beyond them waits in the kernel. A client that does not take its answer is given up by TCP.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Connections at a time that may ask for anything.
pub const CONNECTIONS: usize = 192;
/// Connections beside these: one question each, of a probe or a scrape.
pub const RESERVE: usize = 64;
/// Time for a request's head. A client that is slower is no Prometheus.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that takes nothing of what is sent for so long is given up.
const STALLED: Duration = Duration::from_secs(30);
/// Octets that a connection may buffer: more than any request's head.
const BUFFER: usize = 16 * 1024;
/// Seconds after which somebody who was turned away may come again.
const COME_AGAIN: &str = "5";

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

/// Out of descriptors or memory: no event says when it is over, and asking again at once would be a busy loop.
pub async fn pause_accepting() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Serves for ever.
pub async fn serve(listener: TcpListener, probe: Arc<impl Probe>) {
    let (slots, reserve) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(RESERVE)));
    loop {
        let Ok(spare) = Arc::clone(&reserve).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                pause_accepting().await;
                continue;
            }
        };
        let slot = Arc::clone(&slots).try_acquire_owned();
        let crowded = slot.is_err();
        let slot = slot.unwrap_or(spare);
        let probe = Arc::clone(&probe);
        tokio::spawn(async move {
            converse(stream, from, crowded, probe).await;
            drop(slot);
        });
    }
}

async fn converse(stream: TcpStream, from: SocketAddr, crowded: bool, probe: Arc<impl Probe>) {
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(STALLED));
    let service = service_fn(|request| answer(Arc::clone(&probe), request, from, crowded));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER)
        .keep_alive(!crowded)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off is its own business.
    let _ = connection.await;
}

async fn answer(
    probe: Arc<impl Probe>,
    request: Request<Incoming>,
    from: SocketAddr,
    crowded: bool,
) -> Result<Response<Body>, Infallible> {
    // Nobody has anything to say in a body.
    let (head, _) = request.into_parts();
    let asks = matches!(head.method, Method::GET | Method::HEAD);
    let mut response = match head.uri.path() {
        "/metrics" if asks => text(StatusCode::OK, probe.metrics().await),
        "/healthz" if asks => verdict(probe.unhealthy().await),
        "/readyz" if asks => verdict(probe.unready().await),
        "/metrics" | "/healthz" | "/readyz" => only_get(),
        _ if crowded => try_later(COME_AGAIN, "too many connections: try again in some seconds\n"),
        _ => match probe.page(&head, from).await {
            Some(_) if !asks => only_get(),
            Some(response) => response,
            None => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
        },
    };
    if head.uri.path() == "/metrics" {
        let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, format);
    }
    Ok(response)
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
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    struct Fixed(&'static [&'static str]);

    impl Probe for Fixed {
        async fn metrics(&self) -> String {
            "up 1\n".to_owned()
        }
        async fn unhealthy(&self) -> Vec<String> {
            Vec::new()
        }
        async fn unready(&self) -> Vec<String> {
            self.0.iter().map(|reason| (*reason).to_owned()).collect()
        }
        async fn page(&self, head: &Parts, _from: SocketAddr) -> Option<Response<Body>> {
            (head.uri.path() == "/").then(|| text(StatusCode::OK, "the page\n".to_owned()))
        }
    }

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(method: &str, path: &str, missing: &'static [&'static str]) -> String {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(Fixed(missing))));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        server.abort();
        answer
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_waited_for_and_said() {
        let taken = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = taken.local_addr().unwrap();
        let fault = Fault::default();
        let waiting = tokio::spawn(bind_patiently(address, fault.clone()));
        while fault.words().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(fault.words().unwrap().starts_with(&format!("{address}: Address already in use")));
        drop(taken);
        let listener = waiting.await.unwrap();
        assert_eq!((listener.local_addr().unwrap(), fault.words()), (address, None));
    }

    #[tokio::test]
    async fn the_three_paths_answer() {
        for (method, path, missing, status, body) in [
            ("GET", "/metrics", &[][..], "200", "up 1\n"),
            ("GET", "/healthz", &[], "200", "ok\n"),
            ("GET", "/readyz", &[], "200", "ok\n"),
            (
                "GET",
                "/readyz",
                &["the store is damaged", "no manifest"],
                "503",
                "the store is damaged\nno manifest\n",
            ),
            ("GET", "/", &[], "200", "the page\n"),
            ("HEAD", "/", &[], "200", "\r\n\r\n"),
            ("GET", "/nothing", &[], "404", "there are /metrics, /healthz and /readyz\n"),
            ("POST", "/metrics", &[], "405", "only GET\n"),
            ("POST", "/", &[], "405", "only GET\n"),
        ] {
            let answer = get(method, path, missing).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
            assert!(answer.ends_with(body), "{method} {path}: {answer}");
        }
        assert!(get("GET", "/metrics", &[]).await.contains("text/plain; version=0.0.4"));
    }

    #[tokio::test]
    async fn when_all_places_are_taken_a_probe_is_answered_and_others_are_told_when_to_come_again() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(Fixed(&[]))));
        let mut taken = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut first = [0; 15];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            taken.push(stream);
        }
        let answer = ask(address, "/").await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("retry-after: 5\r\n"), "{answer}");
        assert!(ask(address, "/healthz").await.ends_with("ok\n"));
        assert!(ask(address, "/metrics").await.ends_with("up 1\n"));
        drop(taken);
        // The places are free again as soon as the server has seen that the clients are gone.
        while !ask(address, "/").await.ends_with("the page\n") {
            tokio::task::yield_now().await;
        }
        server.abort();
    }
}
