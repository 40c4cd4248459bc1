//! A TCP server in a namespace that tells each client the address that it sees of it.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::net::{Shutdown, shutdown};

use crate::netns::Namespace;

/// How long a connection may take that comes about.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends when it is dropped.
pub(super) struct Greeter {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Greeter {
    pub(super) fn listen(ns: &Namespace, port: u16) -> Result<Greeter> {
        // IPv4 clients come to it too.
        let listener = ns.within(|| Ok(TcpListener::bind(("::", port))?)).context("a port to listen on")?;
        let accepted = listener.try_clone()?;
        let thread = std::thread::spawn(move || {
            while let Ok((mut connection, from)) = accepted.accept() {
                // A client that has gone is its own affair: it says what it missed.
                let _gone = write!(connection, "{}", from.ip().to_canonical());
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

/// Connects from a namespace; the address that the server sees.
pub(super) fn greeted(from: &Namespace, to: SocketAddr) -> Result<IpAddr> {
    greeted_within(from, to, PATIENCE)
}

/// As [`greeted`], with a bound on connecting, and on the answer.
pub(super) fn greeted_within(from: &Namespace, to: SocketAddr, bound: Duration) -> Result<IpAddr> {
    let greeting = from.within(|| {
        let mut connection = TcpStream::connect_timeout(&to, bound)?;
        connection.set_read_timeout(Some(bound))?;
        let mut text = String::new();
        connection.read_to_string(&mut text)?;
        Ok(text)
    });
    let greeting = greeting.with_context(|| format!("{} to {to}", from.name()))?;
    greeting.parse().with_context(|| format!("{to} said {greeting:?}"))
}
