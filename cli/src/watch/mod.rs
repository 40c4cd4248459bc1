//! `trunkline watch`: a node's sessions, networks, pods and events in a terminal, live.
//!
//! ```text
//!  agent's socket ──Watch, Events──► two threads ([`feed`]) ──┐
//!  keyboard, window's size ────────► a thread ([`input`]) ────┼─► [`run`] ──► [`model`] ──► [`view`] ──► terminal ([`screen`])
//!  SIGTERM, SIGINT, SIGHUP, each second ──────────────────────┘
//! ```
//!
//! The model is a function of what it was told and when: it has no clock and no terminal. The view is a function of the model. So both are
//! tested without either, by the text that a terminal of some size would show.
//!
//! Nothing asks whether something has changed: the agent answers when it has, and a socket that is made anew is an event of its
//! folder. What ticks each second is only how long ago things were. ratatui writes the cells that differ, so a quiet node costs
//! an ssh connection some ten octets a second.
//!
//! Awkward is the terminal, which stays as it is left: whatever ends this, an error, a panic of any thread or a signal, goes through
//! [`screen`]. And what a peer's operator writes is shown here in a program that steers a terminal: `view` lets nothing through that is
//! not to be seen.

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

/// Between two ticks of the times.
const TICK: Duration = Duration::from_secs(1);
/// What was told and not taken yet; who tells more waits.
const BACKLOG: usize = 16;

/// Something happened outside.
enum LoopEvent {
    Agent(AgentUpdate),
    Input(Input),
}

/// Shows the agent behind this socket until the operator has enough.
pub fn watch(socket: &Path) -> anyhow::Result<()> {
    for (name, terminal) in [("input", io::stdin().is_terminal()), ("output", io::stdout().is_terminal())] {
        if !terminal {
            anyhow::bail!(
                "standard {name} is no terminal, and `trunkline watch` draws on one: `trunkline peers` and `trunkline status` print once, \
                 `trunkline events --follow` prints what happens, each with -o json for programs (over ssh, `ssh -t` gives a terminal)"
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
            happened = happened.recv() => Some(happened.context("nobody tells anything any more")?),
            _ = ticks.tick() => None,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        };
        model.pass(began.elapsed());
        // What came together is drawn together.
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
