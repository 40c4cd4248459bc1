//! Traffic control: a token bucket limits the packets that leave by a link. Received packets pass
//! an `ifb` device with another token bucket.
//!
//! The kernel queues only sent packets. So packets that a link receives are redirected to an `ifb`
//! device. This device has its own token bucket, and returns the packets to the link's receive
//! path. The redirection is the action `mirred` of a filter on the link's ingress. The filter is
//! `u32` without a condition, because more kernels lack `matchall`.

use netlink_packet_core::{
    DefaultNla, Emitable, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE, Parseable,
    parse_string,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo as Info};
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption, TcActionType,
    TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcHeader, TcMessage, TcMirror, TcMirrorActionType,
    TcOption, TcU32Key, TcU32Selector, TcU32SelectorFlags,
};

use super::message::{Batch, attributes};
use super::objects::link;

// These constants of pkt_sched.h and rtnetlink.h are not in libc.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// `struct tc_tbf_qopt`: two rate specifications of 12 octets, limit, buffer, MTU.
const TBF_PARMS_OCTETS: usize = 36;

/// Handle of Trunkline's qdiscs. With the fixed handle `1:`, a new request replaces the old qdisc.
const OWN_HANDLE: TcHandle = TcHandle { major: 1, minor: 0 };
const INGRESS: TcHandle = TcHandle { major: TcHandle::CLSACT.major, minor: TcHandle::MIN_INGRESS };
/// `u32` numbers filters by hash table (the first), bucket and entry. With a fixed number, a new
/// request replaces the old filter.
const FILTER: TcHandle = TcHandle { major: 0x8000, minor: 0x0800 };
const FILTER_PRIORITY: u32 = 1;

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Octets per second.
    pub rate: u64,
    /// Burst size in octets.
    pub burst: u32,
    /// Queue limit in octets; packets above the limit are dropped.
    pub limit: u32,
}

impl TokenBucket {
    fn parameters(&self) -> Vec<u8> {
        let mut octets = vec![0; TBF_PARMS_OCTETS];
        // Link layer Ethernet. A rate above 32 bits needs its own attribute.
        octets[1] = 1;
        octets[8..12].copy_from_slice(&u32::try_from(self.rate).unwrap_or(u32::MAX).to_ne_bytes());
        octets[24..28].copy_from_slice(&self.limit.to_ne_bytes());
        octets
    }
}

fn message(index: u32, handle: TcHandle, parent: TcHandle, attributes: Vec<TcAttribute>) -> TcMessage {
    let header = TcHeader { index: index.cast_signed(), handle, parent, ..TcHeader::default() };
    TcMessage::from_parts(header, attributes)
}

fn kind(name: &str) -> TcAttribute {
    TcAttribute::Kind(name.to_owned())
}

impl Batch {
    /// Creates an `ifb` device. It is down.
    pub fn create_ifb(&mut self, name: &str) {
        let attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![Info::Kind(InfoKind::Ifb)]),
        ];
        let message = link(0, LinkFlags::empty(), attributes);
        self.push(NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewLink(message));
    }

    /// Limits the packets that a link sends; replaces the current qdisc.
    pub fn put_token_bucket(&mut self, index: u32, bucket: &TokenBucket) {
        let option = |kind, octets| TcOption::Other(DefaultNla::new(kind, octets));
        let mut options = vec![
            option(TCA_TBF_PARMS, bucket.parameters()),
            option(TCA_TBF_BURST, bucket.burst.to_ne_bytes().to_vec()),
        ];
        if u32::try_from(bucket.rate).is_err() {
            options.push(option(TCA_TBF_RATE64, bucket.rate.to_ne_bytes().to_vec()));
        }
        let attributes = vec![kind("tbf"), TcAttribute::Options(options)];
        let message = message(index, OWN_HANDLE, TcHandle::ROOT, attributes);
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewQueueDiscipline(message));
    }

    /// Adds the clsact qdisc, which applies ingress filters. No error if it exists.
    pub fn put_clsact(&mut self, index: u32) {
        let handle = TcHandle { major: TcHandle::CLSACT.major, minor: 0 };
        let message = message(index, handle, TcHandle::CLSACT, vec![kind("clsact")]);
        self.push(NLM_F_CREATE, RouteNetlinkMessage::NewQueueDiscipline(message));
    }

    /// Redirects all packets that a link receives to another link.
    pub fn put_redirect(&mut self, index: u32, to: u32) {
        let mut mirror = TcMirror::default();
        mirror.generic.action = TcActionType::Stolen;
        mirror.eaction = TcMirrorActionType::EgressRedir;
        mirror.ifindex = to;
        let mut action = TcAction::default();
        action.tab = 1; // the position in the order of actions
        action.attributes = vec![
            TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()),
            TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror))]),
        ];
        let mut selector = TcU32Selector::default();
        selector.flags = TcU32SelectorFlags::Terminal;
        selector.keys = vec![TcU32Key::default()]; // a key with mask 0 matches every packet
        selector.nkeys = 1;
        let options = [TcFilterU32Option::Selector(selector), TcFilterU32Option::Action(vec![action])];
        let attributes = vec![
            kind(TcFilterU32::KIND),
            TcAttribute::Options(options.into_iter().map(TcOption::U32).collect()),
        ];
        let mut message = message(index, FILTER, INGRESS, attributes);
        let protocol = u32::from((libc::ETH_P_ALL as u16).to_be());
        message.header.info = FILTER_PRIORITY << 16 | protocol;
        self.push(NLM_F_CREATE, RouteNetlinkMessage::NewTrafficFilter(message));
    }

    /// Requests the root qdisc of a link.
    pub fn get_root_qdisc(&mut self, index: u32) {
        let message = message(index, TcHandle::UNSPEC, TcHandle::ROOT, Vec::new());
        // The kernel sends the answer as a notification. The requesting socket gets it only with
        // NLM_F_ECHO.
        self.push(NLM_F_ECHO, RouteNetlinkMessage::GetQueueDiscipline(message));
    }

    /// Lists the ingress filters of a link.
    pub fn dump_ingress_filters(&mut self, index: u32) {
        let message = message(index, TcHandle::UNSPEC, INGRESS, Vec::new());
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetTrafficFilter(message));
    }
}

