//! Which base URLs a call could not reach, so that its error names all of them. Pure.

use reqwest::Url;

use crate::Error;
use crate::base_url::shown;

/// The base URLs where the last attempt of a call found nobody, in the order of these attempts: none but those that the caller
/// gave, and addresses of owners that the call was told.
#[derive(Debug, Default)]
pub(crate) struct Unreached(Vec<Url>);

impl Unreached {
    /// An attempt has ended: with this failure, if it failed.
    pub(crate) fn note(&mut self, to: &Url, failure: Option<&Error>) {
        self.0.retain(|url| url != to);
        if matches!(failure, Some(Error::Unreachable { .. })) {
            self.0.push(to.clone());
        }
    }

    /// What the call ends with. Where it is that nobody was there, it names all the others.
    pub(crate) fn over(&self, last: Error) -> Error {
        match last {
            Error::Unreachable { url, reason, source, .. } => {
                let others = self.0.iter().map(shown).filter(|other| *other != url).collect();
                Error::Unreachable { url, reason, others, source }
            }
            last => last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable(url: &str) -> Error {
        let (url, reason) = (url.to_owned(), "refused".to_owned());
        Error::Unreachable { url, reason, others: Vec::new(), source: "?".into() }
    }

    #[test]
    fn those_that_were_reached_when_they_were_tried_last_are_not_named() {
        let urls = ["http://a:1", "http://b:1", "http://c:1", "http://d:1"];
        let mut unreached = Unreached::default();
        let mut note = |at: usize, is_there: bool| {
            let lost = Error::Lost { url: urls[at].to_owned(), reason: String::new(), source: None };
            let failure = if is_there { lost } else { unreachable(urls[at]) };
            unreached.note(&Url::parse(urls[at]).unwrap(), Some(&failure));
        };
        for (at, is_there) in
            [(0, false), (1, false), (2, true), (3, false), (0, false), (1, true), (2, false)]
        {
            note(at, is_there);
        }
        let said = unreached.over(unreachable("http://c:1")).to_string();
        assert_eq!(said, "no connection to http://c:1: refused; nor to http://d:1, http://a:1");
        let unusable = unreached.over(Error::Unusable("why".to_owned()));
        assert_eq!(unusable.to_string(), "why");
        unreached.note(&Url::parse(urls[0]).unwrap(), None);
        let said = unreached.over(unreachable("http://c:1")).to_string();
        assert_eq!(said, "no connection to http://c:1: refused; nor to http://d:1");
    }
}
