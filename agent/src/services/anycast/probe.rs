//! The requests of health checks.
//!
//! Each probe has its own connection, so it tests what a new client needs. A probe follows no
//! redirect, and reads no setting such as a proxy from the environment.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt as _, Empty, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, TE, USER_AGENT};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::{HttpProbe, ProbeMethod, Trust};

/// The User-Agent header.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("Trunkline/", env!("CARGO_PKG_VERSION")));
/// The path of gRPC's health service.
const HEALTH_PATH: &str = "/grpc.health.v1.Health/Check";
/// The most octets of a CA file.
const MAX_CA_FILE: u64 = 1 << 20;
/// The most octets that are read of a gRPC answer.
const ANSWER: usize = 4096;

/// The reason for which a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There was no result in time.
    #[error("no result within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// No connection.
    #[error("no connection to {to}: {source}")]
    Connect {
        /// The address and the port.
        to: SocketAddr,
        /// The error.
        source: io::Error,
    },
    /// The server broke off, or its answer is no HTTP.
    #[error("no answer from {to}: {source}")]
    Answer {
        /// The address and the port.
        to: SocketAddr,
        /// The error.
        source: hyper::Error,
    },
    /// The request cannot be made from the manifest.
    #[error("the request cannot be made: {0}: check path and host")]
    Request(#[from] hyper::http::Error),
    /// The status code is not one of the expected ones.
    #[error("{to} answers {status}, expected {} to {}", expected.start(), expected.end())]
    Status {
        /// The address and the port.
        to: SocketAddr,
        /// Its status code.
        status: StatusCode,
        /// The codes that pass.
        expected: RangeInclusive<u16>,
    },
    /// The TLS session failed.
    #[error("no TLS session with {to}: {source}")]
    Handshake {
        /// The address and the port.
        to: SocketAddr,
        /// The error.
        source: io::Error,
    },
    /// The CAs cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The gRPC server cannot answer the request.
    #[error("{to} answers gRPC status {status}{}", if message.is_empty() { String::new() } else { format!(": {message}") })]
    Grpc {
        /// The address and the port.
        to: SocketAddr,
        /// `grpc-status`.
        status: String,
        /// `grpc-message`.
        message: String,
    },
    /// The answer is none of gRPC's health service.
    #[error("{0} sends no answer of grpc.health.v1.Health")]
    NotGrpc(SocketAddr),
    /// The server does not serve.
    #[error("{to} answers {}", ServingStatus(*status))]
    NotServing {
        /// The address and the port.
        to: SocketAddr,
        /// The status in the answer.
        status: i32,
    },
    /// The program cannot be started.
    #[error("{program} cannot be started: {source}")]
    Start {
        /// The program.
        program: String,
        /// The error.
        source: io::Error,
    },
    /// The program failed.
    #[error("{program} ends with {status}")]
    Exit {
        /// The program.
        program: String,
        /// Its status.
        status: ExitStatus,
    },
}

