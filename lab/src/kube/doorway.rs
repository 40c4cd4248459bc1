//! The API server's address in another network namespace. A socket belongs to the namespace in
//! which its thread created it, and stays usable from any thread. So the listening socket is
//! created in the other namespace, and the connections to the API server in the machine's
//! namespace. The module copies octets between them. A node in a namespace then needs no route to
//! the machine, and a test's kubeconfig is the same in both namespaces.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};

use crate::netns::Namespace;

/// The open connections, both ends of each; none after the end.
type Open = Arc<Mutex<Option<BTreeMap<u64, [TcpStream; 2]>>>>;

/// A forwarded port: connections to a port on 127.0.0.1 of a namespace reach a port of the machine,
/// until this value is dropped.
pub(crate) struct Doorway {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
    open: Open,
}

impl Doorway {
    /// Forwards connections to this address in a namespace to `server`, from the namespace of the
    /// calling thread.
    pub(crate) fn open(into: &Namespace, at: SocketAddr, server: SocketAddr) -> Result<Self> {
        let listener = into
            .within(|| Ok(TcpListener::bind(at)?))
            .with_context(|| format!("{at} in namespace {}", into.name()))?;
        let accepted = listener.try_clone()?;
        let open: Open = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let served = Arc::clone(&open);
        let thread = std::thread::spawn(move || serve(&accepted, server, &served));
        Ok(Self { listener, thread: Some(thread), open })
    }
}

impl Drop for Doorway {
    fn drop(&mut self) {
        // Ends `accept`.
        let _ended = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        for stream in open.into_iter().flatten().flat_map(|(_, ends)| ends) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(listener: &TcpListener, server: SocketAddr, open: &Open) {
    for number in 0.. {
        let Ok((inside, _)) = listener.accept() else { return };
        let open = Arc::clone(open);
        std::thread::spawn(move || {
            // If the server does not listen, the connection in the namespace ends at once, as in an
            // outage.
            let _broken = forward(number, inside, server, &open);
        });
    }
}

/// Copies in both directions until both have ended.
fn forward(number: u64, inside: TcpStream, server: SocketAddr, open: &Open) -> std::io::Result<()> {
    let outside = TcpStream::connect(server)?;
    // The ends of the connection choose when to send. Delayed acknowledgements would add 40 ms.
    for end in [&inside, &outside] {
        end.set_nodelay(true)?;
    }
    let ends = [inside.try_clone()?, outside.try_clone()?];
    match &mut *open.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(open) => drop(open.insert(number, ends)),
        None => return Ok(()),
    }
    std::thread::scope(|scope| {
        scope.spawn(|| copy(&inside, &outside));
        copy(&outside, &inside);
    });
    if let Some(open) = &mut *open.lock().unwrap_or_else(PoisonError::into_inner) {
        open.remove(&number);
    }
    Ok(())
}

/// Copies one direction. Its end is the end of the other stream's input; an error ends both.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    if std::io::copy(&mut from, &mut to).is_ok() {
        let _gone = to.shutdown(Shutdown::Write);
    } else {
        let _gone = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
