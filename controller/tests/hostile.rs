//! Hostile clients of the webhook, over real sockets and TLS: attacks from 127.0.0.2 must not
//! affect an admission from 127.0.0.1.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests measure")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser as _;
use hyper::{Request, Response};
use kube::client::Body;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;
use trunkline_controller::config::Config;
use trunkline_controller::metrics::Metrics;
use trunkline_controller::state::SharedState;
use trunkline_controller::webhook;
use trunkline_daemon::connections::raise_descriptor_limit;

const FRIENDLY: &str = "127.0.0.1:0";
const HOSTILE: &str = "127.0.0.2:0";
/// Far more than any step needs, so that a hang ends.
const DEADLINE: Duration = Duration::from_secs(300);

/// An API server that never answers requests about Subnets named `forged`, and answers all others
/// with an empty list.
#[derive(Default)]
struct ApiServer {
    held: AtomicUsize,
    most_held: AtomicUsize,
}

impl ApiServer {
    fn client(self: &Arc<Self>) -> kube::Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                if request.uri().to_string().contains("forged") {
                    let _held = Held::count(&server);
                    std::future::pending::<()>().await;
                }
                let list = json!({
                    "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstanceList", "metadata": {}, "items": [],
                });
                Ok::<_, kube::Error>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        kube::Client::new(service, "default")
    }
}

struct Held<'a>(&'a ApiServer);

