//! The negative corpus: inputs that broke other implementations, replayed and mutated in search of
//! a panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod wire_support;

use proptest::prelude::*;
use proptest::sample::Index;
use trunkline_bgp::wire::{
    DecodeContext, MAX_EXTENDED, MAX_MESSAGE, MessageKind, Notification, Open, PathAttributes, RouteRefresh,
    Scratch, WireError, decode_update, frame,
};
use wire_support::*;

const UPDATES: &str = include_str!("corpus/update.txt");
const MESSAGES: &str = include_str!("corpus/message.txt");

/// The columns of the lines that are not comments.
fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split('|').map(str::trim).collect())
}

fn updates() -> impl Iterator<Item = (Vec<u8>, DecodeContext, &'static str, &'static str)> {
    lines(UPDATES).map(|columns| {
        let [octets, session, outcome, what] = columns[..] else { panic!("{columns:?}") };
        let context = match session {
            "ebgp" => EBGP,
            "ibgp" => IBGP,
            "ebgp2" => TWO_OCTET,
            other => panic!("{other}"),
        };
        (hex(octets), context, outcome, what)
    })
}

/// The outcome of an UPDATE in the corpus's notation.
fn outcome(body: &[u8], context: &DecodeContext) -> String {
    let mut scratch = Scratch::default();
    let update = match decode_update(body, context, &mut scratch) {
        Ok(update) => update,
        Err(error) => return format!("reset {}", WireError::from(error).notification().subcode),
    };
    let mut words = vec![];
    match (update.treat_as_withdraw, update.discarded) {
        (Some(fault), _) => words.extend(["withdraw".to_owned(), fault.code.to_string()]),
        (None, []) => words.push("good".to_owned()),
        (None, faults) => {
            words.push("discard".to_owned());
            words.extend(faults.iter().map(|fault| fault.code.to_string()));
        }
    }
    let announced = announced(&update);
    if !announced.is_empty() {
        words.push("announced".to_owned());
        words.extend(announced.iter().map(|(prefix, _)| prefix.to_string()));
    }
    words.join(" ")
}

