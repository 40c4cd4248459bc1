//! MAC addresses of pods: hybridnet's prefix 02:12:34 and 24 random bits, unique within a network.
//!
//! Among 300,000 pods, thousands of pairs would share their 24 random bits. Two pods with one MAC
//! address on one VLAN lose each other's frames. So the MAC addresses in use are counted for each
//! network. The table has counts, because a pod's IPv4 and IPv6 addresses share one MAC address.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

/// A MAC address; all zeros is an unknown one.
pub type Mac = [u8; 6];

/// The first three octets of generated MAC addresses: locally administered, hybridnet's.
const PREFIX: [u8; 3] = [0x02, 0x12, 0x34];

/// Without padding, an entry of the table takes eleven octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    network: [u8; 4],
    mac: Mac,
}

/// The number of addresses with each MAC address, by network.
#[derive(Debug, Default)]
pub(super) struct Macs(FxHashMap<Key, u8>);

impl Macs {
    pub(super) fn add(&mut self, network: u32, mac: Mac) {
        if mac != [0; 6] {
            let count = self.0.entry(key(network, mac)).or_default();
            *count = count.saturating_add(1);
        }
    }

    pub(super) fn remove(&mut self, network: u32, mac: Mac) {
        if mac != [0; 6]
            && let Entry::Occupied(mut entry) = self.0.entry(key(network, mac))
        {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// The number of addresses of the network with this MAC address.
    pub(super) fn count(&self, network: u32, mac: Mac) -> u8 {
        self.0.get(&key(network, mac)).copied().unwrap_or(0)
    }

    /// A MAC address without an address in the network: from the 24 lowest random bits, or the next
    /// free one after them.
    pub(super) fn unused(&self, network: u32, random: u32) -> Mac {
        let mut bits = random;
        loop {
            let [_, a, b, c] = bits.to_be_bytes();
            let mac = [PREFIX[0], PREFIX[1], PREFIX[2], a, b, c];
            // If all 16,777,216 MAC addresses are in use, two pods share one. No network of a
            // cluster has that many addresses in use.
            if self.count(network, mac) == 0 || bits == random.wrapping_add(1 << 24) {
                return mac;
            }
            bits = bits.wrapping_add(1);
        }
    }
}

fn key(network: u32, mac: Mac) -> Key {
    Key { network: network.to_ne_bytes(), mac }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_free_mac_of_the_network_is_chosen() {
        let mut macs = Macs::default();
        assert_eq!(macs.unused(1, 0xab00_00ff), [0x02, 0x12, 0x34, 0, 0, 0xff]);
        macs.add(1, [0x02, 0x12, 0x34, 0, 0, 0xff]);
        macs.add(1, [0x02, 0x12, 0x34, 0, 0, 0xff]);
        assert_eq!(macs.unused(1, 0xff), [0x02, 0x12, 0x34, 0, 1, 0]);
        assert_eq!(macs.unused(2, 0xff), [0x02, 0x12, 0x34, 0, 0, 0xff], "another network");
        macs.add(1, [0x02, 0x12, 0x34, 0xff, 0xff, 0xff]);
        assert_eq!(macs.unused(1, u32::MAX), [0x02, 0x12, 0x34, 0, 0, 0]);
        macs.remove(1, [0x02, 0x12, 0x34, 0, 0, 0xff]);
        assert_eq!(
            macs.count(1, [0x02, 0x12, 0x34, 0, 0, 0xff]),
            1,
            "the pod's other address shares the MAC address"
        );
        macs.remove(1, [0x02, 0x12, 0x34, 0, 0, 0xff]);
        assert_eq!(macs.unused(1, 0xff), [0x02, 0x12, 0x34, 0, 0, 0xff]);
        macs.add(1, [0; 6]);
        assert_eq!(macs.count(1, [0; 6]), 0);
    }
}
