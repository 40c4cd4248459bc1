//! The health of the service proxy, by a held connection to its `/healthz`.
//!
//! kube-proxy's server never closes an idle connection. So the end of the connection is the event
//! "the process has ended", and nothing is polled while it runs:
//!
//! ```text
//!            connected, 200                      connection ends, or no answer
//!  Unknown ─────────────────► Up ◄────────────┐ ┌──────────────────────────────► Away ─┐
//!                             │   200         │ │                                ▲     │ connect again
//!                             └─► Unhealthy, ─┘ │                                └─────┘ after 0.1 s to 1 s
//!                    503          NotEligible ──┘
//! ```
//!
//! A hung process keeps its connection. So the services task requests a check if an expected change
//! of the rules is late: one request on the held connection.
//!
//! Requests repeat in two cases, because no event reports the end of these states: connection
//! attempts while the proxy is away, and one request each second while its answer is not 200.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::services::ProxyHealth;

/// The most octets that are read of an answer.
const ANSWER: usize = 64 << 10;

/// Time limits and pauses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Limit of a connection attempt, and of an answer.
    patience: Duration,
    /// Pause after the first failed attempt, and the longest one.
    first: Duration,
    longest: Duration,
    /// Pause between requests while the answer is not 200.
    again: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        let second = Duration::from_secs(1);
        Pace { patience: second, first: Duration::from_millis(100), longest: second, again: second }
    }
}

/// Observes the health until all receivers of `health` are dropped. Calls `answered` after each
/// answer.
pub(super) async fn observe(
    address: SocketAddr,
    pace: Pace,
    check: Arc<Notify>,
    health: watch::Sender<ProxyHealth>,
    answered: impl Fn() + Send,
) {
    let attempts = async {
        let mut pause = pace.first;
        loop {
            let began = Instant::now();
            let why = hold(address, pace, &check, |found| {
                set(&health, address, found);
                answered();
            })
            .await
            .unwrap_or_else(|why| why);
            set_away(&health, address, &why);
            if began.elapsed() > pace.longest {
                pause = pace.first;
            }
            sleep(pause).await;
            pause = pace.longest.min(2 * pause);
        }
    };
    tokio::select! {
        () = attempts => {}
        () = health.closed() => {}
    }
}

/// Ends a task when it is dropped.
struct Guard(AbortHandle);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Holds a connection until it ends. Returns the reason of its end.
async fn hold(
    address: SocketAddr,
    pace: Pace,
    check: &Notify,
    answered: impl Fn(ProxyHealth),
) -> Result<String, String> {
    let stream = timeout(pace.patience, TcpStream::connect(address)).await;
    let stream =
        stream.map_err(|_| "no connection in time".to_owned())?.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let mut connection = tokio::spawn(connection);
    let _guard = Guard(connection.abort_handle());
    loop {
        let answer = timeout(pace.patience, ask(&mut sender, address)).await;
        let found = answer.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
        answered(found);
        tokio::select! {
            _ = &mut connection => return Ok("the connection ended".to_owned()),
            () = check.notified() => {}
            () = sleep(pace.again), if found != ProxyHealth::Up => {}
        }
    }
}

/// The part of kube-proxy's answer that counts. Its `lastUpdated` says nothing: it is the current
/// time whenever kube-proxy is healthy.
#[derive(Debug, Deserialize)]
struct Answer {
    /// False if the cluster autoscaler deletes the node.
    #[serde(rename = "nodeEligible")]
    node_eligible: Option<bool>,
}

/// Sends one request.
async fn ask(
    sender: &mut SendRequest<Empty<Bytes>>,
    address: SocketAddr,
) -> Result<ProxyHealth, hyper::Error> {
    sender.ready().await?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = Uri::from_static("/healthz");
    if let Ok(host) = HeaderValue::from_str(&address.to_string()) {
        request.headers_mut().insert(HOST, host);
    }
    let (head, body) = sender.send_request(request).await?.into_parts();
    // The body is read to its end, so the connection can be used again.
    let body = Limited::new(body, ANSWER).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let answer = || serde_json::from_slice::<Answer>(&body).ok();
    Ok(match head.status {
        StatusCode::OK => ProxyHealth::Up,
        _ if answer().is_some_and(|answer| answer.node_eligible == Some(false)) => ProxyHealth::NotEligible,
        _ => ProxyHealth::Unhealthy,
    })
}

fn set(health: &watch::Sender<ProxyHealth>, address: SocketAddr, found: ProxyHealth) {
    let changed = health.send_if_modified(|known| std::mem::replace(known, found) != found);
    if !changed {
        return;
    }
    match found {
        ProxyHealth::Up => tracing::info!(%address, "the service proxy is healthy"),
        ProxyHealth::NotEligible => {
            tracing::warn!(%address, "the service proxy reports that the cluster autoscaler deletes this node");
        }
        _ => tracing::warn!(%address, "the service proxy reports that its rules are out of date"),
    }
}

