//! The expected outcome of each connection, as rows. The last row that matches applies.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::traffic::{Outcome, Port, connect};
use crate::netns::Namespace;
use crate::pinger::some;

/// Names of clients, names of servers, and the open ports. `*` is every name; `a|b` are several.
pub(super) type Row = (&'static str, &'static str, &'static [Port]);

/// Concurrent connections. Dropped ones need most of the time.
const AT_ONCE: usize = 40;

/// Whether a connection is expected to be open.
pub(super) fn is_open(rows: &[Row], from: &str, to: &str, port: Port) -> bool {
    let matches = |names: &str, name: &str| names == "*" || names.split('|').any(|one| one == name);
    let row = rows.iter().rev().find(|(clients, servers, _)| matches(clients, from) && matches(servers, to));
    row.is_some_and(|(_, _, ports)| ports.contains(&port))
}

/// One connection with its expectation.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub name: String,
    pub from: Namespace,
    pub to: IpAddr,
    pub port: Port,
    pub open: bool,
}

/// Makes all connections; returns those with another outcome than expected.
pub(super) fn differences(cells: &[Cell]) -> Result<Vec<(Cell, Outcome)>> {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            crate::interrupt::check()?;
            let outcome = connect(&cell.from, cell.to, cell.port, cell.open)?;
            let expected = if cell.open { Outcome::Open } else { Outcome::Dropped };
            if outcome != expected {
                wrong.lock().unwrap_or_else(PoisonError::into_inner).push((cell.clone(), outcome));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(wrong.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Repeats connections until each has its expected outcome. Policies take effect a moment after
/// their creation.
pub(super) fn wait_equal(cells: &[Cell], deadline: Duration) -> Result<()> {
    let (start, mut left) = (Instant::now(), cells.to_vec());
    loop {
        let wrong = differences(&left)?;
        if wrong.is_empty() {
            return Ok(());
        }
        if start.elapsed() > deadline {
            bail!("{}", describe(&wrong));
        }
        left = wrong.into_iter().map(|(cell, _)| cell).collect();
    }
}

/// Fails if a connection has another outcome than expected.
pub(super) fn equal(cells: &[Cell]) -> Result<()> {
    let wrong = differences(cells)?;
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{}", describe(&wrong))
}

fn describe(wrong: &[(Cell, Outcome)]) -> String {
    let words = |(cell, outcome): &(Cell, Outcome)| {
        let expected = if cell.open { "open" } else { "dropped" };
        format!("{} at {} {}: expected {expected}, was {outcome:?}", cell.name, cell.to, cell.port)
    };
    let all: Vec<String> = wrong.iter().map(words).collect();
    format!("{} connections are not as expected: {}", all.len(), some(&all))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_last_matching_row_applies() {
        let rows: [Row; 3] =
            [("*", "*", &[Port::Icmp]), ("*", "a|b", &[]), ("c", "b", &[Port::Tcp(80), Port::Icmp])];
        assert!(is_open(&rows, "x", "c", Port::Icmp));
        assert!(!is_open(&rows, "x", "b", Port::Icmp));
        assert!(is_open(&rows, "c", "b", Port::Tcp(80)));
        assert!(!is_open(&rows, "c", "a", Port::Tcp(80)));
    }
}
