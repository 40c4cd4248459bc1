//! A whole BGP speaker with one peer: it originates a few prefixes and prints every change of the
//! peer's routes.
//!
//! ```text
//! cargo run --release -p trunkline-bgp --example speaker -- 65001 10.0.0.1 10.0.0.254 65000 192.0.2.0/24
//!                                     own AS, identifier ────┘      │        │        │     │
//!                                     the peer's address and AS ─────────────┴────────┘     │
//!                                     originated ───────────────────────────────────────────┘
//! ```
//!
//! With FRR at the other end (eBGP needs `no bgp ebgp-requires-policy` or a route map there):
//!
//! ```text
//! router bgp 65000
//!  no bgp ebgp-requires-policy
//!  neighbor 10.0.0.1 remote-as 65001
//! ```
//!
//! The example only connects, so it needs no port 179. Ctrl-C sends a Cease.

use std::net::IpAddr;

use trunkline_bgp::config::{PeerConfig, SpeakerConfig};
use trunkline_bgp::net::{ShellConfig, spawn};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::Stop;
use trunkline_bgp::types::Asn;

type Failure = Box<dyn std::error::Error>;

fn argument<T: std::str::FromStr<Err: std::error::Error + 'static>>(
    arguments: &mut impl Iterator<Item = String>,
    name: &str,
) -> Result<T, Failure> {
    let text = arguments.next().ok_or_else(|| format!("{name} is missing: see the head of this file"))?;
    text.parse().map_err(|error| format!("{name} {text}: {error}").into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let local_as = Asn(argument(&mut arguments, "own AS")?);
    let config = SpeakerConfig::new(local_as, argument(&mut arguments, "identifier")?);
    let address = argument::<IpAddr>(&mut arguments, "the peer's address")?;
    let peer = PeerConfig::new(address, Asn(argument(&mut arguments, "the peer's AS")?));

    let shell = ShellConfig { listen: vec![], ..ShellConfig::default() };
    let (speaker, mut events, mut routes) = spawn(config, &shell)?;
    speaker.add_peer(peer).await?;
    for prefix in arguments {
        speaker.originate(prefix.parse()?, Origination::default()).await?;
    }
    speaker.originations_complete().await?;
    loop {
        tokio::select! {
            Some(event) = events.next() => println!("{event:?}"),
            Ok(changes) = routes.next(1000) => for route in changes {
                let next_hops: Vec<_> = route.paths.iter().map(|path| path.next_hop.address()).collect();
                println!("{} via {next_hops:?}", route.prefix);
            },
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    speaker.stop(Stop::Cease { communication: "the example ends".to_owned() }).await;
    Ok(())
}
