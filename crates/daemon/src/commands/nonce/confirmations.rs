//! `fencepost nonce confirm --file`: confirms the next nonces of many signers.

use std::collections::HashMap;
use std::path::Path;

use client::wire::limits::NONCE_MAX;
use client::wire::nonces::Signer;
use domain::SignerId;

use crate::cli::Remote;
use crate::commands::each::each;
use crate::commands::{confirm, connect, json_file};
use crate::exit::Failure;

/// The signers of a file, in the order of the lines.
#[derive(Debug)]
pub struct Confirmations {
    signers: Vec<String>,
    next_nonces: HashMap<String, u64>,
}

/// Reads all lines, so that a mistake in one confirms nothing.
///
/// # Errors
/// Wrong usage: the file cannot be read, or a line of it is no `SIGNER NONCE`, or names a signer again.
pub fn read(path: &Path) -> Result<Confirmations, Failure> {
    let bytes = json_file::bytes(path)?;
    parse(&bytes).map_err(|why| json_file::wrong(path, &format!("{why}\n  No signer was confirmed.")))
}

/// Confirms one signer after the other, and goes on behind a refusal.
///
/// # Errors
/// The last refusal, or why no daemon could be reached; wrong usage where the question was not answered with yes.
pub async fn run(confirmations: &Confirmations, yes: bool, remote: &Remote) -> Result<(), Failure> {
    let Confirmations { signers, next_nonces } = confirmations;
    let client = connect(remote)?;
    confirm::ask_at_terminal(yes, || {
        format!(
            "Nonces below those of the file are consumed for good. Confirm them for {} signers?",
            signers.len()
        )
    })?;
    let call = async |signer: &str| client.confirm(signer, next_nonces[signer]).await;
    each(signers, remote, call, confirmed).await
}

fn confirmed(signer: &Signer) -> String {
    format!("signer {} is confirmed, next nonce {}\n", signer.signer, signer.next_nonce)
}

fn parse(bytes: &[u8]) -> Result<Confirmations, String> {
    let text = str::from_utf8(json_file::without_mark(bytes)).map_err(|error| error.to_string())?;
    let (mut signers, mut next_nonces) = (Vec::new(), HashMap::new());
    for (at, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("line {}: {why}", at + 1);
        let words: Vec<&str> = line.split_whitespace().collect();
        let (signer, nonce) = match words[..] {
            [] => continue,
            [signer, nonce] => (signer, nonce),
            _ => return Err(wrong("a signer and its next nonce are expected")),
        };
        SignerId::parse(signer).map_err(|invalid| wrong(&invalid.to_string()))?;
        let next = nonce.parse::<u64>().ok().filter(|next| *next <= NONCE_MAX);
        let next =
            next.ok_or_else(|| wrong(&format!("the nonce must be a whole number from 0 to {NONCE_MAX}")))?;
        if next_nonces.insert(signer.to_owned(), next).is_some() {
            return Err(wrong(&format!("signer {signer} is on a line before it too")));
        }
        signers.push(signer.to_owned());
    }
    Ok(Confirmations { signers, next_nonces })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn read_text(text: &[u8]) -> Result<Confirmations, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signers");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn each_line_that_is_not_blank_has_a_signer_and_its_next_nonce() {
        let Confirmations { signers, next_nonces } =
            read_text("\u{feff}b 7\r\n\n \t\neip155:1:0xab\t 9007199254740991 ".as_bytes()).unwrap();
        assert_eq!(signers, ["b", "eip155:1:0xab"]);
        assert_eq!((next_nonces["b"], next_nonces["eip155:1:0xab"]), (7, NONCE_MAX));
        assert!(read_text(b"").unwrap().signers.is_empty());
    }

    #[test]
    fn a_wrong_line_is_named_and_confirms_nothing() {
        for (text, says) in [
            ("a", "line 1: a signer and its next nonce are expected"),
            ("a 1\nb 2 3", "line 2: a signer and its next nonce are expected"),
            ("\na/b 1", "line 2: signer must be 1 to "),
            ("a -1", "line 1: the nonce must be a whole number from 0 to 9007199254740991"),
            ("a 9007199254740992", "line 1: the nonce must be"),
            ("1 a", "line 1: the nonce must be"),
            ("a 1\nb 1\na 1", "line 3: signer a is on a line before it too"),
        ] {
            let Failure { exit, message } = read_text(text.as_bytes()).unwrap_err();
            assert_eq!(exit, Exit::Usage, "{text}");
            assert!(
                message.contains(says) && message.ends_with("No signer was confirmed."),
                "{text}: {message}"
            );
        }
        assert!(read_text(b"a\xff 1").unwrap_err().message.contains("invalid utf-8"));
    }
}
