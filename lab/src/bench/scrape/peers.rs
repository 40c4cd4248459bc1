//! The two peers of the bench. A feeder advertises a table, advertises it again with other
//! attributes, withdraws it, or loses its session. A witness advertises nothing and repeatedly
//! requests the other side's routes (ROUTE-REFRESH). The time until the answer is the time that any
//! peer's message waits in the speaker.

use std::io::Write as _;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::bench::speakers::peers::{End, KEEPALIVE, UPDATE, establish, message, next_message, table};

/// Interval between the KEEPALIVEs of an end without other messages; the hold time is
/// [`HOLD_TIME`].
const ALIVE: Duration = Duration::from_millis(700);
/// Hold time in seconds: the minimum of RFC 4271 §4.2. With it, the other side sends a KEEPALIVE
/// every second.
pub(super) const HOLD_TIME: u16 = 3;
/// Pause between two queries of the witness.
const PAUSE: Duration = Duration::from_millis(5);
const ROUTE_REFRESH: u8 = 5;

/// A table as UPDATE messages.
pub(super) struct TableMessages {
    /// Two versions, which differ in each attribute set.
    forms: [Vec<u8>; 2],
    withdrawn: Vec<u8>,
}

impl TableMessages {
    pub(super) fn new(prefixes: u32, to_a_set: u32, network: u8) -> TableMessages {
        let one = table(prefixes, to_a_set, network);
        let mut other = one.clone();
        let mut at = 0;
        while at < other.len() {
            // The value of ORIGIN, which is the first attribute after the header and two lengths.
            other[at + 26] = 2;
            at += usize::from(other[at + 16]) << 8 | usize::from(other[at + 17]);
        }
        TableMessages { forms: [one, other], withdrawn: withdrawals(prefixes) }
    }
}

/// UPDATEs that withdraw the routes of [`table`].
fn withdrawals(prefixes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for first in (0..prefixes).step_by(1000) {
        let rows = first..(first + 1000).min(prefixes);
        let mut body = ((rows.len() * 4) as u16).to_be_bytes().to_vec();
        for prefix in rows {
            body.push(24);
            let address = u32::from(Ipv4Addr::new(20, 0, 0, 0)) + (prefix << 8);
            body.extend_from_slice(&address.to_be_bytes()[..3]);
        }
        body.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&message(UPDATE, &body));
    }
    out
}

/// Activity of the feeder until it is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It stays connected.
    Nothing,
    /// It advertises all routes again with other attributes.
    Again,
    /// It withdraws all routes and advertises them again.
    Flaps,
}

/// The feeder; see the module's text.
pub(super) struct Feeder {
    end: End,
    messages: TableMessages,
    session: Session,
    form: usize,
}

impl Feeder {
    /// Connects; it advertises no route yet.
    pub(super) fn connect(network: u8, messages: TableMessages) -> Result<Feeder> {
        let end = End {
            local: Ipv4Addr::new(10, network, 0, 2),
            asn: 65100,
            speaker: Ipv4Addr::new(10, network, 0, 1),
            hold_time: HOLD_TIME,
            refresh: false,
        };
        Ok(Feeder { end, messages, session: Session::begin(end)?, form: 0 })
    }

    /// Advertises the whole table.
    pub(super) fn advertise(&mut self) -> Result<()> {
        self.form ^= 1;
        self.session
            .stream
            .write_all(&self.messages.forms[self.form])
            .context("the speaker closed the feeder's session")
    }

    /// The longest time between two messages from the other side since the last call, in seconds.
    /// It includes the current silence.
    pub(super) fn take_silence(&self) -> f64 {
        let mut arrivals = self.session.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = std::mem::take(&mut arrivals.longest).max(arrivals.last.elapsed());
        longest.as_secs_f64()
    }

    /// Continues until `stop`. Returns the number of prefixes that it advertised or withdrew.
    pub(super) fn go_on(&mut self, doing: Doing, stop: &AtomicBool, prefixes: u32) -> Result<u64> {
        let mut count = 0;
        let mut alive = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            match doing {
                Doing::Nothing => {
                    std::thread::sleep(PAUSE);
                    if alive.elapsed() > ALIVE {
                        self.session.stream.write_all(&message(KEEPALIVE, &[]))?;
                        alive = Instant::now();
                    }
                    continue;
                }
                Doing::Again => {}
                Doing::Flaps => {
                    self.session.stream.write_all(&self.messages.withdrawn)?;
                    count += u64::from(prefixes);
                }
            }
            self.advertise()?;
            count += u64::from(prefixes);
        }
        Ok(count)
    }

    /// Ends the session by a FIN; the advertised routes are lost with it.
    pub(super) fn end(self) -> Result<Lost> {
        let Feeder { end, messages, session, form } = self;
        session.stream.shutdown(Shutdown::Both)?;
        session.reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(Lost { end, messages, form })
    }
}