/// The reason for which a TLS session cannot be tried.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file cannot be read.
    #[error("caFile: {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It is no file, or too large.
    #[error("caFile: {} is no file of at most {MAX_CA_FILE} octets", .0.display())]
    NoFile(PathBuf),
    /// The file has other contents.
    #[error("caFile: {} has no PEM certificates: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The error.
        source: pem::Error,
    },
    /// There is no CA.
    #[error("{0} has no CA certificate: write caFile")]
    NoCa(String),
    /// The name is no name of a certificate.
    #[error("host: {0}: write a DNS name or an address")]
    Name(#[from] InvalidDnsNameError),
    /// TLS refuses the settings.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Sends the probes of one health check.
#[derive(Debug)]
pub struct Prober {
    method: ProbeMethod,
    timeout: Duration,
    tls: Option<Tls>,
}

/// TLS settings, with the state of the CA file that they were made from.
#[derive(Clone, Debug)]
struct Tls {
    config: Arc<ClientConfig>,
    file: Option<(SystemTime, u64)>,
}

impl Prober {
    /// Sends no request yet.
    pub fn new(method: ProbeMethod, timeout: Duration) -> Prober {
        Prober { method, timeout, tls: None }
    }

    /// Sends one probe. Dropping the future ends it.
    ///
    /// # Errors
    /// The probe failed.
    pub async fn probe(&mut self, address: IpAddr) -> Result<(), ProbeError> {
        let limit = self.timeout;
        timeout(limit, self.send(address)).await.unwrap_or(Err(ProbeError::Timeout(limit)))
    }

    async fn send(&mut self, address: IpAddr) -> Result<(), ProbeError> {
        match &self.method {
            ProbeMethod::Tcp { port } => connect(SocketAddr::new(address, *port)).await.map(drop),
            ProbeMethod::Http(http) => {
                let to = SocketAddr::new(address, http.port);
                get(connect(to).await?, to, 80, http).await
            }
            ProbeMethod::Https(http, trust) => {
                let to = SocketAddr::new(address, http.port);
                let config = tls(&mut self.tls, trust).await?;
                let name = match http.host.as_str() {
                    "" => ServerName::from(address),
                    host => ServerName::try_from(host.to_owned()).map_err(TrustError::from)?,
                };
                let stream = connect(to).await?;
                let session = TlsConnector::from(config).connect(name, stream).await;
                let session = session.map_err(|source| ProbeError::Handshake { to, source })?;
                get(session, to, 443, http).await
            }
            ProbeMethod::Grpc { port, service } => {
                let to = SocketAddr::new(address, *port);
                check_grpc(connect(to).await?, to, service).await
            }
            ProbeMethod::Command(arguments) => run(arguments).await,
        }
    }
}

async fn connect(to: SocketAddr) -> Result<TcpStream, ProbeError> {
    TcpStream::connect(to).await.map_err(|source| ProbeError::Connect { to, source })
}

// ---- HTTP

async fn get<S>(stream: S, to: SocketAddr, default_port: u16, http: &HttpProbe) -> Result<(), ProbeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = |source| ProbeError::Answer { to, source };
    let host = match (http.host.as_str(), to) {
        ("", to) if to.port() != default_port => to.to_string(),
        ("", SocketAddr::V4(to)) => to.ip().to_string(),
        ("", SocketAddr::V6(to)) => format!("[{}]", to.ip()),
        (host, _) => host.to_owned(),
    };
    let request = Request::get(&http.path)
        .header(HOST, host)
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(answer)?;
    let response = driven(connection, sender.send_request(request)).await.map_err(answer)?;
    let status = response.status();
    match http.expected.contains(&status.as_u16()) {
        true => Ok(()),
        false => Err(ProbeError::Status { to, status, expected: http.expected.clone() }),
    }
}

/// The result of `work`, which needs the connection.
async fn driven<T>(connection: impl Future<Output = hyper::Result<()>>, work: impl Future<Output = T>) -> T {
    let (mut connection, mut work) = (pin!(connection), pin!(work));
    tokio::select! {
        result = &mut work => result,
        // The work ends with the error of the connection.
        _ = &mut connection => work.await,
    }
}

// ---- TLS

/// The settings, made again after a change of the CA file.
async fn tls(cached: &mut Option<Tls>, trust: &Trust) -> Result<Arc<ClientConfig>, TrustError> {
    let known = cached.clone();
    let trust = trust.clone();
    // Files can block.
    let made = tokio::task::spawn_blocking(move || make_tls(known, &trust)).await;
    // The task ends only with the runtime, or by a panic, which ends the agent.
    let made = made.unwrap_or_else(|error| Err(TrustError::NoCa(error.to_string())))?;
    Ok(Arc::clone(&cached.insert(made).config))
}

