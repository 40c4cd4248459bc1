//! Requests to the agent. They block, because the operator waits for the answer.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::de::DeserializeOwned;
use trunkline_api::attach::{self, Command, Reply, Request};
use trunkline_api::control::Query;

use crate::list;

/// Timeout of one read. The agent answers from memory; for a full table it sends continuously.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends a request to the agent behind this socket.
pub fn query<T: DeserializeOwned>(socket: &Path, query: Query) -> anyhow::Result<T> {
    query_within(socket, query, TIMEOUT)
}

/// Like [`query`], with this timeout between two reads.
pub fn query_within<T: DeserializeOwned>(
    socket: &Path,
    query: Query,
    timeout: Duration,
) -> anyhow::Result<T> {
    let stream = connect(socket)?;
    stream.set_read_timeout(Some(timeout))?;
    exchange(stream, query, None)
}

/// Requests a list and passes on each item when it arrives, so the whole list is never in memory.
pub fn query_each<T: DeserializeOwned>(
    socket: &Path,
    query: Query,
    timeout: Duration,
    each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut stream = connect(socket)?;
    stream.set_read_timeout(Some(timeout))?;
    let request = attach::encode(&Request::new(Command::Query(query)))?;
    send(&mut stream, &request, None).context("sending the request")?;
    list::read(BufReader::new(stream), each)
}

/// Sends a request that the agent answers after an event. There is no time limit.
pub fn query_when<T: DeserializeOwned>(socket: &Path, query: Query) -> anyhow::Result<T> {
    exchange(connect(socket)?, query, None)
}

/// Sends a request whose result the agent writes into `file`. There is no time limit, because the
/// duration depends on the file. If this process ends, the agent stops writing.
pub fn query_into<T: DeserializeOwned>(
    socket: &Path,
    query: Query,
    file: BorrowedFd<'_>,
) -> anyhow::Result<T> {
    exchange(connect(socket)?, query, Some(file))
}

fn connect(socket: &Path) -> anyhow::Result<UnixStream> {
    let stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => anyhow::anyhow!(
            "no agent answers at {}: is it running (trunkline agent --config …)? Use --socket for another socket",
            socket.display()
        ),
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("only root may use the agent's socket {}: run this as root", socket.display())
        }
        _ => anyhow::anyhow!("{}: {error}", socket.display()),
    })?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn exchange<T: DeserializeOwned>(
    mut stream: UnixStream,
    query: Query,
    file: Option<BorrowedFd<'_>>,
) -> anyhow::Result<T> {
    let request = attach::encode(&Request::new(Command::Query(query)))?;
    send(&mut stream, &request, file).context("sending the request")?;
    let mut line = Vec::new();
    // An answer may be longer than a request: a million routes need some 300 MB.
    BufReader::new(&mut stream).take(u64::MAX).read_until(b'\n', &mut line).context("reading the answer")?;
    if line.is_empty() {
        bail!("the agent closed the connection without an answer: see its log");
    }
    if line.last() != Some(&b'\n') {
        bail!("the answer of the agent ended after {} octets: see its log, and try again", line.len());
    }
    match attach::decode_reply(&line)? {
        Reply::Ok(answer) => Ok(answer),
        Reply::Error(failure) => bail!("{failure}"),
    }
}

/// The descriptor is sent with the first octets.
fn send(stream: &mut UnixStream, line: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(file) = file else { return stream.write_all(line) };
    let descriptors = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for the file's descriptor"));
    }
    let sent = sendmsg(&*stream, &[IoSlice::new(line)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(line.get(sent..).unwrap_or_default())
}
