//! Requests to other servers than the API server: the collector of telemetry.
//!
//! The sockets come from [`crate::apiserver`] and detect a dead peer. TLS comes from kube, which
//! reloads a CA file. So this client needs no other HTTP stack. It reads no setting, such as a
//! proxy, from the environment. It follows no redirect, because no other server may receive its
//! headers.

use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::ConfigExt as _;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt as _};

use crate::apiserver::{CONNECT, sockets};

/// The most octets that are read of an answer.
const ANSWER: usize = 64 << 10;
/// Idle time after which a connection is closed.
const UNUSED: Duration = Duration::from_secs(60);

/// A client that keeps its connection open.
#[derive(Clone, Debug)]
pub struct OutboundClient(BoxCloneSyncService<Request<Full<Bytes>>, Response<Incoming>, BoxError>);

/// The answer of a server.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// Its status.
    pub status: StatusCode,
    /// Delay requested by the server, if given in seconds.
    pub retry_after: Option<Duration>,
    /// The body; empty if longer than 64 KiB.
    pub body: Bytes,
}

impl OutboundClient {
    /// Creates a client for this server. Its certificate is checked against `ca_file` or, without
    /// it, the system's CAs. It sends no request yet.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub fn new(server: &Uri, ca_file: Option<&Path>) -> Result<Self, BoxError> {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(UNUSED);
        if server.scheme_str() != Some("https") {
            let mut connector = TimeoutConnector::new(sockets());
            connector.set_connect_timeout(Some(CONNECT));
            return Ok(Self(BoxCloneSyncService::new(builder.build(connector).map_err(BoxError::from))));
        }
        let mut config = Config::new(server.clone());
        if let Some(path) = ca_file {
            // Only the CAs of the file are trusted, not the CAs of the system.
            config.root_cert = Some(Vec::new());
            config.root_cert_file = Some(path.to_owned());
        }
        let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(sockets())?);
        connector.set_connect_timeout(Some(CONNECT));
        Ok(Self(BoxCloneSyncService::new(builder.build(connector).map_err(BoxError::from))))
    }

    /// Sends a POST and reads the answer. There is no time limit: the caller must set one.
    ///
    /// # Errors
    /// There was no answer. The text gives the reason, without any header.
    pub async fn post(&self, to: Uri, headers: HeaderMap, body: Bytes) -> Result<HttpResponse, BoxError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = to;
        *request.headers_mut() = headers;
        let answer = self.0.clone().oneshot(request).await?;
        let (head, body) = answer.into_parts();
        let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        // Read the body to its end, so the connection can be reused.
        let body = Limited::new(body, ANSWER).collect().await.map(|body| body.to_bytes());
        Ok(HttpResponse {
            status: head.status,
            retry_after: after.map(Duration::from_secs),
            body: body.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    use super::*;

    #[tokio::test]
    async fn only_certificates_of_the_ca_file_are_trusted() {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .expect("a server");
        let (acceptor, listener) =
            (TlsAcceptor::from(Arc::new(server)), TcpListener::bind("127.0.0.1:0").await);
        let listener = listener.expect("a socket");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.unwrap_or_default();
                let matches = request[..length].starts_with(b"POST /v1/logs HTTP/1.1\r\n");
                let status = if matches { "202 Accepted" } else { "400 Bad Request" };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nretry-after: 7\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
                );
                let _gone = stream.write_all(answer.as_bytes()).await;
                let _gone = stream.shutdown().await;
            }
        });

        let to: Uri = format!("https://localhost:{port}/v1/logs").parse().expect("a URI");
        let folder = tempfile::tempdir().expect("a folder");
        let post = async |certificate: String| {
            let file = folder.path().join("ca.pem");
            std::fs::write(&file, certificate).expect("written");
            let client = OutboundClient::new(&to, Some(&file))?;
            client.post(to.clone(), HeaderMap::new(), Bytes::new()).await
        };
        let answer = post(own.cert.pem()).await.expect("an answer");
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        assert_eq!((answer.retry_after, &answer.body[..]), (Some(Duration::from_secs(7)), &b"hi"[..]));
        let error = post(other.cert.pem()).await.expect_err("another's certificate");
        assert!(
            format!("{error:?}").contains("UnknownIssuer") || format!("{error:?}").contains("BadSignature"),
            "{error:?}"
        );
        let missing = OutboundClient::new(&to, Some(&folder.path().join("none.pem")));
        assert!(missing.is_err(), "there is no such file");
    }
}
