//! Hostile or numerous clients. All of them have the source address 127.0.0.2. Meanwhile the test
//! can check the service for 127.0.0.1.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use anyhow::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A connection from the hostile source.
pub(super) fn connect(to: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((SOURCE, 0)).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// Opens connections, and sends only these octets on each of them. `look` checks at intervals
/// whether other clients are served. All connections stay open until the last check.
pub(super) fn flood(
    to: SocketAddr,
    count: usize,
    octets: &[u8],
    mut look: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let mut open = Vec::with_capacity(count);
    for number in 1..=count {
        let mut stream = connect(to)?;
        // An error means that the connection was already closed.
        let _ = stream.write_all(octets);
        open.push(stream);
        if number % (count / 10) == 0 {
            look(number)?;
        }
    }
    Ok(())
}
