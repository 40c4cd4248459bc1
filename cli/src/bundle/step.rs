//! The steps of the collection, each with a time limit.
//!
//! A step runs on its own thread and sends parts as it finds them. After the time limit, its
//! remaining work is abandoned and the thread continues, because this process ends soon. So a
//! blocked step (a stopped agent, `nft` behind a lock, a file on an unreachable server) does not
//! block the others.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::archive::{Archive, Content};

/// A message of a step.
enum Piece {
    Part(String, Content),
    Missing(Missing),
}

/// Data that is not in the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Missing {
    /// The missing data.
    pub(super) what: String,
    /// The reason.
    pub(super) why: String,
}

/// The result of a step.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Done {
    /// Name of the step.
    pub(super) step: String,
    /// Duration.
    pub(super) milliseconds: u64,
    /// The parts of the step.
    pub(super) parts: Vec<String>,
    /// The missing data of the step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) missing: Vec<Missing>,
}

/// The output of a step.
pub(super) struct Sink(SyncSender<Piece>);

impl Sink {
    /// Adds a part as text.
    pub(super) fn text(&self, path: impl Into<String>, text: impl Into<String>) -> anyhow::Result<()> {
        self.put(path, Content::Text(text.into()))
    }

    /// Adds a part as data.
    pub(super) fn json(&self, path: impl Into<String>, value: &impl Serialize) -> anyhow::Result<()> {
        self.put(path, Content::Json(serde_json::to_value(value)?))
    }

    /// Adds a part.
    pub(super) fn put(&self, path: impl Into<String>, content: Content) -> anyhow::Result<()> {
        self.send(Piece::Part(path.into(), content))
    }

    /// Records missing data.
    pub(super) fn missing(&self, what: impl Into<String>, why: impl std::fmt::Display) -> anyhow::Result<()> {
        self.send(Piece::Missing(Missing { what: what.into(), why: format!("{why:#}") }))
    }

    /// Adds a part, or records why it is missing.
    pub(super) fn either<E: std::fmt::Display>(
        &self,
        path: impl Into<String>,
        text: Result<String, E>,
    ) -> anyhow::Result<()> {
        match text {
            Ok(text) => self.text(path, text),
            Err(why) => self.missing(path, why),
        }
    }

    fn send(&self, piece: Piece) -> anyhow::Result<()> {
        self.0.send(piece).map_err(|_| anyhow::anyhow!("the time limit was reached"))
    }
}

/// Runs steps one after the other and writes their parts.
pub(super) struct Collection<W: Write> {
    archive: Archive<W>,
    done: Vec<Done>,
    quiet: bool,
}

impl<W: Write> Collection<W> {
    /// Creates a collection for this archive. `quiet`: without progress messages.
    pub(super) fn new(archive: Archive<W>, quiet: bool) -> Self {
        Collection { archive, done: Vec::new(), quiet }
    }

    /// The archive.
    pub(super) fn archive(&mut self) -> &mut Archive<W> {
        &mut self.archive
    }

    /// The results of the steps so far.
    pub(super) fn done(&self) -> &[Done] {
        &self.done
    }

