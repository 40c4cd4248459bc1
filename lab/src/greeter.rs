//! A TCP server in a namespace that sends each client the source address of its connection, or a name.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::net::{Shutdown, shutdown};

use crate::netns::Namespace;

/// Time limit of a successful connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server. It ends when this value is dropped.
pub(crate) struct Greeter {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Greeter {
    pub(crate) fn listen(ns: &Namespace, port: u16) -> Result<Greeter> {
        Self::saying(ns, port, |from| from.to_string())
    }

    /// A server that sends its own name.
    pub(crate) fn named(ns: &Namespace, port: u16, name: &str) -> Result<Greeter> {
        let name = name.to_owned();
        Self::saying(ns, port, move |_| name.clone())
    }

    fn saying(
        ns: &Namespace,
        port: u16,
        text: impl Fn(IpAddr) -> String + Send + 'static,
    ) -> Result<Greeter> {
        // This listener also accepts IPv4 clients.
        let listener = ns.within(|| Ok(TcpListener::bind(("::", port))?)).context("a port to listen on")?;
        let accepted = listener.try_clone()?;
        let thread = std::thread::spawn(move || {
            while let Ok((mut connection, from)) = accepted.accept() {
                // If the client has closed the connection, this write fails. The client reports the
                // missing answer.
                let _gone = write!(connection, "{}", text(from.ip().to_canonical()));
            }
        });
        Ok(Greeter { listener, thread: Some(thread) })
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        // Ends `accept`.
        let _ended = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Connects from a namespace; returns the source address that the server sees.
pub(crate) fn greeted(from: &Namespace, to: SocketAddr) -> Result<IpAddr> {
    greeted_within(from, to, PATIENCE)
}

/// Like [`greeted`], with a time limit for the connection and for the answer.
pub(crate) fn greeted_within(from: &Namespace, to: SocketAddr, bound: Duration) -> Result<IpAddr> {
    let greeting = heard(from, to, bound)?;
    greeting.parse().with_context(|| format!("{to} said {greeting:?}"))
}

/// Connects from a namespace; returns what the server says.
pub(crate) fn heard(from: &Namespace, to: SocketAddr, bound: Duration) -> Result<String> {
    let greeting = from.within(|| {
        let mut connection = TcpStream::connect_timeout(&to, bound)?;
        connection.set_read_timeout(Some(bound))?;
        let mut text = String::new();
        connection.read_to_string(&mut text)?;
        Ok(text)
    });
    greeting.with_context(|| format!("{} to {to}", from.name()))
}
