//! The expressions of a kernel rule, as `nft` writes them. `linux/netfilter/nf_tables.h` defines
//! the attributes.
//!
//! A register has four octets (`NFT_REG32_…`). A longer value uses the registers that follow.

use crate::family::IpFamily;
use crate::netlink::netfilter::{NESTED, attribute, number, octets, text};
use crate::plan::policy::{ChainId, Verdict};

// NFTA_LIST_ELEM, NFTA_EXPR_NAME, NFTA_EXPR_DATA, NFTA_DATA_VALUE, NFTA_DATA_VERDICT
const ELEMENT: u16 = 1;
const NAME: u16 = 1;
const DATA: u16 = 2;
const VALUE: u16 = 1;
const VERDICT: u16 = 2;
// NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN, and verdicts
const CODE: u16 = 1;
const CHAIN: u16 = 2;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const JUMP: i32 = -3;
const RETURN: i32 = -5;

/// The first register. `NFT_REG_VERDICT` is 0.
pub(super) const REGISTER: u32 = 8;

/// `NFT_OBJECT_COUNTER`.
pub(super) const COUNTER: u32 = 1;
/// `NFT_OBJECT_LIMIT`.
pub(super) const LIMIT: u32 = 4;

/// A property of a packet that is not in its octets: `NFT_META_…`.
#[derive(Clone, Copy)]
pub(super) enum Meta {
    InputLink = 4,
    OutputLink = 5,
    Family = 15,
    Protocol = 16,
    InputGroup = 21,
    OutputGroup = 22,
}

/// The state of a packet's connection: `NF_CT_STATE_BIT` of `IP_CT_…`.
#[derive(Clone, Copy)]
pub(super) enum ConnectionState {
    /// The packet belongs to a connection that both directions have used.
    Established = 1 << 1,
    /// The packet is an ICMP error about a connection, or opens a connection that another one
    /// announced.
    Related = 1 << 2,
}

/// A direction of a connection: `IP_CT_DIR_…`. The first packet has the original one.
#[derive(Clone, Copy)]
pub(super) enum ConnectionDirection {
    Original = 0,
    Reply = 1,
}

/// The start of an offset: `NFT_PAYLOAD_…`.
#[derive(Clone, Copy)]
pub(super) enum Header {
    Network = 1,
    Transport = 2,
}

/// `NFT_CMP_…`.
#[derive(Clone, Copy)]
pub(super) enum Comparison {
    Equal = 0,
    NotEqual = 1,
    AtMost = 3,
    AtLeast = 5,
}

/// The expressions of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Expressions(Vec<u8>);

impl Expressions {
    /// The content of the attribute `NFTA_RULE_EXPRESSIONS`.
    pub(super) fn octets(&self) -> &[u8] {
        &self.0
    }

    fn push(&mut self, name: &str, data: impl FnOnce(&mut Vec<u8>)) {
        attribute(&mut self.0, ELEMENT | NESTED, |expression| {
            text(expression, NAME, name);
            attribute(expression, DATA | NESTED, data);
        });
    }

    /// Loads a property into a register.
    pub(super) fn meta(&mut self, property: Meta, register: u32) {
        self.push("meta", |data| {
            number(data, 2, property as u32);
            number(data, 1, register);
        });
    }

    /// Continues if the packet is of a family.
    pub(super) fn and_family(&mut self, family: IpFamily) {
        let number = match family {
            IpFamily::V4 => libc::NFPROTO_IPV4,
            IpFamily::V6 => libc::NFPROTO_IPV6,
        };
        self.meta(Meta::Family, REGISTER);
        self.compare(Comparison::Equal, &[number as u8]);
    }

    /// Loads octets of the packet into registers.
    pub(super) fn payload(&mut self, header: Header, offset: u32, length: u32, register: u32) {
        self.push("payload", |data| {
            number(data, 1, register);
            number(data, 2, header as u32);
            number(data, 3, offset);
            number(data, 4, length);
        });
    }

    /// Continues if the comparison of the first register with the value is true.
    pub(super) fn compare(&mut self, comparison: Comparison, with: &[u8]) {
        self.push("cmp", |data| {
            number(data, 1, REGISTER);
            number(data, 2, comparison as u32);
            attribute(data, 3 | NESTED, |value| octets(value, VALUE, with));
        });
    }

    /// Continues if the connection has a state.
    pub(super) fn state(&mut self, state: ConnectionState) {
        let bit = state as u32;
        self.push("ct", |data| {
            number(data, 2, 0); // NFT_CT_STATE
            number(data, 1, REGISTER);
        });
        self.push("bitwise", |data| {
            number(data, 1, REGISTER);
            number(data, 2, REGISTER);
            number(data, 3, 4);
            attribute(data, 4 | NESTED, |mask| octets(mask, VALUE, &bit.to_ne_bytes()));
            attribute(data, 5 | NESTED, |xor| octets(xor, VALUE, &[0; 4]));
        });
        self.compare(Comparison::NotEqual, &[0; 4]);
    }

