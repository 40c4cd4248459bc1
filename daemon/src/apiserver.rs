//! The client of the API server, as agent and controller make it: kube's own, over sockets that notice when nobody is there any more.
//!
//! A watch is a connection over which nothing may come for a minute, and a machine that lost its power, a firewall that forgot the connection or a
//! route that went away send no reset. Then kube's client waits for minutes: for its watches five, and for an answer
//! as long as the kernel repeats the request, which is a quarter of an hour. So the kernel is told to ask each idle connection whether the other
//! end is there (keepalive), and to give a connection up over which for `DEAD` nothing was acknowledged, be it such a question
//! or data (`TCP_USER_TIMEOUT`). It costs the API server nothing that it would notice: the kernels talk, not the programs.
//!
//! kube builds its stack of layers around a connector of its own, without a way to set these; so the same layers are put around ours here.

use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

/// A connection that takes longer to be made, TLS included, is none.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
/// An idle connection is asked after so long,
const IDLE: Duration = Duration::from_secs(10);
/// and again each time so much has passed without an answer.
const AGAIN: Duration = Duration::from_secs(5);
/// Without a sign of life for so long, a connection is dead.
const DEAD: Duration = Duration::from_secs(25);

/// Makes a client. Nothing is asked yet.
///
/// # Errors
/// The certificates or the credentials of the configuration cannot be used, or it names a proxy, which is not supported.
pub fn client(mut config: Config) -> kube::Result<Client> {
    config.connect_timeout = Some(CONNECT);
    if config.proxy_url.is_some() {
        // kube says what is missing for it.
        return Client::try_from(config);
    }
    let https = config.rustls_https_connector_with_connector(sockets())?;
    let mut connector = TimeoutConnector::new(https);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(Client::new(service.boxed(), config.default_namespace))
}

/// Connections that notice when nobody is there any more.
pub(crate) fn sockets() -> HttpConnector {
    let mut sockets = HttpConnector::new();
    // TLS is put on top of it.
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
    async fn a_connection_is_watched_by_the_kernel() {
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
