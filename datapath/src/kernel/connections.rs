//! The deletion of tracked connections. Each deletion lists the kernel's whole table, so one list
//! runs at a time, and serves everything that waits at its beginning.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The number of deleted connections, or the kernel's error.
type Answer = oneshot::Sender<io::Result<usize>>;

/// The deletions that wait. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Deletions(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    waiting: Vec<(Vec<IpAddr>, Answer)>,
    /// Whether a thread runs lists.
    is_running: bool,
}

impl Deletions {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a deletion. Returns whether no thread runs: the caller then starts one with
    /// [`Deletions::run`].
    pub(super) fn add(&self, addresses: Vec<IpAddr>, answer: Answer) -> bool {
        let mut queue = self.queue();
        queue.waiting.push((addresses, answer));
        !std::mem::replace(&mut queue.is_running, true)
    }

    /// The thread could not be started: nothing waits any more.
    pub(super) fn clear(&self) {
        *self.queue() = Queue::default();
    }

    /// Deletes until nothing waits.
    pub(super) fn run(&self, delete: impl Fn(&[IpAddr]) -> io::Result<usize>) {
        loop {
            let waiting = {
                let mut queue = self.queue();
                if queue.waiting.is_empty() {
                    queue.is_running = false;
                    return;
                }
                std::mem::take(&mut queue.waiting)
            };
            let addresses: Vec<IpAddr> =
                waiting.iter().flat_map(|(addresses, _)| addresses.iter().copied()).collect();
            let result = delete(&addresses);
            for (_, answer) in waiting {
                let _ = answer.send(copy(&result));
            }
        }
    }
}

fn copy(result: &io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(number) => Ok(*number),
        Err(error) => Err(match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn add(deletions: &Deletions, address: u8) -> (bool, oneshot::Receiver<io::Result<usize>>) {
        let (answer, result) = oneshot::channel();
        (deletions.add(vec![IpAddr::from([10, 0, 0, address])], answer), result)
    }

    #[test]
    fn deletions_that_wait_are_one_list() {
        let deletions = Deletions::default();
        let (starts, mut first) = add(&deletions, 1);
        assert!(starts);
        let (lists, others) = (Cell::new(0), Cell::new(Vec::new()));
        deletions.run(|addresses| {
            lists.set(lists.get() + 1);
            if lists.get() == 1 {
                let added: Vec<_> = (2..100).map(|address| add(&deletions, address)).collect();
                assert!(added.iter().all(|(starts, _)| !starts), "one thread runs");
                others.set(added);
                return Ok(1);
            }
            assert_eq!(addresses.len(), 98);
            Err(io::Error::from_raw_os_error(libc::ENOMEM))
        });
        assert_eq!(lists.get(), 2);
        assert_eq!(first.try_recv().unwrap().unwrap(), 1);
        for (_, mut other) in others.take() {
            assert_eq!(other.try_recv().unwrap().unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        }
        assert!(add(&deletions, 1).0, "the thread has ended");
    }
}