fn set_away(health: &watch::Sender<ProxyHealth>, address: SocketAddr, why: &str) {
    let since = Instant::now();
    let changed = health.send_if_modified(|known| {
        let was_there = !matches!(known, ProxyHealth::Away { .. });
        if was_there {
            *known = ProxyHealth::Away { since };
        }
        was_there
    });
    if changed {
        tracing::warn!(%address, why, "the service proxy does not answer; its rules stay in the kernel");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const PACE: Pace = Pace {
        patience: Duration::from_millis(300),
        first: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        again: Duration::from_millis(5),
    };

    const UP: &str = r#"200 OK|{"lastUpdated":"2026-01-01T00:00:00Z","nodeEligible":true}"#;
    const UNHEALTHY: &str = r#"503 Service Unavailable|{"nodeEligible":true}"#;
    const NOT_ELIGIBLE: &str = r#"503 Service Unavailable|{"nodeEligible":false}"#;

    struct Observed {
        health: watch::Receiver<ProxyHealth>,
        check: Arc<Notify>,
        answers: Arc<AtomicUsize>,
    }

    fn start(address: SocketAddr) -> Observed {
        let (sender, health) = watch::channel(ProxyHealth::Unknown);
        let (check, answers) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&answers);
        let answered = move || _ = count.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(observe(address, PACE, Arc::clone(&check), sender, answered));
        Observed { health, check, answers }
    }

    impl Observed {
        async fn wait(&mut self, what: &str, is: impl Fn(ProxyHealth) -> bool) -> ProxyHealth {
            let found = timeout(Duration::from_secs(10), self.health.wait_for(|health| is(*health))).await;
            *found.unwrap_or_else(|_| panic!("never {what}")).unwrap()
        }

        async fn wait_up(&mut self) {
            self.wait("up", |health| health == ProxyHealth::Up).await;
        }

        async fn wait_away(&mut self) -> Instant {
            match self.wait("away", |health| matches!(health, ProxyHealth::Away { .. })).await {
                ProxyHealth::Away { since } => since,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Reads one request.
    async fn request(stream: &mut TcpStream) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        Some(String::from_utf8(head).unwrap())
    }

    async fn answer(stream: &mut TcpStream, answer: &str) {
        let (status, body) = answer.split_once('|').unwrap();
        let text = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn one_request_holds_while_the_connection_lives() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut observed = start(address);
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = request(&mut stream).await.unwrap();
        assert!(head.starts_with("GET /healthz HTTP/1.1\r\n"), "{head}");
        assert!(head.contains(&format!("host: {address}\r\n")), "{head}");
        answer(&mut stream, UP).await;
        observed.wait_up().await;
        // No further request and no further connection.
        assert!(timeout(Duration::from_millis(100), stream.read_u8()).await.is_err());
        assert!(timeout(Duration::from_millis(20), listener.accept()).await.is_err());
        // A check is one request.
        observed.check.notify_one();
        request(&mut stream).await.unwrap();
        answer(&mut stream, UP).await;
        assert!(timeout(Duration::from_millis(100), stream.read_u8()).await.is_err());
        assert_eq!(observed.answers.load(Ordering::Relaxed), 2);
        assert_eq!(*observed.health.borrow(), ProxyHealth::Up);

        // The process ends.
        drop(stream);
        observed.wait_away().await;
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await.unwrap();
        answer(&mut stream, UP).await;
        observed.wait_up().await;
    }

    #[tokio::test]
    async fn a_503_is_requested_again_until_its_end() {
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let mut observed = start(listener.local_addr().unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        for (text, health) in [
            (UNHEALTHY, ProxyHealth::Unhealthy),
            (NOT_ELIGIBLE, ProxyHealth::NotEligible),
            ("503 Service Unavailable|no JSON", ProxyHealth::Unhealthy),
            (UP, ProxyHealth::Up),
        ] {
            request(&mut stream).await.unwrap();
            answer(&mut stream, text).await;
            observed.wait(text, |found| found == health).await;
        }
    }

    #[tokio::test]
    async fn a_process_that_hangs_is_found_by_a_check() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut observed = start(listener.local_addr().unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await.unwrap();
        answer(&mut stream, UP).await;
        observed.wait_up().await;
        // It keeps its connections and answers nothing.
        observed.check.notify_one();
        let since = observed.wait_away().await;
        let mut others = Vec::new();
        for _ in 0..2 {
            others.push(listener.accept().await.unwrap());
        }
        assert_eq!(observed.wait_away().await, since, "one absence");
        // It goes on.
        let (stream, _) = &mut others[1];
        request(stream).await.unwrap();
        answer(stream, UP).await;
        observed.wait_up().await;
    }

    #[tokio::test]
    async fn a_missing_listener_is_away_until_it_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut observed = start(address);
        let since = observed.wait_away().await;
        sleep(Duration::from_millis(100)).await;
        assert_eq!(observed.wait_away().await, since);
        assert_eq!(observed.answers.load(Ordering::Relaxed), 0);
        let listener = TcpListener::bind(address).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await.unwrap();
        answer(&mut stream, UP).await;
        observed.wait_up().await;
    }

    #[tokio::test]
    async fn nonsense_is_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut observed = start(listener.local_addr().unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        observed.wait_away().await;
        // An endless body.
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await.unwrap();
        let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 1000000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let _ = stream.write_all(&vec![b'x'; ANSWER + 1]).await;
        while observed.answers.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        observed.wait_away().await;
    }
}
