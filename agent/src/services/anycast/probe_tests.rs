//! Probes against small servers on the loopback interface.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const LIMIT: Duration = Duration::from_secs(5);

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((HOME, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn http(port: u16) -> HttpProbe {
    HttpProbe { port, path: "/".to_owned(), host: String::new(), expected: 200..=399 }
}

async fn probe(method: ProbeMethod) -> Result<(), String> {
    Prober::new(method, LIMIT).probe(HOME).await.map_err(|error| error.to_string())
}

/// Answers the request heads for which `passes` is true with 204, others with 503.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, passes: impl Fn(&str) -> bool) {
    let mut request = [0; 1024];
    let length = stream.read(&mut request).await.unwrap_or_default();
    let status = if passes(&String::from_utf8_lossy(&request[..length])) { 204 } else { 503 };
    let _gone = stream.write_all(format!("HTTP/1.1 {status} x\r\n\r\n").as_bytes()).await;
    let _gone = stream.shutdown().await;
}

#[tokio::test]
async fn tcp_and_http_probes_pass_or_name_the_fault() {
    let (listener, port) = listener().await;
    assert_eq!(probe(ProbeMethod::Tcp { port }).await, Ok(()));
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let host = format!("host: 127.0.0.1:{port}\r\n");
            answer(stream, |request| {
                let request = request.to_lowercase();
                request.starts_with("get / http/1.1") && request.contains(&host)
                    || request.starts_with("get /healthz?v http/1.1") && request.contains("host: api\r\n")
            })
            .await;
        }
    });
    assert_eq!(probe(ProbeMethod::Http(http(port))).await, Ok(()));
    let named = HttpProbe { path: "/healthz?v".to_owned(), host: "api".to_owned(), ..http(port) };
    assert_eq!(probe(ProbeMethod::Http(named)).await, Ok(()));
    let other = HttpProbe { path: "/other".to_owned(), ..http(port) };
    let error = probe(ProbeMethod::Http(other.clone())).await.unwrap_err();
    assert!(error.ends_with("answers 503 Service Unavailable, expected 200 to 399"), "{error}");
    assert_eq!(probe(ProbeMethod::Http(HttpProbe { expected: 503..=503, ..other })).await, Ok(()));
    let wrong = HttpProbe { path: "a b".to_owned(), ..http(port) };
    assert!(probe(ProbeMethod::Http(wrong)).await.unwrap_err().contains("check path and host"));

    server.abort();
    let _ = server.await;
    for method in [ProbeMethod::Tcp { port }, ProbeMethod::Http(http(port))] {
        let error = probe(method).await.unwrap_err();
        assert!(error.starts_with(&format!("no connection to 127.0.0.1:{port}: ")), "{error}");
    }
}

#[tokio::test]
async fn a_silent_server_fails_in_time() {
    let (_listener, port) = listener().await;
    for method in [
        ProbeMethod::Http(http(port)),
        ProbeMethod::Https(http(port), Trust::Everything),
        ProbeMethod::Grpc { port, service: String::new() },
    ] {
        let mut prober = Prober::new(method, Duration::from_millis(50));
        let error = prober.probe(HOME).await.unwrap_err().to_string();
        assert_eq!(error, "no result within 50 ms");
    }
}

/// A server with a certificate for `localhost`, and the certificate as PEM.
async fn https() -> (u16, String) {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let provider = Arc::new(ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let (acceptor, (listener, port)) = (TlsAcceptor::from(Arc::new(server)), listener().await);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                answer(stream, |request| request.starts_with("GET /livez HTTP/1.1")).await;
            }
        }
    });
    (port, own.cert.pem())
}

