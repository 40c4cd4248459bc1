//! An error with its sources as text.

use std::error::Error;

/// The text of an error and of its sources, with `: ` between them. A source is left out if its
/// text is already there, because some errors repeat their source.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Broken {
        #[error("the file cannot be read")]
        File(#[source] io::Error),
        #[error("the file cannot be read: {0}")]
        Repeated(#[source] io::Error),
        #[error("the start failed")]
        Start(#[source] Box<Broken>),
    }

    #[test]
    fn sources_follow_and_no_text_is_there_twice() {
        let disk = || io::Error::other("disk on fire");
        assert_eq!(chain(&disk()), "disk on fire");
        assert_eq!(chain(&Broken::File(disk())), "the file cannot be read: disk on fire");
        assert_eq!(chain(&Broken::Repeated(disk())), "the file cannot be read: disk on fire");
        let started = Broken::Start(Box::new(Broken::File(disk())));
        assert_eq!(chain(&started), "the start failed: the file cannot be read: disk on fire");
    }
}
