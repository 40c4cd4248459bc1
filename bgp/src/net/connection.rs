//! One TCP connection: its reader, its writer, and how it ends.
//!
//! ```text
//!   socket ──► reader task ──Input::Bytes──► owner ──try_write──► socket
//!                   ▲                          │                    ▲
//!                   └────── empty buffers ◄────┘                    │
//!                                              └─(socket full)─► writer task
//! ```
//!
//! *Reading.* Two buffers circulate between reader and owner. The reader reads only while it has a
//! buffer. So TCP itself slows down a peer that sends faster than the owner can work, and that peer
//! costs two buffers.
//!
//! *Writing.* The owner requests octets from the engine only when the previous ones are in the
//! socket. It writes them itself while the socket accepts them, so a KEEPALIVE or one route needs
//! no task switch. When the socket is full, a writer task takes the remaining octets, waits, and
//! returns the buffer. Nothing is encoded meanwhile: changes collect in the Adj-RIB-Out, where a
//! newer change replaces an older one. So a slow peer costs one buffer.
//!
//! *Ending.* A failed write does not end the connection. The reader ends it after it has read
//! everything. The peer's NOTIFICATION is often still in the receive buffer when the peer's RST
//! makes a write fail. To close, the writer sends the remaining octets and a FIN, and then reads
//! until the peer's FIN. A socket that is closed with unread octets sends a RST, and a RST discards
//! a NOTIFICATION that the peer has not read yet.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::task::TaskTracker;

use super::error::connection_loss;
use crate::speaker::{ConnId, ConnectFailure};
use crate::types::InterfaceName;

/// Octets read at once; about as many are encoded ahead of the socket.
pub(super) const CHUNK: usize = 64 * 1024;

/// Octets read at once from a peer that sends little; the size grows while reads fill the buffer.
const SHORT: usize = 4 * 1024;

/// Buffers that circulate between a reader and the owner.
const READ_BUFFERS: usize = 2;

/// The longest time for a closing connection to send its last octets and to receive the peer's FIN.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// Inputs of connections and listeners for the owner.
#[derive(Debug)]
pub(super) enum Input {
    /// A configured peer connected, by this interface if its address is link-local.
    Accepted { stream: TcpStream, remote: SocketAddr, interface: Option<InterfaceName> },
    /// An attempt to connect ended.
    Connected { conn: ConnId, result: Result<TcpStream, ConnectFailure> },
    /// Received octets: the first `length` of `buffer`, which returns by [`Connection::recycle`].
    Bytes { conn: ConnId, buffer: Vec<u8>, length: usize },
    /// The socket accepted the remaining octets of `buffer`, or it failed and accepts no more.
    Written { conn: ConnId, buffer: Vec<u8>, result: Result<(), String> },
    /// The peer sent its FIN, or the connection failed.
    Closed { conn: ConnId, reason: String },
}

/// The owner's part of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Arc<TcpStream>,
    remote: SocketAddr,
    reader: AbortHandle,
    empty: mpsc::Sender<Vec<u8>>,
    output: Output,
    write_error: Option<String>,
}

#[derive(Debug)]
enum Output {
    /// The socket accepted all encoded octets.
    Ready(Vec<u8>),
    /// The writer task has the remaining octets.
    Waiting(JoinHandle<()>),
    /// The socket failed; the reader will report the reason.
    Broken,
}

impl Connection {
    /// Starts the reader.
    pub(super) fn start(
        conn: ConnId,
        stream: TcpStream,
        remote: SocketAddr,
        inputs: &mpsc::Sender<Input>,
    ) -> Connection {
        let stream = Arc::new(stream);
        let (empty, buffers) = mpsc::channel(READ_BUFFERS);
        for _ in 0..READ_BUFFERS {
            // The channel has room for all of these buffers. The reader allocates the buffer when
            // octets arrive.
            let _ = empty.try_send(Vec::new());
        }
        let reader = tokio::spawn(read(conn, Arc::clone(&stream), buffers, inputs.clone())).abort_handle();
        Connection { stream, remote, reader, empty, output: Output::Ready(Vec::new()), write_error: None }
    }

    /// The socket, for setting its options.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The remote address.
    pub(super) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns a buffer to the reader; `length` octets of it were used. A mostly empty buffer is
    /// freed, so a quiet session costs no buffer.
    pub(super) fn recycle(&self, buffer: Vec<u8>, length: usize) {
        let buffer = if length < CHUNK / 4 { Vec::new() } else { buffer };
        // The channel has room for every buffer. The send fails only after the end of the reader.
        let _ = self.empty.try_send(buffer);
    }

