//! The agent's Unix socket: one agent per socket, one request per connection, and at most one file
//! descriptor with a request.
//!
//! While the agent runs, it locks the file `agent.sock.lock` in the socket's folder. The owner of
//! the lock may remove the socket of a killed agent. A second agent gets an error before it changes
//! anything. Only root may connect. [`trunkline_api::attach`] defines the framing.

use std::fs::{self, File};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::{Pid, test_kill_process};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use trunkline_api::attach::{Code, Failure, MAX_LINE};

/// The reason for which the agent cannot use its socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another agent holds the lock of this socket.
    #[error(
        "another agent (process {pid}) runs with socket {path}: stop it, or give this one another `socket` and `store`"
    )]
    Taken {
        /// The socket.
        path: PathBuf,
        /// The process ID of the other agent, from the lock file.
        pid: String,
    },
    /// A system call failed.
    #[error("{step} {path}: {error}")]
    Io {
        /// The failed step.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
}

/// Maximum wait for the lock of an agent that has ended.
const LEFT_LOCK: Duration = Duration::from_secs(2);

/// The lock that makes this process the agent of the socket. The kernel releases it when the
/// process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    path: PathBuf,
}

/// Locks the socket at `path`. The error contains the process that holds the lock.
pub fn lock(path: &Path) -> Result<Lock, SocketError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let wrong = |step, path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| SocketError::Io { step, path, error }
    };
    if let Some(folder) = path.parent()
        && !folder.is_dir()
    {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(wrong("making", folder))?;
    }
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&lock_path).map_err(wrong("opening", &lock_path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = fs::read_to_string(&lock_path).unwrap_or_default();
            let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
            if runs(pid) || !locked_within(&file, LEFT_LOCK).map_err(wrong("locking", &lock_path))? {
                return Err(SocketError::Taken { path: path.to_owned(), pid: pid.to_owned() });
            }
        }
        Err(error) => return Err(wrong("locking", &lock_path)(error.into())),
    }
    let pid = format!("{}\n", std::process::id());
    file.set_len(0)
        .and_then(|()| io::Write::write_all(&mut &file, pid.as_bytes()))
        .map_err(wrong("writing", &lock_path))?;
    Ok(Lock { _file: file, path: path.to_owned() })
}

/// Whether the process with this ID runs. An invalid ID counts as a running process.
fn runs(pid: &str) -> bool {
    let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) else { return true };
    test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}

/// Takes the lock of a process that has ended. Its child may still hold the lock, between fork and
/// exec.
fn locked_within(file: &File, limit: Duration) -> io::Result<bool> {
    let file = file.try_clone()?;
    let (sender, receiver) = mpsc::channel();
    // Blocks until the lock is free. After the limit this process ends, and the thread with it.
    std::thread::spawn(move || sender.send(flock(&file, FlockOperation::LockExclusive)));
    match receiver.recv_timeout(limit) {
        Ok(locked) => Ok(locked.map(|()| true)?),
        Err(_) => Ok(false),
    }
}