    /// Runs a step. An error is a write error of the archive and ends the collection. A failure of
    /// the step is recorded, and the result is `None`.
    pub(super) fn step<T: Send + 'static>(
        &mut self,
        name: &str,
        limit: Duration,
        work: impl FnOnce(&Sink) -> anyhow::Result<T> + Send + 'static,
    ) -> io::Result<Option<T>> {
        if !self.quiet {
            eprint!("{name:<28} ");
        }
        let began = now();
        // One piece is written while the step prepares the next one.
        let (pieces, received) = mpsc::sync_channel(1);
        let (result, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("bundle".to_owned()).spawn(move || {
            let sink = Sink(pieces);
            let outcome = work(&sink);
            // The result is sent before the channel of pieces closes, because the receiver reads
            // the result when the channel is closed.
            let _ = result.send(outcome);
        });
        let mut done =
            Done { step: name.to_owned(), milliseconds: 0, parts: Vec::new(), missing: Vec::new() };
        let outcome = match thread {
            Ok(_) => self.take(&received, began + limit, &mut done)?.then(|| ended.try_recv()),
            Err(error) => Some(Ok(Err(error.into()))),
        };
        let mut fail = |why: String| done.missing.push(Missing { what: name.to_owned(), why });
        let value = match outcome {
            Some(Ok(Ok(value))) => Some(value),
            Some(Ok(Err(error))) => {
                fail(format!("{error:#}"));
                None
            }
            Some(Err(_)) => {
                fail("this program panicked".to_owned());
                None
            }
            None => {
                fail(format!("stopped after {} s", limit.as_secs_f32()));
                None
            }
        };
        done.milliseconds = now().duration_since(began).as_millis() as u64;
        self.note(done);
        Ok(value)
    }

    /// Records a step that is not run.
    pub(super) fn skip(&mut self, name: &str, why: &str) {
        if !self.quiet {
            eprint!("{name:<28} ");
        }
        let missing = vec![Missing { what: name.to_owned(), why: why.to_owned() }];
        self.note(Done { step: name.to_owned(), milliseconds: 0, parts: Vec::new(), missing });
    }

    /// Writes pieces until the step ends. Returns whether it ended in time.
    fn take(&mut self, pieces: &Receiver<Piece>, deadline: Instant, done: &mut Done) -> io::Result<bool> {
        loop {
            match pieces.recv_timeout(deadline.saturating_duration_since(now())) {
                Ok(Piece::Part(path, content)) => done.parts.push(self.archive.put(&path, content)?),
                Ok(Piece::Missing(missing)) => done.missing.push(missing),
                Err(RecvTimeoutError::Disconnected) => return Ok(true),
                Err(RecvTimeoutError::Timeout) => return Ok(false),
            }
        }
    }

    fn note(&mut self, mut done: Done) {
        for missing in &mut done.missing {
            missing.what = self.archive.clean(&plain(&missing.what));
            missing.why = self.archive.clean(&plain(&missing.why));
        }
        if !self.quiet {
            let parts = match done.parts.len() {
                0 => String::new(),
                1 => "1 part".to_owned(),
                count => format!("{count} parts"),
            };
            let missing: Vec<String> = done
                .missing
                .iter()
                .map(|Missing { what, why }| {
                    if *what == done.step {
                        format!("not collected: {why}")
                    } else {
                        format!("without {what}: {why}")
                    }
                })
                .collect();
            let said = [parts].into_iter().chain(missing).filter(|text| !text.is_empty());
            eprintln!("{}", said.collect::<Vec<_>>().join("; "));
        }
        self.done.push(done);
    }

    /// Adds a final part that belongs to no step.
    pub(super) fn put(&mut self, path: &str, content: Content) -> io::Result<()> {
        self.archive.put(path, content).map(drop)
    }

    /// Writes the end of the archive.
    pub(super) fn end(self) -> io::Result<W> {
        self.archive.end()
    }
}

/// The text as one line of limited length without control characters.
fn plain(text: &str) -> String {
    const LONGEST: usize = 500;
    let line: String = text.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() { line + "…" } else { line }
}

/// Serializes data for a part.
pub(super) fn json(value: &impl Serialize) -> io::Result<Value> {
    Ok(serde_json::to_value(value)?)
}

#[expect(clippy::disallowed_methods, reason = "an operator's command, not the engine")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collection() -> Collection<Vec<u8>> {
        Collection::new(Archive::begin(Vec::new(), "bundle", 0).unwrap(), true)
    }

    #[test]
    fn hanging_step_is_abandoned_and_keeps_its_parts() {
        let mut collection = collection();
        let (hold, held) = mpsc::channel::<()>();
        let began = now();
        let value = collection
            .step("hangs", Duration::from_millis(50), move |sink| {
                sink.text("first.txt", "1")?;
                let _ = held.recv();
                sink.text("second.txt", "2")?;
                Ok(())
            })
            .unwrap();
        assert!(value.is_none() && now() - began < Duration::from_secs(10));
        let later = collection.step("goes on", Duration::from_secs(10), |sink| {
            sink.text("third.txt", "3")?;
            Ok(7)
        });
        assert_eq!(later.unwrap(), Some(7));
        drop(hold);
        let [hung, went_on] = collection.done() else { panic!("{:?}", collection.done()) };
        assert_eq!(hung.parts, ["first.txt"]);
        assert_eq!(hung.missing[0].why, "stopped after 0.05 s");
        assert_eq!((went_on.parts.as_slice(), went_on.missing.len()), (&["third.txt".to_owned()][..], 0));
    }

    #[test]
    fn failure_is_recorded_as_one_harmless_line() {
        let mut collection = collection();
        collection
            .step::<()>("fails", Duration::from_secs(10), |_| {
                anyhow::bail!("a\nb\u{1b}[2J password: hunter2")
            })
            .unwrap();
        collection.step::<()>("panics", Duration::from_secs(10), |_| panic!("on purpose")).unwrap();
        let why: Vec<&str> = collection.done().iter().map(|done| done.missing[0].why.as_str()).collect();
        assert_eq!(why, ["a b [2J password: [redacted]", "this program panicked"]);
    }
}