/// The attributes of a message, if it is about this kind of qdisc or filter.
fn of_kind<'a>(body: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let octets = body.get(TcHeader::default().buffer_len()..)?;
    let kind = attributes(octets, &[TCA_KIND], |nla| parse_string(nla.value())).next()?;
    (kind == wanted).then_some(octets)
}

/// The value of the first attribute of a kind.
fn raw(octets: &[u8], wanted: &'static [u16]) -> Option<Vec<u8>> {
    attributes(octets, wanted, |nla| Ok(nla.value().to_vec())).next()
}

/// Reads the link's index from a message about a qdisc or a filter.
pub fn read_index(body: &[u8]) -> Option<u32> {
    Some(TcHeader::parse(body).ok()?.index.cast_unsigned())
}

/// Reads an RTM_NEWQDISC: the rate in octets per second, if the qdisc is a token bucket.
pub fn read_token_bucket_rate(body: &[u8]) -> Option<u64> {
    let options = raw(of_kind(body, "tbf")?, &[TCA_OPTIONS])?;
    match raw(&options, &[TCA_TBF_RATE64]) {
        Some(rate) => Some(u64::from_ne_bytes(rate.try_into().ok()?)),
        None => {
            let parameters = raw(&options, &[TCA_TBF_PARMS])?;
            Some(u32::from_ne_bytes(parameters.get(8..12)?.try_into().ok()?).into())
        }
    }
}

/// Reads an RTM_NEWTFILTER: the target link, if the filter redirects.
pub fn read_redirect(body: &[u8]) -> Option<u32> {
    const TCA_U32_ACT: u16 = 7;
    let options = raw(of_kind(body, TcFilterU32::KIND)?, &[TCA_OPTIONS])?;
    attributes(&options, &[TCA_U32_ACT], TcFilterU32Option::parse)
        .filter_map(|option| match option {
            TcFilterU32Option::Action(actions) => Some(actions),
            _ => None,
        })
        .flatten()
        .flat_map(|action| action.attributes)
        .filter_map(|attribute| match attribute {
            TcActionAttribute::Options(options) => Some(options),
            _ => None,
        })
        .flatten()
        .find_map(|option| match option {
            TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror)) => Some(mirror.ifindex),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::messages;

    #[test]
    fn token_bucket_is_parsed_as_encoded() {
        for rate in [125, 1_250_000, u64::from(u32::MAX) + 1] {
            let mut batch = Batch::new();
            batch.put_token_bucket(7, &TokenBucket { rate, burst: 131_072, limit: 262_144 });
            let message = messages(&batch.buffer).next().unwrap();
            assert_eq!(read_token_bucket_rate(message.body), Some(rate));
            assert_eq!(read_index(message.body), Some(7));
            assert_eq!(read_redirect(message.body), None);
            for length in 0..message.body.len() {
                assert_eq!(read_redirect(&message.body[..length]), None);
            }
        }
    }

    #[test]
    fn redirect_is_parsed_as_encoded() {
        let mut batch = Batch::new();
        batch.put_redirect(7, 9);
        let message = messages(&batch.buffer).next().unwrap();
        assert_eq!(read_redirect(message.body), Some(9));
        assert_eq!(read_token_bucket_rate(message.body), None);
    }
}
