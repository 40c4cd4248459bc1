//! `docs/cli.md`: the command lines of all programs, generated from clap's own tree. So the page,
//! `--help`, the man pages and the completions have one source.
//!
//! clap-markdown does this too, but it supports neither environment variables nor help headings,
//! and writes lists where the book has tables.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory as _};

use super::table::cell;

const HEAD: &str = "\
# Command lines

<!-- Written by `cargo lab docs` from the command lines' own definitions (cli/src/commands.rs, controller/src/config.rs, cni/src/lib.rs): edit those. -->

Every command has `--help` (`-h` is shorter), and each program `--version` (`-V`). [commands.md](commands.md) describes the output of the operator's
commands and their JSON. The Debian package has man pages and completions for bash, zsh and fish from the same definitions; elsewhere
`trunkline completions` prints the completions.
";

/// The page.
pub(super) fn page() -> String {
    let mut text = HEAD.to_owned();
    for program in [agent(), controller()] {
        section(&mut text, &program, 2);
    }
    let about = trunkline_cni::about();
    let _ = write!(
        text,
        "\n## trunkline-cni\n\nA container runtime runs it, with the command in the environment \
         and the configuration on standard input: [cni.md](cni.md). Run by hand, it \
         prints:\n\n```text\n{about}\n```\n"
    );
    text
}

/// The agent's whole command line.
pub(super) fn agent() -> Command {
    whole(trunkline_cli::commands::Cli::command())
}

fn controller() -> Command {
    whole(trunkline_controller::config::Config::command())
}

fn whole(command: Command) -> Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

/// A command and its subcommands.
fn section(text: &mut String, command: &Command, level: usize) {
    let name = full_name(command);
    // Writing into a String cannot fail.
    let _ = write!(text, "\n{} {name}\n\n", "#".repeat(level));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        let _ = write!(text, "{}\n\n", prose(about));
    }
    let _ = writeln!(text, "```text\n{}\n```", usage(command));
    let mut headings: Vec<Option<&str>> = vec![None];
    for argument in arguments(command) {
        if !headings.contains(&argument.get_help_heading()) {
            headings.push(argument.get_help_heading());
        }
    }
    for heading in headings {
        let mut rows =
            arguments(command).filter(|argument| argument.get_help_heading() == heading).peekable();
        if rows.peek().is_none() {
            continue;
        }
        if let Some(heading) = heading {
            let _ = write!(text, "\n**{heading}**\n");
        }
        let _ = write!(text, "\n| argument | default | description |\n|---|---|---|\n");
        for argument in rows {
            let says = says(argument);
            let _ = writeln!(text, "| {} | {} | {} |", written(argument), default(argument), cell(&says));
        }
    }
    for below in below(command) {
        section(text, below, (level + 1).min(4));
    }
}

/// The full name of a command, for example `trunkline peers reset`.
fn full_name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}

fn below(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

/// The command's own arguments, without `--help` and `--version`, which all commands have.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    let shared = |argument: &Arg| ["help", "version"].contains(&argument.get_id().as_str());
    command.get_arguments().filter(move |argument| !argument.is_hide_set() && !shared(argument))
}

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim().trim_start_matches("Usage:").lines().map(str::trim);
    lines.collect::<Vec<_>>().join("\n")
}

/// The forms of an argument as code, for example `-o` and `--output <OUTPUT>`.
fn written(argument: &Arg) -> String {
    let long = format!("`{}`", cell(&argument.to_string()));
    match argument.get_short() {
        Some(short) if argument.get_long().is_some() => format!("`-{short}`, {long}"),
        _ => long,
    }
}

/// A flag without a value has no default.
fn default(argument: &Arg) -> String {
    let values: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let text = values.join(",");
    if text.is_empty() || argument.is_hide_default_value_set() || !argument.get_action().takes_values() {
        return String::new();
    }
    format!("`{}`", cell(&text))
}

