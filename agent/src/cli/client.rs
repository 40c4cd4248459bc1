//! One question to the agent, blocking: an operator waits for it anyway.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use trunkline_api::attach::{self, Command, Reply, Request};
use trunkline_api::control::Query;

/// The agent answers from memory; a full table takes it a second.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks the agent behind this socket.
pub fn ask<T: DeserializeOwned>(socket: &Path, query: Query) -> anyhow::Result<T> {
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => anyhow::anyhow!(
            "no agent answers at {}: is it running (trunkline agent --config …)? Another socket is named with --socket",
            socket.display()
        ),
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("the agent's socket {} is for root only: run this as root", socket.display())
        }
        _ => anyhow::anyhow!("{}: {error}", socket.display()),
    })?;
    stream.set_read_timeout(Some(TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(TIMEOUT)))?;
    let request = attach::encode(&Request::new(Command::Query(query)))?;
    stream.write_all(&request).context("sending the question")?;
    let mut line = Vec::new();
    // An answer may be longer than a request: a million routes are some 300 MB.
    BufReader::new(&mut stream).take(u64::MAX).read_until(b'\n', &mut line).context("reading the answer")?;
    if line.is_empty() {
        bail!("the agent closed the connection without an answer: see its log");
    }
    match attach::decode_reply(&line)? {
        Reply::Ok(answer) => Ok(answer),
        Reply::Error(failure) => bail!("{failure}"),
    }
}
