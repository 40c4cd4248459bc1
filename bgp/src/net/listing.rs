//! Lists a table's routes in pieces: the speaker continues between two pieces. A slow reader delays
//! no other work and takes the memory of one piece.

use super::error::{CommandError, Stopped};
use super::handle::SpeakerHandle;
use crate::config::ConfigError;
use crate::speaker::{Listed, Listing, Route};

/// Rows in a piece. They take about a millisecond of the speaker's time, most of it for text.
const ROWS: usize = 1024;

/// A listing in progress; see [`SpeakerHandle::list`].
#[derive(Debug)]
pub struct RouteListing {
    speaker: SpeakerHandle,
    progress: Option<Listing>,
}

impl RouteListing {
    pub(super) async fn new(speaker: SpeakerHandle, table: Listed) -> Result<Self, CommandError> {
        let there = speaker.call(move |owner, _| owner.speaker.has_table(table)).await?;
        match table {
            Listed::Received(peer) | Listed::Advertised(peer) if !there => {
                Err(ConfigError::UnknownPeer(peer).into())
            }
            _ => Ok(RouteListing { speaker, progress: Some(Listing::new(table)) }),
        }
    }

    /// The next routes; none after the last ones.
    ///
    /// # Errors
    /// If the speaker has ended.
    pub async fn next(&mut self) -> Result<Option<Vec<Route>>, Stopped> {
        while let Some(mut listing) = self.progress.clone() {
            let (routes, rest) = self
                .speaker
                .call(move |owner, _| {
                    let mut routes = Vec::new();
                    let more = owner.speaker.list(&mut listing, ROWS, &mut routes);
                    (routes, more.then_some(listing))
                })
                .await?;
            self.progress = rest;
            if !routes.is_empty() {
                return Ok(Some(routes));
            }
        }
        Ok(None)
    }

    /// All routes, sorted by prefix; the order within a prefix is kept.
    pub(super) async fn collect(mut self) -> Result<Vec<Route>, Stopped> {
        let mut all = Vec::new();
        while let Some(mut routes) = self.next().await? {
            all.append(&mut routes);
        }
        all.sort_by_key(|route| route.prefix);
        Ok(all)
    }
}