    /// Whether the socket accepted all octets; then more may be encoded.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.output, Output::Ready(_))
    }

    /// Writes the octets that `encode` appends to the buffer. Afterwards [`Connection::is_ready`]
    /// is true if the socket accepted all of them. Does nothing while the connection is not ready.
    pub(super) fn write<T>(
        &mut self,
        conn: ConnId,
        inputs: &mpsc::Sender<Input>,
        encode: impl FnOnce(&mut Vec<u8>) -> T,
    ) -> Option<T> {
        let Output::Ready(buffer) = &mut self.output else { return None };
        buffer.clear();
        let result = encode(buffer);
        match try_write(&self.stream, buffer) {
            // A buffer that has grown for a table is freed, because KEEPALIVEs need only a small
            // one.
            Ok(written) if written == buffer.len() && written < CHUNK / 4 => *buffer = Vec::new(),
            Ok(written) if written == buffer.len() => {}
            Ok(written) => {
                let buffer = std::mem::take(buffer);
                let writer = write_rest(conn, Arc::clone(&self.stream), buffer, written, inputs.clone());
                self.output = Output::Waiting(tokio::spawn(writer));
            }
            Err(error) => self.broken(connection_loss(&error)),
        }
        Some(result)
    }

    /// Receives the buffer back from the writer task.
    pub(super) fn written(&mut self, buffer: Vec<u8>, result: Result<(), String>) {
        match result {
            Ok(()) => self.output = Output::Ready(buffer),
            Err(reason) => self.broken(reason),
        }
    }

    fn broken(&mut self, reason: String) {
        self.output = Output::Broken;
        self.write_error.get_or_insert(reason);
    }

    /// The reason for the end of the connection. The error of a failed write is more precise than
    /// the end of file that the reader reports.
    pub(super) fn reason(&mut self, seen: String) -> String {
        self.write_error.take().unwrap_or(seen)
    }

    /// Sends `last` after the current output, then a FIN, and waits a short time for the peer's
    /// FIN.
    pub(super) fn close(self, last: Vec<u8>, closing: &TaskTracker) {
        self.reader.abort();
        closing.spawn(async move {
            // After the limit the socket is dropped: the peer does not read, or it is gone.
            let _ = tokio::time::timeout(LINGER, finish(self.stream, self.output, last)).await;
        });
    }

    /// Drops a connection that the peer has closed.
    pub(super) fn forget(self) {
        self.reader.abort();
        if let Output::Waiting(writer) = self.output {
            writer.abort();
        }
    }
}

async fn read(
    conn: ConnId,
    stream: Arc<TcpStream>,
    mut buffers: mpsc::Receiver<Vec<u8>>,
    inputs: mpsc::Sender<Input>,
) {
    let mut size = SHORT;
    while let Some(mut buffer) = buffers.recv().await {
        let result = loop {
            if let Err(error) = stream.readable().await {
                break Err(error);
            }
            buffer.resize(size, 0);
            match stream.try_read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => break result,
            }
        };
        let input = match result {
            Ok(0) => Input::Closed { conn, reason: "the peer closed the TCP connection".to_owned() },
            Ok(length) => {
                size = if length == size {
                    (size * 4).min(CHUNK)
                } else {
                    length.next_power_of_two().clamp(SHORT, CHUNK)
                };
                Input::Bytes { conn, buffer, length }
            }
            Err(error) => Input::Closed { conn, reason: connection_loss(&error) },
        };
        let last = matches!(input, Input::Closed { .. });
        if inputs.send(input).await.is_err() || last {
            return;
        }
    }
}

