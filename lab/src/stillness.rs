//! Interruptions of the machine itself. Sometimes a hypervisor stops a virtual machine, for tens of
//! milliseconds on a busy host. Then every clock of the virtual machine jumps, and no program could
//! have sent a packet in time. Threads with the highest real-time priority, one on each processor,
//! repeatedly sleep for a millisecond and record the delay of their wake-up. No program of a lower
//! priority can have run during such a delay. A test that measures milliseconds checks these delays
//! first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

use crate::shell::{cmd, run};

const NAP: Duration = Duration::from_millis(1);
/// Higher than any real-time priority in a lab.
const PRIORITY: &str = "90";

/// Runs the work. Returns its result and the longest interruption seen on any processor.
pub(crate) fn longest_while<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let processors = sched_getaffinity(None)?;
    let (ready, watching) = std::sync::mpsc::channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopped = StopOnDrop(&stop);
        let watchers: Vec<_> = (0..CpuSet::MAX_CPU)
            .filter(|number| processors.is_set(*number))
            .map(|number| {
                let (ready, stop) = (ready.clone(), &stop);
                scope.spawn(move || -> Result<Duration> {
                    let urgent = make_urgent(number);
                    let failed = urgent.is_err();
                    _ = ready.send(urgent);
                    let mut longest = Duration::ZERO;
                    while !failed && !stop.load(Ordering::Relaxed) {
                        let asleep = Instant::now();
                        std::thread::sleep(NAP);
                        longest = longest.max(asleep.elapsed().saturating_sub(NAP));
                    }
                    Ok(longest)
                })
            })
            .collect();
        for _ in &watchers {
            watching.recv().context("a watcher ended")??;
        }
        let result = work()?;
        drop(stopped);
        let mut longest = Duration::ZERO;
        for watcher in watchers {
            longest = longest.max(watcher.join().unwrap_or_else(|p| std::panic::resume_unwind(p))?);
        }
        Ok((result, longest))
    })
}

/// Ends the threads of a scope on every exit.
pub(crate) struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Binds this thread to a processor and sets its priority.
fn make_urgent(processor: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only)?;
    let thread = gettid().as_raw_nonzero().to_string();
    run(&mut cmd("chrt", ["--fifo", "--pid", PRIORITY, &thread]))?;
    Ok(())
}
