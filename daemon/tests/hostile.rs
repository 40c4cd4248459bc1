//! Hostile clients of `/metrics` and the probes, over real sockets: attacks from 127.0.0.2 must not
//! affect 127.0.0.1.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests measure")]

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use trunkline_api::metrics::of_agent as m;
use trunkline_daemon::connections::{ConnectionLimiter, ConnectionMetrics, Limits, raise_descriptor_limit};
use trunkline_daemon::http::{LIMITS, Paths, Probe, serve};

const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const CONNECTIONS: usize = 10_000;
/// Time limit of a test. No step needs as much time, so the limit only ends a test that hangs.
const DEADLINE: Duration = Duration::from_secs(120);

struct Healthy;

impl Probe for Healthy {
    async fn metrics(&self) -> String {
        "up 1\n".to_owned()
    }
    async fn unhealthy(&self) -> Vec<String> {
        Vec::new()
    }
    async fn unready(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A running listener, and the registry with its metrics.
async fn start() -> (SocketAddr, Registry) {
    start_with(LIMITS).await
}

async fn start_with(limits: Limits) -> (SocketAddr, Registry) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let registry = Registry::new();
    let metrics = ConnectionMetrics::register(&registry, &m::CONNECTIONS, &m::CONNECTIONS_DROPPED).unwrap();
    let limiter = ConnectionLimiter::new(limits, metrics.listener("http"));
    tokio::spawn(serve(listener, limiter, Paths::All, Arc::new(Healthy)));
    (address, registry)
}

/// Connects from the hostile source and sends some octets. The client does not close its end, even
/// after the server has closed the connection.
async fn attack(address: SocketAddr, octets: &[u8]) -> TcpStream {
    attack_from(HOSTILE, address, octets).await
}

async fn attack_from(source: Ipv4Addr, address: SocketAddr, octets: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    // An error means that the connection was already closed.
    let _ = stream.write_all(octets).await;
    stream
}

async fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn all_is_answered(address: SocketAddr, when: &str) {
    for path in ["/healthz", "/readyz", "/metrics"] {
        let answer = ask(address, path).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path} {when}: {answer}");
    }
}

/// The sum of all series of a metric.
fn value(registry: &Registry, name: &str) -> f64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap();
    family.get_metric().iter().map(|it| it.get_gauge().get_value() + it.get_counter().get_value()).sum()
}

/// Ten thousand connections that send these octets, with probes and scrapes of another source
/// between them.
async fn flood(octets: &[u8]) {
    raise_descriptor_limit();
    let (address, registry) = start().await;
    let mut open = Vec::new();
    while open.len() < CONNECTIONS {
        open.push(attack(address, octets).await);
        if open.len().is_multiple_of(1_000) {
            all_is_answered(address, &format!("with {} connections", open.len())).await;
        }
    }
    let value = |name: &str| value(&registry, name);
    let connections = value(m::CONNECTIONS.name);
    assert!(connections <= LIMITS.per_source as f64 + 64.0, "{connections} connections are open");
    assert!(value(m::CONNECTIONS_DROPPED.name) >= (CONNECTIONS - LIMITS.per_source - 64) as f64);
}

async fn within<T>(test: impl Future<Output = T>) -> T {
    // Only one flood runs at a time, because each uses half of the usual limit of file descriptors.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ALONE.lock().await;
    tokio::time::timeout(DEADLINE, test).await.expect("no hang")
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_stop_no_probe() {
    within(flood(b"")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_stop_no_probe() {
    within(flood(b"GET /metrics HTTP/1.1\r\nHost:")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_keep_alive_connections_stop_no_probe() {
    within(flood(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).await;
}

/// 109 sources, about as many as a node has pods, each open as many connections as one source may.
/// Half of the sources send a request.
#[tokio::test(flavor = "multi_thread")]
async fn many_sources_stop_no_probe() {
    within(async {
        raise_descriptor_limit();
        let (address, registry) = start().await;
        let mut open = Vec::new();
        for source in 2..=110 {
            let octets: &[u8] =
                if source % 2 == 0 { b"" } else { b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" };
            for _ in 0..LIMITS.per_source {
                open.push(attack_from(Ipv4Addr::new(127, 0, 0, source), address, octets).await);
            }
            all_is_answered(address, &format!("with connections of {source} sources")).await;
        }
        let connections = value(&registry, m::CONNECTIONS.name);
        assert!(connections <= LIMITS.total as f64 + 64.0, "{connections} connections are open");
    })
    .await;
}

/// Each connection times out. The server evicts no connection.
#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_request_time_out_and_leave_nothing() {
    within(async {
        let first_request = Duration::from_secs(2);
        let (address, registry) = start_with(Limits { first_request, ..LIMITS }).await;
        for _ in 0..2 {
            let mut open = Vec::new();
            for _ in 0..LIMITS.per_source {
                open.push(attack(address, b"GET").await);
            }
            while value(&registry, m::CONNECTIONS.name) > 0.0 {
                tokio::task::yield_now().await;
            }
            all_is_answered(address, "after connections timed out").await;
        }
        assert_eq!(value(&registry, m::CONNECTIONS_DROPPED.name), 2.0 * LIMITS.per_source as f64);
    })
    .await;
}

/// The test runs itself as a server with 48 descriptors.
const SERVER: &str = "TRUNKLINE_TEST_FEW_DESCRIPTORS";

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_descriptors_stop_no_probe() {
    if std::env::var_os(SERVER).is_some() {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(48), ..limit }).unwrap();
        let (address, _) = start().await;
        println!("address {address}");
        return std::future::pending().await;
    }
    let own = std::env::current_exe().unwrap();
    let mut server = Command::new(own)
        .args(["--exact", "exhausted_descriptors_stop_no_probe", "--nocapture"])
        .env(SERVER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(server.stdout.take().unwrap()));
    let address = lines.find_map(|line| {
        let line = line.unwrap();
        line.split_once("address ").map(|(_, address)| address.trim().parse().unwrap())
    });
    let address = address.expect("the server's address");
    let test = async {
        // The test opens more connections than the process has descriptors, and fewer than the
        // limit of one source.
        let mut open = Vec::new();
        for _ in 0..LIMITS.per_source {
            open.push(attack(address, b"").await);
        }
        all_is_answered(address, "without a free descriptor").await;
    };
    let outcome = tokio::time::timeout(DEADLINE, test).await;
    server.kill().unwrap();
    server.wait().unwrap();
    outcome.expect("no hang");
}
