//! The request to the agent: one connection, one line out (with the namespace's descriptor), one
//! line back, one deadline.
//!
//! The socket is blocking with SO_SNDTIMEO and SO_RCVTIMEO, which also bound `connect` if the
//! agent's backlog is full. Every wait gets the remaining time of the deadline.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg, socket_with,
};
use serde::de::DeserializeOwned;
use trunkline_api::attach::{Code, Command, Failure, MAX_LINE, Origin, Request, decode_reply, encode};

use crate::configuration::Configuration;
use crate::namespace::Namespace;

/// The reason for the failure of a request.
pub(crate) enum AgentError {
    /// The agent could not be reached, or did not answer.
    OutOfReach(Failure),
    /// The agent refused or failed.
    Refused(Failure),
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::OutOfReach(failure) | AgentError::Refused(failure) => failure,
        }
    }
}

/// Start time of this program.
static STARTED: OnceLock<SystemTime> = OnceLock::new();
/// Maximum length. A current `traceparent` has 55 octets; a much longer one is invalid.
const TRACEPARENT: usize = 256;

/// Records the start time of this program, as its first action.
#[expect(
    clippy::disallowed_methods,
    reason = "a program reads the clock: the agent's traces begin with its start"
)]
pub(crate) fn note_start() -> SystemTime {
    *STARTED.get_or_init(SystemTime::now)
}

/// The data for the agent's traces: the start of the runtime's wait, and the runtime's trace.
fn origin() -> Origin {
    let since = note_start().duration_since(SystemTime::UNIX_EPOCH);
    let traceparent = std::env::var("TRACEPARENT").ok().filter(|text| text.len() <= TRACEPARENT);
    Origin {
        started_unix_nano: since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or_default()),
        traceparent: traceparent.unwrap_or_default(),
    }
}

/// The agent of this node, with a deadline from now on.
pub(crate) struct Agent<'a> {
    socket: &'a str,
    started: Instant,
    timeout: Duration,
}

impl<'a> Agent<'a> {
    pub(crate) fn new(configuration: &'a Configuration) -> Self {
        Agent { socket: configuration.socket(), started: now(), timeout: configuration.timeout() }
    }

    /// The agent's deadline in milliseconds: a little shorter than this side's, so that the agent's
    /// more precise error arrives first.
    pub(crate) fn deadline_ms(&self) -> u64 {
        let margin = (self.timeout / 10).min(Duration::from_secs(1));
        u64::try_from(self.timeout.saturating_sub(margin).as_millis()).unwrap_or(u64::MAX)
    }

    /// Sends one request and reads its reply.
    pub(crate) fn request<T: DeserializeOwned>(
        &self,
        command: Command,
        namespace: Option<&Namespace>,
    ) -> Result<T, AgentError> {
        let reply = self.exchange(command, namespace).map_err(AgentError::OutOfReach)?;
        let reply = decode_reply(&reply).map_err(|error| AgentError::OutOfReach(error.into()))?;
        Result::from(reply).map_err(AgentError::Refused)
    }

    fn exchange(&self, command: Command, namespace: Option<&Namespace>) -> Result<Vec<u8>, Failure> {
        let request = Request { origin: Some(origin()), ..Request::new(command) };
        let line = encode(&request)
            .map_err(|error| Failure::new(Code::Internal, format!("cannot write the request: {error}")))?;
        let mut stream = self.connect().map_err(|error| self.cannot_reach(error))?;
        // If the agent refuses the request early, it answers and closes before it has read the
        // whole request. The plugin reports this answer, and not its own broken pipe.
        let sent = self.send(&mut stream, &line, namespace);
        match (sent, self.receive(&mut stream)) {
            (_, Ok(Some(reply))) => Ok(reply),
            (Err(error), _) | (Ok(()), Err(error)) => Err(self.lost(&error)),
            (Ok(()), Ok(None)) => Err(Failure::new(
                Code::TryAgainLater,
                format!(
                    "the agent at {} closed the connection without an answer: it may have stopped or be \
                     restarting, see its log",
                    self.socket
                ),
            )),
        }
    }

