//! A speaker that passes routes on: every peer connects to it and receives the best path of every
//! prefix.
//!
//! ```text
//! cargo run --release -p trunkline-bgp --example transit -- 65000 10.0.0.1 10.0.0.2=65100 10.0.0.3=65200
//!                                      own AS, identifier ───┘      │      └─ a peer and its AS, any number of them
//! ```
//!
//! It listens on port 179, has no FIB, and ends silently with Ctrl-C.
//! `cargo lab bench speakers` measures it.

use std::net::IpAddr;

use trunkline_bgp::config::{PeerConfig, SpeakerConfig};
use trunkline_bgp::net::{ShellConfig, compact_heap, spawn};
use trunkline_bgp::speaker::Stop;
use trunkline_bgp::types::{Asn, Family, FamilySet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This call must come before the runtime starts threads. After it, the memory of large tables
    // is released with the tables.
    compact_heap();
    tokio::runtime::Runtime::new()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("arguments are missing: see the head of this file");
    let config = SpeakerConfig::new(Asn(next()?.parse()?), next()?.parse()?);
    let (speaker, mut events, _routes) = spawn(config, &ShellConfig::default())?;
    for peer in arguments {
        let (address, asn) = peer.split_once('=').ok_or("a peer is ADDRESS=AS")?;
        let mut peer = PeerConfig::new(address.parse::<IpAddr>()?, Asn(asn.parse()?));
        peer.passive = true;
        peer.families = FamilySet::from_iter([Family::Ipv4Unicast]);
        speaker.add_peer(peer).await?;
    }
    speaker.originations_complete().await?;
    loop {
        tokio::select! {
            Some(event) = events.next() => println!("{event:?}"),
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    speaker.stop(Stop::Silent).await;
    Ok(())
}
