//! The API server's address in another network namespace. A socket belongs to the namespace in
//! which its thread created it, and stays usable from any thread. So the listening socket is
//! created in the other namespace, and the connections to the API server in the machine's
//! namespace. The module copies octets between them. A node in a namespace then needs no route to
//! the machine, and a test's kubeconfig is the same in both namespaces.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context as _, Result};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::netns::Namespace;

/// A forwarded port: connections to a port on 127.0.0.1 of a namespace reach a port of the machine,
/// until this value is dropped.
pub(crate) struct Doorway {
    task: tokio::task::JoinHandle<()>,
}

impl Doorway {
    /// Forwards connections to this address in a namespace to `server`, from the namespace of the
    /// runtime's threads.
    pub(crate) fn open(
        runtime: &Runtime,
        into: &Namespace,
        at: SocketAddr,
        server: SocketAddr,
    ) -> Result<Self> {
        let listener = into
            .within(|| Ok(TcpListener::bind(at)?))
            .with_context(|| format!("{at} in namespace {}", into.name()))?;
        listener.set_nonblocking(true)?;
        let _reactor = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(Self { task: runtime.spawn(serve(listener, server)) })
    }
}

impl Drop for Doorway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: tokio::net::TcpListener, server: SocketAddr) {
    // If the task is aborted, this and every connection end.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((mut inside, _)) = listener.accept().await {
        connections.spawn(async move {
            // If the server does not listen, the connection in the namespace ends at once, as in an
            // outage.
            if let Ok(mut outside) = TcpStream::connect(server).await {
                let _broken = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}
