//! Reads a list in an answer of the agent item by item: `{"ok":[…]}`. A full table has hundreds of
//! megabytes.

use std::fmt;
use std::io::Read;
use std::marker::PhantomData;

use anyhow::bail;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use trunkline_api::attach::Failure;

/// Passes each item to `each`; an error of `each` ends the list.
pub(crate) fn read<T: DeserializeOwned>(
    answer: impl Read,
    each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut refused = None;
    let items = Items { each, refused: &mut refused, of: PhantomData };
    let outcome = serde_json::Deserializer::from_reader(answer).deserialize_map(Answer(items));
    match (refused, outcome) {
        (Some(error), _) => Err(error),
        (None, Ok(None)) => Ok(()),
        (None, Ok(Some(failure))) => bail!("{failure}"),
        (None, Err(error)) if error.is_eof() => {
            bail!("the agent closed the connection before the end of its answer: see its log")
        }
        (None, Err(error)) => bail!("reading the answer: {error}"),
    }
}

/// A visitor for a `Reply`.
struct Answer<S>(S);

impl<'de, S: DeserializeSeed<'de, Value = ()>> Visitor<'de> for Answer<S> {
    /// The agent's refusal.
    type Value = Option<Failure>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a reply of the attach protocol")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum ListKind {
            Ok,
            Error,
        }
        match map.next_key()? {
            Some(ListKind::Ok) => map.next_value_seed(self.0).map(|()| None),
            Some(ListKind::Error) => map.next_value().map(Some),
            None => Err(M::Error::custom("the reply is empty")),
        }
    }
}

/// The list in the reply.
struct Items<'a, T, F> {
    each: F,
    /// The error of `each` for the last item.
    refused: &'a mut Option<anyhow::Error>,
    of: PhantomData<T>,
}

impl<'de, T: DeserializeOwned, F: FnMut(T) -> anyhow::Result<()>> DeserializeSeed<'de> for Items<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: DeserializeOwned, F: FnMut(T) -> anyhow::Result<()>> Visitor<'de> for Items<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(mut self, mut items: S) -> Result<(), S::Error> {
        while let Some(item) = items.next_element()? {
            if let Err(error) = (self.each)(item) {
                *self.refused = Some(error);
                return Err(S::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use trunkline_api::attach::{Code, Reply, encode};

    use super::*;

    fn all(answer: &[u8]) -> Result<Vec<u32>, String> {
        let mut found = Vec::new();
        let taken = read(answer, |number: u32| {
            anyhow::ensure!(number != 13, "not this one");
            found.push(number);
            Ok(())
        });
        taken.map(|()| found).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_is_read_item_by_item() {
        assert_eq!(all(&encode(&Reply::Ok(vec![1, 2, 3])).unwrap()), Ok(vec![1, 2, 3]));
        assert_eq!(all(&encode(&Reply::Ok(Vec::<u32>::new())).unwrap()), Ok(vec![]));
        assert_eq!(all(&encode(&Reply::Ok(vec![1, 13])).unwrap()), Err("not this one".to_owned()));
        let no: Reply<Vec<u32>> = Reply::Error(Failure::new(Code::NotAvailable, "no speaker"));
        assert!(all(&encode(&no).unwrap()).unwrap_err().contains("no speaker"));
        for cut in [&b""[..], b"{\"ok\":[1,2"] {
            assert!(all(cut).unwrap_err().contains("before the end"), "{cut:?}");
        }
        assert!(all(b"{\"ok\":{}}").unwrap_err().contains("a list"));
    }
}
