//! The connection to a monitoring station: connects, requests octets from the owner, writes them,
//! and reconnects after a failure.
//!
//! The task requests octets only when the previous ones are in the socket, so a slow station delays
//! no other work. If a station falls behind by more than [`QUEUE`](crate::bmp::QUEUE), the owner
//! reports it as lost. The station then gets all routes again on a new connection. A station sends
//! nothing (RFC 7854 §3.2): received octets are discarded, and a FIN ends the connection.
//!
//! The pause between connection attempts is 1 s at first and doubles up to a minute.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::error::{Stopped, connection_loss};
use super::now;
use super::owner::{Command, Owner};
use crate::bmp::{StationConfig, StationId, StationRead, termination};

/// Octets of one request.
const PIECE: usize = 64 * 1024;
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The status of the connection to a station.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorStatus {
    /// Connected.
    pub connected: bool,
    /// The time of the last change of `connected`.
    pub since: Option<Instant>,
    /// The number of connections so far.
    pub connections: u64,
    /// Octets written to the station.
    pub octets: u64,
    /// The reason why the last connection or attempt failed, as text.
    pub last_error: Option<String>,
}

/// A station that receives all routes while this object exists and the speaker runs.
#[derive(Debug)]
pub struct Monitor {
    address: SocketAddr,
    status: Arc<Mutex<MonitorStatus>>,
    task: AbortHandle,
}

impl Monitor {
    pub(super) fn start(
        commands: mpsc::WeakSender<Command>,
        address: SocketAddr,
        config: StationConfig,
    ) -> Monitor {
        let status = Arc::new(Mutex::new(MonitorStatus::default()));
        let connection = StationConnection { commands, address, config, status: Arc::clone(&status) };
        let task = tokio::spawn(connection.run()).abort_handle();
        Monitor { address, status, task }
    }

    /// The address of the station.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The status of the connection.
    pub fn status(&self) -> MonitorStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The owner's answer to a request.
type Piece = (Vec<u8>, StationRead);

struct StationConnection {
    // The sender is weak, so a station does not keep a speaker without handles running.
    commands: mpsc::WeakSender<Command>,
    address: SocketAddr,
    config: StationConfig,
    status: Arc<Mutex<MonitorStatus>>,
}

/// The reason why a connection ended.
enum End {
    Stopped,
    Broken(String),
}

impl From<Stopped> for End {
    fn from(_: Stopped) -> End {
        End::Stopped
    }
}

impl StationConnection {
    async fn run(self) {
        let mut wait = FIRST_WAIT;
        loop {
            let attempt = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(self.address)).await;
            let error = match attempt.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    "refused: no BMP station listens there, or a firewall rejects it".to_owned()
                }
                Err(error) => format!("cannot connect: {error}"),
                Ok(stream) => {
                    wait = FIRST_WAIT;
                    self.is_connected(true, None);
                    info!(station = %self.address, "BMP station connected");
                    match self.talk(stream).await {
                        End::Stopped => return,
                        End::Broken(reason) => reason,
                    }
                }
            };
            if self.is_connected(false, Some(&error)) {
                warn!(station = %self.address, %error, "no BMP station");
            }
            if self.commands.upgrade().is_none() {
                return;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Updates the status; returns whether it changed.
    fn is_connected(&self, connected: bool, error: Option<&str>) -> bool {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let news = status.connected != connected || status.last_error.as_deref() != error;
        if status.connected != connected || status.since.is_none() {
            status.since = Some(now());
        }
        status.connections += u64::from(connected && !status.connected);
        status.connected = connected;
        if let Some(error) = error {
            status.last_error = Some(error.to_owned());
        }
        news
    }

    async fn talk(&self, mut stream: TcpStream) -> End {
        // Keepalive detects that the host of a station is gone. Nothing arrives from such a host,
        // and in a quiet network this side has nothing to write.
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(30));
        // Without keepalive the next write detects the failure.
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        let id = match self.connected().await {
            Ok(id) => id,
            Err(Stopped) => return End::Stopped,
        };
        let end = self.pass_on(&mut stream, id).await;
        match &end {
            // The speaker has ended in order and sends Termination; if that fails, the station sees
            // the FIN.
            Err(End::Stopped) => {
                let _ = stream.write_all(&termination()).await;
                let _ = stream.shutdown().await;
            }
            _ => {
                let _ = self.command(move |owner, _| owner.speaker.station_gone(id)).await;
            }
        }
        match end {
            Err(end) => end,
            Ok(never) => match never {},
        }
    }

    async fn connected(&self) -> Result<StationId, Stopped> {
        let config = self.config.clone();
        #[expect(clippy::disallowed_methods, reason = "this is the shell; messages carry the time of day")]
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let since_1970 = since_1970.unwrap_or_default();
        let (sender, receiver) = oneshot::channel();
        self.command(move |owner, now| {
            // The receiver may be gone.
            let _ = sender.send(owner.speaker.station_connected(config, since_1970, now));
        })
        .await?;
        receiver.await.map_err(|_| Stopped)
    }

    async fn pass_on(&self, stream: &mut TcpStream, id: StationId) -> Result<std::convert::Infallible, End> {
        let (mut reader, mut writer) = stream.split();
        let mut discarded = [0; 1024];
        loop {
            let (sender, mut piece) = oneshot::channel::<Piece>();
            self.command(move |owner, _| owner.request_station(id, PIECE, sender)).await?;
            let (octets, read) = loop {
                tokio::select! {
                    piece = &mut piece => break piece.map_err(|_| Stopped)?,
                    result = reader.read(&mut discarded) => match result {
                        Ok(0) => return Err(End::Broken("the station closed the connection".to_owned())),
                        Ok(_) => {}
                        Err(error) => return Err(End::Broken(connection_loss(&error))),
                    },
                }
            };
            writer.write_all(&octets).await.map_err(|error| End::Broken(connection_loss(&error)))?;
            self.status.lock().unwrap_or_else(PoisonError::into_inner).octets += octets.len() as u64;
            if read == StationRead::Lost {
                let reason =
                    "the station reads too slowly and was disconnected: it receives all routes again";
                return Err(End::Broken(reason.to_owned()));
            }
        }
    }

    async fn command(&self, work: impl FnOnce(&mut Owner, Instant) + Send + 'static) -> Result<(), Stopped> {
        let commands = self.commands.upgrade().ok_or(Stopped)?;
        commands.send(Box::new(work)).await.map_err(|_| Stopped)
    }
}
