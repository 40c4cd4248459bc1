//! Origination tags.

use smallvec::SmallVec;

/// A number that the program gives to originated prefixes, for the conditions of export policy
/// ([`Conditions::tags`]). Its meaning is the program's own. It never leaves the speaker: no UPDATE
/// and no dump contains it.
///
/// [`Conditions::tags`]: crate::policy::Conditions::tags
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

/// The tags of an originated prefix: ascending, each once, at most [`Tags::MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags(SmallVec<[Tag; 8]>);

impl Tags {
    /// The highest number of tags of a prefix.
    pub const MAX: usize = 64;

    /// Tags in any order; a repeated one counts once.
    ///
    /// # Errors
    /// If there are more than [`Tags::MAX`].
    pub fn new(tags: impl IntoIterator<Item = Tag>) -> Result<Tags, TooManyTags> {
        let mut tags: SmallVec<[Tag; 8]> = tags.into_iter().collect();
        tags.sort_unstable();
        tags.dedup();
        if tags.len() > Self::MAX { Err(TooManyTags { count: tags.len() }) } else { Ok(Tags(tags)) }
    }

    /// The tags, ascending.
    pub fn as_slice(&self) -> &[Tag] {
        &self.0
    }
}

/// More than [`Tags::MAX`] tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "tags has {count} different entries, at most {} are possible: use one tag for rules that always apply together",
    Tags::MAX
)]
pub struct TooManyTags {
    /// The number of different tags.
    pub count: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_sorted_unique_and_limited() {
        let tags = Tags::new([7, 1, 7, 65535].map(Tag)).unwrap();
        assert_eq!(tags.as_slice(), [Tag(1), Tag(7), Tag(65535)]);
        assert_eq!(tags, Tags::new([1, 7, 65535].map(Tag)).unwrap());
        let most = || (0..64).map(Tag);
        assert_eq!(Tags::new(most().chain(most())).unwrap().as_slice().len(), Tags::MAX);
        let error = Tags::new((0..65).map(Tag)).unwrap_err();
        assert_eq!(error, TooManyTags { count: 65 });
        assert!(error.to_string().starts_with("tags has 65 different entries, at most 64"), "{error}");
    }
}
