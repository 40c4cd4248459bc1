//! One function for each CNI command: its inputs, its request, its output.

use serde_json::{Value, json};
use trunkline_api::attach::{Attach, Attachment, Check, Code, Command, Detach, Done, Failure, Gc};

use crate::agent::{Agent, AgentError};
use crate::configuration::{Configuration, NEWEST, VERSIONS, version_of};
use crate::environment::{Arguments, container};
use crate::namespace::{self, Namespace};
use crate::options::options;
use crate::{environment, result};

/// The commands of the specification.
pub(crate) const COMMANDS: [&str; 6] = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"];

/// Runs a command and returns its output, if any.
pub(crate) fn run(command: &str, input: &[u8]) -> Result<Option<Value>, Failure> {
    match command {
        "ADD" => add(&Configuration::parse(input)?).map(Some),
        "DEL" => delete(&Configuration::parse(input)?).map(|()| None),
        "CHECK" => check(&Configuration::parse(input)?).map(|()| None),
        "GC" => garbage_collect(&since_1_1(Configuration::parse(input)?, command)?).map(|()| None),
        "STATUS" => status(&since_1_1(Configuration::parse(input)?, command)?).map(|()| None),
        "VERSION" => Ok(Some(version(input))),
        other => Err(Failure::new(
            Code::InvalidEnvironment,
            format!("CNI_COMMAND: `{other}` is not a command: write {}", COMMANDS.join(" or ")),
        )),
    }
}

fn add(configuration: &Configuration) -> Result<Value, Failure> {
    configuration.refuse_unsupported()?;
    let interface = container()?;
    let arguments = Arguments::from_environment()?;
    let previous = configuration.previous_result()?;
    let path = environment::required("CNI_NETNS")?;
    if let Some(previous) = previous {
        result::refuse_same_interface(previous, &interface.ifname, &path)?;
    }
    let namespace = Namespace::open(&path)?;
    let agent = Agent::new(configuration);
    let attachment: Attachment = agent.request(
        Command::Attach(Box::new(Attach {
            conf_name: configuration.name().to_owned(),
            netns: path.clone(),
            wanted: options(configuration, &arguments)?,
            pod: arguments.pod(),
            deadline_ms: agent.deadline_ms(),
            interface: interface.clone(),
        })),
        Some(&namespace),
    )?;
    Ok(result::added(configuration, &interface.ifname, &path, &attachment))
}

/// DEL needs only the container and the interface. All other inputs may be gone, so they are
/// optional.
fn delete(configuration: &Configuration) -> Result<(), Failure> {
    let interface = container()?;
    let path = environment::variable("CNI_NETNS").ok().flatten();
    let namespace = path.and_then(|path| namespace::open_if_there(&path));
    let conf_name = configuration.name().to_owned();
    let agent = Agent::new(configuration);
    let Done {} = agent.request(Command::Detach(Detach { interface, conf_name }), namespace.as_ref())?;
    Ok(())
}

fn check(configuration: &Configuration) -> Result<(), Failure> {
    configuration.refuse_unsupported()?;
    let interface = container()?;
    let path = environment::required("CNI_NETNS")?;
    let previous = configuration.previous_result()?.ok_or_else(|| {
        Failure::new(
            Code::InvalidConfiguration,
            "prevResult is missing: CHECK compares with the result of ADD, which the runtime must store",
        )
    })?;
    let addresses = result::addresses_of(previous, &interface.ifname, &path)?;
    let namespace = Namespace::open(&path)?;
    let conf_name = configuration.name().to_owned();
    let Done {} = Agent::new(configuration)
        .request(Command::Check(Check { interface, conf_name, addresses }), Some(&namespace))?;
    Ok(())
}

fn garbage_collect(configuration: &Configuration) -> Result<(), Failure> {
    let valid = configuration.valid_attachments()?;
    let conf_name = configuration.name().to_owned();
    let Done {} = Agent::new(configuration).request(Command::Gc(Gc { conf_name, valid }), None)?;
    Ok(())
}

/// Without an agent nothing can be attached. STATUS has its own error code for this case.
fn status(configuration: &Configuration) -> Result<(), Failure> {
    configuration.refuse_unsupported()?;
    match Agent::new(configuration).request(Command::Status, None) {
        Ok(Done {}) => Ok(()),
        Err(AgentError::OutOfReach(failure)) => Err(Failure { code: Code::NotAvailable, ..failure }),
        Err(AgentError::Refused(failure)) => Err(failure),
    }
}

/// VERSION needs no valid configuration, because it is a runtime's first command.
fn version(input: &[u8]) -> Value {
    json!({
        "cniVersion": version_of(input).unwrap_or_else(|| NEWEST.to_owned()),
        "supportedVersions": VERSIONS,
    })
}

fn since_1_1(configuration: Configuration, command: &str) -> Result<Configuration, Failure> {
    if configuration.version() == NEWEST {
        return Ok(configuration);
    }
    Err(Failure::new(
        Code::IncompatibleVersion,
        format!(
            "cniVersion: {} has no {command}: write {NEWEST} into the network configuration",
            configuration.version()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_commands_exist() {
        let refused =
            |command: &str| run(command, b"").is_err_and(|fault| fault.message.contains("not a command"));
        assert!(!COMMANDS.into_iter().any(refused));
        assert!(refused("add") && refused("LIST"));
    }
}
