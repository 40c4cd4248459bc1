//! What happened lately, once or on and on.
//!
//! Following is one question after the other, each answered once there is something newer than the last: the agent keeps
//! no list of followers, and one that stops costs it nothing.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use trunkline_api::control::{Event, Events, Query, Severity};

use crate::arguments::{ClientArgs, Output};
use crate::client;

/// One line an event, oldest first.
pub(crate) fn table(events: &Events) -> String {
    let mut text = missed(events);
    events.events.iter().for_each(|event| text.push_str(&line(event)));
    text
}

fn missed(events: &Events) -> String {
    match events.missed {
        0 => String::new(),
        missed => format!("… {missed} more before these are not kept any more\n"),
    }
}

/// As wide as most of them need, so that lines which come one by one stand under each other too.
fn line(event: &Event) -> String {
    let mut text = String::new();
    let mark = match event.severity {
        Severity::Info => " ",
        Severity::Warning => "!",
    };
    let peer = event.peer.as_deref().unwrap_or("-");
    let _ = writeln!(text, "{} {mark} {:<15} {peer:<15} {}", event.at, event.kind.name(), event.text);
    text
}

/// Prints what is kept, then what happens, until the agent or whoever reads goes away.
pub(crate) fn follow(ask: &ClientArgs) -> anyhow::Result<()> {
    let mut kept: Events = client::query(&ask.socket, Query::Events { after: 0, run: None, wait: false })?;
    let mut after = 0;
    loop {
        after = kept.events.last().map_or(after, |last| last.number);
        let text = match ask.output {
            Output::Table => table(&kept),
            Output::Json => {
                let lines: Result<Vec<String>, _> = kept.events.iter().map(serde_json::to_string).collect();
                lines?.iter().map(|line| format!("{line}\n")).collect()
            }
        };
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            outcome => outcome?,
        }
        kept = client::query_when(&ask.socket, Query::Events { after, run: Some(kept.run), wait: true })?;
    }
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::EventKind;

    use super::*;

    #[test]
    fn an_event_is_a_line_and_what_is_not_kept_is_said() {
        let event = |kind: EventKind, peer: Option<&str>, text: &str| Event {
            number: 4,
            at: "2026-11-21T03:00:00.125Z".to_owned(),
            kind,
            severity: kind.severity(),
            peer: peer.map(str::to_owned),
            prefix: None,
            text: text.to_owned(),
        };
        let events = Events {
            run: 1,
            missed: 3,
            events: vec![
                event(EventKind::SessionDown, Some("10.0.0.1"), "session down: hold timer expired"),
                event(EventKind::Originated, None, "10.1.0.2/32 is advertised"),
            ],
        };
        assert_eq!(
            table(&events),
            "… 3 more before these are not kept any more\n\
             2026-11-21T03:00:00.125Z ! sessionDown     10.0.0.1        session down: hold timer expired\n\
             2026-11-21T03:00:00.125Z   originated      -               10.1.0.2/32 is advertised\n"
        );
    }
}
