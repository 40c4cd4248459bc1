//! Dumps the tables in pieces: the speaker continues between two pieces, so a slow writer delays no
//! other work.

use super::error::Stopped;
use super::handle::SpeakerHandle;
use crate::mrt::TableDump;

/// The approximate size of a piece in octets. Some 2,000 prefixes fit into a piece; they take much
/// less than a millisecond of the speaker's time.
const PIECE: usize = 128 * 1024;

/// An MRT dump in progress; see [`SpeakerHandle::dump_tables`].
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

    /// The next whole records; none after the last one.
    ///
    /// # Errors
    /// If the speaker has ended.
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

    /// The progress of the dump.
    pub fn progress(&self) -> &TableDump {
        &self.progress
    }
}