#[tokio::test]
async fn https_probes_check_the_certificate() {
    let (port, certificate) = https().await;
    let (_, other) = https().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let named = HttpProbe { path: "/livez".to_owned(), host: "localhost".to_owned(), ..http(port) };
    let by_address = HttpProbe { host: String::new(), ..named.clone() };
    let of_file = || Trust::File(file.clone());

    let device = Trust::File("/dev/zero".into());
    let device = probe(ProbeMethod::Https(named.clone(), device)).await.unwrap_err();
    assert!(device.contains("/dev/zero is no file of at most 1048576 octets"), "{device}");
    let missing = probe(ProbeMethod::Https(named.clone(), of_file())).await.unwrap_err();
    assert!(missing.contains("ca.pem cannot be read"), "{missing}");
    fs::write(&file, "no certificate").unwrap();
    let empty = probe(ProbeMethod::Https(named.clone(), of_file())).await.unwrap_err();
    assert!(empty.contains("ca.pem has no CA certificate"), "{empty}");
    fs::write(&file, &certificate).unwrap();
    assert_eq!(probe(ProbeMethod::Https(named.clone(), of_file())).await, Ok(()));
    let wrong_name = probe(ProbeMethod::Https(by_address.clone(), of_file())).await.unwrap_err();
    assert!(wrong_name.starts_with("no TLS session with"), "{wrong_name}");
    assert_eq!(probe(ProbeMethod::Https(by_address, Trust::Everything)).await, Ok(()));

    let mut prober = Prober::new(ProbeMethod::Https(named, of_file()), LIMIT);
    prober.probe(HOME).await.unwrap();
    fs::write(&file, format!("{other}\n")).unwrap();
    let error = prober.probe(HOME).await.unwrap_err();
    assert!(matches!(error, ProbeError::Handshake { .. }), "the file is read again: {error}");
}

type GrpcBody = StreamBody<futures_util::stream::Iter<std::vec::IntoIter<hyper::Result<Frame<Bytes>>>>>;

/// gRPC's health service: the answer depends on the requested service.
async fn health(request: Request<Incoming>) -> hyper::Result<Response<GrpcBody>> {
    assert_eq!(request.uri().path(), HEALTH_PATH);
    assert_eq!(request.headers()[CONTENT_TYPE], "application/grpc");
    let body = request.into_body().collect().await?.to_bytes();
    let (status, code) = match HealthCheckRequest::decode(&body[5..]).unwrap().service.as_str() {
        "" => (Some(SERVING), "0"),
        "down" => (Some(2), "0"),
        "silent" => (None, "0"),
        _ => (None, "5"),
    };
    let message = status.map(|status| HealthCheckResponse { status }.encode_to_vec());
    let data = message.map(|it| [&[0, 0, 0, 0, it.len() as u8][..], &it].concat());
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())]);
    let frames = data.map(|data| Frame::data(Bytes::from(data))).into_iter();
    let frames: Vec<_> = frames.chain([Frame::trailers(trailers)]).map(Ok).collect();
    Ok(Response::new(StreamBody::new(futures_util::stream::iter(frames))))
}

/// A server with gRPC's health service.
async fn grpc() -> u16 {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(health)));
        }
    });
    port
}

#[tokio::test]
async fn grpc_probes_read_the_health_service() {
    let port = grpc().await;
    let check = |service: &str| probe(ProbeMethod::Grpc { port, service: service.to_owned() });
    assert_eq!(check("").await, Ok(()));
    let to = format!("127.0.0.1:{port}");
    assert_eq!(check("down").await, Err(format!("{to} answers NOT_SERVING")));
    assert_eq!(check("silent").await, Err(format!("{to} sends no answer of grpc.health.v1.Health")));
    assert_eq!(check("other").await, Err(format!("{to} answers gRPC status 5")));
}

#[tokio::test]
async fn a_program_passes_by_its_status() {
    let command =
        |arguments: &[&str]| ProbeMethod::Command(arguments.iter().map(|it| (*it).to_owned()).collect());
    assert_eq!(probe(command(&["true"])).await, Ok(()));
    assert_eq!(probe(command(&["sh", "-c", "exit 3"])).await, Err("sh ends with exit status: 3".to_owned()));
    let missing = probe(command(&["/nowhere/check"])).await.unwrap_err();
    assert!(missing.starts_with("/nowhere/check cannot be started: "), "{missing}");
}

#[tokio::test]
async fn a_program_without_an_end_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let (script, pids) = (folder.path().join("check"), folder.path().join("pids"));
    fs::write(
        &script,
        format!("#!/bin/sh\nsleep 1000 &\necho $! > {0}.new\nmv {0}.new {0}\nwait\n", pids.display()),
    )
    .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let method = ProbeMethod::Command(vec![script.display().to_string()]);
    let mut prober = Prober::new(method, Duration::from_millis(500));
    assert!(matches!(prober.probe(HOME).await, Err(ProbeError::Timeout(_))));
    let pid: u32 = fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
    // A killed process may wait for its parent.
    let is_alive = || {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    };
    let until = Instant::now() + LIMIT;
    while is_alive() {
        assert!(Instant::now() < until, "the child of the program still runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
