//! Bearer tokens: as their header carries them, and in a file that is replaced while a worker lives.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use reqwest::header::HeaderValue;

use crate::{Error, Result};

/// The token with which connections are opened. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Token {
    /// This one.
    Given(HeaderValue),
    /// The one in a file.
    OfFile(Arc<TokenFile>),
}

/// A token that is read again for each connection. A file that cannot be used changes nothing: a warning says why, once for each
/// reason in a row.
#[derive(Debug)]
pub(crate) struct TokenFile {
    file: PathBuf,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    /// What was read.
    token: HeaderValue,
    /// Why the file could not be used since.
    refused: Option<String>,
}

impl Token {
    /// The token as its header carries it now.
    pub(crate) fn now(&self) -> HeaderValue {
        match self {
            Self::Given(token) => token.clone(),
            Self::OfFile(file) => file.now(),
        }
    }
}

impl TokenFile {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::Unusable`] if it cannot be read, or holds no token.
    pub(crate) fn open(file: PathBuf) -> Result<Self> {
        let token = bearer(&token_in(&file)?)?;
        Ok(Self { file, last: Mutex::new(Last { token, refused: None }) })
    }

    fn now(&self) -> HeaderValue {
        let (now, refused) = self.read_again();
        if let Some(refused) = refused {
            tracing::warn!(refused, "the token cannot be read again; it stays as it was");
        }
        now
    }

    /// The token, and why the file cannot be used, unless that was said last.
    fn read_again(&self) -> (HeaderValue, Option<String>) {
        let read = token_in(&self.file).and_then(|token| bearer(&token));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut news = None;
        match read {
            Ok(token) => *last = Last { token, refused: None },
            Err(error) => {
                let before = last.refused.replace(error.to_string());
                if before != last.refused {
                    news.clone_from(&last.refused);
                }
            }
        }
        (last.token.clone(), news)
    }
}

/// The token in a file: its text, without blanks and line breaks at its ends.
///
/// # Errors
/// [`Error::Unusable`] if the file cannot be read, or is empty.
pub fn token_in(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Error::Unusable(format!("the token's file {}: {error}", file.display())))?;
    match text.trim() {
        "" => Err(Error::Unusable(format!("the token's file {} is empty", file.display()))),
        token => Ok(token.to_owned()),
    }
}

/// A token as its header carries it.
pub(crate) fn bearer(token: &str) -> Result<HeaderValue> {
    if token.is_empty() {
        return Err(Error::Unusable("an empty token: leave it out where the daemon needs none".to_owned()));
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| Error::Unusable("the token has characters that a header cannot carry".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_and_why_it_cannot_be_used_is_said_once_for_each_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        let refused = || TokenFile::open(file.clone()).unwrap_err().to_string();
        assert!(refused().contains("No such file"), "{}", refused());
        write(" \n");
        assert!(refused().ends_with("token is empty"), "{}", refused());
        write("one\n");
        let token = TokenFile::open(file.clone()).unwrap();
        let reads = || {
            let (now, refused) = token.read_again();
            (now.to_str().unwrap().to_owned(), refused.is_some())
        };
        let is = |token: &str, is_news: bool| (format!("Bearer {token}"), is_news);
        assert_eq!(reads(), is("one", false));
        write("  two\r\n");
        assert_eq!(reads(), is("two", false));
        write("");
        assert_eq!(reads(), is("two", true));
        assert_eq!(reads(), is("two", false), "it was said");
        write("a token\nand more\n");
        assert_eq!(reads(), is("two", true), "another reason");
        write("six");
        assert_eq!(reads(), is("six", false));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(reads(), is("six", true));
        assert!(!format!("{token:?}").contains("six"), "{token:?}");
    }
}
