//! Structure-aware mutators. Each one parses an input as far as possible, changes one or a few of
//! its parts, and assembles it again with correct lengths. In one case of eight the old lengths
//! stay, and in one of four only the fuzzer's own mutation is applied.

use trunkline_bgp::wire::HEADER;

/// Mutates the input, which may not exceed `max` octets. `own` is the fuzzer's mutation of some
/// octets, which may grow to the given length.
pub type Mutate = fn(data: &mut Vec<u8>, max: usize, seed: u32, own: &mut dyn FnMut(&mut Vec<u8>, usize));

/// xorshift: sufficient for choices.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same choices.
    pub fn new(seed: u32) -> Self {
        Random(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Less than `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn octet(&mut self) -> u8 {
        const NOTABLE: [u8; 12] = [0, 1, 2, 3, 4, 8, 16, 24, 32, 33, 128, 255];
        if self.one_in(2) { NOTABLE[self.below(NOTABLE.len())] } else { self.below(256) as u8 }
    }
}

/// Valid attributes, and a few invalid ones.
const ATTRIBUTES: [&[u8]; 24] = [
    &[0x40, 1, 1, 0],
    &[0x40, 2, 0],
    &[0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9],
    &[0x40, 2, 4, 2, 1, 0xfd, 0xe9],
    &[0x40, 2, 14, 2, 1, 0, 1, 0, 0, 1, 2, 0, 0, 0, 7, 0, 0],
    &[0x40, 3, 4, 10, 0, 0, 1],
    &[0x80, 4, 4, 0, 0, 0, 5],
    &[0x40, 5, 4, 0, 0, 0, 100],
    &[0x40, 6, 0],
    &[0xc0, 7, 8, 0, 1, 0, 0, 10, 0, 0, 1],
    &[0xc0, 7, 6, 0x5b, 0xa0, 10, 0, 0, 1],
    &[0xc0, 8, 8, 0xfd, 0xe9, 0, 1, 0xff, 0xff, 0xff, 1],
    &[0x80, 9, 4, 10, 0, 0, 1],
    &[0x80, 10, 8, 10, 0, 0, 1, 10, 0, 0, 2],
    &[
        0x80, 14, 30, 0, 2, 1, 16, 0x20, 1, 13, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 64, 0x20, 1, 13,
        0xb8, 0, 1, 0, 0,
    ],
    &[0x80, 14, 12, 0, 1, 1, 4, 10, 0, 0, 1, 0, 16, 10, 1],
    &[0x80, 15, 12, 0, 2, 1, 64, 0x20, 1, 13, 0xb8, 0, 1, 0, 0],
    &[0x80, 15, 3, 0, 2, 1],
    &[0xc0, 16, 8, 0, 2, 0xfd, 0xe9, 0, 0, 0, 1],
    &[0xc0, 17, 6, 2, 1, 0, 1, 0, 0],
    &[0xc0, 18, 8, 0, 1, 0, 0, 10, 0, 0, 1],
    &[0xc0, 32, 12, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3],
    &[0xc0, 35, 4, 0, 0, 0xfd, 0xe9],
    &[0xc0, 99, 3, 1, 2, 3],
];

/// Values of the Capabilities parameter.
const CAPABILITIES: [&[u8]; 11] = [
    &[1, 4, 0, 1, 0, 1],
    &[1, 4, 0, 2, 0, 1],
    &[2, 0],
    &[5, 6, 0, 1, 0, 1, 0, 2],
    &[6, 0],
    &[9, 1, 0],
    &[64, 10, 0xc0, 120, 0, 1, 1, 0x80, 0, 2, 1, 0x80],
    &[65, 4, 0, 0, 0xfd, 0xea],
    &[69, 8, 0, 1, 1, 3, 0, 2, 1, 3],
    &[70, 0],
    &[71, 14, 0, 1, 1, 0x80, 0, 0, 60, 0, 2, 1, 0x80, 0, 0, 60],
];

fn field(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = octets.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Type-length-value triples with a header of `header` octets, of which the last is the length.
fn parts(mut octets: &[u8], extended: bool) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while !octets.is_empty() {
        let long = extended && octets[0] & 0x10 != 0;
        let (header, length) = match (extended, octets) {
            (true, [_, _, high, low, ..]) if long => (4, usize::from(u16::from_be_bytes([*high, *low]))),
            (true, [_, _, length, ..]) if !long => (3, usize::from(*length)),
            (false, [_, length, ..]) => (2, usize::from(*length)),
            _ => (octets.len(), 0),
        };
        let (part, rest) = octets.split_at((header + length).min(octets.len()));
        parts.push(part.to_vec());
        octets = rest;
    }
    parts
}

/// Drops, repeats, swaps, inserts or damages parts. The first `header` octets of a part are its
/// header; the last of them is its length.
fn shuffle(parts: &mut Vec<Vec<u8>>, known: &[&[u8]], header: usize, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(parts.len().max(1));
        let other = random.below(parts.len().max(1));
        match random.below(8) {
            _ if parts.is_empty() => parts.push(known[random.below(known.len())].to_vec()),
            0 => drop(parts.remove(at)),
            1 => parts.insert(at, parts[other].clone()),
            2 => parts.swap(at, other),
            3 | 4 => parts.insert(at, known[random.below(known.len())].to_vec()),
            5 => {
                // Damages the flags, the code or the length itself.
                let place = random.below(header.min(parts[at].len()).max(1));
                if let Some(octet) = parts[at].get_mut(place) {
                    *octet = if random.one_in(2) { *octet ^ 1 << random.below(8) } else { random.octet() };
                }
            }
            6 => {
                let part = &mut parts[at];
                if part.len() > header {
                    let place = header + random.below(part.len() - header);
                    part[place] = random.octet();
                }
            }
            _ => {
                // A value of another length, with or without a matching header.
                let part = &mut parts[at];
                let longer = random.one_in(2);
                for _ in 0..=random.below(8) {
                    if longer {
                        part.push(random.octet())
                    } else {
                        _ = (part.len() > header).then(|| part.pop())
                    }
                }
                if part.len() >= header && !random.one_in(4) {
                    part[header - 1] = (part.len() - header) as u8;
                }
            }
        }
    }
}

fn prefixes(octets: &mut Vec<u8>, random: &mut Random) {
    match random.below(5) {
        0 => octets.clear(),
        1 => octets.extend_from_slice(&[24, 10, random.octet(), random.octet()]),
        2 => drop(octets.pop()),
        3 => octets.push(random.octet()),
        _ => {
            let length = random.below(34);
            octets.push(length as u8);
            octets.extend((0..length.div_ceil(8)).map(|_| random.octet()));
        }
    }
}

fn body(octets: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let (withdrawn, rest) = field(octets)?;
    let (attributes, nlri) = field(rest)?;
    let (mut withdrawn, mut nlri) = (withdrawn.to_vec(), nlri.to_vec());
    let mut list = parts(attributes, true);
    match random.below(10) {
        0 => prefixes(&mut withdrawn, random),
        1 | 2 => prefixes(&mut nlri, random),
        _ => shuffle(&mut list, &ATTRIBUTES, 3, random),
    }
    let list = list.concat();
    // In one case of eight the old lengths stay, although they do not match the new parts.
    let kept = random.one_in(8);
    let length = |new: usize, old: usize| (if kept { old } else { new } as u16).to_be_bytes();
    let mut out = length(withdrawn.len(), octets.len() - rest.len() - 2).to_vec();
    out.extend_from_slice(&withdrawn);
    out.extend_from_slice(&length(list.len(), attributes.len()));
    out.extend_from_slice(&list);
    out.extend_from_slice(&nlri);
    Some(out)
}

fn finish(data: &mut Vec<u8>, new: Option<Vec<u8>>, max: usize, own: &mut dyn FnMut(&mut Vec<u8>, usize)) {
    match new {
        Some(new) if new.len() <= max => *data = new,
        _ => own(data, max),
    }
}

/// An octet of context, then the body of an UPDATE.
pub fn update(data: &mut Vec<u8>, max: usize, seed: u32, own: &mut dyn FnMut(&mut Vec<u8>, usize)) {
    let mut random = Random::new(seed);
    if data.len() < 5 {
        *data = vec![random.octet(), 0, 0, 0, 0];
    }
    if random.one_in(16) {
        data[0] = random.octet();
    }
    let new = match random.one_in(4) {
        true => None,
        false => body(&data[1..], &mut random).map(|body| [&data[..1], &body].concat()),
    };
    finish(data, new, max, own);
}

/// Whole messages, one after the other, after an octet of context.
pub fn messages(data: &mut Vec<u8>, max: usize, seed: u32, own: &mut dyn FnMut(&mut Vec<u8>, usize)) {
    let mut random = Random::new(seed);
    if data.is_empty() {
        data.push(0);
    }
    let new = (!random.one_in(4)).then(|| {
        let mut list = stream(&data[1..]);
        let at = random.below(list.len() + 1);
        match random.below(5) {
            0 if at < list.len() => drop(list.remove(at)),
            1 => list.insert(at, message(random.octet().clamp(1, 5), &[])),
            2 => list.insert(at, message(1, &open(&mut random))),
            _ if at < list.len() => list[at] = changed(&list[at], &mut random),
            _ => list.push(message(random.below(6) as u8, &[random.octet(), 1, 0, 1])),
        }
        [&data[..1], &list.concat()].concat()
    });
    finish(data, new, max, own);
}

/// The messages of a stream; the last may be arbitrary octets.
fn stream(mut octets: &[u8]) -> Vec<Vec<u8>> {
    let mut list = Vec::new();
    while !octets.is_empty() {
        let length = match octets.get(16..18) {
            Some(&[high, low]) => {
                usize::from(u16::from_be_bytes([high, low])).clamp(HEADER, octets.len().max(HEADER))
            }
            _ => octets.len(),
        };
        let (message, rest) = octets.split_at(length.min(octets.len()));
        list.push(message.to_vec());
        octets = rest;
    }
    list
}

/// A message with its header.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0xff; 16];
    message.extend_from_slice(&((HEADER + body.len()) as u16).to_be_bytes());
    message.push(kind);
    message.extend_from_slice(body);
    message
}

/// The body of an OPEN of AS 65002 with some capabilities.
fn open(random: &mut Random) -> Vec<u8> {
    let mut list: Vec<Vec<u8>> =
        (0..random.below(6)).map(|_| CAPABILITIES[random.below(CAPABILITIES.len())].to_vec()).collect();
    if random.one_in(3) {
        shuffle(&mut list, &CAPABILITIES, 2, random);
    }
    open_with(&[4, 0xfd, 0xea, 0, 90, 10, 0, 0, 2], &list.concat())
}

fn open_with(fixed: &[u8], capabilities: &[u8]) -> Vec<u8> {
    let mut body = fixed.to_vec();
    if capabilities.is_empty() {
        body.push(0);
    } else if capabilities.len() < 250 {
        body.extend_from_slice(&[capabilities.len() as u8 + 2, 2, capabilities.len() as u8]);
    } else {
        // RFC 9072.
        body.extend_from_slice(&[255, 255]);
        body.extend_from_slice(&(capabilities.len() as u16 + 3).to_be_bytes());
        body.push(2);
        body.extend_from_slice(&(capabilities.len() as u16).to_be_bytes());
    }
    body.extend_from_slice(capabilities);
    body
}

/// A message with a changed body and a matching header.
fn changed(octets: &[u8], random: &mut Random) -> Vec<u8> {
    let Some((header, old)) = octets.split_at_checked(HEADER) else { return octets.to_vec() };
    let new = match (header[18], old) {
        (2, _) => body(old, random),
        (1, [fixed @ .., _, 2, _]) if fixed.len() == 9 => Some(open_with(fixed, &[])),
        (1, [_, _, _, _, _, _, _, _, _, _, 2, _, capabilities @ ..]) => {
            let mut list = parts(capabilities, false);
            shuffle(&mut list, &CAPABILITIES, 2, random);
            Some(open_with(&old[..9], &list.concat()))
        }
        _ => None,
    };
    let mut new = new.unwrap_or_else(|| old.to_vec());
    if random.one_in(3) && !new.is_empty() {
        let at = random.below(new.len());
        new[at] = random.octet();
    }
    if random.one_in(6) {
        new.truncate(random.below(new.len() + 1));
    }
    let mut out = message(header[18], &new);
    if random.one_in(8) {
        let at = random.below(HEADER);
        out[at] = random.octet();
    }
    out
}

/// A script of [`crate::session`]: steps of an opcode, a length and that many octets.
pub fn script(data: &mut Vec<u8>, max: usize, seed: u32, own: &mut dyn FnMut(&mut Vec<u8>, usize)) {
    let mut random = Random::new(seed);
    if data.is_empty() {
        data.push(0);
    }
    let new = (!random.one_in(4)).then(|| {
        let mut list = parts(&data[1..], false);
        let known: Vec<Vec<u8>> = (0..=u8::MAX)
            .map(|opcode| {
                let length = random.below(4);
                let argument = (0..length).map(|_| random.octet());
                [opcode, length as u8].into_iter().chain(argument).collect()
            })
            .collect();
        let known: Vec<&[u8]> = known.iter().map(Vec::as_slice).collect();
        shuffle(&mut list, &known, 2, &mut random);
        [&data[..1], &list.concat()].concat()
    });
    finish(data, new, max, own);
}

/// Input that consists of choices only.
pub fn octets(data: &mut Vec<u8>, max: usize, _: u32, own: &mut dyn FnMut(&mut Vec<u8>, usize)) {
    own(data, max);
}