#[test]
fn every_corpus_update_has_its_expected_outcome() {
    let mut wrong = vec![];
    for (body, context, expected, what) in updates() {
        let outcome = outcome(&body, &context);
        if outcome != expected {
            wrong.push(format!("{what}: {outcome}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The error of a whole message.
fn refused(octets: &[u8]) -> Option<WireError> {
    let frame = match frame(octets, MAX_MESSAGE) {
        Ok(frame) => frame.expect("a whole message"),
        Err(error) => return Some(error.into()),
    };
    match frame.kind {
        MessageKind::Open => Open::decode(frame.body).err().map(Into::into),
        MessageKind::Update => {
            decode_update(frame.body, &EBGP, &mut Scratch::default()).err().map(Into::into)
        }
        MessageKind::Notification => Notification::decode(frame.body).err().map(Into::into),
        MessageKind::RouteRefresh => RouteRefresh::decode(frame.body).err().map(Into::into),
        MessageKind::Keepalive => None,
    }
}

#[test]
fn every_corpus_message_is_rejected_as_expected() {
    for columns in lines(MESSAGES) {
        let [octets, notification, what] = columns[..] else { panic!("{columns:?}") };
        let mut words = notification.split_whitespace();
        let mut number = || words.next().unwrap().parse().unwrap();
        let (code, subcode) = (number(), number());
        let expected = Notification::new(code, subcode, hex(words.next().unwrap_or_default()));
        let error = refused(&hex(octets)).unwrap_or_else(|| panic!("{what}: accepted"));
        assert_eq!(error.notification(), expected, "{what}: {error}");
    }
}

/// Checks that no input causes a panic, and that any accepted UPDATE can be iterated, parsed and
/// encoded again.
fn must_hold_together(body: &[u8], context: &DecodeContext, scratch: &mut Scratch) {
    match decode_update(body, context, scratch) {
        Err(error) => {
            assert_eq!(WireError::from(error).notification().code, 3);
        }
        Ok(update) => {
            withdrawn(&update);
            let announced = announced(&update);
            assert_eq!(update.attributes.is_some(), !announced.is_empty());
            assert!(update.treat_as_withdraw.is_none() || announced.is_empty());
            for fault in update.treat_as_withdraw.iter().chain(update.discarded) {
                assert!(!fault.to_string().is_empty());
            }
            if let Some(octets) = update.attributes {
                let attributes = PathAttributes::parse(octets).expect("a decoded block is valid");
                assert_eq!(PathAttributes::parse(&block(&attributes)), Ok(attributes));
            }
        }
    }
}

/// A change of some octets.
#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Truncate(Index),
    Copy(Index, Index, usize),
}

impl Mutation {
    fn apply(&self, octets: &mut Vec<u8>) {
        if octets.is_empty() {
            return;
        }
        let length = octets.len();
        match self {
            Mutation::Set(at, value) => octets[at.index(length)] = *value,
            Mutation::Flip(at, bit) => octets[at.index(length)] ^= 1 << (bit & 7),
            Mutation::Insert(at, value) => octets.insert(at.index(length), *value),
            Mutation::Remove(at) => drop(octets.remove(at.index(length))),
            Mutation::Truncate(at) => octets.truncate(at.index(length)),
            Mutation::Copy(from, to, count) => {
                let (from, to) = (from.index(length), to.index(length));
                let end = (from + count).min(length);
                let copied = octets[from..end].to_vec();
                octets.splice(to..to, copied);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<Index>;
    let value =
        || prop_oneof![any::<u8>(), prop::sample::select(vec![0, 1, 2, 4, 14, 15, 0x40, 0x80, 0xc0, 255])];
    prop_oneof![
        4 => (index(), value()).prop_map(|(at, value)| Mutation::Set(at, value)),
        4 => (index(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        1 => (index(), value()).prop_map(|(at, value)| Mutation::Insert(at, value)),
        1 => index().prop_map(Mutation::Remove),
        1 => index().prop_map(Mutation::Truncate),
        1 => (index(), index(), 1..40usize).prop_map(|(from, to, count)| Mutation::Copy(from, to, count)),
    ]
}

fn context() -> impl Strategy<Value = DecodeContext> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(four_octet_as, ext_next_hop, ebgp)| {
        DecodeContext { four_octet_as, ext_next_hop, ebgp, ..EBGP }
    })
}

/// UPDATEs to mutate: the corpus, and valid ones with every attribute.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = updates().map(|(body, ..)| body).collect();
    let everything =
        hex("800e2e 000201 20 20010db8000000000000000000000001 fe800000000000000000000000000001 00
        40 20010db800010000 00 800f07 000201 1820010d 400101 02 40020e 0202 0000fde9 00010000 0101 00000007
        400304 0a000001 800404 00000005 400504 00000064 400600 c00708 00010000 0a000001
        c00808 fde90001 ffffff01 800904 0a000001 800a08 0a000001 0a000002 c01008 0002fde900000001
        c0200c 000000010000000200000003 d06300020102");
    seeds.push(update_body(&[16, 10, 1, 0], &everything, &[24, 10, 2, 3, 32, 10, 2, 3, 4]));
    let two_octet = hex("400101 00 400206 0202 5ba05ba0 400304 0a000001 c00706 5ba00a000001
        c0110a 0202 00010000 00010001 c01208 000100000a000001");
    seeds.push(update_body(&[], &two_octet, &[24, 10, 2, 3]));
    seeds
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_updates_do_not_panic(
        seed in prop::sample::select(seeds()),
        mutations in prop::collection::vec(mutation(), 1..8),
        context in context(),
    ) {
        let mut body = seed;
        mutations.iter().for_each(|mutation| mutation.apply(&mut body));
        must_hold_together(&body, &context, &mut Scratch::default());
    }

    #[test]
    fn any_octets_do_not_panic(octets in prop::collection::vec(any::<u8>(), 0..120), context in context()) {
        must_hold_together(&octets, &context, &mut Scratch::default());
        if let Ok(attributes) = PathAttributes::parse(&octets) {
            prop_assert_eq!(PathAttributes::parse(&block(&attributes)), Ok(attributes));
        }
        let _ = RouteRefresh::decode(&octets);
        if let Ok(notification) = Notification::decode(&octets) {
            prop_assert!(!notification.to_string().chars().any(char::is_control));
        }
        let mut open = hex("04fde9005a0a000001");
        open.push(octets.len() as u8);
        open.extend_from_slice(&octets);
        if let Ok(open) = Open::decode(&open) {
            let mut out = Vec::new();
            open.encode(&mut out);
            prop_assert_eq!(Open::decode(&out[19..]), Ok(open));
        }
        let _ = frame(&octets, MAX_EXTENDED);
    }
}

/// A used scratch gives the same result as a new one.
#[test]
fn scratch_carries_nothing_over() {
    let mut used = Scratch::default();
    for (first, ..) in updates() {
        for (second, context, ..) in updates() {
            let _ = decode_update(&first, &context, &mut used);
            let mut new = Scratch::default();
            let again = format!("{:?}", decode_update(&second, &context, &mut used));
            assert_eq!(again, format!("{:?}", decode_update(&second, &context, &mut new)));
        }
    }
}
