//! The API server's port on the machine's loopback, as long as the cluster is up: `cargo lab kube
//! up` ends, and the kubeconfig that it prints still works. A process of its own forwards
//! connections. Its listening socket is the machine's. Then the process moves into the control
//! plane's namespace, so it connects from there, and ends with the processes of that namespace.

use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};

use crate::cli::Forward;
use crate::netns::Namespace;
use crate::shell::cmd;

/// Starts the process.
pub(super) fn start(program: &Path, into: &Namespace, port: u16, log: &Path) -> Result<()> {
    let out = std::fs::File::create(log)?;
    let program = program.to_str().context("the lab's path is not text")?;
    let _until_the_cluster_ends = cmd(program, ["forward", into.name(), &port.to_string()])
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .process_group(0)
        .spawn()
        .context("the forwarder cannot be started")?;
    Ok(())
}

/// The process itself; it does not return.
pub(crate) fn run(of: &Forward) -> Result<()> {
    let port = of.port;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("port {port}"))?;
    // There is only this thread, so the whole process moves.
    Namespace::named(&of.namespace).enter()?;
    loop {
        let (client, _) = listener.accept()?;
        std::thread::spawn(move || {
            // A connection to a stopped API server ends at once.
            if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                let _broken = join(&client, &server);
            }
        });
    }
}

/// Copies octets in both directions until both have ended.
fn join(client: &TcpStream, server: &TcpStream) -> std::io::Result<()> {
    for stream in [client, server] {
        stream.set_nodelay(true)?;
    }
    std::thread::scope(|scope| {
        for (from, to) in [(client, server), (server, client)] {
            scope.spawn(move || {
                let _broken = std::io::copy(&mut &*from, &mut &*to);
                let _ended = to.shutdown(Shutdown::Write);
                let _ended = from.shutdown(Shutdown::Read);
            });
        }
    });
    Ok(())
}