impl<'a> Held<'a> {
    fn count(server: &'a ApiServer) -> Self {
        let held = server.held.fetch_add(1, Ordering::SeqCst) + 1;
        server.most_held.fetch_max(held, Ordering::SeqCst);
        Held(server)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A running webhook with the data that its clients need.
struct Webhook {
    address: SocketAddr,
    roots: RootCertStore,
    api_server: Arc<ApiServer>,
    metrics: Arc<Metrics>,
    _folder: TempDir,
    _shutdown: tokio_util::sync::DropGuard,
}

impl Webhook {
    async fn start(client_ca: Option<&str>) -> Webhook {
        raise_descriptor_limit();
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(folder.path().join("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("tls.key"), key.serialize_pem()).unwrap();
        let address = std::net::TcpListener::bind(FRIENDLY).unwrap().local_addr().unwrap();
        let mut flags = vec![
            "trunkline-controller".to_owned(),
            format!("--webhook-listen={address}"),
            format!("--webhook-cert-dir={}", folder.path().display()),
        ];
        if let Some(ca) = client_ca {
            let file = folder.path().join("client-ca.pem");
            std::fs::write(&file, ca).unwrap();
            flags.push(format!("--webhook-client-ca={}", file.display()));
        }
        let config = Config::parse_from(flags);
        let metrics = Arc::new(Metrics::new().unwrap());
        let shared = SharedState::new(Arc::clone(&metrics));
        let api_server = Arc::new(ApiServer::default());
        let shutdown = CancellationToken::new();
        let (client, ended, counted) = (api_server.client(), shutdown.clone(), Arc::clone(&metrics));
        tokio::spawn(async move {
            let policy = config.policy();
            webhook::serve(&config.webhook, "test", client, shared, policy, &counted, ended).await.unwrap();
        });
        while TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let _shutdown = shutdown.drop_guard();
        Webhook { address, roots, api_server, metrics, _folder: folder, _shutdown }
    }

    async fn connect(&self, from: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(from.parse().unwrap()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn handshake(
        &self,
        from: &str,
        identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let config = match identity {
            Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, self.connect(from).await).await
    }

    /// Sends a review of the deletion of a Subnet.
    async fn review(&self, from: &str, subnet: &str) -> std::io::Result<String> {
        let mut stream = self.handshake(from, None).await?;
        stream.write_all(&request(subnet)).await?;
        answer(&mut stream).await
    }

    /// Checks an admission from another source than the hostile one, with an answer that the API
    /// server would accept.
    async fn admission_works(&self, when: &str) {
        let answer = self.review(FRIENDLY, "real").await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.contains(r#""allowed":true"#),
            "{when}: {answer}"
        );
    }

    /// The sum of all series of a metric of the webhook.
    fn value(&self, name: &str) -> f64 {
        let families = self.metrics.registry().gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        let series = family.get_metric().iter();
        series.map(|it| it.get_gauge().get_value() + it.get_counter().get_value()).sum()
    }
}

fn request(subnet: &str) -> Vec<u8> {
    let group = "networking.alibaba.com";
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "DELETE", "name": subnet, "userInfo": {"username": "somebody"},
            "kind": {"group": group, "version": "v1", "kind": "Subnet"},
            "resource": {"group": group, "version": "v1", "resource": "subnets"},
            "object": Value::Null, "options": Value::Null, "dryRun": false,
            "oldObject": {
                "apiVersion": format!("{group}/v1"), "kind": "Subnet", "metadata": {"name": subnet},
                "spec": {"network": "n", "range": {"version": "4", "cidr": "10.0.0.0/24"}},
            },
        },
    })
    .to_string();
    let length = review.len();
    format!(
        "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{review}"
    )
    .into_bytes()
}

async fn answer(stream: &mut TlsStream<TcpStream>) -> std::io::Result<String> {
    let mut octets = Vec::new();
    match stream.read_to_end(&mut octets).await {
        // The server closes the connection without a TLS close_notify.
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    Ok(String::from_utf8(octets).unwrap())
}

async fn within<T>(test: impl Future<Output = T>) -> T {
    // Only one flood runs at a time, because each uses half of the usual limit of file descriptors.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ALONE.lock().await;
    tokio::time::timeout(DEADLINE, test).await.expect("no hang")
}

/// Hostile connections, with admissions from another source between them.
async fn flood<T>(count: usize, attack: impl AsyncFn(&Webhook) -> T) {
    let webhook = Webhook::start(None).await;
    let mut open = Vec::new();
    while open.len() < count {
        open.push(attack(&webhook).await);
        if open.len().is_multiple_of(count / 10) {
            webhook.admission_works(&format!("with {} connections", open.len())).await;
        }
    }
    let connections = webhook.value("trunkline_controller_connections");
    assert!(connections <= 640.0 + 64.0, "{connections} connections are open");
    assert!(webhook.value("trunkline_controller_connections_dropped_total") >= (count - 640 - 64) as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_stop_no_admission() {
    within(flood(10_000, async |webhook| webhook.connect(HOSTILE).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handshakes_stop_no_admission() {
    within(flood(10_000, async |webhook| {
        let mut stream = webhook.connect(HOSTILE).await;
        // A partial handshake record. An error means that the connection was already closed.
        let _ = stream.write_all(&[22, 3, 1, 2, 0, 1]).await;
        stream
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_stop_no_admission() {
    within(flood(1_500, async |webhook| {
        let mut stream = webhook.handshake(HOSTILE, None).await.unwrap();
        let _ = stream.write_all(b"POST /validate HTTP/1.1\r\nHost:").await;
        stream
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_reviews_leave_readers_to_other_sources() {
    const FORGED: usize = 64;
    /// `LIMITS.work_per_source` of the webhook.
    const SHARE: usize = 8;
    within(async {
        let webhook = Arc::new(Webhook::start(None).await);
        let forged: Vec<_> = (0..FORGED)
            .map(|_| {
                let webhook = Arc::clone(&webhook);
                tokio::spawn(async move { webhook.review(HOSTILE, "forged").await.unwrap() })
            })
            .collect();
        while webhook.api_server.held.load(Ordering::SeqCst) < SHARE {
            tokio::task::yield_now().await;
        }
        webhook.admission_works("with the readers of another source held").await;
        for review in forged {
            let answer = review.await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        }
        assert_eq!(webhook.api_server.most_held.load(Ordering::SeqCst), SHARE);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_leave_memory_to_other_sources() {
    const LARGE: usize = 7 << 20;
    within(async {
        let webhook = Webhook::start(None).await;
        let mut open = Vec::new();
        for number in 1..=8 {
            let mut stream = webhook.handshake(HOSTILE, None).await.unwrap();
            // The last octet is missing.
            let head = format!("POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", LARGE + 1);
            stream.write_all(head.as_bytes()).await.unwrap();
            let sent = stream.write_all(&vec![b' '; LARGE]).await;
            // Four bodies of this size fit into 32 MiB.
            if number > 4 && sent.is_ok() {
                // No answer means that the connection was closed during the body.
                let answer = answer(&mut stream).await.unwrap_or_default();
                assert!(answer.is_empty() || answer.contains("too many large requests"), "{answer}");
            }
            open.push(stream);
        }
        webhook.admission_works("with large bodies under way").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_ca_refuses_other_certificates() {
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let issue = |authority: &CertifiedIssuer<'_, KeyPair>| {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["api-server".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, authority).unwrap();
        (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    };
    let (trusted, other) = (authority("trusted"), authority("other"));
    within(async {
        let webhook = Webhook::start(Some(&trusted.pem())).await;
        for (identity, is_served) in
            [(Some(issue(&trusted)), true), (Some(issue(&other)), false), (None, false)]
        {
            // In TLS 1.3 the client sees at its first read that its certificate was rejected.
            let answer = async {
                let mut stream = webhook.handshake(FRIENDLY, identity).await?;
                stream.write_all(&request("real")).await?;
                answer(&mut stream).await
            };
            let answer = answer.await;
            let ok = answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "));
            assert_eq!(ok, is_served, "{answer:?}");
        }
    })
    .await;
}