impl Lock {
    /// Binds the socket, in place of a former agent's socket.
    pub fn bind(&self) -> Result<UnixListener, SocketError> {
        let path = &self.path;
        let wrong = |step| move |error| SocketError::Io { step, path: path.clone(), error };
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(wrong("removing")(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(wrong("binding"))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(wrong("restricting"))?;
        Ok(listener)
    }
}

/// A request line and its file descriptor. `None`: the client closed the connection without a
/// request.
pub async fn receive(stream: &UnixStream) -> Result<Option<(Vec<u8>, Option<OwnedFd>)>, Failure> {
    let mut line = Vec::new();
    let mut descriptor = None;
    let mut buffer = [0; 16 * 1024];
    loop {
        let io_failure =
            |error: io::Error| Failure::new(Code::Io, format!("reading the request failed: {error}"));
        stream.readable().await.map_err(io_failure)?;
        let received = stream.try_io(Interest::READABLE, || receive_some(stream, &mut buffer));
        let (length, descriptors, truncated) = match received {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(io_failure(error)),
        };
        let mut descriptors = descriptors.into_iter();
        descriptor = descriptor.or_else(|| descriptors.next());
        if truncated || descriptors.next().is_some() {
            return Err(Failure::new(
                Code::InvalidContent,
                "the request has more than one descriptor: send one, of the network namespace",
            ));
        }
        line.extend_from_slice(&buffer[..length]);
        if line.last() == Some(&b'\n') {
            return Ok(Some((line, descriptor)));
        }
        if length == 0 {
            return match line.is_empty() {
                true => Ok(None),
                false => {
                    Err(Failure::new(Code::InvalidContent, "the request has no newline at its end: add one"))
                }
            };
        }
        if line.len() > MAX_LINE {
            return Err(Failure::new(
                Code::InvalidContent,
                format!("the request is longer than {MAX_LINE} octets"),
            ));
        }
    }
}

fn receive_some(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>, bool)> {
    // The buffer has space for two descriptors. So the agent also receives a superfluous second
    // descriptor, and closes it. Otherwise the kernel would drop it.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message =
        recvmsg(stream.as_fd(), &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for control in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = control {
            descriptors.extend(received);
        }
    }
    Ok((message.bytes, descriptors, message.flags.contains(ReturnFlags::CTRUNC)))
}

/// Returns when the client closes the connection or sends unexpected data. In both cases the client
/// does not wait for the answer.
pub async fn gone(stream: &UnixStream) {
    let mut octet = [0];
    loop {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read(&mut octet) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn send_with(stream: &UnixStream, octets: &[u8], descriptors: &[&File]) {
        let descriptors: Vec<_> = descriptors.iter().map(|file| file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(stream.as_fd(), &[IoSlice::new(octets)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn the_lock_of_a_dead_process_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        // A child of a killed agent holds the lock for a moment.
        let left = File::create(folder.path().join("agent.sock.lock")).unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        fs::write(folder.path().join("agent.sock.lock"), format!("{}\n", ended.id())).unwrap();
        flock(&left, FlockOperation::LockExclusive).unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(left);
        });
        let lock = lock(&path).unwrap();
        release.join().unwrap();
        drop(lock);
    }

    #[tokio::test]
    async fn a_line_in_parts_has_its_descriptor_with_the_first_part() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "seen").unwrap();
        client.writable().await.unwrap();
        send_with(&client, b"{\"a\":", &[&File::open(&path).unwrap()]);
        let receiving = tokio::spawn(async move { receive(&server).await });
        client.write_all(&vec![b' '; 100_000]).await.unwrap();
        client.write_all(b"1}\n").await.unwrap();
        let (line, descriptor) = receiving.await.unwrap().unwrap().unwrap();
        assert_eq!(line.len(), 5 + 100_000 + 3);
        assert_eq!(io::read_to_string(File::from(descriptor.unwrap())).unwrap(), "seen");
    }

    #[tokio::test]
    async fn an_invalid_request_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("file")).unwrap();
        for descriptors in [2, 3] {
            let (client, server) = UnixStream::pair().unwrap();
            client.writable().await.unwrap();
            send_with(&client, b"{}\n", &vec![&file; descriptors]);
            let failure = receive(&server).await.unwrap_err();
            assert!(failure.message.contains("more than one descriptor"), "{failure}");
        }

        let (client, server) = UnixStream::pair().unwrap();
        drop(client);
        assert!(receive(&server).await.unwrap().is_none(), "a client without a request is no error");

        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"{").await.unwrap();
        drop(client);
        assert!(receive(&server).await.unwrap_err().message.contains("newline"));

        let (mut client, server) = UnixStream::pair().unwrap();
        let flood = tokio::spawn(async move {
            let block = vec![b' '; 1 << 20];
            while client.write_all(&block).await.is_ok() {}
        });
        assert!(receive(&server).await.unwrap_err().message.contains("longer than"));
        drop(server);
        flood.await.unwrap();
    }

    #[tokio::test]
    async fn a_disconnected_client_is_detected() {
        let (client, server) = UnixStream::pair().unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(20), gone(&server)).await;
        assert!(waiting.is_err(), "the client is still connected");
        drop(client);
        gone(&server).await;
    }

    #[tokio::test]
    async fn a_second_agent_is_refused_and_a_stale_socket_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/agent.sock");
        let first = lock(&path).unwrap();
        let listener = first.bind().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = lock(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(error.contains("another `socket`"), "{error}");
        drop((first, listener));
        assert!(path.exists(), "as a killed agent leaves it");
        lock(&path).unwrap().bind().unwrap();
    }
}
