//! A dump of the tables, a piece at a time: the speaker goes on between two pieces, and whoever writes slowly holds up
//! nobody.

use super::error::Stopped;
use super::handle::SpeakerHandle;
use crate::mrt::TableDump;

/// Octets in a piece, about. Some 2,000 prefixes: well under a millisecond of the speaker's time.
const PIECE: usize = 128 * 1024;

/// An MRT dump in the making; see [`SpeakerHandle::dump_tables`].
#[derive(Debug)]
pub struct Dump {
    speaker: SpeakerHandle,
    progress: TableDump,
    more: bool,
}

impl Dump {
    pub(super) fn new(speaker: SpeakerHandle, when: u32) -> Self {
        Dump { speaker, progress: TableDump::new(when), more: true }
    }

    /// The next whole records; none when all are written.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Stopped> {
        if !self.more {
            return Ok(None);
        }
        let mut progress = self.progress.clone();
        let (progress, octets, more) = self
            .speaker
            .call(move |owner, now| {
                let mut octets = Vec::with_capacity(PIECE + PIECE / 8);
                let more = owner.speaker.dump_tables(&mut progress, &mut octets, PIECE, now);
                (progress, octets, more)
            })
            .await?;
        (self.progress, self.more) = (progress, more);
        Ok(Some(octets))
    }

    /// How much is written.
    pub fn progress(&self) -> &TableDump {
        &self.progress
    }
}