/// A feeder without a session.
pub(super) struct Lost {
    end: End,
    messages: TableMessages,
    form: usize,
}

impl Lost {
    /// Connects again; it advertises no route yet.
    pub(super) fn connect(self) -> Result<Feeder> {
        let Lost { end, messages, form } = self;
        Ok(Feeder { end, messages, session: Session::begin(end)?, form })
    }
}

/// A session whose other side only sends KEEPALIVEs: a thread records when a message arrives.
struct Session {
    stream: TcpStream,
    arrivals: Arc<Mutex<ArrivalTimes>>,
    reader: JoinHandle<()>,
}

struct ArrivalTimes {
    last: Instant,
    /// The longest time between two messages.
    longest: Duration,
}

impl Session {
    fn begin(end: End) -> Result<Session> {
        let stream = establish(end)?;
        let mut reader = stream.try_clone()?;
        let arrivals = Arc::new(Mutex::new(ArrivalTimes { last: Instant::now(), longest: Duration::ZERO }));
        let noted = Arc::clone(&arrivals);
        let reader = std::thread::spawn(move || {
            while next_message(&mut reader).is_ok() {
                let mut arrivals = noted.lock().unwrap_or_else(PoisonError::into_inner);
                arrivals.longest = arrivals.longest.max(arrivals.last.elapsed());
                arrivals.last = Instant::now();
            }
        });
        Ok(Session { stream, arrivals, reader })
    }
}

/// The witness; see the module's text.
pub(super) struct Witness {
    answers: Arc<Mutex<Vec<f64>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Witness {
    pub(super) fn connect() -> Result<Witness> {
        let end = End {
            local: Ipv4Addr::new(10, 1, 1, 1),
            asn: 65200,
            speaker: Ipv4Addr::new(10, 1, 0, 1),
            hold_time: HOLD_TIME,
            refresh: true,
        };
        let stream = establish(end)?;
        let (answers, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (noted, stopped) = (Arc::clone(&answers), Arc::clone(&stop));
        let thread = std::thread::spawn(move || watch(stream, &noted, &stopped));
        Ok(Witness { answers, stop, thread })
    }

    /// The response times since the last call, in milliseconds.
    pub(super) fn take(&self) -> Vec<f64> {
        std::mem::take(&mut self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks that its session has lasted all the time.
    pub(super) fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn watch(mut stream: TcpStream, answers: &Mutex<Vec<f64>>, stop: &AtomicBool) -> Result<()> {
    // This end keeps the session alive, however long an answer takes.
    let (mut keeper, done) = (stream.try_clone()?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            let mut alive = Instant::now();
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE);
                if alive.elapsed() > ALIVE {
                    // The reading side notices a lost session.
                    let _ = keeper.write_all(&message(KEEPALIVE, &[]));
                    alive = Instant::now();
                }
            }
        });
        let outcome = ask_again_and_again(&mut stream, answers, stop);
        done.store(true, Ordering::Relaxed);
        outcome
    })
}

fn ask_again_and_again(stream: &mut TcpStream, answers: &Mutex<Vec<f64>>, stop: &AtomicBool) -> Result<()> {
    // Each time, the node advertises its own prefixes once. That is the only UPDATE with a prefix.
    let await_update = |stream: &mut TcpStream| -> Result<()> {
        loop {
            let (kind, body) = next_message(stream).context("the witness lost its session")?;
            // An UPDATE with a prefix has more octets than its two length fields.
            if kind == UPDATE && body.len() > 4 {
                return Ok(());
            }
        }
    };
    await_update(stream)?;
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        stream.write_all(&message(ROUTE_REFRESH, &[0, 1, 0, 1]))?;
        await_update(stream)?;
        let took = asked.elapsed().as_secs_f64() * 1e3;
        answers.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_the_same_prefixes_and_other_attributes() {
        let messages = TableMessages::new(25, 5, 1);
        let [one, other] = &messages.forms;
        assert_eq!(one.len(), other.len());
        let differ: Vec<usize> = (0..one.len()).filter(|at| one[*at] != other[*at]).collect();
        assert_eq!(differ.len(), 5, "one octet a message");
        assert!(differ.iter().all(|at| one[at - 3..=*at] == [0x40, 1, 1, 0]), "the value of ORIGIN");
        assert_eq!(messages.withdrawn.len(), 19 + 4 + 25 * 4);
    }
}
