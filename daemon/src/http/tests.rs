//! Tests of paths and statuses, with many or slow clients.

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

fn limiter() -> Arc<ConnectionLimiter> {
    use trunkline_api::metrics::of_agent as m;
    let registry = prometheus::Registry::new();
    let metrics =
        connections::ConnectionMetrics::register(&registry, &m::CONNECTIONS, &m::CONNECTIONS_DROPPED);
    ConnectionLimiter::new(LIMITS, metrics.unwrap().listener("http"))
}

async fn get(method: &str, path: &str, missing: &'static [&'static str]) -> String {
    get_of(Paths::All, method, path, missing).await
}

async fn get_of(paths: Paths, method: &str, path: &str, missing: &'static [&'static str]) -> String {
    let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, limiter(), paths, Arc::new(Fixed(missing))));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    server.abort();
    answer
}

#[tokio::test]
async fn bind_waits_for_a_taken_address_and_reports_it() {
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
        ("GET", "/nothing", &[], "404", "this listener serves /metrics, /healthz and /readyz\n"),
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
async fn each_listener_serves_only_its_paths() {
    for (paths, path, status) in [
        (Paths::Metrics, "/metrics", "200"),
        (Paths::Metrics, "/healthz", "404"),
        (Paths::Metrics, "/readyz", "404"),
        (Paths::Metrics, "/", "404"),
        (Paths::Probes, "/metrics", "404"),
        (Paths::Probes, "/healthz", "200"),
        (Paths::Probes, "/readyz", "200"),
        (Paths::Probes, "/", "404"),
    ] {
        let answer = get_of(paths, "GET", path, &[]).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{paths:?} {path}: {answer}");
    }
    assert!(get_of(Paths::Probes, "GET", "/metrics", &[]).await.contains("serves /healthz and /readyz\n"));
}

#[tokio::test]
async fn the_unspecified_ipv6_address_is_for_both_families() {
    let listener = bind("[::]:0".parse().unwrap()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for address in ["127.0.0.1", "::1"] {
        let address: IpAddr = address.parse().unwrap();
        if address.is_ipv6() && listener.local_addr().unwrap().is_ipv4() {
            continue; // a kernel without IPv6
        }
        TcpStream::connect((address, port)).await.unwrap();
        let (_, from) = listener.accept().await.unwrap();
        assert_eq!(from.ip().to_canonical(), address);
    }
}
