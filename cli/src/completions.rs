//! `trunkline completions`: the completion script of a shell. It is generated from the command line
//! ([`Cli`]), so it always matches the commands.

use clap::{CommandFactory, ValueEnum};
use clap_complete::{Shell as Known, generate};

use crate::commands::Cli;

/// Supported shells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Save to `/usr/share/bash-completion/completions/trunkline`, or run `source <(trunkline
    /// completions bash)`.
    Bash,
    /// Save to `_trunkline` in a folder of `fpath`, such as `/usr/local/share/zsh/site-functions`.
    Zsh,
    /// Save to `~/.config/fish/completions/trunkline.fish`.
    Fish,
}

/// The script for a shell.
pub fn script(shell: Shell) -> Vec<u8> {
    let known = match shell {
        Shell::Bash => Known::Bash,
        Shell::Zsh => Known::Zsh,
        Shell::Fish => Known::Fish,
    };
    let mut script = Vec::new();
    generate(known, &mut Cli::command(), "trunkline", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The completions that bash offers for the last of these words.
    fn offered(words: &[&str]) -> Vec<String> {
        // The call is like bash's own. Variables contain the words and the index of the current
        // word. The arguments are the program, the current word and the previous word.
        let driver = r#"
            eval "$SCRIPT" || exit 1
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            compopt() { :; }
            complete -p trunkline | grep -q -- '-F _trunkline' || exit 1
            _trunkline trunkline "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            printf '%s\n' "${COMPREPLY[@]}"
        "#;
        let script = String::from_utf8(script(Shell::Bash)).unwrap();
        let bash = Command::new("bash")
            .args(["--norc", "-c", driver, "bash"])
            .args(words)
            .env("SCRIPT", script)
            .output()
            .expect("bash, which every Debian has");
        assert!(bash.status.success(), "{words:?}: {}", String::from_utf8_lossy(&bash.stderr));
        assert_eq!(String::from_utf8_lossy(&bash.stderr), "", "{words:?}");
        let lines = String::from_utf8(bash.stdout).unwrap();
        lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_commands_options_and_values() {
        assert_eq!(offered(&["trunkline", "pee"]), ["peers"]);
        assert_eq!(offered(&["trunkline", "peers", "so"]), ["soft-refresh"]);
        assert_eq!(offered(&["trunkline", "routes", "--exp"]), ["--explain"]);
        assert_eq!(offered(&["trunkline", "routes", "-o", ""]), ["table", "json"]);
        assert_eq!(offered(&["trunkline", "completions", "z"]), ["zsh"]);
        let first = offered(&["trunkline", ""]);
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(first.iter().any(|word| word == command.get_name()), "{}: {first:?}", command.get_name());
        }
    }

    #[test]
    fn bash_completes_the_names_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.yaml");
        std::fs::write(&path, "").unwrap();
        let begun = folder.path().join("age").display().to_string();
        assert_eq!(offered(&["trunkline", "agent", "--config", &begun]), [path.display().to_string()]);
    }

    /// Each installed shell reads its script without an error; bash is always installed.
    #[test]
    fn each_shell_reads_its_script() {
        for (shell, program) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            let script = script(shell);
            assert!(String::from_utf8_lossy(&script).contains("soft-refresh"), "{program}");
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), script).unwrap();
            match Command::new(program).arg("-n").arg(file.path()).output() {
                Ok(said) => assert!(said.status.success() && said.stderr.is_empty(), "{program}: {said:?}"),
                Err(error) => {
                    assert!(program != "bash", "{error}");
                    println!("skipped: {program} is not installed");
                }
            }
        }
    }
}
