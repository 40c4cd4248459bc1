//! A reply with a list that is too long for the memory. It is written entry by entry and read like
//! any other reply.

use serde::Serialize;

/// Writes the line `{"ok":[…]}`, one entry at a time: on the wire it is a `Reply<Vec<T>>`.
///
/// After the beginning is sent, an error can only cut the line off. The reader detects a line
/// without an end.
#[derive(Debug)]
pub struct ListReply {
    any: bool,
}

impl ListReply {
    /// Begins the line.
    pub fn begin(line: &mut Vec<u8>) -> ListReply {
        line.extend_from_slice(br#"{"ok":["#);
        ListReply { any: false }
    }

    /// Appends an entry.
    pub fn push<T: Serialize>(&mut self, line: &mut Vec<u8>, entry: &T) -> Result<(), serde_json::Error> {
        if std::mem::replace(&mut self.any, true) {
            line.push(b',');
        }
        serde_json::to_writer(line, entry)
    }

    /// Ends the line.
    pub fn end(self, line: &mut Vec<u8>) {
        line.extend_from_slice(b"]}\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::{Reply, decode_reply, encode};

    #[test]
    fn a_list_in_pieces_is_the_list_on_the_wire() {
        for entries in [vec![], vec!["one"], vec!["one", "\n", "three"]] {
            let mut line = Vec::new();
            let mut list = ListReply::begin(&mut line);
            for entry in &entries {
                list.push(&mut line, entry).unwrap();
            }
            let broken_off = line.clone();
            list.end(&mut line);
            assert_eq!(line, encode(&Reply::Ok(entries)).unwrap());
            assert!(decode_reply::<Vec<String>>(&broken_off).is_err());
        }
    }
}
