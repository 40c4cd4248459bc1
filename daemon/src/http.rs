//! `/metrics`, `/healthz` and `/readyz`.
//!
//! `/healthz` answers 200 while the tasks that own something answer: a process that fails it is to be restarted.
//! `/readyz` answers 200 once the daemon can do its work, otherwise 503 with one reason a line.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 32;
/// Time for a request's head. A client that is slower is no Prometheus.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// What is asked.
pub trait Probe: Send + Sync + 'static {
    /// The metrics in Prometheus' text format.
    fn metrics(&self) -> impl Future<Output = String> + Send;
    /// What does not answer; empty if everything does.
    fn unhealthy(&self) -> impl Future<Output = Vec<String>> + Send;
    /// What is missing before it can do its work; empty if nothing is.
    fn unready(&self) -> impl Future<Output = Vec<String>> + Send;
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
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                pause_accepting().await;
                continue;
            }
        };
        let probe = Arc::clone(&probe);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(Arc::clone(&probe), request));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // A client that breaks off is its own business.
            let _ = connection.await;
            drop(slot);
        });
    }
}

async fn answer(
    probe: Arc<impl Probe>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => text(StatusCode::OK, probe.metrics().await),
        (&Method::GET | &Method::HEAD, "/healthz") => verdict(probe.unhealthy().await),
        (&Method::GET | &Method::HEAD, "/readyz") => verdict(probe.unready().await),
        (_, "/metrics" | "/healthz" | "/readyz") => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
            response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            response
        }
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
    };
    if request.uri().path() == "/metrics" {
        let format = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, format);
    }
    Ok(response)
}

fn verdict(missing: Vec<String>) -> Response<Full<Bytes>> {
    match missing.as_slice() {
        [] => text(StatusCode::OK, "ok\n".to_owned()),
        missing => text(StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n"),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let plain = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
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
            ("GET", "/", &[], "404", "there are /metrics, /healthz and /readyz\n"),
            ("POST", "/metrics", &[], "405", "only GET\n"),
        ] {
            let answer = get(method, path, missing).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
            assert!(answer.ends_with(body), "{method} {path}: {answer}");
        }
        assert!(get("GET", "/metrics", &[]).await.contains("text/plain; version=0.0.4"));
    }
}
