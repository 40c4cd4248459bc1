//! The path from the API server to Services. The API server calls a webhook at its Service's
//! address. On this machine no kube-proxy translates such an address.
//!
//! The API server has a feature for clusters with a network that it cannot reach. It sends all
//! requests for this network to a proxy on a Unix socket (`CONNECT address:port`, KEP-1281). This
//! module is that proxy. For a request to a Service's address, it connects to a pod of the Service,
//! in the network namespace of the pod's node. So a chart's webhook configuration is used
//! unchanged: Service, port and certificate. Webhooks with a URL do not use it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::netns::Namespace;

/// The backend of each Service, by address and port: `10.96.0.1:443`.
pub(crate) type Routes = BTreeMap<String, Backend>;

/// A port of a pod on the network of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    pub node: Namespace,
    pub port: u16,
}

/// The proxy, until the value is dropped.
pub(crate) struct Egress {
    routes: Arc<Mutex<Routes>>,
    task: tokio::task::JoinHandle<()>,
}

/// The socket of a cluster's proxy.
fn socket(folder: &Path) -> PathBuf {
    folder.join("egress.sock")
}

/// Writes the API server's configuration for the proxy, and returns the file.
pub(super) fn write_configuration(folder: &Path) -> Result<PathBuf> {
    let file = folder.join("egress.json");
    let text = serde_json::json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": [{ "name": "cluster", "connection": {
            "proxyProtocol": "HTTPConnect", "transport": { "uds": { "udsName": socket(folder) } },
        } }],
    });
    std::fs::write(&file, text.to_string())?;
    Ok(file)
}

impl Egress {
    pub(super) fn open(runtime: &Runtime, folder: &Path) -> Result<Self> {
        let path = socket(folder);
        let _left = std::fs::remove_file(&path);
        let _reactor = runtime.enter();
        let listener = tokio::net::UnixListener::bind(&path).with_context(|| path.display().to_string())?;
        let routes = Arc::new(Mutex::new(Routes::new()));
        let task = runtime.spawn(serve(listener, Arc::clone(&routes)));
        Ok(Self { routes, task })
    }

    /// Replaces the Services with a backend.
    pub(crate) fn set(&self, routes: Routes) {
        *self.routes.lock().unwrap_or_else(PoisonError::into_inner) = routes;
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: tokio::net::UnixListener, routes: Arc<Mutex<Routes>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let routes = Arc::clone(&routes);
        connections.spawn(async move {
            // The API server reports the error, so the proxy only ends the connection.
            let _broken = connect(stream, &routes).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(mut asker: UnixStream, routes: &Mutex<Routes>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(asker.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split_whitespace();
    let (Some("CONNECT"), Some(address)) = (words.next(), words.next()) else { bail!("no CONNECT: {head}") };
    let backend = routes.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
    let Some(backend) = backend else {
        asker.write_all(b"HTTP/1.1 503 Service without a ready pod\r\n\r\n").await?;
        return Ok(());
    };
    let stream = tokio::task::spawn_blocking(move || {
        backend.node.within(|| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, backend.port))?))
    });
    let stream = stream.await??;
    stream.set_nonblocking(true)?;
    let mut pod = tokio::net::TcpStream::from_std(stream)?;
    asker.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    let _broken = tokio::io::copy_bidirectional(&mut asker, &mut pod).await;
    Ok(())
}