/// The help text, the possible values, and the environment variable.
fn says(argument: &Arg) -> String {
    let mut text = argument.get_long_help().or(argument.get_help()).map(prose).unwrap_or_default();
    let values = argument.get_possible_values();
    let shown: Vec<String> = values
        .iter()
        .filter(|value| argument.get_action().takes_values() && !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}`: {}", value.get_name(), help.to_string().trim_end_matches('.')),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !shown.is_empty() {
        let _ = write!(text, " {}.", shown.join("; "));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(text, " Environment: `{}`.", variable.to_string_lossy());
    }
    text
}

/// A doc comment from clap, which removes the last full stop.
fn prose(text: &StyledStr) -> String {
    let text = text.to_string();
    let text = text.trim();
    if text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

/// Commands without a row on the page of the operator's commands.
pub(super) fn without_row(page: &str) -> Vec<String> {
    let mut missing = Vec::new();
    each(&agent(), &mut |command| {
        let name = full_name(command);
        let row = |line: &str| {
            let rest = line.strip_prefix("| `").and_then(|line| line.strip_prefix(name));
            // The row is about this command if the next word is an argument and not a subcommand.
            rest.is_some_and(|rest| match rest.strip_prefix(' ') {
                Some(rest) => {
                    let word = rest.split([' ', '`']).next().unwrap_or_default();
                    command.find_subcommand(word).is_none()
                }
                None => rest.starts_with('`'),
            })
        };
        // A command that only has subcommands cannot be run.
        if !command.is_subcommand_required_set() && !page.lines().any(row) {
            missing.push(name.to_owned());
        }
    });
    missing
}

fn each(command: &Command, look: &mut impl FnMut(&Command)) {
    look(command);
    below(command).for_each(|command| each(command, look));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(page: &'a str, section: &str, start: &str) -> &'a str {
        let from = page.find(&format!("# {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
        let lines = page[from..].lines().skip(1).take_while(|line| !line.starts_with('#'));
        lines
            .into_iter()
            .find(|line| line.starts_with(start))
            .unwrap_or_else(|| panic!("{section}: no {start}"))
    }

    #[test]
    fn each_kind_of_argument_has_its_syntax() {
        let page = page();
        for (section, row) in [
            ("trunkline peers", "| `[ADDRESS]` |  | Show only this peer"),
            ("trunkline peers soft-refresh", "| `<PEER>` |  | The peer"),
            ("trunkline events", "| `-f`, `--follow` |  | Continue"),
            ("trunkline status", "| `-o`, `--output <OUTPUT>` | `table` | Output format"),
            ("trunkline-controller", "| `--pod-workers <POD_WORKERS>` | `64` | Number of pods"),
            ("trunkline-controller", "| `--identity <IDENTITY>` |  | This replica"),
            ("trunkline-controller", "**Webhook**"),
            ("trunkline-cni", "CNI versions: "),
        ] {
            line(&page, section, row);
        }
        let output = line(&page, "trunkline status", "| `-o`");
        assert!(output.contains("`json`: JSON for programs"), "{output}");
        let family = line(&page, "trunkline-controller", "| `--default-ip-family");
        assert!(family.ends_with("Environment: `DEFAULT_IP_FAMILY`. |"), "{family}");
        // Every row of the table has three cells.
        for row in page.lines().filter(|line| line.starts_with('|')) {
            assert_eq!(row.replace("\\|", "").matches('|').count(), 4, "{row}");
        }
    }

    #[test]
    fn the_page_has_no_data_of_this_machine() {
        let page = page();
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let name = format!("{}-{}", name.trim(), std::process::id());
        assert!(!page.contains(&name));
    }

    #[test]
    fn a_command_without_a_row_is_found() {
        assert!(without_row("").iter().any(|name| name == "trunkline peers reset"));
        let one = "| `trunkline peers reset PEER` | x |\n| `trunkline drain` | x |\n| `trunkline statuses` |";
        let missing = without_row(one);
        for (name, there) in [("peers reset", true), ("peers", false), ("drain", true), ("status", false)] {
            assert_eq!(!missing.contains(&format!("trunkline {name}")), there, "{name}: {missing:?}");
        }
        assert!(!missing.contains(&"trunkline".to_owned()));
    }
}
