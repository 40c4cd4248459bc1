//! An operator's commands on sessions. Each command records an event, so the events show that its
//! effects are no failure.

use trunkline_api::attach::{Code, Failure};
use trunkline_api::control::{Direction, EventKind, PeerDone};
use trunkline_bgp::speaker::State;
use trunkline_bgp::types::PeerKey;

use super::{Observer, SpeakerStatus, failed, stopping};

impl Observer {
    /// Ends a peer's session, and begins a new one.
    pub async fn reset_peer(&self, peer: &str, hard: bool, message: String) -> Result<PeerDone, Failure> {
        let bgp = self.bgp().await?;
        let key = self.only(&bgp, peer).await?;
        let reset =
            bgp.speaker.reset_peer(key, hard, message.clone()).await.map_err(|error| failed(key, &error))?;
        if !reset {
            return Err(refused(key, "is administratively down, and has no session to reset"));
        }
        let message_part =
            if message.is_empty() { String::new() } else { format!(", with the message: {message}") };
        let how = if hard { "hard reset" } else { "reset" };
        Ok(self.done(key, format!("{how} by an operator{message_part}")))
    }

    /// Requests the peer's routes again (ROUTE-REFRESH), or advertises this node's routes again.
    pub async fn refresh_peer(&self, peer: &str, direction: Direction) -> Result<PeerDone, Failure> {
        let bgp = self.bgp().await?;
        let key = self.only(&bgp, peer).await?;
        let done = match direction {
            Direction::In => bgp.speaker.request_refresh(key).await,
            Direction::Out => bgp.speaker.refresh_out(key).await,
        };
        if !done.map_err(|error| failed(key, &error))? {
            return Err(self.why_no_refresh(&bgp, key).await?);
        }
        let how = match direction {
            Direction::In => "asked to advertise all routes again (ROUTE-REFRESH)",
            Direction::Out => "all routes advertised again",
        };
        Ok(self.done(key, how.to_owned()))
    }

    async fn why_no_refresh(&self, bgp: &SpeakerStatus, key: PeerKey) -> Result<Failure, Failure> {
        let peers = bgp.speaker.peers().await.map_err(|_| stopping())?;
        let state = peers.iter().find(|peer| peer.key() == key).map(|peer| peer.state);
        Ok(match state {
            Some(State::Established) => refused(
                key,
                "does not support route refresh (RFC 2918): use `trunkline peers reset` to receive all its routes again",
            ),
            state => {
                let state = state.map_or("gone", State::name);
                refused(key, &format!("is {state}: it advertises all routes once the session is Established"))
            }
        })
    }

    fn done(&self, key: PeerKey, done: String) -> PeerDone {
        let peer = key.to_string();
        tracing::info!(peer, done, "an operator's command");
        self.history.record(EventKind::Operator, Some(peer.clone()), None, done.clone());
        PeerDone { peer, done }
    }
}

fn refused(key: PeerKey, why: &str) -> Failure {
    Failure::new(Code::InvalidContent, format!("{key} {why}"))
}
