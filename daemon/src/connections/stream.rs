//! A connection's socket and the body of a response, which report the progress of a request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::{Client, Request};

/// Makes a later drop close the connection with RST, so that an evicted client leaves no state in
/// the kernel.
pub(super) fn reset(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// A connection admitted by a [`super::ConnectionLimiter`]. A drop frees its place.
#[derive(Debug)]
pub struct Connection {
    // Dropped before `membership`, so that the descriptor is free when the registry frees the
    // place.
    stream: TcpStream,
    membership: Membership,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, client: Client) -> Self {
        client.limiter.metrics.open.inc();
        Connection { stream, membership: Membership(client) }
    }

    /// The client at its other end.
    pub fn client(&self) -> Client {
        self.membership.0.clone()
    }

    /// The socket, for its options.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.membership.0.entry.reason().is_some() {
            reset(&self.stream);
        }
    }
}

#[derive(Debug)]
struct Membership(Client);

impl Drop for Membership {
    fn drop(&mut self) {
        let Client { limiter, entry } = &self.0;
        limiter.lock().closed(entry);
        limiter.metrics.open.dec();
        if let Some(reason) = entry.reason() {
            limiter.metrics.dropped(reason);
        }
        limiter.closed.notify_one();
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, octets)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // The writer flushes once its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.membership.0.entry.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Body of a response. Its request is under way until the body is sent.
#[derive(Debug)]
pub struct Tracked<B> {
    body: B,
    // A drop of this value ends the request.
    _request: Request,
}

impl<B> Tracked<B> {
    pub(super) fn new(body: B, request: Request) -> Self {
        Tracked { body, _request: request }
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
