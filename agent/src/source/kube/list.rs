//! The answer to a list, object by object: no more than one object is in memory as text.

/// The most octets outside of the objects: the list's kind and metadata.
const MOST_OF_FRAME: usize = 64 << 10;
/// The most octets of an object. etcd accepts 1.5 MiB.
const MOST_OF_OBJECT: usize = 16 << 20;

/// The answer is no list of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SplitError {
    /// An entry of `items` is no object.
    #[error("an entry of `items` is no object")]
    NoObject,
    /// Too large.
    #[error("an object, or the rest of the answer, is too large")]
    TooLarge,
}

impl From<SplitError> for std::io::Error {
    fn from(error: SplitError) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Where the next octet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Outside of the objects.
    #[default]
    Frame,
    /// Between two objects.
    Items,
    /// In an object, with this number of open brackets.
    Object(usize),
}

/// Separates the objects in `items` from the rest of a list. It receives the text in pieces of any
/// length.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    place: Place,
    in_string: bool,
    escaped: bool,
    /// The open brackets outside of the objects.
    depth: usize,
    /// The last string at the first level: the key of the value that begins.
    key: Vec<u8>,
    frame: Vec<u8>,
    object: Vec<u8>,
}

impl Splitter {
    /// Takes a piece. `each` receives each complete object.
    pub(super) fn push<E: From<SplitError>>(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for &octet in piece {
            match self.place {
                Place::Frame => self.in_frame(octet)?,
                Place::Items => match octet {
                    b'{' => {
                        self.object.push(octet);
                        self.place = Place::Object(1);
                    }
                    b']' => {
                        self.frame.push(octet);
                        self.depth -= 1;
                        self.place = Place::Frame;
                    }
                    b',' | b' ' | b'\t' | b'\r' | b'\n' => {}
                    _ => return Err(SplitError::NoObject.into()),
                },
                Place::Object(depth) => {
                    if self.object.len() == MOST_OF_OBJECT {
                        return Err(SplitError::TooLarge.into());
                    }
                    self.object.push(octet);
                    let depth = match octet {
                        _ if self.is_in_string(octet) => depth,
                        b'{' | b'[' => depth + 1,
                        b'}' | b']' => depth - 1,
                        _ => depth,
                    };
                    self.place = Place::Object(depth);
                    if depth == 0 {
                        each(&self.object)?;
                        self.object.clear();
                        self.place = Place::Items;
                    }
                }
            }
        }
        Ok(())
    }

    /// The list without its objects.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    fn in_frame(&mut self, octet: u8) -> Result<(), SplitError> {
        if self.frame.len() == MOST_OF_FRAME {
            return Err(SplitError::TooLarge);
        }
        self.frame.push(octet);
        let was_in_string = self.in_string;
        if self.is_in_string(octet) {
            if self.depth == 1 {
                match (was_in_string, self.in_string) {
                    (false, true) => self.key.clear(),
                    (true, true) => self.key.push(octet),
                    _ => {}
                }
            }
            return Ok(());
        }
        match octet {
            b'[' if self.depth == 1 && self.key == b"items" => {
                self.depth += 1;
                self.place = Place::Items;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    /// Whether the octet is part of a string, its quotes included.
    fn is_in_string(&mut self, octet: u8) -> bool {
        if !self.in_string {
            self.in_string = octet == b'"';
            return self.in_string;
        }
        match octet {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The objects, and the rest.
    fn split(text: &str, length: usize) -> Result<(Vec<Value>, Value), SplitError> {
        let (mut splitter, mut objects) = (Splitter::default(), Vec::new());
        for piece in text.as_bytes().chunks(length) {
            splitter.push(piece, |object| -> Result<(), SplitError> {
                objects.push(serde_json::from_slice(object).unwrap());
                Ok(())
            })?;
        }
        Ok((objects, serde_json::from_slice(splitter.frame()).unwrap_or_default()))
    }

    #[test]
    fn objects_arrive_whole_from_pieces_of_any_length() {
        let items = [
            json!({"metadata": {"name": "a", "labels": {"x": "]}\\\"{["}}, "items": [{"b": []}]}),
            json!({}),
            json!({"text": "\\", "more": [[{"z": "\u{1f980}"}]]}),
        ];
        let list = json!({
            "kind": "items", "metadata": {"resourceVersion": "7", "items": [1, {"items": []}]}, "items": items, "after": {"a": ["]"]},
        });
        let frame = json!({
            "kind": "items", "metadata": {"resourceVersion": "7", "items": [1, {"items": []}]}, "items": [], "after": {"a": ["]"]},
        });
        for text in [list.to_string(), format!("{list:#}\n")] {
            for length in [1, 2, 3, 7, 64, text.len()] {
                assert_eq!(split(&text, length), Ok((items.to_vec(), frame.clone())), "{length}");
            }
        }
        let empty = r#"{"items": null, "metadata": {}}"#;
        assert_eq!(split(empty, 5), Ok((vec![], json!({"items": null, "metadata": {}}))));
    }

    #[test]
    fn an_answer_that_is_no_list_is_an_error() {
        assert_eq!(split(r#"{"items": [7]}"#, 4), Err(SplitError::NoObject));
        assert_eq!(split(r#"{"items": [{}, "{}"]}"#, 100), Err(SplitError::NoObject));
        let frame = format!(r#"{{"metadata": "{}"}}"#, "x".repeat(MOST_OF_FRAME));
        assert_eq!(split(&frame, 1000), Err(SplitError::TooLarge));
        let object = format!(r#"{{"items": [{{"a": "{}"}}]}}"#, "x".repeat(MOST_OF_OBJECT));
        assert_eq!(split(&object, 1 << 20), Err(SplitError::TooLarge));
        // No text makes it fail otherwise.
        for text in ["]]]}}}", "[[[", "{\"items\":[]]]]", "\"\\", ""] {
            assert!(split(text, 1).is_ok(), "{text}");
        }
    }
}
