//! YAML with a comment beside each value.

use std::fmt::Write as _;

use serde_json::Value;

/// A value of the chart with its origin.
#[derive(Debug)]
pub(super) struct Setting {
    /// Keys from the top; the last one is empty for an entry of a list.
    pub path: Vec<&'static str>,
    pub value: Value,
    pub comment: String,
}

/// The settings as YAML. Settings with a common parent must follow each other.
pub(super) fn yaml(settings: &[Setting]) -> String {
    let mut text = String::new();
    let mut open: &[&str] = &[];
    for setting in settings {
        let Some((last, parents)) = setting.path.split_last() else { continue };
        let common = open.iter().zip(parents).take_while(|(one, other)| one == other).count();
        for (depth, key) in parents.iter().enumerate().skip(common) {
            let _infallible = writeln!(text, "{:width$}{key}:", "", width = 2 * depth);
        }
        open = parents;
        let key = if last.is_empty() { "- ".to_owned() } else { format!("{last}: ") };
        // JSON is YAML.
        let _infallible = writeln!(
            text,
            "{:width$}{key}{}  # {}",
            "",
            setting.value,
            setting.comment,
            width = 2 * parents.len()
        );
    }
    text
}