fn make_tls(known: Option<Tls>, trust: &Trust) -> Result<Tls, TrustError> {
    let file = match trust {
        Trust::File(path) => Some(state(path)?),
        Trust::Host | Trust::Everything => None,
    };
    if let Some(tls) = known
        && tls.file == file
    {
        return Ok(tls);
    }
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let config = match trust {
        Trust::Everything => {
            let verifier = Arc::new(AnyCertificate(provider));
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
        Trust::File(path) => builder.with_root_certificates(from_file(path)?).with_no_client_auth(),
        Trust::Host => builder.with_root_certificates(of_host()?).with_no_client_auth(),
    };
    Ok(Tls { config: Arc::new(config), file })
}

/// The time of the last change of a CA file, and its size.
fn state(path: &Path) -> Result<(SystemTime, u64), TrustError> {
    let read = |source| TrustError::Read { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(read)?;
    if !metadata.is_file() || metadata.len() > MAX_CA_FILE {
        return Err(TrustError::NoFile(path.to_owned()));
    }
    Ok((metadata.modified().map_err(read)?, metadata.len()))
}

fn from_file(path: &Path) -> Result<RootCertStore, TrustError> {
    let text = std::fs::read(path).map_err(|source| TrustError::Read { path: path.to_owned(), source })?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|source| TrustError::Pem { path: path.to_owned(), source })?;
        roots.add(certificate)?;
    }
    if roots.is_empty() { Err(TrustError::NoCa(format!("caFile: {}", path.display()))) } else { Ok(roots) }
}

fn of_host() -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    // A CA that cannot be read signs no certificate here.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TrustError::NoCa("this host".to_owned())) } else { Ok(roots) }
}

/// Accepts every certificate. The server must still have its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

// ---- gRPC

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SERVING` of `HealthCheckResponse.ServingStatus`.
const SERVING: i32 = 1;

/// The name of a `HealthCheckResponse.ServingStatus`.
struct ServingStatus(i32);

impl std::fmt::Display for ServingStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("UNKNOWN"),
            SERVING => f.write_str("SERVING"),
            2 => f.write_str("NOT_SERVING"),
            3 => f.write_str("SERVICE_UNKNOWN"),
            other => write!(f, "health status {other}"),
        }
    }
}

async fn check_grpc(stream: TcpStream, to: SocketAddr, service: &str) -> Result<(), ProbeError> {
    let answer = |source| ProbeError::Answer { to, source };
    let message = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
    // A message is not compressed (0), and its length has four octets.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    let body = [&[0][..], &length, &message].concat();
    let request = Request::post(format!("http://{to}{HEALTH_PATH}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, AGENT)
        .body(Full::<Bytes>::from(body))?;
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(answer)?;
    let work = async {
        let response = sender.send_request(request).await.map_err(answer)?;
        read_grpc(response, to).await
    };
    driven(connection, work).await
}

async fn read_grpc(response: Response<Incoming>, to: SocketAddr) -> Result<(), ProbeError> {
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(ProbeError::Status { to, status: head.status, expected: 200..=200 });
    }
    let body = Limited::new(body, ANSWER).collect().await.map_err(|_| ProbeError::NotGrpc(to))?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    // An answer without a message has its status in the header.
    let text = |name: &str| {
        let of = |headers: &HeaderMap| Some(headers.get(name)?.to_str().ok()?.to_owned());
        of(&trailers).or_else(|| of(&head.headers))
    };
    match text("grpc-status") {
        Some(status) if status != "0" => {
            let message = text("grpc-message").unwrap_or_default();
            return Err(ProbeError::Grpc { to, status, message });
        }
        _ => {}
    }
    let octets = body.to_bytes();
    let message = octets.split_at_checked(5).filter(|(prefix, _)| prefix[0] == 0);
    let message = message.and_then(|(_, message)| HealthCheckResponse::decode(message).ok());
    match message.map(|message| message.status) {
        Some(SERVING) => Ok(()),
        Some(status) => Err(ProbeError::NotServing { to, status }),
        None => Err(ProbeError::NotGrpc(to)),
    }
}

// ---- programs

/// Kills the processes of a program that did not end in time.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // They may have ended in this moment.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn run(arguments: &[String]) -> Result<(), ProbeError> {
    let (program, arguments) = match arguments {
        [program, arguments @ ..] => (program.clone(), arguments),
        [] => (String::new(), arguments),
    };
    let child = Command::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(source) => return Err(ProbeError::Start { program, source }),
    };
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    // It is dropped before the child, so the number still belongs to this group.
    let mut group = ProcessGroup(pid);
    let ended = child.wait().await;
    group.0 = None;
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(ProbeError::Exit { program, status }),
        Err(source) => Err(ProbeError::Start { program, source }),
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
