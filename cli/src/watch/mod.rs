//! `trunkline watch`: a node's sessions, networks, pods, events and service addresses in a terminal,
//! live.
//!
//! ```text
//!  agent's socket ──Watch, Events──► two threads ([`feed`]) ──┐
//!  keyboard, window's size ────────► a thread ([`input`]) ────┼─► [`run`] ──► [`model`] ──► [`view`] ──► terminal ([`screen`])
//!  SIGTERM, SIGINT, SIGHUP, each second ──────────────────────┘
//! ```
//!
//! The model is a function of its updates and their times; it has no clock and no terminal. The
//! view is a function of the model. So tests need no clock and no terminal: they compare the text
//! on a screen of a given size.
//!
//! There is no polling: the agent answers after a change, and a new socket is an event of its
//! folder. Each second, only the displayed ages change. ratatui writes only cells that differ, so a
//! quiet node costs an ssh connection some ten octets per second.
//!
//! A terminal keeps its modes after the program's end. So every end (an error, a panic of any
//! thread, a signal) restores it through [`screen`]. Texts of a peer's operator appear here in a
//! program that controls a terminal, so `view` makes all control characters visible.

mod feed;
mod input;
mod model;
pub mod screen;
mod text;
mod view;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::input::Input;
use self::model::{AgentUpdate, Model};
use self::screen::Screen;
use self::view::Palette;

/// Interval of the updates of displayed ages.
const TICK: Duration = Duration::from_secs(1);
/// Capacity of the queue of events; senders wait if it is full.
const BACKLOG: usize = 16;

/// An event for the loop.
enum LoopEvent {
    Agent(AgentUpdate),
    Input(Input),
}

/// Shows the agent behind this socket until the operator quits.
pub fn watch(socket: &Path) -> anyhow::Result<()> {
    for (name, terminal) in [("input", io::stdin().is_terminal()), ("output", io::stdout().is_terminal())] {
        if !terminal {
            anyhow::bail!(
                "standard {name} is no terminal, and `trunkline watch` needs one (over ssh: `ssh \
                 -t`). `trunkline peers` and `trunkline status` print once, and `trunkline events \
                 --follow` prints new events; -o json is for programs"
            )
        }
    }
    feed::permitted(socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(socket))
}

async fn run(socket: &Path) -> anyhow::Result<()> {
    let mut ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
        .map(signal)
        .into_iter()
        .collect::<io::Result<Vec<_>>>()?;
    let began = Instant::now();
    let mut model = Model::new(socket.display().to_string());
    let palette = Palette::of_environment();
    let mut screen = Screen::open().context("the terminal")?;
    let (sender, mut happened) = mpsc::channel(BACKLOG);
    feed::start(socket, &sender)?;
    input::start(sender)?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let [terminate, interrupt, hangup] = ends.as_mut_slice() else { anyhow::bail!("three signals") };
    loop {
        screen.draw(|frame| view::draw(&model, &palette, frame)).context("the terminal")?;
        let first = tokio::select! {
            happened = happened.recv() => Some(happened.context("all senders have ended")?),
            _ = ticks.tick() => None,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        };
        model.pass(began.elapsed());
        // Events that arrived together are drawn once.
        let rest = std::iter::from_fn(|| happened.try_recv().ok()).take(BACKLOG);
        for happened in first.into_iter().chain(rest) {
            match happened {
                LoopEvent::Agent(update) => model.handle_update(update),
                LoopEvent::Input(Input::Key(key)) => {
                    if let Some(action) = input::action(&key, model.is_typing())
                        && model.act(action).is_break()
                    {
                        return Ok(());
                    }
                }
                LoopEvent::Input(Input::Resized) => {}
                LoopEvent::Input(Input::Failed(error)) => return Err(error).context("reading the keyboard"),
            }
        }
    }
}
