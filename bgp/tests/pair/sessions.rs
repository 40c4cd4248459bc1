//! Two speakers, nothing special.

use trunkline_bgp::speaker::{Event, State};

use crate::net::{Net, net, secs};

#[test]
fn two_speakers_tell_each_other_their_routes() {
    let mut all = Net::pair();
    all.boot_all();
    all.run(secs(3));
    for (host, other) in [(1, 2), (2, 1)] {
        let status = all.status(host, other);
        assert_eq!(status.state, State::Established);
        assert_eq!(status.established_count, 1);
        assert!(status.families.iter().all(|family| family.end_of_rib_sent && family.end_of_rib_received));
        assert_eq!(all.routes_from(host, other), [net(&format!("10.{other}.0.0/16"))]);
        assert_eq!(all.nodes[&host].fib.len(), 1);
        let ups = all.nodes[&host].events.iter().filter(|event| matches!(event, Event::PeerUp { .. }));
        assert_eq!(ups.count(), 1);
    }
}