/// Writes as much as the socket accepts now; returns the number of octets.
fn try_write(stream: &TcpStream, mut octets: &[u8]) -> io::Result<usize> {
    let all = octets.len();
    while !octets.is_empty() {
        match stream.try_write(octets) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => octets = &octets[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all - octets.len())
}

async fn write_all(stream: &TcpStream, mut octets: &[u8]) -> io::Result<()> {
    loop {
        octets = &octets[try_write(stream, octets)?..];
        if octets.is_empty() {
            return Ok(());
        }
        stream.writable().await?;
    }
}

async fn write_rest(
    conn: ConnId,
    stream: Arc<TcpStream>,
    buffer: Vec<u8>,
    written: usize,
    inputs: mpsc::Sender<Input>,
) {
    let result = write_all(&stream, &buffer[written..]).await.map_err(|error| connection_loss(&error));
    // The owner ends before its connections only when the whole shell ends.
    let _ = inputs.send(Input::Written { conn, buffer, result }).await;
}

async fn finish(stream: Arc<TcpStream>, output: Output, last: Vec<u8>) -> io::Result<()> {
    match output {
        Output::Ready(_) => {}
        // An aborted or panicked writer means the end of the process.
        Output::Waiting(writer) => writer.await.map_err(io::Error::other)?,
        Output::Broken => return Ok(()),
    }
    write_all(&stream, &last).await?;
    SockRef::from(&*stream).shutdown(Shutdown::Write)?;
    let mut rest = vec![0; 16 * 1024];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut rest) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const CONN: ConnId = ConnId(7);

    struct Setup {
        connection: Connection,
        peer: TcpStream,
        sender: mpsc::Sender<Input>,
        inputs: mpsc::Receiver<Input>,
    }

    async fn setup() -> Setup {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stream, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (peer, _) = accepted.unwrap();
        let stream = stream.unwrap();
        super::super::sockopt::set_common(&stream, address.ip()).unwrap();
        let (sender, inputs) = mpsc::channel(8);
        Setup { connection: Connection::start(CONN, stream, address, &sender), peer, sender, inputs }
    }

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(20), future).await.expect("nothing happened for 20 s")
    }

    #[tokio::test]
    async fn a_full_socket_stops_encoding_and_loses_no_octet() {
        let Setup { mut connection, mut peer, sender, mut inputs } = setup().await;
        let mut sent = Vec::new();
        let mut encode = |buffer: &mut Vec<u8>| {
            let first = sent.len();
            buffer.extend((first..first + CHUNK).map(|index| (index % 251) as u8));
            sent.extend_from_slice(buffer);
        };
        while connection.is_ready() {
            connection.write(CONN, &sender, &mut encode).unwrap();
        }
        assert_eq!(connection.write(CONN, &sender, |_| panic!("encoded ahead of the socket")), None);

        let mut got = Vec::new();
        let mut buffer = vec![0; CHUNK];
        while got.len() < sent.len() {
            tokio::select! {
                length = soon(peer.read(&mut buffer)) => got.extend_from_slice(&buffer[..length.unwrap()]),
                Some(input) = inputs.recv() => {
                    let Input::Written { buffer, result, .. } = input else { panic!("{input:?}") };
                    connection.written(buffer, result);
                }
            }
        }
        if !connection.is_ready() {
            let input = soon(inputs.recv()).await;
            let Some(Input::Written { buffer, result, .. }) = input else { panic!("{input:?}") };
            connection.written(buffer, result);
        }
        assert!(connection.is_ready());
        assert!(got == sent, "the received octets differ from the sent octets");
    }

    #[tokio::test]
    async fn a_reader_waits_for_a_returned_buffer_after_two() {
        let Setup { connection, mut peer, mut inputs, .. } = setup().await;
        let flood = tokio::spawn(async move {
            let octets = vec![1; 8 * CHUNK];
            while peer.write_all(&octets).await.is_ok() {}
        });
        let mut taken = Vec::new();
        for _ in 0..READ_BUFFERS {
            let Some(Input::Bytes { buffer, .. }) = soon(inputs.recv()).await else { panic!() };
            taken.push(buffer);
        }
        let more = tokio::time::timeout(Duration::from_millis(200), inputs.recv()).await;
        assert!(more.is_err(), "a third buffer: {more:?}");
        connection.recycle(taken.remove(0), CHUNK);
        assert!(matches!(soon(inputs.recv()).await, Some(Input::Bytes { .. })));
        flood.abort();
    }

    #[tokio::test]
    async fn closing_sends_notification_and_fin_despite_unread_octets() {
        for last in [&b"last words"[..], b""] {
            let Setup { connection, mut peer, inputs, .. } = setup().await;
            // More than the reader accepts, which leaves unread octets when the connection is
            // closed.
            let flood = vec![1; 4 * CHUNK];
            soon(peer.write_all(&flood)).await.unwrap();
            let closing = TaskTracker::new();
            connection.close(last.to_vec(), &closing);
            let mut got = Vec::new();
            soon(peer.read_to_end(&mut got)).await.expect("a FIN, no RST");
            assert_eq!(got, last);
            drop(peer);
            closing.close();
            soon(closing.wait()).await;
            drop(inputs);
        }
    }

    #[tokio::test]
    async fn closing_sends_pending_octets_before_the_notification() {
        let Setup { mut connection, mut peer, sender, inputs } = setup().await;
        let mut sent = 0;
        while connection.is_ready() {
            connection.write(CONN, &sender, |buffer| buffer.resize(CHUNK, 1)).unwrap();
            sent += CHUNK;
        }
        let closing = TaskTracker::new();
        connection.close(b"bye".to_vec(), &closing);
        let mut got = Vec::new();
        soon(peer.read_to_end(&mut got)).await.unwrap();
        assert_eq!(got.len(), sent + 3);
        assert!(got.ends_with(b"bye"));
        drop(inputs);
    }

    #[tokio::test]
    async fn the_end_of_a_connection_has_a_reason() {
        let Setup { peer, mut inputs, connection: _connection, .. } = setup().await;
        drop(peer);
        let Some(Input::Closed { reason, .. }) = soon(inputs.recv()).await else { panic!() };
        assert_eq!(reason, "the peer closed the TCP connection");

        let Setup { peer, mut inputs, connection: _connection, .. } = setup().await;
        SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
        drop(peer);
        let Some(Input::Closed { reason, .. }) = soon(inputs.recv()).await else { panic!() };
        assert_eq!(reason, "the peer reset the TCP connection");
    }
}