    /// Loads the source address of a direction of the packet's connection into registers. Ends the
    /// rule if the connection is of another family.
    pub(super) fn source_of(&mut self, direction: ConnectionDirection, family: IpFamily, register: u32) {
        // NFT_CT_SRC_IP, NFT_CT_SRC_IP6
        let key = match family {
            IpFamily::V4 => 19,
            IpFamily::V6 => 21,
        };
        self.push("ct", |data| {
            number(data, 2, key);
            number(data, 1, register);
            octets(data, 3, &[direction as u8]);
        });
    }

    /// Continues if the packet's source is an address of this node.
    pub(super) fn source_is_local(&mut self) {
        self.push("fib", |data| {
            number(data, 1, REGISTER);
            number(data, 2, 3); // NFT_FIB_RESULT_ADDRTYPE
            number(data, 3, 1); // NFTA_FIB_F_SADDR
        });
        self.compare(Comparison::Equal, &u32::from(libc::RTN_LOCAL).to_ne_bytes());
    }

    /// Continues if the registers are in a set.
    pub(super) fn lookup(&mut self, set: &str) {
        self.push("lookup", |data| {
            text(data, 1, set);
            number(data, 2, REGISTER);
        });
    }

    /// The verdict that a map has for the registers. Continues if it has none.
    pub(super) fn map(&mut self, map: &str) {
        self.push("lookup", |data| {
            text(data, 1, map);
            number(data, 2, REGISTER);
            number(data, 3, 0); // NFT_REG_VERDICT
        });
    }

    /// Evaluates a named object: a counter, or a limit, which continues below its rate.
    pub(super) fn object(&mut self, kind: u32, name: &str) {
        self.push("objref", |data| {
            number(data, 1, kind);
            text(data, 2, name);
        });
    }

    /// Reports the packet to a group, with a prefix and its first octets.
    pub(super) fn log(&mut self, group: u16, prefix: &str, length: u32) {
        self.push("log", |data| {
            octets(data, 1, &group.to_be_bytes());
            text(data, 2, prefix);
            number(data, 3, length);
        });
    }

    /// Ends the rule with a verdict.
    pub(super) fn verdict(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Accept => self.immediate(ACCEPT, None),
            Verdict::Drop => self.immediate(DROP, None),
            Verdict::Return => self.immediate(RETURN as u32, None),
            Verdict::Jump(chain) => self.jump(&chain_name(chain)),
        }
    }

    /// Ends the rule with a jump to a chain.
    pub(super) fn jump(&mut self, chain: &str) {
        self.immediate(JUMP as u32, Some(chain));
    }

    fn immediate(&mut self, code: u32, chain: Option<&str>) {
        self.push("immediate", |data| {
            number(data, 1, 0); // NFT_REG_VERDICT
            attribute(data, 2 | NESTED, |data| write_verdict(data, code, chain));
        });
    }
}

/// The name of a chain of policies.
pub(super) fn chain_name(chain: ChainId) -> String {
    format!("c{chain}")
}

/// Writes a jump as the value of a map's element.
pub(super) fn write_jump(data: &mut Vec<u8>, chain: &str) {
    write_verdict(data, JUMP as u32, Some(chain));
}

/// The chain of a jump in a map's element. None: the element has another verdict.
pub(super) fn read_jump(data: &[u8]) -> Option<&str> {
    use crate::netlink::netfilter::{nested, number_of, text_of};
    let verdict = nested(data, VERDICT).next()?;
    (number_of(verdict, CODE)? == JUMP as u32).then(|| text_of(verdict, CHAIN))?
}

fn write_verdict(data: &mut Vec<u8>, code: u32, chain: Option<&str>) {
    attribute(data, VERDICT | NESTED, |verdict| {
        number(verdict, CODE, code);
        if let Some(chain) = chain {
            text(verdict, CHAIN, chain);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_encoded_as_nft_does() {
        let mut expressions = Expressions::default();
        expressions.compare(Comparison::Equal, &[6]);
        let nested = [0x2c, 0, 1, 0x80, 8, 0, 1, 0, b'c', b'm', b'p', 0, 0x20, 0, 2, 0x80];
        let data = [8, 0, 1, 0, 0, 0, 0, 8, 8, 0, 2, 0, 0, 0, 0, 0];
        let value = [0xc, 0, 3, 0x80, 5, 0, 1, 0, 6, 0, 0, 0];
        assert_eq!(expressions.octets(), [&nested[..], &data, &value].concat());
    }

    #[test]
    fn only_a_jump_is_read_as_a_jump() {
        let mut data = Vec::new();
        write_jump(&mut data, "from_7");
        assert_eq!(read_jump(&data), Some("from_7"));
        for length in 0..data.len() - 4 {
            assert_eq!(read_jump(&data[..length]), None, "{length}");
        }
        data.clear();
        write_verdict(&mut data, ACCEPT, None);
        assert_eq!(read_jump(&data), None);
    }
}
