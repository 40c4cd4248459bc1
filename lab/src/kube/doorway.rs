//! The API server in another network namespace. A socket belongs to the namespace that its thread was in when it was
//! made, and stays usable from any thread: the listening one is made inside, the connections to the API server outside,
//! and octets are copied between them. So a node in a namespace needs no route to the machine, and a test's kubeconfig
//! is the same inside and outside.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context as _, Result};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::netns::Namespace;

/// 127.0.0.1 of a namespace answers as the machine's does, on one port, as long as this value lives.
pub(crate) struct Doorway {
    task: tokio::task::JoinHandle<()>,
}

impl Doorway {
    /// Connections to this address in a namespace are passed on to `server`, from the namespace that the runtime's threads are in.
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
    // Ends, and with it every connection, when the task is aborted.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((mut inside, _)) = listener.accept().await {
        connections.spawn(async move {
            // Where nobody listens outside, the connection inside ends at once: that is what an outage looks like.
            if let Ok(mut outside) = TcpStream::connect(server).await {
                let _broken = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}
