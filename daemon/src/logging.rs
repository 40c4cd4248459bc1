//! The log: one line per event on standard error, text or JSON.

use std::io::IsTerminal;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// The log: one line per event, on standard error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Log {
    /// error, warn, info, debug, trace, or a filter such as `info,trunkline_bgp=debug`.
    pub level: String,
    /// The format of a line.
    pub format: LogFormat,
}

/// A text that is not a log level.
#[derive(Debug, thiserror::Error)]
#[error("{level:?} is no level or filter ({source}): write error, warn, info, debug or trace")]
pub struct LevelError {
    level: String,
    source: ParseError,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Log {
    fn default() -> Self {
        Log { level: "info".to_owned(), format: LogFormat::Text }
    }
}

impl Log {
    /// Checks the level.
    ///
    /// # Errors
    /// It is neither a level nor a filter.
    pub fn check(&self) -> Result<(), LevelError> {
        let filter = self.level.parse::<EnvFilter>();
        filter.map(drop).map_err(|source| LevelError { level: self.level.clone(), source })
    }
}

/// Starts logging. The configuration has checked the level; an invalid one falls back to `info`.
pub fn start(log: &Log) {
    let filter = log.level.parse::<EnvFilter>().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).init(),
    }
}

/// Escapes the control characters and invisible characters of a foreign text for a log line. A text
/// longer than `limit` characters is cut off.
pub fn shown(text: &str, limit: usize) -> String {
    let mut shown = String::new();
    for (place, character) in text.chars().enumerate() {
        if place == limit {
            shown.push('…');
            break;
        }
        let is_plain = matches!(character, '"' | '\'' | '\\') || character.escape_debug().len() == 1;
        if is_plain {
            shown.push(character);
        } else {
            shown.extend(character.escape_debug());
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn foreign_texts_are_escaped_and_cut_off() {
        for (text, expected) in [
            ("system:serviceaccount:kube-system:x", "system:serviceaccount:kube-system:x"),
            ("Jürgen \"J\" O'Neill \\", "Jürgen \"J\" O'Neill \\"),
            ("\u{1b}[31mred\r\nadmission", "\\u{1b}[31mred\\r\\nad…"),
            ("\u{202e}nimda", "\\u{202e}nimda"),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ] {
            let limit = if text.starts_with('\u{1b}') { 12 } else { 35 };
            assert_eq!(shown(text, limit), expected);
        }
        assert_eq!(shown("", 0), "");
    }
}
