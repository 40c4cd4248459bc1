//! The API server's client of agent and controller: kube's own, over sockets that detect a dead
//! peer.
//!
//! A watch is a connection that may be idle for a minute. A machine that lost its power, a firewall
//! that dropped its state, or a missing route sends no reset. Then kube's client waits for minutes:
//! five minutes for its watches, and a quarter of an hour for an answer, because the kernel
//! retransmits the request for so long. So the kernel probes each idle connection (keepalive). It
//! also closes a connection on which neither a probe nor data was acknowledged within `DEAD`
//! (`TCP_USER_TIMEOUT`). The cost to the API server is negligible, because only the kernels handle
//! the probes.
//!
//! kube builds its layers around its own connector, and these options cannot be set there. So this
//! module builds the same layers around another connector. Another layer bounds the size of answers
//! ([`crate::list_limit`]).

use std::fmt::Debug;
use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::api::{Api, ListParams};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use crate::list_limit::{BOUNDS, ListLimitLayer};

/// Time limit for the connection, TLS included.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
/// Idle time before the first keepalive probe.
const IDLE: Duration = Duration::from_secs(10);
/// Interval between keepalive probes without an answer.
const AGAIN: Duration = Duration::from_secs(5);
/// Time without an acknowledgement after which a connection is closed.
const DEAD: Duration = Duration::from_secs(25);
/// Objects in a page of a list.
const PAGE: u32 = 500;

/// Creates a client. It sends no request yet.
///
/// # Errors
/// The certificates or the credentials of the configuration cannot be used, or it names a proxy,
/// which is not supported.
pub fn client(mut config: Config) -> kube::Result<Client> {
    config.connect_timeout = Some(CONNECT);
    if config.proxy_url.is_some() {
        // kube's error names the missing feature.
        return Client::try_from(config);
    }
    let https = config.rustls_https_connector_with_connector(sockets())?;
    let mut connector = TimeoutConnector::new(https);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(ListLimitLayer(BOUNDS))
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(Client::new(service.boxed(), config.default_namespace))
}

/// All objects of a list, which is read in pages.
///
/// # Errors
/// The API server does not answer, or refuses the list.
pub async fn list_all<K>(api: &Api<K>, mut params: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    params.limit = Some(PAGE);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await?;
        objects.extend(page.items);
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(objects);
        }
    }
}

/// A connector whose sockets detect a dead peer.
pub(crate) fn sockets() -> HttpConnector {
    let mut sockets = HttpConnector::new();
    // The TLS layer is on top of this connector.
    sockets.enforce_http(false);
    sockets.set_keepalive(Some(IDLE));
    sockets.set_keepalive_interval(Some(AGAIN));
    sockets.set_tcp_user_timeout(Some(DEAD));
    sockets
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tower::Service as _;

    use super::*;

    #[tokio::test]
    async fn sockets_have_keepalive_and_user_timeout() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = format!("https://{}", server.local_addr().expect("an address"));
        let connected = sockets().call(address.parse().expect("a URI")).await.expect("a connection");
        let socket = SockRef::from(connected.inner());
        assert!(socket.keepalive().expect("an option"));
        assert_eq!(socket.tcp_keepalive_time().expect("an option"), IDLE);
        assert_eq!(socket.tcp_keepalive_interval().expect("an option"), AGAIN);
        assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(DEAD));
    }
}
