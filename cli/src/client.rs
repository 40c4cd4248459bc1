//! One question to the agent, blocking: an operator waits for it anyway.

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

/// The agent answers from memory; of a full table it goes on sending.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks the agent behind this socket.
pub fn query<T: DeserializeOwned>(socket: &Path, query: Query) -> anyhow::Result<T> {
    query_within(socket, query, TIMEOUT)
}

/// Likewise, with so much patience between what comes.
pub fn query_within<T: DeserializeOwned>(
    socket: &Path,
    query: Query,
    patience: Duration,
) -> anyhow::Result<T> {
    let stream = connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    exchange(stream, query, None)
}

/// Asks for a list and hands over its items one by one as they come: the whole of it is held nowhere.
pub fn query_each<T: DeserializeOwned>(
    socket: &Path,
    query: Query,
    patience: Duration,
    each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut stream = connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    let request = attach::encode(&Request::new(Command::Query(query)))?;
    send(&mut stream, &request, None).context("sending the question")?;
    list::read(BufReader::new(stream), each)
}

/// Asks for something that the agent answers once it happens. There is no time limit.
pub fn query_when<T: DeserializeOwned>(socket: &Path, query: Query) -> anyhow::Result<T> {
    exchange(connect(socket)?, query, None)
}

/// Asks for something that the agent writes into `file`. There is no time limit: how long that takes is the file's
/// affair. The agent stops when this process ends.
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
            "no agent answers at {}: is it running (trunkline agent --config …)? Another socket is named with --socket",
            socket.display()
        ),
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("the agent's socket {} is for root only: run this as root", socket.display())
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
    send(&mut stream, &request, file).context("sending the question")?;
    let mut line = Vec::new();
    // An answer may be longer than a request: a million routes are some 300 MB.
    BufReader::new(&mut stream).take(u64::MAX).read_until(b'\n', &mut line).context("reading the answer")?;
    if line.is_empty() {
        bail!("the agent closed the connection without an answer: see its log");
    }
    if line.last() != Some(&b'\n') {
        bail!("the agent broke its answer off after {} octets: see its log, and ask again", line.len());
    }
    match attach::decode_reply(&line)? {
        Reply::Ok(answer) => Ok(answer),
        Reply::Error(failure) => bail!("{failure}"),
    }
}

/// The descriptor goes with the first octets.
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
