//! The events on disk: one JSON object per line, in the folder of the store.
//!
//! The file is for people, and no code depends on it. [`read`] uses the lines that it can parse. It
//! skips lines that are incomplete, damaged or of another version. New events are appended. If the
//! file would grow beyond `LIMIT`, it is rewritten with the newest events. No write waits for the
//! disk (no `fsync`). A killed process loses only unwritten events; a host that loses power also
//! loses the last seconds.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use trunkline_api::control::Event;

/// Maximum size of the file in octets.
const LIMIT: u64 = 512 * 1024;
/// Maximum size of a rewritten file in octets.
const KEPT: usize = LIMIT as usize / 2;
/// Maximum length of a text in the file in octets. A longer text is cut off.
const TEXT: usize = 2048;

/// The path of the events file of an agent with this store.
pub fn path_for_store(store: &Path) -> PathBuf {
    store.with_file_name("events.jsonl")
}

/// The events of earlier runs, oldest first, with their numbers. None from an unreadable file.
pub fn read(path: &Path) -> Vec<Event> {
    let text = tail(path).unwrap_or_default();
    text.split(|octet| *octet == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// The last [`LIMIT`] octets of the file. The first line may be incomplete.
fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(LIMIT)))?;
    let mut text = Vec::new();
    file.take(LIMIT).read_to_end(&mut text)?;
    Ok(text)
}

/// The file. It has only one writer.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    /// None: the file must be rewritten before the next append.
    open: Option<(File, u64)>,
}

impl EventFile {
    pub(super) fn new(path: PathBuf) -> EventFile {
        EventFile { path, open: None }
    }

    /// Writes new events. `all` returns all stored events, the new ones included, for a rewritten
    /// file.
    pub(super) fn write(&mut self, new: &[Event], all: impl FnOnce() -> Vec<Event>) -> io::Result<()> {
        // After an error, the file may end with an incomplete line.
        if let Some((mut file, size)) = self.open.take() {
            let text: Vec<u8> = new.iter().flat_map(line).collect();
            let size = size + text.len() as u64;
            if size <= LIMIT {
                file.write_all(&text)?;
                self.open = Some((file, size));
                return Ok(());
            }
        }
        self.open = Some(self.write_anew(&all())?);
        Ok(())
    }

    fn write_anew(&self, events: &[Event]) -> io::Result<(File, u64)> {
        let mut lines: Vec<Vec<u8>> = Vec::new();
        let mut size = 0;
        for text in events.iter().rev().map(line) {
            size += text.len();
            if size > KEPT {
                break;
            }
            lines.push(text);
        }
        lines.reverse();
        let text = lines.concat();
        let file = replace(&self.path, &text)?;
        Ok((file, text.len() as u64))
    }
}

/// Replaces a file atomically: a reader sees the old text or the new one. Only root can read the
/// file.
pub(super) fn replace(path: &Path, text: &[u8]) -> io::Result<File> {
    let next = path.with_extension("new");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // A file from before a crash may have another mode.
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&next)?;
    let written = file.write_all(text).and_then(|()| fs::rename(&next, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&next);
        return Err(error);
    }
    Ok(file)
}

fn line(event: &Event) -> Vec<u8> {
    let mut event = event.clone();
    if event.text.len() > TEXT {
        let end = (0..=TEXT).rev().find(|end| event.text.is_char_boundary(*end));
        event.text.truncate(end.unwrap_or_default());
        event.text.push('…');
    }
    // Strings and numbers always have a JSON form.
    let mut line = serde_json::to_vec(&event).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use trunkline_api::control::EventKind;

    use super::*;

    fn event(number: u64, text: &str) -> Event {
        let kind = EventKind::SessionDown;
        Event {
            number,
            at: "2026-11-21T03:00:00.125Z".to_owned(),
            kind,
            severity: kind.severity(),
            peer: Some("10.0.0.1".to_owned()),
            prefix: None,
            text: text.to_owned(),
        }
    }

    #[test]
    fn events_are_read_back_and_only_root_can_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_for_store(&folder.path().join("state/store.redb"));
        assert_eq!(read(&path), []);
        let mut file = EventFile::new(path.clone());
        file.write(&[event(2, "b")], || vec![event(1, "a"), event(2, "b")]).unwrap();
        file.write(&[event(3, "c\nd\u{1b}")], || unreachable!("the new event is appended")).unwrap();
        assert_eq!(read(&path), [event(1, "a"), event(2, "b"), event(3, "c\nd\u{1b}")]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn damaged_and_incomplete_lines_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut text = b"\0\xff garbage\n{\"number\":1}\n".to_vec();
        text.extend(line(&event(1, "a")));
        // The kind of an event from a later version is read as unknown.
        text.extend(br#"{"number":2,"at":"x","kind":"ofTomorrow","severity":"info","text":"b"}"#);
        text.push(b'\n');
        text.extend(line(&event(3, "c")));
        let whole = text.len();
        text.extend(line(&event(4, "d")));
        for end in whole..text.len() - 1 {
            fs::write(&path, &text[..end]).unwrap();
            let numbers: Vec<u64> = read(&path).iter().map(|event| event.number).collect();
            assert_eq!(numbers, [1, 2, 3], "cut off at {end}");
        }
        // The next writer starts a new line.
        let mut file = EventFile::new(path.clone());
        let kept = read(&path);
        file.write(&[], || kept.clone()).unwrap();
        file.write(&[event(5, "e")], || unreachable!("the new event is appended")).unwrap();
        assert_eq!(read(&path).last(), Some(&event(5, "e")));
        fs::write(&path, vec![0; 2 * LIMIT as usize]).unwrap();
        assert_eq!(read(&path), []);
    }

    #[test]
    fn the_file_stays_below_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut file = EventFile::new(path.clone());
        let long = "ä".repeat(3000);
        for number in 0..600 {
            let all = || (number.max(999) - 999..=number).map(|number| event(number, &long)).collect();
            file.write(&[event(number, &long)], all).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= LIMIT, "event {number}");
        }
        let kept = read(&path);
        assert!(kept.len() > 100 && kept.last().unwrap().number == 599, "{} kept", kept.len());
        assert!(kept[0].text.len() <= TEXT + 3, "{}", kept[0].text.len());
    }

    #[test]
    fn after_an_error_the_file_is_rewritten() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::write(&state, "a file where the folder should be").unwrap();
        let mut file = EventFile::new(state.join("events.jsonl"));
        assert!(file.write(&[event(1, "a")], || vec![event(1, "a")]).is_err());
        fs::remove_file(&state).unwrap();
        file.write(&[event(2, "b")], || vec![event(1, "a"), event(2, "b")]).unwrap();
        assert_eq!(read(&state.join("events.jsonl")).len(), 2);
    }
}