    fn connect(&self) -> Result<UnixStream, Errno> {
        let address = SocketAddrUnix::new(self.socket)?;
        let socket: OwnedFd =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(self.left()?))?;
        loop {
            match connect(&socket, &address) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        }
        Ok(UnixStream::from(socket))
    }

    fn send(
        &self,
        stream: &mut UnixStream,
        line: &[u8],
        namespace: Option<&Namespace>,
    ) -> std::io::Result<()> {
        set_socket_timeout(&*stream, Timeout::Send, Some(self.left()?))?;
        let descriptors: Vec<_> = namespace.iter().map(|namespace| namespace.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(std::io::Error::other("no room for the namespace's descriptor"));
        }
        let sent = loop {
            match sendmsg(&*stream, &[IoSlice::new(line)], &mut ancillary, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut rest = line.get(sent..).unwrap_or_default();
        while !rest.is_empty() {
            set_socket_timeout(&*stream, Timeout::Send, Some(self.left()?))?;
            match stream.write(rest) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads to the end of the line; none if the agent closed before that.
    fn receive(&self, stream: &mut UnixStream) -> std::io::Result<Option<Vec<u8>>> {
        let mut reply = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            set_socket_timeout(&*stream, Timeout::Recv, Some(self.left()?))?;
            let read = match stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(read) => chunk.get(..read).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                reply.extend(read.iter().take(end));
                return Ok(Some(reply));
            }
            reply.extend(read);
            if reply.len() > MAX_LINE {
                return Err(std::io::Error::other("the answer has no end"));
            }
        }
    }

    /// The remaining time of the deadline, never zero (which the kernel takes for no limit).
    fn left(&self) -> Result<Duration, Errno> {
        let left = self.timeout.saturating_sub(now().saturating_duration_since(self.started));
        if left.is_zero() { Err(Errno::TIMEDOUT) } else { Ok(left.max(Duration::from_millis(1))) }
    }

    fn cannot_reach(&self, error: Errno) -> Failure {
        let (code, hint) = match error {
            Errno::NOENT | Errno::CONNREFUSED => (
                Code::TryAgainLater,
                "is it running? Start it (`trunkline agent`), or write its `socket` into the network configuration",
            ),
            Errno::ACCESS | Errno::PERM => (Code::Io, "the plugin must run as root"),
            Errno::NAMETOOLONG => {
                return Failure::new(
                    Code::InvalidConfiguration,
                    format!("socket: `{}` is too long for a unix socket: write up to 107 bytes", self.socket),
                );
            }
            Errno::AGAIN | Errno::TIMEDOUT => {
                (Code::TryAgainLater, "it accepts no more connections, see its log")
            }
            _ => (Code::Io, "is it running, and does the network configuration name its `socket`?"),
        };
        let error = std::io::Error::from(error);
        Failure::new(code, format!("cannot reach the agent at {}: {error}: {hint}", self.socket))
    }

    fn lost(&self, error: &std::io::Error) -> Failure {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, WouldBlock};
        let (code, what) = match error.kind() {
            WouldBlock | TimedOut => (
                Code::TryAgainLater,
                format!(
                    "did not answer within {} s: see its log, or raise timeoutSeconds",
                    self.timeout.as_secs()
                ),
            ),
            BrokenPipe | ConnectionReset => (
                Code::TryAgainLater,
                "broke the connection: it may have stopped or be restarting, see its log".to_owned(),
            ),
            _ => (Code::Io, format!("cannot be reached: {error}")),
        };
        Failure::new(code, format!("the agent at {} {what}", self.socket))
    }
}

#[expect(clippy::disallowed_methods, reason = "a program reads the clock: the deadline runs from its start")]
fn now() -> Instant {
    Instant::now()
}
